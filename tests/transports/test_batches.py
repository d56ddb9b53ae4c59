"""Batches: 2025-03-26, basic, "Batching"."""

import asyncio
from typing import Any

import pytest

from genmcp import Channel, Endpoint, Limits, Mux, Suite, Tool, ToolRequest, tool
from tests.support.asgi import LEGACIES, Client, serving, until

BATCHES = "2025-03-26"


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@tool
async def report(channel: Channel) -> str:
    """Reports progress."""
    await channel.progress(1)
    return "done"


def by_id(messages: list[Any]) -> dict[Any, Any]:
    return {m.get("id"): m.get("result", m.get("error")) for m in messages if "method" not in m}


async def test_batch_mixes_all_kinds_of_messages() -> None:
    """Requests are answered, faulty members too, notifications and responses are taken in."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send(
        [
            client.request("ping", id=1),
            client.notification("notifications/initialized"),
            client.call("echo", {"text": "x"}, id="b"),
            {"jsonrpc": "2.0", "id": 9, "result": {}},
            client.call("sing", id=3),
            client.request("no/such", id=4),
            client.request("initialize", id=5),
            {"jsonrpc": "1.0", "id": 6},
            17,
        ]
    )

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    answers = by_id(answer.json)
    assert len(answer.json) == 7
    assert answers[1] == {}
    assert answers["b"]["content"][0]["text"] == "x"
    assert tuple(answers[id]["code"] for id in (3, 4, 5)) == (-32602, -32601, -32601)
    assert answers[None]["code"] == -32600


async def test_batch_names_the_member_that_is_faulty() -> None:
    """An error carries the id of its member, so that the client knows which one was meant."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send([{"jsonrpc": "1.0", "id": 7, "method": "ping"}])

    assert [(each["id"], each["error"]["code"]) for each in answer.json] == [(7, -32600)]


async def test_defect_of_the_server_costs_one_member(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of `Server.find` rejects one member, without its text."""

    class Failing(Suite):
        def find(self, method: str, key: str) -> Any:
            if key == "fails":
                raise ValueError("a defect")
            return super().find(method, key)

    client = await Client.begin(Endpoint(Failing(name="s", version="1", tools=[echo])), BATCHES)

    answer = await client.send(
        [client.call("fails", id=1), client.call("echo", {"text": "x"}, id=2)]
    )

    answers = by_id(answer.json)
    assert (answer.status, answers[1]["code"]) == (200, -32603)
    assert answers[2]["content"][0]["text"] == "x"
    assert "a defect" not in answer.body.decode()
    assert "a defect" in caplog.text


async def test_batch_of_one_is_answered_with_a_batch() -> None:
    """The answer has the form of the question."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send([client.request("ping")])

    assert answer.json == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


async def test_batch_of_notifications_is_accepted() -> None:
    """202 with no body."""
    client = await Client.begin(serving(echo), BATCHES)
    told = client.notification("notifications/initialized")

    answer = await client.send([told, told, {"jsonrpc": "2.0", "id": 9, "result": {}}])

    assert (answer.status, answer.body) == (202, b"")


async def test_batch_with_progress_is_a_stream() -> None:
    """Each message is an event of its own, and the stream ends behind the last answer."""
    client = await Client.begin(serving(echo, report), BATCHES)

    answer = await client.send(
        [
            client.request("ping", id=1),
            client.call("report", id=2, progressToken="t"),
            client.call("echo", {"text": "x"}, id=3),
            client.request("no/such", id=4),
        ]
    )

    assert answer.is_stream
    assert set(by_id(answer.messages)) == {1, 2, 3, 4}
    assert sum(m.get("method") == "notifications/progress" for m in answer.messages) == 1
    assert [int(id.partition("/")[2]) for id in answer.ids] == [1, 2, 3, 4, 5]


async def test_batch_with_a_call_that_is_cancelled_answers_the_others() -> None:
    """A cancelled request has no response."""
    waits = asyncio.Semaphore(0)

    class Held(Tool):
        name = "held"

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            waits.release()
            await asyncio.Event().wait()
            return ""

    client = await Client.begin(serving(echo, Held), BATCHES)
    batch = [client.call("held", id=1), client.request("ping", id=2), client.call("held", id=3)]
    async with client.open(batch) as connection:
        await waits.acquire()
        await waits.acquire()
        for id in (1, 3):
            await client.send(client.notification("notifications/cancelled", requestId=id))
        await connection.over()

    assert by_id(connection.json) == {2: {}}


async def test_batch_that_is_empty_is_refused() -> None:
    """JSON-RPC 2.0: an array with at least one value."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send(body=[b"[]"])

    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("version", [each for each in LEGACIES if each != BATCHES])
async def test_batch_on_another_revision_is_refused(version: str) -> None:
    """400, and words that name the revision."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send([client.request("ping")])

    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
    assert version in answer.json["error"]["message"]


async def test_batch_without_a_session_is_refused() -> None:
    """initialize MUST NOT be part of a batch, so nothing else can come in one either."""
    client = Client(serving(echo), BATCHES)

    answer = await client.send([client.initialize()])

    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


def bounded(*tools: Any, **limits: Any) -> Endpoint:
    return Endpoint(Mux(Suite(name="test", version="1", tools=tools), limits=Limits(**limits)))


@tool
async def say(times: int) -> str:
    """Returns a text of that many bytes."""
    return "x" * times


async def test_batch_has_a_bound() -> None:
    """One message too many: the whole batch is rejected, and nothing of it runs."""
    client = await Client.begin(bounded(echo), BATCHES)
    ping = [client.request("ping", id=number) for number in range(101)]

    refused = await client.send(ping)
    answered = await client.send(ping[:100])

    assert [refused.status, answered.status] == [413, 200]
    assert refused.json["error"]["code"] == -32600
    assert "more than 100 messages" in refused.json["error"]["message"]


async def test_batch_runs_a_few_requests_at_a_time() -> None:
    """Those that wait for their turn hold no place, and all are answered."""
    go = asyncio.Event()
    running: list[int] = []

    @tool
    async def hold(number: int) -> int:
        running.append(number)
        await go.wait()
        return number

    app = bounded(hold)
    client = await Client.begin(app, BATCHES)
    batch = [client.call("hold", {"number": number}, id=number) for number in range(15)]
    async with client.open(batch) as connection:
        await until(lambda: len(running) == 10)
        for _ in range(20):
            await asyncio.sleep(0)
        assert 10 == len(running) == len(app.mux.waiting_calls)
        go.set()
        await connection.over()

    found = by_id(connection.messages)
    assert [*range(15)] == [int(found[id]["content"][0]["text"]) for id in range(15)]


async def test_batch_answer_has_a_bound() -> None:
    """Requests without room get an error that names the limit, and those left do not run."""
    client = await Client.begin(bounded(say, max_result_bytes=10_000), BATCHES)
    batch = [client.call("say", {"times": 4000}, id=number) for number in range(20)]

    answered = await client.send(batch)

    found = by_id(answered.messages)
    assert len(found) == 20
    assert ["content" in found[id] for id in range(3)] == [True, True, False]
    errors = [found[id] for id in range(2, 20)]
    assert {error["code"] for error in errors} == {-32600}
    assert all("10000 bytes (limit: max_result_bytes)" in error["message"] for error in errors)
    assert len(answered.body) < 20_000


async def test_batch_of_one_client_leaves_places_for_others() -> None:
    """Before 2026-07-28 a batch continues after a disconnect, within the share of its address."""

    @tool
    async def hold() -> None:
        await asyncio.Event().wait()

    app = bounded(hold, say, max_waiting_calls=20)
    client = await Client.begin(app, BATCHES, client=("192.0.2.1", 1))
    other = Client(app, client=("192.0.2.2", 1))
    batch = [client.call("hold", id=number) for number in range(50)]
    async with client.open(batch) as connection:
        await until(lambda: len(app.mux.waiting_calls) == 5)
        connection.disconnect()

        answered = await other.send(other.call("say", {"times": 1}))
        await client.send(method="DELETE")  # cancels the calls

    assert answered.status == 200
    assert len(app.mux.waiting_calls) == 0


async def test_batch_allocates_nothing_for_queued_requests() -> None:
    """Many batches, each with a few calls that wait, do not fill the memory with the others."""
    running: list[int] = []

    @tool
    async def hold() -> None:
        running.append(1)
        await asyncio.Event().wait()

    app = bounded(hold)
    client = await Client.begin(app, BATCHES)
    before = len(asyncio.all_tasks())
    async with client.open([client.call("hold", id=number) for number in range(100)]):
        await until(lambda: len(running) == 10)

        assert len(asyncio.all_tasks()) - before < 20
        await client.send(method="DELETE")
        await until(lambda: len(app.mux.waiting_calls) == 0)

    assert len(running) == 10


@pytest.mark.parametrize("way", ["leaves", "stops"])
async def test_batch_that_is_cancelled_begins_nothing_more(way: str) -> None:
    """By a client that leaves, where a tool wants that, or by a server that stops."""
    running: list[int] = []

    class Hold(Tool):
        name = "hold"
        on_disconnect = "cancel"

        async def call(self, request: ToolRequest, channel: Channel) -> None:
            running.append(1)
            await asyncio.Event().wait()

    mux = Mux(
        Suite(name="test", version="1", tools=[Hold]),
    )
    app = Endpoint(mux, grace=0)
    client = await Client.begin(app, BATCHES)
    async with client.open([client.call("hold", id=number) for number in range(20)]) as connection:
        await until(lambda: len(running) == 10)
        if way == "leaves":
            connection.disconnect()
        else:
            await app.aclose()
            assert len(by_id(connection.messages)) == 20
        await connection.over()

    assert len(running) == 10
    assert len(mux.waiting_calls) == 0
