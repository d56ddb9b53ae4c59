"""Calls that continue in steps, with a wait between two steps.

The state of a wait is in one of three places: in this process, if the call waits for an awaitable;
at the client (`requestState`), if it waits for an answer; in the store, if it waits for a job, or
is a task.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping
from concurrent import futures
from contextlib import aclosing
from typing import Any

import msgspec

from genmcp._core.call import AccessRecord, Follow, Suspend
from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Done, Failed, Outcome, digest, pack
from genmcp._core.request import Request
from genmcp._core.seal import Part, Purpose, Seal
from genmcp._core.task import Task
from genmcp._core.waiting import Asking, Continue, StoredWork, Suspended
from genmcp._mux.performing import report
from genmcp._mux.questions import (
    answers_outcome,
    ask_client,
    merge_answers,
    missing_capability,
    pending_requests,
)
from genmcp._mux.sinks import Services, forward_notification
from genmcp._mux.tasks import Tasks, create_task_result, suspension_of, task_result
from genmcp.cancellation import cancel_requested
from genmcp.channel import Channel
from genmcp.errors import (
    CapabilityMissing,
    Conflict,
    ContractError,
    ForeignSeal,
    InvalidParams,
    SealError,
    SealExpired,
    TaskNotFound,
)
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.value import Result
from genmcp.stores.store import Put
from genmcp.tasks.attempt import wait_error_of
from genmcp.tasks.service import TaskMessage, TaskService
from genmcp.tasks.values import restore_types, store_types

logger = logging.getLogger("genmcp")


class Continuations:
    """The calls of one mux that continue in steps. Owned by the mux."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._server = services.server
        self._store = services.store
        self._state_ttl = services.limits.input_timeout
        self._states = RequestStateCodec(services.seal, self._state_ttl)
        self._tasks = tasks

    async def advance(
        self, step: Any, channel: Channel, continuation: Continuation | None = None
    ) -> Result | Suspended:
        """Continue from *step*, the result of a hook, until there is a result for the client.

        Return that result, or Suspended if the call is a task, which has to wait now.
        """
        while isinstance(step, Continue):
            try:
                continuation = _next(step, channel, continuation, self._server.info.version)
                outcome: Outcome | Result | Suspended
                if step.work is not None or step.questions:
                    outcome = await self._elsewhere(step, continuation, channel)
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
        self, step: Continue, continuation: Continuation, channel: Channel
    ) -> Outcome | Result | Suspended:
        """Wait for jobs, external jobs, or answers of the client.

        Return the outcome of the wait. Or return a result, if the call continues after this
        response, or Suspended, if the call is a task.
        """
        if (queue := channel.request.policy.queue) is not None:
            step.use_queue(queue)
        await channel.context.promotion_decided()
        if channel.task is not None:
            return self._in_task(step, continuation, channel)
        if step.work is not None:
            return await self._work(step.work, continuation, channel)
        return await self._asked(continuation, channel)

    def _in_task(
        self, step: Continue, continuation: Continuation, channel: Channel
    ) -> Suspended | Failed:
        """Return the wait of a task; or the failure, if its client cannot answer."""
        if step.questions and channel.context.promoted and not has_tasks(channel.request):
            # The client got a text result after `max_hold`. Without the tasks extension it has no
            # method that answers a question of a task.
            return Failed(CapabilityMissing({"extensions": {TASKS: {}}}))
        return missing_capability(continuation, channel) or suspension_of(continuation, step.work)

    async def _work(self, work: StoredWork, continuation: Continuation, channel: Channel) -> Result:
        """Start a job. Return the handle of the task, or the result of the call."""
        id = self._tasks.id_of_work(continuation)
        # A promotion waits from here on, because it could write a second record of the call.
        await report(channel, AccessRecord(id))
        channel.context.sink.watch_client()
        task = await self._tasks.begin(channel, id, suspension_of(continuation, work))
        if channel.request.policy.task != "never" and has_tasks(channel.request):
            return create_task_result(task, self._store.now())
        return await self.followed(task.id, channel, known=task)

    async def _asked(
        self, continuation: Continuation, channel: Channel
    ) -> Outcome | InputRequiredResult:
        """Ask the client, by the method of its revision."""
        if failed := missing_capability(continuation, channel):
            return failed
        if channel.request.answers_by_retry:
            continuation = merge_answers(continuation, _unasked_answers(channel.request))
            if continuation.missing:
                return self._input_required(continuation, channel)
            return answers_outcome(continuation)
        answered = await ask_client(continuation, channel)
        return answered if isinstance(answered, Failed) else answers_outcome(answered)

    def _input_required(self, continuation: Continuation, channel: Channel) -> InputRequiredResult:
        state = self._states.seal(continuation, channel.request, channel.principal)
        return InputRequiredResult(
            input_requests=pending_requests(continuation), request_state=state
        )

    async def retried(
        self, request: Request, channel: Channel, keyed: Collection[str]
    ) -> Result | Suspended:
        """Continue a call with the answers of its client, in a request with a state.

        *keyed* has the ids that the task of the idempotency key in the request may have.

        Raises:
            InvalidParams: the state was not issued for this request.
        """
        continuation = self._states.open(request, channel.principal)
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
            task = await self._answer(continuation, channel, failed)
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
            asking = await _end_of(self._tasks.service, id, channel, after, known)
            if isinstance(asking, Result):
                return asking
            failed = missing_capability(asking, channel)
            if failed is None and channel.request.answers_by_retry:
                asking = merge_answers(asking, _unasked_answers(channel.request))
                if asking.missing:
                    return self._input_required(asking, channel)
            elif failed is None:
                await channel.context.promotion_decided()
                answered = await ask_client(asking, channel)
                if isinstance(answered, Failed):
                    failed = answered
                else:
                    asking = answered
            await self._answer(asking, channel, failed)
            after, known = asking.last_event, None

    async def _answer(
        self, continuation: Continuation, channel: Channel, failed: Failed | None
    ) -> Task:
        """Write the client's answers, or the failure, to the task that waits for them."""
        assert continuation.task is not None
        answers: dict[str, Outcome] = {}
        for each in continuation.asked:
            if each.key in continuation.answers:
                answers[each.name] = Done(msgspec.Raw(continuation.answers[each.key]))
            elif failed is not None:
                answers[each.name] = failed
        packed = {name: pack(each) for name, each in answers.items()}
        return await self._tasks.service.answer(continuation.task, channel.principal, packed)


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
    gets_handle = channel.request.policy.task != "never" and has_tasks(channel.request)
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
            if isinstance(task.work, Asking) and not task.settled:
                continuation = Continuation.unpack(task.continuation)
                return msgspec.structs.replace(continuation, task=id, last_event=each.id)
            if gets_handle and task.bound_node is None:
                return create_task_result(task, service.records.now())
    raise TaskNotFound(id)


def has_tasks(request: Request) -> bool:
    """Return whether the client of *request* supports the tasks extension."""
    extensions = request.client.capabilities.extensions
    return extensions is not None and TASKS in extensions


def _unasked_answers(request: Request) -> Mapping[str, Any]:
    """Return the answers that *request* contains before any question was sent.

    A state is the server's choice (2026-07-28, basic/patterns, MRTR, "Server Requirements", point
    3): a client may know the questions in advance. Answers beside a state are for its questions.
    """
    return {} if request.request_state is not None else request.input_responses


def _next(
    step: Continue, channel: Channel, last: Continuation | None, release: str
) -> Continuation:
    """Return the continuation of *step*; *release* is the version of the server.

    Raises:
        ContractError: the assigns that hooks have set have no JSON form.
    """
    own = store_types("channel.assigns", channel.context.own_assigns)
    if last is None:
        id, key = secrets.token_urlsafe(12), channel.request.key
        continuation = Continuation(id, 1, key, step.tag, own, release=release)
    else:
        continuation = last.then(step.tag, own, release)
    if step.method is not None:
        continuation = continuation.in_method(getattr(step.otherwise, "__name__", ""))
    if step.questions:
        packed = {key: question.pack() for key, question in step.questions.items()}
        continuation = continuation.asking(packed, alone=step.alone)
    return continuation


class RequestStateCodec(msgspec.Struct, eq=False):
    """Encodes and decodes the request states of one mux, each valid for *ttl* seconds.

    The `requestState` of a question holds the continuation of the call (2026-07-28, basic/patterns,
    MRTR, "Server Requirements", points 4 and 5): it is encrypted and authenticated, expires, and
    opens only for the same principal and the same request.
    """

    _seal: Seal
    _ttl: float

    def seal(self, continuation: Continuation, request: Request, principal: str | None) -> str:
        """Return a `requestState` with *continuation*, for the client to send in its retry.

        Raises:
            ContractError: it is too large; the message contains its size.
        """
        bound = _bound(request, principal)
        return self._seal.seal(Purpose.REQUEST_STATE, continuation.pack(), *bound, ttl=self._ttl)

    def open(self, request: Request, principal: str | None) -> Continuation:
        """Return the continuation in the `requestState` of *request*.

        Raises:
            InvalidParams: it was not issued for this request, or has expired.
        """
        state = request.request_state or ""
        try:
            packed = self._seal.open(Purpose.REQUEST_STATE, state, *_bound(request, principal))
            continuation = Continuation.unpack(packed)
            key_id = continuation.key_id or self._seal.key_id_of(state)
            return msgspec.structs.replace(continuation, key_id=key_id)
        except SealExpired:
            message = "requestState has expired: send the request again without it"
        except (SealError, msgspec.MsgspecError) as error:
            message = "Invalid requestState: it was not issued for this request"
            hint = ", or by a process with another secret" if isinstance(error, ForeignSeal) else ""
            logger.warning("a requestState was rejected: %s%s", error, hint)
        raise InvalidParams(message)


def _bound(request: Request, principal: str | None) -> tuple[Part, ...]:
    """Return the parts that the state of *request* is bound to: a retry must repeat all of them."""
    return request.method, request.key, principal, digest(request.raw_arguments or {})
