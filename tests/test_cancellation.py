"""`genmcp.cancellation`: which code a cancellation belongs to."""

import ast
import asyncio
from pathlib import Path

import anyio
import pytest

import genmcp
from genmcp.cancellation import (
    CancelScope,
    cancel_and_wait,
    cancel_requested,
    run_to_completion,
    shielded,
)


async def wait_in(scope: CancelScope, entered: asyncio.Event) -> str:
    with scope:
        entered.set()
        await asyncio.Event().wait()
    await asyncio.sleep(0)  # a cancellation that was not undone would be raised here
    return "left"


async def enter(scope: CancelScope) -> "asyncio.Task[str]":
    entered = asyncio.Event()
    task = asyncio.create_task(wait_in(scope, entered))
    await entered.wait()
    return task


async def test_scope_ends_its_block_only() -> None:
    """Code after the block runs, and the asyncio.Task is not cancelled."""
    scope = CancelScope()
    task = await enter(scope)
    scope.cancel()
    scope.cancel()
    assert await task == "left"
    assert task.cancelling() == 0


@pytest.mark.parametrize("first", [True, False])
async def test_scope_passes_other_cancellations_on(first: bool) -> None:
    """If other code cancels the task as well, in either order, it ends with CancelledError."""
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
    """A cancellation that arrives as the block ends does not affect the code after it."""

    async def quick() -> str:
        with CancelScope() as scope:
            scope.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert await asyncio.create_task(quick()) == "done"


async def test_scope_does_not_swallow_other_errors() -> None:
    """An exception raised during the cancellation of the block propagates."""

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
    """`task.cancel()` counts; the cancellation of a future that the task awaits does not."""
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
    """An error in a task that is being cancelled is not raised in the code that cancels it."""
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


class Cleanup:
    """Work that ends once it `may`."""

    def __init__(self) -> None:
        self.started, self.may, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Wait."""
        self.started.set()
        await self.may.wait()
        self.done.set()


async def turns() -> None:
    """Let the event loop run everything that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cleanup_completes_despite_cancellations(times: int) -> None:
    """A timeout, a client that leaves and a shutdown: the caller ends after the work."""
    cleanup = Cleanup()
    task = asyncio.create_task(run_to_completion(cleanup.run()))
    await cleanup.started.wait()
    for _ in range(times):
        task.cancel()
        await turns()

    assert not task.done()
    cleanup.may.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleanup.done.is_set()
    assert task.cancelling() == times


@pytest.mark.parametrize("left", [True, False])
async def test_timeout_is_raised_after_cleanup(left: bool) -> None:
    """`asyncio.timeout` takes its own request back, and no other one."""
    cleanup, expired = Cleanup(), asyncio.Event()

    async def limited() -> None:
        asyncio.get_running_loop().call_soon(expired.set)
        async with asyncio.timeout(0):
            await run_to_completion(cleanup.run())

    task = asyncio.create_task(limited())
    await cleanup.started.wait()
    await expired.wait()
    await turns()
    if left:
        task.cancel()
        await turns()
    assert not task.done()
    cleanup.may.set()
    with pytest.raises(asyncio.CancelledError if left else TimeoutError):
        await task
    assert cleanup.done.is_set()
    assert task.cancelling() == left


async def test_scope_of_anyio_ends_after_cleanup() -> None:
    """It cancels its task in each iteration of the event loop: hosts such as Starlette use it."""
    cleanup = Cleanup()

    async def scoped() -> bool:
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_soon(scope.cancel)
            await run_to_completion(cleanup.run())
        return scope.cancelled_caught

    task = asyncio.create_task(scoped())
    await cleanup.started.wait()
    await turns()
    assert not task.done()
    cleanup.may.set()
    assert await task
    assert cleanup.done.is_set()


async def test_error_of_cleanup_is_raised() -> None:
    """Without a cancellation; after one it is dropped, as by `cancel_and_wait`."""

    async def failing() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run_to_completion(failing())
    task = asyncio.create_task(run_to_completion(failing()))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_shared_future_outlives_a_waiter() -> None:
    """One of two that wait for it is cancelled: the other one gets its result."""
    future = asyncio.get_running_loop().create_future()
    first, second = (asyncio.create_task(shielded(future)) for _ in range(2))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    future.set_result("value")

    assert await second == "value"


FOLDERS = [Path(genmcp.__file__).parent / name for name in ("_mux", "_transports")]


def called(function: ast.AST) -> set[str]:
    """Return the names of the methods and functions that *function* calls."""
    calls = [each.func for each in ast.walk(function) if isinstance(each, ast.Call)]
    return {each.attr for each in calls if isinstance(each, ast.Attribute)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_owners_of_a_task_use_the_helper(folder: Path) -> None:
    """A task that is cancelled and awaited by hand leaves its error unread, or hangs its owner."""
    by_hand = [
        f"{path.name}: {function.name}"
        for path in folder.glob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.AsyncFunctionDef)
        and "cancel" in called(function)
        and called(function) & {"wait", "gather"}
    ]

    assert by_hand == []
