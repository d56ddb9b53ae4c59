"""The operations of one event loop, as pipelines of redis-py.

The operations of one turn of the event loop are one pipeline on one connection. While all
connections are busy, operations gather for the next pipeline.

**A write that has failed must not take effect after a later one.** A connection may be lost while
the server, or the network, still holds writes that were sent on it. The process keeps the name of
that pipeline, and sends it to the server before its next operations: the server then rejects late
writes under that name (fence.lua). A write also carries the time at which its caller gives up,
after which the server rejects it. This bounds the time for which a failed write may follow a write
of another process.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import reconnect_pause, steady
from genmcp.stores.outages import Outages
from genmcp.stores.redis.scripts import SWEEP, Script
from genmcp.stores.redis.server import ERRORS, RedisServerState, kind_of

logger = logging.getLogger("genmcp")

Argument: TypeAlias = str | bytes | int
Convert: TypeAlias = Callable[[Any], Any]

SWEEP_INTERVAL: Final = 10.0  # seconds between removals of expired entries
_SWEPT_AT_ONCE: Final = 500
_WAITING: Final = 100_000  # operations; beyond it they fail, so that memory is bounded
_AT_ONCE: Final = 1000  # operations in one pipeline: all of them wait for the last response
_ATTEMPTS: Final = 2  # of a read whose connection was lost, or a write that was not performed
_CLOSING: Final = 1.0  # seconds that `aclose` waits for operations in progress


class RedisCommand:
    """One command and its future response. Without a *script*, *args* changes nothing."""

    __slots__ = ("args", "attempts", "deadline", "future", "outages", "script", "then")

    def __init__(
        self,
        script: Script | None,
        args: Sequence[Argument],
        deadline: float,
        then: Convert | None,
        outages: Outages,
    ) -> None:
        self.script = script
        self.args = args
        self.deadline = deadline  # when its caller gives up, by the clock of the event loop
        self.then = then  # converts the response, once for all that wait for it
        self.outages = outages
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.attempts = 0

    @property
    def is_write(self) -> bool:
        """Whether it must not be repeated after it was sent."""
        return self.script is not None and self.script.writes

    def complete(self, reply: Any) -> None:
        """Return *reply* to the caller."""
        if self.outages.failing and self.script is not None:
            self.outages.record(None, write=self.is_write)
        if self.future.done():  # the caller was cancelled
            return
        try:
            self.future.set_result(self.then(reply) if self.then else reply)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Raise *error* for the caller, and count it as a failure of the store."""
        if self.script is not None:
            self.outages.record(error, write=self.is_write)
        self.cancel(error)

    def cancel(self, error: Exception) -> None:
        """Raise *error* for the caller."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # it need not be retrieved: the caller may be cancelled


class RedisCommands:
    """Performs the operations of one event loop. Owned by a `RedisClient`.

    Attributes:
        closed: whether it was closed, or its event loop ends.
        redis: redis-py's client for the present server; None: to be connected.
    """

    def __init__(self, state: RedisServerState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.redis: Any = None
        self._opening = asyncio.Lock()
        self._failures = 0  # of attempts to connect, in a row
        self._pending: deque[RedisCommand] = deque()
        self._same: dict[tuple[Any, ...], RedisCommand] = {}  # pending reads that may be shared
        self._workers: set[asyncio.Task[None]] = set()
        self._starting = False  # whether a worker has yet to take its first operations
        self._keeper: asyncio.Task[None] | None = None

    async def run(self, script: Script, *args: Argument) -> Any:
        """Run *script* and return its response.

        Raises:
            StoreUnavailable: the server did not respond.
            ConfigurationError: the server cannot be used with these settings.
        """
        return await self._add(script, args).future

    async def run_shared(self, script: Script, *args: Argument, then: Convert) -> Any:
        """Like `run`, for a read: the same reads in one turn of the event loop are one command.

        *then* converts the response, once for all of them.
        """
        command = self._same.get((script, *args))
        if command is None:
            command = self._same[script, *args] = self._add(script, args, then)
        return await asyncio.shield(command.future)

    async def ask(self, *words: str) -> Any:
        """Return the response to a plain command; None: the user has no permission for it."""
        return await self._add(None, words).future

    async def connected(self) -> Any:
        """Return redis-py's client, after the server was checked and late writes were fenced."""
        state = self._state
        async with self._opening:
            if state.stale:
                await self.leave(self.redis, lost=True)
            if self.redis is None:
                if self._failures:
                    await asyncio.sleep(reconnect_pause(self._failures))
                self._failures += 1
                redis = await state.connect()
                try:
                    await state.prepare(redis)
                except BaseException:
                    await _end(redis.aclose())
                    raise
                self.redis, self._failures = redis, 0
            return self.redis

    async def leave(self, redis: Any, *, lost: bool = False) -> None:
        """Close the idle connections of *redis* if they are not to be used any more."""
        if lost and redis is self.redis:
            self.redis = None
        if redis is not None and redis is not self.redis:
            await _end(redis.connection_pool.disconnect(inuse_connections=False))

    def close(self) -> None:
        """Reject all later operations, and end at once."""
        self.closed = True
        for task in self._tasks():
            task.cancel()

    async def aclose(self) -> None:
        """Reject all later operations, give those in progress a second, and end."""
        self.closed = True
        if self._workers:
            await asyncio.wait(self._workers, timeout=_CLOSING)
        self.close()
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    def _tasks(self) -> set["asyncio.Task[None]"]:
        return {*self._workers, self._keeper} if self._keeper else set()

    def _add(
        self, script: Script | None, args: Sequence[Argument], then: Convert | None = None
    ) -> RedisCommand:
        if self.closed:
            raise StoreUnavailable("the store is closed")
        settings = self._state.settings
        deadline = self._loop.time() + settings.timeout
        command = RedisCommand(script, args, deadline, then, settings.outages)
        if len(self._pending) >= _WAITING:
            error = self._state.unavailable(f"{_WAITING} operations wait")
            command.fail(error)
            raise error
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._keep(), name=f"upkeep of {self._state}")
        self._pending.append(command)
        if not self._starting and len(self._workers) < settings.connections:
            self._starting = True  # it begins in the next turn, with all operations of this one
            worker = self._loop.create_task(self._work(), name=f"commands to {self._state}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return command

    async def _keep(self) -> None:
        """Remove expired entries and measure the clock of the server; close at the loop's end."""
        try:
            while True:
                await asyncio.sleep(SWEEP_INTERVAL * random.uniform(0.7, 1.3))
                with suppress(StoreUnavailable, ConfigurationError):
                    looked = _SWEPT_AT_ONCE
                    while looked == _SWEPT_AT_ONCE:
                        sent = steady()
                        time, looked, _ = await self.run(SWEEP, _SWEPT_AT_ONCE, "", "")
                        self._state.clock.measure(sent, steady(), time)
        finally:
            # Also if all tasks are cancelled because the event loop ends: later operations would
            # otherwise begin with a connection that is never closed.
            self.closed = True
            for worker in self._workers:
                worker.cancel()
            if self._workers:
                await asyncio.wait(self._workers)
            self._lose(self._pending, "")
            if self.redis is not None:
                await _end(self.redis.aclose())

    async def _work(self) -> None:
        self._starting = False
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _AT_ONCE))]
            self._same.clear()
            if batch := [each for each in batch if not each.future.done()]:
                await self._perform(batch)

    async def _perform(self, batch: Sequence[RedisCommand]) -> None:
        """Send *batch* as one pipeline, and complete each command."""
        redis, token, lost = None, self._state.new_token(), True
        deadline = min(each.deadline for each in batch)
        try:
            async with asyncio.timeout_at(deadline):
                redis = await self.connected()
                pipeline, sent = redis.pipeline(transaction=False), steady()
                until = int((self._state.clock.real() + deadline - self._loop.time()) * 1_000_000)
                for each in batch:
                    pipeline.execute_command(*self._words(each, token, until))
                replies = await pipeline.execute(raise_on_error=False)
            lost = False
            for each, reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception):
                    lost = self._reject(each, reply, sent) or lost
                else:
                    each.complete(reply)
        except asyncio.CancelledError:
            self._lose(batch, token)
            raise
        except (*ERRORS, StoreUnavailable, ConfigurationError) as error:
            self._lose(batch, token, error, again=redis is not None)
        except Exception as error:
            # A programming error here must not leave callers waiting.
            logger.exception("%s: a response was not understood", self._state)
            self._lose(batch, token, error)
        finally:
            await self.leave(redis, lost=lost)

    def _words(self, command: RedisCommand, token: str, until: int) -> Sequence[Argument]:
        script, state = command.script, self._state
        if script is None:
            return command.args
        skew = int(state.clock.skew * 1_000_000)
        name: tuple[Argument, Argument] = (token, until) if script.writes else ("", 0)
        return ("EVALSHA", script.sha, 1, state.settings.prefix, skew, *name, *command.args)

    def _lose(
        self,
        batch: Sequence[RedisCommand],
        token: str,
        error: Exception | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Fail the commands of a lost connection, None: of one that is closed.

        *again*: reads are sent once more.
        """
        if any(each.is_write for each in batch):
            self._state.stale.add(token)
        for each in batch:
            if error is None:
                each.cancel(StoreUnavailable("the store is closed"))
            elif each.is_write or not again:
                each.fail(self._state.failure(error))
            else:
                self._repeat(each, error)

    def _reject(self, command: RedisCommand, error: Exception, sent: float) -> bool:
        """Handle an error response; return whether the connection is not to be used any more."""
        kind = kind_of(error)
        if kind == "LATE":
            # The write took longer than its caller waits, or the clock of the server was set.
            self._state.clock.measure(sent, steady(), int(str(error).split()[-1]), at_once=True)
            late = self._state.unavailable("the write arrived too late, and was not performed")
            self._repeat(command, late)
        elif kind in ("NOSCRIPT", "MOVED"):  # SCRIPT FLUSH, a failover, a slot that has moved
            self._repeat(command, error)
            return True
        elif kind == "NOPERM" and command.script is None:
            command.complete(None)
        else:
            command.fail(self._state.failure(error))
        return kind == "READONLY"  # another server has become the primary

    def _repeat(self, command: RedisCommand, error: Exception) -> None:
        """Send *command*, which had no effect, again; fail it with *error* if it is too late."""
        command.attempts += 1
        if command.attempts < _ATTEMPTS and self._loop.time() < command.deadline:
            self._pending.append(command)  # the worker that calls this continues with it
        else:
            command.fail(self._state.failure(error))


async def _end(closing: Any) -> None:
    """Await the end of connections, which a server that is away may not respond to."""
    with suppress(*ERRORS):
        async with asyncio.timeout(_CLOSING):
            await closing
