"""Clients of the issuer: how they become known, and how they authenticate."""

import json
import secrets
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import httpx

from tests.support.oauth.keys import read_jwt
from tests.support.oauth.ledger import Ledger
from tests.support.oauth.refusal import IssuerRequest, OAuthRefusal

METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
CODE, REFRESH = "authorization_code", "refresh_token"
CREDENTIALS = "client_credentials"
BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
GRANTS = (CODE, REFRESH, CREDENTIALS, BEARER, EXCHANGE)
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_DOCUMENT_BYTES = 65536


@dataclass(frozen=True)
class IssuerClient:
    """A client that the issuer knows. Its repr does not show the secret."""

    client_id: str
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = (CODE,)
    method: str = "none"
    secret: str | None = field(default=None, repr=False)
    secret_expires: float = 0
    keys: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    name: str = ""
    known_as: str | None = None

    def accepts_redirect(self, uri: str) -> bool:
        """Whether *uri* is registered; the port of a loopback address may differ.

        RFC 8252, 7.3: a native application binds a free port. Everything else is compared as a
        string.
        """
        if uri in self.redirect_uris:
            return True
        parts = urlsplit(uri)
        if parts.scheme != "http" or parts.hostname not in _LOOPBACK or "@" in parts.netloc:
            return False
        return any(_without_port(uri) == _without_port(each) for each in self.redirect_uris)


def _without_port(uri: str) -> tuple[str, ...]:
    parts = urlsplit(uri)
    return (parts.scheme, parts.hostname or "", parts.path, parts.query, parts.fragment)


class Clients:
    """The known clients. Those with a URL as id are known by the document there."""

    def __init__(self, ledger: Ledger, *, secret_ttl: float = 0) -> None:
        self.ledger = ledger
        self.secret_ttl = secret_ttl
        self.known: dict[str, IssuerClient] = {}
        self.documents: dict[str, Mapping[str, Any]] = {}

    async def find(self, client_id: str) -> IssuerClient:
        """Return a client.

        Raises:
            OAuthRefusal: it is unknown, or its document is unusable.
        """
        if client := self.known.get(client_id):
            return client
        if "://" not in client_id:
            raise OAuthRefusal("invalid_client", "unknown client", status=401)
        document = self.documents.get(client_id) or await fetched(client_id)
        if document.get("client_id") != client_id:
            raise OAuthRefusal("invalid_client", "client_id of the document differs", status=401)
        if "client_secret" in document:
            raise OAuthRefusal("invalid_client", "the document contains a secret", status=401)
        return client_from(client_id, {"token_endpoint_auth_method": "none", **document})

    def register(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Register a client (RFC 7591); return the response."""
        client = client_from(secrets.token_urlsafe(12), body)
        answer: dict[str, Any] = {
            **{name: value for name, value in body.items() if name != "client_secret"},
            "client_id": client.client_id,
            "client_id_issued_at": int(self.ledger.clock()),
            "grant_types": list(client.grant_types),
            "redirect_uris": list(client.redirect_uris),
            "token_endpoint_auth_method": client.method,
        }
        if client.method.startswith("client_secret"):
            expires = int(self.ledger.clock() + self.secret_ttl) if self.secret_ttl else 0
            secret = secrets.token_urlsafe(24)
            client = IssuerClient(**{**vars(client), "secret": secret, "secret_expires": expires})
            answer.update(client_secret=secret, client_secret_expires_at=expires)
        self.known[client.client_id] = client
        return answer

    async def authenticate(self, request: IssuerRequest) -> IssuerClient:
        """Return the client that sent a request, by the method that it is registered with.

        Raises:
            OAuthRefusal: it is unknown, used another method or two, or a wrong secret.
        """
        method, client_id, proof = credentials(request)
        client = await self.find(client_id)
        challenge = {"WWW-Authenticate": "Basic"} if method == "client_secret_basic" else {}
        refusal = OAuthRefusal(
            "invalid_client", "client authentication failed", status=401, headers=challenge
        )
        if method != client.method:
            refusal.description = f"the client is registered with {client.method}"
            raise refusal
        if method == "private_key_jwt":
            self._check_assertion(client, proof)
        elif method != "none":
            if not secrets.compare_digest(proof.encode(), (client.secret or "").encode()):
                raise refusal
            if client.secret_expires and client.secret_expires <= self.ledger.clock():
                refusal.description = "the client secret has expired"
                raise refusal
        return client

    def _check_assertion(self, client: IssuerClient, assertion: str) -> None:
        """Check a client assertion (RFC 7523, 3), whose audience is the issuer alone."""
        now = self.ledger.clock()
        try:
            claims = read_jwt(assertion, client.keys, types=("", "jwt"), now=now)
            if claims.get("iss") != client.client_id or claims.get("sub") != client.client_id:
                raise ValueError("iss or sub is not the client")
            if claims.get("aud") not in (self.ledger.url, [self.ledger.url]):
                raise ValueError("aud is not the issuer")
            if claims["exp"] > now + 3600:
                raise ValueError("it is valid for more than an hour")
            if not claims.get("jti") or not self.ledger.see_once("assertion", claims["jti"]):
                raise ValueError("jti is missing, or was used before")
        except ValueError as error:
            raise OAuthRefusal("invalid_client", f"client assertion: {error}", status=401) from None


def credentials(request: IssuerRequest) -> tuple[str, str, str]:
    """Return the method, the client id, and the secret or assertion of a request.

    Raises:
        OAuthRefusal: the request has no client id, or more than one method (RFC 6749, 2.3).
    """
    found: list[tuple[str, str, str]] = []
    form = request.params
    if header := request.headers.get("authorization"):
        found.append(("client_secret_basic", *_basic(header)))
    if "client_secret" in form:
        found.append(("client_secret_post", form.get("client_id", ""), form["client_secret"]))
    if assertion := form.get("client_assertion"):
        if form.get("client_assertion_type") != _ASSERTION:
            raise OAuthRefusal("invalid_request", "client_assertion_type is unknown")
        found.append(("private_key_jwt", _issuer_of(assertion), assertion))
    if len(found) > 1:
        raise OAuthRefusal("invalid_request", "the client authenticates by two methods")
    client_id = form.get("client_id", "")
    if not found:
        if not client_id:
            raise OAuthRefusal("invalid_client", "no client authentication", status=401)
        return "none", client_id, ""
    if client_id and client_id != found[0][1]:
        raise OAuthRefusal("invalid_request", "client_id differs from the authenticated client")
    return found[0]


def _basic(header: str) -> tuple[str, str]:
    """Return id and secret, which are form-encoded before Basic (RFC 6749, 2.3.1)."""
    scheme, _, value = header.partition(" ")
    try:
        text = b64decode(value.strip(), validate=True).decode()
    except ValueError:
        text = ""
    name, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        headers = {"WWW-Authenticate": "Basic"}
        raise OAuthRefusal("invalid_client", "malformed header", status=401, headers=headers)
    return unquote_plus(name), unquote_plus(secret)


def _issuer_of(assertion: str) -> str:
    """Return `iss` of an assertion that is not verified yet."""
    try:
        middle = assertion.split(".")[1]
        claims = json.loads(b64decode(middle + "=" * (-len(middle) % 4), altchars=b"-_"))
        return str(claims["iss"])
    except (ValueError, IndexError, KeyError, TypeError):
        raise OAuthRefusal("invalid_client", "malformed assertion", status=401) from None


def client_from(client_id: str, body: Mapping[str, Any]) -> IssuerClient:
    """Return the client that metadata describes (RFC 7591, 2).

    Raises:
        OAuthRefusal: a member is missing, unsupported or contradicts another.
    """
    method = body.get("token_endpoint_auth_method", "client_secret_basic")
    grants = _texts(body, "grant_types", [CODE])
    redirects = _texts(body, "redirect_uris", [])
    if method not in METHODS:
        raise OAuthRefusal("invalid_client_metadata", "token_endpoint_auth_method is unknown")
    if unknown := set(grants) - set(GRANTS):
        raise OAuthRefusal("invalid_client_metadata", f"grant_types: {' '.join(unknown)}")
    if _texts(body, "response_types", ["code"]) != ["code"]:
        raise OAuthRefusal("invalid_client_metadata", "response_types is not [code]")
    if CODE in grants and not redirects:
        raise OAuthRefusal("invalid_redirect_uri", "redirect_uris is missing")
    for uri in redirects:
        _check_redirect(uri, body.get("application_type"))
    keys = (body.get("jwks") or {}).get("keys") or ()
    if method == "private_key_jwt" and not keys:
        raise OAuthRefusal("invalid_client_metadata", "private_key_jwt needs jwks")
    return IssuerClient(
        client_id=client_id,
        redirect_uris=tuple(redirects),
        grant_types=tuple(grants),
        method=method,
        keys=tuple(keys),
        name=str(body.get("client_name") or ""),
    )


def _texts(body: Mapping[str, Any], name: str, default: list[str]) -> list[str]:
    found = body.get(name)
    if found is None:
        return default
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise OAuthRefusal("invalid_client_metadata", f"{name} is not a list of texts")
    return found


def _check_redirect(uri: str, application: object) -> None:
    """Check a redirect URI: https, loopback, or a scheme of an application's own (RFC 8252, 7)."""
    parts = urlsplit(uri)
    loopback = parts.scheme == "http" and parts.hostname in _LOOPBACK
    own = "." in parts.scheme
    if not parts.scheme or "#" in uri or not (parts.scheme == "https" or loopback or own):
        raise OAuthRefusal("invalid_redirect_uri", f"not allowed: {uri}")
    # OpenID Connect Dynamic Client Registration 1.0, 2: only if the type is given, because RFC
    # 7591 does not know it.
    if application == "web" and (loopback or own):
        raise OAuthRefusal("invalid_redirect_uri", f"not for application_type web: {uri}")


async def fetched(url: str) -> Mapping[str, Any]:
    """Return a client id metadata document: https, or http on loopback; redirects are refused."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" or local) or parts.path in ("", "/") or "#" in url:
        raise OAuthRefusal("invalid_client", "client_id is not a usable URL", status=401)
    try:
        async with (
            httpx.AsyncClient(timeout=5, trust_env=False) as http,
            http.stream("GET", url, headers={"accept": "application/json"}) as response,
        ):
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _DOCUMENT_BYTES:
                    raise ValueError("too large")
            document = json.loads(content) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise OAuthRefusal("invalid_client", "the client's document is unusable", status=401)
    return document


def public_keys(keys: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the keys of a JWK set, a list of JWKs, or one JWK."""
    if keys is None:
        return ()
    if isinstance(keys, Mapping):
        return tuple(keys["keys"]) if "keys" in keys else (keys,)
    return tuple(keys)
