"""Waiting hooks of sessions, and how they are cancelled."""

import asyncio

import pytest

from genmcp.core.request import Client, Request
from genmcp.mux.calls import Calls, Hook, Reason
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import REVISIONS


def request(id: int = 1) -> Request:
    return Request(
        id=id,
        method="ping",
        params=RequestParams(),
        raw=b"",
        revision=REVISIONS["2025-11-25"],
        client=Client("2025-11-25"),
        session="key",
    )


async def cancelled_hook(calls: Calls, *ids: int | None) -> Reason | None:
    """Let a hook wait until *ids* are cancelled, and return why it ended."""
    hook = Hook(request())
    calls.add("key", hook)
    try:
        for id in ids:
            calls.cancel("key", id)
        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.Event().wait()
    finally:
        calls.discard("key", hook)
    return hook.end(caught.value)


@pytest.mark.parametrize("ids", [(1,), (None,), (2, 1), (1, 1)])
async def test_calls_cancel_one_call_or_all(ids: tuple[int | None, ...]) -> None:
    """By its id or by none; its asyncio.Task goes on as if nothing had been."""
    calls = Calls()

    assert Reason.ASKED is await asyncio.create_task(cancelled_hook(calls, *ids))
    assert 0 == len(calls)


async def test_calls_of_another_session_or_id_go_on() -> None:
    """What is unknown is ignored."""
    calls = Calls()
    hook = Hook(request())
    calls.add("key", hook)
    calls.cancel("key", 2)
    calls.cancel("unknown")
    await asyncio.sleep(0)

    assert hook.end() is None


async def test_hook_that_has_ended_is_not_cancelled() -> None:
    """Its asyncio.Task does something else by then."""
    hook = Hook(request())
    hook.cancel(Reason.ASKED)
    hook.end()
    hook.cancel_now(Reason.LEFT)

    await asyncio.sleep(0)


async def test_hook_that_was_asked_for_stays_asked_for() -> None:
    """Whatever else happens then, its client gets no answer."""
    hook = Hook(request())
    hook.cancel_now(Reason.ASKED)
    hook.cancel_now(Reason.STOPPING)
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(0)

    assert Reason.ASKED is hook.end(caught.value)


async def test_hook_that_somebody_else_cancels_too_is_cancelled() -> None:
    """Who cancels the whole asyncio.Task is heard."""

    async def work() -> None:
        hook = Hook(request())
        hook.cancel_now(Reason.LEFT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.sleep(0)
        hook.end(caught.value)

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


def test_hook_on_a_loop_that_died_went_with_it() -> None:
    """Nothing is left to be cancelled."""

    async def wait() -> Hook:
        return Hook(request())

    hook = asyncio.run(wait())
    hook.cancel(Reason.ASKED)
