"""DPoP at the client: a key for each record of tokens, and a proof for each request (RFC 9449)."""

import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from genmcp.auth import jose
from genmcp.auth.extensions.proofs import TYPE, proof_claims
from genmcp.client.auth.base import RejectedRequest
from genmcp.client.auth.flows import FlowAuthorization, SentHeaders, challenges_of
from genmcp.core.auth.metadata import origin_of, same_origin
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import Fetch, Fetched
from genmcp.core.auth.token_request import error_in

_MAX_NONCE: Final = 1024  # characters
_MAX_PROOFS: Final = 3  # a rejection up to this one; see `client/transports/authorized.py`


class FlowAuthorizer(Protocol):
    """Settings whose tokens are obtained by flows: all but a given token."""

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""


class DpopAuth:
    """Authorization by tokens that are bound to a key of this client (DPoP, RFC 9449).

        auth = DpopAuth(OAuth("Parts agent"))

    Each request has a proof that is signed with the key, so that a stolen token is of no use. The
    authorization server must support it. Needs the extra `auth`.

    Args:
        auth: obtains and stores the tokens, and with them the key.
    """

    def __init__(self, auth: FlowAuthorizer) -> None:
        self.auth = auth
        self.extension = getattr(auth, "extension", None)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        return DpopAuthorization(self.auth.authorization(url, tls))


class DpopAuthorization(FlowAuthorization):
    """Authorizes one connection by bound tokens. Owned by its transport.

    Args:
        inner: the authorization by tokens that are not bound, which this one replaces.
    """

    def __init__(self, inner: FlowAuthorization) -> None:
        self._keys = DpopKeys()
        options = replace(inner.options, prover=self._keys)
        super().__init__(options, inner.runner, inner.shared)

    def headers_with(self, record: Record, method: str, url: str) -> Mapping[str, str]:
        """Return the headers of a request with the token of *record*, and a proof."""
        token, key = record.access_token, record.dpop_key
        if token is None or key is None:
            return super().headers_with(record, method, url)
        headers = self._keys.headers(method, url, token, key)
        return _ProvenHeaders(record, headers, self._keys.nonce(url))

    async def rejected(self, request: RejectedRequest) -> bool:
        """Make another proof if one helps; else obtain another token."""
        if isinstance(request.sent, _ProvenHeaders):
            errors = {params.get("error") for _, params in challenges_of(request)}
            if "use_dpop_nonce" in errors:
                # RFC 9449, 9. Only with a nonce that is new, and for a bounded number of times.
                fresh = self._keys.nonce(request.url) != request.sent.nonce
                return fresh and request.attempt <= _MAX_PROOFS
            if "invalid_dpop_proof" in errors:
                # Neither another token nor a login helps. And the server may have seen this very
                # proof before: a proxy has sent the request twice, and the first one was carried
                # out.
                return False
        return await super().rejected(request)

    def answered(self, url: str, headers: Mapping[str, str]) -> None:
        """Keep the nonce for the next proof."""
        if same_origin(url, self.options.url):
            self._keys.answered(url, headers.items())


class _ProvenHeaders(SentHeaders):
    """The headers of a request with a proof, and the nonce of the proof."""

    def __init__(self, record: Record, headers: Mapping[str, str], nonce: str | None) -> None:
        super().__init__(record, headers)
        self.nonce = nonce


class DpopKeys:
    """Makes the keys of one client for one server, and the proofs that it has them: a `Prover`.

    A key belongs to the record of the tokens that are bound to it.

    Args:
        now: returns the Unix time.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._known: dict[str, jose.Key] = {}
        # By origin (RFC 9449, 8.2 and 9): that of the server, and of its authorization server.
        self._nonces: dict[str, str] = {}

    def new_key(self) -> str:
        """Return a new private key, as JWK in JSON."""
        key = jose.generate_key()  # ES256, which every server with DPoP knows
        return msgspec.json.encode(key.private_jwk).decode()

    def thumbprint(self, key: str) -> str:
        """Return the thumbprint of a private key (RFC 7638)."""
        return self._read(key).thumbprint

    def prove(self, request: Fetch, key: str) -> Fetch:
        """Return a request to a token endpoint with a proof by a private key."""
        proof = self._proof(self._read(key), request.method, request.url)
        return replace(request, headers=[*request.headers, ("DPoP", proof)])

    def challenged(self, request: Fetch, response: Fetched) -> bool:
        """Keep the nonce of a token endpoint; return whether it demands a proof with it (8)."""
        fresh = self.answered(request.url, response.headers)
        return fresh and error_in(response)[0] == "use_dpop_nonce"

    def headers(self, method: str, url: str, token: str, key: str) -> Mapping[str, str]:
        """Return the headers of a request with *token*, which is bound to the private *key*."""
        proof = self._proof(self._read(key), method, url, token)
        return {"Authorization": f"DPoP {token}", "DPoP": proof}

    def nonce(self, url: str) -> str | None:
        """Return the last nonce of the origin of *url*, None if it has sent none."""
        return self._nonces.get(origin_of(url))

    def answered(self, url: str, headers: Iterable[tuple[str, str]]) -> bool:
        """Keep the nonce of a response, of any status; return whether it is a new one."""
        nonce = next((value for name, value in headers if name.lower() == "dpop-nonce"), "")
        origin = origin_of(url)
        if not 0 < len(nonce) <= _MAX_NONCE or nonce == self._nonces.get(origin):
            return False
        self._nonces[origin] = nonce
        return True

    def _read(self, key: str) -> jose.Key:
        if key not in self._known:
            # One at a time: a second one is in use only while a login is under way.
            self._known = {key: jose.read_key(key)}
        return self._known[key]

    def _proof(self, key: jose.Key, method: str, url: str, token: str | None = None) -> str:
        claims: dict[str, Any] = proof_claims(
            method,
            url,
            id=secrets.token_urlsafe(16),
            now=self._now(),
            token=token,
            nonce=self.nonce(url),
        )
        return jose.sign(claims, key, header={"typ": TYPE, "jwk": key.public_jwk})
