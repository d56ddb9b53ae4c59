"""The channel: messages that a hook sends, and the properties of its request."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from genmcp import Channel, Continue, Endpoint, Limits, Mux, Suite, Tool, tool
from genmcp import Client as InProcess
from genmcp._mux.threads import ThreadPool
from genmcp.channel import SendStatus
from genmcp.core.request import ToolRequest
from genmcp.protocol.params import SEVERITY, NotificationParams
from genmcp.testing import connect
from tests.support.asgi import Client
from tests.support.channels import channel_of
from tests.support.speaking import VERSIONS, answer_of, speak

PATIENCE = 5
LEGACY = VERSIONS[:-1]


def suite(*tools: Any) -> Suite:
    return Suite(name="test", version="1", tools=tools)


def doing(hook: Callable[[Channel], Awaitable[Any]]) -> Suite:
    """Return a suite with one tool, `do`, which returns the result of `hook(channel)`."""

    class Do(Tool):
        name = "do"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return {"value": await hook(channel)}

    return suite(Do)


def value(answer: Any) -> Any:
    return answer.result.get("structuredContent", {}).get("value")


async def test_channel_progress_is_sent_under_the_clients_token() -> None:
    """Each report is a notification before the response, with total and message if given."""

    async def work(channel: Channel) -> Any:
        return [await channel.progress(1), await channel.progress(2.5, 3, "nearly")]

    async with speak(doing(work)) as client:
        answer = await client.call("do", progressToken="t")

    assert value(answer) == ["sent", "sent"]
    assert [each["params"] for each in answer.notifications] == [
        {"progressToken": "t", "progress": 1},
        {"progressToken": "t", "progress": 2.5, "total": 3, "message": "nearly"},
    ]


async def test_channel_progress_needs_a_token() -> None:
    """A client that requested no progress gets one JSON response."""

    async def work(channel: Channel) -> Any:
        return await channel.progress(1)

    async with speak(doing(work)) as client:
        answer = await client.call("do")

    assert (value(answer), answer.notifications) == ("unwanted", [])


@pytest.mark.parametrize("second", [1, 0.5, -1, float("nan"), float("inf")])
async def test_channel_progress_increases(second: float) -> None:
    """2026-07-28, progress: the value MUST increase; other values are not sent."""

    async def work(channel: Channel) -> Any:
        return [await channel.progress(1), await channel.progress(second)]

    async with connect(doing(work)) as client:
        result = await client.call("do")

    assert result.structured_content == {"value": ["sent", "not increasing"]}
    assert [each.progress for each in client.progress] == [1]


async def test_channel_drops_messages_after_the_response() -> None:
    """Once the response is sent, the channel is closed: further messages are dropped."""
    kept: list[Channel] = []

    async def work(channel: Channel) -> Any:
        kept.append(channel)
        return repr(channel)

    async with connect(doing(work)) as client:
        result = await client.call("do")
        (channel,) = kept

        assert channel.closed
        late = [
            await channel.progress(1),
            await channel.log("error", "late"),
            await channel.notify("notifications/x", NotificationParams()),
        ]
        assert late == [SendStatus.CLOSED] * 3  # so that a loop that reports can end itself
        assert not any(late)
        channel.start_stream()
        channel.release()

    assert client.notifications == []
    assert result.structured_content == {"value": "<Channel tools/call 3, open>"}
    assert repr(channel) == "<Channel tools/call 3, closed>"


@pytest.mark.parametrize("requested", [None, "debug", "warning", "emergency"])
async def test_channel_logs_from_the_level_of_the_request(requested: Any) -> None:
    """2026-07-28, logging: each request sets a level; without one nothing is sent."""

    async def work(channel: Channel) -> Any:
        return [level for level in SEVERITY if await channel.log(level, {"l": level}, "mine")]

    async with speak(doing(work)) as client:
        meta = {} if requested is None else {"io.modelcontextprotocol/logLevel": requested}
        answer = await client.call("do", **meta)

    levels = list(SEVERITY)
    expected = [] if requested is None else levels[levels.index(requested) :]
    assert expected == value(answer)
    assert [{"level": level, "data": {"l": level}, "logger": "mine"} for level in expected] == [
        each["params"] for each in answer.notifications
    ]


@pytest.mark.parametrize("version", LEGACY)
async def test_channel_logs_from_the_level_of_the_session(version: str) -> None:
    """Before 2026-07-28 the session sets the level; the default is info."""

    async def work(channel: Channel) -> Any:
        return [level for level in ("debug", "info", "error") if await channel.log(level, "x")]

    async with speak(doing(work), version) as client:
        before = await client.call("do")
        await client.request("logging/setLevel", {"level": "error"})
        after = await client.call("do")

    assert [each["params"]["level"] for each in before.notifications] == ["info", "error"]
    assert [each["params"]["level"] for each in after.notifications] == ["error"]


async def test_channel_rejects_an_unknown_level() -> None:
    """An unknown level is a programming error in the hook."""

    async def work(channel: Channel) -> Any:
        with pytest.raises(ValueError, match="unknown log level 'loud': one of debug, info"):
            await channel.log("loud", "x")  # type: ignore[arg-type]

    async with connect(doing(work)) as client:
        assert not (await client.call("do")).is_error


async def test_channel_starts_a_stream_on_demand() -> None:
    """The response is then an event stream, even without earlier messages."""

    async def work(channel: Channel) -> Any:
        channel.start_stream()
        channel.start_stream()

    client = Client(Endpoint(doing(work)))
    response = await client.send(client.call("do"))

    assert response.is_stream
    assert value(answer_of(response)) is None


async def test_channel_release_does_nothing_without_resumption() -> None:
    """2026-07-28 cannot resume streams: the connection stays open for the response."""

    async def work(channel: Channel) -> Any:
        channel.release()
        return "here"

    async with speak(doing(work)) as client:
        assert value(await client.call("do")) == "here"


async def test_channel_release_closes_the_connection_not_the_call() -> None:
    """2025-11-25, polling: the stream ends with a `retry` time, and the response is kept."""
    released, proceed = asyncio.Event(), asyncio.Event()

    async def work(channel: Channel) -> Any:
        channel.release(250)
        released.set()
        await proceed.wait()
        return "later"

    client = await Client.begin(Endpoint(doing(work)), "2025-11-25")
    async with client.open(client.call("do")) as first:
        await released.wait()
        proceed.set()
        await first.over()
    async with client.listen(after=first.ids[-1]) as resumed:
        await resumed.over()

    assert b"retry: 250" in first.body
    assert b"later" not in first.body
    assert b"later" in resumed.body


# The caller.


async def test_channel_has_client_info_and_principal() -> None:
    """`client_info` is as the client claims; the principal is set by the host."""

    async def work(channel: Channel) -> Any:
        return [channel.client.revision, channel.principal, channel.request.method]

    endpoint = Endpoint(doing(work), principal=lambda scope: "ann")
    async with speak(endpoint, "2025-06-18") as client:
        answer = await client.call("do")

    assert value(answer) == ["2025-06-18", "ann", "tools/call"]


# Assigns.


async def assigns(
    state: Mapping[str, Any], static: Mapping[str, Any], copied: list[str]
) -> dict[str, Any]:
    """Return the assigns that a hook sees."""

    async def work(channel: Channel) -> Any:
        return dict(channel.assigns)

    endpoint = Endpoint(Mux(doing(work), assigns=static), copy_assigns=copied)
    async with connect(endpoint, state=state) as client:
        found: dict[str, Any] = (await client.call("do")).structured_content["value"]
    await endpoint.aclose()
    return found


@pytest.mark.parametrize(
    ("state", "static", "copied", "expected"),
    [
        ({}, {}, [], {}),
        ({"user": "ann"}, {}, [], {}),
        ({"user": "ann", "other": 1}, {}, ["user"], {"user": "ann"}),
        ({}, {"db": 1}, ["user"], {"db": 1}),
        ({"user": "ann"}, {"user": "nobody", "db": 1}, ["user"], {"user": "ann", "db": 1}),
        ({"user": None}, {"user": "nobody"}, ["user"], {"user": None}),
        ({}, {"user": "nobody"}, ["user"], {"user": "nobody"}),
    ],
)
async def test_channel_assigns_are_copied_over_static_ones(
    state: dict[str, Any], static: dict[str, Any], copied: list[str], expected: dict[str, Any]
) -> None:
    """Only the listed keys are copied. A value of None is copied; an absent key is not."""
    assert expected == await assigns(state, static, copied)


async def test_channel_own_assigns_take_precedence_in_one_request() -> None:
    """A value set by a hook hides the original, and only for this request."""
    state, static = {"user": "ann"}, {"db": 1}

    async def work(channel: Channel) -> Any:
        before = dict(channel.assigns)
        channel.assigns["user"] = "bob"
        channel.assigns["db"] = 2
        channel.assigns["new"] = 3
        return [before, dict(channel.assigns)]

    mux = Mux(doing(work), assigns=static)
    async with connect(Endpoint(mux, copy_assigns=["user"]), state=state) as client:
        values = [(await client.call("do")).structured_content["value"] for _ in range(2)]
    await mux.aclose()

    assert values == [[{"user": "ann", "db": 1}, {"user": "bob", "db": 2, "new": 3}]] * 2
    assert (state, static) == ({"user": "ann"}, {"db": 1})


async def test_channel_assigns_are_copied_by_the_mux() -> None:
    """The mux copies the mapping: changing it later has no effect."""
    static = {"db": 1}

    async def work(channel: Channel) -> Any:
        return dict(channel.assigns)

    mux = Mux(doing(work), assigns=static)
    static["db"] = 2
    async with connect(mux) as client:
        assert (await client.call("do")).structured_content["value"] == {"db": 1}
    await mux.aclose()


async def test_channel_assigns_do_not_change_during_a_request() -> None:
    """If `mux.assigns` changes during a request, the hook still sees the earlier values."""

    async def work(channel: Channel) -> Any:
        before = dict(channel.assigns)
        mux.assigns["db"] = 2
        return [before, dict(channel.assigns)]

    mux = Mux(doing(work), assigns={"db": 1})
    async with connect(mux) as client:
        assert (await client.call("do")).structured_content["value"] == [{"db": 1}, {"db": 1}]
    await mux.aclose()


async def test_channel_only_own_assigns_can_be_deleted() -> None:
    """Deleting an own assign restores the one it hid; a copied one cannot be deleted."""

    async def work(channel: Channel) -> Any:
        channel.assigns["user"] = "bob"
        del channel.assigns["user"]
        with pytest.raises(KeyError):
            del channel.assigns["user"]
        return channel.assigns["user"]

    endpoint = Endpoint(doing(work), copy_assigns=["user"])
    async with connect(endpoint, state={"user": "ann"}) as client:
        assert (await client.call("do")).structured_content["value"] == "ann"


# Threads.


async def test_channel_in_loop_runs_a_coroutine_for_a_thread() -> None:
    """A `def` hook reports progress through the event loop, and gets the return value."""

    @tool
    def work(steps: int, channel: Channel) -> dict[str, Any]:
        return {
            "sent": [channel.in_loop(channel.progress(n, steps)) for n in (1, 1, 2)],
            "logged": channel.in_loop(channel.log("info", "x")),
        }

    async with connect(suite(work)) as client:
        result = await client.call("work", {"steps": 2})

    assert result.structured_content == {
        "sent": ["sent", "not increasing", "sent"],
        "logged": "sent",
    }
    assert [each.progress for each in client.progress] == [1, 2]


async def test_channel_in_loop_is_for_threads() -> None:
    """Called on the event loop it would wait for itself, so it raises an error."""

    async def work(channel: Channel) -> Any:
        with pytest.raises(RuntimeError, match="await it instead"):
            channel.in_loop(channel.progress(1))
        await channel.in_thread(int)
        with pytest.raises(RuntimeError, match="await it instead"):
            channel.in_loop(channel.progress(1))

    async with connect(doing(work)) as client:
        assert not (await client.call("do")).is_error
    assert client.notifications == []


def test_channel_in_loop_fails_once_the_loop_is_closed() -> None:
    """A thread that still runs after the server has stopped gets an error."""

    channel = channel_of()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(channel.in_thread(int))
    closing = threading.Timer(0.6, loop.close)
    closing.start()

    with pytest.raises(RuntimeError, match="event loop has ended"):
        channel.in_loop(asyncio.sleep(0))
    closing.join(PATIENCE)


async def test_channel_in_loop_raises_the_error_in_the_thread() -> None:
    """An exception of the coroutine is raised in the thread."""

    @tool
    def work(channel: Channel) -> str:
        with pytest.raises(ValueError, match="unknown log level"):
            channel.in_loop(channel.log("loud", "x"))  # type: ignore[arg-type]
        return "told"

    async with connect(suite(work)) as client:
        assert not (await client.call("work")).is_error


async def test_channel_threads_are_bounded() -> None:
    """At most `Limits.max_threads` hooks run at once; further ones wait for a thread."""
    running, proceed = threading.Semaphore(0), threading.Event()
    most, now = [0], [0]
    lock = threading.Lock()

    @tool
    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        running.release()
        proceed.wait(PATIENCE)
        with lock:
            now[0] -= 1

    mux = Mux(suite(work), limits=Limits(max_threads=2))
    # In the process itself, so that no client has a share of the threads only.
    async with InProcess(mux) as client, asyncio.timeout(PATIENCE):
        calls = [asyncio.create_task(client.call("work")) for _ in range(4)]
        await asyncio.to_thread(lambda: running.acquire() and running.acquire())
        proceed.set()
        results = await asyncio.gather(*calls)
    await mux.aclose()

    assert most[0] == 2
    assert len(results) == 4


async def test_channel_thread_of_a_cancelled_call_is_dropped() -> None:
    """The thread runs to its end, but its messages and result are dropped. The server continues."""
    started, ended = threading.Event(), threading.Event()
    sent: list[SendStatus] = []

    @tool
    def work(channel: Channel) -> str:
        started.set()
        while not channel.closed:  # returns once the server has noticed the disconnect
            ended.wait(0.001)
        sent.append(channel.in_loop(channel.progress(1)))
        ended.set()
        return "nobody reads this"

    @tool
    async def other() -> str:
        return "fine"

    async with connect(suite(work, other)) as client, asyncio.timeout(PATIENCE):
        call = asyncio.create_task(client.call("work"))
        await asyncio.to_thread(started.wait)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.to_thread(ended.wait, PATIENCE)
        after = await client.call("other")

    assert call.cancelled()
    assert sent == [SendStatus.CLOSED]
    assert after.content[0].text == "fine"  # type: ignore[union-attr]
    assert client.notifications == []


async def test_channel_thread_has_the_context_of_its_request() -> None:
    """Context variables of the request are copied into the thread."""
    user: ContextVar[str] = ContextVar("user")

    async def work(channel: Channel) -> Any:
        user.set("ann")
        return await channel.in_thread(lambda word: f"{word} {user.get()}", "hello")

    async with connect(doing(work)) as client:
        assert (await client.call("do")).structured_content == {"value": "hello ann"}


@pytest.mark.parametrize("gives", ["Continue", "coroutine", "nothing", "error"])
@pytest.mark.filterwarnings("error")
async def test_channel_closes_a_coroutine_that_comes_too_late(gives: str) -> None:
    """After a cancellation, a coroutine that the thread passes is closed without a warning."""
    started, go, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None: ...

    made = work()

    def blocks() -> Any:
        loop.call_soon_threadsafe(started.set)
        go.wait(PATIENCE)
        if gives == "error":
            raise ValueError("no")
        return {"Continue": Continue("worked", made), "coroutine": made}.get(gives)

    threads = ThreadPool(1, 1)
    running = asyncio.create_task(threads.run(blocks))
    await asyncio.wait_for(started.wait(), PATIENCE)
    running.cancel()
    await asyncio.wait([running])
    go.set()
    await asyncio.wait_for(threads.run(ended.set), PATIENCE)  # there is only one thread
    threads.close()

    assert running.cancelled()
    closed = inspect.getcoroutinestate(made) == inspect.CORO_CLOSED
    made.close()
    assert closed is (gives in ("Continue", "coroutine"))


def test_channel_has_only_members_for_hooks() -> None:
    """An editor suggests them; of the mux and the transports there is one, `context`."""
    offered = {name for name in dir(Channel) if not name.startswith("_")}
    messages = {"progress", "log", "log_level", "notify", "start_stream", "release", "changes"}
    facts = {"request", "client", "access", "principal", "closed", "assigns", "task", "run_id"}

    assert offered == messages | facts | {"in_loop", "in_thread", "context"}
