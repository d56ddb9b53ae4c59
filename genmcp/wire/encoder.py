"""Answers and notifications as bytes, in the words of the revision that will read them."""

from typing import Any

import msgspec

from genmcp.errors import McpError, ResourceNotFound
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.meta import SERVER_INFO
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value
from genmcp.wire import jsonrpc

__all__ = ["Encoder"]

_json = msgspec.json.Encoder()


class Encoder:
    """Encodes what one server says.

    2026-07-28 wants two members in every result that no handler should have to think of:
    `resultType` and the server's name in `_meta` (basic, "ResultType" and "_meta"). They are
    constant, so they are spliced in front of the encoded result instead of passing through it.
    """

    def __init__(self, info: Implementation) -> None:
        self._info = msgspec.to_builtins(info)
        self._named = b'"_meta":' + _json.encode({SERVER_INFO: self._info})
        self._complete = b'{"resultType":"complete",' + self._named
        self._kept: dict[tuple[str, type], tuple[Value, bytes]] = {}

    def response(self, revision: Revision, id: jsonrpc.RequestId, value: Value) -> bytes:
        """Return the whole response to request *id*; *value* is a result of 2026-07-28."""
        return jsonrpc.encode_response(id, self.result(revision, value))

    def result(self, revision: Revision, value: Value) -> bytes:
        """Return *value*, a result of 2026-07-28, as *revision*'s JSON.

        A result that anybody may keep is encoded once, as long as it is the same object.
        """
        place = None
        if getattr(value, "cache_scope", "") == "public":
            place = revision.version, type(value)
            kept = self._kept.get(place)
            if kept is not None and kept[0] is value:
                return kept[1]
        if revision.modern:
            body = _json.encode(value)
            head = self._complete
            if getattr(value, "meta", None) is not None or (
                getattr(value, "result_type", "complete") != "complete"
            ):
                head, body = self._particular(value)
            encoded = head + b"," + body[1:] if len(body) > len(b"{}") else head + b"}"
        else:
            encoded = _json.encode(revision.down(value))
        if place is not None:
            self._kept[place] = value, encoded
        return encoded

    def _particular(self, value: Value) -> tuple[bytes, bytes]:
        """Return the head and the members of a result of its own type, or with its own `_meta`."""
        kind: str = getattr(value, "result_type", "complete")
        meta = getattr(value, "meta", None)
        if meta is None:
            return b'{"resultType":"%b",%b' % (kind.encode(), self._named), _json.encode(value)
        value = msgspec.structs.replace(value, meta={SERVER_INFO: self._info, **meta})
        return b'{"resultType":"%b"' % kind.encode(), _json.encode(value)

    def error(self, revision: Revision, id: jsonrpc.RequestId | None, error: McpError) -> bytes:
        """Return the whole error response to request *id*."""
        return jsonrpc.encode_error(id, error, _code(revision, error))

    def notification(self, revision: Revision, method: str, params: Any) -> bytes:
        """Return a notification whose *params* are a value of 2026-07-28."""
        return jsonrpc.encode_notification(method, revision.down(params))


def _code(revision: Revision, error: McpError) -> int:
    return revision.resource_not_found if isinstance(error, ResourceNotFound) else error.code
