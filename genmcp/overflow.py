"""Results that are too large for a context: the beginning is sent, the whole is kept in the store.

A tool with `Tool.overflow` sends at most that number of characters. What is longer is kept in the
store of the mux in chunks, and read with `resources/read` in ranges:

    overflow://6f1f0c0d5be5d8a2b7b4f3f0a9d4e1c2?from=64000&to=128000

`from` and `to` count the characters of text and the bytes of binary content, from 0; `to` is the
first one that is not returned. Without them the whole is returned, if it is short enough for one
response.

The id is random. The key in the store is an HMAC of the id and the principal: a link that is
forged, has expired or belongs to another principal leads to a key that does not exist.
"""

import re
import secrets
from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from genmcp.channel import Channel, owner_of
from genmcp.core.continuation import Continuation
from genmcp.core.failures import tool_error
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.seal import Purpose
from genmcp.core.waiting import Continue
from genmcp.decorator import tool
from genmcp.errors import (
    InvalidParams,
    OverShare,
    StoreError,
    StoreUnavailable,
    ToolError,
    WorkRaised,
)
from genmcp.protocol.content import EmbeddedResource, ResourceContents, ResourceLink, TextContent
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.resources.resource import ResourceRepo
from genmcp.stores.store import Delete, Put
from genmcp.tools import ToolRoute, is_longer

LENGTH: Final = "io.genmcp/length"
"""The member of `_meta` with the number of characters or bytes of the whole."""

MAX_RANGE: Final = 1_000_000
"""The maximum number of characters or bytes that one read returns."""

TTL: Final = 3600.0
"""Seconds for which the result of a call that is not a task is kept."""

# Characters of text, or bytes, in one record. Divisible by 3, so that base64 is cut between groups.
_CHUNK: Final = 240_000
# The chunks are written before the record that names them, and must not expire before it.
_MARGIN: Final = 60.0
_PREFIX: Final = "overflow://"
_URI: Final = re.compile(rf"({_PREFIX}([0-9a-f]{{32}}))/?(?:\?(.*))?")
_RANGE: Final = re.compile("(?:from=([0-9]{1,15}))?&?(?:to=([0-9]{1,15}))?")


S = TypeVar("S")


class KeptResult(msgspec.Struct, frozen=True, array_like=True):
    """The record of a result that is kept. Its chunks are other records of the same subject.

    length: the number of characters of a text, or of bytes. scopes: those of the tool.
    """

    length: int
    is_text: bool
    mime_type: str | None
    scopes: tuple[str, ...]


class _Short(NamedTuple):
    """Shortened JSON, and the position in the whole at which to read on."""

    json: bytes
    after: int


class OverflowRoute(ToolRoute, frozen=True, kw_only=True):
    """The route of a tool that sends at most `overflow` characters of a result."""

    overflow: int

    @classmethod
    def wrapping(cls, route: ToolRoute, overflow: int) -> "OverflowRoute":
        """Return the route of the same tool with *overflow*."""
        return cls(**{**asdict(route), "overflow": overflow})

    async def handle(self, request: Request, channel: Channel) -> CallToolResult | Continue:
        """Run `call`, and return its result, shortened if it is too long."""
        return await self._bounded(ToolRoute.handle(self, request, channel), channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call after its wait, and shorten its result if it is too long."""
        return await self._bounded(ToolRoute.resume(self, continuation, outcome, channel), channel)

    async def _bounded(self, running: Awaitable[S], channel: Channel) -> S | CallToolResult:
        """Return the result or the wait of *running*; shorten a result, or the text of an error.

        Raises:
            ToolError: the tool, or the job that it waited for, has raised it.
        """
        try:
            step = await running
        except (ToolError, WorkRaised) as error:
            text = str(error)
            if len(text) <= self.overflow:
                raise
            result = await self._shortened(_Shortening(self, tool_error(text), channel))
            lines = (block.text for block in result.content if isinstance(block, TextContent))
            retry = isinstance(error, ToolError) and error.retry
            raise ToolError("\n".join(lines), retry=retry) from error
        if not isinstance(step, CallToolResult):
            return step
        shortening = _Shortening(self, step, channel)
        return await self._shortened(shortening) if shortening.needed else step

    async def _shortened(self, shortening: "_Shortening") -> CallToolResult:
        """Return the beginning of a result that is too long, and links to what is kept.

        Raises:
            ToolError: the store has no room for the whole.
        """
        try:
            return await shortening.result()
        except StoreUnavailable as error:
            full = isinstance(error, OverShare)
            place = "its client's share of the store" if full else "the store, or it does not work"
            raise ToolError(
                f"The result is longer than {self.overflow} characters (limit: overflow), and "
                f"could not be kept: there is no room in {place}"
            ) from error


class _Shortening:
    """The shortening of one result: texts, structured content and binary content, each by itself.

    Attributes:
        needed: whether one of them is longer than the limit.
    """

    def __init__(self, route: OverflowRoute, result: CallToolResult, channel: Channel) -> None:
        self._limit, self._output, self._channel = route.overflow, route.output, channel
        self._name, self._scopes = route.key, route.scopes
        self._result = result
        self._written: list[list[Delete]] = []  # the deletions of each that is kept
        self._data: memoryview | None = None  # the structured content, if it is too long
        data = result.structured_content
        if isinstance(data, msgspec.Raw) and is_longer(data, self._limit):
            self._data = memoryview(data)
        # The structured content is sent as text, too: that text is kept once.
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        longer = [text for text in texts if len(text) > self._limit]
        self._copies = {id(text) for text in longer if self._data and _is_same(text, self._data)}
        self._texts = [text for text in texts if id(text) not in self._copies]
        self._long = sum(map(len, self._texts)) > self._limit
        binary = sum(len(_binary(block)) for block in result.content)
        self.needed = bool(self._long or self._data or binary > self._limit)

    async def result(self) -> CallToolResult:
        """Keep what is too long, and return the result with the beginnings and the links.

        Raises:
            StoreUnavailable: the store has no room, or cannot be reached. Nothing is left in it.
        """
        try:
            return await self._sent()
        except BaseException:
            for written in self._written:
                with suppress(StoreError):  # they expire nevertheless
                    await owner_of(self._channel)().store.apply(*written)
            raise

    async def _sent(self) -> CallToolResult:
        result, room, sent = self._result, self._limit, list[Any]()
        structured, is_error = result.structured_content, result.is_error
        texts, data = list[Any](), list[Any]()  # the blocks that are sent instead
        if self._long:
            texts = await self._kept_text("\n".join(self._texts))
        if self._data is not None:
            short = self._fitting(self._data)
            data = await self._kept_data(self._data, short)
            structured = msgspec.UNSET if short is None else msgspec.Raw(short.json)
            # Without structured content that fits its schema, only an error is a valid result.
            is_error = is_error or (short is None and self._output is not None)
        for block in result.content:
            content = _binary(block)
            if isinstance(block, TextContent) and id(block.text) in self._copies:
                sent, data = sent + data, []
            elif isinstance(block, TextContent) and self._long:
                sent, texts = sent + texts, []
            elif len(content) <= room:
                sent.append(block)
                room -= len(content)
            else:
                sent.append(await self._kept_binary(block, content))
        return replace(
            result, content=sent + data, structured_content=structured, is_error=is_error
        )

    def _fitting(self, data: memoryview) -> _Short | None:
        """Return *data* with shorter lists, if that fits the output schema; otherwise None."""
        short, output = _with_shorter_lists(data, self._limit), self._output
        fits = short and not (output and output.check(msgspec.json.decode(short.json), short.json))
        return short if fits else None

    async def _kept_text(self, text: str) -> list[Any]:
        """Keep *text*, and return the blocks that are sent instead."""
        end = _end_of_element(text, self._limit)
        if end is not None:
            kind, begin, after = "application/json", text[:end] + "]", end + 1
        else:
            kind, after = "text/plain", _end_of_line(text, self._limit)
            begin = text[:after]
        return self._instead(begin, after, await self._keep(_slices(text), kind))

    async def _kept_data(self, data: memoryview, short: _Short | None) -> list[Any]:
        """Keep the structured content *data*; *short* is what is sent of it, if anything."""
        link = await self._keep(_characters(data), "application/json")
        if short is not None:
            return self._instead(short.json.decode(), short.after, link)
        # A character has at most 4 bytes.
        text = bytes(data[: 4 * self._limit]).decode(errors="ignore")
        end = _end_of_line(text, self._limit)
        return self._instead(text[:end], end, link)

    async def _kept_binary(self, block: Any, content: str) -> ResourceLink:
        """Keep an image, audio, or an embedded resource; return the link that is sent instead."""
        resource = block.resource if isinstance(block, EmbeddedResource) else None
        is_text = resource is not None and resource.text is not None
        kind = (resource or block).mime_type
        name = self._name if resource is None else resource.uri
        if is_text:
            return await self._keep(_slices(content), kind, name)
        decode = partial(b64decode, validate=True)
        return await self._keep(map(decode, _slices(content, _CHUNK // 3 * 4)), kind, name)

    def _instead(self, begin: str, after: int, link: ResourceLink) -> list[Any]:
        length = (link.meta or {})[LENGTH]
        note = (
            f"[The result is shortened. {link.description}. To read on, read {link.uri}"
            f"?from={after}&to={min(after + self._limit, length)}]"
        )
        return [TextContent(begin), TextContent(note), link]

    async def _keep(
        self, chunks: Iterator[str] | Iterator[bytes], mime_type: str | None, name: str = ""
    ) -> ResourceLink:
        """Store *chunks*, one after another, and return the link to the whole.

        Raises:
            StoreUnavailable: the store has no room, or cannot be reached.
        """
        channel, id = self._channel, secrets.token_hex(16)
        owner = owner_of(channel)()
        ttl = TTL if channel.task is None else channel.request.policy.result_ttl
        key, *_ = _keys(id, channel)
        written = [Delete(key)]
        self._written.append(written)
        put = partial(Put, client=owner.client, optional=True)
        length = size = 0
        is_text = False
        for chunk in chunks:
            is_text = isinstance(chunk, str)
            part = chunk.encode() if isinstance(chunk, str) else chunk
            written.append(Delete(f"{key}#{len(written) - 1}"))
            await owner.store.apply(put(written[-1].key, part, ttl=ttl + _MARGIN))
            length, size = length + len(chunk), size + len(part)
        record = KeptResult(length, is_text, mime_type, self._scopes)
        await owner.store.apply(put(key, msgspec.msgpack.encode(record), ttl=ttl))
        unit = "characters" if is_text else "bytes"
        return ResourceLink(
            _PREFIX + id,
            name or self._name,
            mime_type=mime_type,
            size=size,
            description=f"The whole, {length} {unit}, is kept for {ttl / 60:.0f} minutes",
            meta={LENGTH: length},
        )


class KeptResults(ResourceRepo):
    """The results that are kept in the store, as resources, which no list contains."""

    prefix = _PREFIX
    shared = True  # several servers behind a hub may have some

    async def read(self, key: str, channel: Channel, /) -> ResourceContents | None:
        """Return the range of a result that the URI *key* names; None if there is no such result.

        Raises:
            InvalidParams: the range is not in the result, or is too long.
            InsufficientScope: the client lacks a scope of the tool.
        """
        found = _URI.fullmatch(key)
        if found is None:
            return None
        uri = found[1]
        given = _RANGE.fullmatch(found[3] or "")
        if given is None:
            raise InvalidParams(f"{key}: a range is given as ?from=0&to=1000")
        for stored in _keys(found[2], channel):
            record = await owner_of(channel)().store.get(stored)
            if record is not None:
                kept = msgspec.msgpack.decode(record.value, type=KeptResult)
                if kept.scopes:
                    channel.context.caller.require_scopes(kept.scopes)
                begin = int(given[1] or 0)
                end = min(int(given[2] or kept.length), kept.length)
                _check(uri, kept, begin, end)
                return await _part(uri, stored, kept, begin, end, channel)
        return None


@tool(
    annotations={"title": "Read a kept result", "readOnlyHint": True},
    overflow=MAX_RANGE,  # the model has asked for that length
)
async def read_result(uri: str, channel: Channel) -> str:
    """Reads a part of a result that was too long, by its URI: overflow://...?from=0&to=64000.

    The next part begins at the `to` of the last one: from=64000&to=128000.
    """
    try:
        contents = await KeptResults().read(uri, channel)
    except InvalidParams as error:  # hosts do not show a protocol error to the model
        raise ToolError(str(error)) from None
    if contents is None:
        raise ToolError("There is no such result, or it has expired.")
    if contents.text is None:
        raise ToolError(f"The result is binary ({contents.mime_type}).")
    return contents.text


def _keys(id: str, channel: Channel) -> list[str]:
    """Return the keys that the result *id* may have, by the secrets of the mux; its own first."""
    owner = owner_of(channel)()
    marks = owner.seal.marks(Purpose.OVERFLOW, id, owner.principal)
    return [f"overflow:{mark}" for mark in marks]


def _check(uri: str, kept: KeptResult, begin: int, end: int) -> None:
    """Check a range of a result that is *kept*.

    Raises:
        InvalidParams: it is not in the result, or is too long.
    """
    data = {"uri": uri, "length": kept.length}
    if begin >= end:
        raise InvalidParams(f"from={begin} is not before to={end}, of {kept.length}", data)
    if end - begin > MAX_RANGE:
        raise InvalidParams(
            f"The result has {kept.length} characters or bytes, of which a read returns at most "
            f"{MAX_RANGE}: {uri}?from={begin}&to={begin + MAX_RANGE}",
            data,
        )


async def _part(
    uri: str, key: str, kept: KeptResult, begin: int, end: int, channel: Channel
) -> ResourceContents | None:
    """Return the contents from *begin* to *end*; None if the result expires at this moment."""
    parts: list[Any] = []
    for number in range(begin // _CHUNK, (end - 1) // _CHUNK + 1):
        record = await owner_of(channel)().store.get(f"{key}#{number}")
        if record is None:
            return None
        chunk = record.value.decode() if kept.is_text else record.value
        at = number * _CHUNK
        parts.append(chunk[max(0, begin - at) : end - at])
    content: dict[str, Any] = {"text": "".join(parts)} if kept.is_text else {}
    return ResourceContents(
        f"{uri}?from={begin}&to={end}",
        mime_type=kept.mime_type,
        meta={LENGTH: kept.length},
        **(content or {"blob": b64encode(b"".join(parts)).decode()}),
    )


def _binary(block: Any) -> str:
    """Return the base64 of an image or audio, or the contents of an embedded resource; else ""."""
    if isinstance(block, EmbeddedResource):
        return block.resource.text or block.resource.blob or ""
    return getattr(block, "data", "")


def _slices(text: str, size: int = _CHUNK) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def _characters(data: memoryview) -> Iterator[str]:
    """Yield the text of *data*, which is UTF-8, in chunks. Nothing else is copied."""
    decode, pending = getincrementaldecoder("utf-8")().decode, ""
    for at in range(0, len(data), _CHUNK):
        pending += decode(bytes(data[at : at + _CHUNK]))
        if len(pending) >= _CHUNK:
            yield pending[:_CHUNK]
            pending = pending[_CHUNK:]
    if pending:
        yield pending


def _is_same(text: str, data: memoryview) -> bool:
    if bytes(data[:1]) == b'"':  # the text of a JSON string has no quotes
        return bool(msgspec.json.decode(data) == text)
    return all(one == other for one, other in zip_longest(_slices(text), _characters(data)))


def _end_of_line(text: str, limit: int) -> int:
    """Return where to cut *text*: after a line or a word, unless that loses half of *limit*."""
    half = limit // 2
    return text.rfind("\n", half, limit) + 1 or text.rfind(" ", half, limit) + 1 or limit


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|["\[\]{},]')


def _end_of_element(text: str, limit: int) -> int | None:
    """Return the position of the last comma between elements of a JSON list, before *limit*.

    None if *text* is not a list, or its first element is longer.
    """
    depth, comma = 0, None
    for token in _TOKEN.finditer(text, 0, limit) if text.startswith("[") else ():
        match token[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "," if depth == 1:
                comma = token.start()
            case '"':  # a string that is cut
                break
        if depth == 0:  # the list ends: *text* is longer, and therefore no list
            return None
    if comma is None:
        return None
    try:
        msgspec.json.decode(text[:comma] + "]")
    except msgspec.DecodeError:  # a text that looks like a list, such as "[INFO, ..."
        return None
    return comma


def _with_shorter_lists(data: memoryview, limit: int) -> _Short | None:
    """Return the JSON *data* with at most *limit* bytes: a list, or an object with shorter lists.

    The longest list of an object is cut first; its place in the whole is not known. None if that is
    not enough.
    """
    if bytes(data[:1]) == b"[":
        return _shorter_list(data, limit)
    if bytes(data[:1]) != b"{":
        return None
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    excess = len(data) - limit
    sizes = {name: len(memoryview(each)) for name, each in members.items()}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        whole = memoryview(members[name])
        if bytes(whole[:1]) == b"[":
            short, _ = _shorter_list(whole, len(whole) - excess) or _Short(b"[]", 0)
            members[name] = msgspec.Raw(short)
            excess -= len(whole) - len(short)
            if excess <= 0:
                return _Short(msgspec.json.encode(members), 0)
    return None


def _shorter_list(data: memoryview, limit: int) -> _Short | None:
    text = bytes(data[: max(0, limit - 1)]).decode(errors="ignore")
    end = _end_of_element(text, len(text))
    return None if end is None else _Short(f"{text[:end]}]".encode(), end + 1)
