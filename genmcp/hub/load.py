"""What a server may be working on."""

import asyncio
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from genmcp.client.client import Client
from genmcp.client.errors import RequestTimeout
from genmcp.hub.relay import caller

__all__ = ["Load"]


class Load:
    """The requests that wait for one server, and whose calls were given up; of each connection."""

    def __init__(self) -> None:
        self._running: WeakKeyDictionary[Client, int] = WeakKeyDictionary()
        self._left: WeakKeyDictionary[Client, set[Hashable]] = WeakKeyDictionary()

    @contextmanager
    def request(self, client: Client) -> Iterator[None]:
        """Count one that is made while this is entered."""
        self.left_by(client)
        self._running[client] = self.running(client) + 1
        try:
            yield
        except (asyncio.CancelledError, RequestTimeout):
            self._left.setdefault(client, set()).add(caller())
            raise
        finally:
            self._running[client] -= 1

    def running(self, client: Client) -> int:
        """Return how many wait for an answer."""
        return self._running.get(client, 0)

    def left_by(self, client: Client) -> Collection[Hashable]:
        """Return who has given up calls that may still be worked on; None: nobody knows who."""
        if client.left_calls:
            return self._left.get(client, {None})
        self._left.pop(client, None)  # they have been answered
        return ()
