"""Calls whose continuation is in the store: how they get there, and how they go on.

Such a call is a task of the protocol for clients that know the extension (SEP-2663). For others
the process that holds their response follows it to its end.
"""

import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, cast

import msgspec

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome, pack
from genmcp.core.seal import Purpose, Seal
from genmcp.core.task import (
    Asking,
    Awaiting,
    Ended,
    Following,
    Job,
    Parked,
    Ref,
    Running,
    Task,
    Work,
    Working,
)
from genmcp.core.task_time import promised
from genmcp.errors import Conflict, McpError, OutOfTurn, TaskNotFound
from genmcp.jobs.jobs import Jobs, Note
from genmcp.mux.answers import requests_of
from genmcp.mux.inbox import Inbox
from genmcp.mux.kept_call import KeptCall
from genmcp.mux.task_sink import Said
from genmcp.protocol.content import TextContent
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tasks import CreateTaskResult
from genmcp.protocol.tools import CallToolResult
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["Tasks", "ended", "handle_of", "held_over", "result_of", "shown"]


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Tells the process where a call runs that its *task* was cancelled."""

    task: str


class Tasks:
    """The tasks of one mux."""

    def __init__(self, jobs: Jobs, seal: Seal, inbox: Inbox) -> None:
        self.jobs = jobs
        self._seal = seal
        self._inbox = inbox
        self._node = inbox.node
        self._running: dict[str, Callable[[], None]] = {}
        inbox.take(Stop, self._stop)

    # How a call gets there.

    async def begin(self, channel: Channel, continuation: Continuation, work: Job | Ref) -> Task:
        """Keep a call that waits for *work*, which begins; or find it, where it is kept already.

        An answer that comes again has the same continuation, so that its work begins once.
        """
        step = str(continuation.step)
        id = self._seal.mark(Purpose.TASK, continuation.id, step, key_id=continuation.key_id)
        channel.carrier.task = id  # whoever stops the call from now on has to stop that, too
        return await self._create(id, channel, self.parked(work, continuation))

    def new_id(self) -> str:
        """Return an id that nobody can guess: 160 random bits."""
        return secrets.token_urlsafe(20)

    async def promote(self, channel: Channel, id: str) -> Task:
        """Keep a call that runs here, or waits here for something, as the task *id*."""
        self._inbox.open()
        continuation = channel.carrier.continuation
        parked = Parked(0, b"", Running(self._node))
        if continuation is not None:
            parked = self.awaiting(continuation)
        return await self._create(id, channel, parked)

    async def withdraw(self, channel: Channel, id: str) -> None:
        """Withdraw the record *id* of a call that ended before its client got the handle.

        Another client may have got the handle, by the call's idempotency key: for it the task ends
        like the call.
        """
        carrier = channel.carrier
        if carrier.claim is None or carrier.claim.task != id:
            await self.jobs.discard(id)
            return
        with suppress(OutOfTurn, TaskNotFound):
            if carrier.outcome is None:
                await self.jobs.cancel(id, channel.principal)
            else:
                await self.jobs.finish(id, ended(carrier.outcome), turn=0)

    async def _create(self, id: str, channel: Channel, parked: Parked) -> Task:
        now = self.jobs.now()
        policy = channel.request.route.policy
        params: Any = channel.request.params
        ttl, claim = policy.ttl, channel.carrier.claim
        if claim is not None:  # first, so that no key is ever left without its task
            await claim.becomes(id)
            ttl = max(ttl, claim.ttl)
        task = Task(
            id=id,
            owner=channel.principal,
            address=channel.client_key.address,
            tool=getattr(params, "name", None) or params.uri,
            node=self._node,
            created=now,
            updated=now,
            due=now,
            ttl=ttl,
            on_lost=policy.on_lost,
            step=parked.step,
            continuation=parked.continuation,
            work=parked.work,
        )
        call = KeptCall.of(channel, channel.keep)
        task = await self.jobs.create(task, call.pack())
        if claim is not None:
            try:
                await claim.became()
            except Conflict:
                await self.jobs.cancel(id, task.owner)
                raise
        return task

    def parked(self, work: Job | Ref | None, continuation: Continuation) -> Parked:
        """Return what a task waits for: *work*, or the answers to the questions asked."""
        waits_for: Work
        if isinstance(work, Job):
            waits_for = Working(work)
        elif isinstance(work, Ref):
            waits_for = Following(work)
        else:
            encode = msgspec.json.encode
            waits_for = Asking({k: encode(v) for k, v in requests_of(continuation).items()})
        return Parked(continuation.step, continuation.pack(), waits_for)

    def awaiting(self, continuation: Continuation) -> Parked:
        """Return that a task waits for something in this process."""
        return Parked(continuation.step, continuation.pack(), Awaiting(self._node))

    async def park(self, channel: Channel, parked: Parked) -> None:
        """Let the task that *channel* has become wait for something else."""
        carrier = channel.carrier
        assert carrier.task is not None
        await carrier.flush()
        task = await self.jobs.park(
            carrier.task, parked.step, parked.continuation, parked.work, turn=carrier.turn
        )
        carrier.turn = task.turn

    async def end(self, channel: Channel, result: Result | McpError) -> None:
        """Keep what the call of *channel*, a task, has come to; it may be over already."""
        carrier = channel.carrier
        assert carrier.task is not None
        await carrier.flush()
        # It was cancelled otherwise, or another process thinks that this one is gone.
        with suppress(OutOfTurn):
            await self.jobs.finish(carrier.task, ended(result), turn=carrier.turn)

    async def leave(self, channel: Channel) -> None:
        """Let the task that *channel* has become go on without this process, if it is not over."""
        carrier = channel.carrier
        assert carrier.task is not None
        await carrier.flush()
        with suppress(OutOfTurn):
            await self.jobs.leave(carrier.task, turn=carrier.turn)

    async def answer(self, id: str, owner: str | None, answers: Mapping[str, Outcome]) -> None:
        """Take *answers* in, by their names on the wire: what the client says, or why it does not.

        Raises:
            TaskNotFound: there is no such task.
        """
        await self.jobs.update(id, owner, {name: pack(each) for name, each in answers.items()})

    async def cancel(self, id: str, owner: str | None) -> Task | None:
        """Cancel a task: nothing comes of it any more, and what still runs is stopped.

        Return it as it was; None if it was over.

        Raises:
            TaskNotFound: there is no such task.
        """
        task = await self.jobs.cancel(id, owner)
        if task is not None and task.lives_in is not None:
            await self._inbox.send(task.lives_in, Stop(id))
        return task

    def stops(self, id: str, stop: Callable[[], None]) -> None:
        """Let *stop* stop what runs here of the task *id*."""
        self._running[id] = stop

    def stopped(self, id: str) -> None:
        """Know that nothing of the task *id* runs here any more."""
        self._running.pop(id, None)

    @property
    def busy(self) -> bool:
        """Whether calls that are tasks run in this process."""
        return bool(self._running)

    def _stop(self, message: Stop) -> None:
        stop = self._running.get(message.task)
        if stop is not None:
            stop()

    # How its client hears of it.

    async def followed(
        self, id: str, channel: Channel, after: str | None = None
    ) -> Result | Continuation:
        """Follow the task *id*, passing on what it says, to its result or to what it asks.

        What it said up to the event *after* has been heard.

        Raises:
            McpError: it ended with an error.
        """
        async with aclosing(self.jobs.follow(id, channel.principal, after)) as changes:
            async for each in changes:
                if isinstance(each, Note):
                    await _pass_on(each, channel)
                    continue
                change = each.task
                if change.progress is not None:
                    await channel.progress(change.progress, change.total, change.message)
                if change.over:
                    return result_of(change, channel.request.method)
                if isinstance(change.work, Asking) and not change.settled:
                    continuation = Continuation.unpack(change.continuation)
                    return msgspec.structs.replace(continuation, task=id, heard=each.id)
        raise TaskNotFound(id)

    async def outcome_of(self, id: str, owner: str | None) -> CallToolResult:
        """Return the result of the call that is the task *id*; or why there is none, to be read."""
        try:
            task = await self.jobs.get(id, owner)
            if task.over:
                return cast(CallToolResult, result_of(task, "tools/call"))
        except TaskNotFound:
            return _says(f"There is no call {id}, or its result is not kept any more.")
        except McpError as error:
            return _says(f"There is no result of call {id}: {error.message}")
        return _says(f"Call {id} has no result yet: {_stands(task)}.")


def ended(result: Result | McpError) -> Ended:
    """Return how a call is kept that has come to *result*."""
    if isinstance(result, McpError):
        return Ended(error=_encode(ErrorBody(result.code, result.message, result.data)))
    return Ended(result=_encode(result))


def result_of(task: Task, method: str) -> Result:
    """Return the result of a *task* that is over; *method* is what was called.

    Raises:
        McpError: it has none but an error, or was cancelled.
    """
    if task.error is not None:
        error = msgspec.json.decode(task.error, type=ErrorBody)
        raise McpError(error.message, error.data, code=error.code)
    if task.result is None:
        raise McpError("The call was cancelled")
    result: Any = msgspec.json.decode(task.result, type=LATEST.methods[method].result)
    return cast(Result, result)


def handle_of(task: Task, now: float) -> CreateTaskResult:
    """Return the response to a call that is a task: the handle, as of *now* (`Store.now`)."""
    return CreateTaskResult(**shown(task, now))


def held_over(task: Task, *, tool: str | None) -> CallToolResult:
    """Return what a client that does not gets, once it has waited as long as it may.

    *tool* is the name of the one that gives the result, if there is one.
    """
    goes_on = f"This takes longer than a call is held. It goes on, as call {task.id}"
    return _says(goes_on + (f"; the tool {tool} gets its result." if tool else "."))


def shown(task: Task, now: float) -> dict[str, Any]:
    """Return the members that a client sees of a *task* in every status, as of *now*."""
    kept = promised(task, now)
    return {
        "task_id": task.id,
        "status": task.status,
        "created_at": _at(task.created),
        "last_updated_at": _at(task.updated),
        "ttl_ms": None if kept is None else ceil(kept * 1000),
        "poll_interval_ms": ceil(task.poll * 1000),
        # What the work said last is neither what is asked nor what came of it.
        "status_message": task.message if task.status == "working" else None,
    }


def _stands(task: Task) -> str:
    """Return how a *task* that is not over stands, in words."""
    if task.status == "input_required":
        return "it waits for answers"
    if task.progress is None:
        done = "it is being worked on"
    else:
        total = "" if task.total is None else f" of {task.total:g}"
        done = f"{task.progress:g}{total} done"
    return done if task.message is None else f"{done} ({task.message})"


def _says(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text)], is_error=True)


async def _pass_on(note: Note, channel: Channel) -> None:
    """Say on *channel* what a task has said."""
    said = msgspec.msgpack.decode(note.data, type=Said)
    method = LATEST.methods.get(said.method)
    params: Any = msgspec.Raw(said.params) if said.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(said.method, params)


def _at(seconds: float) -> str:
    """Return Unix time as ISO 8601."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


_encode: Final = msgspec.json.encode
