"""The client for programs without asyncio."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from genmcp import Channel, Resource, Suite, Tool, ToolRequest, prompt, tool
from genmcp.client.blocking import BackgroundLoop
from genmcp.client.errors import ClientClosed, ServerError
from genmcp.client.sync import SyncClient
from genmcp.protocol.prompts import PromptReference


@tool
async def add(a: float, b: float) -> Any:
    """Adds."""
    return a + b


@prompt
async def greet(name: Literal["Ann"]) -> str:
    """Greets."""
    return f"Hello {name}"


class Bake(Tool):
    """Bakes, as a task."""

    name = "bake"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return "bread"


def suite() -> Suite:
    return Suite(
        name="test",
        version="1",
        tools=[add, Bake],
        prompts=[greet],
        resources=[
            Resource("note://today", "Rain.", name="today"),
            Resource("p://{+path}", lambda path: "p", name="p"),
        ],
    )


def test_sync_client_does_what_the_client_does() -> None:
    """Every method blocks, and returns the result of its counterpart."""
    with SyncClient(suite()) as client:
        assert client.revision == "2026-07-28"
        assert client.server_info is not None
        assert client.server_info.name == "test"
        assert client.instructions is None
        assert client.capabilities.tools is not None
        assert [each.name for each in client.tools()] == ["add", "bake"]
        assert [each.uri for each in client.resources()] == ["note://today"]
        assert len(client.templates()) == 1
        assert [each.name for each in client.prompts()] == ["greet"]
        assert client.call("add", {"a": 1, "b": 2}).data == "3.0"
        assert client.read("note://today").contents[0].text == "Rain."
        assert len(client.prompt("greet", {"name": "Ann"}).messages) == 1
        assert client.complete(PromptReference("greet"), "name").values == ["Ann"]
        client.log_level("error")
        client.ping()
        assert "2026-07-28" in client.discover().supported_versions
        assert [each.name for each in client.request("prompts/list").prompts] == ["greet"]
        client.notify("notifications/roots/list_changed")
        with pytest.raises(ServerError):
            client.call("nothing")


def test_sync_client_shows_tasks() -> None:
    """A task can be begun, looked at, waited for, and found again."""
    with SyncClient(suite()) as client:
        task = client.call_task("bake")
        assert task.wait(timeout=10).data == "bread"
        assert task.id is not None
        again = client.task(task.id)
        assert again.status().status == "completed"
        assert again.wait().data == "bread"
        again.update({})
        again.cancel()


def test_sync_client_listens() -> None:
    """Changes are iterated over, and the iteration ends with the stream."""
    server = suite()
    with SyncClient(server) as client:
        with client.subscribe("note://today") as changes:
            assert changes.honored.resource_subscriptions == ["note://today"]
            server.resource_updated("note://today")
            assert next(iter(changes)).params.uri == "note://today"
        assert list(changes) == []
        with client.listen(tools=True) as lists:
            assert lists.honored.tools_list_changed


def test_sync_client_is_used_from_several_threads() -> None:
    """Calls of different threads run side by side."""
    found: list[Any] = []
    with SyncClient(suite()) as client:
        threads = [
            threading.Thread(target=lambda n=n: found.append(client.call("add", {"a": n, "b": 0})))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(result.data for result in found) == [f"{n}.0" for n in range(8)]


def test_sync_client_leaves_nothing_behind() -> None:
    """Its thread ends when it is closed, or does not open; it can be opened again."""
    client = SyncClient(suite())
    client.open()
    client.open()
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.tools()
    with client:
        assert len(client.tools()) == 2
    broken = SyncClient("http://127.0.0.1:9/mcp")
    with pytest.raises(Exception, match="cannot reach"):
        broken.open()
    assert not [each for each in threading.enumerate() if each.name == "genmcp-client"]


def test_sync_client_refuses_calls_from_its_own_loop() -> None:
    """A callback in its loop that calls it gets an error, and so does one that closes it."""
    faults: list[BaseException] = []

    @tool
    async def climb(channel: Channel) -> str:
        """Climbs."""
        await channel.progress(1)
        return "up"

    with SyncClient(Suite(name="test", version="1", tools=[climb])) as client:

        def call(*_: object) -> None:
            for method in (client.ping, client.open, client.close):
                with pytest.raises(RuntimeError, match="wait for themselves") as fault:
                    method()
                faults.append(fault.value)

        assert client.call("climb", progress=call, timeout=5).data == "up"
        client.ping()
    assert len(faults) == 3


def test_sync_client_is_refused_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is not there; closing it does nothing."""
    with SyncClient(suite()) as client:
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            for method in (client.ping, client.open):
                with pytest.raises(RuntimeError, match="before a fork"):
                    method()
            client.close()
        client.ping()


def test_sync_client_reports_the_end_of_its_connection() -> None:
    """`ended` returns None after `close`, also in a thread that waits for it."""
    client = SyncClient(suite())
    assert not client.is_open
    with client, ThreadPoolExecutor(1) as pool:
        assert client.is_open
        assert client.abandoned_calls == 0
        waiting = pool.submit(client.ended)
        client.ping()
        client.close()
        assert waiting.result(20) is None
    assert not client.is_open


def test_work_that_has_not_begun_is_not_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread ends the loop before it has come to the work."""

    async def work() -> None:
        raise AssertionError

    runner, queued = BackgroundLoop("the server"), threading.Semaphore(0)
    begun, released = threading.Event(), threading.Event()
    runner.start()
    assert runner._runner is not None
    loop = runner._runner.get_loop()
    call_soon = loop.call_soon_threadsafe
    call_soon(begun.set)
    call_soon(released.wait, 20)
    assert begun.wait(20)

    def counted(*arguments: Any, **context: Any) -> Any:
        handle = call_soon(*arguments, **context)
        queued.release()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(runner.run, work())
        assert queued.acquire(timeout=20)
        ending = pool.submit(runner.stop)
        assert queued.acquire(timeout=20)
        released.set()
        ending.result(20)
        with pytest.raises(ClientClosed) as closed:
            waiting.result(20)
    assert not closed.value.sent
