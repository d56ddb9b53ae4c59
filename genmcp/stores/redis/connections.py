"""The connections of an event loop to a Redis server, through redis-py.

The operations of one turn of the event loop are one pipeline: a command by itself would cost
redis-py a connection of the pool, two timers and a read. While a pipeline is under way, operations
gather for the next one. One pipeline at a time has writes, and another one reads.

**A write that has failed must not take effect after a later one.** A connection may be lost while
the server, or the network, still holds writes that were sent on it. The process keeps the name of
that pipeline, and sends it to the server before its next operations: the server then rejects late
writes under that name (fence.lua). A write also carries the time at which its caller gives up,
after which the server rejects it. This bounds the time for which a failed write may follow a write
of another process.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Final, TypeAlias

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import steady
from genmcp.stores.connections import LoopConnections
from genmcp.stores.lanes import Again, RequestKind
from genmcp.stores.redis.scripts import SWEEP, Script
from genmcp.stores.redis.server import ERRORS, RedisServer, ended, is_rejected, lacks_permission

Argument: TypeAlias = str | bytes | int

SWEPT_AT_ONCE: Final = 500
"""Expired entries that are removed by one operation."""

_PIPELINE: Final = RequestKind(limit=1000)  # all of them wait for the last response


class RedisConnections(LoopConnections):
    """The connections of one event loop. Owned by a `RedisStore`."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(str(server), server.clock, server.outages, server.timeout)
        self._server = server
        self._redis: Any = None  # redis-py's client of the present server; None: to be connected
        self._names = (f"{token_hex(8)}:{number}" for number in itertools.count())  # of pipelines
        # Clients that were replaced: a request may still have a connection, for `timeout` seconds.
        self._left: deque[Any] = deque(maxlen=8)
        self._resubscribe = asyncio.Event()
        self._changed: set[str] = set()  # names that have got, or lost, all their waiters

    async def run(self, script: Script, *args: Argument) -> Any:
        """Run *script* and return its response.

        Raises:
            StoreUnavailable: the server did not respond.
            ConfigurationError: the server cannot be used with these settings.
        """
        lane = self.writes if script.writes else self.reads
        cost = sum(len(each) for each in args if isinstance(each, bytes))
        return await lane.request(_PIPELINE, (script, args), cost)

    async def ask(self, *words: str) -> Any:
        """Return the response to a plain command; None: the user has no permission for it."""
        try:
            async with asyncio.timeout(self.timeout):
                return await (await self._connected()).execute_command(*words)
        except ERRORS as error:
            if lacks_permission(error):
                return None
            raise self._server.failure(error) from error

    async def send(self, kind: RequestKind, items: Sequence[Any]) -> Sequence[Any]:
        try:
            redis = await self.in_time(self._connected())
        except (StoreUnavailable, ConfigurationError) as error:
            return self.not_sent(error, len(items))
        writes, replies = items[0][0].writes, list[Any]()
        name = next(self._names) if writes else ""
        try:
            async with asyncio.timeout(self.timeout):
                replies = await self._pipeline(redis, name, items)
            return [self._result(reply) for reply in replies]
        except Exception as error:
            failure = self._server.failure(error)
            return [failure if writes else Again(failure) for _ in items]
        finally:  # also if this is cancelled
            if writes and not replies:
                self._server.stale.add(name)
            await self._leave(redis, lost=not replies or any(map(is_rejected, replies)))

    async def keep(self) -> None:
        looked = SWEPT_AT_ONCE
        while looked == SWEPT_AT_ONCE:
            sent = steady()
            time, looked, _ = await self.run(SWEEP, SWEPT_AT_ONCE, "", "")
            self.clock.measure(sent, steady(), time / 1_000_000)

    async def listen(self) -> None:
        redis: Any = None
        pubsub: Any = None
        try:
            redis = await self.in_time(self._connected())
            pubsub = redis.pubsub()
            async with asyncio.timeout(self.timeout):
                await pubsub.connect()
            self._changed = set(self.waiters.signals)
            self._resubscribe.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._subscribe(pubsub))
                group.create_task(self._receive(redis, pubsub))
        except* ERRORS:
            pass  # the operations of the followers raise it
        finally:
            if pubsub is not None:
                await ended(pubsub.aclose())
            await self._leave(redis, lost=False)

    async def disconnect(self) -> None:
        clients, self._redis = [*self._left, self._redis], None
        for redis in clients:
            if redis is not None:
                # All its connections: redis-py gives them back in tasks, which the end of an event
                # loop cancels before they have begun.
                await ended(redis.connection_pool.disconnect())

    def changed(self, name: str) -> None:
        self._changed.add(name)
        self._resubscribe.set()

    async def _connected(self) -> Any:
        """Return redis-py's client, after the server was checked and late writes were fenced.

        Raises:
            StoreUnavailable: the server cannot be reached.
            ConfigurationError: it cannot be used with these settings.
        """
        async with self._connecting:
            while self._redis is None or self._server.stale:
                await self._leave(self._redis, lost=True)
                self._redis = await self.attempt(self._server.connect)
            return self._redis

    async def _leave(self, redis: Any, *, lost: bool) -> None:
        """Close the idle connections of *redis* if they are not to be used any more."""
        if lost and redis is not None and redis is self._redis:
            self._redis = None
            self._left.append(redis)
        if redis is not None and redis is not self._redis:
            await ended(redis.connection_pool.disconnect(inuse_connections=False))

    async def _pipeline(self, redis: Any, name: str, items: Sequence[Any]) -> list[Any]:
        """Send *items* as one pipeline; *name* is that of writes."""
        clock, pipeline = self.clock, redis.pipeline(transaction=False)
        until = int((clock.real() + self.timeout) * 1_000_000)
        fixed = self._server.prefix, int(clock.skew * 1_000_000), name, until
        for script, args in items:
            pipeline.evalsha(script.sha, 1, *fixed, *args)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _result(self, reply: Any) -> Any:
        if not isinstance(reply, Exception):
            return reply
        failure = self._server.failure(reply)
        return Again(failure) if is_rejected(reply) else failure

    async def _subscribe(self, pubsub: Any) -> None:
        """Subscribe to channels that get waiters, and unsubscribe from those that lose them."""
        while True:
            await self._resubscribe.wait()
            self._resubscribe.clear()
            changed, self._changed = self._changed, set()
            prefix, new = self._server.prefix, changed & self.waiters.signals.keys()
            if new:
                await pubsub.subscribe(*(f"{prefix}{name}" for name in new))
            if old := changed - new:
                await pubsub.unsubscribe(*(f"{prefix}{name}" for name in old))

    async def _receive(self, redis: Any, pubsub: Any) -> None:
        """Wake waiters, until the connection is lost or another server is used."""
        silent = False
        while redis is self._redis:
            async with asyncio.timeout(2 * self.timeout):  # redis-py connects without a limit
                message = await pubsub.get_message(timeout=self.timeout)
            if message is not None:
                silent = False
                # A message means that something has changed, the confirmation of a subscription
                # that something may have changed before it.
                if message["type"] in ("message", "subscribe"):
                    name = message["channel"].decode().removeprefix(self._server.prefix)
                    self.waiters.wake([name])
            elif silent:
                break  # no response to PING
            else:
                silent = True
                await pubsub.ping()
        raise ConnectionError("the connection was lost")
