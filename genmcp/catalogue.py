"""Large catalogues: a model searches the tools of a server, instead of reading them all."""

import heapq
import logging
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.request import RESULT_TOOL, Request, ToolRequest, call_of, check_length
from genmcp.core.waiting import Continue
from genmcp.errors import (
    ConfigurationError,
    InvalidArguments,
    InvalidParams,
    ToolError,
    ToolNotFound,
)
from genmcp.faults import decoding_fault
from genmcp.protocol.tools import ListToolsResult, ToolDefinition, is_for_models
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Middleware, Route, Server
from genmcp.tools import Tool, ToolRoute

logger = logging.getLogger("genmcp")

_SEARCH: Final = "search_tools"
_CALL: Final = "call_tool"
# Not for apps: with them, a page would reach the tools that are for models only (SEP-1865).
_META: Final = {"ui": {"visibility": ["model"]}}

_FOUND: Final = 5  # tools that a search returns: with their schemas, more would fill a context
_MOST: Final = 10_000  # tools, and pages of them, of one list; further ones are not searched
_CUT: Final = "SearchTools: only the first %d tools and pages are searched"
_WORDS: Final = 32  # different words of a query that are compared with each tool
_QUERY: Final = 500  # characters of a query
_TEXT: Final = 1_000  # characters of a title, a description and all parameters, to compare
# What is returned of a tool, which may be of a server that a hub does not trust: characters of its
# description, and bytes of its schema. A larger schema is left out.
_DESCRIPTION: Final = 4_000
_SCHEMA: Final = 32 * 1024


class SearchTools(Middleware):
    """A server that lists two tools to search and call those of *inner*, and the pinned ones.

        server = SearchTools(suite, pinned=["checkout"])

    `search_tools` returns the tools that fit a text best, of those that *inner* lists for the
    client. `call_tool` calls one: from then on the call is that of the tool, for hooks, scopes,
    tasks, questions and telemetry. Tools that are not listed can be called by their names, too.
    Middleware around this server that decides by a name does so in `handle`: `find` of it gets
    `call_tool`.

    Args:
        inner: the server with many tools: a suite, or `Hub.server()`.
        pinned: the names of tools that are listed as before, in this order.

    Raises:
        ConfigurationError: *inner* is not a server, or has a tool with one of the two names;
            *pinned* is not a list of names.
    """

    def __init__(self, inner: Server, *, pinned: Sequence[str] = ()) -> None:
        super().__init__(inner)
        named = isinstance(pinned, list | tuple) and all(isinstance(each, str) for each in pinned)
        if not named:
            raise ConfigurationError(
                f"SearchTools: pinned takes a list of names of tools, not {pinned!r}"
            )
        for name in (_SEARCH, _CALL):
            taken = inner.find("tools/call", name)
            if taken is not None and not taken.pending:
                raise ConfigurationError(f"SearchTools: the server has a tool {name}: rename it")
        # Texts of genmcp tell a model to call the result tool, which it can only if it is listed.
        self._pinned = (*pinned, RESULT_TOOL)
        self._unknown = {*pinned}  # until the first list
        self._search = ToolRoute.of(_Search(self._pages))
        self._call = _CallRoute(server=inner)
        self._listed: tuple[Sequence[ListToolsResult], ListToolsResult] | None = None

    def find(self, method: str, key: str) -> Route | None:
        """Return the route of one of the two tools, or of a component of the inner server."""
        if method == "tools/call":
            if key == _CALL:
                return self._call
            if key == _SEARCH:
                return self._search
        return self.inner.find(method, key)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Search, or forward to the inner server."""
        # By name: behind a registry, the route is wrapped.
        if request.method == "tools/call" and request.key == _SEARCH:
            return await self._search.handle(request, channel)
        return await self.inner.handle(request, channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the pinned tools and the two of this server; of any other list, the inner page."""
        if method != "tools/list":
            return await self.inner.listed(method, cursor, channel)
        if cursor is not None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        pages = [page async for page in self._pages(channel)]
        # The mux encodes one object only once: return the same as long as the list is the same.
        if self._listed is not None and [*map(id, self._listed[0])] == [*map(id, pages)]:
            return self._listed[1]
        tools = {tool.name: tool for page in pages for tool in page.tools}
        for name in self._unknown - tools.keys():
            if self.inner.find("tools/call", name) is None:
                logger.warning("SearchTools: there is no tool %r to pin", name)
        self._unknown = set()
        shown = [tools[name] for name in dict.fromkeys(self._pinned) if name in tools]
        scopes = {page.cache_scope for page in pages}
        result = replace(
            pages[0],
            tools=[*shown, self._search.definition, _CALL_DEFINITION],
            next_cursor=None,
            ttl_ms=min(page.ttl_ms for page in pages),
            cache_scope="public" if scopes == {"public"} else "private",
        )
        self._listed = pages, result
        return result

    async def _pages(self, channel: Channel) -> AsyncIterator[ListToolsResult]:
        cursor, count = None, 0
        while count < _MOST:
            page: Any = await self.inner.listed("tools/list", cursor, channel)
            yield page
            count += 1 + len(page.tools)
            if (cursor := page.next_cursor) is None:
                return
        logger.warning(_CUT, _MOST)


class _Search(Tool):
    """Finds tools by what they do.

    Most tools of this server are not listed: search for one with a few words on the task, then call
    it with call_tool. If nothing fits, search with other words.
    """

    name = _SEARCH
    annotations = {"readOnlyHint": True, "openWorldHint": False}
    task = "never"
    meta = _META
    input_schema = {
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1, "maxLength": _QUERY}},
        "required": ["query"],
    }

    def __init__(self, pages: Callable[[Channel], AsyncIterator[ListToolsResult]]) -> None:
        self._pages = pages
        # Its own, so that the catalogue of no other server drives these texts out. By text, and not
        # by list: the lists of callers differ, and most of their tools are the same.
        self._counted = lru_cache(maxsize=2 * _MOST)(_counted)

    async def call(self, request: ToolRequest, channel: Channel) -> dict[str, Any]:
        pages = [page async for page in self._pages(channel)]
        tools = [tool for page in pages for tool in page.tools if is_for_models(tool)]
        if len(tools) > _MOST:  # on one page
            logger.warning(_CUT, _MOST)
        query = request.arguments["query"]
        # In a thread: the first search reads every description.
        found = await channel.in_thread(best_tools, query, tools[:_MOST], self._counted)
        return {"tools": [*map(_described, found)]}


class _Called(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `call_tool`."""

    name: str
    arguments: dict[str, msgspec.Raw] | None = None


_called = msgspec.json.Decoder(_Called).decode

_CALL_DEFINITION: Final = ToolDefinition(
    _CALL,
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name of a tool."},
            "arguments": {"type": "object", "description": "As its inputSchema has them."},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    description=f"Calls a tool that {_SEARCH} has found.",
    meta=_META,
)


class _CallRoute(Route, frozen=True, kw_only=True):
    """The route of `call_tool`, which is resolved to the route of the tool that it names.

    The request of the channel is replaced by a call of that tool, before anything depends on its
    name or arguments. A state or task that follows is that of a direct call, and the facts of
    the tool's route apply: its policy, scopes and idempotency key. Only headers that repeat
    arguments are not checked, since the client of `call_tool` cannot know of them.
    """

    eager: bool = True
    pending: bool = True

    server: Server

    async def resolve(self, channel: Channel) -> Route:
        """Make the request of *channel* a call of the tool, and return its route.

        Raises:
            InvalidArguments, MalformedParams: the arguments name no tool, or have a long name.
            ToolError: there is no such tool for the client, or for models.
        """
        request: Any = channel.request
        try:
            called = _called(request.params.given or b"{}")
        except msgspec.MsgspecError as error:
            raise InvalidArguments(_CALL, [decoding_fault(str(error))]) from None
        check_length(called.name)
        route = self.server.find("tools/call", called.name)
        if route is not None:
            arguments = msgspec.Raw(msgspec.json.encode(called.arguments or {}))
            channel.request = replace(call_of(request, called.name, arguments), route=route)
            try:
                if route.pending:
                    route = await route.resolve(channel)
                if not route.policy.apps_only:
                    return route
            except ToolNotFound:  # also of a tool that the client must not know of
                pass
        # Not a JSON-RPC error, as for other unknown tools: a model should read it and search.
        raise ToolError(f"There is no tool {called.name!r}. Find one with {_SEARCH}.")


def _described(tool: ToolDefinition) -> Mapping[str, Any]:
    found: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        found["description"] = tool.description[:_DESCRIPTION]
    if len(schema := msgspec.json.encode(tool.input_schema)) <= _SCHEMA:
        found["inputSchema"] = msgspec.Raw(schema)
    return found


# The ranking is Okapi BM25, over the words of names, titles, descriptions and parameters. The kept
# libraries for it need numpy, and keep an index; here each caller has a list of its own.

_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75
_NAME_WEIGHT: Final = 1.5  # the words of name and title, against those of the other texts

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
_INNER: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # in camelCase
_ENDING: Final = re.compile(r"(?<=\w{3})(?:ing|ed|es|e|s)$")
_COMMON: Final = re.compile(
    "a|an|and|any|are|as|at|be|by|can|do|for|from|have|how|i|in|into|is|it|its|me|my|of|on|or|our|"
    "that|the|their|them|then|these|this|to|use|was|we|what|which|will|with|you|your"
)


def _counted(text: str) -> tuple[Mapping[str, int], int]:
    """Return how often each word is in *text*, and the number of words."""
    counts = Counter(_words(text))
    return dict(counts), counts.total()


def best_tools(
    query: str,
    tools: Sequence[ToolDefinition],
    counted: Callable[[str], tuple[Mapping[str, int], int]] = _counted,
) -> Sequence[ToolDefinition]:
    """Return up to five of *tools* that fit *query*, the best first.

    *counted* counts the words of a text; a caller with many searches remembers them.
    """
    words = [*dict.fromkeys(_words(query))][:_WORDS]
    scores = [0.0] * len(tools)
    # Names and texts are ranked apart: in one text, a long description hides the words of a name,
    # which say most. GitHub's 1,223 operations were found in 19 of 30 cases, and in 14 as one text.
    for weight, text_of in ((_NAME_WEIGHT, _names), (1.0, _texts)):
        texts = [counted(text_of(tool)) for tool in tools]
        average = sum(length for _, length in texts) / max(1, len(texts))
        for word in words:
            places = [place for place, (counts, _) in enumerate(texts) if word in counts]
            rarity = math.log(1 + (len(texts) - len(places) + 0.5) / (len(places) + 0.5))
            for place in places:
                counts, length = texts[place]
                longer = 1 - _LENGTH_SHARE + _LENGTH_SHARE * length / average
                count = counts[word] / (counts[word] + _SATURATION * longer)
                scores[place] += weight * rarity * count
    best = heapq.nlargest(_FOUND, range(len(tools)), key=scores.__getitem__)
    return [tools[place] for place in best if scores[place]]


def _names(tool: ToolDefinition) -> str:
    return f"{tool.name} {tool.title or ''}"[:_TEXT]


def _texts(tool: ToolDefinition) -> str:
    properties = tool.input_schema.get("properties")
    parameters = properties if isinstance(properties, Mapping) else ()
    return f"{(tool.description or '')[:_TEXT]} {' '.join(parameters)[:_TEXT]}"


def _words(text: str) -> list[str]:
    """Return the words of *text* without their endings; those of a camelCase name also in parts."""
    found = _WORD.findall(text.lower())
    if (parts := _INNER.sub(" ", text)) != text:
        found += _WORD.findall(parts.lower())
    return [_stem(word) for word in found if not _COMMON.fullmatch(word)]


def _stem(word: str) -> str:
    stem = _ENDING.sub("", word)
    if len(stem) > 3 and stem[-1] == stem[-2]:  # shipping, ship
        stem = stem[:-1]
    return f"{stem[:-1]}i" if stem.endswith("y") else stem  # copy, copies
