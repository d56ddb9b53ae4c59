"""Calls that wait for an awaitable of this process: `Continue(tag, awaitable)`."""

import asyncio
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent import futures
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Done,
    Failed,
    McpError,
    Outcome,
    Tool,
    ToolError,
    ToolRequest,
    WaitCancelled,
    WorkerLost,
    WorkRaised,
    elicit,
)
from genmcp.errors import ContractError
from tests.support.asgi import ALL, Client, serving, until
from tests.support.asking import Waits, text_of

pytestmark = pytest.mark.slow


async def soon(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


class Awaitable:
    """An awaitable object of a third party."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        return soon(self.value).__await__()


def task(value: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(soon(value))


def future(value: Any) -> asyncio.Future[Any]:
    """Return a future that is completed in the next iteration of the event loop."""
    found = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(end, found, value)
    return found


def done(value: Any) -> asyncio.Future[Any]:
    """Return a future that is completed already."""
    found = asyncio.get_running_loop().create_future()
    end(found, value)
    return found


def threaded(value: Any) -> futures.Future[Any]:
    """Return a future that another thread completes."""
    found: futures.Future[Any] = futures.Future()
    threading.Thread(target=end, args=(found, value)).start()
    return found


def threaded_done(value: Any) -> futures.Future[Any]:
    found: futures.Future[Any] = futures.Future()
    end(found, value)
    return found


def end(found: Any, value: Any) -> None:
    if isinstance(value, BaseException):
        found.set_exception(value)
    else:
        found.set_result(value)


KINDS: list[Callable[[Any], Any]] = [
    soon,
    Awaitable,
    task,
    future,
    done,
    threaded,
    threaded_done,
]


async def called(waits: Waits, version: str = ALL[0]) -> str:
    """Return the text of a call of *waits*, whose response is one JSON body."""
    client = await Client.begin(serving(waits), version)
    answer = await client.send(client.call("wait"))
    assert not answer.is_stream
    return text_of(answer)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("kind", KINDS)
async def test_awaitable_of_any_kind_returns_its_value(kind: Any, version: str) -> None:
    """In every revision the response is one JSON body, even if the awaitable was already done."""
    waits = Waits(lambda arguments: kind({"at": 3}))

    assert str({"at": 3}) == await called(waits, version)
    assert waits.outcomes == [Done({"at": 3})]


@pytest.mark.parametrize("kind", KINDS)
async def test_awaitable_that_raises_hides_the_text(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a reference. The log has the exception, which is the cause of the error."""
    original = KeyError("secret")
    waits = Waits(lambda arguments: kind(original))

    text = await called(waits)

    (outcome,) = waits.outcomes
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WorkRaised)
    assert outcome.error.__cause__ is original
    assert (outcome.error.type_name, outcome.error.message) == ("KeyError", None)
    assert text == f"WorkRaised: it failed unexpectedly (reference {outcome.error.reference})"
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert outcome.error.reference in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is original


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ToolError("out of paper"), McpError("out of paper")])
async def test_awaitable_that_raises_a_tool_error_shows_the_text(
    kind: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The texts of ToolError and McpError are for the client."""
    waits = Waits(lambda arguments: kind(error))

    assert await called(waits) == "WorkRaised: out of paper"
    assert caplog.records == []


@pytest.mark.parametrize("kind", KINDS)
async def test_awaitable_that_times_out_has_its_own_error(kind: Any) -> None:
    """A TimeoutError has a text of its own, and no reference."""
    waits = Waits(lambda arguments: kind(TimeoutError()))

    assert await called(waits) == "WaitTimedOut: it took too long"


@pytest.mark.parametrize("kind", KINDS)
async def test_awaitable_may_raise_a_wait_error(kind: Any) -> None:
    """A WaitError is the outcome itself, e.g. of another wait inside of the awaitable."""
    waits = Waits(lambda arguments: kind(WorkerLost()))

    await called(waits)

    assert waits.outcomes == [Failed(WorkerLost())]


def cancelled_task() -> asyncio.Future[Any]:
    found = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(found.cancel)
    return found


def cancelled_future(make: Callable[[], Any]) -> Any:
    found = make()
    found.cancel()
    return found


async def cancels_itself() -> None:
    await cancelled_task()


@pytest.mark.parametrize(
    "factory",
    [
        cancelled_task,
        cancels_itself,
        lambda: cancelled_future(asyncio.Future),
        lambda: cancelled_future(futures.Future),
    ],
)
async def test_awaitable_that_is_cancelled_is_a_failure(factory: Any) -> None:
    """The call is not cancelled with its awaitable: it continues with the failure."""
    waits = Waits(lambda arguments: factory())

    assert await called(waits) == "WaitCancelled: it was cancelled"
    assert waits.outcomes == [Failed(WaitCancelled())]


async def test_task_without_references_completes() -> None:
    """asyncio holds only weak references to tasks: the call keeps the task alive."""
    go = asyncio.Event()
    waits = Waits(lambda arguments: asyncio.ensure_future(go.wait()))
    client = Client(serving(waits))
    async with client.open(client.call("wait")) as connection:
        await waits.started.acquire()
        gc.collect()
        go.set()
        await connection.over()

    assert text_of(connection) == "True"


@pytest.mark.parametrize("factory", [asyncio.Future, futures.Future])
async def test_two_calls_may_wait_for_one_future(factory: Any) -> None:
    """Both get its value; the end of one call does not end the wait of the other."""
    one = factory()
    waits = Waits(lambda arguments: one)
    client = Client(serving(waits))
    async with client.open(client.call("wait", id=1)) as first:
        async with client.open(client.call("wait", id=2)) as second:
            await waits.started.acquire()
            await waits.started.acquire()
            second.disconnect()
            await second.over()
        assert first.status == 0
        one.set_result("worked")
        await first.over()

    assert text_of(first) == "worked"
    assert waits.outcomes == [Done("worked")]


@pytest.mark.parametrize("factory", [asyncio.Future, futures.Future])
async def test_future_may_be_used_again_after_its_call(factory: Any) -> None:
    """After the first call has ended, a second one gets the same value."""
    one = factory()
    waits = Waits(lambda arguments: one)
    client = Client(serving(waits))
    async with client.open(client.call("wait", id=1)) as first:
        await waits.started.acquire()
        one.set_result("worked")
        await first.over()

    assert text_of(await client.send(client.call("wait", id=2))) == "worked"


async def test_future_of_another_event_loop_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It may be completed in another thread, but asyncio.Future is not thread-safe."""
    other = asyncio.new_event_loop()
    one = other.create_future()
    client = Client(serving(Waits(lambda arguments: one)))

    answer = await client.send(client.call("wait"))
    other.close()

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert "a future of another event loop" in caplog.text


@pytest.mark.parametrize("version", ALL)
async def test_two_calls_with_one_tag_are_independent(version: str) -> None:
    """Each call gets the value of its own future, in any order."""
    ends = {name: asyncio.Future[str]() for name in ("first", "second")}
    waits = Waits(lambda arguments: ends[arguments["name"]])
    client = await Client.begin(serving(waits), version)
    async with (
        client.open(client.call("wait", {"name": "first"}, id=1)) as first,
        client.open(client.call("wait", {"name": "second"}, id=2)) as second,
    ):
        for _ in ends:
            await waits.started.acquire()
        ends["second"].set_result("2")
        await second.over()
        assert first.status == 0
        ends["first"].set_result("1")
        await first.over()

    assert (text_of(first), text_of(second)) == ("1", "2")


@pytest.mark.parametrize("factory", [asyncio.Future, futures.Future])
async def test_outcome_after_the_end_of_its_call_is_dropped(factory: Any) -> None:
    """Rows 11, 18 and 22: the call was cancelled, but not the future, which belongs to the tool."""
    one = factory()
    waits = Waits(lambda arguments: one)
    client = Client(serving(waits))
    async with client.open(client.call("wait")) as connection:
        await waits.started.acquire()
        connection.disconnect()
        await connection.over()
    assert not one.cancelled()
    one.set_result("late")
    await asyncio.sleep(0)

    assert waits.outcomes == []
    assert connection.body == b""


class Works:
    """Work that records how it ended."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended: list[str] = []

    async def work(self) -> str:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("worked")
        return "worked"


async def test_coroutine_is_cancelled_with_its_call() -> None:
    """A coroutine belongs to the call."""
    works = Works()
    waits = Waits(lambda arguments: works.work())
    client = Client(serving(waits))
    async with client.open(client.call("wait")) as connection:
        await waits.started.acquire()
        connection.disconnect()
        await connection.over()

    assert works.ended == ["cancelled"]
    assert waits.outcomes == []


async def test_task_outlives_its_cancelled_call() -> None:
    """It is not cancelled with its call, and another call may wait for it."""
    works = Works()
    task = asyncio.create_task(works.work())
    waits = Waits(lambda arguments: task)
    client = Client(serving(waits))
    async with client.open(client.call("wait", id=1)) as connection:
        await waits.started.acquire()
        connection.disconnect()
        await connection.over()
    async with client.open(client.call("wait", id=2)) as second:
        await waits.started.acquire()
        works.go.set()
        await second.over()

    assert works.ended == ["worked"]
    assert waits.outcomes == [Done("worked")]


class Steps(Tool):
    """Continues in three steps; its hooks are `def` and `async def`."""

    name = "steps"

    def call(self, request: ToolRequest, channel: Channel) -> Any:
        channel.assigns["seen"] = ["call"]
        return Continue("one", soon(1))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        assert isinstance(outcome, Done)
        channel.assigns["seen"].append(f"{tag}: {outcome.value}")
        if outcome.value < 3:
            await channel.progress(outcome.value)
            return Continue(f"after {tag}", task(outcome.value + 1))
        return f"{channel.assigns['seen']} of {channel.request.arguments}"


class Threaded(Steps):
    """Continues in three steps; its hooks run in a thread."""

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return channel.in_loop(super().continue_(tag, outcome, channel))


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("steps", [Steps, Threaded])
async def test_steps_follow_each_other_on_one_response(steps: type[Tool], version: str) -> None:
    """Each step has the assigns and arguments of the call. Progress between steps is sent."""
    client = await Client.begin(serving(steps), version)

    answer = await client.send(client.call("steps", {"x": 1}, progressToken="t"))

    seen = ["call", "one: 1", "after one: 2", "after after one: 3"]
    assert text_of(answer) == f"{seen} of {{'x': 1}}"
    assert [each["params"]["progress"] for each in answer.messages[:-1]] == [1, 2]


async def test_steps_may_wait_for_one_future_twice() -> None:
    """The future is released before the next step."""
    one = asyncio.get_running_loop().create_future()

    class Twice(Tool):
        name = "twice"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            asyncio.get_running_loop().call_soon(one.set_result, "worked")
            return Continue("first", one)

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            return Continue("second", one) if tag == "first" else f"{tag}: {outcome}"

    client = Client(serving(Twice))

    assert text_of(await client.send(client.call("twice"))) == "second: Done(value='worked')"


@pytest.mark.parametrize("on", [3, None, "text", soon, [asyncio.sleep]])
def test_continue_rejects_what_is_not_awaitable(on: Any) -> None:
    """Anything else is a TypeError of the constructor, with the tag."""
    with pytest.raises(TypeError, match=r"Continue\('found', \.\.\.\) cannot wait for"):
        Continue("found", on)


@pytest.mark.parametrize("tag", [3, None, b"found"])
def test_continue_tag_is_a_text(tag: Any) -> None:
    """It is part of tasks and of the request state, which are JSON."""
    with pytest.raises(ContractError, match="the tag must be a text"):
        Continue(tag, elicit("Sure?"))


async def test_rejected_continue_closes_its_coroutine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python warns of coroutines that are never awaited, so it is closed."""

    work = soon(1)

    class Careless(Tool):
        name = "careless"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            channel.assigns["when"] = {"at": [1, object()]}
            return Continue("waited", work)

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return "never"

    client = Client(serving(Careless))

    answer = await client.send(client.call("careless"))

    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert "channel.assigns.when.at[1] is object" in caplog.text


async def test_task_that_only_the_call_waits_for_is_kept() -> None:
    """The event loop holds tasks weakly: without the call, it would be garbage collected."""
    inner: list[weakref.ref[asyncio.Future[str]]] = []

    async def work() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        inner.append(weakref.ref(future))
        return await future

    waits = Waits(lambda arguments: asyncio.create_task(work()))
    client = Client(serving(waits))
    async with client.open(client.call("wait")) as connection:
        await until(lambda: inner)
        gc.collect()
        future = inner[0]()
        assert future is not None
        future.set_result("kept")
        await connection.over()

    assert text_of(connection) == "kept"
