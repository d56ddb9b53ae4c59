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
import itertools
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, TypeAlias

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import reconnect_pause, steady
from genmcp.stores.redis.scripts import SWEEP, Script
from genmcp.stores.redis.server import ERRORS, RedisServer, ended, is_rejected, lacks_permission

Argument: TypeAlias = str | bytes | int

SWEEP_INTERVAL: Final = 10.0  # seconds between removals of expired entries
_SWEPT_AT_ONCE: Final = 500
_WAITING: Final = 100_000  # operations; beyond it they fail, so that memory is bounded
_AT_ONCE: Final = 1000  # operations in one pipeline: all of them wait for the last response
_CLOSING: Final = 1.0  # seconds that `aclose` waits for operations in progress
_CLOSED: Final = "the store is closed"


@dataclass(slots=True, eq=False)
class RedisCommand:
    """One execution of a script, and its future response."""

    script: Script
    args: Sequence[Argument]
    deadline: float  # when its caller gives up, by the clock of the event loop
    future: "asyncio.Future[Any]"
    is_repeated: bool = False


class RedisCommands:
    """Performs the operations of one event loop. Owned by a `RedisClient`.

    Attributes:
        closed: whether it was closed, or its event loop ends.
        redis: redis-py's client of the present server; None: to be connected.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.redis: Any = None
        self._opening = asyncio.Lock()
        self._name, self._numbers = token_hex(8), itertools.count()  # of pipelines
        self._failures = 0  # of attempts to connect, in a row
        self._pending: deque[RedisCommand] = deque()
        self._same: dict[tuple[Any, ...], RedisCommand] = {}  # pending reads, which are shared
        self._workers: set[asyncio.Task[None]] = set()
        self._starting = False  # whether a worker has yet to take its first operations
        self._keeper: asyncio.Task[None] | None = None

    async def run(self, script: Script, *args: Argument) -> Any:
        """Run *script* and return its response. The same reads in one turn are one command.

        Raises:
            StoreUnavailable: the server did not respond.
            ConfigurationError: the server cannot be used with these settings.
        """
        if self.closed:
            raise StoreUnavailable(_CLOSED)
        outages = self._server.outages
        try:
            future = self._add(script, args).future
            # A caller that is cancelled must not cancel a read that others share.
            reply = await (future if script.writes else asyncio.shield(future))
        except (StoreUnavailable, ConfigurationError) as error:
            if not self.closed:
                outages.record(error, write=script.writes)
            raise
        if outages.failing:
            outages.record(None, write=script.writes)
        return reply

    async def ask(self, *words: str) -> Any:
        """Return the response to a plain command; None: the user has no permission for it."""
        try:
            async with asyncio.timeout(self._server.timeout):
                return await (await self.connected()).execute_command(*words)
        except ERRORS as error:
            if lacks_permission(error):
                return None
            raise self._server.failure(error) from error

    async def connected(self) -> Any:
        """Return redis-py's client, after the server was checked and late writes were fenced.

        Raises:
            StoreUnavailable: the server cannot be reached.
            ConfigurationError: it cannot be used with these settings.
        """
        async with self._opening:
            if self.closed:
                raise StoreUnavailable(_CLOSED)
            if self._keeper is None:
                name = f"upkeep of {self._server}"
                self._keeper = self._loop.create_task(self._keep(), name=name)
            while self.redis is None or self._server.stale:
                await self.leave(self.redis, lost=True)
                if self._failures:
                    await asyncio.sleep(reconnect_pause(self._failures))
                self._failures += 1
                async with asyncio.timeout(self._server.timeout):
                    self.redis = await self._server.connect()
                self._failures = 0
            return self.redis

    async def leave(self, redis: Any, *, lost: bool = False) -> None:
        """Close the idle connections of *redis* if they are not to be used any more."""
        if lost and redis is self.redis:
            self.redis = None
        if redis is not None and redis is not self.redis:
            await ended(redis.connection_pool.disconnect(inuse_connections=False))

    def close(self) -> None:
        """Reject all later operations, and end at once."""
        self.closed = True
        if self._keeper is not None:
            self._keeper.cancel()

    async def aclose(self) -> None:
        """Reject all later operations, give those in progress a second, and end."""
        self.closed = True
        if self._workers:
            await asyncio.wait(self._workers, timeout=_CLOSING)
        self.close()
        if self._keeper is not None:
            await asyncio.wait({self._keeper})

    def _add(self, script: Script, args: Sequence[Argument]) -> RedisCommand:
        command = self._same.get((script, *args))
        if command is not None:
            return command
        if len(self._pending) >= _WAITING:
            raise self._server.unavailable(f"{_WAITING} operations wait")
        deadline = self._loop.time() + self._server.timeout
        command = RedisCommand(script, args, deadline, self._loop.create_future())
        self._pending.append(command)
        if not script.writes:
            self._same[script, *args] = command
        # A worker that has ended leaves the set only after its callers were woken, who may be here.
        workers = sum(not each.done() for each in self._workers)
        if not self._starting and workers < self._server.connections:
            self._starting = True  # it begins in the next turn, with all operations of this one
            worker = self._loop.create_task(self._work(), name=f"commands to {self._server}")
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
                        self._server.clock.measure(sent, steady(), time)
        finally:
            # Also if all tasks are cancelled because the event loop ends: later operations would
            # otherwise begin with a connection that is never closed.
            self.closed = True
            for worker in self._workers:
                worker.cancel()
            if self._workers:
                await asyncio.wait(self._workers)
            for command in self._pending:
                self._complete(command, StoreUnavailable(_CLOSED))
            if self.redis is not None:
                await ended(self.redis.aclose())

    async def _work(self) -> None:
        self._starting = False
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _AT_ONCE))]
            self._same.clear()
            if batch := [each for each in batch if not each.future.done()]:
                await self._perform(batch)

    async def _perform(self, batch: Sequence[RedisCommand]) -> None:
        """Send *batch* as one pipeline, and complete each command."""
        server, redis, token = self._server, None, f"{self._name}:{next(self._numbers)}"
        deadline = min(each.deadline for each in batch)
        replies: Sequence[Any] = ()
        error: Exception = StoreUnavailable(_CLOSED)  # if this is cancelled
        try:
            async with asyncio.timeout_at(deadline):
                redis = await self.connected()
                pipeline = redis.pipeline(transaction=False)
                until = int((server.clock.real() + deadline - self._loop.time()) * 1_000_000)
                for each in batch:
                    writer = (token, until) if each.script.writes else ("", 0)
                    key, skew = server.prefix, int(server.clock.skew * 1_000_000)
                    pipeline.evalsha(each.script.sha, 1, key, skew, *writer, *each.args)
                replies = await pipeline.execute(raise_on_error=False)
        except Exception as caught:
            error = caught
        finally:
            lost = not replies
            if lost and redis is not None and any(each.script.writes for each in batch):
                server.stale.add(token)
            for each, reply in zip(batch, replies or [error] * len(batch), strict=True):
                lost = self._complete(each, reply) or lost
            await self.leave(redis, lost=lost)

    def _complete(self, command: RedisCommand, reply: Any) -> bool:
        """Return *reply* to the caller; return whether the server has to be found anew.

        What the server did not perform is repeated once, and so is a read, which has no effect.
        """
        rejected = is_rejected(reply)
        if command.future.done():  # the caller was cancelled
            return rejected
        if not isinstance(reply, Exception):
            command.future.set_result(reply)
        elif (
            (rejected or not command.script.writes)
            and not (command.is_repeated or self.closed)
            and self._loop.time() < command.deadline
        ):
            command.is_repeated = True
            self._pending.append(command)  # the worker that calls this continues with it
        else:
            command.future.set_exception(self._server.failure(reply))
            command.future.exception()  # it need not be retrieved: the caller may be cancelled
        return rejected
