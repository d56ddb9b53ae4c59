"""One attempt at a job, as its function sees it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from genmcp.core.json_value import check_json
from genmcp.errors import ContractError

__all__ = ["Reports", "Run", "SavedState"]

T = TypeVar("T")


class Reports(Protocol):
    """What takes the progress of an attempt."""

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Have it written, soon."""

    async def fenced(self, write: Callable[[], Awaitable[object]]) -> None:
        """Await a *write* that is fenced by the turn; a rejected one ends the work."""


class SavedState(msgspec.Struct, eq=False):
    """The state that a job has saved, as JSON. Owned by one attempt.

    write: stores a new one. limit: its maximum size in bytes.
    """

    json: bytes | None
    write: Callable[[bytes], Awaitable[object]]
    limit: int

    def encoded(self, state: Any) -> bytes:
        """Return *state* as JSON.

        Raises:
            ContractError: it is not JSON, or too large.
        """
        check_json("run.save: state", state)
        try:
            encoded = msgspec.json.encode(state)
        except ValueError as error:  # half of a surrogate pair
            raise ContractError(f"run.save: the state cannot be stored: {error}") from error
        if len(encoded) > self.limit:
            raise ContractError(
                f"run.save: the state has {len(encoded)} bytes as JSON, and may have {self.limit} "
                f"(JobOptions.max_saved_bytes): save what finds the data, and store it elsewhere"
            )
        return encoded


class Run(msgspec.Struct, frozen=True, eq=False):
    """What a job has of the attempt that is made at it.

    id: of the job, the same for each attempt: a key by which what it does elsewhere can be done
    once. attempt: which one this is, counted from 1. assigns: of the call that waits for it. saved:
    the state that was saved last, by this attempt or an earlier one.

    A `def` job is in a thread and cannot await; it says `run.in_loop(run.progress(1, 3))`, and
    `run.in_loop(run.save(state))`.
    """

    id: str
    attempt: int
    assigns: Mapping[str, Any]
    _reports: Reports
    _loop: asyncio.AbstractEventLoop
    _state: SavedState

    async def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report how far the work is, and let others run.

        Any number of reports costs little: ten a second are kept, the last one always.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            TypeError, ValueError: one of the two is no number.
        """
        self._reports.report(done, total, message)
        await asyncio.sleep(0)

    @property
    def saved(self) -> Any:
        """The state that this job saved last, as JSON gives it back; None if it saved none.

        Each read decodes it: changing the value that was returned changes nothing else.
        """
        state = self._state.json
        return None if state is None else msgspec.json.decode(state)

    async def save(self, state: Any) -> None:
        """Store *state* with the task, in place of what was saved before.

        If the job runs again (after a crash or a shutdown of its worker, or as a retry), its next
        attempt finds the state in `saved`. When this returns, the state is stored; it waits while
        the store cannot be reached. Each state is one write: save after each piece of work that
        should not be done again, such as a page or a batch, not in a tight loop. Another job of the
        same call starts without a state.

        Args:
            state: any JSON value, of at most `JobOptions.max_saved_bytes` (65536) bytes. A tuple
                becomes a list.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            ContractError: (a TypeError) it is not JSON, or too large; nothing is stored, and the
                state that was saved before is kept.
            StoreError: the store is full, or the client's share of it is used up.
        """
        encoded = self._state.encoded(state)
        await self._reports.fenced(partial(self._state.write, encoded))
        self._state.json = encoded
        await asyncio.sleep(0)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the worker's event loop and wait for it, from a `def` job's thread.

        Raises:
            RuntimeError: this is the event loop's own thread (`await` it), or the loop has ended.
        """
        if _running() is self._loop:
            work.close()
            raise RuntimeError("in_loop is for a `def` job: await it instead")
        if not self._loop.is_closed():
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
            while not self._loop.is_closed():
                if wait([done], timeout=0.5).done:
                    return done.result()
        work.close()  # Python would warn that it was never awaited
        raise RuntimeError("the worker's event loop has ended")


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
