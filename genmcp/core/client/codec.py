"""What a client says as bytes, in the words of the revision that will read them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from genmcp.core.client.events import (
    Answered,
    InputRequired,
    Outcome,
    PeerFault,
    TaskCreated,
)
from genmcp.core.client.lifecycle import Pending
from genmcp.errors import McpError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.params import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    LoggingLevel,
    RequestId,
    RequestParams,
)
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams
from genmcp.protocol.tasks import CreateTaskResult
from genmcp.protocol.value import CacheableResult, Value, decoder_for
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["ClientEncoder", "Params", "error_of", "read"]

Params = Value | Mapping[str, Any] | None
"""Params in the shape of 2026-07-28; a mapping has the names of the wire."""

_json: Final = msgspec.json.Encoder()
_NO_META: Final = RequestParams().meta


class ClientEncoder:
    """Encodes what one client says.

    2026-07-28 wants the client's version, name and capabilities in the `_meta` of every request
    (basic, "`_meta`"). They are constant, so they are encoded once and spliced in.
    """

    def __init__(self, info: Implementation, capabilities: ClientCapabilities) -> None:
        self._info = info
        self._capabilities = capabilities
        self._log_level: LoggingLevel | None = None
        self._constant: dict[str, bytes] = {}

    def log_from(self, level: LoggingLevel | None) -> None:
        """Want log messages from *level* on with every request of 2026-07-28 and later."""
        self._log_level = level
        self._constant.clear()

    def hello(self, revision: Revision, id: int) -> bytes:
        """Return the `initialize` that proposes *revision*."""
        params = InitializeRequestParams(
            protocol_version=revision.version,
            capabilities=self._capabilities,
            client_info=self._info,
        )
        return jsonrpc.encode_request(id, "initialize", revision.down(params))

    def request(
        self, revision: Revision, id: int, method: str, params: Params, meta: Mapping[str, Any]
    ) -> bytes:
        """Return a request; *meta* are members of `_meta` besides those of *params*."""
        members, own = _parts(revision, params)
        said = self._meta(revision, {**own, **meta} if own or meta else {})
        if said:
            members = b'"_meta":{%b}%b%b' % (said, b"," if members else b"", members)
        head = b'{"jsonrpc":"2.0","id":%d,"method":%b' % (id, _text(method))
        return b'%b,"params":{%b}}' % (head, members) if members else head + b"}"

    def notification(self, revision: Revision, method: str, params: Params) -> bytes:
        """Return a notification."""
        said = revision.down(params) if isinstance(params, Value) else params
        return jsonrpc.encode_notification(method, said)

    def answer(self, revision: Revision, id: RequestId, result: Value | Mapping[str, Any]) -> bytes:
        """Return the answer to request *id* of the server."""
        return jsonrpc.encode_response(id, _json.encode(revision.down(result)))

    def _meta(self, revision: Revision, others: Mapping[str, Any]) -> bytes:
        """Return the members of a request's `_meta`: what every request has, and *others*."""
        if not revision.modern:
            return _object_members(others)
        constant = self._constant.get(revision.version)
        if constant is None:
            constant = self._constant[revision.version] = _object_members(self._known(revision))
        return _object_members({**others, **self._known(revision)}) if others else constant

    def _known(self, revision: Revision) -> dict[str, Any]:
        known: dict[str, Any] = {
            PROTOCOL_VERSION: revision.version,
            CLIENT_INFO: self._info,
            CLIENT_CAPABILITIES: revision.down(self._capabilities),
        }
        if self._log_level is not None:
            known[LOG_LEVEL] = self._log_level
        return known


def _parts(revision: Revision, params: Params) -> tuple[bytes, Mapping[str, Any]]:
    """Return the members of *params* without `_meta`, encoded, and those of `_meta`."""
    if params is None:
        return b"", {}
    if isinstance(params, Value):
        params = revision.down(params)
        encoded = _json.encode(params)
        if getattr(params, "meta", None) is _NO_META:
            return encoded[1:-1], {}
        params = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    own: Any = params.get("_meta", {})
    if isinstance(own, msgspec.Raw):
        own = msgspec.json.decode(own)
    return _object_members({key: value for key, value in params.items() if key != "_meta"}), own


def _object_members(values: Mapping[str, Any]) -> bytes:
    """Return *values* as JSON without its braces."""
    return _json.encode(values)[1:-1]


@lru_cache(maxsize=64)
def _text(method: str) -> bytes:
    return _json.encode(method)


class _Typed(msgspec.Struct):
    resultType: str = "complete"  # noqa: N815  # read by this name only, so none other is needed


_typed: Final = msgspec.json.Decoder(_Typed)
_anything: Final = msgspec.json.Decoder()
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

_COMPLETE: Final = b'{"resultType":"complete"'
_COMPLETE_SIZE: Final = len(_COMPLETE)
#: 2026-07-28, "Caching": what a server does not say may not be kept.
_NOT_KEPT: Final = {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}


def read(request: Pending, raw: msgspec.Raw, *, tasks: bool) -> Outcome:
    """Return what the result *raw* is to *request*; *tasks*: whether it may become a task.

    Raises:
        PeerFault: it is not what the specification lets the server answer.
    """
    try:
        kind = _kind_of(request, raw)
        if kind == "complete":
            return Answered(request.id, _result(request, raw), raw)
        if kind == "input_required" and request.known is not None and request.known.may_ask:
            return _input_required(request, raw)
        if kind == "task" and tasks:
            task: CreateTaskResult = decoder_for(CreateTaskResult).decode(raw)
            return TaskCreated(request.id, task)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise PeerFault(f"the result of {request.method} is not what it must be: {error}") from None
    # 2026-07-28, basic, "ResultType": what is not recognized MUST be considered invalid.
    raise PeerFault(f"the result of {request.method} is of type {kind!r}, which it cannot be")


def error_of(request: Pending, body: ErrorBody, status: int = 200) -> McpError:
    """Return the error that answers *request*, with the code it has on 2026-07-28."""
    code = body.code
    if request.method == "resources/read" and code == request.revision.resource_not_found:
        code = -32602  # 2026-07-28, server/resources, "Error Handling"
    return McpError(body.message, body.data, code=code, status=status)


def _kind_of(request: Pending, raw: msgspec.Raw) -> str:
    """Return the `resultType`; what has none is complete, and so is all that is older."""
    if not request.revision.modern or bytes(memoryview(raw)[:_COMPLETE_SIZE]) == _COMPLETE:
        return "complete"
    return _typed.decode(raw).resultType


def _result(request: Pending, raw: msgspec.Raw) -> Any:
    known = request.known
    if known is None or known.result is None:
        return _anything.decode(raw)
    decoder = decoder_for(known.result)
    try:
        value = decoder.decode(raw)
    except msgspec.ValidationError:
        if not issubclass(known.result, CacheableResult):
            raise
        value = decoder.decode(_json.encode(_NOT_KEPT | _members.decode(raw)))
    return request.revision.up(value)


def _input_required(request: Pending, raw: msgspec.Raw) -> InputRequired:
    result: InputRequiredResult = decoder_for(InputRequiredResult).decode(raw)
    if result.input_requests is None and result.request_state is None:
        raise ValueError("it asks for nothing, and has no `requestState`")
    return InputRequired(request.id, result.input_requests or {}, result.request_state)
