"""The followers of one event loop, which share one subscription connection.

A message in a channel only wakes the followers of that channel, which then read. Messages that are
lost with a connection do no harm: after a new connection has subscribed, all followers are woken.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import WakeSignal, reconnect_pause
from genmcp.stores.redis.server import (
    ErrorReply,
    RedisConnectionLost,
    RedisServerState,
    RedisWire,
    encoded,
)

logger = logging.getLogger("genmcp")

_AT_ONCE: Final = 1000  # channels in one command
_LINGER: Final = 1.0  # seconds that a channel stays subscribed without a follower


class RedisChannels:
    """The subscriptions of one event loop. Owned by a `RedisClient`."""

    def __init__(self, state: RedisServerState) -> None:
        self._state = state
        self.loop = asyncio.get_running_loop()
        self._signals: dict[bytes, set[WakeSignal]] = {}
        self._queues: dict[WakeSignal, Collection[str]] = {}  # of interest; empty: all
        self._subscribed: set[bytes] = set()  # on the present connection
        self._added: set[bytes] = set()  # to subscribe to
        self._idle: set[bytes] = set()  # without followers since a moment ago
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None  # ends the wait for messages
        self._silent = False  # whether nothing has arrived since the last look
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
        self._wake_all()

    async def aclose(self) -> None:
        """Like `close`, and wait for the end."""
        self.close()
        if self._task is not None:
            await asyncio.wait({self._task})

    @contextmanager
    def _signal(self, channel: bytes) -> Iterator[WakeSignal]:
        signal = WakeSignal()
        signals = self._signals.get(channel)
        if signals is None:
            signals = self._signals[channel] = set()
            self._idle.discard(channel)
            if channel not in self._subscribed:
                self._added.add(channel)
                self._wake.set()
        signals.add(signal)
        if self._task is None:
            self._task = self.loop.create_task(self._run(), name=f"followers of {self._state}")
        try:
            yield signal
        finally:
            signals.discard(signal)
            if not signals and self._signals.get(channel) is signals:
                del self._signals[channel]
                self._added.discard(channel)
                self._idle.add(channel)

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()  # no connection is made before it is needed
            try:
                async with asyncio.timeout(self._state.settings.connect_timeout):
                    wire = await self._state.connect()
            except (TimeoutError, StoreUnavailable, ConfigurationError):
                # The error is raised by the commands of the followers.
                failures += 1
                await asyncio.sleep(reconnect_pause(failures))
                continue
            try:
                self._added = set(self._signals)
                self._wake.set()
                if await self._serve(wire):
                    failures = 0
            finally:
                self._subscribed.clear()
                await wire.close()
            failures += 1
            await asyncio.sleep(reconnect_pause(failures))
            self._wake.set()

    async def _serve(self, wire: RedisWire) -> bool:
        """Receive messages until the connection is lost; return whether there were any."""
        self._silent = served = False
        tasks = [self.loop.create_task(work(wire)) for work in (self._write, self._look)]
        for task in tasks:
            task.add_done_callback(self._stop)
        try:
            async with asyncio.timeout(None) as self._limit:
                while True:
                    self._receive(await wire.receive())
                    served, self._silent = True, False
        except (RedisConnectionLost, TimeoutError):  # TimeoutError: `_stop` was called
            return served
        except Exception:
            # A programming error here must not end the task that wakes all followers.
            logger.exception("%s: a message was not understood", self._state)
            return served
        finally:
            self._limit = None
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _receive(self, reply: Any) -> None:
        if isinstance(reply, ErrorReply):
            raise RedisConnectionLost(reply.text)
        if not isinstance(reply, list) or len(reply) != 3:  # the response to PING
            return
        kind, channel, data = reply
        signals: Iterable[WakeSignal] = self._signals.get(channel, ())
        if kind == b"message" and channel == self._prefix + b"n":
            queue = data.decode(errors="replace")
            signals = [each for each in signals if not (of := self._queues[each]) or queue in of]
        elif kind not in (b"message", b"subscribe"):
            return
        # Once subscribed, the followers read once more: they may have read before that.
        for signal in signals:
            signal.wake()

    async def _write(self, wire: RedisWire) -> None:
        """Subscribe to the channels of new followers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            channels, self._added = self._added, set()
            self._subscribed |= channels
            await _send(wire, b"SUBSCRIBE", channels)

    async def _look(self, wire: RedisWire) -> None:
        """Unsubscribe from channels without followers, and detect a dead connection."""
        patience = max(self._state.settings.timeout, 2 * _LINGER)
        looks = 0
        while True:
            await asyncio.sleep(_LINGER)
            idle, self._idle = self._idle, set()
            idle = {each for each in idle & self._subscribed if each not in self._signals}
            self._subscribed -= idle
            await _send(wire, b"UNSUBSCRIBE", idle)
            looks += 1
            if looks * _LINGER >= patience:
                if self._silent:
                    return  # no response to the last PING
                looks, self._silent = 0, True
                await wire.send(encoded((b"PING",)))

    def _stop(self, task: "asyncio.Task[None]") -> None:
        """Make `_serve` return."""
        if not task.cancelled():
            task.exception()  # the connection was lost: `_serve` has noticed, or will
        if self._limit is not None:
            self._limit.reschedule(self.loop.time())

    def _wake_all(self) -> None:
        for signals in self._signals.values():
            for signal in signals:
                signal.wake()


async def _send(wire: RedisWire, command: bytes, channels: Collection[bytes]) -> None:
    # In one write: a later command for one of the channels must not come before the last of these.
    rest = list(channels)
    parts = [(command, *rest[at : at + _AT_ONCE]) for at in range(0, len(rest), _AT_ONCE)]
    if parts:
        await wire.send(b"".join(map(encoded, parts)))
