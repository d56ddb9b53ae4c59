"""Legacy sessions over a store in a file: the knowledge of a process that has just started."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp import Channel, Continue, Endpoint, Limits, Mux, SQLiteStore, Suite, Tool, elicit, tool
from genmcp._mux.sessions import EndSession
from genmcp.cancellation import cancel_and_wait
from genmcp.core.request import Request
from genmcp.errors import StoreUnavailable
from genmcp.protocol.client_features import ListRootsRequestParams
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.stores.store import LogEvent, Store
from tests.support.asgi import LEGACIES, Client, until

RAN: list[str] = []


@tool
async def mark() -> str:
    """Leaves a mark."""
    RAN.append("ran")
    return "done"


@tool
async def ask(channel: Channel) -> str:
    """Sends progress, so that the response is a stream."""
    await channel.progress(1)
    return "done"


class Sure(Tool):
    """Asks, and takes any answer."""

    name = "sure"

    def call(self, request: Any, channel: Channel) -> Any:
        return Continue("sure", elicit("Sure?"))

    def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "answered"


@asynccontextmanager
async def process(store: Store, **limits: Any) -> AsyncIterator[Endpoint]:
    """Serve over *store* as a process of its own would."""
    suite = Suite(name="test", version="1", tools=[mark, ask, Sure])
    mux = Mux(suite, store=store, secret="a secret of all processes", limits=Limits(**limits))
    app = Endpoint(mux)
    try:
        yield app
    finally:
        await app.aclose()
        await mux.aclose()
        await store.aclose()


class Unreadable(SQLiteStore):
    """A store that fails the reads of logs until it is `back`."""

    back = False

    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Any:
        if not self.back:
            raise StoreUnavailable("the store is away")
        return await super().read(log, after, limit)


@pytest.fixture
async def ended(tmp_path: Path) -> Client:
    """The client of a session that was ended in a process that has stopped."""
    async with process(SQLiteStore(tmp_path / "store.db")) as app:
        client = await Client.begin(app, LEGACIES[0])
        assert (await client.send(method="DELETE")).status == 204
    RAN.clear()
    return client


async def test_ended_session_stays_ended_after_a_restart(ended: Client, tmp_path: Path) -> None:
    """The first requests of a process are judged by the stored sessions."""
    for send in ("POST", "GET", "DELETE"):
        async with process(SQLiteStore(tmp_path / "store.db")) as app:
            ended.app = app
            answer = await ended.send(ended.call("mark") if send == "POST" else None, method=send)
            assert answer.status == 404
    assert RAN == []


async def test_batch_of_an_ended_session_is_refused_after_a_restart(tmp_path: Path) -> None:
    """2025-03-26, basic, "Batching": a batch does not circumvent the end of a session."""
    async with process(SQLiteStore(tmp_path / "store.db")) as app:
        client = await Client.begin(app, "2025-03-26")
        await client.send(method="DELETE")
    async with process(SQLiteStore(tmp_path / "store.db")) as app:
        client.app = app
        assert (await client.send([client.call("mark")])).status == 404


async def test_setting_the_clock_ends_no_session_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed data expires by the clock of a shared store, and so do questions and cursors."""
    async with process(SQLiteStore(tmp_path / "store.db"), input_timeout=60.0) as app:
        client = await Client.begin(app, "2025-11-25", capabilities={"elicitation": {}})
        async with client.open(client.call("sure")) as call:
            question = await call.message()
            unix = time.time
            monkeypatch.setattr(time, "time", lambda: unix() + 30 * 86400.0)
            message = {"jsonrpc": "2.0", "id": question["id"]}
            taken = await client.send({**message, "result": {"action": "decline"}})
            await call.over()

    assert (taken.status, call.messages[-1]["result"]["content"][0]["text"]) == (202, "answered")


async def test_session_is_not_trusted_while_ends_cannot_be_read(
    ended: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is refused with 503 until it is known which sessions have ended."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0.01)
    store = Unreadable(tmp_path / "store.db")
    async with process(store) as app:
        ended.app = app
        assert (await ended.send(ended.call("mark"))).status == 503
        store.back = True
        await until(lambda: app.mux.sessions.current, pause=0.01)
        assert (await ended.send(ended.call("mark"))).status == 404


async def test_process_that_falls_behind_learns_of_every_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader at a dropped place of the log reads the remaining events."""
    monkeypatch.setattr("genmcp._mux.sessions._MAX_ENDED", 20)

    class Slow(SQLiteStore):
        """A store that holds back the followers of logs until the test permits them."""

        async def follow(self, log: str, after: str | None = None) -> Any:
            await until(lambda: released, pause=0.01)
            async for event in super().follow(log, after):
                assert isinstance(event, LogEvent)
                yield event

    released: list[bool] = []
    path = tmp_path / "store.db"
    async with (
        process(Slow(path)) as slow,
        process(SQLiteStore(path)) as other,
    ):
        client = await Client.begin(slow, LEGACIES[0])
        assert (await client.send(client.call("mark"))).status == 200
        session = other.mux.sessions.open(client.session or "", None)
        for key in (session.key, *(f"other {number}" for number in range(35))):
            ended = msgspec.msgpack.encode(EndSession(key, session.issued))
            await other.mux.store.apply(other.mux.sessions._append(ended))
        released.append(True)
        await until(lambda: session.key in slow.mux.sessions, pause=0.01)
        assert (await client.send(client.call("mark"))).status == 404


async def test_answer_to_a_server_with_a_full_store_is_503(tmp_path: Path) -> None:
    """The client may send its answer again; HTTP 500 would be a defect of the server."""

    class Full(SQLiteStore):
        async def apply(self, *ops: Any) -> None:
            raise StoreUnavailable("database or disk is full")

    async with process(Full(tmp_path / "store.db")) as app:
        client = await Client.begin(app, LEGACIES[0])
        session = app.mux.sessions.open(client.session or "", None)
        other = Mux(
            Suite(name="test", version="1"),
            store=SQLiteStore(tmp_path / "store.db"),
            secret="a secret of all processes",
        )
        sent: list[bytes] = []
        asking = Request(
            id=1,
            method="tools/call",
            params=RequestParams(),
            revision=REVISIONS[LEGACIES[0]],
            client=session.client,
            session=session.key,
        )
        params = ListRootsRequestParams()
        asked = other.server_requests.ask(asking, None, "roots/list", params, sent.append)
        call = asyncio.create_task(asked)
        await until(lambda: sent)
        id = msgspec.json.decode(sent[0])["id"]
        answer = await client.send({"jsonrpc": "2.0", "id": id, "result": {}})
        await cancel_and_wait(call)
        await other.bus.aclose()
        await other.store.aclose()

        assert answer.status == 503
        assert "cannot keep" in answer.json["error"]["message"]
