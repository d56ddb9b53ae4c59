"""Flows that several requests share, and the runner of a flow."""

import asyncio
from collections.abc import Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp._core.auth.record import Record, RegisteredClient
from genmcp._core.auth.steps import Ask, Fetch, Fetched, FlowFailed, Load, Lock, Swap, Unlock
from genmcp.client.auth import MemoryTokens
from genmcp.client.auth.fetcher import Fetcher
from genmcp.client.auth.flows import SharedFlows
from genmcp.client.auth.runner import FlowRunner

RECORD = Record(
    issuer="https://as", token_endpoint="https://as/token", client=RegisteredClient(id="c")
)


async def test_equal_flows_run_once() -> None:
    """All that wait get the result, and a later one runs again."""
    shared, release = SharedFlows(), asyncio.Event()
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        await release.wait()
        return runs

    waiting = [asyncio.create_task(shared.run("a", work)) for _ in range(5)]
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert await shared.run("a", work) == 2


async def test_failure_of_a_shared_flow_reaches_all_that_wait() -> None:
    """Otherwise each of them would ask the user again."""
    shared, release = SharedFlows(), asyncio.Event()

    async def work() -> int:
        await release.wait()
        raise FlowFailed("denied")

    waiting = [asyncio.create_task(shared.run("a", work, asks=True)) for _ in range(3)]
    await asyncio.sleep(0)
    release.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(each) for each in found] == ["denied"] * 3


async def test_shared_flow_outlives_a_request_that_is_cancelled() -> None:
    """It is cancelled with the last one, and a later request begins another."""
    shared, release, ended = SharedFlows(), asyncio.Event(), 0

    async def work() -> str:
        nonlocal ended
        try:
            await release.wait()
        except asyncio.CancelledError:
            ended += 1
            raise
        return "done"

    first, second = (asyncio.create_task(shared.run("a", work, asks=True)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert ended == 0
    release.set()
    assert await second == "done"

    release.clear()
    alone = asyncio.create_task(shared.run("a", work, asks=True))
    for _ in range(3):
        await asyncio.sleep(0)
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    assert ended == 1
    release.set()
    assert await shared.run("a", work, asks=True) == "done"


async def test_one_flow_at_a_time_asks_the_user() -> None:
    """Two windows at once would confuse; a flow that does not ask waits for neither."""
    shared, release = SharedFlows(), asyncio.Event()
    asking: list[str] = []

    async def ask(name: str) -> str:
        asking.append(name)
        await release.wait()
        return name

    async def renew() -> str:
        return "renewed"

    logins = [
        asyncio.create_task(shared.run(name, lambda name=name: ask(name), asks=True))  # type: ignore[misc]
        for name in "ab"
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert asking == ["a"]
    assert await shared.run("c", renew) == "renewed"
    release.set()
    assert await asyncio.gather(*logins) == ["a", "b"]


class Recording(MemoryTokens):
    """Counts how often its lock is held."""

    held = 0

    @asynccontextmanager
    async def lock(self, key: str) -> Any:
        async with super().lock(key):
            self.held += 1
            try:
                yield
            finally:
                self.held -= 1


async def test_runner_performs_the_steps() -> None:
    """Each outcome is sent into the flow."""
    tokens = Recording()
    found: list[Any] = []

    def flow() -> Generator[Any, Any, str]:
        found.append((yield Load()))
        yield Lock()
        found.append(tokens.held)
        found.append((yield Swap(None, RECORD)))
        yield Unlock()
        found.append(tokens.held)
        found.append((yield Load()))
        fetched: Fetched = yield Fetch(url="http://127.0.0.1:1/")
        found.append(fetched.status)
        return "done"

    assert await FlowRunner("key", tokens, Fetcher()).run(flow()) == "done"
    assert found == [None, 1, True, 0, RECORD, 0]


async def test_runner_releases_the_lock_of_a_flow_that_fails() -> None:
    """Another process may wait for it."""
    tokens = Recording()

    def flow() -> Generator[Any, Any, None]:
        yield Lock()
        raise FlowFailed("refused")

    with pytest.raises(FlowFailed, match="refused"):
        await FlowRunner("key", tokens, Fetcher()).run(flow())
    assert tokens.held == 0


async def test_runner_raises_the_failure_of_a_step_in_the_flow() -> None:
    """The flow may handle it, as here, where nobody can be asked."""

    def flow() -> Generator[Any, Any, str]:
        try:
            yield Ask("https://as/authorize", "http://127.0.0.1/callback")
        except FlowFailed as failed:
            return str(failed)
        return ""

    found = await FlowRunner("key", MemoryTokens(), Fetcher()).run(flow())
    assert "cannot be asked" in found
