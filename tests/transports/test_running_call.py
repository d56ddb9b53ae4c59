"""The source of the cancellation of a hook, and the registry through which clients cancel."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from genmcp import Endpoint, Mux, Suite, Tool
from genmcp._mux.performing import report
from genmcp._transports.running_call import RunningCall
from genmcp.channel import CallContext, Channel
from genmcp.core.call import CallPhase, Cancel, Leave, RecordDeleted, StopServer
from genmcp.core.client_key import LOCAL
from genmcp.core.request import ClientInfo, Request
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import REVISIONS
from tests.support import asgi


class Host:
    """A caller of one mux."""

    access = None
    principal = None
    client_key = LOCAL
    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()
    detached = False

    def __init__(self) -> None:
        self.mux = Mux(Suite(name="test", version="1"))

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check nothing."""


def held(host: Host, id: int = 1) -> RunningCall[Host]:
    """Return a call with a hook that waits in the current asyncio.Task."""
    request = Request(
        id=id,
        method="ping",
        params=RequestParams(),
        raw=b"",
        revision=REVISIONS["2025-11-25"],
        client=ClientInfo("2025-11-25"),
        session="key",
    )
    call = RunningCall(host, request)
    services = host.mux.call_services
    context = CallContext(sink=call, caller=host, performer=call, services=services)
    call.register(Channel(request, context))
    return call


def phase_of(call: RunningCall[Host]) -> CallPhase:
    """Return the phase of a call before the end of its hook."""
    assert call.channel is not None
    return call.channel.context.phase


async def cancelled_call(host: Host, *ids: int | None) -> CallPhase:
    """Let a call wait until *ids* are cancelled; end it, and return the phase it was in."""
    call = held(host)
    for id in ids:
        host.mux.calls.cancel("key", id)
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.Event().wait()
    phase = phase_of(call)
    call.end(caught.value)
    return phase


@pytest.mark.parametrize("ids", [(1,), (None,), (2, 1), (1, 1)])
async def test_registry_cancels_one_call_or_all(ids: tuple[int | None, ...]) -> None:
    """The asyncio.Task of the call is not cancelled any more after its end."""
    host = Host()

    async def work() -> tuple[CallPhase, int]:
        phase = await cancelled_call(host, *ids)
        task = asyncio.current_task()
        assert task is not None
        return phase, task.cancelling()

    assert await asyncio.create_task(work()) == (CallPhase.CANCELLED, 0)
    assert (len(host.mux.calls), len(host.mux.waiting_calls)) == (0, 0)


async def test_registry_ignores_an_unknown_session_or_id() -> None:
    """2025-11-25, cancellation, "Behavior Requirements"."""
    host = Host()
    call = held(host)
    host.mux.calls.cancel("key", 2)
    host.mux.calls.cancel("unknown")
    await asyncio.sleep(0)

    assert CallPhase.RUNNING is phase_of(call)
    call.end()


async def test_call_that_has_ended_is_not_cancelled() -> None:
    """Its asyncio.Task serves something else by then. Its slot is returned once."""
    host = Host()
    call = held(host)
    call.report_threadsafe(Cancel())
    call.end()
    call.report(Leave())
    call.report_threadsafe(Leave())
    call.end()
    await asyncio.sleep(0)

    assert len(host.mux.waiting_calls) == 0


async def test_client_cancellation_outlasts_later_reasons() -> None:
    """A call that its client cancelled gets no response, even at a shutdown."""
    call = held(Host())
    call.report(Cancel())
    call.report(StopServer())
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(0)

    assert CallPhase.CANCELLED is phase_of(call)
    call.end(caught.value)


async def test_cancellation_by_the_host_propagates() -> None:
    """Even if the call was cancelled as well; the slot is returned."""
    host = Host()

    async def work() -> None:
        call = held(host)
        call.report(Leave())
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.sleep(0)
        call.end(caught.value)

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(host.mux.waiting_calls) == 0


def test_cancelling_a_call_of_a_closed_loop_is_ignored() -> None:
    """The call ended with its loop."""
    host = Host()

    async def wait() -> RunningCall[Host]:
        return held(host)

    call = asyncio.run(wait())
    call.report_threadsafe(Cancel())


async def test_impossible_event_costs_one_call() -> None:
    """It is a defect of the server, reported to the client with a reference, and never a hang."""

    class Defect(Tool):
        """Reports an event that cannot happen while its hook runs."""

        name = "defect"

        async def call(self, request: Any, channel: Channel) -> str:
            await asyncio.sleep(0)
            await report(channel, RecordDeleted())
            return "unreachable"

    client = asgi.Client(Endpoint(Suite(name="test", version="1", tools=[Defect])))
    result = (await client.send(client.call("defect"))).json["result"]

    assert result["isError"]
    assert re.search(r"reference [0-9a-f]{12}", result["content"][0]["text"])
    assert "result" in (await client.send(client.request("tools/list"))).json
