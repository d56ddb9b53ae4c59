"""JSON-RPC 2.0 messages, decoded and encoded: 2026-07-28, basic, "Messages".

Decoding reads the envelope of a message in one pass. `params` and `result` stay undecoded: the
caller knows the method and decodes them once, directly to its type.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf
from typing import Any, Generic, Literal, TypeVar

import msgspec

from genmcp.errors import InvalidRequest, McpError, ParseError, TooLarge
from genmcp.protocol.value import Integer

RequestId = int | str

P = TypeVar("P")
T = TypeVar("T")

_LARGE = 16 * 1024
"""Bytes of a body from which on it is faster to search for brackets than to count them."""
_PIECE = 256 * 1024
"""Bytes of a body that are split at quotation marks at a time, which bounds the memory."""
_BRACKETS = b"[{]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_AS_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")  # +1, and -1 as a signed byte


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: Any = None


class RequestOf(msgspec.Struct, Generic[P], frozen=True):
    """A request with params of type P."""

    jsonrpc: Literal["2.0"]
    method: str
    id: Integer | str
    params: P


class Message(msgspec.Struct, frozen=True):
    """One JSON-RPC message of any kind; `params` and `result` are raw JSON, empty if absent.

    `params` that are null are decoded as absent ones.
    """

    jsonrpc: Literal["2.0"]
    method: str | None = None
    id: Integer | str | msgspec.UnsetType | None = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: ErrorBody | None = None

    @property
    def is_request(self) -> bool:
        """Whether it has a method and an id, and so needs a response."""
        return self.method is not None and self.id is not msgspec.UNSET

    @property
    def request_id(self) -> RequestId | None:
        """The id of this message, for an error response; None if the message has no valid id."""
        return self.id if isinstance(self.id, int | str) else None

    @property
    def is_response(self) -> bool:
        """Whether it has no method, and so is a response."""
        return self.method is None


_NULL = msgspec.Raw(b"null")
_decoder = msgspec.json.Decoder(Message)
_batch_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


class _Identified(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()


_id_decoder = msgspec.json.Decoder(_Identified)
_any_id = msgspec.json.Decoder(Integer | str)
#: The beginning of a message up to its id. Only `jsonrpc` and `method` may come before it, since
#: `params` could contain another "id".
_FRONT = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?\d{1,15}|"[^"\\]*")\s*[,}]'
)


def decode(
    body: bytes, *, max_depth: int = 64, containers: float = inf, batch: int | None = None
) -> Message | list[Message | InvalidRequest]:
    """Return the message in *body*, or a list for a batch.

    In a batch, an error takes the place of an invalid message, so that the others are served.

    Raises:
        ParseError: *body* is not JSON text in UTF-8.
        InvalidRequest: it is not a JSON-RPC message, or nests deeper than *max_depth*.
        TooLarge: it has more objects and arrays than *containers*, or more messages than *batch*.
    """
    check(body, max_depth, containers)
    return parse(body, batch)


def check(body: bytes, max_depth: int, containers: float = inf) -> None:
    """Check the encoding and the size of *body* before it is decoded.

    *containers* must not be less than *max_depth*.

    Raises:
        ParseError: it is not UTF-8. The decoder does not check the encoding of undecoded members.
        InvalidRequest: it nests deeper than *max_depth*.
        TooLarge: it has more objects and arrays than *containers*: decoding each of them, and
            walking through the result, costs more than its two bytes suggest.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise ParseError(f"The body is not JSON: {error}") from None
    # Fast path: a body with few brackets cannot nest deeply, and counting them takes 0.1 us.
    if brackets(body, max_depth) > max_depth:
        _check_structure(body, max_depth, containers)


def parse(body: bytes, batch: int | None = None) -> Message | list[Message | InvalidRequest]:
    """Decode *body* as `decode` does, but without `check`, which the caller has called before."""
    if body.startswith(b"{") or not body.lstrip(b" \t\r\n").startswith(b"["):
        return _decode_one(body)
    return _decode_batch(body, batch)


@lru_cache(maxsize=8)
def _batch_reader(limit: int) -> "msgspec.json.Decoder[Any]":
    """Return a decoder of an array of up to *limit* members, which fails at the next one.

    A decoder of lists would decode all members before they can be counted.
    """
    optional: Any = msgspec.Raw | msgspec.UnsetType
    members = [(f"member_{n}", optional, msgspec.UNSET) for n in range(limit)]
    struct = msgspec.defstruct("Batch", members, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(struct)


def _members_of(body: bytes, limit: int) -> list[msgspec.Raw]:
    """Return the members of a batch of up to *limit*.

    Raises:
        TooLarge: it has more members.
        ParseError: it is not JSON.
    """
    reader = _batch_reader(limit)
    try:
        found = reader.decode(body)
    except msgspec.ValidationError:  # members are raw, so only their number can be invalid
        raise TooLarge(f"The batch has more than {limit} messages") from None
    except msgspec.DecodeError as error:
        raise ParseError(f"The body is not JSON: {error}") from None
    return [each for each in msgspec.structs.astuple(found) if each is not msgspec.UNSET]


def _decode_batch(body: bytes, limit: int | None) -> list[Message | InvalidRequest]:
    members = _parse(_batch_decoder, body) if limit is None else _members_of(body, limit)
    if not members:
        raise InvalidRequest("A batch must have at least one message")
    return [_decode_member(member) for member in members]


def _decode_member(member: msgspec.Raw) -> Message | InvalidRequest:
    try:
        return _decode_one(member)
    except InvalidRequest as error:
        error.id = id_of(member)
        return error


def _decode_one(body: bytes | msgspec.Raw) -> Message:
    message = _parse(_decoder, body)
    if message.params == _NULL:
        # The schemas have only the absence of optional params, but many clients write null.
        message = msgspec.structs.replace(message, params=msgspec.Raw())
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
        raise InvalidRequest("The body nests too deeply") from None


def id_of(body: bytes | msgspec.Raw) -> RequestId | None:
    """Return the id of an invalid message, for its error response; None if it has no valid id."""
    try:
        found: RequestId = _any_id.decode(_id_decoder.decode(body).id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found


def id_at_front(beginning: bytes) -> RequestId | None:
    """Return the id of a truncated message; None if it is not in the *beginning*."""
    found = _FRONT.match(beginning)
    return None if found is None else _any_id.decode(found[1])


def params_of(request: bytes) -> msgspec.Raw:
    """Return the undecoded params of a valid *request*."""
    return _decoder.decode(request).params


def brackets(text: bytes, limit: int) -> int:
    """Count the opening brackets and braces in *text*; in a long text, up to about *limit*."""
    if len(text) < _LARGE:
        return text.count(b"[") + text.count(b"{")
    found = 0
    for bracket in (b"[", b"{"):
        place = text.find(bracket)
        while place >= 0 and found <= limit:
            found += 1
            place = text.find(bracket, place + 1)
    return found


def _check_structure(body: bytes, depth: int, containers: float) -> None:
    """Reject nesting beyond *depth*, before a recursive decoder reads it, and many *containers*.

    The time is linear in the length of the body.
    """
    steps = b"".join(_brackets_outside_strings(body)).translate(_AS_STEPS)
    if steps.count(b"\x01") > containers:  # first, since the next check is slower
        raise TooLarge(f"The body has more than {containers} objects and arrays")
    if max(accumulate(memoryview(steps).cast("b")), default=0) > depth:
        raise InvalidRequest(f"The body nests deeper than {depth} levels (limit: max_depth)")


def _brackets_outside_strings(body: bytes) -> Iterator[bytes]:
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    inside = 0
    for start in range(0, len(unescaped), _PIECE):
        parts = unescaped[start : start + _PIECE].split(b'"')
        yield b"".join(parts[inside::2]).translate(None, _NOT_BRACKETS)
        inside ^= (len(parts) - 1) & 1


def encode_id(id: RequestId) -> bytes:
    """Return *id* as JSON."""
    return b"%d" % id if isinstance(id, int) else _encoder.encode(id)


def encode_response(id: RequestId, result: bytes) -> bytes:
    """Return the response to request *id*; *result* is JSON."""
    if type(id) is int:
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encoder.encode(id), result)


def encode_error(id: RequestId | None, error: McpError, code: int | None = None) -> bytes:
    """Return the error response to request *id*; *code* replaces the code of *error*.

    JSON-RPC 2.0 requires a null id if the id could not be read, but the MCP schemas have only its
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
    """Return a batch of encoded messages (2025-03-26, basic, "Batching")."""
    return b"[" + b",".join(messages) + b"]"


def printable(text: str, length: int = 200) -> str:
    """Return the first *length* characters of *text* with unprintable ones escaped.

    Line ends, control characters and terminal sequences from a peer could otherwise forge log
    records, or control the terminal that shows them. A cut is marked with `...`.
    """
    shown = text if len(text) <= length else text[:length] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )
