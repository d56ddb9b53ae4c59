"""Lists and forms of a server that are larger than the options of the client allow."""

import asyncio
from typing import Any

import pytest

from genmcp import Client, ClientHandler, Suite, tool
from genmcp.client.errors import ProtocolError, RequestTimeout
from genmcp.client.options import ClientOptions
from tests.hub.far import OLD, TIME, Far, Piped, said
from tests.support.client_bounds import bounds


def nothing() -> Any:
    async def function() -> None:
        """Does nothing."""

    return function


def suite(count: int) -> Suite:
    tools = [tool(name=f"t{number}")(nothing()) for number in range(count)]
    return Suite(name="s", version="1", tools=tools)


def paged(pages: int, size: int) -> Far:
    """Return a server whose list of tools has *pages*, with a text of *size* on each."""

    async def listed(far: Far, message: Any) -> Any:
        number = len(far.called)
        far.called.append("page")
        page = {"tools": [{"name": f"t{number}", "inputSchema": {}, "description": "x" * size}]}
        return page if number == pages else {**page, "nextCursor": str(number)}

    return Far(**{"tools/list": listed})


async def test_list_of_too_many_items_is_an_error() -> None:
    """Other requests are not affected."""
    with bounds(max_list_items=2):
        async with asyncio.timeout(TIME), Client(suite(3)) as client:
            with pytest.raises(ProtocolError, match="3 items or more, with a limit of 2"):
                await client.tools()
            await client.ping()


async def test_list_as_long_as_allowed_is_returned() -> None:
    """The bound is inclusive."""
    with bounds(max_list_items=3):
        async with asyncio.timeout(TIME), Client(suite(3)) as client:
            assert len(await client.tools()) == 3


async def test_list_without_end_is_left_at_its_bytes() -> None:
    """A thousand pages of a megabyte were kept before the list was given up."""
    far = paged(1_000, 100_000)
    options = ClientOptions(revision=OLD)
    with bounds(max_list_bytes=1_000_000):
        async with asyncio.timeout(TIME), Client(far, options=options) as client:
            with pytest.raises(ProtocolError, match="bytes or more, with a limit of 1000000"):
                await client.tools()

    assert len(far.called) == 10


async def test_pages_from_the_cache_count() -> None:
    """A list is as long however its pages came."""
    with bounds(max_list_bytes=100_000):
        async with asyncio.timeout(TIME), Client(suite(3)) as client:
            assert await client.tools() == await client.tools()


@pytest.mark.parametrize(
    ("method", "member", "read"),
    [
        ("tools/list", "tools", Client.tools),
        ("resources/list", "resources", Client.resources),
        ("resources/templates/list", "resourceTemplates", Client.templates),
        ("prompts/list", "prompts", Client.prompts),
    ],
)
async def test_list_has_one_deadline_for_all_pages(method: str, member: str, read: Any) -> None:
    """Each page comes in time, and there is always another one."""

    async def endless(far: Far, message: Any) -> Any:
        far.called.append("page")
        return {member: [], "nextCursor": str(len(far.called))}

    options = ClientOptions(revision=OLD)
    with bounds(max_pages=1_000_000):
        async with (
            asyncio.timeout(TIME),
            Client(Far(**{method: endless}), timeout=0.1, options=options) as client,
        ):
            with pytest.raises(RequestTimeout, match=f"{method}.* 0.1 s"):
                await read(client)


class Never(ClientHandler):
    """Must not be called."""

    async def handle_elicitation_create(self, message: str, schema: Any) -> Any:
        raise AssertionError("a form past the bounds reached the hook")


@pytest.mark.parametrize(
    "properties",
    [
        {"A" * 90_000: {"properties": {f"k{n}": {} for n in range(4_900)}}},
        {f"k{n}": {"type": "string", "pattern": f"^[a-z]{{1,{n}}}$"} for n in range(1, 2_000)},
        {"a": {"$ref": "http://["}},
    ],
)
async def test_hostile_form_is_refused(properties: Any) -> None:
    """340 kB of a question took 5.7 GiB and 29 s of a client with a form hook."""
    far = Piped()
    form = {"type": "object", "properties": properties}
    params = {"message": "Who?", "requestedSchema": form}
    async with asyncio.timeout(TIME):
        async with Client(far, handler=Never(), options=ClientOptions(revision=OLD)) as client:
            far.questions.put_nowait({"id": "q", "method": "elicitation/create", "params": params})
            answer = await far.replies.get()
            assert (await client.call("quick")).text == "done"

    assert answer["error"]["code"] == -32602
    assert "requestedSchema" in answer["error"]["message"]


async def test_hostile_output_schema_leaves_the_result_unchecked(caplog: Any) -> None:
    """It is logged once, on one line; the caller gets the result."""

    async def listed(far: Far, message: Any) -> Any:
        hostile = {"type": "object", "properties": {"\x1b[2J\n" + "A" * 300_000: {}}}
        return {"tools": [{"name": "quick", "inputSchema": {}, "outputSchema": hostile}]}

    async def quick(far: Far, message: Any) -> Any:
        return {**said("done"), "structuredContent": {"a": 1}}

    far = Far(**{"tools/list": listed, "quick": quick})
    async with asyncio.timeout(TIME):
        async with Client(far, options=ClientOptions(revision=OLD)) as client:
            await client.tools()
            assert (await client.call("quick")).structured == {"a": 1}
            assert (await client.call("quick")).structured == {"a": 1}

    (record,) = [each for each in caplog.records if "cannot be checked" in each.getMessage()]
    assert "more than 262144 bytes" in record.getMessage()
    assert record.getMessage().isprintable()
