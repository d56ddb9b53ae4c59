"""Bounds on open work: calls, streams, and buffers of slow clients."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest

from genmcp import Channel, ConfigurationError, Endpoint, Limits, Mux, Suite, tool
from genmcp import Client as McpClient
from genmcp._mux.threads import ThreadTurns
from genmcp.core.client_key import ClientKey
from tests.support.asgi import MODERN, PATIENCE, Client, until

pytestmark = pytest.mark.slow


def served(*tools: Any, principal: Any = None, **limits: Any) -> Endpoint:
    """Return an endpoint that takes the principal from the `x-user` header."""

    def of_header(scope: Any) -> str | None:
        names = dict(scope["headers"])
        return names[b"x-user"].decode() if b"x-user" in names else None

    mux = Mux(Suite(name="test", version="1", tools=tools), limits=Limits(**limits))
    return Endpoint(mux, principal=of_header)


@tool
async def hold() -> None:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()


@tool
async def answer() -> str:
    """Answers."""
    return "here"


async def test_bounds_calls_that_wait_are_counted() -> None:
    """One too many is rejected with 503 and a retry delay; a free slot is used again."""
    client = Client(served(hold, answer, max_waiting_calls=2, client_share=1, anonymous_share=1))
    async with client.open(client.call("hold")), client.open(client.call("hold")):
        await until(lambda: len(client.app.mux.waiting_calls) == 2)

        refused = await client.send(client.call("answer"))

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert tuple(refused.json["error"][key] for key in ("code", "data")) == (
        -32603,
        {"retryAfter": 1},
    )
    assert "(limit: max_waiting_calls)" in refused.json["error"]["message"]
    assert len(client.app.mux.waiting_calls) == 0
    assert (await client.send(client.call("answer"))).status == 200


async def test_bounds_calls_of_one_principal_do_not_take_others_places() -> None:
    """One principal is refused with 429, another is served."""
    client = Client(served(hold, answer, max_waiting_calls=4))
    ada, bob = {"x-user": "ada"}, {"x-user": "bob"}
    async with client.open(client.call("hold"), headers=ada):
        await until(lambda: len(client.app.mux.waiting_calls) == 1)

        refused = await client.send(client.call("answer"), headers=ada)
        served_ = await client.send(client.call("answer"), headers=bob)

    assert [refused.status, served_.status] == [429, 200]
    assert (
        "of one principal: 1 (limit: client_share, of max_waiting_calls)"
        in refused.json["error"]["message"]
    )


async def test_bounds_streams_are_counted() -> None:
    """A stream too many is rejected; a call is not a stream."""
    client = await Client.begin(served(answer, max_streams=1), "2025-11-25")
    async with client.listen() as listener:
        await listener.started()

        refused = await client.send(method="GET")
        called = await client.send(client.call("answer"))

    assert [refused.status, called.status] == [503, 200]


def test_bounds_must_be_positive() -> None:
    """A bound of nothing is a mistake that is noticed at once."""
    with pytest.raises(ConfigurationError, match=r"Limits\.max_waiting_calls must be an integer"):
        Limits(max_waiting_calls=0)


async def test_bounds_slow_reader_gets_the_newest_progress() -> None:
    """Progress it has no time for is replaced by newer; the last comes before the answer."""
    said = asyncio.Event()

    @tool
    async def report(channel: Channel) -> str:
        await channel.progress(1)
        for step in range(2, 2000):
            await channel.progress(step, message="x" * 100)
        said.set()
        return "done"

    client = Client(served(report, write_buffer_bytes=1000))
    async with client.open(client.call("report", progressToken=1)) as connection:
        await connection.started()
        connection.reading.clear()
        async with asyncio.timeout(PATIENCE):
            await said.wait()
        connection.reading.set()
        await connection.over()

    steps = [each["params"]["progress"] for each in connection.messages if "params" in each]
    assert steps == sorted(steps)
    assert steps[-1] == 1999
    assert len(steps) < 100
    assert connection.messages[-1]["result"]["content"][0]["text"] == "done"


async def test_slow_reader_delays_messages_but_not_progress() -> None:
    """Every log message arrives; the hook waits for room instead of filling the memory."""
    logged: list[int] = []

    @tool
    async def log(channel: Channel) -> str:
        for number in range(200):
            await channel.log("info", "x" * 100)
            logged.append(number)
        return "done"

    client = Client(served(log, write_buffer_bytes=1000))
    level: Any = {"io.modelcontextprotocol/logLevel": "info"}
    async with client.open(client.call("log", **level)) as connection:
        await connection.started()
        connection.reading.clear()
        held = -1
        while held != len(logged):  # as far as it gets
            held = len(logged)
            for _ in range(50):
                await asyncio.sleep(0)
        connection.reading.set()
        await connection.over()

    assert held < 100
    assert len(connection.messages) == 201


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_connection_of_a_client_that_reads_nothing_is_closed(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A modern call ends; an earlier one continues, and its response is stored."""
    ended = asyncio.Event()

    @tool
    async def report(channel: Channel) -> str:
        try:
            step = 0
            while not channel.closed and (version == MODERN or step < 500):
                step += 1
                await channel.progress(step)
        finally:
            ended.set()
        return "done"

    caplog.set_level("INFO", "genmcp")
    client = await Client.begin(served(report, write_timeout=0.05), version)
    async with client.open(client.call("report", progressToken=1)) as connection:
        await connection.event()
        connection.reading.clear()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        if version == MODERN:
            await connection.over()
            assert not connection.complete
        else:
            async with client.listen(after=connection.ids[-1]) as resumed:
                await resumed.over()
            assert resumed.messages[-1]["result"]["content"][0]["text"] == "done"
    assert "has read nothing (limit: write_timeout)" in caplog.text


async def test_bounds_hold_for_calls_that_come_at_once() -> None:
    """Of a burst, as many as there are places wait; the others are refused at once."""
    client = Client(served(hold, max_waiting_calls=5, client_share=1, anonymous_share=1))
    connections = [client.open(client.call("hold")) for _ in range(20)]
    async with AsyncExitStack() as stack:
        for connection in connections:
            await stack.enter_async_context(connection)
        await until(lambda: sum(each.status == 503 for each in connections) == 15)

        assert len(client.app.mux.waiting_calls) == 5


async def test_bounds_lists_are_served_when_all_places_are_taken() -> None:
    """A call that does not wait takes no slot."""
    client = Client(served(hold, max_waiting_calls=1))
    async with client.open(client.call("hold")):
        await until(lambda: len(client.app.mux.waiting_calls) == 1)

        assert (await client.send(client.request("tools/list"))).status == 200


async def test_bounds_stalled_listener_does_not_hold_up_the_end() -> None:
    """A client that reads nothing is left behind when the endpoint closes."""
    client = await Client.begin(served(answer), "2025-11-25")
    listener = client.listen()
    async with listener:
        await listener.started()
        listener.reading.clear()

        async with asyncio.timeout(PATIENCE):
            await client.app.aclose()
        await listener.over()

    assert not listener.complete


async def test_bounds_thread_that_waits_for_room_is_let_go() -> None:
    """After a disconnect a `def` hook releases its slot, not its thread."""
    asked: list[int] = []
    ended = threading.Event()

    @tool
    def log(channel: Channel) -> None:
        try:
            for number in range(100):
                asked.append(number)
                channel.in_loop(channel.log("info", "x"))
        finally:
            ended.set()

    def is_stuck() -> bool:
        saying = [task.get_coro().__name__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        return len(asked) == 3 and "log" in saying

    client = Client(served(log, write_buffer_bytes=1))
    level: Any = {"io.modelcontextprotocol/logLevel": "info"}
    connection = client.open(client.call("log", **level))
    connection.reading.clear()
    async with connection:
        # The first is being written, the second waits for its turn, the third for room.
        await until(is_stuck)
        connection.task.cancel()
        await connection.over()

        assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_bounds_hook_that_cancels_itself_cancels_its_request() -> None:
    """The host gets the exception, as from its own code, and the client a response."""

    @tool
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    client = Client(served(give_up))
    async with client.open(client.call("give_up")) as connection:
        await connection.over()

    assert connection.task.cancelled()
    assert connection.status == 503
    assert "cancelled" in connection.json["error"]["message"]


async def test_bounds_calls_that_wait_for_a_thread_are_counted() -> None:
    """One too many is rejected; the existing ones continue."""
    begun, go = threading.Semaphore(0), threading.Event()

    @tool
    def block() -> str:
        begun.release()
        go.wait(PATIENCE)
        return "done"

    client = Client(served(block, max_threads=1, max_thread_queue=1))
    async with client.open(client.call("block")) as one, client.open(client.call("block")) as two:
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        await until(lambda: len(client.app.mux.waiting_calls) == 2)

        refused = await client.send(client.call("block"))
        go.set()
        await one.over()
        await two.over()

    assert refused.status == 503
    assert "(limit: max_thread_queue)" in refused.json["error"]["message"]
    assert [each.json["result"]["content"][0]["text"] for each in (one, two)] == ["done", "done"]


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_bounds_result_that_is_too_large_is_a_tool_error(version: str) -> None:
    """It is not sent; the next one is."""

    @tool
    async def say(times: int) -> str:
        return "x" * times

    client = await Client.begin(served(say, max_result_bytes=1000), version)

    large = await client.send(client.call("say", {"times": 1000}))
    small = await client.send(client.call("say", {"times": 10}))

    assert large.json["result"]["isError"] is True
    assert "1000 bytes (limit: max_result_bytes)" in large.json["result"]["content"][0]["text"]
    assert "isError" not in small.json["result"]


@pytest.mark.parametrize("name", ["accept", "content-type", "host", "origin"])
async def test_bounds_header_that_is_too_large_is_refused(name: str) -> None:
    """431, with the limit; headers that are not read may have any size."""
    client = Client(served(answer))

    refused = await client.send(client.call("answer"), headers={name: "y" * 8193})
    unread = await client.send(client.call("answer"), headers={"x-long": "y" * 8193})

    assert [refused.status, unread.status] == [431, 200]
    assert f"{name} header is larger than 8192 bytes" in refused.json["error"]["message"]


async def test_bounds_progress_in_between_gives_way_to_newer() -> None:
    """Past its rate the newest counts, and the last comes before the answer."""

    @tool
    async def report(channel: Channel) -> str:
        for step in range(1, 501):
            await channel.progress(step)
        return "done"

    client = Client(served(report, progress_per_second=0.001))
    answered = await client.send(client.call("report", progressToken=1))

    steps = [each["params"]["progress"] for each in answered.messages if "params" in each]
    assert steps == [1, 500]


async def test_bounds_delayed_progress_is_sent_when_due() -> None:
    """Without another word of the hook."""
    go = asyncio.Event()

    @tool
    async def report(channel: Channel) -> None:
        for step in range(1, 100):
            await channel.progress(step)
        await go.wait()

    client = Client(served(report, progress_per_second=50.0))
    async with client.open(client.call("report", progressToken=1)) as connection:
        while (await connection.message())["params"]["progress"] < 99:
            pass  # the first, and more if this machine is slower than the rate
        go.set()
        await connection.over()

    steps = [each["params"]["progress"] for each in connection.messages if "params" in each]
    assert (steps[0], steps[-1]) == (1, 99)
    assert len(steps) < 99


async def test_bounds_log_messages_are_spaced_out_and_all_arrive() -> None:
    """A hook that exceeds its rate waits; no message is lost."""

    @tool
    async def talk(channel: Channel) -> None:
        for number in range(20):
            await channel.log("info", number)

    client = Client(served(talk, logs_per_second=1000.0))
    level: Any = {"io.modelcontextprotocol/logLevel": "info"}
    began = asyncio.get_running_loop().time()
    answered = await client.send(client.call("talk", **level))

    assert asyncio.get_running_loop().time() - began >= 0.019
    assert [*range(20)] == [each["params"]["data"] for each in answered.messages[:-1]]


ONE, OTHER = ("192.0.2.1", 7), ("192.0.2.2", 7)


async def test_bounds_address_leaves_places_for_others() -> None:
    """An anonymous client past its own share is refused with 429; other addresses are served."""
    app = served(hold, answer, max_waiting_calls=4)
    one, other = Client(app, client=ONE), Client(app, client=OTHER)
    async with one.open(one.call("hold")):
        await until(lambda: len(app.mux.waiting_calls) == 1)

        refused = await one.send(one.call("answer"))
        answered = await other.send(other.call("answer"))
        named = await one.send(one.call("answer"), headers={"x-user": "ada"})

    assert [refused.status, answered.status, named.status] == [429, 200, 200]
    assert (
        "of one address: 1 (limit: client_share, of max_waiting_calls)"
        in refused.json["error"]["message"]
    )


async def test_bounds_ipv6_network_is_one_client() -> None:
    """A client has a whole /64 to choose its addresses from."""
    app = served(hold, answer, max_waiting_calls=4)
    one = Client(app, client=("2001:db8::1", 7))
    neighbour = Client(app, client=("2001:db8::2", 7))
    async with one.open(one.call("hold")):
        await until(lambda: len(app.mux.waiting_calls) == 1)

        assert (await neighbour.send(neighbour.call("answer"))).status == 429


async def test_bounds_sessions_share_their_address() -> None:
    """An anonymous client gains nothing by opening another session."""
    app = served(hold, answer, max_waiting_calls=4)
    one = await Client.begin(app, "2025-11-25", client=ONE)
    async with one.open(one.call("hold")):
        await until(lambda: len(app.mux.waiting_calls) == 1)
        again = await Client.begin(app, "2025-11-25", client=ONE)

        refused = await again.send(again.call("answer"))
        await one.send(method="DELETE")

    assert refused.status == 429


async def test_bounds_anonymous_clients_leave_places_for_principals() -> None:
    """Together they have a part of the total: 503 for one more, from any address."""
    app = served(hold, answer, max_waiting_calls=2, anonymous_share=0.5)
    one, other = Client(app, client=ONE), Client(app, client=OTHER)
    async with one.open(one.call("hold")):
        await until(lambda: len(app.mux.waiting_calls) == 1)

        refused = await other.send(other.call("answer"))
        named = await other.send(other.call("answer"), headers={"x-user": "ada"})

    assert [refused.status, named.status] == [503, 200]
    assert "(limit: anonymous_share, of max_waiting_calls)" in refused.json["error"]["message"]


async def test_bounds_streams_of_an_address_leave_places_for_others() -> None:
    """Listening streams have shares as calls have."""
    app = served(answer, max_streams=4)
    one = await Client.begin(app, "2025-11-25", client=ONE)
    other = await Client.begin(app, "2025-11-25", client=OTHER)
    async with one.listen() as stream, other.listen() as listener:
        await stream.started()
        await listener.started()
        again = await Client.begin(app, "2025-11-25", client=ONE)
        refused = await again.send(method="GET")

    assert refused.status == 429
    assert "(limit: client_share, of max_streams)" in refused.json["error"]["message"]


async def test_bounds_client_key_replaces_the_peer_address() -> None:
    """Behind a proxy, a trusted header distinguishes clients; without one the peer counts."""

    def of_proxy(scope: Any) -> str | None:
        found = dict(scope["headers"]).get(b"x-real-ip")
        return None if found is None else str(found.decode())

    mux = Mux(
        Suite(name="test", version="1", tools=[hold, answer]),
        limits=Limits(max_waiting_calls=4),
    )
    client = Client(Endpoint(mux, client_key=of_proxy), client=ONE)
    headers = {"x-real-ip": "198.51.100.1"}
    async with client.open(client.call("hold"), headers=headers):
        await until(lambda: len(mux.waiting_calls) == 1)

        same = await client.send(client.call("answer"), headers=headers)
        other = await client.send(client.call("answer"), headers={"x-real-ip": "198.51.100.2"})
        direct = await client.send(client.call("answer"))

    assert [same.status, other.status, direct.status] == [429, 200, 200]


async def test_bounds_client_key_of_a_wrong_type_fails_the_request() -> None:
    """The client gets a reference, the log names the setting; nothing stays counted."""
    mux = Mux(Suite(name="test", version="1", tools=[hold]))
    wrong: Any = lambda scope: 7  # noqa: E731  # a mistake of the host
    client = Client(Endpoint(mux, client_key=wrong))

    answered = await client.send(client.call("hold"))

    assert answered.status == 500
    assert len(mux.waiting_calls) == 0


@pytest.mark.parametrize("settings", [{"heartbeat": 0}, {"grace": -1}, {"client_key": "x"}])
def test_endpoint_settings_are_checked(settings: Any) -> None:
    """A wrong value is noticed at once."""
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        Endpoint(Suite(name="test", version="1"), **settings)


def test_endpoint_rejects_unknown_settings() -> None:
    """A misspelt setting is not ignored."""
    wrong: Any = {"heart_beat": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'heart_beat'"):
        Endpoint(Suite(name="test", version="1"), **wrong)


@pytest.mark.parametrize("setting", ["anonymous_share", "client_share"])
def test_bounds_share_is_at_most_everything(setting: str) -> None:
    """It is a part of each total."""
    wrong: dict[str, Any] = {setting: 1.5}
    with pytest.raises(ConfigurationError, match=rf"Limits\.{setting} must be a number of"):
        Limits(**wrong)


def test_bounds_client_may_send_a_body_of_the_maximum_size() -> None:
    """Its share of all bodies is never smaller."""
    limits = Limits(max_body_bytes=100_000, max_total_body_bytes=100_000)
    bodies = Mux(Suite(name="test", version="1"), limits=limits).body_bytes

    bodies.check(ClientKey(address="192.0.2.1"), size=100_000)


async def test_bounds_in_memory_client_keeps_to_the_total_only() -> None:
    """A client in the same process is the only one of its kind."""
    mux = Mux(
        Suite(name="test", version="1", tools=[hold, answer]),
        limits=Limits(max_waiting_calls=4),
    )
    async with McpClient(mux) as client:
        held = asyncio.create_task(client.call("hold"))
        await until(lambda: len(mux.waiting_calls) == 1)

        assert (await client.call("answer")).text == "here"
        held.cancel()
        await asyncio.wait([held])


class Blocking:
    """A `def` tool that ends its calls one at a time, and the order in which they began."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

        @tool
        def block(name: str) -> str:
            self.order.append(name)
            self.begun.release()
            self.go.acquire(timeout=PATIENCE)
            return name

        self.tool = block

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE)


async def test_bounds_clients_take_turns_for_threads() -> None:
    """A client with many calls that wait does not make the next client wait for all of them."""
    blocking = Blocking()
    client = Client(served(blocking.tool, max_threads=1))
    async with AsyncExitStack() as stack:
        for number, user in enumerate(["ada"] * 4 + ["bob"] * 2):
            call = client.call("block", {"name": user}, id=number)
            await stack.enter_async_context(client.open(call, headers={"x-user": user}))
            await until(lambda count=number + 1: len(client.app.mux.waiting_calls) == count)  # type: ignore[misc]
        await blocking.has_begun()
        for _ in range(6):
            blocking.go.release()
        await until(lambda: len(client.app.mux.waiting_calls) == 0)

    assert blocking.order == ["ada", "ada", "bob", "ada", "bob", "ada"]


async def test_bounds_one_client_leaves_threads_for_others() -> None:
    """However long its calls block, another client finds a thread at once."""
    blocking = Blocking()
    client = Client(served(blocking.tool, max_threads=2))
    ada, bob = {"x-user": "ada"}, {"x-user": "bob"}

    def called(name: str, id: int) -> Any:
        return client.call("block", {"name": name}, id=id)

    async with (
        client.open(called("ada", 1), headers=ada),
        client.open(called("ada", 2), headers=ada),
    ):
        await until(lambda: len(client.app.mux.waiting_calls) == 2)
        async with client.open(called("bob", 3), headers=bob) as third:
            await blocking.has_begun()
            await blocking.has_begun()
            assert {*blocking.order} == {"ada", "bob"}
            for _ in range(3):
                blocking.go.release()
            await third.over()
        await until(lambda: len(client.app.mux.waiting_calls) == 0)


async def test_bounds_calls_that_wait_for_a_thread_count_per_client() -> None:
    """Past its own share it is refused with 429; another client may still wait."""
    blocking = Blocking()
    app = served(blocking.tool, max_threads=1, max_thread_queue=4)
    one, other = Client(app, client=ONE), Client(app, client=OTHER)
    call = one.call("block", {"name": "x"})
    async with one.open(call), one.open(call), other.open(call):
        await until(lambda: len(app.mux.waiting_calls) == 3)

        refused = await one.send(call)
        for _ in range(3):
            blocking.go.release()
        await until(lambda: len(app.mux.waiting_calls) == 0)

    assert refused.status == 429
    assert "(limit: client_share, of max_thread_queue)" in refused.json["error"]["message"]


async def test_bounds_cancelled_call_does_not_keep_its_turn() -> None:
    """A call that is cancelled while it waits for a thread leaves no gap in the queue."""
    blocking = Blocking()
    client = Client(served(blocking.tool, max_threads=1))
    async with client.open(client.call("block", {"name": "first"})):
        await blocking.has_begun()
        async with client.open(client.call("block", {"name": "left"})):
            await until(lambda: client.app.mux.threads.waiting == 1)
        assert client.app.mux.threads.waiting == 0
        async with client.open(client.call("block", {"name": "last"})) as last:
            await until(lambda: client.app.mux.threads.waiting == 1)
            blocking.go.release()
            blocking.go.release()
            await last.over()

    assert blocking.order == ["first", "last"]


async def test_bounds_turns_pass_over_cancelled_calls() -> None:
    """A thread goes to a call that still wants it, also where others are just being cancelled."""
    turns = ThreadTurns(1, 1, 10, 10)
    await turns.acquire("ada")
    waiting = {name: asyncio.create_task(turns.acquire(name)) for name in ("bob", "eve", "joe")}
    await asyncio.sleep(0)
    waiting["bob"].cancel()  # its coroutine has not noticed when the thread is given back
    turns.release("ada")
    waiting["eve"].cancel()  # and this one has just got it

    async with asyncio.timeout(PATIENCE):
        await waiting["joe"]
    await asyncio.wait(waiting.values())

    assert [each.cancelled() for each in waiting.values()] == [True, True, False]
    assert turns.waiting == 0
