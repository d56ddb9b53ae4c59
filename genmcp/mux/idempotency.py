"""Calls that run once, however often they are sent: `io.genmcp/idempotencyKey` in their `_meta`.

Not part of the specification. A client that does not know the outcome of its call sends it again
with the same key: to this process or to another, while the first call runs or after it has ended.

The state of the call that owns the key is in a record, which its `Claim` writes.
"""

import asyncio
from contextlib import aclosing, suppress
from typing import Any, Final

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.seal import digest
from genmcp.core.task import Parked, Task
from genmcp.errors import (
    Gap,
    InvalidParams,
    McpError,
    OverShare,
    StoreError,
    StoreFull,
    TaskNotFound,
)
from genmcp.mux.claim import Claim, Known, logged
from genmcp.mux.continuations import Continuations, has_tasks
from genmcp.mux.late_writes import LateWrites
from genmcp.mux.limits import Limits
from genmcp.mux.tasks import Tasks, handle_of
from genmcp.protocol.input_required import InputRequiredResult
from genmcp.protocol.meta import IDEMPOTENCY_KEY
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.owned import OwnedStore
from genmcp.stores.store import Delete, Entry, Store

__all__ = ["Idempotency"]

_MOMENT: Final = 0.02
_LONGEST_MOMENT: Final = 1.0
"""Seconds after which a missing task is looked for again, doubled from `_MOMENT` up to this."""

_AGAIN: Final = 0.5
_LONGEST: Final = 30.0
"""Seconds after which it is checked again whether a refused task was written, doubled likewise."""


class Idempotency:
    """The calls with keys, of the muxes of one *audience*.

    lease: seconds without a sign of life after which another process is considered gone.
    """

    def __init__(
        self,
        store: Store,
        continuations: Continuations,
        tasks: Tasks,
        *,
        audience: str,
        limits: Limits,
        lease: float,
    ) -> None:
        self._store = store
        self._continuations = continuations
        self._tasks = tasks
        self._audience = audience
        self._kept = limits.idempotency
        self._asked = limits.question
        self._lease = lease
        self._late = LateWrites(limits.late_results)
        self._running: set[str] = set()  # names of the calls that own their keys and run here

    async def aclose(self) -> None:
        """Give up pending writes after a second: this process is about to end."""
        await self._late.aclose()

    @staticmethod
    def has_key(request: Request) -> bool:
        """Whether *request* is a call with a key: what else is asked for is not changed by it."""
        return request.method == "tools/call" and request.known_meta.idempotency_key is not None

    async def answer(self, request: Request, channel: Channel) -> Result | Parked:
        """Answer a call that has a key: run it, or give what the first one with the key came to.

        Raises:
            InvalidParams: nobody is authenticated, or the key was used for other arguments.
        """
        params: Any = request.params
        key = self._key(channel)
        arguments = digest(params.arguments or {})
        seen: str | None = None
        moment = _MOMENT
        channel.carrier.waits = True
        while True:
            entry = await self._store.get(key)
            known = None if entry is None else Known.unpack(entry.value)
            if known is not None and known.arguments != arguments:
                raise InvalidParams(
                    f"{IDEMPOTENCY_KEY} {request.known_meta.idempotency_key!r} was used for a "
                    f"call with other arguments"
                )
            task = None if known is None else await self._task(known.task, channel)
            if known is None or await self._may_run(known, task, channel):
                answer = await self._claimed(request, channel, key, arguments, entry)
                if answer is not None:
                    return answer
            elif known.result is not None:
                return known.came_to()
            elif task is None:
                # Neither the death of a process nor the record of a task is announced.
                within = self._lease / 3
                if known.task is not None:
                    within, moment = min(moment, within), min(2 * moment, _LONGEST_MOMENT)
                seen = await self._news(key, seen, within)
            elif (result := await self._join(task, request, channel)) is not None:
                return result

    async def _claimed(
        self, request: Request, channel: Channel, key: str, arguments: bytes, entry: Entry | None
    ) -> Result | Parked | None:
        """Claim *key*, whose record is *entry*, and run the call; None if another was faster."""
        store = OwnedStore(self._store, self._continuations.owners.of(channel.client_key))
        if self._store.shared:  # signs of life show to other processes that the call runs
            await self._tasks.jobs.start()
        node = self._tasks.jobs.nodes.own
        claim = Claim(store, key, kept=self._kept, node=node, late=self._late, patience=self._lease)
        self._running.add(claim.call)  # first, so that no copy finds a claim without its call
        try:
            if not await self._begun(claim, arguments, entry):
                return None
            channel.carrier.claim, channel.carrier.waits = claim, False
            answer = await self._run(request, channel, claim)
            if answer is None:
                channel.carrier.claim, channel.carrier.waits = None, True
            return answer
        finally:
            self._running.discard(claim.call)

    async def _begun(self, claim: Claim, arguments: bytes, entry: Entry | None) -> bool:
        """Begin *claim*; free its key again if it is unknown whether that was written."""
        try:
            return await claim.begin(arguments, expect=0 if entry is None else entry.version)
        except (StoreError, asyncio.CancelledError) as error:
            if not isinstance(error, OverShare | StoreFull):
                await claim.free()
            raise

    async def failed(self, channel: Channel) -> None:
        """Free the key of a task, the call of *channel*, that has failed where it was resumed."""
        if not self.has_key(channel.request):
            return
        key = self._key(channel)
        with logged():
            entry = await self._store.get(key)
            if entry is not None and Known.unpack(entry.value).task == channel.task:
                await self._store.apply(Delete(key, expect=entry.version))

    def _key(self, channel: Channel) -> str:
        """Return where the store keeps what is known of the key of a call."""
        key = channel.request.known_meta.idempotency_key
        if channel.principal is None:
            raise InvalidParams(
                f"{IDEMPOTENCY_KEY} needs an authenticated client: nothing else tells whose it is"
            )
        if not key:
            raise InvalidParams(f"{IDEMPOTENCY_KEY} must not be empty")
        params: Any = channel.request.params
        return f"keyed:{digest([self._audience, channel.principal, params.name, key]).hex()}"

    async def _task(self, id: str | None, channel: Channel) -> Task | None:
        if id is not None:
            with suppress(TaskNotFound):
                return await self._tasks.jobs.get(id, channel.principal)
        return None

    async def _may_run(self, known: Known, task: Task | None, channel: Channel) -> bool:
        """Return whether a call may run with a key that has the record *known*."""
        if known.asked is not None:
            # An answer to the latest question continues the call. An answer to an earlier question
            # is a copy: it gets the question that followed its original.
            params: Any = channel.request.params
            return (
                params.request_state is not None
                and self._continuations.step_of(channel) >= known.asked
            )
        if known.result is not None:
            return False
        if task is None:
            if await self._goes_on(known):
                return False
            # Read again: it may have been written before its call ended or its process died.
            task = await self._task(known.task, channel)
        return task is None or task.end in ("failed", "cancelled")

    async def _goes_on(self, known: Known) -> bool:
        """Return whether the call of *known*, which is no task, still runs.

        A call of this process that neither runs nor has writes pending has ended without a record
        of that. A living process is trusted to free the keys of its own calls: that it has not
        written a task yet may be due to the store, while the call runs.
        """
        nodes = self._tasks.jobs.nodes
        if known.node == nodes.own:
            return known.call in self._running or self._late.has(known.call)
        if not self._store.shared:
            return True
        await self._tasks.jobs.start()  # only a process that gives signs of life can judge
        return await nodes.lives(known.node)

    async def _run(
        self, request: Request, channel: Channel, claim: Claim
    ) -> Result | Parked | None:
        """Run the call; None if another has run in the meantime, whose result counts."""
        carrier = channel.carrier
        try:
            result = await self._continuations.begin(request, channel)
        except (Exception, asyncio.CancelledError) as error:
            # A task that continues without this request ends by itself, if it was written.
            elsewhere = isinstance(error, StoreError | asyncio.CancelledError)
            named = carrier.task is not None and claim.task is not None
            if named and (elsewhere or carrier.follows):
                refused = isinstance(error, OverShare | StoreFull)
                freeing = self._free_unless_written(claim, channel, refused=refused)
                self._late.begin(claim.call, freeing)
            else:
                await claim.free()
            raise
        finally:
            carrier.waits = True  # it has ended, and cannot become a task any more
        if channel.promoted:
            return result
        if isinstance(result, CallToolResult):
            return result if await claim.keep(result) else None
        if claim.task is None:
            if isinstance(result, InputRequiredResult):
                assert carrier.continuation is not None
                step = carrier.continuation.step
                return result if await claim.ask(result, step, ttl=self._asked) else None
            await claim.free()
        return result

    async def _free_unless_written(self, claim: Claim, channel: Channel, *, refused: bool) -> None:
        """Free the key of a call that has ended while its task was written, if there is no task.

        Unless the store has *refused* the record, a second look after a pause decides: a write that
        was abandoned may still be carried out.
        """
        pause, missing = _AGAIN, refused
        while True:
            with logged():
                if await self._task(claim.task, channel) is not None:
                    return
                if missing:
                    await claim.free()
                    return
                missing = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    async def _join(self, task: Task, request: Request, channel: Channel) -> Result | Parked | None:
        """Answer as the call that has become *task* was; None if that was cancelled meanwhile."""
        params: Any = request.params
        if request.route.policy.task != "never" and has_tasks(request):
            return handle_of(task, self._store.now())
        channel.carrier.waits = False
        if params.request_state is not None and self._continuations.answers(task.id, channel):
            return await self._continuations.begin(request, channel)
        try:
            return await self._continuations.followed(task.id, channel)
        except McpError:
            channel.carrier.follows, channel.carrier.waits = None, True
            now = await self._task(task.id, channel)
            if now is None or now.end == "cancelled":
                return None
            raise

    async def _news(self, key: str, seen: str | None, within: float) -> str | None:
        """Wait until something may have become of the call; return the event *seen* last."""
        try:
            async with (
                asyncio.timeout(within),
                aclosing(self._store.follow(key, seen)) as news,
            ):
                return (await anext(news)).id
        except TimeoutError:
            return seen
        except Gap:
            return None
