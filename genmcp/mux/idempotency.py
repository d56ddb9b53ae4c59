"""Calls that run once, however often they are sent: `io.genmcp/idempotencyKey` in their `_meta`.

Not part of the specification. A client that does not know the outcome of its call sends it again
with the same key: to this process or to another, while the first call runs or after it has ended.

The state of the call that owns the key is in a record, which its `Claim` writes.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.seal import digest
from genmcp.core.task import Parked, Task
from genmcp.errors import Gap, InvalidParams, McpError, StoreError, TaskNotFound
from genmcp.mux.claim import Claim, Known, logged
from genmcp.mux.continuations import Continuations, has_tasks
from genmcp.mux.tasks import Tasks, handle_of
from genmcp.protocol.input_required import InputRequiredResult
from genmcp.protocol.meta import IDEMPOTENCY_KEY
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.owned import OwnedStore
from genmcp.stores.store import Delete, Store

__all__ = ["Idempotency"]

_MOMENT: Final = 0.02
_LAST: Final = 1.0  # seconds for pending writes when this process stops


class Idempotency:
    """The calls with keys, of the muxes of one *audience*.

    kept: seconds for which the result of a call is retained. asked: seconds for which a client can
    answer a question. look: seconds after which a call that waits for another checks whether the
    process of that call is alive.
    """

    def __init__(
        self,
        store: Store,
        continuations: Continuations,
        tasks: Tasks,
        *,
        audience: str,
        kept: float,
        asked: float,
        look: float,
    ) -> None:
        self._store = store
        self._continuations = continuations
        self._tasks = tasks
        self._audience = audience
        self._kept = kept
        self._asked = asked
        self._look = look
        self._late: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Give up pending writes after a second: this process is about to end."""
        late, self._late = self._late, set()
        if late:
            await asyncio.wait(late, timeout=_LAST)
        for each in late:
            each.cancel()
        await asyncio.gather(*late, return_exceptions=True)

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
                store = OwnedStore(self._store, self._continuations.owners.of(channel.client_key))
                if self._store.shared:  # signs of life show to other processes that the call runs
                    await self._tasks.jobs.start()
                node = self._tasks.jobs.nodes.own
                claim = Claim(store, key, kept=self._kept, node=node, later=self._begin_late)
                if await claim.begin(arguments, expect=0 if entry is None else entry.version):
                    channel.carrier.claim, channel.carrier.waits = claim, False
                    answer = await self._run(request, channel, claim)
                    if answer is not None:
                        return answer
                    channel.carrier.claim, channel.carrier.waits = None, True
            elif known.result is not None:
                return known.came_to()
            elif task is None:
                # Neither the death of a process nor the record of a task is announced.
                within = self._look if known.task is None else _MOMENT
                seen = await self._news(key, seen, within)
            elif (result := await self._join(task, request, channel)) is not None:
                return result

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

    def _begin_late(self, writing: Coroutine[Any, Any, None]) -> None:
        late = asyncio.create_task(writing)
        self._late.add(late)
        late.add_done_callback(self._late.discard)

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
            if not self._store.shared:
                return False
            await self._tasks.jobs.start()  # only a process that gives signs of life can judge
            if await self._tasks.jobs.nodes.lives(known.node):
                return False
            # Read again: it may have been written before its process died.
            task = await self._task(known.task, channel)
        return task is None or task.end in ("failed", "cancelled")

    async def _run(
        self, request: Request, channel: Channel, claim: Claim
    ) -> Result | Parked | None:
        """Run the call; None if another has run in the meantime, whose result counts."""
        carrier = channel.carrier
        try:
            result = await self._continuations.begin(request, channel)
        except (Exception, asyncio.CancelledError) as error:
            # A task that continues without this request ends by itself.
            elsewhere = isinstance(error, StoreError | asyncio.CancelledError)
            if carrier.task is None or not (elsewhere or carrier.follows):
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

    async def _join(self, task: Task, request: Request, channel: Channel) -> Result | Parked | None:
        """Answer as the call that has become *task* was; None if that was cancelled meanwhile."""
        params: Any = request.params
        if request.route.policy.task != "never" and has_tasks(request):
            return handle_of(task)
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
