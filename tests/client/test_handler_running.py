"""Hooks run concurrently with the receiver, and cannot break the client."""

import asyncio
import threading
from typing import Any

import pytest

from genmcp.client.handler import ClientHandler
from genmcp.client.handler_runner import HandlerRunner
from genmcp.errors import InternalError, McpError, Overloaded
from genmcp.protocol.client_features import ListRootsResult, Root
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.tasks import TaskStatusNotificationParams
from genmcp.question.question import Declined
from tests.support.client_bounds import bounds

TIME = 5.0


class Answers:
    """The replies, in order."""

    def __init__(self) -> None:
        self.all: asyncio.Queue[Any] = asyncio.Queue()

    async def __call__(self, answer: Any) -> None:
        self.all.put_nowait(answer)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.all.get(), TIME)


OTHER = {"other": True}


class Other(ClientHandler):
    """Answers requests that are not of the protocol."""

    async def handle_request(self, method: str, params: Any) -> Any:
        return OTHER


class Slow(Other):
    """Lists its roots only once it may, and counts who waits for that."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.running = 0
        self.most = 0

    async def handle_list_roots(self) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.release()
        try:
            await self.may.wait()
        finally:
            self.running -= 1
        return []


async def test_notifications_are_handled_before_terminate() -> None:
    """The handler receives what has arrived, and then the reason of the end."""

    class Recording(ClientHandler):
        async def handle_log(self, message: LoggingMessageNotificationParams) -> Any:
            received.append(message.data)

        def terminate(self, reason: BaseException | None) -> None:
            received.append(reason)

    received: list[Any] = []
    answering = HandlerRunner(Recording())
    answering.notify("notifications/message", LoggingMessageNotificationParams("info", "x"))
    error = OSError("gone")
    await answering.close(error)

    assert received == ["x", error]


async def test_handler_hook_that_is_def_runs_in_a_thread() -> None:
    """It may block: the loop stays free, and answers others meanwhile."""
    go = threading.Event()

    class Blocking(Other):
        def handle_list_roots(self) -> Any:
            go.wait(TIME)
            return [Root(f"file:///{threading.current_thread() is threading.main_thread()}")]

    answering, answers = HandlerRunner(Blocking()), Answers()
    answering.start(1, "roots/list", None, answers)
    answering.start(2, "x/other", None, answers)

    assert await answers.next() == OTHER
    go.set()
    assert await answers.next() == ListRootsResult([Root("file:///False")])
    await answering.close()


async def test_handler_answers_side_by_side_up_to_a_bound() -> None:
    """A few at once, a few more wait, and the rest is rejected."""
    with bounds(input_concurrency=2, max_queued_inputs=1):
        slow, answers = Slow(), Answers()
        answering = HandlerRunner(slow)
        for id in range(4):
            answering.start(id, "roots/list", None, answers)
        assert isinstance(await answers.next(), Overloaded)
        slow.may.set()
        assert [await answers.next() for _ in range(3)] == [ListRootsResult([])] * 3
        assert slow.most == 2
        await answering.close()


async def test_handler_that_is_flooded_drops_what_is_too_much(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that does not read its responses gets no more of them."""
    with bounds(input_concurrency=2, max_queued_inputs=1):
        stuck = asyncio.Event()

        async def never(answer: Any) -> None:
            await stuck.wait()

        answering = HandlerRunner()
        with caplog.at_level("DEBUG", "genmcp.client"):
            for id in range(20):
                answering.start(id, "x/other", None, never)

        dropped = "a request of the server is dropped: 6 are open"
        assert [each.getMessage() for each in caplog.records] == [dropped] * 14
        await answering.close()


async def test_handler_question_may_be_cancelled() -> None:
    """The hook is cancelled, and no response is sent; an unknown id is harmless."""
    slow, answers = Slow(), Answers()
    answering = HandlerRunner(slow)
    answering.start("a", "roots/list", None, answers)
    await asyncio.wait_for(slow.begun.acquire(), TIME)

    answering.cancel("unknown")
    answering.cancel("a")
    answering.start("b", "x/other", None, answers)

    assert await answers.next() == OTHER
    assert answers.all.empty()
    await answering.close()
    assert slow.running == 0


async def test_handler_question_with_an_id_in_use_takes_its_place() -> None:
    """Of two requests with one id, one is answered."""
    slow, answers = Slow(), Answers()
    answering = HandlerRunner(slow)
    answering.start(1, "roots/list", None, answers)
    await asyncio.wait_for(slow.begun.acquire(), TIME)
    answering.start(1, "x/other", None, answers)

    assert await answers.next() == OTHER
    slow.may.set()
    await answering.close()
    assert answers.all.empty()


async def test_handler_that_is_closed_cancels_what_it_is_doing() -> None:
    """No question outlives its connection."""
    slow, answers = Slow(), Answers()
    answering = HandlerRunner(slow)
    answering.start(1, "roots/list", None, answers)
    await asyncio.wait_for(slow.begun.acquire(), TIME)

    await asyncio.wait_for(answering.close(), TIME)

    assert slow.running == 0
    assert answers.all.empty()


async def test_handler_hook_that_raises_harms_only_its_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server gets a reference to the log, the client lives on."""

    class Broken(ClientHandler):
        def handle_list_roots(self) -> Any:
            raise ValueError("a secret")

        async def handle_request(self, method: str, params: Any) -> Any:
            raise asyncio.CancelledError  # of something it waited for

        def terminate(self, reason: BaseException | None) -> None:
            raise ValueError("again")

    answering, answers = HandlerRunner(Broken()), Answers()
    answering.start(1, "roots/list", None, answers)
    failed = await answers.next()
    answering.start(2, "x/other", None, answers)
    cancelled = await answers.next()
    await answering.close()

    assert isinstance(failed, InternalError)
    assert isinstance(cancelled, InternalError)
    assert "secret" not in failed.message
    assert str(failed.reference) in caplog.text
    assert "a secret" in caplog.text
    assert "terminate" in caplog.text


async def test_handler_answer_that_cannot_be_sent_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is no other recipient."""
    tried = asyncio.Event()

    async def broken(answer: Any) -> None:
        tried.set()
        raise OSError("pipe")

    answering = HandlerRunner()
    answering.start(1, "x/other", None, broken)
    await asyncio.wait_for(tried.wait(), TIME)
    await answering.close()

    assert "the answer to x/other could not be sent: pipe" in caplog.text


async def test_handler_is_told_things_in_their_order() -> None:
    """Each kind by its own hook, one after another, even if one takes longer."""
    told: list[Any] = []
    all_told, may = asyncio.Event(), asyncio.Event()

    class Told(ClientHandler):
        async def handle_progress(self, progress: Any) -> None:
            await may.wait()
            told.append(progress.progress)

        def handle_log(self, message: Any) -> None:
            told.append(message.data)

        async def handle_task_status(self, task: TaskStatusNotificationParams) -> None:
            told.append((task.task_id, task.status, task.ttl_ms, task.last_updated_at))

        async def handle_notification(self, method: str, params: Any) -> None:
            told.append((method, params))
            all_told.set()

    answering = HandlerRunner(Told())
    answering.notify("notifications/progress", ProgressNotificationParams("t", 1))
    answering.notify("notifications/message", LoggingMessageNotificationParams("info", "hi"))
    answering.notify(
        "notifications/tasks", TaskStatusNotificationParams("u", "completed", "a", "b", None)
    )
    answering.notify("notifications/tools/list_changed", None)
    may.set()
    await asyncio.wait_for(all_told.wait(), TIME)
    await answering.close()

    assert told == [
        1,
        "hi",
        ("u", "completed", None, "b"),
        ("notifications/tools/list_changed", None),
    ]


async def test_handler_that_fails_to_take_something_in_takes_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A notification without a hook, or malformed, is harmless, too."""
    told = asyncio.Event()

    class Broken(ClientHandler):
        def handle_log(self, message: Any) -> None:
            raise ValueError("full")

        async def handle_task_status(self, task: Any) -> None:
            told.set()

    answering = HandlerRunner(Broken())
    answering.notify("notifications/progress", None)
    answering.notify("notifications/other", None)
    answering.notify("notifications/message", None)
    answering.notify("notifications/tasks", None)
    await asyncio.wait_for(told.wait(), TIME)
    await answering.close()

    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_handler_that_is_too_slow_loses_the_oldest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The queue of notifications is bounded; a warning says once that it is full."""
    with bounds(max_notifications=2):
        told = []

        class Counting(ClientHandler):
            async def handle_notification(self, method: str, params: Any) -> None:
                told.append(params)

        answering = HandlerRunner(Counting())
        for number in range(5):
            answering.notify("x", number)
        await answering.close()

        assert told == [3, 4]
        assert [each.getMessage() for each in caplog.records] == [
            "a hook of Counting is too slow: some of its calls are left out"
        ]


def test_handler_hooks_of_the_base_say_the_least() -> None:
    """A subclass may call them."""
    plain: ClientHandler = ClientHandler()

    for hook in (plain.handle_progress, plain.handle_log, plain.handle_task_status):
        assert hook(None) is None  # type: ignore[arg-type]
    assert plain.handle_notification("x", None) is None
    assert plain.terminate(None) is None
    assert plain.handle_url_elicitation("Go?", "https://a") == Declined()
    with pytest.raises(McpError, match="x/y"):
        plain.handle_request("x/y", None)
