"""Calls that continue in steps, with a wait between two steps.

The state of a wait is in one of three places: in this process, if the call waits for an awaitable;
at the client (`requestState`), if it waits for an answer; in the store, if it waits for a job, or
is a task.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent import futures
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from genmcp._mux.performing import report
from genmcp._mux.questions import (
    answers_outcome,
    ask_client,
    merge_answers,
    missing_capability,
    read_answers,
)
from genmcp._mux.services import MuxServices
from genmcp._mux.stored_request import StoredRequest
from genmcp._mux.task_results import create_task_result, task_result, to_finished
from genmcp._mux.task_sink import TaskCaller, TaskSink, flush, forward_notification
from genmcp._mux.tasks import Tasks, notify, pending_requests, suspension_of
from genmcp._mux.telemetry import OnStep
from genmcp.cancellation import cancel_requested
from genmcp.channel import CallContext, CallServices, Channel
from genmcp.core.call import AccessRecord, CallPhase, CancelTask, Follow, Suspend
from genmcp.core.client_key import ClientKey
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Failed, Outcome, digest, pack
from genmcp.core.request import Request
from genmcp.core.seal import Part, Purpose
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Asking, Continue, Finished, StoredWork, Suspended
from genmcp.errors import (
    CapabilityMissing,
    ConfigurationError,
    Conflict,
    ContractError,
    ForeignSeal,
    IllegalTransition,
    InvalidArguments,
    InvalidParams,
    McpError,
    SealError,
    SealExpired,
    StoreError,
    TaskNotFound,
)
from genmcp.hook import UnknownTag
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.value import Result
from genmcp.server import resolve_route
from genmcp.stores.store import Put
from genmcp.tasks.options import JobOptions
from genmcp.tasks.outcomes import NotRunnableHere, wait_error_of
from genmcp.tasks.queues import ExternalQueue
from genmcp.tasks.retrying import ProcessStops
from genmcp.tasks.service import TaskMessage, TaskService
from genmcp.tasks.values import restore_types, store_types

logger = logging.getLogger("genmcp")

_NO_CODE: Final = "No process of the server can continue the call"


class Continuations:
    """The calls of one mux that continue in steps. Owned by the mux.

    tasks: their records. call_services: for their channels.
    """

    def __init__(
        self, services: MuxServices, *, jobs: JobOptions, external: Sequence[ExternalQueue]
    ) -> None:
        self._services = services
        self._responses = services.responses
        self._server = services.server
        self._store = services.store
        self._state_ttl = services.limits.input_timeout
        resume, cancelled = self.resume, self.cancelled
        self.tasks = Tasks(
            services, jobs=jobs, external=external, resume=resume, cancelled=cancelled
        )
        level_of, in_thread = services.sessions.level_of, services.threads.run
        self.call_services = CallServices(
            services.changes, level_of, self.tasks.result_of, in_thread, services.owner
        )

    # Calls of a client that waits for the result.

    async def advance(
        self, step: Any, channel: Channel, continuation: Continuation | None = None
    ) -> Result | Suspended:
        """Continue from *step*, the result of a hook, until there is a result for the client.

        Return that result, or Suspended if the call is a task, which has to wait now.
        """
        while isinstance(step, Continue):
            try:
                continuation = _next(step, channel, continuation, self._server.info.version)
                work, outcome = step.work, None
                if work is not None or step.questions:
                    outcome = await self._elsewhere(step, work, continuation, channel)
                    if isinstance(outcome, Result | Suspended):
                        return outcome
                else:
                    await report(channel, Suspend(continuation))
                    outcome = await _outcome_of(step.take())
            finally:
                step.close()
            step = await self._server.resume(continuation, outcome, channel)
        if not isinstance(step, Result):
            raise ContractError(
                f"{type(self._server).__name__} answered {channel.request.method} "
                f"with {type(step).__name__}, not a result"
            )
        return step

    async def _elsewhere(
        self, step: Continue, work: StoredWork | None, continuation: Continuation, channel: Channel
    ) -> Outcome | Result | Suspended:
        """Wait for jobs, external jobs, or answers of the client.

        Return the outcome of the wait. Or return a result, if the call continues after this
        response, or Suspended, if the call is a task.
        """
        context, request = channel.context, channel.request
        if work is not None and (queue := request.policy.queue) is not None:
            step.use_queue(queue)
            work = step.work
        await context.promotion_decided()
        if context.task is not None:
            if step.questions and context.promoted and not has_tasks(request):
                # The client got a text result after `max_hold`. Without the tasks extension it has
                # no method that answers a question of a task.
                return Failed(CapabilityMissing({"extensions": {TASKS: {}}}))
            return missing_capability(continuation, channel) or suspension_of(continuation, work)
        if work is None:
            asked = await self._asked(continuation, channel)
            return answers_outcome(asked) if isinstance(asked, Continuation) else asked
        id = self.tasks.id_of_work(continuation)
        # A promotion waits from here on, because it could write a second record of the call.
        await report(channel, AccessRecord(id))
        context.sink.watch_client()
        task = await self.tasks.create(channel, id, suspension_of(continuation, work))
        if gets_handle(request):
            return create_task_result(task, self._store.now())
        return await self.followed(task.id, channel, known=task)

    async def _asked(
        self, continuation: Continuation, channel: Channel
    ) -> Continuation | Failed | InputRequiredResult:
        """Ask the client, by the method of its revision.

        Return *continuation* with all answers, the failure to get them, or the result that asks.
        """
        if failed := missing_capability(continuation, channel):
            return failed
        if channel.request.answers_by_retry:
            # A state is the server's choice (2026-07-28, basic/patterns, MRTR, "Server
            # Requirements", point 3): a client may know the questions in advance. Answers beside a
            # state are for the questions of that.
            if channel.request.request_state is None:
                continuation = merge_answers(continuation, channel.request.input_responses)
            if continuation.missing:
                return self._input_required(continuation, channel)
            return continuation
        await channel.context.promotion_decided()
        return await ask_client(continuation, channel)

    def _input_required(self, continuation: Continuation, channel: Channel) -> InputRequiredResult:
        """Return the questions, with the call as the state for the client to send in its retry.

        Raises:
            ContractError: the state is too large; the message contains its size.
        """
        bound, ttl = _bound(channel), self._state_ttl
        seal, packed = self._services.seal, continuation.pack()
        state = seal.seal(Purpose.REQUEST_STATE, packed, *bound, ttl=ttl)
        return InputRequiredResult(
            input_requests=pending_requests(continuation), request_state=state
        )

    def _opened(self, channel: Channel) -> Continuation:
        """Return the continuation in the state that the request of *channel* repeats.

        Raises:
            InvalidParams: it was not issued for this request, or has expired.
        """
        seal, state = self._services.seal, channel.request.request_state or ""
        try:
            packed = seal.open(Purpose.REQUEST_STATE, state, *_bound(channel))
            continuation = Continuation.unpack(packed)
            key_id = continuation.key_id or seal.key_id_of(state)
            return msgspec.structs.replace(continuation, key_id=key_id)
        except SealExpired:
            message = "requestState has expired: send the request again without it"
        except (SealError, msgspec.MsgspecError) as error:
            message = "Invalid requestState: it was not issued for this request"
            hint = ", or by a process with another secret" if isinstance(error, ForeignSeal) else ""
            logger.warning("a requestState was rejected: %s%s", error, hint)
        raise InvalidParams(message)

    async def retried(
        self, request: Request, channel: Channel, keyed: Collection[str]
    ) -> Result | Suspended:
        """Continue a call with the answers of its client, in a request with a state.

        *keyed* has the ids that the task of the idempotency key in the request may have.

        Raises:
            InvalidParams: the state was not issued for this request.
        """
        continuation = self._opened(channel)
        if keyed and continuation.task not in keyed:
            raise InvalidParams("requestState belongs to a call with another idempotency key")
        if continuation.task is not None:
            await channel.context.promotion_decided()
            await report(channel, AccessRecord(None, continuation.task))
        channel.context.restore(restore_types(continuation.assigns))
        continuation = merge_answers(continuation, request.input_responses)
        failed = missing_capability(continuation, channel)
        if continuation.missing and failed is None:
            await self._spend(channel, continuation, once=False)
            return self._input_required(continuation, channel)
        await self._spend(channel, continuation)
        if continuation.task is not None:
            task = await self._answer(continuation, failed or continuation, channel)
            is_own = task.arguments_digest is None  # otherwise it continues without this client
            return await self.followed(task.id, channel, continuation.last_event, is_own=is_own)
        outcome = failed or answers_outcome(continuation)
        step = await self._server.resume(continuation, outcome, channel)
        return await self.advance(step, channel, continuation)

    async def _spend(
        self, channel: Channel, continuation: Continuation, *, once: bool = True
    ) -> None:
        """Record that the state of *continuation* was used, for a tool with `single_use`.

        once: False if the call does not continue yet, and gets a new state. A used state is then
            rejected as well: the new state would be valid for longer than the record of the use.

        Raises:
            InvalidParams: the state was used before.
        """
        request = channel.request
        if not request.policy.single_use:
            return
        key = f"spent:{continuation.id}.{continuation.step}"
        try:
            if once:
                # The record expires after twice the lifetime of a state: a state that was issued at
                # this moment expires a little later, and perhaps by another clock.
                client = channel.context.client
                spent = Put(key, b"", ttl=2 * self._state_ttl, expect=0, client=client, new=True)
                await self._store.apply(spent)
                return
            if await self._store.get(key) is None:
                return
        except Conflict:
            pass
        logger.warning("a requestState of %s, which is single-use, came twice", request.method)
        raise InvalidParams("requestState was used already: it is valid once")

    async def followed(
        self,
        id: str,
        channel: Channel,
        after: str | None = None,
        known: Task | None = None,
        *,
        is_own: bool = False,
    ) -> Result:
        """Return the result of the task *id*, for a client without its handle.

        A client with tasks gets the handle as soon as the task waits in the store. The client has
        received the events up to *after*. *known* is the task as it was just written. *is_own*:
        whether it is the call of *channel*, and ends with it.

        Raises:
            McpError: it ended with an error, or was cancelled.
        """
        await channel.context.promotion_decided()
        await report(channel, Follow(id, id if is_own else channel.task))
        while True:
            asking = await _end_of(self.tasks.service, id, channel, after, known)
            if isinstance(asking, Result):
                return asking
            asked = await self._asked(asking, channel)
            if isinstance(asked, Result):
                return asked
            await self._answer(asking, asked, channel)
            after, known = asking.last_event, None

    async def _answer(
        self, asking: Continuation, answered: Continuation | Failed, channel: Channel
    ) -> Task:
        """Write the client's answers, or the failure, to the task that waits for them."""
        assert asking.task is not None
        given = asking.answers if isinstance(answered, Failed) else answered.answers
        packed = {name: pack(Done(msgspec.Raw(answer))) for name, answer in given.items()}
        if isinstance(answered, Failed):
            packed |= {each.name: pack(answered) for each in asking.missing}
        return await self.tasks.service.answer(asking.task, channel.principal, packed)

    # Calls that run without a request: after their job, or with the answers to their questions. The
    # request is stored beside the task, so that any process can continue it. Calls with idempotency
    # keys begin here, too: no client ends them by leaving.

    async def resume(
        self, task: Task, packed_request: bytes, outcome: Outcome
    ) -> Suspended | Finished:
        """Continue the call of *task* with the *outcome* of its wait.

        Raises:
            ProcessStops: this process stops; the step is repeated elsewhere.
            IllegalTransition: another process continues it.
            NotRunnableHere: this process lacks the code that continues it.
        """
        try:
            continuation = Continuation.unpack(task.continuation)
            channel = self._channel(task, packed_request, continuation.assigns)
            if continuation.asked:
                outcome = read_answers(continuation, outcome)
        except (ConfigurationError, msgspec.MsgspecError) as error:
            unknown = f"a continuation of {task.tool} was stored by another release: {error}"
            raise NotRunnableHere(unknown, _NO_CODE) from error
        with self._services.observers.resuming(channel, continuation.tag, task.trace) as on_step:
            return await self._step(
                task,
                channel,
                lambda: self._server.resume(continuation, outcome, channel),
                continuation,
                on_step,
            )

    async def run_keyed(self, task: Task, request_channel: Channel) -> Suspended | Finished:
        """Run `call` for the request of *request_channel*, which is *task* from its beginning.

        Raises:
            ProcessStops, IllegalTransition: as for `resume`.
        """
        caller = request_channel.context.caller
        context = self._context(task, TaskCaller(caller.client_key, caller.copied))
        context.step = task.step
        context.restore(request_channel.context.own_assigns)
        channel = Channel(request_channel.request, context, request_channel.access)

        def on_step(*_: object) -> None:
            """Do nothing: the request that waits for the result reports it to the telemetry."""

        finished = await self._step(
            task, channel, lambda: self._server.handle(channel.request, channel), None, on_step
        )
        if cancel_requested():  # the hook has a result nevertheless
            await self._stopped(task, channel)
        return finished

    async def _step(
        self,
        task: Task,
        channel: Channel,
        hook: Callable[[], Awaitable[Result | Continue]],
        continuation: Continuation | None,
        on_step: OnStep,
    ) -> Suspended | Finished:
        """Run *hook*, and what follows in this process; *continuation* is None for `call`."""
        raised: BaseException | None = None
        try:
            await resolve_route(channel)
            result: Any = await self.advance(await hook(), channel, continuation)
        except (ProcessStops, IllegalTransition, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # any exception of a hook ends only its own call
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                on_step(None, error)
                await self._stopped(task, channel)
                raise
            latest = channel.context.continuation or continuation
            release = self._server.info.version
            if isinstance(error, UnknownTag) and latest and latest.release != release:
                on_step(None, error)
                unknown = f"{error} (of a call of release {latest.release!r})"
                raise NotRunnableHere(unknown, _NO_CODE) from error
            result, raised = self._responses.result_of(channel.request, error), error
        finally:
            await flush(channel)
        if isinstance(result, Suspended):
            on_step(result)
            return result
        finished = to_finished(result, raised)
        if continuation is None and isinstance(raised, InvalidArguments):  # `call` did not begin
            finished = msgspec.structs.replace(finished, frees_key=True)
        limits = self._services.limits
        if finished.result is not None and len(finished.result) > limits.max_result_bytes:
            raised = limits.too_large()
            result = self._responses.result_of(channel.request, raised)
            finished = to_finished(result)
        on_step(result, raised)
        del raised  # its traceback refers to this frame: a reference cycle
        return finished

    async def cancel(self, id: str, owner: str | None) -> None:
        """Cancel a task in any process, and notify its tool. Does nothing if it has ended.

        Raises:
            TaskNotFound: the task does not exist.
        """
        task = await self.tasks.cancel(id, owner)
        if task is not None and not task.runs_hook:
            await self.cancelled(task)

    async def cancelled(self, task: Task) -> None:
        """Notify the tool of *task* that it was cancelled. No hook of it runs. An error is logged.

        Raises:
            StoreError: the store failed, before the tool was notified.
        """
        packed_request = await self.tasks.service.records.call(task.id)
        if packed_request is not None:
            await notify(self._cancelled(task, packed_request))

    async def _cancelled(self, task: Task, packed_request: bytes) -> None:
        assigns = Continuation.unpack(task.continuation).assigns if task.continuation else {}
        channel = self._channel(task, packed_request, assigns)
        with suppress(McpError):  # the tool may be hidden from its client now: notify it anyway
            await resolve_route(channel)
        await self._server.cancelled(channel)

    async def _stopped(self, task: Task, channel: Channel) -> None:
        """Notify the tool of *task*, if that was cancelled while its step ran in this process.

        The process that has cancelled the task does not notify the tool (`Task.runs_hook`), because
        `on_cancel` must run after the end of the hook, which only this process knows. The hook may
        also have been stopped because another process has taken the task over.
        """
        channel.context.advance(CancelTask())  # without its action: the hook has ended
        records, stored = self.tasks.service.records, None
        with suppress(StoreError):  # the record of a cancelled task was written before
            stored = await records.find(task.id)
        if stored is None:
            return
        now = stored.task
        cancelled = now.end == "cancelled" and now.fencing_token == task.fencing_token
        is_replaced = now.created != task.created  # the key of the cancelled call is in use again
        if cancelled or is_replaced:
            await notify(self._server.cancelled(channel))
            await records.notified(task)

    def _channel(self, task: Task, packed_request: bytes, own: Mapping[str, Any]) -> Channel:
        """Return a channel for the stored request of *task*, with the assigns *own* of its hooks.

        Raises:
            NotRunnableHere: this process has no such component, or does not serve the revision.
        """
        stored = StoredRequest.unpack(packed_request)
        request, access = stored.request(), stored.access
        route = self._server.find(request.method, request.key)
        if route is None:
            unknown = f"{request.method} {request.key} is not there any more"
            raise NotRunnableHere(unknown, unknown)
        principal = None if access is None else access.principal
        key = ClientKey(principal, stored.session, stored.address)
        kept = restore_types(stored.kept) if stored.kept else {}
        context = self._context(task, TaskCaller(key, kept))
        if own or stored.gone:
            context.restore(restore_types(own), stored.gone)
        return Channel(msgspec.structs.replace(request, route=route), context, access)

    def _context(self, task: Task, caller: TaskCaller) -> CallContext:
        token = task.fencing_token
        return CallContext(
            phase=CallPhase.TASK,
            task=task.id,
            run=run_id(task),
            fencing_token=token,
            sink=TaskSink(self.tasks.service, task.id, token),
            caller=caller,
            performer=self.tasks,
            services=self.call_services,
            static=self._services.assigns,
        )


async def _outcome_of(on: Any) -> Outcome:
    """Wait for *on*, an awaitable of this process, and return its outcome.

    A coroutine runs here, and is cancelled with the call. A Task or future belongs to its creator,
    and is not.

    Raises:
        ContractError: *on* is a future of another event loop.
        asyncio.CancelledError: the call is cancelled.
    """
    if isinstance(on, futures.Future):
        on = asyncio.wrap_future(on)
    if isinstance(on, asyncio.Future):
        if on.get_loop() is not asyncio.get_running_loop():
            raise ContractError("the call waits for a future of another event loop")
        on = asyncio.shield(on)
    try:
        return Done(await on)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and cancel_requested():
            raise
        return Failed(wait_error_of("what a call waited for", error))


async def _end_of(
    service: TaskService, id: str, channel: Channel, after: str | None, known: Task | None
) -> Result | Continuation:
    """Follow the task *id*, forwarding its messages, to its result or to a question.

    Raises:
        McpError: it ended with an error.
    """
    has_handle = gets_handle(channel.request)
    at_once = has_handle and channel.request.policy.task == "always"
    async with aclosing(service.follow(id, channel.principal, after, known=known)) as changes:
        async for each in changes:
            if isinstance(each, TaskMessage):
                await forward_notification(each.data, channel)
                continue
            task = each.task
            if task.progress is not None:
                await channel.progress(task.progress, task.total, task.message)
            if task.ended:
                return task_result(task, channel.request.method)
            asks = isinstance(task.work, Asking) and not task.settled
            if asks and not at_once:
                continuation = Continuation.unpack(task.continuation)
                return msgspec.structs.replace(continuation, task=id, last_event=each.id)
            if at_once or (has_handle and task.bound_node is None):
                return create_task_result(task, service.records.now())
    raise TaskNotFound(id)


def has_tasks(request: Request) -> bool:
    """Return whether the client of *request* supports the tasks extension."""
    extensions = request.client.capabilities.extensions
    return extensions is not None and TASKS in extensions


def gets_handle(request: Request) -> bool:
    """Return whether the client of *request* gets a handle once the call is a task."""
    extensions = request.client.capabilities.extensions
    return extensions is not None and TASKS in extensions and request.policy.task != "never"


def _next(
    step: Continue, channel: Channel, last: Continuation | None, release: str
) -> Continuation:
    """Return the continuation of *step*; *release* is the version of the server.

    Raises:
        ContractError: the assigns that hooks have set have no JSON form.
    """
    if own := channel.context.own_assigns:
        own = store_types("channel.assigns", own)
    if last is None:
        id, key = secrets.token_urlsafe(12), channel.request.key
        first = channel.context.step + 1
        continuation = Continuation(id, first, key, step.tag, own, release=release)
    else:
        continuation = last.then(step.tag, own, release)
    if step.method is not None:
        otherwise = getattr(step.otherwise, "__name__", "")
        continuation = msgspec.structs.replace(continuation, method=True, otherwise=otherwise)
    if step.questions:
        packed = {key: question.pack() for key, question in step.questions.items()}
        continuation = continuation.asking(packed, alone=step.alone)
    return continuation


# The `requestState` of a question holds the continuation of the call (2026-07-28, basic/patterns,
# MRTR, "Server Requirements", points 4 and 5): it is encrypted and authenticated, expires, and
# opens only for the same principal and the same request.


def _bound(channel: Channel) -> tuple[Part, ...]:
    """Return the parts that a state is bound to: a retry must repeat all of them."""
    request = channel.request
    return request.method, request.key, channel.principal, digest(request.raw_arguments or {})
