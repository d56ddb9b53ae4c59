"""Who sends a request: its access token verified, or the request refused (RFC 6750, 3)."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from genmcp._transports.admission import in_process_access
from genmcp._transports.body import decode, read_body
from genmcp._transports.request import Headers, HttpRequest, Scope, reject
from genmcp._transports.writing import reply
from genmcp.auth.bearer import Bearer, ProofChecker, bound_verifier
from genmcp.auth.document import ResourceDocument
from genmcp.auth.verdicts import SYSTEM_CLOCK, Verdicts
from genmcp.core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp.core.auth.challenges import bearer_challenge
from genmcp.core.server import Reject
from genmcp.errors import HttpRejected, McpError
from genmcp.log_throttle import LogThrottle
from genmcp.wire.jsonrpc import Message

logger = logging.getLogger("genmcp")

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_SHOWN: Final = 600  # characters of a reason in the log
_REASONS: Final = 32
"""Reasons that are logged apart from each other. All others share one throttle."""
_LOG_INTERVAL: Final = 10.0
"""Seconds between two records for one reason: strangers must not fill the log."""

_MAX_TOKEN: Final = 8 * 1024
"""Bytes of a token. Common servers refuse larger heads anyway."""

_MAX_VERIFICATIONS: Final = 100
"""Tokens that are verified at once. Those that were verified a moment ago do not count."""

_ONE_ADDRESS: Final = ceil(_MAX_VERIFICATIONS / 8)
"""The part of it that the clients at one address can use up."""

_WITHOUT_CREDENTIALS: Final = "unauthorized"

_KEYS: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The methods that name a component, and the member of their params that names it."""


@dataclass(eq=False)
class Refusal(Exception):
    """A request is refused.

    Args:
        status: the HTTP status.
        error: the code of RFC 6750, 3.1, empty without credentials.
        description: the reason in words.
        scopes: those that the operation needs besides those of the endpoint.
    """

    status: int
    error: str
    description: str
    scopes: Sequence[str] = ()


class Authenticator:
    """Admits the requests to an endpoint by their access tokens. Shared by all of a registry.

    Args:
        bearer: the accepted tokens.

    Raises:
        ConfigurationError: the verifier cannot be used with the other options.
    """

    def __init__(self, bearer: Bearer) -> None:
        # The lists that are checked, and published, must not change with the caller's.
        lists = {"issuers": tuple(bearer.issuers), "scopes": tuple(bearer.scopes)}
        self.bearer = bearer = msgspec.structs.replace(bearer, **lists)
        self.document = ResourceDocument(bearer.resource, bearer.metadata)
        self._verifier = bound_verifier(bearer.verify, bearer.resource, bearer.issuers)
        self._proofs: ProofChecker | None = getattr(self._verifier, "proofs", None)
        seconds = getattr(self._verifier, "cache", 0.0)
        self._verdicts = Verdicts(self._verify, seconds=seconds, clock=SYSTEM_CLOCK)
        self._verifying: Counter[str | None] = Counter()  # by the address
        self._throttles: dict[str, LogThrottle] = {}

    def knows(self, http: HttpRequest) -> bool:
        """Return whether the token of *http* was verified a moment ago; the request then has it.

        Without a wait, since nearly all requests have a known token.
        """
        if self._proofs is not None or http.scope["query_string"]:
            return False
        token = http.table.get(b"authorization", b"")
        if token[:7].lower() != b"bearer ":
            return False
        access = self._verdicts.find(token[7:])
        if access is None or access.missing(self.bearer.scopes):
            return False
        if access.claims.get("cnf") is not None:  # refused, unless with a proof
            return False
        http.authenticate(access)
        http.challenger = self
        return True

    async def admits(self, http: HttpRequest) -> bool:
        """Verify the token of *http*; return whether the request may be served.

        Otherwise it was refused. Without a valid token, nothing of its body was read.
        """
        if http.scope["method"] == "OPTIONS":
            return True  # a preflight comes without credentials
        http.challenger = self
        try:
            access = in_process_access(http.scope)
            if access is not None:
                access = self.bearer.complete(access)
            else:
                scheme, token = credentials_of(http.scope)
                if scheme == "dpop" and self._proofs is None:
                    token = None  # RFC 6750, 3.1: another scheme is as none
                if token is None and self.bearer.optional:
                    return True
                if token is None:
                    raise Refusal(401, "", "This endpoint needs an access token")
                access = await self._verified(http, scheme, token)
            http.authenticate(access)
            if access.missing(self.bearer.scopes):
                scopes = await _scopes_named(http)
                needed = " ".join(dict.fromkeys((*self.bearer.scopes, *scopes)))
                text = f"The access token lacks a scope; needed: {needed}"
                raise Refusal(403, "insufficient_scope", text, scopes)
        except Refusal as refusal:
            await self._refuse(http, refusal)
            return False
        except AuthorizationUnavailable as error:
            self._log("unavailable", "access tokens cannot be verified: %s", str(error))
            # No challenge: after one, clients throw good tokens away.
            text = "Access tokens cannot be verified now"
            down = Refusal(503, "temporarily_unavailable", text)
            await _reply(http, down, [(b"retry-after", b"%d" % error.retry_after)])
            return False
        return True

    def challenge(
        self, scope: Scope, error: str, description: str, scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of `WWW-Authenticate` for a request with the ASGI scope *scope*.

        Args:
            scope: the request, which decides where its client finds the metadata.
            error: the error code; empty for a request without credentials.
            description: the error in words, for a human.
            scopes: the scopes of the operation; those of the endpoint are added.
        """
        needed = (*self.bearer.scopes, *scopes)
        found = {"resource_metadata": self.document.url(scope)}
        proofs = self._proofs
        if proofs is None:
            return bearer_challenge(error, description, needed, **found)
        algorithms = " ".join(proofs.algorithms)
        proven = error if proofs.required or scheme_of(scope) == "dpop" else ""
        challenge = bearer_challenge(proven, description, needed, "DPoP", algs=algorithms, **found)
        if proofs.required:
            return challenge
        # Bearer first: some clients read the first challenge only. The error belongs to the scheme
        # that the request had.
        plain = bearer_challenge("" if proven else error, description, needed, **found)
        return f"{plain}, {challenge}"

    async def _verified(self, http: HttpRequest, scheme: str, token: str) -> Access:
        """Return the content of *token*, which is bound to the key of the proof, or to none.

        Raises:
            Refusal: it is not valid here.
            AuthorizationUnavailable: it cannot be verified now.
        """
        try:
            access = await self._verdicts.verify(token, http.client_key.address)
            if scheme == "dpop" and self._proofs is not None:
                await self._proofs.check(http, access, token, self.bearer.resource)
            else:
                self._check_unbound(access)
            return access
        except InvalidToken as error:
            self._log(error.reason, "an access token was refused: %s", str(error))
            raise Refusal(401, error.code, error.reason) from None

    def _check_unbound(self, access: Access) -> None:
        """Check that a token with the scheme `Bearer` may be sent in this way (RFC 9449, 7.2).

        Raises:
            InvalidToken: it is bound to a key, so that another client may have stolen it; or tokens
                without a key are not accepted.
        """
        if access.claims.get("cnf") is None:
            if self._proofs is not None and self._proofs.required:
                raise InvalidToken("only tokens that are bound to a key are accepted here (DPoP)")
        elif self._proofs is None:
            raise InvalidToken("the token is bound to a key, and DPoP is not supported here")
        else:
            raise InvalidToken("the token is bound to a key: send it with the scheme DPoP")

    async def _verify(self, token: str, address: str | None) -> Access:
        """Verify *token*, which a client at *address* has sent; None is one in this process."""
        # Here, where requests with the same token wait for one verification: a client that begins
        # with many requests must not reach the limit alone.
        # A stranger with random tokens leaves room for the new tokens of others.
        alone = address is not None and self._verifying[address] >= _ONE_ADDRESS
        if alone or self._verifying.total() >= _MAX_VERIFICATIONS:
            text = f"{self._verifying.total()} tokens are being verified"
            text += f", {_ONE_ADDRESS} of one address" if alone else ""
            raise AuthorizationUnavailable(text, retry_after=1)
        self._verifying[address] += 1
        try:
            return self.bearer.complete(await self._verifier.verify(token))
        finally:
            self._verifying[address] -= 1
            if not self._verifying[address]:
                del self._verifying[address]

    async def _refuse(self, http: HttpRequest, refusal: Refusal) -> None:
        """Respond with the status and challenge of *refusal*."""
        challenge = self.challenge(http.scope, refusal.error, refusal.description, refusal.scopes)
        headers = [(b"www-authenticate", challenge.encode("ascii"))]
        if refusal.error == "use_dpop_nonce" and self._proofs is not None:
            headers.append((b"dpop-nonce", self._proofs.nonce(http).encode("ascii")))
        await _reply(http, refusal, headers)

    def _log(self, reason: str, message: str, detail: str) -> None:
        if reason not in self._throttles and len(self._throttles) >= _REASONS:
            reason = ""
        throttle = self._throttles.get(reason)
        if throttle is None:
            throttle = self._throttles[reason] = LogThrottle(logger, _LOG_INTERVAL)
        # A verifier may quote parts of a token, which a stranger has written.
        throttle.log(logging.WARNING, message, _UNPRINTABLE.sub("?", detail)[:_SHOWN])


def scheme_of(scope: Scope) -> str:
    """Return the scheme of the credentials in lower case, empty without credentials."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0].strip().partition(b" ")[0].decode("latin-1").lower() if values else ""


async def _scopes_named(http: HttpRequest) -> Sequence[str]:
    """Return the scopes of the components that a request names, which is refused in any case.

    2026-07-28, authorization, "Scope Challenge Handling": all scopes of the operation at once.
    """
    found: dict[str, None] = {}
    if http.scope["method"] != "POST":
        return ()
    try:
        messages = decode(await read_body(http, http.table.get(b"content-length")), http.mux.limits)
        for message in messages if isinstance(messages, list) else [messages]:
            if isinstance(message, Message) and (key := _KEYS.get(message.method or "")):
                params = msgspec.json.decode(message.params, type=dict[str, Any])
                route = http.mux.server.find(message.method or "", str(params.get(key)))
                if route is not None and route.is_visible(http.access):
                    found.update(dict.fromkeys(route.scopes))
    except (McpError, msgspec.DecodeError):
        pass  # with its scopes, the client learns what is wrong with its message
    return tuple(found)


def credentials_of(scope: Scope) -> tuple[str, str | None]:
    """Return the scheme of a request, `bearer` or `dpop`, and its access token or None.

    Raises:
        Refusal: the request contains it in another way, or twice, or is malformed (RFC 6750, 3.1:
            `invalid_request`).
        HttpRejected: it is too large.
    """
    query = scope["query_string"].decode("latin-1")
    if query and any(name == "access_token" for name, _ in parse_qsl(query, True)):
        # 2026-07-28, authorization, "Token Requirements": never in the query.
        raise Refusal(400, "invalid_request", "An access token must not be in the query")
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) > 1:
        raise Refusal(400, "invalid_request", "The Authorization header is given more than once")
    scheme = scheme_of(scope)
    if scheme not in ("bearer", "dpop"):
        return scheme, None  # RFC 6750, 3.1: another scheme is as none
    token = values[0].strip().partition(b" ")[2].strip()
    if len(token) > _MAX_TOKEN:
        raise HttpRejected(f"The access token is larger than {_MAX_TOKEN} bytes", status=431)
    if not _TOKEN.fullmatch(token):
        raise Refusal(400, "invalid_request", "The Authorization header has no access token")
    return scheme, token.decode("ascii")


async def _reply(http: HttpRequest, refusal: Refusal, headers: Headers) -> None:
    error = HttpRejected(refusal.description, status=refusal.status)
    reject(http, Reject(error, True, None, None))  # for telemetry; the body is that of OAuth
    code = refusal.error or _WITHOUT_CREDENTIALS
    body = msgspec.json.encode({"error": code, "error_description": refusal.description})
    await reply(http, refusal.status, body, [*headers, (b"cache-control", b"no-store")])
