"""The followers of one event loop, which share one PubSub of redis-py.

A message in a channel only wakes the followers of that channel, which then read. Messages that are
lost with a connection do no harm: once a new connection has subscribed, all followers are woken.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import WakeSignal, reconnect_pause
from genmcp.stores.redis.commands import RedisCommands
from genmcp.stores.redis.server import ERRORS, RedisServer

logger = logging.getLogger("genmcp")


class RedisChannels:
    """The subscriptions of one event loop. Owned by a `RedisClient`."""

    def __init__(self, commands: RedisCommands, server: RedisServer) -> None:
        self._commands = commands
        self._server = server
        # The followers of each channel, with the queues that they are interested in; empty: all.
        self._signals: dict[bytes, dict[WakeSignal, Collection[str]]] = {}
        self._changed: set[bytes] = set()  # channels that have got, or lost, all their followers
        self._wake = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def log_signal(self, log: str) -> AbstractContextManager[WakeSignal]:
        """Yield a signal that is set when an event is appended to *log*."""
        return self._signal(f"w:{log}", ())

    def news_signal(self, queues: Collection[str]) -> AbstractContextManager[WakeSignal]:
        """Yield a signal that is set when *queues* (empty: all queues) may have a due delivery."""
        return self._signal("n", frozenset(queues))

    def close(self) -> None:
        """End the connection, and wake all followers."""
        if self._task is not None:
            self._task.cancel()
        for signals in self._signals.values():
            for signal in signals:
                signal.wake()

    async def aclose(self) -> None:
        """Like `close`, and wait for the end."""
        self.close()
        if self._task is not None:
            await asyncio.wait({self._task})

    @contextmanager
    def _signal(self, name: str, queues: Collection[str]) -> Iterator[WakeSignal]:
        channel, signal = f"{self._server.prefix}{name}".encode(), WakeSignal()
        signals = self._signals.setdefault(channel, {})
        if not signals:
            self._change(channel)
        signals[signal] = queues
        if self._task is None:
            name = f"followers of {self._server}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
        try:
            yield signal
        finally:
            del signals[signal]
            if not signals:
                del self._signals[channel]
                self._change(channel)

    def _change(self, channel: bytes) -> None:
        self._changed.add(channel)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            redis: Any = None
            pubsub: Any = None
            try:
                async with asyncio.timeout(self._server.timeout):
                    redis = await self._commands.connected()
                    pubsub = redis.pubsub()
                    await pubsub.connect()
                self._changed = set(self._signals)
                self._wake.set()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._subscribe(pubsub))
                    group.create_task(self._receive(redis, pubsub))
            except* (*ERRORS, StoreUnavailable, ConfigurationError):
                pass  # the operations of the followers raise it
            except* Exception:
                # A programming error here must not end the task that wakes all followers.
                logger.exception("%s: a message was not understood", self._server)
            finally:
                if pubsub is not None:
                    with suppress(*ERRORS):
                        await pubsub.aclose()
                await self._commands.leave(redis)
            self._failures += 1
            await asyncio.sleep(reconnect_pause(self._failures))

    async def _subscribe(self, pubsub: Any) -> None:
        """Subscribe to channels that get followers, and unsubscribe from those that lose them."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            if new := changed & self._signals.keys():
                await pubsub.subscribe(*new)
            if old := changed - new:
                await pubsub.unsubscribe(*old)

    async def _receive(self, redis: Any, pubsub: Any) -> None:
        """Wake followers, until the connection is lost or another server is used."""
        silent, timeout = False, self._server.timeout
        while not silent or redis is self._commands.redis:
            async with asyncio.timeout(2 * timeout):  # redis-py connects again without a limit
                message = await pubsub.get_message(timeout=timeout)
            if message is not None:
                silent, self._failures = False, 0
                self._handle(message)
            elif silent:
                break  # no response to PING
            else:
                silent = True
                await pubsub.ping()
        raise ConnectionError("the connection was lost")

    def _handle(self, message: Mapping[str, Any]) -> None:
        signals = self._signals.get(message["channel"], {})
        if message["type"] == "message":
            queue = message["data"].decode(errors="replace")  # empty for a log
            for signal, queues in signals.items():
                if not queues or queue in queues:
                    signal.wake()
        elif message["type"] == "subscribe":  # followers may have read before that
            for signal in signals:
                signal.wake()
