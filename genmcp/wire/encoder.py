"""Answers and notifications as bytes, in the words of the revision that will read them."""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.errors import McpError, ResourceNotFound
from genmcp.protocol.capabilities import Implementation
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value
from genmcp.wire import jsonrpc

__all__ = ["Encoder"]

_json = msgspec.json.Encoder()

_KEPT: Final = 16 * 1024 * 1024
"""How many bytes of what anybody may keep are ready; past it, they are made again."""


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
        self._kept: dict[tuple[str, int, bool], tuple[Value, bytes]] = {}
        self._size = 0

    def response(
        self, revision: Revision, id: jsonrpc.RequestId, value: Value, cursor: str | None = None
    ) -> bytes:
        """Return the whole response to request *id*; *value* and *cursor* as for `result`."""
        return jsonrpc.encode_response(id, self.result(revision, value, cursor))

    def result(self, revision: Revision, value: Value, cursor: str | None = None) -> bytes:
        """Return *value*, a result of 2026-07-28, as *revision*'s JSON.

        *cursor* stands in place of a page's own `next_cursor`. A result that anybody may keep is
        encoded once, as long as it is the same object, whatever its cursor.
        """
        place = None
        if getattr(value, "cache_scope", "") == "public":
            place = revision.version, id(value), cursor is None
            kept = self._kept.get(place)
            if kept is not None:
                return kept[1] if cursor is None else _continued(kept[1], cursor)
        said = value if cursor is None else replace(value, next_cursor=None)
        if revision.modern:
            body = _json.encode(said)
            head = self._complete
            if getattr(said, "meta", None) is not None or (
                getattr(said, "result_type", "complete") != "complete"
            ):
                head, body = self._particular(said)
            encoded = head + b"," + body[1:] if len(body) > len(b"{}") else head + b"}"
        else:
            encoded = _json.encode(revision.down(said))
        if place is not None:
            self._keep(place, value, encoded)
        return encoded if cursor is None else _continued(encoded, cursor)

    def _keep(self, place: tuple[str, int, bool], value: Value, encoded: bytes) -> None:
        """Keep what *value* is as JSON, and with it *value*: nothing else can get its id."""
        self._size += len(encoded)
        if self._size > _KEPT:
            self._kept.clear()
            self._size = len(encoded)
        self._kept[place] = value, encoded

    def _particular(self, value: Value) -> tuple[bytes, bytes]:
        """Return the head and the members of a result of its own type, or with its own `_meta`."""
        kind: str = getattr(value, "result_type", "complete")
        meta = getattr(value, "meta", None)
        if meta is None:
            return b'{"resultType":"%b",%b' % (kind.encode(), self._named), _json.encode(value)
        value = replace(value, meta={SERVER_INFO: self._info, **meta})
        return b'{"resultType":"%b"' % kind.encode(), _json.encode(value)

    def error(self, revision: Revision, id: jsonrpc.RequestId | None, error: McpError) -> bytes:
        """Return the whole error response to request *id*."""
        return jsonrpc.encode_error(id, error, _code(revision, error))

    def request(self, revision: Revision, id: jsonrpc.RequestId, method: str, params: Any) -> bytes:
        """Return a request of the server's own, whose *params* are a value of 2026-07-28.

        Raises:
            MissingCapability: it is a question that no client of *revision* can be asked.
        """
        return jsonrpc.encode_request(id, method, revision.down(params))

    def notification(self, revision: Revision, method: str, params: Any) -> bytes:
        """Return a notification whose *params* are a value of 2026-07-28."""
        return jsonrpc.encode_notification(method, revision.down(params))


def _continued(page: bytes, cursor: str) -> bytes:
    """Return a *page*, which is JSON without a cursor, with one."""
    return b'%b,"nextCursor":%b}' % (page[:-1], _json.encode(cursor))


def _code(revision: Revision, error: McpError) -> int:
    return revision.resource_not_found if isinstance(error, ResourceNotFound) else error.code
