"""The jobs of other queues that this process follows, for the calls that wait for them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from random import uniform
from typing import NamedTuple

from genmcp.core.task import Ref
from genmcp.errors import ConfigurationError, OutOfTurn
from genmcp.tasks.foreign import Foreign, Snapshot
from genmcp.tasks.options import JobOptions
from genmcp.tasks.outcomes import raised
from genmcp.tasks.progress import Reporter, Write
from genmcp.tasks.refs import outcome_of

__all__ = ["Watched", "Watches"]

logger = logging.getLogger("genmcp")


class Watched(NamedTuple):
    """The result of following a job: its packed outcome, or the pause until the next turn."""

    outcome: bytes | None
    pause: float = 0.0


class Watches:
    """Follows the jobs of *foreign* queues. The engine delivers at most `JobOptions.refs` at once.

    While all of these places are taken, each is given up after about `JobOptions.watch` seconds and
    its task is delivered again, behind the waiting ones, so that every job gets its turn.
    """

    def __init__(self, foreign: Sequence[Foreign], options: JobOptions) -> None:
        self._foreign = {each.scheme: each for each in foreign}
        self._options = options
        self._places = 0

    async def cancel(self, ref: Ref) -> None:
        """Cancel a job of another queue; failures are only logged."""
        if foreign := self._foreign.get(ref.scheme):
            try:
                await foreign.cancel(ref.ref)
            except Exception as error:
                logger.error("%s was not cancelled: %s", ref, error, exc_info=error)

    async def follow(self, ref: Ref, write: Write) -> Watched:
        """Follow a job to its end, or until others need the place; *write* stores its progress.

        Raises:
            OutOfTurn: its progress was rejected: the call is over, or followed by another process.
        """
        foreign = self._foreign.get(ref.scheme)
        if foreign is None:
            missing = ConfigurationError(f"no Foreign of the scheme {ref.scheme!r} was given")
            return Watched(raised(f"following {ref.ref!r}", missing))
        reporter = Reporter(write)
        place = asyncio.timeout(None)
        try:
            async with self._place(place), place:
                return Watched(await self._watched(foreign, ref, reporter), self._options.lease)
        except OutOfTurn:
            raise
        except Exception as error:
            if place.expired():
                return Watched(None)
            logger.error("%s is followed again later: %s", ref, error, exc_info=error)
            return Watched(None, self._options.lease)
        finally:
            await reporter.close()

    async def _watched(self, foreign: Foreign, ref: Ref, reporter: Reporter) -> bytes | None:
        clock = asyncio.get_running_loop().time
        told: Snapshot | None = None
        due = 0.0
        async with aclosing(foreign.watch(ref.ref)) as snapshots:
            async for snapshot in snapshots:
                if snapshot.over:
                    return outcome_of(ref, snapshot)
                if reporter.refused:
                    raise OutOfTurn("progress", "over, or somebody else's")
                # A polled queue mostly repeats itself. Its state is still written now and then: a
                # rejected write reveals a lost cancellation.
                if snapshot != told or clock() >= due:
                    told, due = snapshot, clock() + self._options.lease / 3
                    reporter.report(snapshot.progress, snapshot.total, snapshot.message)
        return None

    @asynccontextmanager
    async def _place(self, place: asyncio.Timeout) -> AsyncIterator[None]:
        """Occupy a place, and expire *place* once others need it."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._turn(), lambda: look())

        def look() -> None:
            nonlocal timer
            if self._places >= self._options.refs:
                place.reschedule(loop.time())
            else:
                timer = loop.call_later(self._turn(), look)

        self._places += 1
        try:
            yield
        finally:
            timer.cancel()
            self._places -= 1

    def _turn(self) -> float:
        """Return the seconds for which a place is kept; randomised, so that not all end at once."""
        return self._options.watch * uniform(0.75, 1.25)
