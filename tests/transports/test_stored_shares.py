"""Stored data of one client leaves room for that of others."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Endpoint,
    Job,
    Limits,
    Mux,
    Resource,
    Suite,
    tool,
)
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Put
from genmcp.tasks.options import JobOptions
from genmcp.tools import Tool
from tests.support.asgi import LEGACIES, TASKS, Client, Connection

LEGACY = LEGACIES[0]
KEY = "io.genmcp/idempotencyKey"
SERVED: list[Endpoint] = []


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@tool
async def report(size: int, channel: Channel) -> str:
    """Sends progress, and then a result of this size."""
    await channel.progress(1)
    return "x" * size


class Start(Tool):
    """Waits for a job of a queue that no process serves."""

    name = "start"

    async def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("done", Job(name="none", arguments={}, queue="nobody's"))

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "over"


def served(store: MemoryStore, *, tasks: int = 1000, **limits: Any) -> Endpoint:
    """Return an endpoint over *store* that authenticates who an `x-user` header names."""

    def principal(scope: Any) -> str | None:
        user = dict(scope["headers"]).get(b"x-user")
        return user and user.decode()

    suite = Suite(
        name="test",
        version="1",
        tools=[echo, report, Start],
        resources=[Resource(f"note://{n}", content="Rain.") for n in range(20)],
    )
    mux = Mux(suite, store=store, jobs=JobOptions(tasks_of_client=tasks), limits=Limits(**limits))
    SERVED.append(Endpoint(mux, principal=principal))
    return SERVED[-1]


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    for app in SERVED:
        await app.mux.aclose()
        await app.aclose()
    SERVED.clear()


async def at(app: Endpoint, address: str, version: str = LEGACY, **scope: Any) -> Client:
    return await Client.begin(app, version, client=(address, 5000), **scope)


def error(answer: Connection) -> str:
    message: str = answer.json.get("error", {}).get("message", "")
    return message


class Pair(Client):
    """A client of HTTP+SSE, which gets its responses on a stream."""

    stream: Connection


@asynccontextmanager
async def sse(app: Endpoint, address: str) -> AsyncIterator["Pair"]:
    """Open a stream and initialize its session."""
    client = Pair(app.sse_route("/sse").app, "2024-11-05", client=(address, 5000))
    async with client.open(method="GET") as stream:
        event = await stream.event()
        client.scope["query_string"] = event.data.partition("?")[2].encode()
        await client.send(client.initialize())
        assert "result" in await stream.message()
        client.stream = stream
        yield client


async def set_level(client: Client, level: str = "debug") -> str:
    return error(await client.send(client.request("logging/setLevel", {"level": level})))


async def subscribe(client: Client, uri: str) -> str:
    return error(await client.send(client.request("resources/subscribe", {"uri": uri})))


async def test_sessions_of_one_address_fill_its_share_only() -> None:
    """A client that begins sessions at will is refused; other addresses and principals are not."""
    app = served(MemoryStore(max_entries=100))
    refused = [await set_level(await at(app, "10.0.0.1")) for _ in range(30)]

    assert refused[:22] == [""] * 22
    assert all("This client has used the share of the store" in each for each in refused[22:])
    assert await set_level(await at(app, "10.0.0.2")) == ""
    assert await subscribe(await at(app, "10.0.0.2"), "note://1") == ""


async def test_anonymous_crowd_leaves_room_for_principals() -> None:
    """Many addresses together have a share, too."""
    app = served(MemoryStore(max_entries=100))
    refused = [await set_level(await at(app, f"10.0.0.{n}")) for n in range(80)]

    assert refused.count("") == 72
    assert "All anonymous clients have used the share" in refused[-1]
    ada = Client(app, capabilities=TASKS)
    answer = await ada.send(ada.call("start"), headers={"x-user": "ada"})
    assert answer.json["result"]["resultType"] == "task"


async def test_level_that_is_the_default_is_not_stored() -> None:
    """A session that sets the level it has costs nothing."""
    store = MemoryStore()
    client = await at(served(store), "10.0.0.1")
    for level, records in (("info", 0), ("debug", 1), ("debug", 1), ("info", 0)):
        assert await set_level(client, level) == ""
        assert f"<MemoryStore: {records} records" in repr(store)


async def test_subscription_list_of_a_session_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each subscription writes the whole list of its session."""
    monkeypatch.setattr("genmcp._mux.session_streams._MAX_SUBSCRIBED_BYTES", 30)
    client = await at(served(MemoryStore()), "10.0.0.1")
    refused = [await subscribe(client, f"note://{n}") for n in (1, 2, 3, 1, 4)]

    assert refused[:4] == ["", "", "", ""]
    assert "have more than 30 bytes" in refused[4]


async def test_large_streams_of_a_client_drop_no_other_stream() -> None:
    """A client that lost its connection resumes, however much another has been sent."""
    app = served(MemoryStore(max_bytes=1_000_000))
    bob, mallory = await at(app, "10.0.0.1"), await at(app, "10.0.0.2")
    sent = await bob.send(bob.call("report", {"size": 10}, progressToken=1))
    for _ in range(20):  # most of them are sent live only
        answer = await mallory.send(mallory.call("report", {"size": 100_000}, progressToken=1))
        assert "x" * 100_000 in str(answer.messages[-1]["result"])

    async with bob.listen(after=sent.ids[0]) as resumed:
        while "result" not in (message := await resumed.message()):
            pass
        assert "x" * 10 in str(message["result"])


async def test_events_for_resumption_leave_room_for_tasks() -> None:
    """A busy server sends so much that the events retained for clients would fill its store."""
    app = served(MemoryStore(max_bytes=1_000_000))
    for number in range(20):
        client = await at(app, f"10.0.0.{number}")
        answer = await client.send(client.call("report", {"size": 60_000}, progressToken=1))
        assert "x" * 60_000 in str(answer.messages[-1]["result"])

    for number in range(10):
        client = await at(app, f"10.0.1.{number}", "2026-07-28", capabilities=TASKS)
        answer = await client.send(client.call("start"))
        assert answer.json["result"]["resultType"] == "task"


async def test_keyed_calls_of_a_principal_fill_its_share_only() -> None:
    """A client that is over its share gets 429 and the share; others' calls are kept."""
    store = MemoryStore(max_bytes=1_000_000)
    client = Client(served(store))
    ada, bob = {"x-user": "ada"}, {"x-user": "bob"}
    for number in range(30):
        call = client.call("echo", {"text": "x" * 20_000}, **{KEY: f"key {number}"})
        answer = await client.send(call, headers=ada)
        if answer.status != 200:
            break

    assert answer.status == 429
    assert "share of the store, 0.25 of it" in error(answer)
    call = client.call("echo", {"text": "x"}, **{KEY: "key"})
    assert (await client.send(call, headers=bob)).status == 200


@pytest.mark.parametrize("user", [None, "mallory"])
async def test_open_tasks_of_one_client_are_refused_at_their_bound(user: str | None) -> None:
    """A principal, or an anonymous address, has so many; another's task is made."""
    app = served(MemoryStore(), tasks=3)
    client = await at(app, "10.0.0.1", "2026-07-28", capabilities=TASKS)
    other = await at(app, "10.0.0.2", "2026-07-28", capabilities=TASKS)
    headers = {} if user is None else {"x-user": user}
    for _ in range(3):
        assert (await client.send(client.call("start"), headers=headers)).status == 200

    answer = await client.send(client.call("start"), headers=headers)
    assert answer.status == 429
    assert "JobOptions.tasks_of_client" in error(answer)
    assert (await other.send(other.call("start"))).status == 200


async def test_listeners_of_one_address_fill_its_share_only() -> None:
    """A client that opens streams and leaves them is refused; others listen and resume."""
    store = MemoryStore(max_entries=300)
    app = served(store)
    bob = await at(app, "10.0.0.1")
    sent = await bob.send(bob.call("report", {"size": 10}, progressToken=1))
    for _ in range(67):
        mallory = await at(app, "10.0.0.2")
        async with mallory.listen() as stream:
            await stream.started()

    refused = await (await at(app, "10.0.0.2")).send(method="GET")
    assert refused.status == 429
    async with (await at(app, "10.0.0.3")).listen() as stream:
        await stream.started()
    async with bob.listen(after=sent.ids[0]) as resumed:
        while "result" not in (message := await resumed.message()):
            pass
        assert "x" * 10 in str(message["result"])


async def test_client_past_its_share_can_give_room_back() -> None:
    """It opens no more streams, but can unsubscribe and end its sessions."""
    store = MemoryStore(max_entries=100)
    app = served(store)
    client = await at(app, "10.0.0.1")
    for uri in ("note://1", "note://2"):
        assert await subscribe(client, uri) == ""
    for _ in range(30):
        await set_level(await at(app, "10.0.0.1"))
    while (await store.usage("address 10.0.0.1")).entries < 25:
        await store.apply(Put(secrets.token_hex(4), b"", client="address 10.0.0.1"))

    refused = await (await at(app, "10.0.0.1")).send(method="GET")
    assert refused.status == 429
    assert "share of the store" in error(refused)
    unsubscribed = client.request("resources/unsubscribe", {"uri": "note://1"})
    assert error(await client.send(unsubscribed)) == ""
    assert (await client.send(method="DELETE")).status == 204


async def test_responses_over_sse_count_for_their_client() -> None:
    """However much one client is sent over HTTP+SSE, others resume their streams."""
    store = MemoryStore(max_bytes=1_000_000)
    app = served(store)
    bob = await at(app, "10.0.0.1")
    sent = await bob.send(bob.call("report", {"size": 10}, progressToken=1))
    async with sse(app, "10.0.0.2") as mallory:
        for number in range(20):
            await mallory.send(mallory.call("report", {"size": 100_000}, id=number))
            assert number == (await mallory.stream.message())["id"]
            usage = await store.usage("address 10.0.0.2")
            assert 100_000 < usage.size <= 250_000

    async with bob.listen(after=sent.ids[0]) as resumed:
        while "result" not in (message := await resumed.message()):
            pass
        assert "x" * 10 in str(message["result"])


async def test_log_of_an_sse_session_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages are retained for readers that are slow, not for all that was ever sent."""
    monkeypatch.setattr("genmcp._mux.limits.MAX_REPLAY_BYTES", 200_000)
    store = MemoryStore()
    async with sse(served(store), "10.0.0.1") as client:
        for number in range(10):
            await client.send(client.call("report", {"size": 100_000}, id=number))
            assert number == (await client.stream.message())["id"]

        assert (await store.usage("address 10.0.0.1")).size < 300_000


async def test_response_over_sse_without_room_is_an_error() -> None:
    """The client gets a response all the same, which states the share."""
    async with sse(served(MemoryStore(max_bytes=1_000_000)), "10.0.0.1") as client:
        await client.send(client.call("report", {"size": 300_000}, id="large"))
        answer = await client.stream.message()

        assert answer["id"] == "large"
        assert "share of the store" in str(answer)
