"""The channel: messages of a hook, and the properties of its request."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import httpx
import pytest

from genmcp import Channel, Continue, Endpoint, Limits, Mux, SendStatus, Suite, Tool, tool
from genmcp._core.request import ToolRequest
from genmcp._mux.threads import ThreadPool
from genmcp.protocol.params import SEVERITY, NotificationParams
from genmcp.testing import connect
from tests.support.speaking import VERSIONS, speak

PATIENCE = 5
LEGACY = VERSIONS[:-1]


def suite(*tools: Any) -> Suite:
    return Suite(name="test", version="1", tools=tools)


def doing(hook: Callable[[Channel], Awaitable[Any]]) -> Suite:
    """A suite of one tool, `do`, which calls this with its channel and returns the result."""

    class Do(Tool):
        name = "do"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return {"value": await hook(channel)}

    return suite(Do)


def value(answer: Any) -> Any:
    return answer.result.get("structuredContent", {}).get("value")


async def test_channel_progress_is_sent_under_the_clients_token() -> None:
    """Each report is a notification before the answer, with total and message if given."""

    async def work(channel: Channel) -> Any:
        return [await channel.progress(1), await channel.progress(2.5, 3, "nearly")]

    async with speak(doing(work)) as client:
        answer = await client.call("do", progressToken="t")

    assert value(answer) == ["sent", "sent"]
    assert [said["params"] for said in answer.notifications] == [
        {"progressToken": "t", "progress": 1},
        {"progressToken": "t", "progress": 2.5, "total": 3, "message": "nearly"},
    ]


async def test_channel_progress_needs_a_token() -> None:
    """A client that did not ask for progress gets a plain answer."""

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
    assert [said.progress for said in client.progress] == [1]


async def test_channel_says_nothing_after_the_answer() -> None:
    """A channel that outlived its request is closed, and every word to it is dropped."""
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
        assert late == [SendStatus.CLOSED] * 3  # a loop that reports may end itself
        assert not any(late)
        channel.start_stream()
        channel.release()

    assert client.notifications == []
    assert result.structured_content == {"value": "<Channel tools/call 3, open>"}
    assert repr(channel) == "<Channel tools/call 3, closed>"


@pytest.mark.parametrize("asked", [None, "debug", "warning", "emergency"])
async def test_channel_logs_from_the_level_the_request_asks_for(asked: Any) -> None:
    """2026-07-28, logging: per request, and none unless it asks."""

    async def work(channel: Channel) -> Any:
        return [level for level in SEVERITY if await channel.log(level, {"l": level}, "mine")]

    async with speak(doing(work)) as client:
        meta = {} if asked is None else {"io.modelcontextprotocol/logLevel": asked}
        answer = await client.call("do", **meta)

    levels = list(SEVERITY)
    expected = [] if asked is None else levels[levels.index(asked) :]
    assert expected == value(answer)
    assert [{"level": level, "data": {"l": level}, "logger": "mine"} for level in expected] == [
        said["params"] for said in answer.notifications
    ]


@pytest.mark.parametrize("version", LEGACY)
async def test_channel_logs_from_the_level_the_session_has_set(version: str) -> None:
    """Before 2026-07-28 the level is the session's: info until it sets one."""

    async def work(channel: Channel) -> Any:
        return [level for level in ("debug", "info", "error") if await channel.log(level, "x")]

    async with speak(doing(work), version) as client:
        before = await client.call("do")
        await client.request("logging/setLevel", {"level": "error"})
        after = await client.call("do")

    assert [said["params"]["level"] for said in before.notifications] == ["info", "error"]
    assert [said["params"]["level"] for said in after.notifications] == ["error"]


async def test_channel_knows_the_levels() -> None:
    """A level that does not exist is a mistake of the hook's."""

    async def work(channel: Channel) -> Any:
        with pytest.raises(ValueError, match="unknown log level 'loud': one of debug, info"):
            await channel.log("loud", "x")  # type: ignore[arg-type]

    async with connect(doing(work)) as client:
        assert not (await client.call("do")).is_error


async def test_channel_starts_a_stream_on_demand() -> None:
    """The result is then an event, even without earlier messages."""

    async def work(channel: Channel) -> Any:
        channel.start_stream()
        channel.start_stream()

    async with speak(doing(work)) as client:
        types: list[str] = []

        async def remember(response: httpx.Response) -> None:
            types.append(response.headers["content-type"])

        client.http.event_hooks = {"response": [remember]}
        answer = await client.call("do")

    assert (types, value(answer)) == (["text/event-stream"], None)


async def test_channel_release_does_nothing_without_resumption() -> None:
    """2026-07-28 has no resumption: the connection stays, and the answer comes on it."""

    async def work(channel: Channel) -> Any:
        channel.release()
        return "here"

    async with speak(doing(work)) as client:
        assert value(await client.call("do")) == "here"


async def test_channel_release_closes_the_connection_not_the_call() -> None:
    """2025-11-25, polling: the stream ends with when to come back; the answer waits there."""
    released, go_on = asyncio.Event(), asyncio.Event()

    async def work(channel: Channel) -> Any:
        channel.release(250)
        released.set()
        await go_on.wait()
        return "later"

    async with speak(doing(work), "2025-11-25") as client, asyncio.timeout(PATIENCE):
        headers = {"accept": "application/json, text/event-stream", **client.session}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "do"}}
        response = asyncio.create_task(client.http.post("/", json=body, headers=headers))
        await released.wait()
        go_on.set()
        begun = (await response).text
        last = begun.partition("id: ")[2].partition("\n")[0]
        resumed = await client.http.get("/", headers={**headers, "last-event-id": last})

    assert "retry: 250" in begun
    assert "later" not in begun
    assert "later" in resumed.text


# Who asks.


async def test_channel_tells_who_asks() -> None:
    """The client by its own account, the principal by the host's."""

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
    """The assigns that a hook sees."""

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
    """Only listed keys are copied; one with the value None is, an absent one is not."""
    assert expected == await assigns(state, static, copied)


async def test_channel_assigns_of_its_own_win_and_go_nowhere() -> None:
    """A value set by a hook hides the original, for this request only."""
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


async def test_channel_assigns_are_those_of_when_they_were_given() -> None:
    """Changing the mapping a mux was given afterwards changes nothing."""
    static = {"db": 1}

    async def work(channel: Channel) -> Any:
        return dict(channel.assigns)

    mux = Mux(doing(work), assigns=static)
    static["db"] = 2
    async with connect(mux) as client:
        assert (await client.call("do")).structured_content["value"] == {"db": 1}
    await mux.aclose()


async def test_channel_assigns_do_not_change_under_a_hook() -> None:
    """A value that a hook has read stays the same, whatever happens to the mux meanwhile."""

    async def work(channel: Channel) -> Any:
        before = dict(channel.assigns)
        mux.assigns["db"] = 2
        return [before, dict(channel.assigns)]

    mux = Mux(doing(work), assigns={"db": 1})
    async with connect(mux) as client:
        assert (await client.call("do")).structured_content["value"] == [{"db": 1}, {"db": 1}]
    await mux.aclose()


async def test_channel_assigns_can_only_be_deleted_where_they_were_set() -> None:
    """Deleting an own assign uncovers the one that it hid; a copied one stays."""

    async def work(channel: Channel) -> Any:
        channel.assigns["user"] = "bob"
        del channel.assigns["user"]
        with pytest.raises(KeyError):
            del channel.assigns["user"]
        return channel.assigns["user"]

    endpoint = Endpoint(doing(work), copy_assigns=["user"])
    async with connect(endpoint, state={"user": "ann"}) as client:
        assert (await client.call("do")).structured_content["value"] == "ann"


# ThreadPool.


async def test_channel_in_loop_lets_a_thread_speak() -> None:
    """A `def` hook reports through the loop, and gets the answer."""

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
    assert [said.progress for said in client.progress] == [1, 2]


async def test_channel_in_loop_is_for_threads() -> None:
    """On the event loop it raises instead of waiting for itself."""

    async def work(channel: Channel) -> Any:
        with pytest.raises(RuntimeError, match="await it instead"):
            channel.in_loop(channel.progress(1))
        await channel.in_thread(int)
        with pytest.raises(RuntimeError, match="await it instead"):
            channel.in_loop(channel.progress(1))

    async with connect(doing(work)) as client:
        assert not (await client.call("do")).is_error
    assert client.notifications == []


def test_channel_in_loop_does_not_outwait_its_loop() -> None:
    """A thread that still runs when the server has ended gets an error."""

    class Sink:
        closed = False

        async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
            return function(*arguments)

    channel = Channel(None, Sink())  # type: ignore[type-var, arg-type]
    loop = asyncio.new_event_loop()
    loop.run_until_complete(channel.in_thread(int))
    closing = threading.Timer(0.6, loop.close)
    closing.start()

    with pytest.raises(RuntimeError, match="event loop has ended"):
        channel.in_loop(asyncio.sleep(0))
    closing.join(PATIENCE)


async def test_channel_in_loop_passes_on_what_went_wrong() -> None:
    """An exception in the loop is raised in the thread."""

    @tool
    def work(channel: Channel) -> str:
        with pytest.raises(ValueError, match="unknown log level"):
            channel.in_loop(channel.log("loud", "x"))  # type: ignore[arg-type]
        return "told"

    async with connect(suite(work)) as client:
        assert not (await client.call("work")).is_error


async def test_channel_threads_are_bounded() -> None:
    """At most `Limits.max_threads` hooks run at once; the next one waits for a thread."""
    running, go_on = threading.Semaphore(0), threading.Event()
    most, now = [0], [0]
    lock = threading.Lock()

    @tool
    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        running.release()
        go_on.wait(PATIENCE)
        with lock:
            now[0] -= 1

    mux = Mux(suite(work), limits=Limits(max_threads=2))
    async with connect(mux) as client, asyncio.timeout(PATIENCE):
        calls = [asyncio.create_task(client.call("work")) for _ in range(4)]
        await asyncio.to_thread(lambda: running.acquire() and running.acquire())
        go_on.set()
        results = await asyncio.gather(*calls)
    await mux.aclose()

    assert most[0] == 2
    assert len(results) == 4


async def test_channel_thread_of_a_cancelled_call_is_dropped() -> None:
    """The thread runs to its end, its messages and its result are dropped, the server continues."""
    begun, ended = threading.Event(), threading.Event()
    sent: list[SendStatus] = []

    @tool
    def work(channel: Channel) -> str:
        begun.set()
        while not channel.closed:  # until the server has noticed the disconnect
            ended.wait(0.001)
        sent.append(channel.in_loop(channel.progress(1)))
        ended.set()
        return "nobody reads this"

    @tool
    async def other() -> str:
        return "fine"

    async with connect(suite(work, other)) as client, asyncio.timeout(PATIENCE):
        call = asyncio.create_task(client.call("work"))
        await asyncio.to_thread(begun.wait)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.to_thread(ended.wait, PATIENCE)
        after = await client.call("other")

    assert call.cancelled()
    assert sent == [SendStatus.CLOSED]
    assert after.content[0].text == "fine"  # type: ignore[union-attr]
    assert client.notifications == []


async def test_channel_thread_has_the_context_of_its_request() -> None:
    """A thread sees the context variables its hook sees."""
    user: ContextVar[str] = ContextVar("user")

    async def work(channel: Channel) -> Any:
        user.set("ann")
        return await channel.in_thread(lambda word: f"{word} {user.get()}", "hello")

    async with connect(doing(work)) as client:
        assert (await client.call("do")).structured_content == {"value": "hello ann"}


@pytest.mark.parametrize("gives", ["Continue", "coroutine", "nothing", "error"])
@pytest.mark.filterwarnings("error")
async def test_channel_lets_go_of_what_a_thread_gives_too_late(gives: str) -> None:
    """The call was cancelled meanwhile: a coroutine that is never awaited is closed silently."""
    begun, go, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None: ...

    made = work()

    def blocks() -> Any:
        loop.call_soon_threadsafe(begun.set)
        go.wait(PATIENCE)
        if gives == "error":
            raise ValueError("no")
        return {"Continue": Continue("worked", made), "coroutine": made}.get(gives)

    threads = ThreadPool(1, 1)
    running = asyncio.create_task(threads.run(blocks))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    running.cancel()
    await asyncio.wait([running])
    go.set()
    await asyncio.wait_for(threads.run(ended.set), PATIENCE)  # there is one thread only
    threads.close()

    assert running.cancelled()
    closed = inspect.getcoroutinestate(made) == inspect.CORO_CLOSED
    made.close()
    assert closed is (gives in ("Continue", "coroutine"))


def test_channel_completes_to_what_hooks_use() -> None:
    """An editor offers no member that belongs to the mux or to the transport."""
    offered = {name for name in dir(Channel) if not name.startswith("_")}
    messages = {"progress", "log", "log_level", "notify", "start_stream", "release", "changes"}
    facts = {"request", "client", "access", "principal", "closed", "assigns", "task", "run_id"}

    assert offered == messages | facts | {"in_loop", "in_thread"}
