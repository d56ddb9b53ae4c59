"""Encoding of results, errors, requests and notifications for the revision of the recipient."""

from typing import Any

import msgspec
from msgspec.structs import replace

from genmcp.errors import McpError, ResourceNotFound
from genmcp.protocol.capabilities import Implementation
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Result, Value
from genmcp.wire import jsonrpc

_json = msgspec.json.Encoder()


class EncodedResult(Result, kw_only=True):
    """A result of type *kind*, as the JSON in which it was stored. It is sent as it is."""

    kind: type[Any]
    body: bytes

    @property
    def decoded(self) -> Any:
        """The result itself."""
        return msgspec.json.decode(self.body, type=self.kind)


class Encoder:
    """Encodes the messages of one server. Owned by its mux.

    2026-07-28 requires `resultType` and the server's name in the `_meta` of every result (basic,
    "ResultType" and "_meta"). These members are constant: their JSON, the *head* of a result, is
    encoded once and put in front of the other members of each result.

    Args:
        info: the server.
        cache_bytes: bytes of encoded public results that are cached; default 16 MiB. A full cache
            is emptied.
    """

    def __init__(self, info: Implementation, cache_bytes: int = 16 * 1024 * 1024) -> None:
        self._cache_bytes = cache_bytes
        self._info = msgspec.to_builtins(info)
        self._named = b'"_meta":' + _json.encode({SERVER_INFO: self._info})
        self._complete = b'{"resultType":"complete",' + self._named
        self._cache: dict[tuple[str, int, bool], tuple[Value, bytes]] = {}
        self._size = 0

    def response(
        self, revision: Revision, id: jsonrpc.RequestId, value: Value, cursor: str | None = None
    ) -> bytes:
        """Return the whole response to request *id*; *value* and *cursor* as for `result`."""
        return jsonrpc.encode_response(id, self.result(revision, value, cursor))

    def result(self, revision: Revision, value: Value, cursor: str | None = None) -> bytes:
        """Return *value*, a result of 2026-07-28, as *revision*'s JSON.

        *cursor* replaces the `next_cursor` of a page. A result with the cache scope `public` is
        encoded once as long as it is the same object, also with different cursors.
        """
        # A `_meta` of its own has to be joined with that of the head. In a text, the quotation mark
        # before the colon would be escaped.
        if isinstance(value, EncodedResult) and (not revision.modern or b'"_meta":' in value.body):
            value = value.decoded
            if revision.modern and isinstance(value, dict):  # of an extension, without a type
                meta = {SERVER_INFO: self._info, **value.get("_meta", {})}
                return _json.encode({"resultType": "complete", **value, "_meta": meta})
        key = None
        if getattr(value, "cache_scope", "") == "public":
            key = revision.version, id(value), cursor is None
            cached = self._cache.get(key)
            if cached is not None:
                return cached[1] if cursor is None else _with_cursor(cached[1], cursor)
        # The page is cached without its cursor, which is added to the cached encoding: each
        # principal gets another sealed cursor.
        page = value if cursor is None else replace(value, next_cursor=None)
        if revision.modern:
            body = page.body if isinstance(page, EncodedResult) else _json.encode(page)
            head = self._complete
            if getattr(page, "meta", None) is not None or (
                getattr(page, "result_type", "complete") != "complete"
            ):
                head, body = self._with_own_head(page)
            encoded = head + b"," + body[1:] if len(body) > len(b"{}") else head + b"}"
        else:
            encoded = _json.encode(revision.down(page))
        if key is not None:
            self._add(key, value, encoded)
        return encoded if cursor is None else _with_cursor(encoded, cursor)

    def _add(self, key: tuple[str, int, bool], value: Value, encoded: bytes) -> None:
        """Cache *encoded* under the id of *value*; keep *value*, so that its id is not reused."""
        self._size += len(encoded)
        if self._size > self._cache_bytes:
            self._cache.clear()
            self._size = len(encoded)
        self._cache[key] = value, encoded

    def _with_own_head(self, value: Value) -> tuple[bytes, bytes]:
        """Return the head and the other members of a result that cannot have the constant head.

        That is a result with another `resultType`, or with members of its own in `_meta`.
        """
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
        """Return a request of the server; *params* are a value of 2026-07-28.

        Raises:
            MissingCapability: no client of *revision* supports this request.
        """
        return jsonrpc.encode_request(id, method, revision.down(params))

    def notification(self, revision: Revision, method: str, params: Any) -> bytes:
        """Return a notification; *params* are a value of 2026-07-28."""
        return jsonrpc.encode_notification(method, revision.down(params))


def _with_cursor(page: bytes, cursor: str) -> bytes:
    """Add *cursor* to the JSON of a *page* that has none."""
    return b'%b,"nextCursor":%b}' % (page[:-1], _json.encode(cursor))


def _code(revision: Revision, error: McpError) -> int:
    return revision.resource_not_found if isinstance(error, ResourceNotFound) else error.code
