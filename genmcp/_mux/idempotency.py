"""Calls that run once, however often they are sent: `io.genmcp/idempotencyKey` in their `_meta`.

Not part of the specification. A client that does not know the outcome of its call sends it again
with the same key: to this process or to another, while the first call runs or after it has ended.

The first call with a key is a task from its beginning (`tasks/keyed.py`). Copies of the call find
that task by the key.
"""

import asyncio
import secrets

import msgspec

from genmcp._core.call import AccessRecord, Resume, RouteResolved
from genmcp._core.outcome import digest
from genmcp._core.request import Request
from genmcp._core.task import Task
from genmcp._core.waiting import AwaitingInput, Running, Suspended
from genmcp._mux.continuations import Continuations, has_tasks
from genmcp._mux.performing import report
from genmcp._mux.sinks import Services
from genmcp._mux.tasks import Tasks, create_task_result, suspension_of, task_result, to_finished
from genmcp.channel import Channel
from genmcp.errors import InvalidParams, McpError, TaskNotFound
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.params import IDEMPOTENCY_KEY
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.server import resolve_route
from genmcp.tasks.records import HeldTask, Stored


class Idempotency:
    """The calls with keys, of the muxes of one *audience*. Owned by the mux."""

    def __init__(
        self, services: Services, tasks: Tasks, continuations: Continuations, audience: str
    ) -> None:
        self._continuations = continuations
        self._tasks = tasks
        self._keyed = tasks.service.keyed
        self._audience = audience
        self._ttl = services.limits.idempotency_ttl
        self._question_ttl = services.limits.input_timeout
        self._store = services.store

    async def begin(self, request: Request, channel: Channel) -> Result | Suspended:
        """Answer a *request* that needs a check before its hook runs, or has a state or a key.

        The route is resolved first, and its scopes are checked: also the result of an earlier call
        with the key is only for a client that has them.

        Raises:
            InsufficientScope: the client lacks a scope of the component.
            InvalidParams: the state or the key is invalid for this request.
            CapabilityMissing: it needs tasks, which the client does not support.
        """
        request = channel.request
        if request.route is not None and request.route.pending:
            request = await resolve_route(channel)
            await report(channel, RouteResolved())
        if request.route is not None and request.route.scopes:
            channel.context.caller.require_scopes(request.route.scopes)
        if self.has_key(request):
            return await self.answer(request, channel)
        return await self._continuations.begin(request, channel)

    @staticmethod
    def has_key(request: Request) -> bool:
        """Return whether *request* is a call with a key; on other methods a key has no effect."""
        return request.method == "tools/call" and request.params.meta.idempotency_key is not None

    async def answer(self, request: Request, channel: Channel) -> Result | Suspended:
        """Run a call that has a key, or return the result of the first call with that key.

        Raises:
            InvalidParams: the client is not authenticated, or the key was used with other
                arguments.
        """
        slot = self._slot(channel)
        arguments = digest(request.raw_arguments or {})
        seen: tuple[str, str | None] = "", None  # the id of a task, and of its latest event
        await report(channel, AccessRecord())
        while True:
            stored = await self._keyed.find(slot)
            task = None if stored is None else await self._current(stored.task, channel)
            if task is not None and task.arguments_digest != arguments:
                raise InvalidParams(
                    f"{IDEMPOTENCY_KEY} {request.params.meta.idempotency_key!r} was used for a "
                    f"call with other arguments"
                )
            if task is None or await self._is_free(task):
                held = await self._create(channel, slot, arguments, stored)
            elif isinstance(task.work, AwaitingInput) and self._continues(task.work, channel):
                assert stored is not None
                held = await self._keyed.resume(stored)
            elif isinstance(task.work, AwaitingInput):
                if not request.answers_by_retry:
                    raise InvalidParams(
                        f"The call with this {IDEMPOTENCY_KEY} waits for an answer of its client, "
                        f"which needs a revision from 2026-07-28 on"
                    )
                return msgspec.json.decode(task.work.result, type=InputRequiredResult)
            elif task.private and task.ended:
                return task_result(task, request.method)
            elif task.private:
                after = seen[1] if seen[0] == task.id else None
                seen = task.id, await self._keyed.next_event(task, after)
                continue
            elif (joined := await self._join(task, request, channel)) is not None:
                return joined
            else:
                continue
            if held is not None and (result := await self._run(held, request, channel)) is not None:
                return result

    async def _current(self, task: Task, channel: Channel) -> Task | None:
        """Return *task* after completing the steps that a dead process has left undone."""
        if task.private or task.ended:
            return task
        try:
            return await self._tasks.service.get(task.id, channel.principal)
        except TaskNotFound:  # it has just expired
            return None

    async def _is_free(self, task: Task) -> bool:
        """Return whether a call may run with the key of *task*."""
        if task.ended or not task.private or isinstance(task.work, AwaitingInput):
            return task.raised or task.end == "cancelled"
        return not await self._keyed.runs(task)

    async def _create(
        self, channel: Channel, slot: str, arguments: bytes, replaces: Stored | None
    ) -> HeldTask | None:
        """Write the task of a call that is about to run; return None if a copy was faster."""
        # The id is random: a write of one call that takes effect late cannot change the record of
        # another call with the same key.
        id = f"{slot}-{secrets.token_hex(8)}"
        work = Running(self._tasks.service.heartbeats.own)
        task = self._tasks.new_task(
            channel, id, work, self._ttl, arguments_digest=arguments, private=True
        )
        return await self._keyed.create(task, replaces)

    def _continues(self, question: AwaitingInput, channel: Channel) -> bool:
        """Return whether the request of *channel* answers the latest question of its call.

        A copy of the call, or of the answer to an earlier question, gets that question again.
        """
        return (
            channel.request.request_state is not None
            and self._continuations.step_of(channel) >= question.step
        )

    async def _run(
        self, held: HeldTask, request: Request, channel: Channel
    ) -> Result | Suspended | None:
        """Run the call, and return its result; None if the record has the result, see `_ended`.

        The record is closed once. If the hook raised or was cancelled, it is closed without a
        result, which frees the key. A disconnect of the client during that write has no effect.
        """
        call = channel.context
        channel.context.keyed = held
        try:
            await report(channel, Resume())
            try:
                result = await self._continuations.begin(request, channel)
            except (Exception, asyncio.CancelledError):
                # If the call has become an ordinary task, `Tasks.ended` writes its end.
                if call.task is None:
                    await self._keyed.close(held, None)
                raise
            finally:
                await report(channel, AccessRecord())  # it has ended: a promotion comes too late
            is_mine = await self._ended(held, result, channel)
        finally:
            self._keyed.release(held)
        if not is_mine:
            channel.context.keyed = None
            await channel.context.settle()  # a promotion finds that the key belongs to another call
            await report(channel, AccessRecord())
        return result if is_mine else None

    async def _ended(self, held: HeldTask, result: Result | Suspended, channel: Channel) -> bool:
        """Write the result of the call, and return True.

        Return False if the caller must read the result from the record: another process has taken
        the call over, or the call waits for its client and is a task already. If the call has
        become an ordinary task, `Tasks.ended` writes its end.
        """
        call = channel.context
        if call.task is not None:
            return True
        if isinstance(result, CallToolResult):
            return await self._keyed.close(held, to_finished(result))
        if isinstance(result, InputRequiredResult):
            assert call.asked is not None
            encoded, step = msgspec.json.encode(result), call.asked.step
            question = AwaitingInput(step, encoded, self._question_ttl)
            suspended = suspension_of(call.asked, None)
            return await self._keyed.ask(held, question, suspended)
        return await self._keyed.close(held, None)

    async def _join(
        self, task: Task, request: Request, channel: Channel
    ) -> Result | Suspended | None:
        """Return the same response as that of the first call, which has become *task*.

        Return None if the task was cancelled in the meantime.
        """
        if request.policy.task != "never" and has_tasks(request):
            return create_task_result(task, self._store.now())
        if request.request_state is not None and self._continuations.answers(task.id, channel):
            await report(channel, Resume())
            return await self._continuations.begin(request, channel)
        try:
            return await self._continuations.followed(task.id, channel)
        except McpError:
            await channel.context.settle()
            await report(channel, AccessRecord())
            now = await self._current(task, channel)
            if now is None or now.end == "cancelled":
                return None
            raise

    def _slot(self, channel: Channel) -> str:
        """Return the slot of the key of a call, see `slot_of` in `_core/task.py`."""
        key = channel.request.params.meta.idempotency_key
        if channel.principal is None:
            raise InvalidParams(
                f"{IDEMPOTENCY_KEY} needs an authenticated client: a key belongs to a principal"
            )
        if not key:
            raise InvalidParams(f"{IDEMPOTENCY_KEY} must not be empty")
        parts = [self._audience, channel.principal, channel.request.key, key]
        return f"k{digest(parts).hex()[:40]}"
