"""Calls that run once, however often they are sent: calls with an idempotency key.

Not part of the specification. A client that does not know the result of its call sends it again
with the same key: to this process or to another, while the call runs or after it has ended.

Such a call is a task from its beginning, and the id of the task is derived from the key. The first
request creates the task, and the hook runs beside it. Each request, the first one among them, waits
for the result of the task as it would for that of a job. A client that leaves ends its own wait
only; `tasks/cancel` ends the call.

The record of the task decides everything else. It is created once, because a store rejects a second
record with the same id. It has a digest of the arguments, its result is kept for `Tool.result_ttl`,
and it shows whether the key is free again (`Task.frees_key`): a call then replaces the record.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, cast

import msgspec

from genmcp._mux.continuations import Continuations
from genmcp._mux.performing import report
from genmcp._mux.services import MuxServices
from genmcp._mux.stored_request import StoredRequest
from genmcp._mux.task_results import task_result
from genmcp.cancellation import run_to_completion
from genmcp.channel import Channel
from genmcp.core.call import AccessRecord
from genmcp.core.outcome import digest
from genmcp.core.request import Request
from genmcp.core.seal import Purpose
from genmcp.core.task import Task, replace_task
from genmcp.errors import InvalidParams, Overloaded, StoreError
from genmcp.protocol.value import Result
from genmcp.tasks.outcomes import finished_with_error
from genmcp.tasks.records import Stored

_TOKEN_BITS: Final = 40
_NOT_BEGUN: Final = msgspec.structs.replace(
    finished_with_error(Overloaded("The call has not begun: its task was not stored")),
    frees_key=True,
)


def key_of(request: Request) -> str | bytes | None:
    """Return the idempotency key of *request*: an argument, or a member of `_meta`.

    None if it has none. On other methods than `tools/call` a key has no effect.
    """
    if request.method != "tools/call":
        return None
    if (name := request.policy.idempotency_key) is not None and request.raw_arguments:
        with suppress(msgspec.DecodeError):  # the hook reports it
            given = _arguments.decode(cast(msgspec.Raw, request.raw_arguments)).get(name, b"null")
            value = msgspec.json.decode(given)
            if value is not None:
                return value if isinstance(value, str) else bytes(given)
    return request.params.meta.idempotency_key


class KeyedCalls:
    """The calls with idempotency keys of one mux. Owned by the mux."""

    def __init__(self, services: MuxServices, continuations: Continuations) -> None:
        self._services = services
        self._continuations = continuations
        self._tasks = continuations.tasks
        self._service = continuations.tasks.service

    def ids(self, channel: Channel, key: str | bytes) -> Sequence[str]:
        """Return the ids that the task of *key* may have, one for each secret; a new one the first.

        Raises:
            InvalidParams: the client is anonymous, so that any other could fetch the result.
        """
        caller = channel.request.params.meta.caller
        # The clients of a pipe, or in this process, are one. The callers of a hub are not.
        if caller == "" or channel.context.caller.client_key.is_anonymous:
            raise InvalidParams(
                "An idempotency key needs an authenticated client: it belongs to a principal"
            )
        if not key:
            raise InvalidParams("An idempotency key must not be empty")
        parts = "keyed", channel.principal, channel.request.key, key, *([caller] if caller else ())
        return self._services.seal.marks(Purpose.TASK, *parts)

    async def handle(self, request: Request, channel: Channel, key: str | bytes) -> Result:
        """Run a call that has a *key*, or wait for the result of the call that has it.

        Raises:
            InvalidParams: as for `ids`, or the key was used with other arguments.
            McpError: the call has ended with that error.
        """
        ids, arguments = self.ids(channel, key), digest(request.raw_arguments or {})
        # Before the task is written: a client that leaves meanwhile does not end the call.
        await report(channel, AccessRecord(None, ids[0]))
        while True:
            stored = await self._find(ids)
            if stored is None or stored.task.frees_key:
                new = await self._start(channel, stored, ids[0], arguments)
                if new is not None:
                    return await self._continuations.followed(new.id, channel, known=new)
                continue  # a copy was faster
            task = await self._service.recover(stored.task)
            if task.frees_key:
                continue
            if task.arguments_digest != arguments:
                raise InvalidParams("This idempotency key was used for a call with other arguments")
            if task.ended:
                return task_result(task, request.method)
            return await self._continuations.followed(task.id, channel)

    async def _find(self, ids: Sequence[str]) -> Stored | None:
        for id in ids:
            if (stored := await self._service.records.find(id)) is not None:
                return stored
        return None

    async def _start(
        self, channel: Channel, free: Stored | None, id: str, arguments: bytes
    ) -> Task | None:
        """Create the task of a call, in place of *free*, and start its hook.

        Return None if a copy of the call was faster.

        Raises:
            StoreError: the task is not stored, or will be withdrawn.
        """
        # The token identifies this run of the call, whatever becomes of the write below.
        token, state = secrets.randbits(_TOKEN_BITS), self._tasks.running_here
        id = id if free is None else free.task.id
        task = self._tasks.new_task(channel, id, state, token=token, arguments_digest=arguments)
        if free is not None:
            task = replace_task(task, free.task)
        packed_request = StoredRequest.of(channel).pack()
        created = False

        async def create() -> None:
            nonlocal created
            self._service.writer.retry.check()
            self._services.bus.open()
            await self._service.start()  # others would consider the call lost without a heartbeat
            try:
                created = await self._service.writer.create(task, packed_request, replaces=free)
            except StoreError:  # it may have been written
                self._service.withdraw(task, _NOT_BEGUN)
                raise
            if created:
                self._service.worker.run_call(self._run(task, channel))

        # The client may leave meanwhile, which must not separate the record from its hook.
        await run_to_completion(create())
        return task if created else None

    async def _run(self, task: Task, channel: Channel) -> None:
        """Run the hook of *task*, and write its result."""
        running = asyncio.current_task()
        assert running is not None
        self._tasks.running[task.id, task.fencing_token] = running.cancel
        waiting_calls = self._services.waiting_calls
        slots = waiting_calls.acquire(channel.context.caller.client_key)
        try:
            step = partial(self._continuations.run_keyed, task, channel)
            await self._service.runner.run_call(task, step)
        finally:
            waiting_calls.release(slots)
            self._tasks.running.pop((task.id, task.fencing_token), None)


_arguments: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
