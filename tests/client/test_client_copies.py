"""A result belongs to its caller: changing it does not affect any other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Channel, Suite, Tool, ToolRequest
from genmcp.client.client import Client
from genmcp.client.options import ClientOptions
from tests.support.asgi import MODERN

LEGACY = "2025-06-18"
BOTH = [MODERN, LEGACY]


class Weigh(Tool):
    """Weighs, and gives away the very dictionary it keeps."""

    name = "weigh"
    output_schema = {"type": "object", "properties": {"grams": {"type": "integer"}}}

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"grams": 5, "of": ["flour"]}

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return self.kept


@asynccontextmanager
async def kitchen(
    *tools: Any, revision: str | None = None, cache: int = 0
) -> AsyncIterator[Client]:
    """A client of a server in this process, without a cache by default."""
    suite = Suite(name="kitchen", version="1", tools=tools)
    options = ClientOptions(revision=revision, cache_size=cache)
    async with asyncio.timeout(20), Client(suite, options=options) as client:
        yield client


def spoil(value: Any) -> None:
    """Change all that can be changed in *value*."""
    if isinstance(value, dict):
        for each in value.values():
            spoil(each)
        value.clear()
    elif isinstance(value, list):
        for each in value:
            spoil(each)
        value.clear()
    else:
        for name in getattr(value, "__struct_fields__", ()):
            spoil(getattr(value, name))


@pytest.mark.parametrize("cache", [0, 10])
@pytest.mark.parametrize("revision", BOTH)
async def test_copies_a_listing_is_the_callers(revision: str, cache: int) -> None:
    """It is as it was for who asks next, and for the server and its checks."""
    weigh = Weigh()
    async with kitchen(weigh, revision=revision, cache=cache) as client:
        (first,) = await client.tools()
        assert first.output_schema is not None
        spoil([first])
        (second,) = await client.tools()
        assert second.output_schema == Weigh.output_schema
        assert second.output_schema["properties"]


@pytest.mark.parametrize("revision", BOTH)
async def test_copies_results_are_checked_against_the_listed_schema(revision: str) -> None:
    """Not against a result that the caller has changed."""
    async with kitchen(Weigh(), revision=revision) as client:
        (listed,) = await client.tools()
        document: Any = listed.output_schema
        document["properties"]["grams"] = {"type": "string"}
        assert (await client.call("weigh")).structured["grams"] == 5
        document["type"] = "string"
        await client.tools()
        assert (await client.call("weigh")).structured["grams"] == 5


@pytest.mark.parametrize("revision", BOTH)
async def test_copies_a_result_is_the_callers(revision: str) -> None:
    """The dictionary of a tool in this process is not reached through its result."""
    weigh = Weigh()
    async with kitchen(weigh, revision=revision) as client:
        spoil(await client.call("weigh"))
        assert weigh.kept == {"grams": 5, "of": ["flour"]}
        assert (await client.call("weigh")).structured == weigh.kept
