"""Calls that become tasks, hidden and shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    McpError,
    Mux,
    Outcome,
    Run,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    job,
    tool,
)
from genmcp.client.client import Client
from genmcp.client.errors import (
    ClientError,
    InputFailed,
    RequestTimeout,
    ServerError,
    TaskCancelled,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.protocol.capabilities import ClientCapabilities, ElicitationCapability


class Bake(Tool):
    """Bakes, as a task, until the oven is opened."""

    name = "bake"
    task = "always"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.oven = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.begun.set()
        await channel.progress(1, 2, "in the oven")
        try:
            await self.oven.wait()
        finally:
            self.ended.set()
        if request.arguments.get("burn"):
            raise McpError("burnt", {"smoke": True}, code=-32050)
        return "bread"


class Season(Tool):
    """Asks, as a task."""

    name = "season"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("salt", elicit("Salt?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "salt", Done(Accepted()):
                return Continue("pepper", elicit("Pepper?"))
            case "pepper", Done(Accepted()):
                return "salted and peppered"
        return "bland"


class Agreeing(ClientHandler):
    """Accepts, and counts the questions."""

    asked = 0

    async def handle_elicitation_create(self, *_: Any) -> Any:
        self.asked += 1
        return Accepted({})


@asynccontextmanager
async def kitchen(
    *tools: Any, handler: ClientHandler | None = None, **options: Any
) -> AsyncIterator[Client]:
    suite = Suite(name="kitchen", version="1", tools=tools)
    async with asyncio.timeout(20):
        async with Client(suite, handler=handler, options=ClientOptions(**options)) as client:
            yield client


async def test_call_waits_for_its_task() -> None:
    """A call hides that its result is that of a task, and reports each progress of it once."""
    bake = Bake()
    said: list[Any] = []
    seen = asyncio.Event()

    def report(*progress: Any) -> None:
        said.append(progress)
        seen.set()

    async with kitchen(bake) as client:
        call = asyncio.create_task(client.call("bake", progress=report))
        await seen.wait()
        bake.oven.set()
        assert (await call).data == "bread"
    assert said == [(1, 2, "in the oven")]


@job(name="kitchen.rise")
async def rise(run: Run) -> str:
    await run.progress(1, 2, "rising")
    await Rise.oven.wait()
    return "dough"


class Rise(Tool):
    """Waits for a job, which reports progress."""

    name = "rise"
    oven: asyncio.Event

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("risen", rise.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return outcome.value if isinstance(outcome, Done) else "nothing"


async def test_task_reports_progress_to_who_waits() -> None:
    """Also in another process, where only the id is known."""
    Rise.oven = asyncio.Event()
    reports: list[Any] = []

    async def report(*progress: Any) -> None:
        reports.append(progress)
        Rise.oven.set()

    async with kitchen(Rise) as client:
        started = await client.call_task("rise")
        result = await client.task(started.id or "").wait(progress=report)
        with pytest.raises(ServerError):
            await client.task("unknown").wait(progress=report)

    assert result.data == "dough"
    assert reports == [(1, 2, "rising")]


async def test_call_answers_what_its_task_asks() -> None:
    """Each question of a task is put to the handler, once."""
    handler = Agreeing()
    async with kitchen(Season, handler=handler) as client:
        assert (await client.call("season")).data == "salted and peppered"
    assert handler.asked == 2


async def test_task_is_shown_by_its_handle() -> None:
    """The handle has the task's status, and waits for its result."""
    bake = Bake()
    async with kitchen(bake) as client:
        task = await client.call_task("bake")
        await bake.begun.wait()
        assert isinstance(task.id, str)
        assert (await task.status()).status == "working"
        assert not task.is_over
        bake.oven.set()
        assert (await task.wait()).data == "bread"
        assert task.is_over
        assert (await task.wait()).data == "bread"
        assert (await task.status()).status == "completed"


async def test_task_is_found_again_by_its_id() -> None:
    """The id is enough for another client to continue, for example after a restart."""
    bake = Bake()
    mux = Mux(Suite(name="kitchen", version="1", tools=[bake]))
    async with asyncio.timeout(20):
        async with Client(mux) as client:
            id = (await client.call_task("bake")).id
        assert id is not None
        bake.oven.set()
        async with Client(mux) as client:
            assert (await client.task(id, tool="bake").wait()).data == "bread"
    await mux.aclose()


async def test_task_of_a_call_that_is_answered_at_once_is_over() -> None:
    """Without a task the handle has no id, and the result."""

    @tool
    async def toast() -> str:
        """Toasts."""
        return "toast"

    async with kitchen(toast) as client:
        handle = await client.call_task("toast")
        assert (handle.id, handle.is_over) == (None, True)
        assert (await handle.wait()).data == "toast"
        with pytest.raises(ClientError, match="no task"):
            await handle.status()


async def test_task_is_cancelled_by_its_handle() -> None:
    """Cancelling ends the work, and waiting callers get TaskCancelled."""
    bake = Bake()
    async with kitchen(bake) as client:
        task = await client.call_task("bake")
        await bake.begun.wait()
        waiting = asyncio.create_task(task.wait())
        await task.cancel()
        with pytest.raises(TaskCancelled, match=str(task.id)):
            await waiting
        await bake.ended.wait()
        assert (await task.status()).status == "cancelled"


async def test_task_of_a_call_that_is_given_up_is_cancelled() -> None:
    """Cancelling the awaiting asyncio.Task, or a timeout, cancels the task at the server."""
    bake = Bake()
    async with kitchen(bake) as client:
        call = asyncio.create_task(client.call("bake"))
        await bake.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await bake.ended.wait()
        bake.ended.clear()
        with pytest.raises(RequestTimeout, match=r"the task .* took longer than 0\.1 s"):
            await client.call("bake", timeout=0.1)
        await bake.ended.wait()


async def test_task_goes_on_when_waiting_for_it_is_given_up() -> None:
    """`wait` of a handle only waits."""
    bake = Bake()
    async with kitchen(bake) as client:
        task = await client.call_task("bake")
        with pytest.raises(RequestTimeout):
            await task.wait(timeout=0.05)
        assert (await task.status()).status == "working"
        bake.oven.set()
        assert (await task.wait()).data == "bread"


async def test_task_that_fails_raises_its_error() -> None:
    """The JSON-RPC error of a failed task is a ServerError."""
    bake = Bake()
    bake.oven.set()
    async with kitchen(bake) as client:
        with pytest.raises(ServerError) as found:
            await client.call("bake", {"burn": True})
        assert (found.value.code, found.value.message) == (-32050, "burnt")
        assert found.value.data == {"smoke": True}


async def test_task_that_nobody_knows_is_what_the_server_says() -> None:
    """An id of no task is the server's error."""
    async with kitchen(Bake()) as client:
        with pytest.raises(ServerError, match="Unknown task"):
            await client.task("nothing").wait()


async def test_task_in_a_revision_without_tasks_is_a_client_error() -> None:
    """Its id may be from a connection of another revision."""
    options = ClientOptions(revision="2025-11-25")
    async with Client(Suite(name="s", version="1", tools=[]), options=options) as client:
        with pytest.raises(ServerError, match="Method not found") as failed:
            await client.task("t1").status()
    assert failed.value.code == -32601


async def test_task_is_answered_by_hand() -> None:
    """A task's question is in its status, and `update` answers it; no hook is needed for that."""

    class Able(ClientHandler):
        capabilities = ClientCapabilities(elicitation=ElicitationCapability())

    asked: dict[str, bytes] = {}
    async with kitchen(Season, handler=Able()) as client:
        task = await client.call_task("season")
        while (status := await task.status()).status != "completed":
            for key, question in (status.input_requests or {}).items():
                asked[key] = bytes(question)
                await task.update({key: {"action": "accept", "content": {}}})
        assert (await task.wait()).data == "salted and peppered"
    salt, pepper = asked.values()
    assert b"Salt?" in salt
    assert b"Pepper?" in pepper


async def test_client_without_tasks_is_answered_without() -> None:
    """With `tasks=False` the extension is not declared, and calls are held."""
    bake = Bake()
    bake.oven.set()
    async with kitchen(bake, tasks=False) as client:
        assert (await client.call_task("bake")).id is None


async def test_task_whose_handler_refuses_fails() -> None:
    """A question that is refused fails the call, and the task is cancelled."""

    class Refusing(ClientHandler):
        async def handle_elicitation_create(self, *_: Any) -> Any:
            raise McpError("ask somebody else")

    async with kitchen(Season, handler=Refusing()) as client:
        with pytest.raises(InputFailed, match="ask somebody else"):
            await client.call("season")
