"""Event streams of the revisions before 2026-07-28: ids, resuming, listening."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from genmcp import Channel, Endpoint, Limits, Mux, Suite, Tool, ToolRequest, tool
from genmcp.errors import StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, LogEvent
from tests.support.asgi import LEGACIES, PATIENCE, Client, Connection, serving, until

SECRET = "a secret that is long enough"


class Steps(Tool):
    """Logs a number whenever the test releases it."""

    name = "steps"

    def __init__(self) -> None:
        self.go = asyncio.Queue[str | None]()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.channel: Channel

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.channel = channel
        self.begun.set()
        try:
            while (said := await self.go.get()) is not None:
                if said == "release":
                    channel.release(retry=70)
                else:
                    await channel.log("error", said)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    def say(self, *words: str | None) -> None:
        for word in words:
            self.go.put_nowait(word)

    async def left(self) -> None:
        """Wait until the server has noticed that the client has disconnected."""
        await self.begun.wait()
        await until(lambda: self.channel.context.caller.detached)


@pytest.fixture(params=LEGACIES)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def said(connection: Connection) -> list[Any]:
    """Return the logged data, and "done" for the result."""
    return [
        m["params"]["data"] if "method" in m else m["result"]["content"][0]["text"]
        for m in connection.messages
    ]


async def test_stream_events_have_ids_that_name_the_stream(version: str) -> None:
    """Ids are of one stream, and count its messages; two streams share none."""
    steps = Steps()
    steps.say("a", "b", None, "a", None)
    client = await Client.begin(serving(steps), version)

    first = await client.send(client.call("steps"))
    second = await client.send(client.call("steps"))

    assert said(first) == ["a", "b", "done"]
    streams = {id.partition("/")[0] for id in first.ids}
    assert len(streams) == 1
    assert [id.partition("/")[2] for id in first.ids][-3:] == ["1", "2", "3"]
    assert not set(first.ids) & set(second.ids)


async def test_stream_begins_with_an_empty_event_on_2025_11_25_only(version: str) -> None:
    """The priming event carries an id and no data (SEP-1699)."""
    steps = Steps()
    steps.say("a", None)
    client = await Client.begin(serving(steps), version)

    answer = await client.send(client.call("steps"))

    first = answer.events[0]
    if version == "2025-11-25":
        assert (first.data, (first.id or "").partition("/")[2]) == ("", "0")
    else:
        assert first.message["params"]["data"] == "a"


async def test_stream_released_is_polled() -> None:
    """release ends the connection with a retry field; the client comes back for the rest."""
    steps = Steps()
    client = await Client.begin(serving(steps), "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        steps.say("a", "release")
        await connection.message()
        await connection._until(lambda: connection.complete)
        assert connection.events[-1].retry == "70"

        steps.say("b")
        async with client.listen(after=connection.ids[-1]) as resumed:
            assert (await resumed.message())["params"]["data"] == "b"
            steps.say("c", None)
            await resumed.over()

    assert said(connection) == ["a"]
    assert said(resumed) == ["b", "c", "done"]


class Interrupted(MemoryStore):
    """A store that can interrupt its followers, as a restart of its server does."""

    def __init__(self) -> None:
        super().__init__()
        self.away = asyncio.Event()
        self.failed = asyncio.Event()

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        async with aclosing(super().follow(log, after)) as events:
            while True:
                coming, away = asyncio.ensure_future(anext(events)), self.away.wait()
                leaving = asyncio.ensure_future(away)
                try:
                    await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        self.failed.set()
                        raise StoreUnavailable("the server is restarted")
                    yield coming.result()
                finally:
                    for each in (coming, leaving):
                        each.cancel()
                    await asyncio.gather(coming, leaving, return_exceptions=True)


async def test_resumed_stream_survives_a_restart_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection stays open, and gets each event once."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0.01)
    steps, store = Steps(), Interrupted()
    mux = Mux(Suite(name="test", version="1", tools=[steps]), store=store)
    client = await Client.begin(Endpoint(mux), "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        steps.say("a", "release")
        await connection.message()
        await connection._until(lambda: connection.complete)
        async with client.listen(after=connection.ids[-1]) as resumed:
            steps.say("b")
            await resumed.message()
            store.away.set()
            await asyncio.wait_for(store.failed.wait(), PATIENCE)
            store.away.clear()
            steps.say("c", None)
            await resumed.over()

    assert said(resumed) == ["b", "c", "done"]


@pytest.mark.parametrize("version", LEGACIES[1:])
async def test_stream_is_not_released_where_clients_do_not_poll(version: str) -> None:
    """Before 2025-11-25 `release` has no effect: one connection has all messages."""
    steps = Steps()
    client = await Client.begin(serving(steps), version)
    async with client.open(client.call("steps")) as connection:
        steps.say("a", "release", "b", None)
        await connection.over()

    assert said(connection) == ["a", "b", "done"]


async def test_stream_released_before_its_first_event_is_resumed() -> None:
    """The head, the priming event and the retry field are sent; nothing else."""
    steps = Steps()
    client = await Client.begin(serving(steps), "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        steps.say("release", None)
        await connection.over()
    primed, retry = connection.events
    assert (primed.data, retry.retry) == ("", "70")

    assert primed.id is not None
    resumed = await client.listen(after=primed.id).__aenter__()
    await resumed.over()

    assert said(resumed) == ["done"]


async def test_stream_a_client_leaves_is_finished_and_fetched(version: str) -> None:
    """A disconnect is not a cancellation; the response is stored for Last-Event-ID."""
    steps = Steps()
    client = await Client.begin(serving(steps), version)
    async with client.open(client.call("steps")) as connection:
        steps.say("a")
        await connection.message()
        connection.disconnect()
        steps.say("b", None)
        await connection.over()
    assert said(connection) == ["a"]
    assert not steps.cancelled.is_set()

    for _ in range(2):  # it may be fetched again: the first answer could be lost as well
        async with client.listen(after=connection.ids[-1]) as resumed:
            await resumed.over()
        assert said(resumed) == ["b", "done"]


async def test_call_logs_on_after_its_client_left_with_no_event() -> None:
    """No client can fetch these messages. They are dropped, and the hook does not wait for room."""
    steps = Steps()
    suite = Suite(name="test", version="1", tools=[steps])
    mux = Mux(suite, limits=Limits(write_buffer_bytes=1000))
    client = await Client.begin(Endpoint(mux), "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        connection.disconnect()
        await steps.left()
        steps.say("a" * 1000, "b" * 1000, None)
        await connection.over()

    assert connection.status == 499


async def test_batch_logs_on_after_its_client_left() -> None:
    """The responses of its other members are dropped as well, and take no room."""
    steps = Steps()

    @tool
    async def large() -> str:
        await steps.left()
        return "x" * 2000

    suite = Suite(name="test", version="1", tools=[steps, large])
    mux = Mux(suite, limits=Limits(write_buffer_bytes=1000))
    client = await Client.begin(Endpoint(mux), "2025-03-26")
    batch = [client.call("steps", id=1), client.call("large", id=2), client.call("steps", id=3)]
    async with client.open(batch) as connection:
        connection.disconnect()
        await steps.left()
        await until(lambda: len(mux.waiting_calls) == 2)  # the large response is there
        steps.say("a", "b", None, None)
        await connection.over()

    assert connection.status == 499


async def test_stream_that_is_over_is_over_for_who_has_all_of_it() -> None:
    """Resuming behind the last event ends at once, instead of waiting for more."""
    steps = Steps()
    steps.say("a", None)
    client = await Client.begin(serving(steps), "2025-11-25")
    answer = await client.send(client.call("steps"))

    async with client.listen(after=answer.ids[-1]) as resumed:
        await resumed.over()

    assert resumed.events == []
    assert resumed.complete


async def test_stream_is_fetched_from_another_process() -> None:
    """Another endpoint over the same store and secret has past and later messages."""
    steps, store = Steps(), MemoryStore()
    suite = Suite(name="test", version="1", tools=[steps])
    one, two = [Endpoint(Mux(suite, secret=SECRET, store=store)) for _ in range(2)]
    client = await Client.begin(one, "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        steps.say("a", "b")
        await connection.message()
        place = connection.ids[-1]
        connection.disconnect()
        client.app = two
        async with client.listen(after=place) as resumed:
            assert (await resumed.message())["params"]["data"] == "b"
            steps.say("c", None)
            await resumed.over()

    assert said(resumed) == ["b", "c", "done"]


async def test_stream_with_on_disconnect_cancel_is_cancelled(version: str) -> None:
    """on_disconnect="cancel": the hook is cancelled, and who resumes is not kept waiting."""

    class Fleeting(Steps):
        on_disconnect = "cancel"

    steps = Fleeting()
    client = await Client.begin(serving(steps), version)
    async with client.open(client.call("steps")) as connection:
        steps.say("a")
        await connection.message()
        connection.disconnect()
        await connection.over()
    assert steps.cancelled.is_set()

    async with client.listen(after=connection.ids[-1]) as resumed:
        await resumed.over()

    assert resumed.messages == []


async def test_stream_that_is_resumed_takes_over_a_live_connection() -> None:
    """No message is sent twice: the old connection ends, whichever request opened it."""
    steps = Steps()
    client = await Client.begin(serving(steps), "2025-11-25")
    async with client.open(client.call("steps")) as first:
        steps.say("a")
        await first.message()
        async with client.listen(after=first.ids[-1]) as second:
            await first._until(lambda: first.complete)
            steps.say("b")
            await second.message()
            async with client.listen(after=second.ids[-1]) as third:
                await second.over()
                steps.say("c", None)
                await third.over()

    assert (said(first), said(second), said(third)) == (["a"], ["b"], ["c", "done"])


async def test_stream_is_resumable_however_long_it_is_silent() -> None:
    """A silent call that runs longer than events are kept can still be resumed."""
    now = 0.0
    steps = Steps()
    suite = Suite(name="test", version="1", tools=[steps])
    mux = Mux(suite, store=MemoryStore(clock=lambda: now), limits=Limits(replay_ttl=10))
    client = await Client.begin(Endpoint(mux), "2025-11-25")
    async with client.open(client.call("steps")) as connection:
        steps.say("a")
        await connection.message()
        connection.disconnect()
        now = 1000.0
        async with client.listen(after=connection.ids[-1]) as resumed:
            await resumed.started()
            steps.say(None)
            await resumed.over()

    assert said(resumed) == ["done"]


async def test_stream_counts_dropped_events_in_a_comment() -> None:
    """A comment has the number of lost events; the stored ones follow."""
    steps = Steps()
    steps.say("a", "b", "c", "d", None)
    suite = Suite(name="test", version="1", tools=[steps])
    client = await Client.begin(
        Endpoint(Mux(suite, limits=Limits(max_replay_events=2))), "2025-11-25"
    )
    answer = await client.send(client.call("steps"))

    async with client.listen(after=answer.ids[1]) as resumed:
        await resumed.over()

    assert resumed.comments == [" 2 events have been dropped"]
    assert said(resumed) == ["d", "done"]


@pytest.mark.parametrize("after", ["", "x", "x/y", "x/²", "x/-1", "x/" + "9" * 5000, "other/3"])
async def test_stream_that_is_unknown_cannot_be_resumed(version: str, after: str) -> None:
    """400, with words that name the header."""
    client = await Client.begin(serving(Steps()), version)

    answer = await client.send(method="GET", headers={"last-event-id": after})

    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
    assert "Last-Event-ID" in answer.json["error"]["message"]


async def test_stream_of_another_session_cannot_be_resumed() -> None:
    """An id that was overheard is worth nothing."""
    steps = Steps()
    steps.say("a", None)
    endpoint = serving(steps)
    client, other = [await Client.begin(endpoint, "2025-11-25") for _ in range(2)]
    answer = await client.send(client.call("steps"))

    foreign = await other.send(method="GET", headers={"last-event-id": answer.ids[0]})

    assert foreign.status == 400


async def test_stream_that_cannot_be_kept_is_still_sent(caplog: pytest.LogCaptureFixture) -> None:
    """A full store costs the resumability, not the call; this is logged."""
    steps = Steps()
    steps.say("a", None)
    suite = Suite(name="test", version="1", tools=[steps])
    store = MemoryStore(max_bytes=1)
    client = await Client.begin(Endpoint(Mux(suite, store=store)), "2025-11-25")

    answer = await client.send(client.call("steps"))

    assert said(answer) == ["a", "done"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "the events of a stream cannot be stored" in caplog.text


async def test_stream_of_a_client_that_takes_json_only_is_json(version: str) -> None:
    """Nothing can be resumed then, and release does nothing."""
    steps = Steps()
    steps.say("a", "release", None)
    client = await Client.begin(serving(steps), version)

    answer = await client.send(client.call("steps"), headers={"accept": "application/json"})

    assert answer.json["result"]["content"][0]["text"] == "done"


async def test_stream_answer_first_is_one_json_body(version: str) -> None:
    """A call without messages is answered with JSON on every revision."""
    steps = Steps()
    steps.say(None)
    client = await Client.begin(serving(steps), version)

    answer = await client.send(client.call("steps"))

    assert not answer.is_stream


# The stream a session listens on.


def store_and_session(client: Client) -> tuple[Any, str]:
    mux = client.app.mux
    return mux.store, mux.sessions.open(client.session, None).key


async def tell(client: Client, data: str) -> None:
    """Send a message of the session, as the server would."""
    store, key = store_and_session(client)
    message = (
        b'{"jsonrpc":"2.0","method":"notifications/message","params":'
        b'{"level":"info","data":"%b"}}' % data.encode()
    )
    await store.apply(Append(f"session:{key}#listener", message, ttl=300, keep=4))


async def test_listener_is_alive_in_silence(version: str) -> None:
    """Comments break the silence."""
    client = await Client.begin(serving(heartbeat=0.01), version)

    async with client.listen() as listener:
        assert (await listener.event()).comment == ""
        assert (await listener.event()).comment == ""
        assert (listener.status, listener.is_stream) == (200, True)


async def test_listener_that_does_not_take_streams_is_406(version: str) -> None:
    """A GET opens an event stream, and nothing else."""
    client = await Client.begin(serving(), version)

    answer = await client.send(method="GET", headers={"accept": "application/json"})

    assert answer.status == 406


async def test_listener_gets_notifications_and_resumes(version: str) -> None:
    """Each has an id, with which a client gets the changes that it has missed, and only those."""
    client = await Client.begin(serving(heartbeat=0.01), version)
    changes, changed = client.app.mux.changes, "notifications/tools/list_changed"
    async with client.listen() as listener:
        await listener.event()
        changes.tools_list_changed()
        assert (await listener.message())["method"] == changed
    async with client.listen(after=listener.ids[-1]) as again:
        await again.event()
        assert not again.messages
    changes.tools_list_changed()
    await asyncio.sleep(0)

    async with client.listen(after=listener.ids[-1]) as last:
        assert (await last.message())["method"] == changed
        changes.tools_list_changed()
        assert (await last.message())["method"] == changed


async def test_listener_is_taken_over_by_a_second_one() -> None:
    """2025-11-25, "Multiple Connections": the first ends, and no message goes out twice."""
    client = await Client.begin(serving(heartbeat=0.01), "2025-11-25")
    async with client.listen() as first:
        await first.event()
        await tell(client, "a")
        await first.message()
        async with client.listen() as second:
            await first.over()
            await second.event()
            await tell(client, "b")
            await second.message()

    assert (said(first), said(second)) == (["a"], ["b"])
    assert first.complete


@pytest.mark.parametrize("after", ["listener/", "listener/x", "listener/0000"])
async def test_listener_with_an_unknown_position_is_notified(after: str) -> None:
    """The list may have changed."""
    client = await Client.begin(serving(), "2025-11-25")

    async with client.listen(after=after) as listener:
        changed = await listener.message()

    assert changed["method"] == "notifications/tools/list_changed"


async def test_listener_that_reads_too_slowly_ends() -> None:
    """The events at its position were dropped: its client opens another one."""
    client = await Client.begin(serving(heartbeat=0.01), "2025-11-25")
    async with client.listen() as listener:
        await listener.event()
        listener.reading.clear()
        for number in range(50):
            await tell(client, str(number))
            await asyncio.sleep(0)
        listener.reading.set()
        await listener.over()

    assert listener.complete


async def test_listener_of_a_client_that_left_leaves_nothing() -> None:
    """It is noticed at once, and neither a task nor a follower is left behind."""
    client = await Client.begin(serving(heartbeat=0.01), "2025-11-25")
    clock = asyncio.get_running_loop().time
    began = clock()
    async with client.listen() as listener:
        await listener.event()
    assert clock() - began < 0.8
    async with client.listen() as broken:
        await broken.event()
        broken.fails = BrokenPipeError()
        await broken.over()

    assert not client.app.shutdown._loops
