"""A suite that changes while it is served."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from genmcp import Access, Channel, ConfigurationError, Provider, Resource, Suite, prompt, tool
from genmcp.channel import Listener
from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange, updated
from genmcp.resources import ResourceRepo
from genmcp.testing import connect


class Recorder(Listener):
    """Stores its argument."""

    def __init__(self, suite: Suite) -> None:
        self.changes: list[ServerChange] = []
        suite.changes.follow(self)

    def announce(self, change: ServerChange) -> None:
        self.changes.append(change)


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@prompt
def review(code: str) -> str:
    """Reviews."""
    return code


NOTE = Resource("note://today", content="Rain.")


class Notes(ResourceRepo):
    """Has every note."""

    prefix = "note://"

    async def read(self, key: str, channel: Channel) -> str:
        return "Wind."


class Guests(Provider):
    """Has a tool for everybody."""

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
        return [add]


def empty() -> Suite:
    return Suite(name="test", version="1")


@pytest.mark.parametrize(
    ("component", "name", "change"),
    [(add, "add", TOOLS), (review, "review", PROMPTS), (NOTE, "note://today", RESOURCES)],
)
@pytest.mark.parametrize("by_name", [False, True])
async def test_components_are_added_and_removed(
    component: object, name: str, change: ServerChange, by_name: bool
) -> None:
    """Additions are listed and announced, and so are removals, by object or by name."""
    suite = empty()
    recorder = Recorder(suite)

    suite.add(component)
    async with connect(suite) as client:
        listed: list[Any] = [*await client.tools()]
        if change is PROMPTS:
            listed = [*await client.prompts()]
        elif change is RESOURCES:
            listed = [*await client.resources()]
    suite.remove(name if by_name else component)

    assert [name] == [getattr(listed[0], "uri", listed[0].name)]
    assert [change, change] == recorder.changes
    assert empty().methods == suite.methods


async def test_providers_are_added_and_removed() -> None:
    """An extension may be added, as a class or an instance; the lists it may have are announced."""
    suite = empty()
    recorder = Recorder(suite)
    guests = Guests()

    suite.add(guests)
    async with connect(suite) as client:
        assert (await client.call("add", {"a": 2, "b": 3})).content[0].text == "5"  # type: ignore[union-attr]
    suite.remove(guests)
    suite.add(Guests)
    suite.remove(Guests)

    assert recorder.changes == [TOOLS] * 4
    assert suite.find("tools/call", "add") is None


async def test_call_continues_when_its_tool_is_removed() -> None:
    """A call that runs is not touched."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Waits."""
        begun.set()
        await go.wait()
        return "done"

    suite = Suite(name="test", version="1", tools=[slow])
    async with connect(suite) as client:
        call = asyncio.create_task(client.call("slow"))
        await asyncio.wait_for(begun.wait(), 5)
        suite.remove("slow")
        go.set()
        assert (await call).content[0].text == "done"  # type: ignore[union-attr]
        assert await client.tools() == []


def test_suite_adds_and_removes_all_or_none() -> None:
    """One wrong component changes nothing, and is named."""
    suite = Suite(name="test", version="1", tools=[add])
    recorder = Recorder(suite)

    with pytest.raises(ConfigurationError, match="two tools are called 'add'"):
        suite.add(review, add)
    with pytest.raises(ConfigurationError, match="5 is no tool, resource, prompt or provider"):
        suite.add(review, 5)
    with pytest.raises(ConfigurationError, match="'x' is not registered"):
        suite.remove("add", "x")

    assert recorder.changes == []
    assert suite.find("tools/call", "add") is not None
    assert suite.find("prompts/get", "review") is None


def test_function_under_two_decorators_is_two_components() -> None:
    """It is a tool and a prompt; both are added and removed."""
    suite = empty()

    @prompt
    @tool
    def both(text: str) -> str:
        """Is both."""
        return text

    suite.add(both)
    assert suite.find("tools/call", "both") and suite.find("prompts/get", "both")
    suite.remove("both")
    assert not suite.find("tools/call", "both") and not suite.find("prompts/get", "both")


def test_uri_is_found_while_one_of_its_two_owners_is_removed() -> None:
    """A lookup sees one snapshot of the components while another thread changes them."""
    notes = Notes()
    suite = Suite(name="test", version="1", resources=[notes, NOTE])

    class RemovesNotes(str):
        """A key whose first lookup removes the repository."""

        __slots__ = ()

        def __hash__(self) -> int:
            if suite.find("resources/read", "note://other") is not None:
                suite.remove(notes)
            return hash(str(self))

        __eq__ = str.__eq__

    assert suite.find("resources/read", RemovesNotes(NOTE.uri)) is not None
    assert suite.find("resources/read", "note://other") is None
    assert suite.find("resources/read", str(NOTE.uri)) is not None


async def test_suite_and_channel_announce_updates() -> None:
    """`resource_updated` may be called by the owner of the suite, and by a tool."""

    @tool
    def write(channel: Channel) -> str:
        """Writes."""
        channel.changes.resource_updated("note://b")
        return "written"

    suite = Suite(name="test", version="1", tools=[write])
    recorder = Recorder(suite)
    suite.resource_updated("note://a")
    async with connect(suite) as client:
        await client.call("write")

    assert [updated("note://a"), updated("note://b")] == recorder.changes


def test_updated_uri_must_be_text() -> None:
    """A value that is not text is rejected at once."""
    with pytest.raises(TypeError, match="takes a URI, not 5"):
        empty().resource_updated(5)  # type: ignore[arg-type]
