"""Encoding of a client's messages for one revision, and decoding of the server's results."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from genmcp.core.client.events import Answered, InputNeeded, Outcome, PeerFault, TaskCreated
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

Params = Value | Mapping[str, Any] | None
"""Params of a request: a value of 2026-07-28, or a mapping with the names of the wire."""

_json: Final = msgspec.json.Encoder()
_NO_META: Final = RequestParams().meta


class RequestEncoder:
    """Encodes the messages of one client. Owned by its `ClientDispatch`.

    2026-07-28 requires the client's revision, name and capabilities in the `_meta` of every request
    (basic, "`_meta`"). These members are constant: they are encoded once and inserted as bytes.
    """

    def __init__(self, info: Implementation, capabilities: ClientCapabilities) -> None:
        self._info = info
        self._capabilities = capabilities
        self._log_level: LoggingLevel | None = None
        self._constant: dict[str, bytes] = {}

    def set_log_level(self, level: LoggingLevel) -> None:
        """Put *level* into the `_meta` of later requests of 2026-07-28.

        The server then sends log messages of *level* and above.
        """
        self._log_level = level
        self._constant.clear()

    def initialize(self, revision: Revision, id: int) -> bytes:
        """Encode the `initialize` request that proposes *revision*."""
        params = InitializeRequestParams(
            protocol_version=revision.version,
            capabilities=self._capabilities,
            client_info=self._info,
        )
        return jsonrpc.encode_request(id, "initialize", revision.down(params))

    def request(
        self, revision: Revision, id: int, method: str, params: Params, *, progress: bool = False
    ) -> bytes:
        """Encode a request; *progress*: whether the server should send progress."""
        members, meta = _split_meta(revision, params)
        if progress:
            meta = {**meta, "progressToken": id}
        encoded_meta = self._meta(revision, meta)
        if encoded_meta:
            members = b'"_meta":{%b}%b%b' % (encoded_meta, b"," if members else b"", members)
        head = b'{"jsonrpc":"2.0","id":%d,"method":%b' % (id, _encode_method(method))
        return b'%b,"params":{%b}}' % (head, members) if members else head + b"}"

    def notification(self, revision: Revision, method: str, params: Params) -> bytes:
        """Encode a notification."""
        value = revision.down(params) if isinstance(params, Value) else params
        return jsonrpc.encode_notification(method, value)

    def response(
        self, revision: Revision, id: RequestId, result: Value | Mapping[str, Any]
    ) -> bytes:
        """Encode the response to request *id* of the server."""
        return jsonrpc.encode_response(id, _json.encode(revision.down(result)))

    def _meta(self, revision: Revision, others: Mapping[str, Any]) -> bytes:
        """Return the encoded members of a request's `_meta`, without braces.

        These are *others* and, since 2026-07-28, the members that every request must have.
        """
        if not revision.modern:
            return _encode_members(others)
        constant = self._constant.get(revision.version)
        if constant is None:
            constant = _encode_members(self._required_meta(revision))
            self._constant[revision.version] = constant
        if not others:
            return constant
        return _encode_members({**others, **self._required_meta(revision)})

    def _required_meta(self, revision: Revision) -> dict[str, Any]:
        meta: dict[str, Any] = {
            PROTOCOL_VERSION: revision.version,
            CLIENT_INFO: self._info,
            CLIENT_CAPABILITIES: revision.down(self._capabilities),
        }
        if self._log_level is not None:
            meta[LOG_LEVEL] = self._log_level
        return meta


def _split_meta(revision: Revision, params: Params) -> tuple[bytes, Mapping[str, Any]]:
    """Return the encoded members of *params* without `_meta`, and the members of `_meta`."""
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
    return _encode_members({key: value for key, value in params.items() if key != "_meta"}), own


def _encode_members(values: Mapping[str, Any]) -> bytes:
    """Return *values* as JSON without the braces."""
    return _json.encode(values)[1:-1]


@lru_cache(maxsize=64)
def _encode_method(method: str) -> bytes:
    return _json.encode(method)


class _Typed(msgspec.Struct):
    resultType: str = "complete"  # noqa: N815  # the name on the wire


_typed: Final = msgspec.json.Decoder(_Typed)
_any_json: Final = msgspec.json.Decoder()
_raw_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

_COMPLETE: Final = b'{"resultType":"complete"'
_COMPLETE_SIZE: Final = len(_COMPLETE)
#: 2026-07-28, "Caching": a result without these members must not be cached.
_NOT_CACHEABLE: Final = {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}


def decode_result(request: Pending, raw: msgspec.Raw, *, tasks: bool) -> Outcome:
    """Return the event for *raw*, the result of *request*.

    Args:
        request: the request that is answered.
        raw: the JSON of the result.
        tasks: whether the client has declared tasks, so that the result may be a task.

    Raises:
        PeerFault: the result does not conform to the specification.
    """
    try:
        kind = _type_of(request, raw)
        if kind == "complete":
            return Answered(request.id, _complete_result(request, raw), raw)
        if kind == "input_required" and request.known is not None and request.known.may_ask:
            return _input_needed(request, raw)
        if kind == "task" and tasks:
            task: CreateTaskResult = decoder_for(CreateTaskResult).decode(raw)
            return TaskCreated(request.id, task)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise PeerFault(f"invalid result of {request.method}: {error}") from None
    # 2026-07-28, basic, "ResultType": an unrecognized type MUST be considered invalid.
    raise PeerFault(f"the result of {request.method} must not be of type {kind!r}")


def decode_error(request: Pending, body: ErrorBody, status: int = 200) -> McpError:
    """Return the JSON-RPC error *body*, the response to *request*, with its code of 2026-07-28."""
    code = body.code
    if request.method == "resources/read" and code == request.revision.resource_not_found:
        code = -32602  # 2026-07-28, server/resources, "Error Handling"
    return McpError(body.message, body.data, code=code, status=status)


def _type_of(request: Pending, raw: msgspec.Raw) -> str:
    """Return the `resultType`; results without one are complete."""
    # Results of servers made with genmcp begin with these bytes: such a result need not be decoded
    # to find its type.
    if not request.revision.modern or bytes(memoryview(raw)[:_COMPLETE_SIZE]) == _COMPLETE:
        return "complete"
    return _typed.decode(raw).resultType


def _complete_result(request: Pending, raw: msgspec.Raw) -> Any:
    known = request.known
    if known is None or known.result is None:
        return _any_json.decode(raw)
    decoder = decoder_for(known.result)
    try:
        value = decoder.decode(raw)
    except msgspec.ValidationError:
        # Some servers omit the required members `ttlMs` and `cacheScope`. Their results are usable,
        # but must not be cached.
        if not issubclass(known.result, CacheableResult):
            raise
        value = decoder.decode(_json.encode(_NOT_CACHEABLE | _raw_members.decode(raw)))
    return request.revision.up(value)


def _input_needed(request: Pending, raw: msgspec.Raw) -> InputNeeded:
    result: InputRequiredResult = decoder_for(InputRequiredResult).decode(raw)
    if result.input_requests is None and result.request_state is None:
        raise ValueError("it has neither `inputRequests` nor `requestState`")
    return InputNeeded(request.id, result.input_requests or {}, result.request_state)
