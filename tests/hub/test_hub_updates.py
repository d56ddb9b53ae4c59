"""Updates of resources behind a hub, forwarded to its subscribed clients."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp import Channel, Endpoint, Middleware, Mux, Resource, Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.client.options import ClientOptions
from genmcp.core.client.events import SendMessage
from genmcp.hub import subscriptions
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.resources import ResourceRepo
from tests.hub.far import TIME, Far, gate
from tests.support.serving import serve

NEW, OLD = "2026-07-28", "2025-11-25"
NOTE, LIST = "note://today", "list://all"


class Note(Resource):
    """A note."""

    name = "note"
    uri = NOTE

    async def read(self, uri: str, channel: Channel) -> str:
        """Return it."""
        return "buy milk"


class Lists(ResourceRepo):
    """Resources that are not listed."""

    name = "lists"
    prefix = "list://"

    async def read(self, key: str, channel: Channel) -> str:
        """Return one."""
        return key


@tool
async def touch(uri: str, channel: Channel) -> str:
    """Announces the update of a resource."""
    channel.changes.resource_updated(uri)
    return "touched"


def notes() -> Suite:
    """Return a server of notes."""
    return Suite(name="notes", version="1", tools=[touch], resources=[Note, Lists])


class Library(Far):
    """A server of resources that records subscriptions; it rejects those in `denies`."""

    def __init__(self, *, tells: bool = True, denies: str = "") -> None:
        super().__init__()
        self.tells = tells
        self.denies = denies
        self.asked: list[tuple[str, Any]] = []
        self.news = asyncio.Event()

    async def result(self, method: str, message: SendMessage) -> Any:
        """Return the result of a request."""
        params = msgspec.json.decode(message.message).get("params", {})
        uri, rest = params.get("uri"), {"resultType": "complete"}
        if method in self.answers:
            return await super().result(method, message)
        offered = {"resources": {"subscribe": self.tells}, "tools": {}}
        match method:
            case "server/discover":
                cached = {**rest, "ttlMs": 0, "cacheScope": "private"}
                return {**cached, "supportedVersions": [NEW], "capabilities": offered}
            case "initialize":
                info = {"name": "far", "version": "1"}
                return {"protocolVersion": OLD, "capabilities": offered, "serverInfo": info}
            case "resources/list":
                found = [{"name": each, "uri": each} for each in (NOTE, LIST)]
                return {**rest, "resources": found, "ttlMs": 0, "cacheScope": "private"}
            case "resources/templates/list":
                return {**rest, "resourceTemplates": [], "ttlMs": 0, "cacheScope": "private"}
            case "resources/subscribe" | "resources/unsubscribe":
                self.asked.append((method.removeprefix("resources/"), uri))
                self.news.set()
                return None if uri == self.denies else rest
        return await super().result(method, message)

    def update(self, uri: str) -> None:
        """Announce the update of a resource."""
        body = {"method": "notifications/resources/updated", "params": {"uri": uri}}
        self.sink.on_message(msgspec.json.encode({"jsonrpc": "2.0", **body}))

    async def until(self, count: int) -> list[tuple[str, Any]]:
        """Return the recorded requests once there are so many."""
        while len(self.asked) < count:
            self.news.clear()
            await self.news.wait()
        return self.asked


@pytest.fixture
def _unsubscribes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seconds in which a client may subscribe again."""
    monkeypatch.setattr(subscriptions, "_LINGER", 0.0)


def hub_of(revision: str, **options: Any) -> Hub:
    """Return a hub that uses *revision* with its servers."""
    return Hub(options=ClientOptions(revision=revision), **options)


def client_of(mux: Mux, revision: str) -> Client:
    """Return a client of *revision*."""
    return Client(mux, options=ClientOptions(revision=revision))


@pytest.mark.parametrize("behind", [NEW, OLD])
@pytest.mark.parametrize("before", [NEW, OLD])
async def test_updates_go_to_subscribers(before: str, behind: str) -> None:
    """Of that resource only, with every pair of revisions."""
    async with asyncio.timeout(TIME), hub_of(behind) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("a", target=notes()))
        async with (
            client_of(mux, before) as one,
            client_of(mux, before) as other,
            one.subscribe(NOTE) as note,
            other.subscribe(LIST) as lists,
        ):
            assert note.honored == SubscriptionFilter(resource_subscriptions=[NOTE])
            await one.call("a/touch", {"uri": NOTE})
            await one.call("a/touch", {"uri": LIST})
            assert (await anext(note)).params.uri == NOTE
            assert (await anext(lists)).params.uri == LIST


@pytest.mark.usefixtures("_unsubscribes_at_once")
async def test_one_subscription_serves_all_clients() -> None:
    """It ends after the last client's."""
    far = Library()
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far))
        async with client_of(mux, NEW) as one, client_of(mux, NEW) as other:
            async with one.subscribe(NOTE) as first:
                async with other.subscribe(NOTE) as second:
                    far.update(NOTE)
                    assert (await anext(second)).params.uri == NOTE
                far.update(NOTE)
                assert (await anext(first)).params.uri == NOTE
                assert far.asked == [("subscribe", NOTE)]
            assert await far.until(2) == [("subscribe", NOTE), ("unsubscribe", NOTE)]
            async with one.subscribe(NOTE):
                assert far.asked[2:] == [("subscribe", NOTE)]


@pytest.mark.usefixtures("_unsubscribes_at_once")
async def test_one_subscription_serves_all_composites() -> None:
    """However often the hub is served."""
    far = Library()
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        first, second = Mux(hub.server()), Mux(hub.server())
        async with client_of(first, NEW) as one, client_of(second, NEW) as other:
            async with one.subscribe(NOTE) as note:
                async with other.subscribe(NOTE):
                    pass
                async with other.subscribe(LIST):
                    pass
                await far.until(3)
                far.update(NOTE)
                assert (await anext(note)).params.uri == NOTE
            assert await far.until(4) == [
                ("subscribe", NOTE),
                ("subscribe", LIST),
                ("unsubscribe", LIST),
                ("unsubscribe", NOTE),
            ]


async def test_rejected_subscription_is_tried_again() -> None:
    """By the next subscriber."""
    far = Library(denies=NOTE)
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), OLD) as client:
            with pytest.raises(ServerError, match="no updates"):
                async with client.subscribe(NOTE):
                    pass
            far.denies = ""
            async with client.subscribe(NOTE) as changes:
                far.update(NOTE)
                assert (await anext(changes)).params.uri == NOTE


async def test_update_of_a_part_updates_the_resource() -> None:
    """Before 2026-07-28 a server may announce a part of the resource."""
    far = Library()
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), NEW) as client, client.subscribe(NOTE) as notes:
            far.update("note://today-and-tomorrow")
            far.update(f"{NOTE}/first")
            assert (await anext(notes)).params.uri == NOTE
            assert notes._unread == {}


@pytest.mark.parametrize("revision", [NEW, OLD])
async def test_subscription_needs_the_capability(revision: str) -> None:
    """A server without it receives no request for it."""
    far = Library(tells=False)
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), revision) as client:
            if revision == NEW:
                async with client.subscribe(NOTE) as changes:
                    assert not changes.honored.resource_subscriptions
            else:
                with pytest.raises(ServerError, match=NOTE) as refused:
                    async with client.subscribe(NOTE):
                        pass
                assert refused.value.code == -32602
    assert far.asked == []


async def test_one_rejected_resource_does_not_affect_others() -> None:
    """They get streams of their own."""
    far = Library(denies=LIST)
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with (
            client_of(Mux(hub.server()), NEW) as client,
            client.listen(NOTE, LIST) as changes,
        ):
            assert changes.honored.resource_subscriptions == [NOTE]
            far.update(NOTE)
            assert (await anext(changes)).params.uri == NOTE


async def test_subscription_survives_a_reconnection() -> None:
    """An update is sent, since some may have been missed."""
    far = Library()

    async def sleep(delay: float) -> None:
        far.down = False

    async with asyncio.timeout(TIME), hub_of(OLD, sleep=sleep) as hub:
        await hub.add(ServerConfig("far", target=far, retry=Retry(1)))
        async with client_of(Mux(hub.server()), OLD) as client, client.subscribe(NOTE) as changes:
            far.down = True
            assert not (await client.call("far/quick")).is_error
            assert (await anext(changes)).params.uri == NOTE
            assert far.asked == [("subscribe", NOTE)] * 2
            far.update(NOTE)
            assert (await anext(changes)).params.uri == NOTE


async def test_subscription_follows_the_resource() -> None:
    """Its clients need not subscribe again."""
    one, other = Library(), Library()
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=one))
        async with client_of(Mux(hub.server()), NEW) as client, client.subscribe(NOTE) as changes:
            await hub.remove("far")
            await hub.add(ServerConfig("far", target=other))
            assert (await anext(changes)).params.uri == NOTE  # it may be another note
            await other.until(1)
            other.update(NOTE)
            assert (await anext(changes)).params.uri == NOTE


@pytest.mark.parametrize("breaks", ["ends", "refuses"])
async def test_ended_stream_is_opened_again(breaks: str) -> None:
    """Its end, or a rejection, does not show that the connection is broken."""
    again, held, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()
    listens: list[Any] = []

    def told(far: Far, method: str, id: Any, **params: Any) -> None:
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
        body = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params | meta}
        far.sink.on_message(msgspec.json.encode(body), id)

    async def listen(far: Far, message: SendMessage) -> Any:
        listens.append(message.id)
        if breaks == "refuses" and len(listens) == 2:
            return None
        honored = {"resourceSubscriptions": [NOTE]}
        told(far, "subscriptions/acknowledged", message.id, notifications=honored)
        if len(listens) == 1:
            await ends.wait()
            return {"resultType": "complete"}
        again.set()
        await held.wait()
        return None

    async def sleep(delay: float) -> None:
        pass

    far = Library()
    far.answers["subscriptions/listen"] = listen
    async with asyncio.timeout(TIME), hub_of(NEW, sleep=sleep) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), NEW) as client, client.subscribe(NOTE) as changes:
            ends.set()
            await again.wait()
            assert (await anext(changes)).params.uri == NOTE  # it may have changed
            told(far, "resources/updated", listens[-1], uri=NOTE)
            assert (await anext(changes)).params.uri == NOTE
            assert len(listens) == (3 if breaks == "refuses" else 2)


@pytest.mark.parametrize("ends", ["late", "gone"])
async def test_slow_subscription_is_treated_as_accepted(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a server that was removed is not."""
    monkeypatch.setattr(subscriptions, "_ACCEPT_TIMEOUT", 0 if ends == "late" else TIME)
    came, _, answer = gate()
    far = Library()
    far.answers["resources/subscribe"] = answer
    async with (
        asyncio.timeout(TIME),
        hub_of(OLD) as hub,
    ):
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), NEW) as client:
            changes = client.subscribe(NOTE)
            entering = asyncio.ensure_future(changes.__aenter__())
            await came.wait()
            if ends == "gone":
                await hub.remove("far")
            await entering
            assert bool(changes.honored.resource_subscriptions) == (ends == "late")
            await changes.__aexit__()


@pytest.mark.usefixtures("_unsubscribes_at_once")
async def test_subscribe_during_unsubscribe() -> None:
    """The server gets both requests in order."""
    came, go, answer = gate()

    async def late(far: Far, message: SendMessage) -> Any:
        assert isinstance(far, Library)
        far.asked.append(("unsubscribe", NOTE))
        return await answer(far, message)

    far = Library()
    far.answers["resources/unsubscribe"] = late
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        await hub.add(ServerConfig("far", target=far))
        async with client_of(Mux(hub.server()), NEW) as client:
            async with client.subscribe(NOTE):
                pass
            await came.wait()
            entering = asyncio.ensure_future(client.subscribe(NOTE).__aenter__())
            for _ in range(10):
                await asyncio.sleep(0)
            go.set()
            changes = await entering
            far.update(NOTE)
            assert (await anext(changes)).params.uri == NOTE
            assert [each for each, _ in far.asked] == ["subscribe", "unsubscribe", "subscribe"]
            await changes.__aexit__()


async def test_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all clients together."""
    monkeypatch.setattr(subscriptions, "_MAX_SUBSCRIPTIONS", 1)
    async with asyncio.timeout(TIME), hub_of(OLD) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=Library()))
        async with client_of(mux, NEW) as client, client.subscribe(NOTE):
            async with client.subscribe(NOTE):
                pass
            with pytest.raises(ServerError, match="Too many"):
                async with client.subscribe(LIST):
                    pass


@pytest.mark.parametrize("behind", [NEW, OLD])
async def test_subscription_survives_a_crash(behind: str) -> None:
    """Of a server over stdio."""
    path = str(Path(__file__).with_name("stdio_server.py"))
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    config = ServerConfig("far", sys.executable, [path], env, retry=Retry(1, 0))
    async with asyncio.timeout(30), hub_of(behind) as hub:
        await hub.add(config)
        async with client_of(Mux(hub.server()), OLD) as client, client.subscribe(NOTE) as changes:
            await client.call("far/touch")
            assert (await anext(changes)).params.uri == NOTE
            assert (await client.call("far/crash")).is_error
            assert (await anext(changes)).params.uri == NOTE  # it may have changed
            await client.call("far/touch")
            assert (await anext(changes)).params.uri == NOTE


@pytest.mark.parametrize("behind", [NEW, OLD])
async def test_updates_of_a_server_over_http(behind: str) -> None:
    """Of several resources, during other calls of the server, through a middleware."""
    async with asyncio.timeout(30), serve(Endpoint(notes())) as url, hub_of(behind) as hub:
        await hub.add(ServerConfig("a", url=url))
        async with (
            client_of(Mux(Middleware(hub.server())), NEW) as client,
            client.listen(NOTE, LIST) as changes,
            client.subscribe(LIST) as lists,
        ):
            for uri in (NOTE, LIST):
                await client.call("a/touch", {"uri": uri})
                assert (await anext(changes)).params.uri == uri
            assert (await anext(lists)).params.uri == LIST
