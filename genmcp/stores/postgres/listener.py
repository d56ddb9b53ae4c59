"""Waking followers and workers: the LISTEN connection of an event loop.

A process wakes its own waiters itself when a write is acknowledged, and ignores the notification of
that write. If the outcome of a write was unknown, the process takes another sender id: should the
write take effect later, its notification counts as one of another process.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from genmcp.stores.clocks import WakeSignal, reconnect_pause
from genmcp.stores.postgres.connection import (
    PostgresConnection,
    PostgresOptions,
    ServerClock,
    connect,
)

_PING_INTERVAL: Final = 30.0  # seconds; the server's clock is measured as often
_MAX_TOKENS: Final = 700  # in one notification, whose payload has less than 8000 bytes
_EVERYTHING: Final = "*"

ANY_QUEUE: Final = "q"
"""The token of a waiter for all queues."""


def log_token(name: str) -> str:
    """Return the short name of a log in notifications. Two logs may have the same one."""
    return "l" + _digest(name)


def queue_token(name: str) -> str:
    """Return the short name of a queue in notifications."""
    return "q" + _digest(name)


def payload_of(sender: str, tokens: Iterable[str]) -> str:
    """Return the payload of a notification."""
    distinct = set(tokens)
    if len(distinct) > _MAX_TOKENS:
        distinct = {_EVERYTHING}
    return " ".join((sender, *distinct))


def _digest(name: str) -> str:
    # As in genmcp.tell_queues.
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


class NotificationSender:
    """The sender id of this process, and the waiters of all its event loops. Owned by a store."""

    def __init__(self) -> None:
        self.waiters: dict[int, Waiters] = {}  # by the id of the event loop
        self.id = secrets.token_hex(6)

    def wake(self, tokens: Iterable[str]) -> None:
        """Wake the waiters for *tokens* in this process. From any thread."""
        if tokens:
            for waiters in tuple(self.waiters.values()):
                waiters.wake(tokens)

    def doubt(self) -> None:
        """Wake all waiters: a write may have taken effect, or may do so later."""
        self.id = secrets.token_hex(6)
        for waiters in tuple(self.waiters.values()):
            waiters.wake_all()


class Waiters:
    """The signals of one event loop, by the tokens that they wait for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_token: dict[str, set[WakeSignal]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_token)

    @contextmanager
    def signal(self, tokens: Iterable[str]) -> Iterator[WakeSignal]:
        """Yield a signal that is set when one of *tokens* is notified."""
        signal, wanted = WakeSignal(), set(tokens)
        with self._lock:
            for token in wanted:
                self._by_token.setdefault(token, set()).add(signal)
        try:
            yield signal
        finally:
            with self._lock:
                for token in wanted:
                    signals = self._by_token[token]
                    signals.discard(signal)
                    if not signals:
                        del self._by_token[token]

    def wake(self, tokens: Iterable[str]) -> None:
        """Wake the waiters for *tokens*. From any thread."""
        with self._lock:
            for token in tokens:
                for name in (token, ANY_QUEUE) if token[0] == ANY_QUEUE else (token,):
                    for signal in self._by_token.get(name, ()):
                        signal.wake()

    def wake_all(self) -> None:
        """Wake all waiters, for an unknown change. From any thread."""
        with self._lock:
            for signals in self._by_token.values():
                for signal in signals:
                    signal.wake()


class NotificationListener:
    """Receives the notifications of an event loop, while it has waiters.

    After a lost connection it connects again, with a growing pause, and wakes all waiters: they
    read what they have missed.
    """

    def __init__(
        self,
        options: PostgresOptions,
        clock: ServerClock,
        waiters: Waiters,
        sender: NotificationSender,
    ) -> None:
        self._options = options
        self._clock = clock
        self._waiters = waiters
        self._sender = sender
        self._listening: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failures = 0  # attempts to listen that have failed in sequence
        self._closed = False

    def start(self) -> None:
        """Start to listen. All waiters are woken when the notifications begin."""
        if self._task is None and not self._closed:
            self._listening = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(), name="genmcp-postgres-listen")

    async def ready(self) -> bool:
        """Wait for the first attempt to listen; return whether it was not over yet.

        Appends before may not have been notified. After a failed attempt all waiters are woken as
        soon as a later one succeeds.
        """
        self.start()
        if self._listening is None or self._listening.done():
            return False
        await asyncio.shield(self._listening)
        return True

    async def aclose(self) -> None:
        """Stop listening, and disconnect."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def drop(self) -> None:
        """Mark this as closed, from any thread. Its event loop was closed, so no task runs."""
        self._closed = True

    async def _run(self) -> None:
        try:
            while True:
                with suppress(Exception):  # the waiters get the error from their own statements
                    connection = await connect(self._options)
                    try:
                        await self._listen(connection)
                    finally:
                        connection.end()
                self._confirm()
                self._failures += 1
                await asyncio.sleep(reconnect_pause(self._failures))
        finally:
            self._task = None
            self._confirm()

    def _confirm(self) -> None:
        if self._listening is not None and not self._listening.done():
            self._listening.set_result(None)

    async def _listen(self, connection: PostgresConnection) -> None:
        """Pass on notifications until the connection is lost."""
        loop, socket = asyncio.get_running_loop(), connection.pgconn.socket
        lost = loop.create_future()

        def receive() -> None:
            try:
                connection.pgconn.consume_input()
                while notification := connection.pgconn.notifies():
                    self._pass_on(notification.extra.decode())
            except Exception as error:
                loop.remove_reader(socket)
                if not lost.done():
                    lost.set_exception(error)

        connection.add_notify_handler(lambda notify: self._pass_on(notify.payload))
        async with asyncio.timeout(self._options.timeout):
            await connection.fetch(f'LISTEN "{self._options.schema}.news"')
        self._failures = 0
        self._waiters.wake_all()
        self._confirm()
        while True:
            async with asyncio.timeout(self._options.timeout):
                await self._clock.measure(connection)  # also shows that the server responds
            loop.add_reader(socket, receive)
            try:
                receive()
                await asyncio.wait({lost}, timeout=_PING_INTERVAL)
            finally:
                loop.remove_reader(socket)
            if lost.done():
                lost.result()

    def _pass_on(self, payload: str) -> None:
        sender, *tokens = payload.split(" ")
        if sender == self._sender.id:
            return
        if _EVERYTHING in tokens:
            self._waiters.wake_all()
        else:
            self._waiters.wake(tokens)
