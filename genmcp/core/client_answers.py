"""What a server answers, as values of 2026-07-28, whatever it speaks."""

from typing import Any, Final

import msgspec

from genmcp.core.client_events import (
    Answered,
    InputRequired,
    Outcome,
    TaskCreated,
)
from genmcp.core.client_faults import PeerFault
from genmcp.core.client_pending import Pending
from genmcp.errors import McpError
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.tasks import CreateTaskResult
from genmcp.protocol.value import CacheableResult, decoder_for
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["error_of", "read"]


class _Typed(msgspec.Struct):
    resultType: str = "complete"  # noqa: N815  # read by this name only, so none other is needed


_typed: Final = msgspec.json.Decoder(_Typed)
_anything: Final = msgspec.json.Decoder()
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json: Final = msgspec.json.Encoder()

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
