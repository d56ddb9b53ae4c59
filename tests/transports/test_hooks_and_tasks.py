"""Hooks run in the asyncio.Task of their POST, which they and the host may cancel."""

import asyncio
import contextvars
import threading
from typing import Any

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool
from tests.support.asgi import MODERN, PATIENCE, Client, serving, until

VERSIONS = [MODERN, "2025-11-25"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_hook_may_handle_the_failure_of_a_task_group(version: str) -> None:
    """Before Python 3.13 asyncio.TaskGroup leaves a cancellation counted; the answer is sent."""

    @tool
    async def group() -> str:
        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails())
        except* ValueError:
            pass
        return "handled"

    client = await Client.begin(serving(group), version)
    for _ in range(2):
        answered = await client.send(client.call("group"))

        assert answered.json["result"]["content"][0]["text"] == "handled"


@pytest.mark.parametrize("waits_first", [False, True])
async def test_hook_may_use_timeouts_before_and_behind_its_first_wait(waits_first: bool) -> None:
    """`asyncio.timeout` and anyio's scopes cancel their block only."""

    @tool
    async def patient() -> list[str]:
        ended = []
        if waits_first:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append("asyncio")
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        ended += ["anyio"] * scope.cancelled_caught
        return ended

    client = Client(serving(patient))

    answered = await client.send(client.call("patient"))

    assert answered.json["result"]["content"][0]["text"] == '["asyncio","anyio"]'


@pytest.mark.parametrize("version", [*VERSIONS, "2025-03-26"])
async def test_host_may_cancel_by_a_scope_of_anyio(version: str) -> None:
    """The scope recognizes its own cancellation, and the host continues; no state is left."""
    waits, went_on = asyncio.Event(), asyncio.Event()
    scope = anyio.CancelScope()

    @tool
    async def hold(channel: Channel) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # releases a resource

    endpoint = serving(hold)

    async def host(asgi: Any, receive: Any, send: Any) -> None:
        if waits.is_set() or asgi["type"] != "http":
            await endpoint(asgi, receive, send)
            return
        with scope:
            await endpoint(asgi, receive, send)
        went_on.set()

    client = await Client.begin(host if version == MODERN else endpoint, version)
    client.app = host
    message: Any = client.call("hold")
    async with client.open(
        [message, client.call("hold", id=2)] if "03" in version else message
    ) as (connection):
        await waits.wait()
        scope.cancel()
        await connection.over()

    assert went_on.is_set()
    assert (len(endpoint.mux.waiting_calls), len(endpoint.mux.calls)) == (0, 0)
    async with asyncio.timeout(PATIENCE):
        await endpoint.aclose()


async def test_batch_whose_host_cancels_again_and_again_leaves_nothing() -> None:
    """An open call is released, and the endpoint can be closed."""
    waits = asyncio.Event()

    @tool
    async def hold() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # releases a resource

    endpoint = serving(hold)
    client = await Client.begin(endpoint, "2025-03-26")
    async with client.open([client.call("hold"), client.call("hold", id=2)]) as connection:
        await waits.wait()
        for _ in range(3):
            connection.task.cancel()
            await asyncio.sleep(0)
        await connection.over()

    assert len(endpoint.mux.waiting_calls) == 0
    async with asyncio.timeout(PATIENCE):
        await endpoint.aclose()


async def test_batch_member_that_cancels_itself_spares_the_others() -> None:
    """It is an error; the others are answered."""

    @tool
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @tool
    async def work() -> str:
        await asyncio.sleep(0.01)
        return "done"

    client = await Client.begin(serving(give_up, work), "2025-03-26")

    answered = await client.send([client.call("give_up"), client.call("work", id=2)])

    said = {each["id"]: each for each in answered.json}
    assert "cancelled" in said[1]["error"]["message"]
    assert said[2]["result"]["content"][0]["text"] == "done"


async def test_batch_that_the_host_cancels_gets_errors() -> None:
    """Each member that has no answer yet gets an error; one that has keeps it."""
    waits = asyncio.Event()

    @tool
    async def hold() -> None:
        waits.set()
        await asyncio.Event().wait()

    @tool
    async def work() -> str:
        return "done"

    client = await Client.begin(serving(hold, work), "2025-03-26")
    async with client.open([client.call("work"), client.call("hold", id=2)]) as connection:
        await waits.wait()
        await until(lambda: len(client_tasks(connection)) == 1)
        connection.task.cancel()
        await connection.over()

    said = {each["id"]: each for each in connection.json}
    assert said[1]["result"]["content"][0]["text"] == "done"
    assert "cancelled" in said[2]["error"]["message"]


def client_tasks(connection: Any) -> list[Any]:
    """Return the members of its batch that still run."""
    return [
        task
        for task in asyncio.all_tasks()
        if "_serve_member" in getattr(task.get_coro(), "__qualname__", "")
    ]


async def test_hook_that_is_slow_to_end_at_shutdown_gets_a_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write that had waited before does not cut it short."""
    monkeypatch.setattr("genmcp._transports.request.LAST_WORDS", 0.01)
    said, stopping = asyncio.Event(), asyncio.Event()

    @tool
    async def work(channel: Channel) -> str:
        await channel.progress(1)
        await asyncio.sleep(0.01)
        await channel.progress(2)
        said.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopping.set()
        await asyncio.sleep(0.05)
        return "answer"

    endpoint = Endpoint(Suite(name="test", version="1", tools=[work]), grace=0)
    client = Client(endpoint)
    async with client.open(client.call("work", progressToken=1)) as connection:
        await connection.message()
        connection.reading.clear()
        await said.wait()
        await asyncio.sleep(0)
        connection.reading.set()
        await connection.message()
        closing = asyncio.create_task(endpoint.aclose())
        await connection.over()
        await closing

    assert stopping.is_set()
    assert b"answer" in connection.body


async def test_threads_of_clients_that_left_do_not_pile_up() -> None:
    """Who leaves while it waits for a thread makes room; who has one keeps it until it is done."""
    go, ran = threading.Event(), []

    @tool
    def block(number: int) -> int:
        ran.append(number)
        go.wait(PATIENCE)
        return number

    suite = Suite(name="test", version="1", tools=[block])
    client = Client(Endpoint(Mux(suite, limits=Limits(max_threads=1, max_thread_queue=1))))
    async with client.open(client.call("block", {"number": 0})) as first:
        await until(lambda: ran == [0])
        for number in range(1, 20):
            async with client.open(client.call("block", {"number": number})) as waiting:
                await until(lambda: client.app.mux.threads.waiting == 1)
                waiting.disconnect()
                await waiting.over()
        assert client.app.mux.threads.waiting == 0
        go.set()
        await first.over()

    assert ran == [0]


async def test_context_of_the_host_reaches_the_hook() -> None:
    """Context variables that a middleware sets are there, in threads as well."""
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    @tool
    async def here() -> str:
        return who.get()

    @tool
    def there() -> str:
        return who.get()

    endpoint = serving(here, there)

    async def host(scope: Any, receive: Any, send: Any) -> None:
        who.set("ada")
        await endpoint(scope, receive, send)

    client = Client(host)
    answers = [await client.send(client.call(name)) for name in ("here", "there")]

    assert [each.json["result"]["content"][0]["text"] for each in answers] == ["ada", "ada"]


async def test_starlette_middleware_sees_no_error_on_disconnect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """BaseHTTPMiddleware requires a response to every request, even after a disconnect."""
    waits = asyncio.Event()

    @tool
    async def hold() -> None:
        waits.set()
        await asyncio.Event().wait()

    class Passing(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    client = Client(Passing(serving(hold)))
    async with client.open(client.call("hold")) as connection:
        await waits.wait()
        connection.disconnect()
        await connection.over()

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert connection.task.exception() is None
