"""JSON-RPC 2.0 messages: bytes in, values out, and the other way round.

A body is scanned once for its envelope; `params`, `result` stay raw until somebody who knows
the method decodes them with its own type. 2026-07-28, basic, "Messages".
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

import msgspec

from genmcp.errors import InvalidRequest, McpError, ParseError

__all__ = [
    "ErrorBody",
    "Message",
    "RequestId",
    "RequestOf",
    "brackets",
    "check",
    "decode",
    "encode_batch",
    "encode_error",
    "encode_id",
    "encode_notification",
    "encode_request",
    "encode_response",
    "id_at_front",
    "id_of",
    "params_of",
    "parse",
]

RequestId = int | str

P = TypeVar("P")
T = TypeVar("T")

_LARGE = 16 * 1024
"""Bytes from which on it is faster to look for brackets than to count them."""
_BRACKETS = b"[{]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_AS_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")  # +1 and, read as signed, -1


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: Any = None


class RequestOf(msgspec.Struct, Generic[P], frozen=True):
    """A request whose params are a P."""

    jsonrpc: Literal["2.0"]
    method: str
    id: RequestId
    params: P


class Message(msgspec.Struct, frozen=True):
    """One JSON-RPC message of any kind; `params` and `result` are raw JSON, empty if absent."""

    jsonrpc: Literal["2.0"]
    method: str | None = None
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: ErrorBody | None = None

    @property
    def is_request(self) -> bool:
        """Whether an answer is expected: it has a method and an id."""
        return self.method is not None and self.id is not msgspec.UNSET

    @property
    def request_id(self) -> RequestId | None:
        """The id an error about this message is answered with, None if it has none."""
        return self.id if isinstance(self.id, int | str) else None

    @property
    def is_response(self) -> bool:
        """Whether it answers a request: it has no method."""
        return self.method is None


_decoder = msgspec.json.Decoder(Message)
_batch_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


class _Identified(msgspec.Struct):
    id: Any = None


_id_decoder = msgspec.json.Decoder(_Identified)
_any_id = msgspec.json.Decoder(RequestId)
#: Up to the id, with nothing before it that could hold another one.
_FRONT = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?\d{1,15}|"[^"\\]*")\s*[,}]'
)


def decode(body: bytes, *, max_depth: int = 64) -> Message | list[Message | InvalidRequest]:
    """Return the message *body* holds, or a list for a batch.

    In a batch a faulty member takes the place of its message, so that the others are served.

    Raises:
        ParseError: *body* is not JSON text in UTF-8.
        InvalidRequest: it is JSON, but not a JSON-RPC message, or nests deeper than *max_depth*.
    """
    check(body, max_depth)
    return parse(body)


def check(body: bytes, max_depth: int) -> None:
    """Check what has to be known of *body* before any decoder sees it.

    Raises:
        ParseError: it is no text in UTF-8; a decoder skips raw members without looking into them.
        InvalidRequest: it nests deeper than *max_depth*.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise ParseError(f"The body is not JSON: {error}") from None
    # The number of brackets bounds the depth of every ordinary body, at next to no cost.
    if brackets(body, max_depth) > max_depth:
        _check_depth(body, max_depth)


def parse(body: bytes) -> Message | list[Message | InvalidRequest]:
    """Return what `decode` does, for a *body* that is checked."""
    if body.startswith(b"{") or not body.lstrip(b" \t\r\n").startswith(b"["):
        return _decode_one(body)
    return _decode_batch(body)


def _decode_batch(body: bytes) -> list[Message | InvalidRequest]:
    members = _parse(_batch_decoder, body)
    if not members:
        raise InvalidRequest("A batch must hold at least one message")
    return [_decode_member(member) for member in members]


def _decode_member(member: msgspec.Raw) -> Message | InvalidRequest:
    try:
        return _decode_one(member)
    except InvalidRequest as error:
        error.id = id_of(member)
        return error


def _decode_one(body: bytes | msgspec.Raw) -> Message:
    message = _parse(_decoder, body)
    if message.method is not None:
        if message.id is None:
            # 2026-07-28, basic, "Requests": unlike base JSON-RPC, the id must not be null.
            raise InvalidRequest("Not a JSON-RPC message: the id of a request must not be null")
    else:
        # An error may lack its id (2026-07-28, JSONRPCErrorResponse), a result may not.
        unnamed = message.error is None and message.request_id is None
        if unnamed or (message.error is None) is not bool(message.result):
            raise InvalidRequest(
                "Not a JSON-RPC message: neither a request nor a notification (no method), "
                "nor a response (either an error, or a result and its id)"
            )
    return message


def _parse(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"Not a JSON-RPC message: {error}") from None
    except msgspec.DecodeError as error:
        raise ParseError(f"The body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("The body nests deeper than can be followed here") from None


def id_of(body: bytes | msgspec.Raw) -> RequestId | None:
    """Return the id a faulty *body* carries, so that its error can be matched; None if none."""
    try:
        found = _id_decoder.decode(body).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None


def id_at_front(beginning: bytes) -> RequestId | None:
    """Return the id of a message of which only the *beginning* is there; None if it comes later."""
    found = _FRONT.match(beginning)
    return None if found is None else _any_id.decode(found[1])


def params_of(request: bytes) -> msgspec.Raw:
    """Return the params of a *request*, which was found good, as they came."""
    return _decoder.decode(request).params


def brackets(text: bytes, enough: int) -> int:
    """Count what opens in *text*; past *enough* no further, where counting takes time."""
    if len(text) < _LARGE:
        return text.count(b"[") + text.count(b"{")
    found = 0
    for bracket in (b"[", b"{"):
        place = text.find(bracket)
        while place >= 0 and found <= enough:
            found += 1
            place = text.find(bracket, place + 1)
    return found


def _check_depth(body: bytes, limit: int) -> None:
    """Refuse nesting past *limit* before a recursive decoder meets it.

    Linear, whatever the body holds.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    steps = memoryview(outside_strings.translate(_AS_STEPS, _NOT_BRACKETS)).cast("b")
    if max(accumulate(steps), default=0) > limit:
        raise InvalidRequest(f"The body nests deeper than {limit} levels (limit: depth)")


def encode_id(id: RequestId) -> bytes:
    """Return *id* as JSON."""
    return b"%d" % id if isinstance(id, int) else _encoder.encode(id)


def encode_response(id: RequestId, result: bytes) -> bytes:
    """Return the response to request *id* around a *result* that is JSON already."""
    if type(id) is int:
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encoder.encode(id), result)


def encode_error(id: RequestId | None, error: McpError, code: int | None = None) -> bytes:
    """Return the error response to request *id*; *code* replaces the error's own.

    JSON-RPC 2.0 asks for a null id where it could not be read; the MCP schemas only know its
    absence (2026-07-28, JSONRPCErrorResponse), so the member is left out.
    """
    body = _encoder.encode(ErrorBody(code or error.code, error.message, error.data))
    named = b"" if id is None else b',"id":' + encode_id(id)
    return b"".join((b'{"jsonrpc":"2.0"', named, b',"error":', body, b"}"))


def encode_request(id: RequestId, method: str, params: Any) -> bytes:
    """Return a request; *params* is anything msgspec encodes to an object."""
    named = encode_id(id), _encoder.encode(method), _encoder.encode(params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % named


def encode_notification(method: str, params: Any = None) -> bytes:
    """Return a notification; *params* is anything msgspec encodes to an object, or None."""
    head = b'{"jsonrpc":"2.0","method":' + _encoder.encode(method)
    return head + (b"}" if params is None else b',"params":' + _encoder.encode(params) + b"}")


def encode_batch(messages: Sequence[bytes]) -> bytes:
    """Return a batch of messages that are JSON already (2025-03-26, basic, "Batching")."""
    return b"[" + b",".join(messages) + b"]"
