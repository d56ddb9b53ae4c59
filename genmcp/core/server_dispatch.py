"""Which exchange a message opens, and whether it may: the rules a server checks first.

A dual-era server is told the era by how the client opens (2026-07-28, versioning, "Backward
Compatibility with Initialization-Based Versions"): a header or `_meta` naming a modern version,
an `initialize`, or the id of a session that one began.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from genmcp.core.exchange import Exchange
from genmcp.core.request import Client, Request
from genmcp.core.session import Session
from genmcp.errors import (
    HeaderMismatch,
    InvalidParams,
    InvalidRequest,
    MalformedParams,
    MethodNotFound,
    NotAllowed,
    ResourceNotFound,
    UnsupportedVersion,
)
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.discovery import DiscoverResult
from genmcp.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, RequestMeta
from genmcp.protocol.methods import Method
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import NO_ARGUMENTS
from genmcp.protocol.value import decoder_for
from genmcp.wire.http import Head
from genmcp.wire.jsonrpc import Message
from genmcp.wire.mirror import check_method, check_name, check_params

__all__ = [
    "Catalog",
    "Era",
    "check_batch",
    "check_legacy",
    "discovered",
    "era_of",
    "modern_request",
    "params_of",
    "session_exchange",
    "session_request",
]


class Catalog(Protocol):
    """What a server offers, as far as a message is judged by it."""

    def offers(self, method: str) -> bool:
        """Return whether the server answers the client's *method*."""

    def find(self, method: str, key: str) -> Any:
        """Return the route of a tool, resource or prompt, or None; it has `headers`."""


VERSION_HEADER: Final = b"mcp-protocol-version"
SESSION_HEADER: Final = b"mcp-session-id"

_any_params = decoder_for(RequestParams)
_anything = decoder_for(Any)
_MODERN: Final = {revision.version: revision for revision in MODERN}
_LEGACY: Final = frozenset(revision.version for revision in LEGACY)
_MODERN_METHODS: Final = {
    name: method
    for name, method in LATEST.methods.items()
    if method.sender != "server" and not method.is_notification
}


class Era(Enum):
    """How a message is to be served."""

    MODERN = "modern"
    HANDSHAKE = "handshake"
    SESSION = "session"


def era_of(head: Head, message: Message) -> Era:
    """Return how *message* is to be served.

    Raises:
        HeaderMismatch: `_meta` names a version, but the version header is missing or differs.
        InvalidRequest: nothing tells which revision is spoken.
        UnsupportedVersion: a version that is not served here.
    """
    headers = head.headers
    version = headers.get(VERSION_HEADER)
    named = None if version is None else version.decode("latin-1")
    if named in _MODERN:
        return Era.MODERN
    if named is None or named in _LEGACY:
        if message.method == "initialize":
            return Era.HANDSHAKE
        if SESSION_HEADER in headers:
            return Era.SESSION
    claimed = _claimed_version(message)
    if claimed is not None and claimed != named:
        raise _version_mismatch(named, claimed)
    if named is None or named in _LEGACY:
        # 2025-11-25, transports, "Session Management", point 2.
        raise InvalidRequest(
            "Bad request: no Mcp-Session-Id header. Send initialize first, or speak "
            f"{LATEST.version} (header MCP-Protocol-Version and _meta)"
        )
    raise UnsupportedVersion(named, list(REVISIONS))


def check_legacy(headers: Mapping[bytes, bytes]) -> None:
    """Check that what only a session has is not asked for in another revision.

    Raises:
        NotAllowed: the version header names 2026-07-28 or later (Streamable HTTP, "Earlier
            Streamable HTTP Revisions").
        UnsupportedVersion: it names no revision (2025-11-25, transports, "Protocol Version
            Header").
    """
    version = headers.get(VERSION_HEADER)
    named = None if version is None else version.decode("latin-1")
    if named in _MODERN:
        raise NotAllowed("This revision has only POST", "POST")
    if named is not None and named not in _LEGACY:
        raise UnsupportedVersion(named, list(REVISIONS))


def check_batch(headers: Mapping[bytes, bytes]) -> None:
    """Check that the revision the version header names, if any, may have batches.

    Raises:
        InvalidRequest: a POST is one message there, or belongs to no session.
        UnsupportedVersion: there is no such revision.
    """
    version = headers.get(VERSION_HEADER, b"").decode("latin-1")
    if version in _MODERN or SESSION_HEADER not in headers:
        raise InvalidRequest("The body must be one message, not a batch")
    check_legacy(headers)


def modern_request(head: Head | None, message: Message, catalog: Catalog) -> Request:
    """Return the request *message* makes on 2026-07-28 or later.

    *head* is None on a transport without headers. The checks are in the order that gives the
    most telling error: `_meta`, version, routing headers, method, params, mirrored arguments.

    Raises:
        MalformedParams: `_meta` or the params are not what the specification says.
        HeaderMismatch: a header does not say what the body says.
        UnsupportedVersion: the version in `_meta` is not served.
        MethodNotFound: there is no such method in this revision, or the server offers none.
        InvalidParams: no tool, resource or prompt has this name.
    """
    name = _name_of(message)
    headers = None if head is None else head.headers
    method = _MODERN_METHODS.get(name)
    fault: MalformedParams | None = None
    try:
        params = _decode(_any_params if method is None else method.params_decoder, message.params)
    except MalformedParams as error:
        # Whatever is wrong with what only this method takes, what every request has comes first.
        params, fault = _decode(_any_params, message.params), error
    meta = params.meta
    revision = _modern_revision(headers, meta)
    if headers is not None:
        check_method(headers, name)
    if method is None or not catalog.offers(name):
        raise MethodNotFound(name)
    if fault is not None:
        raise fault
    route = None
    if method.name_member is not None:
        key = getattr(params, method.name_member)
        if headers is not None:
            check_name(headers, key)
        route = _found(catalog, name, key)
        if route.headers and headers is not None:
            check_params(headers, route.headers, _arguments(params))
    return Request(
        id=message.id,  # type: ignore[arg-type]  # a request: it has one
        method=name,
        params=params,
        raw=message.params,
        revision=revision,
        client=Client(revision.version, meta.client_info, meta.client_capabilities),
        route=route,
    )


def session_request(session: Session, message: Message, catalog: Catalog) -> Request:
    """Return the request *message* makes within a legacy *session*.

    Raises:
        MalformedParams: the params are not what the specification says.
        MethodNotFound: there is no such method in this revision, or the server offers none.
        InvalidParams: no tool, resource or prompt has this name.
    """
    name = _name_of(message)
    revision = session.revision
    method = revision.methods.get(name)
    if method is None or method.sender == "server" or not catalog.offers(name):
        raise MethodNotFound(name)
    params = revision.up(_decode(method.params_decoder, message.params))
    route = None
    if method.name_member is not None:
        route = _found(catalog, name, getattr(params, method.name_member))
    return Request(
        id=message.id,  # type: ignore[arg-type]  # a request: it has one
        method=name,
        params=params,
        raw=message.params,
        revision=revision,
        client=session.client,
        session=session.key,
        route=route,
    )


def session_exchange(
    session: Session, requests: Sequence[Request], *, stream: str | None, expected: int, batch: bool
) -> Exchange:
    """Return the exchange that answers *requests* of a legacy *session*.

    *stream* is a fresh name for its event stream, None if the client takes none; *expected* is how
    many answers there will be, those of refused requests among them. A disconnect cancels only
    what a tool wants cancelled (2025-11-25, transports, point 6); in a batch, one such tool
    decides for all.
    """
    return Exchange(
        stream=stream,
        primed=session.revision.priming_event,
        streams=stream is not None,
        cancels=any(each.route and each.route.on_disconnect == "cancel" for each in requests),
        expected=expected,
        batch=batch,
    )


def discovered(capabilities: ServerCapabilities, instructions: str | None) -> DiscoverResult:
    """Return what a server is: 2026-07-28, server/discover; the versions of both eras."""
    return DiscoverResult(
        supported_versions=list(REVISIONS),
        capabilities=capabilities,
        instructions=instructions,
        ttl_ms=0,
        cache_scope="private",
    )


def params_of(method: Method, message: Message) -> Any:
    """Return the decoded params of *message*.

    Raises:
        MalformedParams: they are not what *method* takes.
    """
    return _decode(method.params_decoder, message.params)


def _name_of(message: Message) -> str:
    if message.method is None or not message.is_request:
        raise InvalidRequest("Not a request")
    return message.method


def _decode(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw) -> Any:
    try:
        return decoder.decode(raw or b"{}")
    except msgspec.DecodeError as error:
        raise MalformedParams(f"Invalid params: {error}") from None


def _modern_revision(headers: Mapping[bytes, bytes] | None, meta: RequestMeta) -> Revision:
    claimed = meta.protocol_version
    if claimed is None or meta.client_capabilities is None:
        lacking = PROTOCOL_VERSION if claimed is None else CLIENT_CAPABILITIES
        raise MalformedParams(f"Invalid params: _meta lacks {lacking}, which every request carries")
    if headers is not None:
        version = headers.get(VERSION_HEADER)
        named = None if version is None else version.decode("latin-1")
        if named != claimed:
            raise _version_mismatch(named, claimed)
    revision = _MODERN.get(claimed)
    if revision is None:
        raise UnsupportedVersion(claimed, list(REVISIONS))
    return revision


def _found(catalog: Catalog, method: str, key: str) -> Any:
    route = catalog.find(method, key)
    if route is None:
        raise _UNKNOWN[method](key)
    return route


_UNKNOWN: Final[Mapping[str, Callable[[str], InvalidParams]]] = {
    "tools/call": lambda key: InvalidParams(f"Unknown tool: {key}", {"tool": key}),
    "prompts/get": lambda key: InvalidParams(f"Unknown prompt: {key}", {"prompt": key}),
    "resources/read": ResourceNotFound,
}


def _arguments(params: Any) -> Any:
    return _decode(_anything, getattr(params, "arguments", NO_ARGUMENTS))


def _claimed_version(message: Message) -> str | None:
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
