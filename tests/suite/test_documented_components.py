"""The examples of the pages on resources, prompts and providers work as described."""

import importlib
from pathlib import Path

from genmcp import Channel, Prompt, PromptRequest, ResourceRequest, Suite, TextContent
from genmcp.protocol.prompts import PromptReference, ResourceTemplateReference
from genmcp.resources import ResourceRepo
from genmcp.testing import connect
from tests.test_documentation import modules

__all__ = ["modules"]  # a fixture


async def test_documented_library_is_listed_read_and_completed(modules: Path) -> None:
    """A value, a function behind a wildcard, and a repository."""
    async with connect(importlib.import_module("library").suite) as client:
        listed = [each.uri for each in await client.resources()]
        templates = [each.uri_template for each in await client.templates()]
        texts = [
            (await client.read(uri)).contents[0].text
            for uri in ("library://hours", "manual://basics", "library://books/dune")
        ]
        template = ResourceTemplateReference("library://books/{id}")
        completed = await client.complete(template, "id", "D")

    assert listed == ["library://hours", "library://books/emma", "library://books/dune"]
    assert templates == ["manual://{+path}", "library://books/{id}"]
    assert texts == ['{"open":9,"close":17}', "# basics", "In the week before"]
    assert completed.values == ["dune"]


async def test_documented_handbook_serves_its_folder(modules: Path) -> None:
    """The file is listed and read."""
    async with connect(importlib.import_module("handbook").suite) as client:
        (file,) = await client.resources()
        (contents,) = (await client.read(file.uri)).contents

    assert (file.uri, contents.text) == ("handbook://welcome.md", "# Welcome")


async def test_documented_prompts_work(modules: Path) -> None:
    """A function, a class and a template."""
    async with connect(importlib.import_module("reviews").suite) as client:
        review = await client.prompt("review", {"code": "x"})
        trip = await client.prompt("trip", {"city": "Oslo", "days": "2"})
        greet = await client.prompt("greet", {"name": "Ada", "language": "Dutch"})
        city = await client.complete(PromptReference("trip"), "city", "li")
        language = await client.complete(PromptReference("review"), "language", "r")

    texts = [message.content.text for got in (review, greet) for message in got.messages]  # type: ignore[union-attr]
    assert texts == ["Review this python code:\nx", "Greet Ada in Dutch."]
    assert [message.role for message in trip.messages] == ["user", "assistant", "user"]
    assert [city.values, language.values] == [["Lisbon", "Lima"], ["rust"]]


async def test_documented_office_hides_tools_from_strangers(modules: Path) -> None:
    """An anonymous client sees the public components."""
    async with connect(importlib.import_module("office").suite) as client:
        assert [tool.name for tool in await client.tools()] == ["opening_hours"]


async def test_hooks_get_the_request_of_their_kind() -> None:
    """A prompt's request has its name, a resource's its URI; both are `channel.request`."""

    class Letter(Prompt):
        name = "letter"

        async def get(self, request: PromptRequest, channel: Channel) -> str:
            assert channel.request is request
            return f"Write a {request.name}."

    class Board(ResourceRepo):
        prefix = "board://"

        async def read(self, key: str, channel: Channel) -> str:
            assert isinstance(channel.request, ResourceRequest)
            return f"{channel.request.uri} is empty."

    suite = Suite(name="test", version="1", prompts=[Letter], resources=[Board])
    async with connect(suite) as client:
        prompt = await client.prompt("letter")
        board = await client.read("board://today")

    assert prompt.messages[0].content == TextContent("Write a letter.")
    assert board.contents[0].text == "board://today is empty."
