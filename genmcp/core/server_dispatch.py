"""The rules that a server checks first: the era of a message, its headers, and its params.

A dual-era server recognizes the era by the opening of the client (2026-07-28, versioning, "Backward
Compatibility with Initialization-Based Versions"): a header or `_meta` that names a modern version,
an `initialize`, or the id of a session.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, Protocol

import msgspec

from genmcp.core.request import (
    MAX_NAME_BYTES,
    REQUEST_TYPES,
    ClientInfo,
    Request,
    RouteFacts,
    check_length,
    check_names,
    decode_params,
    session_params,
)
from genmcp.core.session import Session
from genmcp.errors import (
    HeaderMismatch,
    InvalidParams,
    InvalidRequest,
    MalformedParams,
    McpError,
    MethodNotFound,
    MissingCapability,
    NotAllowed,
    PromptNotFound,
    ResourceNotFound,
    ToolNotFound,
    UnsupportedVersion,
)
from genmcp.protocol.capabilities import ClientCapabilities, DiscoverResult, ServerCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION, RequestId, RequestParams
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import NO_ARGUMENTS, CallToolRequestParams
from genmcp.protocol.value import decoder_for
from genmcp.wire.jsonrpc import Message, RequestOf
from genmcp.wire.param_headers import check_method, check_name, check_params


class ServerCatalog(Protocol):
    """The methods and routes of a server, for the checks of a message."""

    def offers(self, method: str) -> bool:
        """Return whether the server answers the client's *method*."""

    def find(self, method: str, key: str) -> RouteFacts | None:
        """Return the route of a tool, resource or prompt, or None."""

    def added(self, method: str) -> Method | None:
        """Return the request *method* that the server adds to those of all revisions, or None."""


Headers = Mapping[bytes, bytes]
"""Headers by their names in lower case."""

VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"
_PARAM: Final = b"mcp-param-"
SESSION_HEADER: Final = b"mcp-session-id"

_any_params = decoder_for(RequestParams)
_anything = decoder_for(Any)
_MODERN: Final = {revision.version: revision for revision in MODERN}
_LEGACY: Final = frozenset(revision.version for revision in LEGACY)
# 2024-11-05 has another HTTP transport, with the session in the URL.
_WITH_SESSIONS: Final = _LEGACY - {LEGACY[-1].version}
_MODERN_METHODS: Final = {
    name: method
    for name, method in LATEST.methods.items()
    if method.sender != "server" and not method.is_notification
}


_SPECIFIED: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)
_MODERN_BY_HEADER: Final = {revision.version.encode(): revision for revision in MODERN}
_METHOD_BY_HEADER: Final = {name.encode(): method for name, method in _MODERN_METHODS.items()}


@cache
def reader_of(method: Method) -> Callable[[bytes], RequestOf[Any]]:
    """Return the decoder of whole requests of *method*."""
    # With the type of the params known from a header, msgspec reads a request in one pass, without
    # an intermediate value of its JSON.
    return msgspec.json.Decoder(RequestOf[method.params]).decode  # type: ignore[name-defined]


class Era(Enum):
    """How a message is to be served."""

    MODERN = "modern"
    HANDSHAKE = "handshake"
    SESSION = "session"


def era_of(headers: Headers, message: Message) -> Era:
    """Return the era of *message*.

    Raises:
        HeaderMismatch: `_meta` names a version, but the version header is missing or differs.
        InvalidRequest: the revision is unknown.
        UnsupportedVersion: the version is not supported.
    """
    named = _named_version(headers)
    # The header takes precedence, since proxies route by it: a body that contradicts it is checked
    # by the rules of the header's era, and rejected there.
    if named in _MODERN:
        return Era.MODERN
    if named is None or named in _LEGACY:
        # `initialize` first: a client that begins again may still send its old session id.
        if message.method == "initialize":
            return Era.HANDSHAKE
        if SESSION_HEADER in headers:
            return Era.SESSION
    claimed = claimed_version(message)
    if claimed is not None and claimed != named:
        raise _version_mismatch(named, claimed)
    if named is None or named in _LEGACY:
        # 2025-11-25, transports, "Session Management", point 2.
        raise InvalidRequest(
            "Bad request: no Mcp-Session-Id header. Send initialize first, or speak "
            f"{LATEST.version} (header MCP-Protocol-Version and _meta)"
        )
    raise UnsupportedVersion(named, list(REVISIONS))


def check_legacy(headers: Headers) -> None:
    """Check that a request for a session's stream, or its end, belongs to a session.

    Raises:
        NotAllowed: the version header names 2026-07-28 or later (Streamable HTTP, "Earlier
            Streamable HTTP Revisions").
        UnsupportedVersion: it names an unknown revision (2025-11-25, transports, "Protocol Version
            Header").
        InvalidRequest: it names a revision with sessions, without a session id (2025-11-25,
            transports, "Session Management", point 2: 400).
    """
    named = _named_version(headers)
    if named in _MODERN:
        raise NotAllowed("This revision has only POST", "POST")
    if named is not None and named not in _LEGACY:
        raise UnsupportedVersion(named, list(REVISIONS))
    if named in _WITH_SESSIONS and SESSION_HEADER not in headers:
        raise InvalidRequest("Bad request: no Mcp-Session-Id header. Send initialize first")


def check_batch(headers: Headers) -> None:
    """Check that the revision in the version header, if any, may have batches.

    Raises:
        InvalidRequest: a POST is one message in this revision, or belongs to no session.
        UnsupportedVersion: the revision is unknown.
    """
    if _named_version(headers) in _MODERN or SESSION_HEADER not in headers:
        raise InvalidRequest("The body must be one message, not a batch")
    check_legacy(headers)


def plain_request(headers: Headers, body: bytes, catalog: ServerCatalog) -> Request | None:
    """Return the request of 2026-07-28 or later that *body* holds, decoded in one step.

    The method header names the type to decode. None: the body belongs to another revision, or is
    rejected. The caller then decodes it as a message, for which `modern_request` raises the error.
    """
    method = _METHOD_BY_HEADER.get(headers.get(METHOD_HEADER, b""))
    if method is None or headers.get(VERSION_HEADER) not in _MODERN_BY_HEADER:
        return None  # clients may send the method in a session, too
    try:
        message = reader_of(method)(body)
        if message.method != method.name:
            return None
        return _check_request(
            headers, method.name, method, message.id, message.params, None, catalog, body
        )
    except (McpError, msgspec.DecodeError, RecursionError):
        return None


def modern_request(headers: Headers | None, message: Message, catalog: ServerCatalog) -> Request:
    """Decode *message* as a request of 2026-07-28 or later, and check it.

    *headers*: those of the HTTP request; a transport without headers passes None.

    Raises:
        MalformedParams: `_meta` or the params are invalid.
        HeaderMismatch: a header differs from the body.
        UnsupportedVersion: the version in `_meta` is not supported.
        MethodNotFound: this revision, or the server, does not have the method.
        MissingCapability: the client did not declare the extension that the method needs.
        InvalidParams: the tool, resource or prompt does not exist.
    """
    name = message.method or ""
    method = _MODERN_METHODS.get(name) or _added(catalog, name)
    fault: MalformedParams | None = None
    try:
        params = decode_params(
            _any_params if method is None else method.params_decoder, message.params
        )
    except MalformedParams as error:
        # Faults in params that only this method has are judged after those of `_meta`.
        params, fault = decode_params(_any_params, message.params), error.with_traceback(None)
    id: RequestId = message.id  # type: ignore[assignment]  # a request: it has one
    return _check_request(headers, name, method, id, params, fault, catalog, message.params)


def session_request(session: Session, message: Message, catalog: ServerCatalog) -> Request:
    """Return the request of *message* within a legacy *session*.

    Raises:
        MalformedParams: the params are invalid.
        MethodNotFound: this revision, or the server, does not have the method.
        MissingCapability: the client did not declare the extension that the method needs.
        InvalidParams: the tool, resource or prompt does not exist.
    """
    # No headers are compared here: before 2026-07-28 they repeat nothing of the body. The version
    # header is ignored in favour of the session, whose revision both sides have agreed on.
    name = message.method or ""
    revision = session.revision
    method = revision.methods.get(name) or _added(catalog, name)
    if (
        method is None
        or method.sender == "server"
        or (not method.routed and not catalog.offers(name))
    ):
        raise MethodNotFound(name)
    params, raw = session_params(method, message.params)
    if method.needs is not None:
        _check_usable(method, None, session.client.capabilities)
    # From here on the request has the names and types of 2026-07-28.
    params = revision.up(params)
    route = None
    if not method.routed:
        check_names(params)
    else:
        key = getattr(params, method.name_member or "")
        check_length(key)
        route = catalog.find(name, key)
        if route is None:
            raise _UNKNOWN[name](key)
    return REQUEST_TYPES.get(name, Request)(
        id=message.id,  # type: ignore[arg-type]  # a request: it has one
        method=name,
        params=params,
        raw=raw,
        revision=revision,
        client=session.client,
        session=session.key,
        route=route,
    )


def discover_result(capabilities: ServerCapabilities, instructions: str | None) -> DiscoverResult:
    """Return the result of server/discover (2026-07-28), with the versions of both eras."""
    return DiscoverResult(
        supported_versions=list(REVISIONS),
        capabilities=capabilities,
        instructions=instructions,
        ttl_ms=0,
        cache_scope="private",
    )


def _revision_of(headers: Headers, claimed: str) -> Revision:
    """Return the revision that `_meta` *claimed* where the version header is not equal to it."""
    named = _named_version(headers)
    if named != claimed:
        raise _version_mismatch(named, claimed)
    return _served(claimed)


def _served(claimed: str) -> Revision:
    revision = _MODERN.get(claimed)
    if revision is None:
        raise UnsupportedVersion(claimed, list(REVISIONS))
    return revision


def _added(catalog: ServerCatalog, name: str) -> Method | None:
    """Return the method *name* that an extension of the server adds; None if it adds none."""
    return None if name in _SPECIFIED else catalog.added(name)


def _check_usable(
    method: Method, fault: MalformedParams | None, client: ClientCapabilities
) -> None:
    """Check that the params have no *fault*, and *client* the extension that *method* needs.

    SEP-2133, "Graceful Degradation": a request is rejected if the extension is mandatory.

    Raises:
        MalformedParams: *fault*.
        MissingCapability: the client has not declared the extension.
    """
    # Checked for a method that is offered only: a client cannot know the params of another.
    if fault is not None:
        raise fault
    if method.needs is not None and method.needs not in (client.extensions or ()):
        raise MissingCapability({"extensions": {method.needs: {}}})


def _incomplete(lacking: str) -> MalformedParams:
    return MalformedParams(f"Invalid params: _meta lacks {lacking}, which every request carries")


def _check_name(headers: Headers, method: Method, key: str) -> None:
    """Check the name header where it is not *key* itself: it is encoded, wrong or missing."""
    # SEP-2663 has clients send it for a task, and lets no server ask for it; some do not.
    if method.routed or NAME_HEADER in headers:
        check_name(headers, key)


def _check_param_headers(
    headers: Headers, route: RouteFacts, params: RequestParams
) -> Headers | None:
    """Check the headers that repeat arguments; return those to check once the route is resolved."""
    if route.header_rules:
        raw = params.given if isinstance(params, CallToolRequestParams) else NO_ARGUMENTS
        check_params(headers, route.header_rules, decode_params(_anything, raw))
    if not route.pending:
        return None
    return {name: headers[name] for name in headers if name.startswith(_PARAM)}


# All checks of a modern request are here; `plain_request` and `modern_request` only decode. The
# order decides which of several faults is reported. The version comes first, since all other checks
# depend on it. Headers are compared before the params are used: a proxy that routes by headers must
# not see another method or name than the server. In nearly every request a header is equal to the
# member in the body, which one `==` shows; only a header that differs is decoded.


def _check_request(
    headers: Headers | None,
    name: str,
    method: Method | None,
    id: RequestId,
    params: RequestParams,
    fault: MalformedParams | None,
    catalog: ServerCatalog,
    raw: bytes | msgspec.Raw,
) -> Request:
    """Return the request for *method*, called *name*, if its headers and params are in order.

    Checked in the order of the most helpful error: `_meta`, version, routing headers, method,
    params (their *fault*), param headers. Headers that are right cost no function call.
    """
    meta = params.meta
    claimed = meta.protocol_version
    if claimed is None or meta.client_capabilities is None:
        raise _incomplete(PROTOCOL_VERSION if claimed is None else CLIENT_CAPABILITIES)
    revision: Revision | None
    if headers is None:
        revision = _served(claimed)
    else:
        revision = _MODERN_BY_HEADER.get(headers.get(VERSION_HEADER, b""))
        if revision is None or revision.version != claimed:
            revision = _revision_of(headers, claimed)
        if method is None or _METHOD_BY_HEADER.get(headers.get(METHOD_HEADER, b"")) is not method:
            check_method(headers, name)
    # A route that is found is offered, so that a plain call need not ask.
    if method is None or ((fault is not None or not method.routed) and not catalog.offers(name)):
        raise MethodNotFound(name)
    if fault is not None or method.needs is not None:
        _check_usable(method, fault, meta.client_capabilities)
    route = param_headers = None
    if method.name_member is not None:
        key = getattr(params, method.name_member)
        if len(key) * 4 > MAX_NAME_BYTES:  # UTF-8: at most 4 bytes a character
            check_length(key)
        if headers is not None and (
            headers.get(NAME_HEADER) != key.encode() or key.startswith("=?") or not key.isascii()
        ):
            _check_name(headers, method, key)
    else:
        check_names(params)
    if method.routed:
        route = catalog.find(name, key)
        if route is None:
            raise _UNKNOWN[name](key) if catalog.offers(name) else MethodNotFound(name)
        if headers is not None and (route.header_rules or route.pending):
            param_headers = _check_param_headers(headers, route, params)
    return REQUEST_TYPES.get(name, Request)(
        id=id,
        method=name,
        params=params,
        raw=raw,
        revision=revision,
        client=ClientInfo(claimed, meta.client_info, meta.client_capabilities),
        route=route,
        param_headers=param_headers,
    )


def with_route(request: Request, route: RouteFacts) -> Request:
    """Return *request* with the *route* that its pending one was resolved to.

    Raises:
        HeaderMismatch: a header differs from the argument that it repeats.
    """
    if request.param_headers is not None:
        _check_param_headers(request.param_headers, route, request.params)
    return msgspec.structs.replace(request, route=route, param_headers=None)


def _named_version(headers: Headers) -> str | None:
    version = headers.get(VERSION_HEADER)
    return None if version is None else version.strip().decode("latin-1")


_UNKNOWN: Final[Mapping[str, Callable[[str], InvalidParams]]] = {
    "tools/call": ToolNotFound,
    "prompts/get": PromptNotFound,
    "resources/read": ResourceNotFound,
}


def claimed_version(message: Message) -> str | None:
    """Return the version that the `_meta` of *message* names, which only modern ones do."""
    try:
        params: RequestParams = _any_params.decode(message.params or b"{}")
    except msgspec.MsgspecError:
        return None
    return params.meta.protocol_version


def _version_mismatch(named: str | None, claimed: str) -> HeaderMismatch:
    if named is None:
        return HeaderMismatch("Header mismatch: the MCP-Protocol-Version header is missing")
    return HeaderMismatch(
        f"Header mismatch: MCP-Protocol-Version header value {named!r} does not match "
        f"the version in _meta, {claimed!r}"
    )
