"""Values of handles: which tools get, change and list them, and which ids are refused."""

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import pydantic
import pytest
from msgspec import Struct

from genmcp import (
    Accepted,
    Access,
    Channel,
    ClientHandler,
    ConfigurationError,
    Continue,
    Endpoint,
    MemoryStore,
    Mux,
    Run,
    ServerError,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    handles,
    job,
    prompt,
    tool,
)
from genmcp import Client as InProcess
from genmcp.errors import ContractError, StoreUnavailable
from genmcp.handles import Handle
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.store import Op
from genmcp.testing import connect
from tests.support.asgi import Client
from tests.support.clock import Clock

ANN, BOB = Access(subject="ann"), Access(subject="bob")
REFUSED = "there is no such Cart: the id is wrong, or it has expired or was deleted"


class Cart(Struct, forbid_unknown_fields=True):
    items: list[str] = []


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


class Model(pydantic.BaseModel):
    items: list[str] = []


class Order(Struct):
    cart: Handle[Cart]
    more: list[Handle[Cart]] = []


@tool
async def start(channel: Channel, ttl: float = 60.0) -> Handle[Cart]:
    return await Handle.new(channel, Cart(), ttl=ttl)


@tool
async def add(cart: Handle[Cart], item: str) -> list[str]:
    async with cart as value:
        value.items.append(item)
    return value.items


@tool
async def show(cart: Handle[Cart]) -> list[str]:
    return (await cart.get()).items


@tool
async def drop(cart: Handle[Cart]) -> None:
    await cart.delete()


@tool
async def mine(channel: Channel) -> list[Handle[Cart]]:
    return await Handle[Cart].list(channel)


SHOP = (start, add, show, drop, mine)


def mux_of(*tools: Any, **options: Any) -> Mux:
    options = {"secret": "a secret of 16 bytes", **options}
    return Mux(Suite(name="shop", version="1", tools=[*SHOP, *tools]), **options)


@asynccontextmanager
async def shop(
    *tools: Any, access: Access | None = ANN, handler: ClientHandler | None = None, **options: Any
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Yield a function that calls a tool of a shop, which has further *tools*."""
    mux = mux_of(*tools, **options)
    async with connect(mux, access=access, handler=handler) as client:

        async def call(name: str, **arguments: Any) -> Any:
            result = await client.call(name, arguments)
            return result.text if result.is_error else result.data

        yield call
    await mux.aclose()


async def test_handle_is_an_id_with_a_description() -> None:
    """The schema tells the model what the id is of; the tool may describe it better."""

    @tool
    async def pay(cart: Annotated[Handle[Cart], "What to pay for"]) -> None: ...

    async with connect(mux_of(pay)) as client:
        schemas = {each.name: each.input_schema["properties"] for each in await client.tools()}

    described = "Id of the Cart, as another tool of this server has returned it"
    assert schemas["add"]["cart"] == {"type": "string", "description": described}
    assert schemas["pay"]["cart"] == {"type": "string", "description": "What to pay for"}


async def test_handle_that_a_tool_returns_is_a_text_of_its_id() -> None:
    """Alone it is a plain text; within other data, it is a string there."""

    @tool
    async def order(cart: Handle[Cart]) -> Order:
        return Order(cart, [cart])

    async with connect(mux := mux_of(order)) as client:
        started = await client.call("start")
        id = started.text
        ordered = await client.call("order", {"cart": id})

    assert id.isascii()
    assert len(id) < 80
    assert ordered.data == {"cart": id, "more": [id]}
    await mux.aclose()


@pytest.mark.parametrize("kind", [Cart, Basket, Model])
async def test_values_of_each_kind_of_type_are_changed(kind: Any) -> None:
    """Structs, dataclasses and pydantic models, beside constraints of either library."""

    @tool
    async def begin(channel: Channel) -> Any:
        return await Handle.new(channel, kind())

    async def put(value: Any, item: str) -> Any:
        async with value as changed:
            changed.items.append(item)
        return await value.get()

    put.__annotations__["value"] = Handle[kind]
    put.__annotations__["item"] = Annotated[str, pydantic.Field(min_length=1)]

    async with shop(begin, tool(put)) as call:
        id = await call("begin")
        await call("put", value=id, item="a cup")

        assert await call("put", value=id, item="a plate") == {"items": ["a cup", "a plate"]}
        assert "/value: expected a string" in await call("put", value=7, item="a plate")


class Parcel(pydantic.BaseModel):
    cart: Handle[Cart]


async def test_models_of_pydantic_contain_handles() -> None:
    """As arguments, and as results that the hook makes."""

    @tool
    async def pack(parcel: Parcel) -> Parcel:
        return Parcel(cart=parcel.cart)

    async with shop(pack) as call:
        parcel = {"cart": await call("start")}
        assert await call("pack", parcel=parcel) == parcel
        assert f"/parcel/cart: {REFUSED}" in await call("pack", parcel={"cart": "another"})


async def test_handles_are_found_at_any_depth_of_arguments() -> None:
    """Fields of structs, and items of lists; a fault names the place of the one that is refused."""

    class Total(Tool[Order]):
        """Counts items."""

        name = "total"

        async def call(self, request: ToolRequest[Order], channel: Channel) -> int:
            carts = [request.arguments.cart, *request.arguments.more]
            return sum([len((await each.get()).items) for each in carts])

    async with shop(Total) as call:
        one, two = await call("start"), await call("start")
        await call("add", cart=one, item="a cup")
        await call("add", cart=two, item="a plate")

        assert await call("total", cart=one, more=[two, one]) == "3"
        refused = await call("total", cart=one, more=[two, "another"])
        assert refused == f"Invalid arguments for tool total:\n- /more/1: {REFUSED}"
        many = await call("total", cart=one, more=[two] * 100)
        assert many.endswith("(root): 101 ids, but the maximum is 100 in a call")


async def test_wrong_ids_are_searched_for_once() -> None:
    """Arguments may have a million values, and the event loop waits for the search."""

    @tool
    async def fill_all(carts: list[Handle[Cart]], note: dict[str, Any]) -> None: ...

    frames = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal frames
        frames += event == "call"

    async with shop(fill_all) as call:
        ids = [f"cart {number}" for number in range(100)]
        sys.setprofile(count)
        try:
            refused = await call("fill_all", note={"lines": [[1]] * 10_000}, carts=ids)
        finally:
            sys.setprofile(None)

    assert f"/carts/0: {REFUSED}" in refused
    assert f"/carts/19: {REFUSED}" in refused
    assert frames < 50_000  # also those of the client; 2,000,000 if each id is searched for


async def test_ids_of_others_are_refused_as_those_that_never_were() -> None:
    """One text for forged, foreign, expired and deleted ids, and for those of another type."""

    @tool
    async def basket(channel: Channel) -> Handle[Basket]:
        return await Handle.new(channel, Basket())

    mux = mux_of(basket, clock=(clock := Clock(1000.0)))
    async with connect(mux, access=ANN) as ann, connect(mux, access=BOB) as bob:
        id = (await ann.call("start")).text
        gone, other = (await ann.call("start")).text, (await ann.call("basket")).text
        await ann.call("drop", {"cart": gone})

        async def refused(client: Any, id: str) -> CallToolResult:
            result: CallToolResult = await client.call("add", {"cart": id, "item": "a cup"})
            assert result.is_error
            return result

        forged = f"{id[:-1]}{'A' if id[-1] != 'A' else 'B'}"
        results = [await refused(ann, each) for each in ("", "a cart", forged, gone, other)]
        results.append(await refused(bob, id))
        await clock.advance(61.0)
        results.append(await refused(ann, id))

    assert {each.text.partition("/cart: ")[2] for each in results} == {REFUSED}
    assert len({json.dumps(each.meta) for each in results}) == 1
    await mux.aclose()


async def test_id_of_an_anonymous_client_is_enough() -> None:
    """Who has it, has the value; a client that has logged in is somebody else."""
    mux = mux_of()
    async with connect(mux) as one, connect(mux) as two, connect(mux, access=ANN) as ann:
        id = (await one.call("start")).text
        assert (await two.call("add", {"cart": id, "item": "a cup"})).data == ["a cup"]
        assert (await ann.call("show", {"cart": id})).is_error
    await mux.aclose()


async def test_each_use_renews_the_expiry() -> None:
    """A value expires when it was not used for its ttl."""
    async with shop(clock=(clock := Clock(1000.0))) as call:
        id = await call("start", ttl=10.0)
        for use in ("show", "show", "add", "show"):
            await clock.advance(9.0)
            item = {"item": "a cup"} if use == "add" else {}
            assert REFUSED not in await call(use, cart=id, **item)
        await clock.advance(11.0)
        assert REFUSED in await call("show", cart=id)


async def test_block_that_raises_changes_nothing() -> None:
    """The object that it has changed is dropped, and others need not wait for the lease."""

    @tool
    async def fail(cart: Handle[Cart]) -> None:
        async with cart as value:
            value.items.append("a cup")
            raise KeyError("no cup")

    async with shop(fail) as call:
        id = await call("start")
        assert "failed unexpectedly" in await call("fail", cart=id)
        assert await call("add", cart=id, item="a plate") == ["a plate"]


async def test_block_that_is_cancelled_changes_nothing() -> None:
    """The next call need not wait for the lease."""
    inside = asyncio.Event()

    @tool
    async def hang(cart: Handle[Cart]) -> None:
        async with cart as value:
            value.items.append("a cup")
            inside.set()
            await asyncio.Event().wait()

    async with shop(hang) as call:
        id = await call("start")
        hanging = asyncio.ensure_future(call("hang", cart=id))
        await inside.wait()
        hanging.cancel()
        await asyncio.wait([hanging])
        assert await call("add", cart=id, item="a plate") == ["a plate"]


async def test_too_large_a_value_is_refused_and_the_last_one_kept() -> None:
    """The model reads how large it would be."""
    async with shop() as call:
        id = await call("start")
        await call("add", cart=id, item="a cup")

        refused = await call("add", cart=id, item="x" * 70_000)

        assert refused == "The Cart would have 70022 bytes, but the maximum is 65536."
        assert await call("add", cart=id, item="a plate") == ["a cup", "a plate"]


async def test_number_of_values_of_a_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is deleted, or has expired, makes room; another client has room of its own."""
    monkeypatch.setattr(handles, "_MAX_OF_CLIENT", 2)
    mux = mux_of()
    async with connect(mux, access=ANN) as ann, connect(mux, access=BOB) as bob:
        ids = [(await ann.call("start")).text for _ in range(2)]
        refused = await ann.call("start")
        assert refused.is_error
        assert refused.text == "There are already 2 of Cart: delete one."
        assert not (await bob.call("start")).is_error
        await ann.call("drop", {"cart": ids[0]})
        assert not (await ann.call("start")).is_error
    await mux.aclose()


async def test_client_cannot_fill_the_store_of_others() -> None:
    """New values and larger ones are rejected at its share; what it has, it can still delete."""
    mux = mux_of(store=MemoryStore(max_bytes=200_000))
    async with connect(mux, access=ANN) as ann, connect(mux, access=BOB) as bob:
        id = (await ann.call("start")).text
        await ann.call("add", {"cart": id, "item": "x" * 40_000})
        with pytest.raises(ServerError, match="This client has used the share"):
            await ann.call("add", {"cart": id, "item": "x" * 20_000})
        assert (await ann.call("show", {"cart": id})).data == ["x" * 40_000]

        other = (await bob.call("start")).text
        added = await bob.call("add", {"cart": other, "item": "x" * 40_000})
        assert not added.is_error
        await ann.call("drop", {"cart": id})
        assert not (await ann.call("start")).is_error
    await mux.aclose()


async def test_listing_has_the_own_handles_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one type, of as many pages as there are, and of no other client."""
    monkeypatch.setattr(handles, "_PAGE", 2)

    @tool
    async def basket(channel: Channel) -> Handle[Basket]:
        return await Handle.new(channel, Basket())

    mux = mux_of(basket, clock=(clock := Clock(1000.0)))
    async with connect(mux, access=ANN) as ann, connect(mux, access=BOB) as bob:
        ids = []
        for _ in range(5):
            ids.append((await ann.call("start")).text)
            await ann.call("basket")
            await clock.advance(1.0)

        assert (await ann.call("mine")).data == ids
        assert (await bob.call("mine")).data == []
    await mux.aclose()


async def test_anonymous_clients_of_one_address_have_no_list() -> None:
    """They may be strangers to each other."""
    endpoint = Endpoint(mux_of())
    client = Client(endpoint, client=("192.0.2.1", 5000))

    async def call(name: str, **arguments: Any) -> str:
        response = await client.send(client.call(name, arguments))
        text: str = response.messages[-1]["result"]["content"][0]["text"]
        return text

    id = await call("start")
    assert await call("add", cart=id, item="a cup") == '["a cup"]'
    assert await call("mine") == "[]"
    await endpoint.mux.aclose()


@pytest.mark.parametrize("serve", [Mux, Endpoint])
async def test_anonymous_client_for_tests_has_no_list(serve: Callable[[Any], Any]) -> None:
    """A test must not pass where an anonymous client over HTTP finds nothing."""
    served = serve(Suite("shop", tools=SHOP))
    async with connect(served) as client, connect(served, access=ANN) as ann:
        assert (await client.call("start")).text
        assert (await client.call("mine")).text == "[]"
        await ann.call("start")
        assert len((await ann.call("mine")).data) == 1
    async with InProcess(served) as client:  # the process itself: one user, as over stdio
        await client.call("start")
        assert (await client.call("mine")).text != "[]"
    await served.aclose()


@job(name="handles.fill")
async def fill(run: Run[Order], cart: Handle[Cart]) -> Handle[Cart]:
    await run.save(Order(cart))
    assert run.saved is not None
    async with run.saved.cart as value:
        value.items.append("a cup of the job")
    async with await Handle.new(run, Cart()) as other:
        other.items.append("another cart")
    return cart


async def test_jobs_and_steps_get_handles() -> None:
    """As an argument, in the saved state, and as the value of the wait."""

    @tool
    async def order(cart: Handle[Cart], channel: Channel) -> Continue:
        return fill.job(cart).then(filled)

    @order.step
    async def filled(value: Handle[Cart], cart: Handle[Cart]) -> list[str]:
        assert value.id == cart.id
        return (await value.get()).items + (await cart.get()).items

    async with shop(order) as call:
        id = await call("start")
        assert json.loads(await call("order", cart=id)) == ["a cup of the job"] * 2
        assert len(await call("mine")) == 2


class Sure(Struct):
    sure: bool


class Agrees(ClientHandler):
    async def handle_elicitation_create(self, message: str, schema: Any) -> Any:
        return Accepted({"sure": True})


async def test_call_continues_with_its_handle_in_another_process(tmp_path: Path) -> None:
    """The answer to a question is sent to another mux with the same secret and store."""

    @tool
    async def order(cart: Handle[Cart]) -> Continue:
        return elicit("Sure?", Sure).then(sure)

    @order.step
    async def sure(answer: Sure, cart: Handle[Cart]) -> str:
        async with cart as value:
            return f"ordered {value.items}"

    store = f"sqlite:///{tmp_path}/store.db"
    one, two = (Endpoint(mux_of(order, store=store)) for _ in range(2))
    clients = [Client(each, capabilities={"elicitation": {}}, user=ANN) for each in (one, two)]

    async def send(client: Client, name: str, **params: Any) -> Any:
        request = client.call(name, params.pop("arguments"))
        request["params"] |= params
        return (await client.send(request)).messages[-1]["result"]

    id = (await send(clients[0], "start", arguments={}))["content"][0]["text"]
    await send(clients[1], "add", arguments={"cart": id, "item": "a cup"})
    asked = await send(clients[0], "order", arguments={"cart": id})
    (question,), state = asked["inputRequests"], asked["requestState"]
    answers = {question: {"action": "accept", "content": {"sure": True}}}
    done = await send(
        *(clients[1], "order"), arguments={"cart": id}, requestState=state, inputResponses=answers
    )

    assert done["content"][0]["text"] == "ordered ['a cup']"
    for each in (one, two):
        await each.mux.aclose()


async def test_call_may_delete_its_value_before_it_continues() -> None:
    """The ids are checked before the first hook: later ones need not use the value."""

    @tool
    async def order(cart: Handle[Cart]) -> Continue:
        async with cart as value:
            await cart.delete()
        assert value.items == []
        return elicit("Sure?", Sure).then(sure)

    @order.step
    async def sure(answer: Sure, cart: Handle[Cart], channel: Channel) -> str:
        return f"ordered; {len(await Handle[Cart].list(channel))} left"

    async with shop(order, handler=Agrees()) as call:
        assert await call("order", cart=await call("start")) == "ordered; 0 left"


async def test_blocking_hook_changes_values_in_the_loop() -> None:
    """A `def` hook passes a coroutine to `in_loop`."""

    async def put(cart: Handle[Cart], item: str) -> int:
        async with cart as value:
            value.items.append(item)
        return len(value.items)

    @tool
    def add_blocking(cart: Handle[Cart], channel: Channel) -> int:
        return channel.in_loop(put(cart, "a cup"))

    async with shop(add_blocking) as call:
        assert await call("add_blocking", cart=await call("start")) == 1


async def test_changes_of_one_object_happen_one_after_another() -> None:
    """Also if the hook itself makes them at the same time."""

    @tool
    async def fill_up(cart: Handle[Cart]) -> list[str]:
        async def put(item: str) -> None:
            async with cart as value:
                items = value.items
                await asyncio.sleep(0)
                value.items = [*items, item]

        await asyncio.gather(*map(put, "abcde"))
        return sorted((await cart.get()).items)

    async with shop(fill_up) as call:
        assert await call("fill_up", cart=await call("start")) == [*"abcde"]


class Account(Struct):
    amount: int


@tool
async def accounts(channel: Channel) -> list[Handle[Account]]:
    return [await Handle.new(channel, Account(100)) for _ in range(2)]


@tool
async def transfer(payer: Handle[Account], payee: Handle[Account], amount: int) -> None:
    async with payer as one, payee as other:
        one.amount -= amount
        other.amount += amount


@tool
async def amount_of(account: Handle[Account]) -> int:
    return (await account.get()).amount


BANK = (accounts, transfer, amount_of)


async def test_transfers_in_opposite_directions_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for each other: one gives up before its lease ends, and is not written."""
    monkeypatch.setattr(handles, "_LEASE", 0.5)
    both = asyncio.Barrier(2)

    @tool
    async def cross(payer: Handle[Account], payee: Handle[Account], amount: int) -> None:
        async with payer as one:
            one.amount -= amount
            await both.wait()
            async with payee as other:
                other.amount += amount

    async with shop(*BANK, cross) as call:
        a, b = await call("accounts")
        replies = await asyncio.gather(
            call("cross", payer=a, payee=b, amount=10),
            call("cross", payer=b, payee=a, amount=3),
        )
        amounts = [await call("amount_of", account=each) for each in (a, b)]

    busy = "The Account is being changed by other calls: try again later."
    done = [0 if reply else amount for reply, amount in zip(replies, (10, 3), strict=True)]
    assert busy in replies
    assert amounts == [100 - done[0] + done[1], 100 + done[0] - done[1]]


async def test_block_within_a_block_of_the_same_value_fails() -> None:
    """It would wait for itself. A client may send one id for two arguments."""
    async with shop(*BANK) as call:
        a, _ = await call("accounts")
        refused = await call("transfer", payer=a, payee=a, amount=10)
        assert refused == "This call is changing the Account already: give its id once."
        assert await call("amount_of", account=a) == 100


async def test_task_within_a_block_cannot_change_its_value() -> None:
    """The block may wait for the task, also if that has another handle of the value."""

    @tool
    async def split(account: Handle[Account], channel: Channel) -> None:
        async with account, asyncio.TaskGroup() as group:
            group.create_task(change(Handle[Account](account.id, channel)))

    async def change(account: Handle[Account]) -> None:
        with pytest.raises(ToolError, match="This call is changing the Account already"):
            await account.__aenter__()

    async with shop(*BANK, split) as call:
        a, _ = await call("accounts")
        assert await call("split", account=a) in (None, "")


async def test_inner_block_of_a_late_one_is_not_written() -> None:
    """Else the outer one might be overtaken, and half of a transfer be written."""

    @tool
    async def delay(payer: Handle[Account], payee: Handle[Account]) -> None:
        async with payer as one, payee as other:
            one.amount -= 10
            other.amount += 10
            await clock.advance(handles._LEASE)

    async with shop(*BANK, delay, clock=(clock := Clock(1000.0))) as call:
        a, b = await call("accounts")
        late = await call("delay", payer=a, payee=b)
        assert late == "The Account was not changed: the call took too long."
        assert [await call("amount_of", account=each) for each in (a, b)] == [100, 100]
        await call("transfer", payer=a, payee=b, amount=1)  # no lease is left
        assert await call("amount_of", account=b) == 101


async def test_late_block_does_not_overwrite_a_later_change() -> None:
    """After its lease another call has changed the value: the late call fails, and says why."""
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def linger(cart: Handle[Cart]) -> None:
        async with cart as value:
            value.items.append("too late")
            inside.set()
            await go.wait()

    async with shop(linger, clock=(clock := Clock(1000.0))) as call:
        id = await call("start")
        lingering = asyncio.ensure_future(call("linger", cart=id))
        await inside.wait()
        await clock.advance(handles._LEASE + 1)
        assert await call("add", cart=id, item="in time") == ["in time"]
        go.set()
        assert await lingering == (
            "The Cart was not changed: meanwhile another call has changed or deleted it, or it has "
            "expired."
        )
        assert await call("show", cart=id) == ["in time"]


async def test_late_block_is_written_if_no_other_call_came() -> None:
    """The lease is not a time limit."""

    @tool
    async def linger(cart: Handle[Cart]) -> None:
        async with cart as value:
            await clock.advance(handles._LEASE + 1)
            value.items.append("late")

    async with shop(linger, clock=(clock := Clock(1000.0))) as call:
        id = await call("start")
        await call("linger", cart=id)
        assert await call("show", cart=id) == ["late"]


async def test_value_that_is_deleted_meanwhile_stays_deleted() -> None:
    """The block of another call does not bring it back; if it failed anyway, its error remains."""
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def linger(cart: Handle[Cart], fails: bool) -> None:
        async with cart:
            inside.set()
            await go.wait()
            if fails:
                raise ValueError

    async with shop(linger) as call:
        for fails in (False, True):
            inside.clear()
            go.clear()
            id = await call("start")
            lingering = asyncio.ensure_future(call("linger", cart=id, fails=fails))
            await inside.wait()
            await call("drop", cart=id)
            go.set()
            expected = (
                "failed unexpectedly"
                if fails
                else "another call has changed or deleted it, or it has expired"
            )
            assert expected in await lingering
            assert REFUSED in await call("show", cart=id)


class Failing(MemoryStore):
    """A store that can be out of reach."""

    fails = False

    async def apply(self, *ops: Op) -> None:
        if self.fails:
            raise StoreUnavailable("out of reach")
        await super().apply(*ops)


@pytest.mark.parametrize("raises", [False, True])
async def test_change_that_the_store_does_not_take_fails(raises: bool) -> None:
    """The value stays, and can be changed once the lease has ended."""
    store = Failing(clock=(clock := Clock(1000.0)))

    @tool
    async def change(cart: Handle[Cart]) -> None:
        async with cart as value:
            value.items.append("a cup")
            store.fails = True
            if raises:
                raise ToolError("no cup")

    async with shop(change, store=store) as call:
        id = await call("start")
        if raises:
            assert await call("change", cart=id) == "no cup"
        else:
            with pytest.raises(ServerError, match="The server cannot keep what this needs now"):
                await call("change", cart=id)
        store.fails = False
        assert await call("show", cart=id) == []
        await clock.advance(handles._LEASE)
        assert await call("add", cart=id, item="a plate") == ["a plate"]


async def test_wait_for_the_change_of_another_call_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is told to try again later."""
    monkeypatch.setattr(handles, "_MAX_WAIT", 0.02)
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def linger(cart: Handle[Cart]) -> None:
        async with cart:
            inside.set()
            await go.wait()

    async with shop(linger) as call:
        id = await call("start")
        lingering = asyncio.ensure_future(call("linger", cart=id))
        await inside.wait()
        text = "The Cart is being changed by other calls: try again later."
        assert await call("add", cart=id, item="a cup") == text
        go.set()
        await lingering


async def test_value_that_expires_within_a_block_is_not_written() -> None:
    """The error does not blame another call."""

    @tool
    async def linger(cart: Handle[Cart]) -> None:
        async with cart:
            await clock.advance(2.0)

    async with shop(linger, clock=(clock := Clock(1000.0))) as call:
        assert "or it has expired" in await call("linger", cart=await call("start", ttl=1.0))


async def test_handle_can_be_made_of_a_kept_id() -> None:
    """Its methods check the id, and their error is one that the model reads."""

    @tool
    async def add_kept(id: str, channel: Channel) -> list[str]:
        async with Handle[Cart](id, channel) as value:
            value.items.append("a cup")
        return value.items

    async with shop(add_kept) as call:
        assert await call("add_kept", id=await call("start")) == ["a cup"]
        assert await call("add_kept", id="another") == REFUSED
        gone = await call("start")
        await call("drop", cart=gone)
        assert await call("add_kept", id=gone) == REFUSED


async def test_handle_outside_of_a_call_has_no_value() -> None:
    """The error tells how to make one."""
    with pytest.raises(ContractError, match=r"write Handle\[Cart\]\(id, channel\)"):
        await Handle[Cart]("an id").get()


T = TypeVar("T")


class Kept(Generic[T]):
    handle: Handle[T]


def test_handle_in_a_generic_class_is_accepted() -> None:
    """An annotation with a type variable is not a type of values yet."""
    assert Kept.__annotations__["handle"].__args__ == (T,)


async def test_types_of_values_are_checked() -> None:
    """A value of another type, or without a JSON form, is not stored."""

    @tool
    async def wrong(channel: Channel) -> None:
        with pytest.raises(ContractError, match="Cart is Sure, which does not fit Cart"):
            await Handle[Cart].new(channel, Sure(sure=True))
        with pytest.raises(ContractError, match="ttl must be seconds up to ten years, not -1"):
            await Handle.new(channel, Cart(), ttl=-1)
        with pytest.raises(ConfigurationError, match=r"a Handle needs the type of its values"):
            await Handle.list(channel)
        plain = await Handle.new(channel, {"a": 1})
        async with plain as value:
            value["a"] += 1
        assert await plain.get() == {"a": 2}

    async with shop(wrong) as call:
        assert await call("wrong") in (None, "")


async def test_arguments_of_a_type_belong_to_it() -> None:
    """An id of a list of texts is none of a list of numbers."""

    @tool
    async def texts(channel: Channel) -> Handle[list[str]]:
        return await Handle[list[str]].new(channel, ["a"])

    @tool
    async def last(numbers: Handle[list[int] | None]) -> None: ...

    @tool
    async def total(numbers: Handle[list[int]]) -> None: ...

    @tool
    async def join(words: Handle[list[str]]) -> str:
        return "".join(await words.get())

    async with shop(texts, last, total, join) as call:
        id = await call("texts")
        assert await call("join", words=id) == "a"
        for name in ("last", "total"):
            assert "/numbers: there is no such list" in await call(name, numbers=id)


async def test_types_of_one_name_in_two_modules_are_two() -> None:
    """An id of the one is none of the other, and is not listed among its ids."""
    handle: Any = Handle

    def draft(module: str) -> Any:
        return handle[type("Draft", (Struct,), {"__module__": module})]

    @tool
    async def begin(channel: Channel) -> list[int]:
        order = draft("orders")
        id = (await order.new(channel, order._type())).id
        for same in (order, draft("orders")):  # a module that was loaded again
            await same(id, channel).check()
        with pytest.raises(ToolError, match="there is no such Draft"):
            await draft("payments")(id, channel).check()
        return [len(await draft(module).list(channel)) for module in ("orders", "payments")]

    async with shop(begin) as call:
        assert await call("begin") == [1, 0]


SCRIPT = """
import asyncio, sys
from typing import Annotated
from msgspec import Struct
from pydantic import AfterValidator
from genmcp import Channel, Mux, Suite, tool
from genmcp.handles import Handle
from genmcp.testing import connect

class Draft(Struct):
    text: str = ""

Drafts = Handle[Annotated[list[Draft], AfterValidator(lambda drafts: drafts)]]

@tool
async def begin(channel: Channel) -> Drafts:
    return await Drafts.new(channel, [Draft("a")])

@tool
async def count(drafts: Drafts) -> int:
    return len(await drafts.get())

def mux(store):
    return Mux(Suite(name="a", version="1", tools=[begin, count]), store=store, secret="s" * 16)

async def main():
    async with connect(made := mux(sys.argv[1])) as client:
        print((await client.call("begin")).text)
    await made.aclose()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_ids_of_a_script_are_those_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may be a script, which a worker imports by its name."""
    (tmp_path / "drafting_script.py").write_text(SCRIPT)
    store = f"sqlite:///{tmp_path}/store.db"
    command = [sys.executable, "drafting_script.py", store]
    output = await asyncio.to_thread(subprocess.check_output, command, cwd=tmp_path, text=True)
    monkeypatch.syspath_prepend(tmp_path)
    mux = importlib.import_module("drafting_script").mux(store)

    async with connect(mux) as client:
        assert (await client.call("count", {"drafts": output.strip()})).data == 1
    await mux.aclose()


def test_handles_without_a_usable_type_are_rejected() -> None:
    """When the tool is defined."""

    async def bare(cart: Handle) -> None: ...  # type: ignore[type-arg]
    async def opaque(cart: Handle[asyncio.Event]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"a Handle needs the type of its values"):
        tool(bare)
    with pytest.raises(ConfigurationError, match="Event"):
        tool(opaque)


def test_handles_are_no_arguments_of_prompts() -> None:
    """Clients fill those in by hand."""

    async def review(cart: Handle[Cart]) -> str:
        return ""

    with pytest.raises(ConfigurationError, match="a Handle is an argument of tools and jobs only"):
        prompt(review)


def test_server_without_handles_does_not_load_them() -> None:
    """Nor does one with jobs and types of arguments."""
    code = """
import sys
from genmcp import Endpoint, Run, Suite, job, tool

@job(name="work")
async def work(run: Run, number: int) -> str: ...

@tool
async def act(number: int) -> str: ...

Endpoint(Suite(name="a", version="1", tools=[act]))
assert "genmcp.tools" in sys.modules
assert "genmcp.handles" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
