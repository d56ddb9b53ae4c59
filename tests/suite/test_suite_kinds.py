"""A suite of tools, resources and prompts, as its clients see it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from genmcp import (
    Channel,
    PromptTemplate,
    Resource,
    ServerError,
    Suite,
    Tool,
    ToolRequest,
    prompt,
    tool,
)
from genmcp.core.request import ClientInfo as Asker
from genmcp.core.request import Request
from genmcp.errors import MethodNotFound
from genmcp.prompts import PromptRepo
from genmcp.protocol import ResourceDefinition
from genmcp.protocol.params import RequestParams
from genmcp.protocol.prompts import PromptDefinition, PromptReference, ResourceTemplateReference
from genmcp.protocol.revisions.chain import LATEST
from genmcp.resources import ResourceRepo
from genmcp.suite.collection import TOOLS, Collection
from genmcp.testing import connect
from tests.support.asgi import MODERN
from tests.support.channels import channel_of
from tests.support.speaking import VERSIONS, speak


@tool
async def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


@prompt
async def review(code: str) -> str:
    """Asks for a review."""
    return f"Review {code}"


class Books(ResourceRepo):
    """Books by their id."""

    name = "book"
    template = "library://books/{id}"

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition("library://books/1", "one")]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        return f"Book {key['id']}" if key["id"] == "1" else None

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        return [argument, value, *context]


class Letters(PromptRepo):
    prefix = "letter/"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        return [PromptDefinition("letter/a")]

    async def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        return name if name == "letter/a" else None


def everything(**options: Any) -> Suite:
    return Suite(
        name="test",
        version="1",
        tools=[add],
        resources=[Resource("config://app", {"debug": False}, name="configuration"), Books],
        prompts=[review, Letters, PromptTemplate(name="hello", messages="Hello {name}")],
        **options,
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_suite_offers_each_kind_on_every_revision(version: str) -> None:
    """Lists, templates, contents, messages and completions arrive."""
    async with speak(everything(), version) as client:

        async def ask(method: str, **params: Any) -> Any:
            return (await client.request(method, params)).result

        tools = await ask("tools/list")
        resources = await ask("resources/list")
        templates = await ask("resources/templates/list")
        prompts = await ask("prompts/list")
        read = await ask("resources/read", uri="library://books/1")
        got = await ask("prompts/get", name="review", arguments={"code": "x"})
        ref = {"type": "ref/resource", "uri": "library://books/{id}"}
        completed = await ask("completion/complete", ref=ref, argument={"name": "id", "value": "7"})

    assert [each["name"] for each in tools["tools"]] == ["add"]
    assert [each["uri"] for each in resources["resources"]] == ["config://app", "library://books/1"]
    assert [each["name"] for each in templates["resourceTemplates"]] == ["book"]
    assert [each["name"] for each in prompts["prompts"]] == ["review", "letter/a", "hello"]
    assert read["contents"][0]["text"] == "Book 1"
    assert got["messages"][0]["content"]["text"] == "Review x"
    assert completed["completion"]["values"] == ["id", "7"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_suite_declares_capabilities_of_its_components(version: str) -> None:
    """A capability is there if there is something of its kind; methods go with it."""
    for suite, expected in [
        (everything(), {"completions", "logging", "prompts", "resources", "tools"}),
        (Suite(name="x", version="1", resources=[Resource("a:b", 1)]), {"resources"}),
        (Suite(name="x", version="1", prompts=[review]), {"prompts"}),
    ]:
        async with speak(suite, version) as client:
            if version == MODERN:
                declared = (await client.request("server/discover", {})).result["capabilities"]
            else:
                declared = (await client.initialize()).result["capabilities"]
            listed = await client.request("prompts/list", {})

        lacking = {"completions"} if version == "2024-11-05" else set()
        assert ({"logging", "tools"} | expected) - lacking == {*declared} - {"extensions"}
        assert ("extensions" in declared) is (version == MODERN and "logging" in expected)
        assert ("error" in listed.message) is ("prompts" not in expected)


async def test_suite_without_completions_has_no_such_method() -> None:
    """-32601, as for every method that is not offered."""
    async with connect(Suite(name="x", version="1", prompts=[review])) as client:
        with pytest.raises(ServerError, match="Method not found") as refused:
            await client.complete(PromptReference("review"), "code")

    assert refused.value.code == -32601


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_components_are_errors(version: str) -> None:
    """An unknown resource or prompt, with or without a repository, and completions."""
    missing = -32602 if version == MODERN else -32002
    async with speak(everything(), version) as client:
        for method, params, code, data in [
            ("resources/read", {"uri": "a:b"}, missing, {"uri": "a:b"}),
            ("resources/read", {"uri": "library://books/2"}, missing, {"uri": "library://books/2"}),
            ("prompts/get", {"name": "x"}, -32602, {"name": "x"}),
            ("prompts/get", {"name": "letter/b"}, -32602, {"name": "letter/b"}),
        ]:
            error = (await client.request(method, params)).error
            assert (code, data) == (error["code"], error["data"])
        for ref, data in [
            ({"type": "ref/prompt", "name": "x"}, {"name": "x"}),
            ({"type": "ref/resource", "uri": "a:{b}"}, {"uri": "a:{b}"}),
        ]:
            argument = {"name": "b", "value": ""}
            answer = await client.request("completion/complete", {"ref": ref, "argument": argument})
            assert (-32602, data) == (answer.error["code"], answer.error["data"])


async def test_suite_client_in_memory_reads_gets_and_completes() -> None:
    """`genmcp.testing` has a word for each, and follows cursors."""
    async with connect(everything(page_size=1)) as client:
        assert [x.uri for x in await client.resources()] == ["config://app", "library://books/1"]
        assert [x.uri_template for x in await client.templates()] == ["library://books/{id}"]
        assert [x.name for x in await client.prompts()] == ["review", "letter/a", "hello"]
        (contents,) = (await client.read("config://app")).contents
        assert contents.text == '{"debug":false}'
        (message,) = (await client.prompt("hello", {"name": "Ada"})).messages
        assert message.content.text == "Hello Ada"  # type: ignore[union-attr]
        found = await client.complete(
            ResourceTemplateReference("library://books/{id}"), "id", "x", {"shelf": "a"}
        )
        assert found.values == ["id", "x", "shelf"]
        assert (await client.complete(PromptReference("hello"), "name")).values == []


def numbered(count: int) -> list[Any]:
    class Number(Tool):
        def __init__(self, number: int) -> None:
            self.name = f"tool{number}"

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            return self.name

    return [Number(number) for number in range(count)]


async def test_suite_lists_a_thousand_tools_on_one_page() -> None:
    """Many clients never ask for a second one; other lists have pages of a hundred."""
    resources = [Resource(f"a:{number}", 1) for number in range(101)]
    suite = Suite(name="x", version="1", tools=numbered(1001), resources=resources)

    async with connect(suite) as client:
        tools = await client.request("tools/list")
        rest = await client.request("tools/list", {"cursor": tools.next_cursor})
        page = await client.request("resources/list")

    assert (len(tools.tools), [tool.name for tool in rest.tools]) == (1000, ["tool1000"])
    assert rest.next_cursor is None
    assert len(page.resources) == 100


async def test_page_for_all_clients_is_the_same_object() -> None:
    """So that it is encoded once."""
    suite = Suite(name="x", version="1", tools=numbered(3), page_size=2)
    line: Any = None
    first = await suite.listed("tools/list", None, line)
    second = await suite.listed("tools/list", first.next_cursor, line)

    assert first is await suite.listed("tools/list", None, line)
    assert second is await suite.listed("tools/list", first.next_cursor, line)
    assert (first.cache_scope, first.ttl_ms) == ("public", 0)


async def test_list_of_tools_has_ttl_and_cache_scope() -> None:
    """The least `cache_ttl` of all counts; one private tool makes the list private."""

    class Kept(Tool):
        name = "kept"
        cache_ttl = 60

        async def call(self, request: ToolRequest, channel: Channel) -> None: ...

    @tool(cache_ttl=1.5, cache_scope="private")
    async def brief() -> None: ...

    cases: list[tuple[list[object], tuple[int, str]]] = [
        ([Kept], (60_000, "public")),
        ([Kept, brief], (1500, "private")),
    ]
    for tools, expected in cases:
        async with connect(Suite(name="x", version="1", tools=tools)) as client:
            page = await client.request("tools/list")
        assert expected == (page.ttl_ms, page.cache_scope)


async def test_suite_rejects_requests_without_a_route() -> None:
    """Middleware may pass any request."""
    request = Request(
        id=1,
        method="x/y",
        params=RequestParams(),
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=Asker(LATEST.version),
    )

    with pytest.raises(MethodNotFound, match="x/y"):
        await everything().handle(request, channel_of(request))


def test_repr_of_a_suite_counts_components() -> None:
    """For people who debug."""
    assert repr(everything()) == "<Suite test 1, 1 tools, 2 resources, 3 prompts>"


def test_suite_completes_no_arguments_of_tools() -> None:
    """2026-07-28, completion: of prompts and resource templates."""
    tools = Collection(TOOLS, [TOOLS.route_of(add)])

    assert not tools.completes
    assert None is tools.completer("add", None)
