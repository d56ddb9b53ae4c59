"""The heartbeats of the processes that share a store, by which the dead ones are found."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from secrets import token_urlsafe
from typing import Final

from genmcp.errors import StoreError
from genmcp.stores.clocks import steady
from genmcp.stores.store import Delete, Put, Store

logger = logging.getLogger("genmcp")

BEATS_PER_LEASE: Final = 9
"""Of a process: a few may be late before it counts as suspended."""


class ProcessName:
    """The name of this process, unique among present and earlier ones. It is *prefix*, its
    process id, and a random text.

    A process that was forked has another name than its parent and its siblings: they run other
    calls, and the death of one is not that of the others.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._known = 0, ""  # a process id, and the name of that process

    def __call__(self) -> str:
        """Return the name."""
        id, name = self._known
        if id != os.getpid():
            name = f"{self._prefix}{os.getpid()}-{token_urlsafe(9)}"
            self._known = os.getpid(), name
        return name


class Presence:
    """Decides whether this process may consider other processes dead.

    A process counts as dead if it has not renewed its heartbeat for a lease. If this process itself
    has not renewed its heartbeat for a third of a lease, it was suspended: it was stopped, its
    event loop was blocked, the machine slept, the store was unavailable, or a clock was set. Other
    processes may have been unable to renew their heartbeats for the same reason. This process
    therefore considers them alive until they have had a full lease to do so.

    A process that has just started cannot know whether the others were suspended. It considers
    them alive until a third of a lease after its own first heartbeat: living processes renew their
    heartbeats and leases at least as often.

    Args:
        lease: seconds without a heartbeat after which a process counts as dead.
        wall: returns the time of the store's clock, by which leases are measured. It may be set.
        clock: returns the seconds of a clock that cannot be set.
    """

    def __init__(
        self, lease: float, wall: Callable[[], float], clock: Callable[[], float] = steady
    ) -> None:
        self._lease = lease
        self._wall = wall
        self._clock = clock
        self._last: tuple[float, float] | None = None  # the last heartbeat, by both clocks
        self._new_until = -inf
        self._suspended_until = -inf

    @property
    def is_unsure(self) -> bool:
        """Whether others may be alive although their heartbeats have expired."""
        return self.takeover_delay > 0

    @property
    def takeover_delay(self) -> float:
        """The seconds for which this process must consider others alive without heartbeats.

        0: a process whose heartbeat has expired is dead.
        """
        if self._last is None:
            return self._lease / 3
        if self._interruption() > self._lease / 3:
            return self._lease
        return max(0.0, max(self._new_until, self._suspended_until) - self._clock())

    def record_beat(self) -> None:
        """Record that the store has accepted a heartbeat of this process."""
        if self._last is None:
            self._new_until = self._clock() + self._lease / 3
        if (interruption := self._interruption()) > self._lease / 3:
            self._suspended_until = self._clock() + self._lease
            logger.warning(
                "this process was suspended for %.1f seconds (stopped, blocked, without its store, "
                "or a clock was set): for a lease of %g seconds it takes over no work of others",
                interruption,
                self._lease,
            )
        self._last = self._clock(), self._wall()

    def reset(self) -> None:
        """Expect no heartbeats until the next one: this process stops working."""
        self._last = None

    def _interruption(self) -> float:
        """Return the seconds since the last heartbeat of this process.

        If the store's clock was set since then by more than that, return by how much.
        """
        if self._last is None:
            return 0.0
        last, last_wall = self._last
        passed = self._clock() - last
        return max(passed, abs(self._wall() - last_wall - passed))


# The labels of the records below. An operator's commands find the namespaces of a store by the
# first one, and in each of them the living processes and the queues that they serve.
SERVICES: Final = "genmcp:services"
NODES: Final = "nodes"
SERVED: Final = "served"
ENGINE: Final = b"engine"
"""The value of the record of a queue whose jobs the process submits to an engine."""
SERVICE_KEY: Final = "service"
_SERVICE_TTL: Final = 30 * 86400.0  # seconds: longer than tasks are usually retained


class Heartbeats:
    """The heartbeats of the processes that share *store*: records that expire after a lease.

    Args:
        store: keeps the records.
        name: returns the name of this process.
        lease: seconds until a record expires.
        prefix: with which all keys begin.
        presence: decides whether this process can judge others. Default: by the clock of *store*.

    Attributes:
        queues: the queues that this process serves, each with the value of its record.
        next_beat: when the next heartbeat is due, by the clock `steady`.
    """

    def __init__(
        self,
        store: Store,
        name: Callable[[], str],
        lease: float,
        prefix: str = "",
        presence: Presence | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._next_registration = 0.0
        self._name = name
        self.lease = lease
        self.presence = presence or Presence(lease, store.now)
        self.queues: Mapping[str, bytes] = {}
        self.next_beat = 0.0

    @property
    def own(self) -> str:
        """The name of this process."""
        return self._name()

    async def beat(self) -> None:
        """Renew the records of this process and its queues for another lease."""
        node = self._renew(self._node_key(self.own), [f"{self._prefix}{NODES}"])
        served = [f"{self._prefix}{SERVED}"]
        renewals = [
            self._renew(self._queue_key(queue), served, value=value)
            for queue, value in self.queues.items()
        ]
        await asyncio.gather(node, *renewals)
        self.presence.record_beat()
        self.next_beat = steady() + self.lease / BEATS_PER_LEASE
        if (now := steady()) >= self._next_registration:
            await self._renew(f"{self._prefix}{SERVICE_KEY}", [SERVICES], _SERVICE_TTL)
            self._next_registration = now + _SERVICE_TTL / 9

    async def keep_beating(self, check: Callable[[], Awaitable[None]] | None = None) -> None:
        """Renew the records several times per lease, until this is cancelled.

        *check* is called after each time.
        """
        while True:
            await asyncio.sleep(self.lease / BEATS_PER_LEASE)
            try:
                await self.beat()
                if check is not None:
                    await check()
            except StoreError as error:
                logger.warning("other processes may consider this one dead: %s", error)

    async def _renew(
        self, key: str, labels: Sequence[str], ttl: float | None = None, value: bytes = b""
    ) -> None:
        ttl = ttl or self.lease
        if not await self._store.touch(key, ttl):
            await self._store.apply(Put(key, value, ttl=ttl, labels=labels))

    async def is_served(self, queue: str) -> bool:
        """Return whether a process serves *queue*, or has served it less than a lease ago."""
        return queue in self.queues or await self._store.get(self._queue_key(queue)) is not None

    async def is_alive(self, node: str) -> bool:
        """Return whether the process *node* is alive, or this process cannot judge that now."""
        if node == self.own or self.presence.is_unsure:
            return True
        has_record = await self._store.get(self._node_key(node)) is not None
        # Checked again: this process may have been suspended during the read.
        return has_record or self.presence.is_unsure

    async def leave(self) -> None:
        """Remove the heartbeat of this process, so that others consider it dead at once."""
        self.presence.reset()
        self.queues = {}
        await self._store.apply(Delete(self._node_key(self.own)))

    def _node_key(self, node: str) -> str:
        return f"{self._prefix}node:{node}"

    def _queue_key(self, queue: str) -> str:
        return f"{self._prefix}served:{queue}"
