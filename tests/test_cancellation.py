"""Cancellation ownership: `genmcp.cancellation`."""

import asyncio

import pytest

from genmcp.cancellation import (
    CancelScope,
    cancel_and_wait,
    cancel_requested,
    run_to_completion,
)


async def wait_in(scope: CancelScope, entered: asyncio.Event) -> str:
    with scope:
        entered.set()
        await asyncio.Event().wait()
    await asyncio.sleep(0)  # a request that was not taken back would be raised here
    return "left"


async def enter(scope: CancelScope) -> "asyncio.Task[str]":
    entered = asyncio.Event()
    task = asyncio.create_task(wait_in(scope, entered))
    await entered.wait()
    return task


async def test_scope_ends_its_block_only() -> None:
    """The task continues after the block, and is not cancelled."""
    scope = CancelScope()
    task = await enter(scope)
    scope.cancel()
    scope.cancel()
    assert await task == "left"
    assert task.cancelling() == 0


@pytest.mark.parametrize("first", [True, False])
async def test_scope_lets_other_cancellations_through(first: bool) -> None:
    """A task that other code cancels as well ends with CancelledError, in either order."""
    scope = CancelScope()
    task = await enter(scope)
    if first:
        task.cancel()
    scope.cancel()
    if not first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_scope_cancelled_too_late_has_no_effect() -> None:
    """A request made while the block ends does not hit the code after the block."""

    async def quick() -> str:
        with CancelScope() as scope:
            scope.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert await asyncio.create_task(quick()) == "done"


async def test_scope_does_not_swallow_other_errors() -> None:
    """An exception raised while the block is cancelled propagates."""

    async def failing(scope: CancelScope, entered: asyncio.Event) -> None:
        with scope:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("broken")

    scope, entered = CancelScope(), asyncio.Event()
    task = asyncio.create_task(failing(scope, entered))
    await entered.wait()
    scope.cancel()
    with pytest.raises(ValueError, match="broken"):
        await task
    assert task.cancelling() == 0


@pytest.mark.parametrize("own", [True, False])
async def test_cancelled_task_differs_from_cancelled_await(own: bool) -> None:
    """Only a cancellation of the task itself is a request, not one of the future it awaits."""
    future = asyncio.get_running_loop().create_future()

    async def waiting() -> bool:
        try:
            await future
        except asyncio.CancelledError:
            return cancel_requested()
        return False

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    (task if own else future).cancel()
    assert await task is own


async def test_cancel_and_wait_drops_errors() -> None:
    """Tasks that fail during their cancellation do not fail the code that cancels them."""
    started = asyncio.Event()

    async def failing() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            raise ValueError("broken")

    task = asyncio.create_task(failing())
    await started.wait()
    await cancel_and_wait(task)
    await cancel_and_wait()
    assert task.done()


async def test_cleanup_completes_despite_cancellation() -> None:
    """`run_to_completion` raises the cancellation after the work, not in place of it."""
    started, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def cleanup() -> None:
        started.set()
        await go_on.wait()
        done.set()

    task = asyncio.create_task(run_to_completion(cleanup()))
    await started.wait()
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
