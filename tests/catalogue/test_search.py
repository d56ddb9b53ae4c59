"""`search_tools` finds the right tool, of those that its caller may see."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import genmcp.catalogue as catalogue
from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Endpoint,
    Hub,
    Middleware,
    Mux,
    Provider,
    ServerConfig,
    Suite,
    prompt,
    tool,
)
from genmcp.catalogue import SearchTools, best_tools
from genmcp.client.client import Client
from genmcp.protocol import ListToolsResult, PaginatedResult, ToolDefinition
from genmcp.testing import connect
from tests.catalogue.office import REQUESTS, VERBS, definitions, names, office
from tests.support.asgi import Client as AsgiClient


def tools() -> list[ToolDefinition]:
    """Return the tools of the office as they are listed."""
    return [
        ToolDefinition(each["name"], each["input_schema"], description=each["description"])
        for each in definitions()
    ]


async def found(client: Client, query: str) -> list[str]:
    """Return the names of the tools that a search finds."""
    result = await client.call("search_tools", {"query": query})
    assert not result.is_error, result.text
    assert json.loads(result.text) == result.structured
    return [each["name"] for each in result.structured["tools"]]


def definition(name: str, description: str = "", *parameters: str) -> ToolDefinition:
    """Return the definition of a tool."""
    schema = {"type": "object", "properties": {each: {} for each in parameters}}
    return ToolDefinition(name, schema, description=description)


def best(query: str, *tools: ToolDefinition) -> list[str]:
    """Return the names of the best of *tools*."""
    return [each.name for each in best_tools(query, tools)]


async def test_right_tool_is_among_five_of_a_thousand() -> None:
    """Each of 50 requests, by a model that knows no name."""
    async with connect(SearchTools(office())) as client:
        results = {request: await found(client, request) for request in REQUESTS}

    assert len([*names()]) == 1000
    assert len(REQUESTS) == 50
    assert [(each, REQUESTS[each]) for each in results if REQUESTS[each] not in results[each]] == []
    first = [each for each in results if REQUESTS[each] == results[each][0]]
    assert len(first) >= 45
    assert {len(each) for each in results.values()} == {5}


def test_requests_do_not_use_the_names_of_their_tools() -> None:
    """Otherwise the 50 requests would only show that names can be looked up."""
    parts = {name: (verb, *noun.split("_")) for name, verb, noun in names()}
    assert {*REQUESTS.values()} <= parts.keys()
    for request, name in REQUESTS.items():
        alone = best(request, definition(name))
        assert alone == [], f"{request}: {name}"


def test_word_that_no_text_has_is_not_found() -> None:
    """The ranking knows no synonyms: they belong into descriptions."""
    assert VERBS["approve"][0].startswith("Gives consent")
    assert "approve_quote" not in best("say yes to the offer with prices", *tools())


@pytest.mark.parametrize(
    ("query", "name", "description"),
    [
        ("createInvoice", "create_invoice", ""),
        ("create an invoice", "createInvoice", ""),
        ("parse xml", "parseXMLFile", ""),
        ("xml file", "XMLFileParser", ""),
        ("github issue", "find", "Searches GitHub for issues."),
        ("GitHub", "search-github", ""),
        ("copies of a file", "copy_file", ""),
        ("shipping", "x", "Ships parcels."),
        ("deleted invoices", "x", "Delete one invoice."),
        ("Größe ändern", "x", "Ändert die Größe."),
        ("天気 forecast", "x", "今日の天気"),
        ("due date", "x", ""),
    ],
)
def test_words_are_found_in_other_forms(query: str, name: str, description: str) -> None:
    """Parts of names, endings and capital letters do not matter."""
    other = definition("unrelated", "Rotates a picture.")
    wanted = definition(name, description, "dueDate")

    assert best(query, other, wanted) == [name]


def test_tool_with_a_rare_word_is_the_best() -> None:
    """A word that many tools have says little; one in the name says more than elsewhere."""
    many = [definition(f"create_{each}", "Creates a thing.") for each in "abcdefgh"]
    rare = definition("x", "Creates a rhombus.")
    named = definition("rhombus", "Creates a thing.")

    assert best("create a rhombus", *many, rare, named)[:2] == ["rhombus", "x"]


def test_search_without_words_finds_nothing() -> None:
    """Nor does one in a server without tools."""
    assert best("?!", definition("a")) == []
    assert best("of the", definition("of_the")) == []
    assert best("a word") == []


async def test_query_and_schemas_are_bounded() -> None:
    """A hub passes on what servers of others list."""
    large = {"type": "object", "properties": {"x" * 40_000: {}}}
    huge = tool(name="huge", description="Paints. " * 10_000, input_schema=large)(lambda **_: "")
    odd = tool(name="odd", description="Paints.", input_schema={"type": "object"})(lambda **_: "")
    async with connect(SearchTools(Suite("x", tools=[huge, odd]))) as client:
        result = await client.call("search_tools", {"query": "paint"})
        refused = await client.call("search_tools", {"query": "paint " * 1000})

    shown = {each["name"]: each for each in result.structured["tools"]}
    assert "inputSchema" not in shown["huge"]
    assert len(shown["huge"]["description"]) == 4000
    assert shown["odd"]["inputSchema"]["type"] == "object"
    assert refused.is_error
    assert "500" in refused.text


async def test_only_pinned_tools_are_listed() -> None:
    """In the order of `pinned`, before the two of the server, on one page."""
    museum = Suite("museum", tools=[look, touch, office_tool("a")])
    async with connect(SearchTools(museum, pinned=["touch", "look", "touch"])) as client:
        listed = [each.name for each in await client.tools()]

    assert listed == ["touch", "look", "search_tools", "call_tool"]


async def test_pinned_tool_that_does_not_exist_is_logged(caplog: Any) -> None:
    """Once: it may be added later."""
    suite = Suite("x", tools=[look])
    async with connect(SearchTools(suite, pinned=["lok", "look"])) as client:
        assert (await client.tools())[0].name == "look"
        suite.add(touch)
        assert (await client.tools())[0].name == "look"

    assert [each.getMessage() for each in caplog.records] == [
        "SearchTools: there is no tool 'lok' to pin"
    ]


@tool
def look() -> str:
    """Looks at the painting."""
    return "seen"


@tool
def touch() -> str:
    """Touches the painting."""
    return "felt"


async def test_changed_list_is_searched() -> None:
    """Added and removed tools, without a restart."""
    suite = Suite("museum", tools=[look])
    async with connect(SearchTools(suite)) as client:
        before = await found(client, "painting")
        suite.add(touch)
        added = await found(client, "painting")
        suite.remove(look)
        removed = await found(client, "painting")

    assert (before, {*added}, removed) == (["look"], {"look", "touch"}, ["touch"])


class Guides(Provider):
    """Has a tool for guides only."""

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
        if is_guide(access):
            yield touch


def guided() -> str:
    """Touches the painting."""
    return "felt"


def is_guide(access: Access | None) -> bool:
    """Return whether the caller is a guide."""
    return access is not None and access.subject == "guide"


@pytest.mark.parametrize(
    "suite",
    [
        Suite("museum", tools=[look, tool(name="touch", visible=is_guide)(guided)]),
        Suite("museum", tools=[look], providers=[Guides]),
    ],
    ids=["visible", "provider"],
)
async def test_caller_finds_only_tools_that_it_may_see(suite: Suite) -> None:
    """A hidden tool is as unknown as one that does not exist, also if it is pinned."""
    server, seen = SearchTools(suite, pinned=["touch"]), {}
    for subject in ("visitor", "guide", "visitor"):
        async with connect(server, access=Access(subject=subject)) as client:
            called = await client.call("call_tool", {"name": "touch"})
            listed = [each.name for each in await client.tools()]
            seen[subject] = {*await found(client, "painting")}, "touch" in listed, called.text

    unknown = "There is no tool 'touch'. Find one with search_tools."
    assert seen == {
        "visitor": ({"look"}, False, unknown),
        "guide": ({"look", "touch"}, True, "felt"),
    }


async def test_every_page_of_a_list_is_searched() -> None:
    """A list of many pages is one list; other lists are passed on."""
    tools = [look, touch, office_tool("a"), office_tool("b")]
    small = Suite("office", tools=tools, prompts=[praise], page_size=1)
    async with connect(SearchTools(small, pinned=["b"])) as client:
        assert await found(client, "tool b") == ["b", "a"]
        assert (await client.tools())[0].name == "b"
        assert [each.name for each in await client.prompts()] == ["praise"]


@prompt
def praise() -> str:
    """Asks for praise of the painting."""
    return "Praise the painting."


def office_tool(name: str) -> object:
    """Return a tool called *name*."""
    return tool(name=name, description="A tool.")(lambda: name)


async def test_tools_of_a_hub_are_searched() -> None:
    """Those of every server, by their qualified names, also after one was removed."""
    async with Hub() as hub:
        server = SearchTools(hub.server(name="all"), pinned=["a/look"])
        await hub.add(ServerConfig("a", target=Suite("a", tools=[look])))
        await hub.add(ServerConfig("b", target=Suite("b", tools=[touch])))
        async with connect(server) as client:
            both = {*await found(client, "painting")}
            listed = [each.name for each in await client.tools()]
            felt = await client.call("call_tool", {"name": "b/touch", "arguments": {}})
            await hub.remove("b")
            rest = await found(client, "painting")

    assert (both, rest) == ({"a/look", "b/touch"}, ["a/look"])
    assert listed == ["a/look", "search_tools", "call_tool"]
    assert felt.text == "felt"


class Endless(Middleware):
    """Has one tool on each of its pages, without an end."""

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        number = int(cursor or 0)
        tools = [definition(f"look_{number}", "Looks at the painting.")]
        following = str(number + 1)
        return ListToolsResult(tools=tools, next_cursor=following, ttl_ms=0, cache_scope="private")


async def test_list_without_an_end_is_cut(caplog: Any) -> None:
    """A faulty server costs a bounded search; the log tells why tools are missing."""
    async with connect(SearchTools(Endless(Suite("x", tools=[look])))) as client:
        assert len(await found(client, "painting")) == 5

    assert "only the first 10000 tools and pages are searched" in caplog.text


class Many(Middleware):
    """Has as many tools as are searched, and one more, on one page."""

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        name = self.info.name
        tools = [definition(f"{name}_{each}", f"Looks at {name} {each}.") for each in range(10_000)]
        tools.append(definition(f"{name}_last", "Paints."))
        return ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")


async def test_search_of_one_server_costs_another_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its texts are read at its first search only, whatever other servers have."""
    read = 0

    def counting(text: str) -> list[str]:
        nonlocal read
        read += 1
        return words(text)

    words = catalogue._words
    monkeypatch.setattr(catalogue, "_words", counting)
    servers = [SearchTools(Many(Suite(name, tools=[look]))) for name in ("a", "b")]
    async with connect(servers[0]) as first, connect(servers[1]) as second:
        for client in (first, second):
            assert len(await found(client, "look")) == 5
        read = 0
        for client in (first, second):
            assert await found(client, "paint") == []

    assert read == 2  # the queries
    assert caplog.text.count("only the first 10000 tools and pages are searched") == 4


async def test_cursor_of_the_inner_list_is_rejected() -> None:
    """A client may have it from before the server got its search."""
    suite, secret = Suite("museum", tools=[look, touch], page_size=1), b"s" * 32
    muxes = [Mux(each, secret=secret) for each in (suite, SearchTools(suite))]
    before, after = (AsgiClient(Endpoint(mux)) for mux in muxes)
    page = (await before.send(before.request("tools/list"))).json["result"]
    cursor = {"cursor": page["nextCursor"]}
    refused = (await after.send(after.request("tools/list", cursor))).json
    for mux in muxes:
        await mux.aclose()

    assert refused["error"]["code"] == -32602


@pytest.mark.parametrize("pinned", ["look", [look], None])
def test_pinned_takes_names(pinned: Any) -> None:
    """A single name would be read as a list of letters."""
    with pytest.raises(ConfigurationError, match="pinned takes a list of names"):
        SearchTools(Suite("x", tools=[look]), pinned=pinned)


def test_names_of_the_two_tools_must_be_free() -> None:
    """Otherwise a tool of the server could not be called any more."""
    with pytest.raises(ConfigurationError, match="has a tool call_tool"):
        SearchTools(Suite("x", tools=[tool(name="call_tool")(look)]))
