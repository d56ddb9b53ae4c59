"""Flows that several requests share, and the runner of a flow."""

import asyncio
from collections.abc import Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp.auth.fetcher import Fetcher
from genmcp.client.auth import MemoryTokens
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.auth.flows import FlowRunner, SharedFlows
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.steps import (
    Ask,
    Fetch,
    Fetched,
    FlowFailed,
    Listen,
    Load,
    Locked,
    Save,
)

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

    waiting = [asyncio.create_task(shared.run("a", work, queue="server")) for _ in range(3)]
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

    first, second = (asyncio.create_task(shared.run("a", work, queue="server")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert ended == 0
    release.set()
    assert await second == "done"

    release.clear()
    alone = asyncio.create_task(shared.run("a", work, queue="server"))
    for _ in range(3):
        await asyncio.sleep(0)
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    assert ended == 1
    release.set()
    assert await shared.run("a", work, queue="server") == "done"


async def test_flows_of_one_queue_run_one_after_the_other() -> None:
    """The second login at a server finds the tokens of the first; other servers do not wait."""
    shared, release = SharedFlows(), asyncio.Event()
    running: list[str] = []

    async def login(name: str) -> str:
        running.append(name)
        await release.wait()
        return name

    async def renew() -> str:
        return "renewed"

    logins = [
        asyncio.create_task(shared.run(name, lambda name=name: login(name), queue="server"))  # type: ignore[misc]
        for name in "ab"
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert running == ["a"]
    assert await shared.run("c", renew, queue="another server") == "renewed"
    assert await shared.run("d", renew) == "renewed"
    release.set()
    assert await asyncio.gather(*logins) == ["a", "b"]


async def test_one_prompt_at_a_time_asks_the_user() -> None:
    """Two windows at once would confuse."""
    shared, release = SharedFlows(), asyncio.Event()
    asked: list[str] = []

    async def browse(url: str) -> str:
        asked.append(url)
        await release.wait()
        return url

    async def log_in(url: str) -> str:
        prompt = UserPrompt(ask=browse, turn=shared.turn)
        try:
            return await prompt.ask(Ask(url, await prompt.listen(Listen())))
        finally:
            await prompt.close()

    logins = [asyncio.create_task(log_in(url)) for url in ("https://a", "https://b", "https://c")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked == ["https://a"]
    logins[1].cancel()
    release.set()
    found = await asyncio.gather(*logins, return_exceptions=True)
    assert [found[0], found[2]] == asked == ["https://a", "https://c"]


def test_timeouts_of_all_that_wait_are_paused() -> None:
    """They wait for this login, or for their turn; those in another event loop do not."""
    shared = SharedFlows()
    heard: dict[str, list[bool]] = {"first": [], "second": [], "other": [], "elsewhere": []}

    async def elsewhere() -> None:
        with shared.paused("server", heard["elsewhere"].append):
            await asyncio.to_thread(asyncio.run, here())

    async def here() -> None:
        with (
            shared.paused("server", heard["first"].append),
            shared.paused("other", heard["other"].append),
        ):
            with shared.asking("server"):
                assert heard["first"] == [True]
                with shared.paused("server", heard["second"].append):
                    assert heard["second"] == [True]
                assert heard["second"] == [True, False]
            assert heard["first"] == [True, False]

    asyncio.run(elsewhere())
    assert heard.pop("other") == heard.pop("elsewhere") == []
    assert heard == {"first": [True, False], "second": [True, False]}


async def test_timeouts_are_paused_until_other_logins_have_asked() -> None:
    """The user logs in at one server after the other, which takes minutes for each."""
    shared, heard = SharedFlows(), list[bool]()
    prompt = UserPrompt(turn=shared.turn, asking=lambda: shared.asking("second"))
    with shared.paused("second", heard.append):
        async with shared.turn():
            listening = asyncio.create_task(prompt.listen(Listen()))
            for _ in range(3):
                await asyncio.sleep(0)
            assert heard == [True]
        await listening
        assert heard == [True, False]
    await prompt.close()


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

    def storing() -> Generator[Any, Any, str]:
        found.append(tokens.held)
        yield Save(RECORD)
        return "stored"

    def flow() -> Generator[Any, Any, str]:
        found.append((yield Load()))
        found.append((yield Locked(storing())))
        found.append(tokens.held)
        found.append((yield Load()))
        fetched: Fetched = yield Fetch(url="http://127.0.0.1:1/")
        found.append(fetched.status)
        return "done"

    assert await FlowRunner("key", tokens, Fetcher()).run(flow()) == "done"
    assert found == [None, 1, "stored", 0, RECORD, 0]


async def test_runner_releases_the_lock_of_a_flow_that_fails() -> None:
    """Another process may wait for it."""
    tokens = Recording()

    def refused() -> Generator[Any, Any, None]:
        yield Load()
        raise FlowFailed("refused")

    def flow() -> Generator[Any, Any, None]:
        yield Locked(refused())

    with pytest.raises(FlowFailed, match="refused"):
        await FlowRunner("key", tokens, Fetcher()).run(flow())
    assert tokens.held == 0


async def test_runner_raises_the_failure_of_a_step_in_the_flow() -> None:
    """The flow may handle it, as here, where there is no user."""

    def flow() -> Generator[Any, Any, str]:
        try:
            yield Ask("https://as/authorize", "http://127.0.0.1/callback")
        except FlowFailed as failed:
            return str(failed)
        return ""

    found = await FlowRunner("key", MemoryTokens(), Fetcher()).run(flow())
    assert "cannot be asked" in found


async def test_timeout_of_a_storage_is_raised_as_it_is() -> None:
    """It is not that of the steps under the lock."""

    class Remote(MemoryTokens):
        async def load(self, key: str) -> Record | None:
            raise TimeoutError("the keyring does not answer")

    def stored() -> Generator[Any, Any, None]:
        yield Load()

    def flow() -> Generator[Any, Any, None]:
        yield Locked(stored())

    with pytest.raises(TimeoutError, match="keyring"):
        await FlowRunner("key", Remote(), Fetcher()).run(flow())


class SlowServer(Fetcher):
    """Answers when the test wants it. Not a mock: it only has no network."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.release = asyncio.Event(), asyncio.Event()

    async def fetch(self, step: Fetch) -> Fetched:
        self.asked.set()
        await self.release.wait()
        return Fetched(200, body=b"rotated")


async def test_renewal_that_is_cancelled_stores_its_tokens() -> None:
    """The server has replaced the refresh token: without the new one, a login is needed."""
    tokens, server = Recording(), SlowServer()
    after: list[str] = []

    def renewed() -> Generator[Any, Any, None]:
        yield Fetch(url="https://as/token")
        yield Save(RECORD)

    def renewal() -> Generator[Any, Any, None]:
        yield Locked(renewed())
        after.append((yield Load()))

    running = asyncio.create_task(FlowRunner("key", tokens, server).run(renewal()))
    await server.asked.wait()
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    server.release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await tokens.load("key"), tokens.held, after) == (RECORD, 0, [])


async def test_wait_for_the_lock_can_be_cancelled() -> None:
    """Another process may hold it for long."""
    tokens = Recording()

    def renewed() -> Generator[Any, Any, None]:
        yield Save(RECORD)

    def renewal() -> Generator[Any, Any, None]:
        yield Locked(renewed())

    async with tokens.lock("key"):
        running = asyncio.create_task(FlowRunner("key", tokens, Fetcher()).run(renewal()))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    async with tokens.lock("key"):
        assert tokens.held == 1
