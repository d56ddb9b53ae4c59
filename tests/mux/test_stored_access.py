"""The access of a call that continues without a request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from genmcp import Access, Channel, Continue, Endpoint, Mux, Run, Suite, Tool, job
from tests.support.asgi import PATIENCE, TASKS, Client

ANN = Access(
    issuer="https://login.example.com",
    subject="ann",
    client_id="agent",
    scopes=frozenset({"parts:read", "parts:write"}),
    expires=2e9,
    claims={"email": "ann@example.com"},
)


@job
async def nothing(run: Run) -> str:
    return "done"


class Waits(Tool):
    """Waits for a job, after which it continues from the store."""

    name = "waits"
    seen: list[Access | None]

    def visible(self, access: Access | None) -> bool:
        self.seen.append(access)
        return access is None or "parts:read" in access.scopes

    def call(self, request: Any, channel: Channel) -> Continue:
        self.seen.append(channel.access)
        return nothing.job().then(self.after)

    async def after(self, request: Any, value: str, channel: Channel) -> str:
        self.seen.append(channel.access)
        return str(channel.principal)


@pytest.fixture
async def mux(_tasks_end: None) -> AsyncIterator[Mux]:
    Waits.seen = []
    made = Mux(Suite(name="test", version="1", tools=[Waits]))
    yield made
    await made.aclose()


async def test_resumed_call_has_issuer_subject_client_and_scopes(mux: Mux) -> None:
    """The record of a task keeps no claims, which may be private, and no time of expiry."""
    client = Client(Endpoint(mux), capabilities=TASKS, user=ANN)
    id = (await client.send(client.call("waits"))).json["result"]["taskId"]
    async with asyncio.timeout(PATIENCE):
        task: dict[str, Any] = {"status": "working"}
        while task["status"] == "working":
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task = answer.json["result"]

    kept = Access(issuer=ANN.issuer, subject="ann", client_id="agent", scopes=ANN.scopes)
    assert task["result"]["content"][0]["text"] == ANN.principal == kept.principal
    assert Waits.seen[:2] == [ANN, ANN]
    assert Waits.seen[2:] and all(each == kept for each in Waits.seen[2:])


async def test_task_is_unknown_to_another_issuers_user(mux: Mux) -> None:
    """Two authorization servers may give the same subject to different people."""
    client = Client(Endpoint(mux), capabilities=TASKS, user=ANN)
    id = (await client.send(client.call("waits"))).json["result"]["taskId"]
    other = Access(issuer="https://elsewhere.example", subject="ann", scopes=ANN.scopes)
    stranger = Client(Endpoint(mux), capabilities=TASKS, user=other)
    answer = await stranger.send(stranger.request("tasks/get", {"taskId": id}))

    assert answer.json["error"]["code"] == -32602


async def test_whole_message_of_a_call_is_its_request_again(mux: Mux) -> None:
    """The message is stored as it came, without a search for its params."""
    seen: list[Any] = []

    class Keeps(Waits):
        async def after(self, request: Any, value: str, channel: Channel) -> str:
            seen.extend([request.raw, request.meta["other.example/a"], request.arguments])
            return value

    client = Client(Endpoint(Mux(Suite(name="test", version="1", tools=[Keeps]))))
    message = client.call("waits", {"n": 1}, **{"other.example/a": [1]})
    await client.send(message)

    assert [msgspec.json.decode(seen[0]), *seen[1:]] == [message, [1], {"n": 1}]
    await client.app.mux.aclose()
