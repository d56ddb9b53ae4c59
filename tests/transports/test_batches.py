"""Batches: 2025-03-26, basic, "Batching"."""

import asyncio
from typing import Any

import pytest

from genmcp import Call, Channel, Tool, tool
from tests.asgi import LEGACIES, Client, serving

BATCHES = "2025-03-26"


@tool
async def echo(text: str) -> str:
    """Says it again."""
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

    assert (200, "application/json") == (answer.status, answer.headers["content-type"])
    answers = by_id(answer.json)
    assert len(answer.json) == 7
    assert answers[1] == {}
    assert answers["b"]["content"][0]["text"] == "x"
    assert (-32602, -32601, -32601) == tuple(answers[id]["code"] for id in (3, 4, 5))
    assert answers[None]["code"] == -32600


async def test_batch_names_the_member_that_is_faulty() -> None:
    """An error carries the id of its member, so that the client knows which one was meant."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send([{"jsonrpc": "1.0", "id": 7, "method": "ping"}])

    assert [(7, -32600)] == [(each["id"], each["error"]["code"]) for each in answer.json]


async def test_batch_of_one_is_answered_with_a_batch() -> None:
    """The answer has the form of the question."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send([client.request("ping")])

    assert [{"jsonrpc": "2.0", "id": 1, "result": {}}] == answer.json


async def test_batch_of_notifications_is_accepted() -> None:
    """202 with no body."""
    client = await Client.begin(serving(echo), BATCHES)
    told = client.notification("notifications/initialized")

    answer = await client.send([told, told, {"jsonrpc": "2.0", "id": 9, "result": {}}])

    assert (202, b"") == (answer.status, answer.body)


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
    assert {1, 2, 3, 4} == set(by_id(answer.messages))
    assert 1 == sum(m.get("method") == "notifications/progress" for m in answer.messages)
    assert [1, 2, 3, 4, 5] == [int(id.partition("/")[2]) for id in answer.ids]


async def test_batch_with_a_call_that_is_cancelled_answers_the_others() -> None:
    """Nothing is said of the cancelled one."""
    waits = asyncio.Semaphore(0)

    class Held(Tool):
        name = "held"

        async def call(self, request: Call, channel: Channel) -> str:
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

    assert {2: {}} == by_id(connection.json)


async def test_batch_that_is_empty_is_refused() -> None:
    """JSON-RPC 2.0: an array with at least one value."""
    client = await Client.begin(serving(echo), BATCHES)

    answer = await client.send(body=[b"[]"])

    assert (400, -32600) == (answer.status, answer.json["error"]["code"])


@pytest.mark.parametrize("version", [each for each in LEGACIES if each != BATCHES])
async def test_batch_on_another_revision_is_refused(version: str) -> None:
    """Row 37: 400, and words that name the revision."""
    client = await Client.begin(serving(echo), version)

    answer = await client.send([client.request("ping")])

    assert (400, -32600) == (answer.status, answer.json["error"]["code"])
    assert version in answer.json["error"]["message"]


async def test_batch_without_a_session_is_refused() -> None:
    """initialize MUST NOT be part of a batch, so nothing else can come in one either."""
    client = Client(serving(echo), BATCHES)

    answer = await client.send([client.initialize()])

    assert (400, -32600) == (answer.status, answer.json["error"]["code"])
