"""Who sends a request: its access token verified, or the request refused (RFC 6750, 3)."""

import logging
import re
from collections.abc import Sequence
from math import ceil
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from genmcp._core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp._core.auth.challenges import bearer_challenge
from genmcp._core.auth.dpop import InvalidProof
from genmcp._core.server import Reject
from genmcp._transports.admission import in_process_access
from genmcp._transports.body import decode, read_body
from genmcp._transports.request import Headers, HttpRequest, Scope, reject
from genmcp._transports.writing import reply
from genmcp._wire.jsonrpc import Message
from genmcp.auth.bearer import Bearer, Verifier
from genmcp.auth.document import ResourceDocument
from genmcp.auth.dpop import check_unbound
from genmcp.auth.verdicts import SYSTEM_CLOCK, Verdicts
from genmcp.errors import HttpRejected, McpError
from genmcp.tasks.log_throttle import LogThrottle

logger = logging.getLogger("genmcp")

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_SHOWN: Final = 600  # characters of a reason in the log
_REASONS: Final = 32
"""Reasons that are logged apart from each other. All others share one throttle."""
_LOG_INTERVAL: Final = 10.0
"""Seconds between two records for one reason: strangers must not fill the log."""

_ONE_ADDRESS: Final = 1 / 8
"""The part of `max_verifications` that the clients at one address can use up."""

_WITHOUT_CREDENTIALS: Final = "unauthorized"

_KEYS: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The methods that name a component, and the member of their params that names it."""


class Refusal(Exception):
    """A request is refused. *error* is the code of RFC 6750, 3.1, empty without credentials.

    scopes: those that the operation needs besides those of the endpoint.
    """

    def __init__(
        self, status: int, error: str, description: str, scopes: Sequence[str] = ()
    ) -> None:
        super().__init__(description)
        self.status = status
        self.error = error
        self.description = description
        self.scopes = scopes


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
        self._dpop = bearer.proofs
        self._verifier = _verifier_of(bearer)
        self._verdicts = Verdicts(
            self._verify,
            seconds=getattr(self._verifier, "cache", 0.0),
            max_entries=bearer.max_verdicts,
            clock=SYSTEM_CLOCK,
        )
        # The address of each verification. Counters would need a lock: loops are in threads.
        self._verifying: dict[object, str | None] = {}
        self._throttles: dict[str, LogThrottle] = {}

    def knows(self, http: HttpRequest) -> bool:
        """Return whether the token of *http* was verified a moment ago; the request then has it.

        Without a wait, since nearly all requests have a known token.
        """
        if http.scope["query_string"]:
            return False
        token = http.table.get(b"authorization", b"")
        if token[:7].lower() != b"bearer ":
            return False
        access = self._verdicts.find(token[7:])
        if access is None or access.missing(self.bearer.scopes) or self._binds(access):
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
                scheme, token = credentials_of(http.scope, self.bearer.max_token_bytes)
                if scheme == "dpop" and self._dpop is None:
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
            await _reply_unavailable(http, error)
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
        further = {"realm": self.bearer.realm, "resource_metadata": self.document.url(scope)}
        dpop = self._dpop
        if dpop is None:
            return bearer_challenge(error, description, needed, **further)
        algorithms = " ".join(dpop.algorithms)
        proven = error if dpop.required or scheme_of(scope) == "dpop" else ""
        challenge = bearer_challenge(
            proven, description, needed, "DPoP", algs=algorithms, **further
        )
        if dpop.required:
            return challenge
        # Bearer first: some clients read the first challenge only. The error belongs to the scheme
        # that the request had.
        plain = bearer_challenge("" if proven else error, description, needed, **further)
        return f"{plain}, {challenge}"

    async def _verified(self, http: HttpRequest, scheme: str, token: str) -> Access:
        """Return the content of *token*, which is bound to the key of the proof, or to none.

        Raises:
            Refusal: it is not valid here.
            AuthorizationUnavailable: it cannot be verified now.
        """
        try:
            access = await self._verdicts.verify(token, http.client_key.address)
            if scheme == "dpop" and self._dpop is not None:
                await self._dpop.check(http, access, token, self.bearer.resource)
            else:
                check_unbound(access, self._dpop)
            return access
        except InvalidProof as error:
            self._log(error.reason, "a DPoP proof was refused: %s", str(error))
            raise Refusal(401, error.code, error.reason) from None
        except InvalidToken as error:
            self._log(error.reason, "an access token was refused: %s", str(error))
            raise Refusal(401, "invalid_token", error.reason) from None

    async def _verify(self, token: str, address: str | None) -> Access:
        """Verify *token*, which a client at *address* has sent; None is one in this process."""
        # Here, where requests with the same token wait for one verification: a client that begins
        # with many requests must not reach the limit alone.
        addresses, most = [*self._verifying.values()], self.bearer.max_verifications
        # A stranger with random tokens leaves room for the new tokens of others.
        alone = address is not None and addresses.count(address) >= ceil(_ONE_ADDRESS * most)
        if len(addresses) >= most or alone:
            part = "an eighth of " if alone else ""
            raise AuthorizationUnavailable(
                f"{len(addresses)} tokens are being verified (limit: {part}max_verifications)",
                retry_after=1,
            )
        verification = object()
        self._verifying[verification] = address
        try:
            return self.bearer.complete(await self._verifier.verify(token))
        finally:
            del self._verifying[verification]

    async def _refuse(self, http: HttpRequest, refusal: Refusal) -> None:
        """Respond with the status and challenge of *refusal*."""
        challenge = self.challenge(http.scope, refusal.error, refusal.description, refusal.scopes)
        headers = [(b"www-authenticate", challenge.encode("ascii"))]
        if refusal.error == "use_dpop_nonce" and self._dpop is not None:
            headers.append((b"dpop-nonce", self._dpop.nonce(http).encode("ascii")))
        await _reply(http, refusal, headers)

    def _binds(self, access: Access) -> bool:
        """Return whether a request with *access* needs a proof, and thus `admits`."""
        required = self._dpop is not None and self._dpop.required
        return required or access.claims.get("cnf") is not None

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


def credentials_of(scope: Scope, max_bytes: int) -> tuple[str, str | None]:
    """Return the scheme of a request, `bearer` or `dpop`, and its access token or None.

    Raises:
        Refusal: the request contains it in another way, or twice, or is malformed (RFC 6750, 3.1:
            `invalid_request`).
        HttpRejected: it is larger than *max_bytes*.
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
    if len(token) > max_bytes:
        raise HttpRejected(
            f"The access token is larger than {max_bytes} bytes (option: max_token_bytes)",
            status=431,
        )
    if not _TOKEN.fullmatch(token):
        raise Refusal(400, "invalid_request", "The Authorization header has no access token")
    return scheme, token.decode("ascii")


def _verifier_of(bearer: Bearer) -> Verifier:
    """Return the verifier of *bearer*, which learns its resource and issuers."""
    verifier = bearer.verify
    if verifier is None:
        from genmcp.auth.jwt import Jwt  # needs an extra

        verifier = Jwt()
    bind = getattr(verifier, "bind", None)
    bound: Verifier = verifier if bind is None else bind(bearer.resource, bearer.issuers)
    return bound


async def _reply_unavailable(http: HttpRequest, error: AuthorizationUnavailable) -> None:
    # No challenge: after one, clients throw good tokens away.
    refusal = Refusal(503, "temporarily_unavailable", "Access tokens cannot be verified now")
    await _reply(http, refusal, [(b"retry-after", b"%d" % error.retry_after)])


async def _reply(http: HttpRequest, refusal: Refusal, headers: Headers) -> None:
    error = HttpRejected(refusal.description, status=refusal.status)
    reject(http, Reject(error, True, None, None))  # for telemetry; the body is that of OAuth
    code = refusal.error or _WITHOUT_CREDENTIALS
    body = msgspec.json.encode({"error": code, "error_description": refusal.description})
    await reply(http, refusal.status, body, [*headers, (b"cache-control", b"no-store")])
