"""What a request can be made to leave, and who else may cancel it meanwhile."""

import asyncio

import pytest

from genmcp.client.waiting import Scope


async def waiting(scope: Scope, entered: asyncio.Event) -> str:
    with scope:
        entered.set()
        await asyncio.Event().wait()
    await asyncio.sleep(0)  # nothing of it is left
    return "left"


async def begun(scope: Scope) -> "asyncio.Task[str]":
    entered = asyncio.Event()
    task = asyncio.create_task(waiting(scope, entered))
    await entered.wait()
    return task


async def test_scope_is_left_where_it_waits() -> None:
    """The task goes on behind it, and is not cancelled."""
    scope = Scope()
    task = await begun(scope)
    scope.leave()
    scope.leave()
    assert "left" == await task
    assert 0 == task.cancelling()


@pytest.mark.parametrize("first", [True, False])
async def test_scope_does_not_take_the_cancelling_of_others(first: bool) -> None:
    """A task that is cancelled by somebody else as well is cancelled."""
    scope = Scope()
    task = await begun(scope)
    if first:
        task.cancel()
    scope.leave()
    if not first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_scope_that_has_ended_is_not_left() -> None:
    """What is told of too late does not cancel what comes behind."""

    async def quick() -> str:
        with Scope() as scope:
            scope.leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert "done" == await asyncio.create_task(quick())


async def test_scope_that_fails_while_it_is_left_raises() -> None:
    """An error is not taken for the leaving."""

    async def failing(scope: Scope, entered: asyncio.Event) -> None:
        with scope:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("broken")

    scope, entered = Scope(), asyncio.Event()
    task = asyncio.create_task(failing(scope, entered))
    await entered.wait()
    scope.leave()
    with pytest.raises(ValueError, match="broken"):
        await task
    assert 0 == task.cancelling()
