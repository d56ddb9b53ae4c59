"""Clients of a hub are one client to its servers, and do not share what belongs to one of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import genmcp
from genmcp import Endpoint, Mux, Suite, resource, tool
from genmcp.catalogue import SearchTools
from genmcp.handles import Handle
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from tests.hub.far import NEW, OLD
from tests.support.asgi import Client
from tests.support.keyed import OPEN, Counts, close_all, keyed, refused, said

SECRETS = "a secret of 16 bytes", "another one of 16 bytes"


class Pay(Counts):
    """Pays once per value of `request_id`."""

    idempotency_key = "request_id"
    input_schema = {"type": "object", "properties": {"request_id": {"type": "string"}}}


def bank(*tools: Any) -> Mux:
    """Return a server, which keeps what it knows for as long as it lives."""
    return opened(Suite(name="bank", version="1", tools=tools), SECRETS[0])


def opened(server: Any, secret: str) -> Mux:
    """Return a mux that is closed at the end of the test."""
    OPEN.append(Mux(server, secret=secret))
    return OPEN[-1]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Close the muxes of the test."""
    yield
    await close_all()


@asynccontextmanager
async def served(target: Any, name: str = "bank") -> AsyncIterator[Endpoint]:
    """Serve a hub of *target*, with a memory of its own."""
    async with Hub() as hub:
        server = hub.server()
        await hub.add(ServerConfig(name, target=target))
        yield Endpoint(opened(server, SECRETS[1]), principal=lambda scope: scope.get("who"))


async def paid(app: Endpoint, who: str, id: str = "r1", version: str = NEW, **rest: Any) -> str:
    """Return the receipt of a payment by *who*."""
    client = await Client.begin(app, version, who=who)
    return said(await client.send(client.call("bank/counts", {"request_id": id, **rest})))


@pytest.mark.parametrize("version", [NEW, OLD])
async def test_key_belongs_to_the_caller_of_the_hub(version: str) -> None:
    """Two people with the same key and arguments pay twice; each gets their own receipt again."""
    pay = Pay()
    async with served(bank(pay)) as app:
        assert await paid(app, "alice", version=version) == "call 1"
        assert await paid(app, "bob", version=version) == "call 2"
        assert await paid(app, "alice", version=version) == "call 1"
        assert await paid(app, "alice", "r2", version=version) == "call 3"
    assert pay.calls == 3


async def test_key_is_known_to_every_process_of_the_hub() -> None:
    """A payment that is repeated after a restart, or by way of another replica, runs once."""
    mux = bank(pay := Pay())
    async with served(mux) as app:
        assert await paid(app, "alice") == "call 1"
    async with served(mux) as app, served(mux) as replica:
        assert await paid(app, "alice") == "call 1"
        assert await paid(replica, "alice") == "call 1"
        assert await paid(replica, "bob") == "call 2"
    assert pay.calls == 2


async def test_key_with_other_arguments_is_rejected() -> None:
    """As without a hub, and only if the same person has used the key."""
    async with served(bank(Pay())) as app:
        await paid(app, "alice")
        assert await paid(app, "bob", amount=1) == "call 2"
        alice = await Client.begin(app, who="alice")
        again = alice.call("bank/counts", {"request_id": "r1", "amount": 1})
        assert "other arguments" in (await alice.send(again)).body.decode()


async def test_anonymous_caller_of_a_hub_has_no_keys() -> None:
    """Any other anonymous client would get the result; also at the end of a chain of hubs."""
    async with served(bank(pay := Pay())) as near, served(near, "near") as app:
        for server, name in (near, "bank/counts"), (app, "near/bank/counts"):
            client = await Client.begin(server)
            answer = await client.send(client.call(name, {"request_id": "r1"}))
            assert "needs an authenticated client" in answer.body.decode()
    assert pay.calls == 0


async def test_key_belongs_to_the_caller_through_two_hubs() -> None:
    """Each hub adds its own caller to the one that it is told."""
    async with served(bank(pay := Pay())) as near, served(near.mux, "near") as app:
        texts = []
        for who in ("alice", "bob", "alice"):
            client = await Client.begin(app, who=who)
            message = client.call("near/bank/counts", {"request_id": "r1"})
            texts.append(said(await client.send(message)))
    assert texts == ["call 1", "call 2", "call 1"]
    assert pay.calls == 2


async def test_hidden_tool_has_keys_of_the_caller() -> None:
    """A key in the arguments of a tool that calls another one is no different."""
    members = Suite(name="bank", version="1", tools=[Pay()])
    async with served(opened(SearchTools(members), SECRETS[0])) as app:
        texts = []
        for who in ("alice", "bob", "alice"):
            client = await Client.begin(app, who=who)
            given = {"name": "counts", "arguments": {"request_id": "r1"}}
            texts.append(said(await client.send(client.call("bank/call_tool", given))))
    assert texts == ["call 1", "call 2", "call 1"]


async def test_key_in_meta_runs_a_forwarded_call_once() -> None:
    """The hub knows such a key, whatever the server is; it belongs to the caller, too."""
    async with served(bank(counts := Counts())) as app:
        texts = []
        for who in ("alice", "bob", "alice"):
            client = await Client.begin(app, who=who)
            texts.append(said(await client.send(keyed(client, tool="bank/counts"))))
        anonymous = await Client.begin(app)
        assert "authenticated" in refused(
            await anonymous.send(keyed(anonymous, tool="bank/counts"))
        )
    assert texts == ["call 1", "call 2", "call 1"]
    assert counts.calls == 2


async def test_only_owner_of_a_hub_keeps_its_keys() -> None:
    """A program that uses the hub itself, or a client of its pipe, is told apart from nobody."""
    mux = bank(Pay())
    async with Hub() as hub:
        server = hub.server()
        await hub.add(ServerConfig("bank", target=mux))
        direct = await hub.call("bank/counts", {"request_id": "r1"})
        async with genmcp.Client(opened(server, SECRETS[1])) as client:
            local = await client.call("bank/counts", {"request_id": "r1"})
    assert direct.data == local.data == "call 1"


async def test_cached_resource_is_read_once_for_all_callers() -> None:
    """The server has one client, so that its answer would be the same for each."""
    reads = 0

    @resource("note://today", cache_ttl=60.0, cache_scope="private")
    async def today() -> str:
        """Counts."""
        nonlocal reads
        reads += 1
        return f"read {reads}"

    mux = opened(Suite(name="notes", version="1", resources=[today]), SECRETS[0])
    async with served(mux) as app:
        texts = []
        for who in ("alice", "bob"):
            client = await Client.begin(app, who=who)
            answer = await client.send(client.request("resources/read", {"uri": "note://today"}))
            texts.append(answer.json["result"]["contents"][0]["text"])
    assert texts == ["read 1", "read 1"]


class Cart(msgspec.Struct):
    items: int = 0


@tool
async def start(channel: genmcp.Channel) -> Handle[Cart]:
    """Starts a cart."""
    return await Handle.new(channel, Cart())


@tool
async def add(cart: Handle[Cart]) -> str:
    """Adds an item."""
    async with cart as value:
        value.items += 1
        return str(value.items)


async def test_state_behind_a_hub_is_of_all_who_know_its_id() -> None:
    """The server seals the id for its one client."""
    async with served(bank(start, add)) as app:
        alice, bob = [await Client.begin(app, who=who) for who in ("alice", "bob")]
        id = said(await alice.send(alice.call("bank/start")))
        counts = [
            said(await client.send(client.call("bank/add", {"cart": id})))
            for client in (alice, bob)
        ]
    assert counts == ["1", "2"]
