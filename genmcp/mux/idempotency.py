"""Calls that run once, however often they are sent: `io.genmcp/idempotencyKey` in their `_meta`.

Not of the specification. A client that does not know what became of its call sends it again, with
the same key: to this process or to another, while the first one runs or when it is over.

A record in the store says what became of the call that has the key. While the call runs its process
renews the record, which would else run out; once it is a task, the task is what counts.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.seal import digest
from genmcp.core.task import Parked, Task
from genmcp.errors import Conflict, Gap, InvalidParams, McpError, StoreError, TaskNotFound
from genmcp.mux.continuations import Continuations, has_tasks
from genmcp.mux.tasks import Tasks, handle_of
from genmcp.protocol.meta import IDEMPOTENCY_KEY
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.store import Append, Delete, Put, Store

__all__ = ["Idempotency"]

logger = logging.getLogger("genmcp")

_MOMENT: Final = 0.02


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """What is known of the call that has a key.

    arguments: their digest. call: which call it is, at random. task: what it became, *at* that
    Unix time; its record may be written a moment later. result: what it came to, as JSON.
    """

    arguments: bytes
    call: str
    task: str | None = None
    at: float = 0.0
    result: bytes | None = None


class Idempotency:
    """The calls with keys of the muxes of one *audience*.

    kept: for how many seconds what a call came to is kept. lease: for how many a process may give
    no sign of life, before the keys of its calls are free.
    """

    def __init__(
        self,
        store: Store,
        continuations: Continuations,
        tasks: Tasks,
        *,
        audience: str,
        kept: float,
        lease: float,
    ) -> None:
        self._store = store
        self._continuations = continuations
        self._tasks = tasks
        self._audience = audience
        self._kept = kept
        self._lease = lease

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
            known = None if entry is None else _decode(entry.value)
            task = None if known is None else await self._task(known.task, channel)
            if known is None or self._is_free(known, task):
                claim = Claim(self._store, key, ttl=self._kept, lease=self._lease)
                if await claim.begin(arguments, expect=0 if entry is None else entry.version):
                    channel.carrier.claim, channel.carrier.waits = claim, False
                    return await self._run(request, channel, claim)
            elif known.arguments != arguments:
                raise InvalidParams(
                    f"{IDEMPOTENCY_KEY} {request.known_meta.idempotency_key!r} was used for a "
                    f"call with other arguments"
                )
            elif known.result is not None:
                return _decode_result(known.result)
            elif task is None:
                # Nobody tells that a process has died, nor that the record of a task is written.
                within = self._lease / 3 if known.task is None else _MOMENT
                seen = await self._news(key, seen, within)
            elif (result := await self._join(task, request, channel)) is not None:
                return result

    async def failed(self, channel: Channel) -> None:
        """Free the key of a task, the call of *channel*, that has failed where it was resumed."""
        if not self.has_key(channel.request):
            return
        key = self._key(channel)
        with _logged():
            entry = await self._store.get(key)
            if entry is not None and _decode(entry.value).task == channel.task:
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
        return f"idempotency:{digest([self._audience, channel.principal, params.name, key]).hex()}"

    async def _task(self, id: str | None, channel: Channel) -> Task | None:
        if id is not None:
            with suppress(TaskNotFound):
                return await self._tasks.jobs.get(id, channel.principal)
        return None

    def _is_free(self, known: _Known, task: Task | None) -> bool:
        """Whether nothing came of the call that had the key."""
        if known.task is None or known.result is not None:
            return False
        if task is None:  # what was to write it is gone, or is about to
            return time.time() > known.at + self._lease
        return task.end in ("failed", "cancelled")

    async def _run(self, request: Request, channel: Channel, claim: "Claim") -> Result | Parked:
        try:
            result = await self._continuations.begin(request, channel)
        except (Exception, asyncio.CancelledError) as error:
            # What goes on without this request tells itself, as a task, how it ends.
            elsewhere = isinstance(error, StoreError | asyncio.CancelledError)
            if claim.task is None or not (elsewhere or channel.carrier.follows):
                await claim.free()
            raise
        finally:
            await claim.rest()
        if isinstance(result, CallToolResult) and not channel.promoted:
            await claim.keep(result)
        elif claim.task is None:
            await claim.free()  # its client is asked, and comes back with the same key
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


class Claim:
    """The key of a call that runs here: nobody else runs one with it.

    task: what the call has become.
    """

    def __init__(self, store: Store, key: str, *, ttl: float, lease: float) -> None:
        self.ttl = ttl
        self.task: str | None = None
        self._store = store
        self._key = key
        self._lease = lease
        self._known: _Known | None = None
        self._writing = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._over = False
        self._taken_back = False

    async def begin(self, arguments: bytes, *, expect: int) -> bool:
        """Take the key for a call with these *arguments*; False if somebody else was faster."""
        known = _Known(arguments, secrets.token_urlsafe(9))
        try:
            await self._store.apply(Put(self._key, _encode(known), ttl=self._lease, expect=expect))
        except Conflict:
            return False
        self._known = known
        self._renewing = asyncio.create_task(self._renew(self._lease / 3))
        return True

    async def becomes(self, task: str) -> None:
        """Know that the call is *task*, whose record is written next.

        Raises:
            StoreError: that cannot be kept, or somebody else has the key by now.
        """
        await self._pause()
        async with self._writing:
            known = self._known
            if known is None or known.result is not None:
                return  # it is over, and this task will be discarded
            becoming = replace(known, task=task, at=time.time())
            if not await self._write(becoming, ttl=self.ttl):
                raise Conflict("the key of a call was taken by another")
            self.task = task

    async def stays(self) -> None:
        """Know that the call has become no task after all, and runs on.

        That is written before the key is free, or as soon as the store can be reached.
        """
        self.task, self._taken_back = None, True
        if not self._over:
            self._renewing = asyncio.create_task(self._renew(0.0))

    async def keep(self, result: Result) -> None:
        """Keep what the call has come to."""
        async with self._writing:
            if self._known is not None:
                with _logged():
                    result_of = replace(self._known, result=msgspec.json.encode(result))
                    await self._write(result_of, ttl=self.ttl)

    async def free(self) -> None:
        """Let others have the key: the call came to nothing."""
        async with self._writing:
            with _logged():
                await self._write(None)
            self._known = None

    async def rest(self) -> None:
        """Renew it no more: the call is over."""
        self._over = True
        await self._pause()

    async def _pause(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            async with self._writing:  # nothing is cancelled while it is being written
                renewing.cancel()
            await asyncio.wait([renewing])

    async def _write(self, known: _Known | None, ttl: float = 0.0) -> bool:
        """Write what is known, if the key is still this call's; None frees it."""
        entry = await self._store.get(self._key)
        if self._known is None or entry is None or self._known.call.encode() not in entry.value:
            return False
        change: Put | Delete = Delete(self._key, expect=entry.version)
        if known is not None:
            change = Put(self._key, _encode(known), ttl=ttl, expect=entry.version)
        try:
            await self._store.apply(change, Append(self._key, b"", ttl=self._lease, keep=1))
        except Conflict:
            return False
        self._known = known
        return True

    async def _renew(self, wait: float) -> None:
        there = True
        while there and not self._over:
            await asyncio.sleep(wait)
            wait = self._lease / 3
            with _logged():
                async with self._writing:
                    there = await self._renewed()

    async def _renewed(self) -> bool:
        """Say that the call runs here, if its key is still its own."""
        known = self._known
        if known is None or known.result is not None:
            return False
        if not self._taken_back:
            return await self._store.touch(self._key, self._lease)
        there = await self._write(replace(known, task=None), ttl=self._lease)
        self._taken_back = False
        return there


@contextmanager
def _logged() -> Iterator[None]:
    """Log what a store raises: it costs the key, and not the call."""
    try:
        yield
    except StoreError as error:
        logger.warning("what becomes of an idempotency key is not kept: %s", error)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Known).decode
_decode_result: Final = msgspec.json.Decoder(CallToolResult).decode
