"""Limits of a principal that hold for all processes that share a store.

No call waits for the store. A quota of calls is leased from the store in batches, ahead of use.
Open calls and streams are reported about once a second, and each process adds the last reports of
the others to its own counts.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from threading import Lock
from typing import Final

import msgspec

from genmcp._mux.limits import ConcurrencyLimit, Limits
from genmcp.cancellation import cancel_and_wait
from genmcp.errors import Conflict, Overloaded, StoreError
from genmcp.stores.store import Delete, Put, Store
from genmcp.tasks.log_throttle import LogThrottle

logger = logging.getLogger("genmcp")

WINDOW: Final = 60.0
"""Seconds for which a quota counts. All processes begin a window at the same time."""

_LEASES: Final = 20  # batches per window and principal: a batch is 1/20 of the quota
_CREDIT: Final = 4  # a process has a credit of 1/4 of the quota,
_LEAST_CREDIT: Final = 10  # but at least of 10 calls, and at most of the quota

_REPORT_EVERY: Final = 1.0
_REPORT_TTL: Final = 10.0
"""Seconds after which the report of a process expires that has died."""
_READ_AT_ONCE: Final = 100  # reports

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[dict[str, int]]).decode


class DeploymentLimits:
    """The limits on the open calls and streams of a mux. Owned by the mux.

    Args:
        store: has the counts of all processes.
        audience: separates the muxes that share the store.
        limits: the settings.
    """

    def __init__(self, store: Store, audience: str, limits: Limits) -> None:
        quota, opened = None, None
        self._call_quota: CallQuota | None = None
        self._reports: UsageReports | None = None
        most = limits.max_calls_per_minute_per_principal
        if most is not None:
            self._call_quota = CallQuota(store, audience, most)
            quota = self._call_quota.take
        if limits.count_across_processes and store.shared:
            self._reports = UsageReports(store, audience)
            opened = self._reports.start
        self.waiting_calls = ConcurrencyLimit(
            "max_waiting_calls", limits, "waiting calls", opened=opened, quota=quota
        )
        self.streams = ConcurrencyLimit("max_streams", limits, "open streams", opened=opened)
        if self._reports is not None:
            self._reports.reported = (self.waiting_calls, self.streams)

    async def aclose(self) -> None:
        """Cancel pending leases, stop the reports, and withdraw the last one."""
        if self._call_quota is not None:
            await self._call_quota.aclose()
        if self._reports is not None:
            await self._reports.aclose()


# Calls per minute.


class _Allowance(msgspec.Struct, eq=False):
    """The rest of the quota of a principal, in this process and window.

    left: the leased calls that were not made yet; negative: the calls that were made on credit.
    taken: the calls of this process. exhausted: whether the store has no more to lease.
    """

    left: int = 0
    taken: int = 0
    leasing: bool = False
    exhausted: bool = False


class CallQuota:
    """The number of calls of each principal that start per window, over all processes.

    A process leases a batch of calls before it has used up the last one. Until the store has
    answered, calls start on credit. The sum of all leases is exactly the quota. The error is at
    most the credit of each process above it, and its last batch below it.

    While the store cannot be reached, each process applies the whole quota to its own calls.

    Args:
        store: has a record of the leased calls for each principal and window.
        audience: separates the muxes that share the store.
        most: the quota.
    """

    def __init__(self, store: Store, audience: str, most: int) -> None:
        self._store = store
        self._prefix = f"quota:{audience}/"
        self._most = most
        self._batch = max(1, most // _LEASES)
        self._credit = min(most, max(_LEAST_CREDIT, most // _CREDIT))
        self._lock = Lock()
        self._window = 0
        self._allowances: dict[str, _Allowance] = {}
        self._leases: set[asyncio.Task[None]] = set()
        self._warnings = LogThrottle(logger)

    def take(self, principal: str) -> None:
        """Count a call of *principal*.

        Raises:
            Overloaded: with status 429, the quota is used up.
        """
        now = self._store.now()
        with self._lock:
            # The clock of a store may step back: the window does not.
            if (window := int(now // WINDOW)) > self._window:
                self._window, self._allowances = window, {}
            allowance = self._allowances.setdefault(principal, _Allowance())
            is_over = allowance.taken >= self._most
            is_over |= allowance.exhausted and allowance.left <= 0
            if is_over or allowance.left <= -self._credit:
                rest = (self._window + 1) * WINDOW - now if is_over else 1
                raise Overloaded(
                    f"Too many calls of one principal: {self._most} per minute "
                    "(limit: max_calls_per_minute_per_principal)",
                    status=429,
                    retry_after=max(1, ceil(rest)),
                )
            allowance.left -= 1
            allowance.taken += 1
            leases = not allowance.exhausted and not allowance.leasing
            if leases and allowance.left < self._batch / 2:
                allowance.leasing = True
                lease = asyncio.get_running_loop().create_task(
                    self._lease(principal, allowance, self._window)
                )
                self._leases.add(lease)
                lease.add_done_callback(self._leases.discard)

    async def aclose(self) -> None:
        """Cancel the pending leases of the running loop."""
        here = asyncio.get_running_loop()
        own = [each for each in [*self._leases] if each.get_loop() is here]
        await cancel_and_wait(*own)
        with self._lock:
            self._allowances = {}  # some of them still wait for a lease

    async def _lease(self, principal: str, allowance: _Allowance, window: int) -> None:
        try:
            # More calls may start on credit while the store answers.
            while not allowance.exhausted and allowance.left < self._batch / 2:
                wanted = self._batch - allowance.left
                leased = await self._leased(principal, window, wanted)
                with self._lock:  # calls on other threads change it as well
                    allowance.exhausted = leased < wanted
                    allowance.left += leased
        except StoreError as error:
            self._warnings.log(logging.WARNING, "a quota cannot be leased: %s", error)
            with self._lock:
                allowance.left += max(0, min(self._batch, self._most - allowance.taken))
        finally:
            allowance.leasing = False

    async def _leased(self, principal: str, window: int, wanted: int) -> int:
        """Return how many of the *wanted* calls the store leases."""
        key = f"{self._prefix}{principal}:{window}"
        while True:
            entry = await self._store.get(key)
            used = 0 if entry is None else int(entry.value)
            leased = min(wanted, self._most - used)
            if leased <= 0:
                return 0
            version = 0 if entry is None else entry.version
            with suppress(Conflict):  # another process came first
                value = b"%d" % (used + leased)
                await self._store.apply(Put(key, value, ttl=2 * WINDOW, expect=version))
                return leased


# Open calls and streams.


class UsageReports:
    """Reports the open calls and streams of this process, and reads the reports of the others.

    Runs while a principal has something open here. The report of a process that has died expires.

    reported: the limits that are reported, the same in each process.
    """

    def __init__(self, store: Store, audience: str) -> None:
        self.reported: Sequence[ConcurrencyLimit] = ()
        self._store = store
        self._label = f"usage:{audience}"
        self._key = f"{self._label}/{secrets.token_urlsafe(9)}"
        self._reporting: asyncio.Task[None] | None = None
        self._warnings = LogThrottle(logger)

    def start(self) -> None:
        """Run on the running loop, unless this runs already."""
        task = self._reporting
        if task is None or task.done() or task.get_loop().is_closed():
            self._reporting = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop, and delete the report."""
        task, self._reporting = self._reporting, None
        if task is not None and not task.get_loop().is_closed():
            await cancel_and_wait(task)
            with suppress(StoreError):
                await self._store.apply(Delete(self._key))

    async def _run(self) -> None:
        written, written_at, read_at = b"", 0.0, 0.0
        clock = asyncio.get_running_loop().time
        while True:
            counts = [each.principals() for each in self.reported]
            try:
                if not any(counts):
                    await self._store.apply(Delete(self._key))
                    if not any(each.principals() for each in self.reported):
                        # These counts would not be read again: with them, a client that has
                        # reached its limit elsewhere would be rejected here for ever.
                        self._set([{} for _ in self.reported])
                        return
                    continue
                report = _encode(counts)
                if report != written or clock() - written_at > _REPORT_TTL / 3:
                    await self._store.apply(
                        Put(self._key, report, ttl=_REPORT_TTL, labels=(self._label,))
                    )
                    written, written_at = report, clock()
                self._set(await self._others())
                read_at = clock()
            except StoreError as error:
                self._warnings.log(logging.WARNING, "usage cannot be reported: %s", error)
                if clock() - read_at > _REPORT_TTL:
                    self._set([{} for _ in self.reported])
            await asyncio.sleep(_REPORT_EVERY)

    def _set(self, counts: Sequence[Mapping[str, int]]) -> None:
        for limit, elsewhere in zip(self.reported, counts, strict=True):
            limit.set_elsewhere(elsewhere)

    async def _others(self) -> Sequence[Mapping[str, int]]:
        """Return the counts of all other processes together."""
        sums: list[Counter[str]] = [Counter() for _ in self.reported]
        after: str | None = None
        while found := await self._store.find(self._label, after, _READ_AT_ONCE):
            for entry in found:
                if entry.key != self._key:
                    with suppress(msgspec.MsgspecError, ValueError):  # of another release
                        for total, counts in zip(sums, _decode(entry.value), strict=True):
                            total.update(counts)
            after = found[-1].key
            if len(found) < _READ_AT_ONCE:
                break
        return sums
