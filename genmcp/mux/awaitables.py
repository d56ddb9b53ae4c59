"""Awaitables that calls wait for in this process, and how each wait ends."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeAlias
from weakref import ref

from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.errors import (
    Cancelled,
    ContractError,
    Failure,
    InternalError,
    Lost,
    McpError,
    Raised,
    TimedOut,
    ToolError,
)

__all__ = ["Awaitables", "failed", "is_cancelled"]

logger = logging.getLogger("genmcp")

AnyFuture: TypeAlias = asyncio.Future[Any] | futures.Future[Any]


class Awaitables:
    """What the calls of one mux wait for here."""

    def __init__(self) -> None:
        self._pending: dict[int, ref[AnyFuture]] = {}

    async def outcome(self, on: Any) -> Outcome:
        """Wait for *on*, a coroutine, Task or future, and return how it has ended.

        A coroutine runs here and is cancelled with the call. Whoever was to end a future may drop
        it instead: then it is Lost.

        Raises:
            ContractError: another call waits for the same one.
            asyncio.CancelledError: the call is cancelled.
        """
        if isinstance(on, asyncio.Future | futures.Future):
            waiter, forget = self._watch(on)
            del on  # only its maker keeps it, so that it shows when nobody does
            try:
                return await waiter
            finally:
                forget()
        try:
            return Done(await on)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return failed(error)

    def _watch(self, on: AnyFuture) -> tuple[asyncio.Future[Outcome], Callable[[], None]]:
        """Return what is done when *on* is, and what forgets *on*."""
        key = id(on)
        known = self._pending.get(key)
        # One that was dropped is there until its call goes on; another may have its address by then.
        if known is not None and known() is on:
            raise ContractError("two calls wait for one future: each needs one of its own")
        loop = asyncio.get_running_loop()
        if isinstance(on, asyncio.Future) and on.get_loop() is not loop:
            raise ContractError("the call waits for a future of another event loop")
        waiter: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Callable[[], Outcome]) -> None:
            if not waiter.done():
                waiter.set_result(outcome())

        def ended(future: Any) -> None:
            _soon(loop, settle, lambda: _outcome_of(future))

        on.add_done_callback(ended)
        dropped = ref(on, lambda _: _soon(loop, settle, lambda: Failed(Lost())))
        # A Task that nobody keeps would vanish while it runs.
        kept = on if isinstance(on, asyncio.Task) else None
        self._pending[key] = dropped

        def forget() -> None:
            nonlocal kept
            kept = None
            if self._pending.get(key) is dropped:
                del self._pending[key]
            found = dropped()
            if isinstance(found, asyncio.Future):
                found.remove_done_callback(ended)

        return waiter, forget


def failed(error: BaseException) -> Failed:
    """Return the outcome of work that has raised *error*.

    What was not raised to be shown is in the log, under the reference that the outcome has.
    """
    if isinstance(error, Failure):
        return Failed(error)
    failure: Failure
    if isinstance(error, asyncio.CancelledError | futures.CancelledError):
        failure = Cancelled()
    elif isinstance(error, TimeoutError):
        failure = TimedOut()
    else:
        shown = isinstance(error, ToolError | McpError) and not isinstance(error, InternalError)
        failure = Raised(secrets.token_hex(6), type(error).__name__, str(error) if shown else None)
        if not shown:
            logger.error("what a call waited for failed [%s]", failure.reference, exc_info=error)
    failure.__cause__ = error
    return Failed(failure)


def is_cancelled() -> bool:
    """Whether somebody asked for the CancelledError that was just caught.

    One that comes from what a hook awaits (a task that was cancelled elsewhere) is a failure
    like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _outcome_of(future: Any) -> Outcome:
    try:
        return Done(future.result())
    except BaseException as error:  # it was not raised here
        return failed(error)


def _soon(loop: asyncio.AbstractEventLoop, step: Callable[..., None], *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(step, *arguments)
