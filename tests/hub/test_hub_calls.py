"""Calls of a hub when a connection breaks, and the recipient of a late question."""

import asyncio
from typing import Any

import msgspec
import pytest

from genmcp import McpError, Mux
from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ConnectError, OutcomeUnknown
from genmcp.client.options import ClientOptions
from genmcp.core.client.events import SendMessage
from genmcp.hub import member
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.hub.relay import ForwardedCall, question_limit
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult
from genmcp.question.sampling import RootsQuestion
from tests.hub.far import NEW, NOBODY, OLD, TIME, Far, Piped, User, gate, said
from tests.support.client_bounds import bounds


async def test_unsent_call_keeps_a_working_connection() -> None:
    """A call that was not sent is sent again after a wait; the other call runs once."""
    came, go, answer = gate()
    far = Far(slow=answer)

    async def sleep(delay: float) -> None:
        far.down = False

    async with (
        asyncio.timeout(TIME),
        Hub(options=ClientOptions(revision=OLD), sleep=sleep) as hub,
    ):
        await hub.add(ServerConfig("far", target=far, retry=Retry(2)))
        slow = asyncio.ensure_future(hub.call("far/slow"))
        await came.wait()
        far.down = True
        quick = await hub.call("far/quick")
        go.set()
        result = await slow

    assert quick.content == result.content == [TextContent("done")]
    assert far.called == ["slow", "quick"]


async def test_unsent_call_without_retry_fails() -> None:
    """The connection stays open while other calls are answered."""
    came, go, answer = gate()
    far = Far(slow=answer)
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=OLD)) as hub:
        await hub.add(ServerConfig("far", target=far))
        slow = asyncio.ensure_future(hub.call("far/slow"))
        await came.wait()
        far.down = True
        with pytest.raises(ConnectError):
            await hub.call("far/quick")
        go.set()
        await slow
        assert hub.servers() == ["far"]


async def test_closed_client_fails_running_calls_as_sent() -> None:
    """Only requests made after the close were certainly not sent."""
    came, go, answer = gate()
    client = Client(Far(slow=answer), options=ClientOptions(revision=OLD))
    async with asyncio.timeout(TIME):
        await client.open()
        slow = asyncio.ensure_future(client.call("slow"))
        await came.wait()
        await client.aclose()
        go.set()
        with pytest.raises(ClientClosed, match="may or may not") as under_way:
            await slow
        with pytest.raises(ClientClosed) as later:
            await client.call("slow")

    assert (under_way.value.sent, later.value.sent) == (True, False)


TIMES = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
TASK = {"resultType": "task", "taskId": "k", "status": "working", **TIMES, "ttlMs": None}
ASKS = {"resultType": "input_required", "requestState": "s"}


@pytest.mark.parametrize("first", [TASK, ASKS])
async def test_call_with_a_first_response_is_not_repeated(first: Any) -> None:
    """After a task handle or a question, a lost server is an unknown outcome."""

    async def answer(far: Far, message: SendMessage) -> Any:
        far.down = True
        return first

    far = Far(quick=answer)

    async def sleep(delay: float) -> None:
        if delay >= 100:  # before it is connected to again
            far.down = False

    with bounds(max_poll_failures=1):
        async with (
            asyncio.timeout(TIME),
            Hub(options=ClientOptions(revision=NEW), sleep=sleep) as hub,
        ):
            await hub.add(ServerConfig("far", target=far, retry=Retry(3, 100, cap=400)))
            with pytest.raises(OutcomeUnknown, match="down"):
                await hub.call("far/quick")

        assert far.called == ["quick"]


async def test_question_of_unknown_call_is_rejected() -> None:
    """A stream that was opened during a call does not belong to that call."""
    came, go, answer = gate()
    far = Far(slow=answer)
    ada, bob = User("Ada"), User("Bob")

    async def quick(far: Far, message: SendMessage) -> Any:
        far.questions.put_nowait(("q", "Bob, who?"))
        return said(str(await far.replies.get()))

    far.answers["quick"] = quick
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=OLD)) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far))
        async with Client(mux, handler=ada) as one, Client(mux, handler=bob) as other:
            far.forgets = True  # the session is begun anew, and the stream
            slow = asyncio.ensure_future(one.call("far/slow"))
            await came.wait()
            refused = await other.call("far/quick")
            go.set()
            await slow
            asked = await other.call("far/quick")

    assert ada.asked == []
    assert "No client can answer" in str(refused.content)
    assert bob.asked == ["Bob, who?"]
    assert "Bob" in str(asked.content)


async def test_question_after_cancelled_call_is_rejected() -> None:
    """It may be about that call until the server has responded to it."""
    came, _, answer = gate()
    ids: list[Any] = []

    async def slow(far: Far, message: SendMessage) -> Any:
        ids.append(message.id)
        return await answer(far, message)

    async def quick(far: Far, message: SendMessage) -> Any:
        far.questions.put_nowait((f"q{len(far.called)}", "Who?"))
        return said(str(await far.replies.get()))

    far = Piped(slow=slow, quick=quick)
    ada, bob = User("Ada"), User("Bob")
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=OLD)) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far))
        async with Client(mux, handler=ada) as one, Client(mux, handler=bob) as other:
            given_up = asyncio.ensure_future(one.call("far/slow"))
            await came.wait()
            given_up.cancel()
            await asyncio.wait((given_up,))
            await far.cancelled.wait()
            refused = await other.call("far/quick")
            assert bob.asked == []
            far.reply(ids[0], said("late"))
            asked = await other.call("far/quick")

    assert "No client can answer" in str(refused.content)
    assert (ada.asked, bob.asked) == ([], ["Who?"])
    assert "Bob" in str(asked.content)


@pytest.mark.parametrize("whose", ["its own", "another's", "the program's"])
async def test_question_after_own_cancelled_call_is_forwarded(whose: str) -> None:
    """Both calls are of one client. It is rejected if another client cancelled a call."""
    came, _, answer = gate()

    async def quick(far: Far, message: SendMessage) -> Any:
        far.questions.put_nowait(("q", "Who?"))
        return said(str(await far.replies.get()))

    far = Piped(slow=answer, quick=quick)
    ada, bob = User("Ada"), User("Bob")
    options = ClientOptions(revision=OLD)
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far))
        async with (
            Client(mux, handler=ada, options=options) as one,
            Client(mux, handler=bob, options=options) as other,
        ):
            begin: Any = {"its own": one.call, "another's": other.call, "the program's": hub.call}
            slow = asyncio.ensure_future(begin[whose]("far/slow"))
            await came.wait()
            slow.cancel()
            await asyncio.wait((slow,))
            result = await one.call("far/quick")

    asked = ["Who?"] if whose == "its own" else []
    assert (ada.asked, bob.asked) == (asked, [])
    assert ("Ada" if asked else "No client can answer") in str(result.content)


async def test_answered_cancelled_call_is_forgotten() -> None:
    """Afterwards only a later cancelled call counts, which is of the same client."""
    gates = [gate(), gate()]
    ids: list[Any] = []

    async def slow(far: Far, message: SendMessage) -> Any:
        ids.append(message.id)
        return await gates[len(ids) - 1][2](far, message)

    async def quick(far: Far, message: SendMessage) -> Any:
        far.questions.put_nowait((f"q{len(far.called)}", "Who?"))
        return said(str(await far.replies.get()))

    far = Piped(slow=slow, quick=quick)
    bob = User("Bob")
    options = ClientOptions(revision=OLD)
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far))
        async with (
            Client(mux, options=options) as one,
            Client(mux, handler=bob, options=options) as other,
        ):
            for client, (came, _, _) in zip((one, other), gates, strict=True):
                given_up = asyncio.ensure_future(client.call("far/slow"))
                await came.wait()
                given_up.cancel()
                await asyncio.wait((given_up,))
                if client is one:
                    far.reply(ids[0], said("late"))
            asked = await other.call("far/quick")

    assert "Bob" in str(asked.content)


async def test_ended_call_rejects_questions() -> None:
    """New ones, and those that had no answer when it ended."""
    asking: list[asyncio.Future[Any]] = []

    async def work(relay: ForwardedCall) -> CallToolResult:
        asking.append(asyncio.ensure_future(relay.ask(RootsQuestion())))
        await asyncio.sleep(0)
        return CallToolResult(content=[])

    relay = ForwardedCall(NOBODY, work, question_limit())
    async with asyncio.timeout(TIME):
        await relay._work
        with pytest.raises(McpError, match="ended"):
            await asking[0]
        with pytest.raises(McpError, match="ended"):
            await relay.ask(RootsQuestion())


async def test_aclose_cancels_connecting_servers() -> None:
    """`add` fails, nothing remains, and the hub can be used again."""
    came, go, answer = gate()
    far = Far(initialize=answer)
    async with asyncio.timeout(TIME):
        hub = Hub(options=ClientOptions(revision=OLD))
        coming = asyncio.ensure_future(hub.add(ServerConfig("far", target=far)))
        await came.wait()
        await hub.aclose()
        with pytest.raises(ConnectError, match="the hub was closed"):
            await coming
        go.set()
        assert hub.servers() == []
        await hub.add(ServerConfig("far", target=Far()))
        await hub.aclose()


@pytest.mark.parametrize("breaks", ["stream", "list"])
async def test_stream_of_changes_is_opened_again(breaks: str) -> None:
    """After the stream has ended, or a list could not be read."""
    ended, again, held = asyncio.Event(), asyncio.Event(), asyncio.Event()
    listens: list[Any] = []

    def told(far: Far, method: str, id: Any, **params: Any) -> None:
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
        body = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params | meta}
        far.sink.on_message(msgspec.json.encode(body), id)

    async def listen(far: Far, message: SendMessage) -> Any:
        listens.append(message.id)
        honored = {"toolsListChanged": True}
        told(far, "subscriptions/acknowledged", message.id, notifications=honored)
        if len(listens) > 1:
            again.set()
        elif breaks == "stream":
            await ended.wait()
            return {"resultType": "complete"}
        else:
            await ended.wait()
            far.down = True
            told(far, "tools/list_changed", message.id)
        await held.wait()
        return None

    far = Far(**{"subscriptions/listen": listen})

    async def sleep(delay: float) -> None:
        far.down = False

    options = ClientOptions(revision=NEW)
    async with asyncio.timeout(TIME), Hub(options=options, sleep=sleep) as hub:
        await hub.add(ServerConfig("far", target=far))
        far.names.append("fresh")
        ended.set()
        await again.wait()
        while len(hub.tools()) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)

        assert (await hub.call("far/fresh")).content == [TextContent("done")]
        assert hub.servers() == ["far"]


async def cancelled_at(far: Far, came: asyncio.Event, client: Client, name: str = "slow") -> None:
    """Cancel a call of *client* that has reached *far*."""
    call = asyncio.ensure_future(client.call(name))
    await came.wait()
    came.clear()
    call.cancel()
    await asyncio.wait((call,))


@pytest.mark.parametrize(("revision", "left"), [(NEW, 0), (OLD, 1)])
async def test_closed_response_ends_a_call(revision: str, left: int) -> None:
    """Since 2026-07-28; before, a server that goes on may ask on the stream of a GET."""
    came, _, never = gate()
    far = Far(slow=never)
    async with (
        asyncio.timeout(TIME),
        Client(far, options=ClientOptions(revision=revision)) as client,
    ):
        await cancelled_at(far, came, client)
        assert client.abandoned_calls == left


@pytest.mark.parametrize(("far", "revision"), [(Far, NEW), (Far, OLD), (Piped, OLD)])
async def test_hub_remembers_few_callers_of_cancelled_calls(
    far: type[Far], revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub runs for months, and most servers never answer a cancelled call."""
    monkeypatch.setattr(member, "_MAX_CANCELLED", 5)
    came, _, never = gate()
    server = far(slow=never)
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=revision)) as hub:
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=server))
        for _ in range(8):
            async with Client(mux, options=ClientOptions(revision=OLD)) as client:
                await cancelled_at(server, came, client, "far/slow")
        found = next(iter(hub._members))
        running, cancelled = found._work_of_server()

    assert not running
    assert len(cancelled) == (0 if revision == NEW else 4)
    # Of the callers that are left out it is known that there are some.
    assert revision == NEW or None in cancelled
