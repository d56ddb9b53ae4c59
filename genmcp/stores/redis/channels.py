"""The followers of one event loop, which share one PubSub of redis-py.

A message in a channel only wakes the followers of that channel, which then read. Messages that are
lost with a connection do no harm: once a new connection has subscribed, all followers are woken.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import WakeSignal, reconnect_pause
from genmcp.stores.redis.commands import RedisCommands
from genmcp.stores.redis.server import ERRORS, RedisServerState

logger = logging.getLogger("genmcp")

_LINGER: Final = 1.0  # seconds for which a channel may stay subscribed without a follower


class RedisChannels:
    """The subscriptions of one event loop. Owned by a `RedisClient`."""

    def __init__(self, commands: RedisCommands, state: RedisServerState) -> None:
        self._commands = commands
        self._state = state
        self._loop = asyncio.get_running_loop()
        # A channel is subscribed to if it has signals and is not in `_added`, or is in `_idle`.
        self._signals: dict[bytes, set[WakeSignal]] = {}
        self._added: set[bytes] = set()  # to subscribe to
        self._idle: set[bytes] = set()  # without followers since a moment ago
        self._queues: dict[WakeSignal, Collection[str]] = {}  # of interest; empty: all
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._prefix = state.settings.prefix.encode()

    @contextmanager
    def log_signal(self, log: str) -> Iterator[WakeSignal]:
        """Yield a signal that is set when an event is appended to *log*."""
        with self._signal(self._prefix + b"w:" + log.encode()) as signal:
            yield signal

    @contextmanager
    def news_signal(self, queues: Collection[str]) -> Iterator[WakeSignal]:
        """Yield a signal that is set when *queues* (empty: all queues) may have a due delivery."""
        with self._signal(self._prefix + b"n") as signal:
            self._queues[signal] = frozenset(queues)
            try:
                yield signal
            finally:
                del self._queues[signal]

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
    def _signal(self, channel: bytes) -> Iterator[WakeSignal]:
        signal = WakeSignal()
        signals = self._signals.setdefault(channel, set())
        if not signals:
            if channel not in self._idle:
                self._added.add(channel)
                self._wake.set()
            self._idle.discard(channel)
        signals.add(signal)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"followers of {self._state}")
        try:
            yield signal
        finally:
            signals.discard(signal)
            if not signals:
                del self._signals[channel]
                if channel not in self._added:
                    self._idle.add(channel)
                self._added.discard(channel)

    async def _run(self) -> None:
        failures = 0
        while True:
            if not self._signals:
                await self._wake.wait()
                self._wake.clear()
                continue
            redis: Any = None
            pubsub: Any = None
            try:
                async with asyncio.timeout(self._state.settings.timeout):
                    redis = await self._commands.connected()
                    pubsub = redis.pubsub()
                    self._added.clear()
                    self._idle.clear()
                    await pubsub.subscribe(*self._signals)
                failures = 0
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._subscribe(pubsub))
                    group.create_task(self._receive(redis, pubsub))
            except* (*ERRORS, StoreUnavailable, ConfigurationError):
                pass  # the commands of the followers raise it
            except* Exception:
                # A programming error here must not end the task that wakes all followers.
                logger.exception("%s: a message was not understood", self._state)
            finally:
                if pubsub is not None:
                    with suppress(*ERRORS):
                        await pubsub.aclose()
                await self._commands.leave(redis)
            failures += 1
            await asyncio.sleep(reconnect_pause(failures))

    async def _subscribe(self, pubsub: Any) -> None:
        """Subscribe to the channels of new followers, and unsubscribe from idle ones."""
        look = self._loop.time() + _LINGER
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look):
                    await self._wake.wait()
            self._wake.clear()
            added, self._added = self._added, set()
            if added:
                await pubsub.subscribe(*added)
            if self._loop.time() >= look:
                look = self._loop.time() + _LINGER
                idle, self._idle = self._idle, set()
                if idle:
                    await pubsub.unsubscribe(*idle)

    async def _receive(self, redis: Any, pubsub: Any) -> None:
        """Wake followers, until the connection is lost or another server is used."""
        silent, timeout = False, self._state.settings.timeout
        while not silent or redis is self._commands.redis:
            async with asyncio.timeout(2 * timeout):  # redis-py connects again without a limit
                message = await pubsub.get_message(timeout=timeout)
            if message is not None:
                silent = False
                self._handle(message)
            elif silent:
                break  # no response to PING
            else:
                silent = True
                await pubsub.ping()
        raise ConnectionError("the connection was lost")

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind, channel = message["type"], message["channel"]
        signals: Iterable[WakeSignal] = self._signals.get(channel, ())
        if kind == "message" and channel == self._prefix + b"n":
            queue = message["data"].decode(errors="replace")
            signals = [each for each in signals if not (of := self._queues[each]) or queue in of]
        elif kind not in ("message", "subscribe"):
            return
        # Once subscribed, the followers read once more: they may have read before that.
        for signal in signals:
            signal.wake()
