"""Waking followers and workers: the LISTEN connection of an event loop.

A process is woken for its own writes, too, by the notification that is part of their transaction.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from genmcp.stores.clocks import WakeSignal, reconnect_pause
from genmcp.stores.postgres.connection import PostgresOptions, connect

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


def payload_of(tokens: Iterable[str]) -> str:
    """Return the payload of a notification."""
    distinct = set(tokens)
    return " ".join(distinct) if len(distinct) <= _MAX_TOKENS else _EVERYTHING


def _digest(name: str) -> str:
    # As in genmcp.tell_queues.
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


class NotificationListener:
    """Receives the notifications of an event loop, from its first waiter on.

    Whenever it begins to listen, also after a lost connection, it wakes all waiters: they read what
    was written before.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._waiters: dict[str, set[WakeSignal]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def signal(self, tokens: Iterable[str]) -> Iterator[WakeSignal]:
        """Yield a signal that is set when one of *tokens* is notified."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="genmcp-postgres-listen")
        signal, wanted = WakeSignal(), set(tokens)
        for token in wanted:
            self._waiters.setdefault(token, set()).add(signal)
        try:
            yield signal
        finally:
            for token in wanted:
                self._waiters[token].discard(signal)
                if not self._waiters[token]:
                    del self._waiters[token]

    async def aclose(self) -> None:
        """Stop listening, disconnect, and wake all waiters."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._wake(self._waiters)

    async def _run(self) -> None:
        failures = 0
        while True:
            with suppress(Exception):  # the waiters get the error from their own statements
                connection = await connect(self._options)
                try:
                    async with asyncio.timeout(self._options.timeout):
                        await connection.fetch(f'LISTEN "{self._options.schema}.news"')
                    failures = 0
                    self._wake(self._waiters)
                    async for notification in connection.notifies():
                        tokens = notification.payload.split()
                        self._wake(self._waiters if _EVERYTHING in tokens else tokens)
                finally:
                    connection.pgconn.finish()
            failures += 1
            await asyncio.sleep(reconnect_pause(failures))

    def _wake(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            for name in {token, ANY_QUEUE} if token[0] == ANY_QUEUE else {token}:
                for signal in self._waiters.get(name, ()):
                    signal.wake()
