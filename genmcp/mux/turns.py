"""The order in which calls get a free thread: clients take turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable

from genmcp.errors import Overloaded

__all__ = ["Turns"]


class Turns:
    """The threads of one event loop, assigned to clients in turn. Owned by the thread pool.

    Args:
        most: the maximum number of calls with a thread.
        of_client: the maximum number of those of one client.
        waiting: the maximum number of calls that wait for a thread.
        waiting_of_client: the maximum number of those of one client.

    A client is any hashable value; None has no bound per client.
    """

    def __init__(self, most: int, of_client: int, waiting: int, waiting_of_client: int) -> None:
        self._free = most
        self._most_of_client = of_client
        self._most_waiting = waiting
        self._most_waiting_of_client = waiting_of_client
        self._running: dict[Hashable, int] = {}
        # Ordered by the next turn of each client; no queue is empty.
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self.waiting = 0

    async def acquire(self, client: Hashable) -> None:
        """Wait for a thread; return it with `release`.

        Raises:
            Overloaded: 429, too many calls of *client* wait already; 503, too many in total.
        """
        if self._free and client not in self._queues and self._may_run(client):
            self._begin(client)
            return
        self._check(client)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(client, turn)
            else:  # it got a thread at the same time: return it unused
                self.release(client)
            raise

    def release(self, client: Hashable) -> None:
        """Return the thread of a call of *client*; the next client in turn gets it."""
        self._free += 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        # All calls that could run before are running, so that at most one more can run now.
        for other in list(self._queues):
            if self._may_run(other):
                turn = self._next(other)
                if turn is not None:
                    self._begin(other)
                    turn.set_result(None)
                    return

    def _may_run(self, client: Hashable) -> bool:
        return client is None or self._running.get(client, 0) < self._most_of_client

    def _begin(self, client: Hashable) -> None:
        self._free -= 1
        self._running[client] = self._running.get(client, 0) + 1

    def _check(self, client: Hashable) -> None:
        most = self._most_waiting_of_client
        if client is not None and len(self._queues.get(client, ())) >= most:
            raise Overloaded(
                f"Too many calls of one client wait for a thread: {most} "
                f"(limit: waiting_of_client)",
                status=429,
            )
        if self.waiting >= self._most_waiting:
            raise Overloaded(
                f"Too many calls wait for a thread: {self._most_waiting} (limit: waiting)"
            )

    def _next(self, client: Hashable) -> "asyncio.Future[None] | None":
        """Return the first pending turn of *client*, and move its other turns to the end."""
        queue = self._queues[client]
        self._queues.move_to_end(client)
        while queue:
            turn = queue[0]
            self._forget(client, turn)
            if not turn.done():
                return turn
        return None

    def _forget(self, client: Hashable, turn: "asyncio.Future[None]") -> None:
        queue = self._queues.get(client)
        if queue is not None and turn in queue:  # otherwise its cancellation was handled before
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del self._queues[client]
