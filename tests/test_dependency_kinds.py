"""The kinds of dependencies, and how a call with dependencies fails or is cancelled."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache, partial
from typing import Annotated, Any

import pytest

from genmcp import Channel, ConfigurationError, Depends, Suite, tool
from genmcp.dependencies import with_context
from genmcp.testing import connect


class Scope:
    """A class as a dependency: the hook gets an instance."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel


class Opener:
    """An instance with `__call__` as a dependency; it can be configured."""

    def __init__(self, value: str, log: list[str]) -> None:
        self.value, self.log = value, log

    async def __call__(self, channel: Channel) -> AsyncIterator[str]:
        yield self.value
        self.log.append("closed")


@lru_cache
def cached_settings() -> str:
    return "settings"


async def test_dependency_is_anything_that_can_be_called() -> None:
    """Classes, instances, partials and cached functions, as with FastAPI."""
    log: list[str] = []
    opener = Opener("opened", log)

    @tool
    async def use(
        session: Annotated[Scope, Depends(Scope)],
        text: Annotated[str, Depends(opener)],
        again: Annotated[str, Depends(partial(Opener.__call__, opener))],
        read: Annotated[str, Depends(cached_settings)],
    ) -> str:
        assert isinstance(session.channel, Channel)
        return f"{text} {again} {read}"

    async with connect(Suite(name="test", version="1", tools=[use])) as client:
        assert (await client.call("use")).text == "opened opened settings"
    assert log == ["closed", "closed"]


def test_unusable_dependency_is_rejected_at_its_declaration() -> None:
    """At the declaration, not on the first call."""
    with pytest.raises(ConfigurationError, match="has no signature"):

        @tool
        async def use(value: Annotated[Any, Depends(dict)]) -> str:
            return ""


@pytest.mark.parametrize("in_loop", [True, False])
async def test_caught_exception_still_fails_the_call(in_loop: bool) -> None:
    """A generator that catches the exception cannot make the call succeed without a result."""
    log: list[str] = []

    def careless() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            log.append("caught")

    @tool
    async def in_the_loop(value: Annotated[int, Depends(careless)]) -> str:
        raise ValueError

    @tool
    def in_a_thread(value: Annotated[int, Depends(careless)]) -> str:
        raise ValueError

    used = in_the_loop if in_loop else in_a_thread
    async with connect(Suite(name="test", version="1", tools=[used])) as client:
        assert (await client.call(used.__name__)).is_error
    assert log == ["caught"]


@pytest.mark.parametrize("part", ["open", "close"])
async def test_cancelled_call_waits_for_its_thread(part: str) -> None:
    """A dependency is closed in its thread, and before the ones it depends on."""
    reached, proceed = threading.Event(), threading.Event()
    log: list[str] = []

    def hold(here: str) -> None:
        if here == part:
            reached.set()
            proceed.wait(10)

    def slow() -> Iterator[int]:
        hold("open")
        try:
            yield 1
        finally:
            hold("close")
            log.append("closed")

    async def use(value: Annotated[int, Depends(slow)]) -> None:
        log.append("used")

    call = asyncio.create_task(with_context(use, Channel)(None))
    await asyncio.to_thread(reached.wait)
    call.cancel()
    await asyncio.sleep(0)
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert log == (["closed"] if part == "open" else ["used", "closed"])
