"""Servers with cancelled calls: after a while the caller of a question is certain again."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Mux
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.client.options import ClientOptions
from genmcp.core.client.events import SendMessage
from genmcp.hub import relay
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent
from tests.hub.far import NEW, OLD, TIME, Far, Piped, User, gate, said


class Undecided(User):
    """A client that answers a form once an event is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.looks, self.goes_on = asyncio.Event(), asyncio.Event()

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Give the name, in the end."""
        self.looks.set()
        await self.goes_on.wait()
        return await super().handle_elicitation_create(message, schema)


async def asks(far: Far, message: SendMessage) -> Any:
    """Answer a call after its question was answered."""
    id = f"q{len(far.called)}"
    far.questions.put_nowait((id, "Who?"))
    while (reply := await far.replies.get())["id"] != id:
        pass  # it is for a call that was given up
    return said(str(reply))


async def give_up(client: Client, came: asyncio.Event, far: Far) -> None:
    """Cancel a call that has reached the server, and wait until *far* is notified."""
    slow = asyncio.ensure_future(client.call("far/slow"))
    await came.wait()
    slow.cancel()
    await asyncio.wait((slow,))
    await far.cancelled.wait()


@asynccontextmanager
async def served(
    far: Piped, retry: Retry | None = None
) -> AsyncIterator[tuple[Hub, Mux, list[float]]]:
    """Serve a hub of *far*; yields the waits before each reconnection, too."""
    waits: list[float] = []

    async def sleep(delay: float) -> None:
        waits.append(delay)

    options = ClientOptions(revision=OLD)
    async with (
        asyncio.timeout(TIME),
        Hub(options=options, sleep=sleep) as hub,
    ):
        mux = Mux(hub.server())
        await hub.add(ServerConfig("far", target=far, retry=retry))
        yield hub, mux, waits


@pytest.mark.parametrize("retry", [None, Retry(3, 4.0)])
async def test_rejected_question_leads_to_reconnection(
    retry: Retry | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The server never responds to a cancelled call; one more call is affected."""
    came, _, never = gate()
    far = Piped(slow=never, quick=asks)
    bob = User("Bob")
    async with (
        served(far, retry) as (hub, mux, waits),
        Client(mux) as one,
        Client(mux, handler=bob) as other,
    ):
        await give_up(one, came, far)
        refused = await other.call("far/quick")
        asked = await other.call("far/quick")
        assert hub.servers() == ["far"]

    assert "a call that was cancelled; the hub reconnects" in str(refused.content)
    assert "Bob" in str(asked.content)
    assert bob.asked == ["Who?"]
    assert waits == [4.0 if retry else 0.5]
    assert "far is connected to again: a call was cancelled" in caplog.text


async def test_reconnection_waits_for_running_calls() -> None:
    """They end as they would have; later calls wait for the connection."""
    came, _, never = gate()
    began, go, ends = gate()
    slow = [never, ends]
    far = Piped(slow=lambda far, message: slow.pop(0)(far, message))
    ada, bob = User("Ada"), User("Bob")
    async with (
        served(far) as (_, mux, _),
        Client(mux, handler=ada) as one,
        Client(mux, handler=bob) as other,
    ):
        await give_up(one, came, far)
        under_way: list[asyncio.Task[Any]] = []

        async def quick(far: Far, message: SendMessage) -> Any:
            far.questions.put_nowait(("q", "Who?"))
            reply = await far.replies.get()
            under_way.append(asyncio.ensure_future(one.call("far/slow")))
            await began.wait()
            return said(str(reply))

        far.answers["quick"] = quick
        refused = await other.call("far/quick")
        assert "cancelled" in str(refused.content)
        assert far.closed == 0

        far.answers["quick"] = asks
        go.set()
        assert (await under_way[0]).content == [TextContent("done")]
        assert "Bob" in str((await other.call("far/quick")).content)
        assert far.closed == 1


async def form(far: Far, message: SendMessage) -> Any:
    """Ask a question, and never answer the call."""
    far.questions.put_nowait(("q", "Sure?"))
    await far.over.wait()


@pytest.mark.parametrize("patience", [60.0, 0.0])
async def test_open_form_blocks_for_a_limited_time(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since 2026-07-28 no connection shows that its client is gone."""
    monkeypatch.setattr(relay, "_BLOCKING_TIMEOUT", patience)
    far = Piped(slow=form, quick=asks)
    ada, bob = Undecided("Ada"), User("Bob")
    options = ClientOptions(revision=NEW)
    async with (
        served(far) as (_, mux, _),
        Client(mux, handler=ada, options=options) as one,
        Client(mux, handler=bob, options=options) as other,
    ):
        late = asyncio.ensure_future(one.call("far/slow"))
        await ada.looks.wait()
        refused = await other.call("far/quick")
        if patience:
            assert "another call that is running" in str(refused.content)
            late.cancel()
            await asyncio.wait((late,))
            return
        asked = await other.call("far/quick")
        ada.goes_on.set()
        with pytest.raises(ServerError, match="no longer waits for an answer"):
            await late

    assert "cancelled" in str(refused.content)
    assert "Bob" in str(asked.content)
    assert bob.asked == ["Who?"]
