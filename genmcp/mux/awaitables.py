"""Awaitables that calls wait for in this process, and how each wait ends."""

import asyncio
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeAlias
from weakref import ref

from genmcp.cancellation import cancel_requested
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.errors import ContractError, WorkerLost
from genmcp.tasks.attempt import failure_of

__all__ = ["Awaitables"]

_WORK = "what a call waited for"

AnyFuture: TypeAlias = asyncio.Future[Any] | futures.Future[Any]


class Awaitables:
    """What the calls of one mux wait for here."""

    def __init__(self) -> None:
        self._pending: dict[int, _Wait] = {}

    async def outcome(self, on: Any) -> Outcome:
        """Wait for *on*, a coroutine, Task or future, and return how it has ended.

        A coroutine runs here and is cancelled with the call. Whoever was to end a future may drop
        it instead: then it fails with WorkerLost.

        Raises:
            ContractError: another call waits for the same one.
            asyncio.CancelledError: the call is cancelled.
        """
        if isinstance(on, asyncio.Future | futures.Future):
            wait = self._wait_for(on)
            key = id(on)
            del on  # only its maker keeps it, so that it shows when nobody does
            try:
                return await wait.over
            finally:
                wait.forget()
                if self._pending.get(key) is wait:
                    del self._pending[key]
        try:
            return Done(await on)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                raise
            return Failed(failure_of(_WORK, error))

    def _wait_for(self, on: AnyFuture) -> "_Wait":
        known = self._pending.get(id(on))
        # One that was dropped stays until its call goes on; another may have its address then.
        if known is not None and known.is_for(on):
            raise ContractError("two calls wait for one future: each needs one of its own")
        if isinstance(on, asyncio.Future) and on.get_loop() is not asyncio.get_running_loop():
            raise ContractError("the call waits for a future of another event loop")
        wait = self._pending[id(on)] = _Wait(on)
        return wait


class _Wait:
    """A call's wait for a future; *over* brings its outcome. There may be many: it is small."""

    __slots__ = ("_future", "_kept", "over")

    def __init__(self, on: AnyFuture) -> None:
        self.over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._future = ref(on, self._dropped)
        # A Task that nobody keeps would vanish while it runs.
        self._kept = on if isinstance(on, asyncio.Task) else None
        on.add_done_callback(self._ended)

    def is_for(self, on: AnyFuture) -> bool:
        """Whether it is *on* that is waited for."""
        return self._future() is on

    def forget(self) -> None:
        """Wait no more."""
        self._kept = None
        future = self._future()
        if isinstance(future, asyncio.Future):
            future.remove_done_callback(self._ended)

    def _ended(self, future: Any) -> None:
        self._soon(_outcome_of, future)

    def _dropped(self, _: object) -> None:
        self._soon(Failed, WorkerLost())

    def _soon(self, outcome: Callable[[Any], Outcome], of: Any) -> None:
        loop = self.over.get_loop()
        if not loop.is_closed():  # any thread may have ended it
            loop.call_soon_threadsafe(self._settle, outcome, of)

    def _settle(self, outcome: Callable[[Any], Outcome], of: Any) -> None:
        if not self.over.done():
            self.over.set_result(outcome(of))


def _outcome_of(future: Any) -> Outcome:
    try:
        return Done(future.result())
    except BaseException as error:  # it was not raised here
        return Failed(failure_of(_WORK, error))
