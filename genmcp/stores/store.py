"""The `Store` interface, and the values that are written to and read from a store.

A store has two kinds of data, each retained until it expires: small **records** under a key,
changed by compare-and-set, and ordered **logs** of events, which can be replayed and then followed
live. Sessions, tasks, subscriptions and replay buffers are made of nothing else.

Every store passes the contract tests, which check the guarantees given here. They are in
`tests/contracts`: `StoreContract` (records and logs), `AccountsContract` (accounts,
capacity and reserve), `DeliveriesContract` (`deliveries`) and `SharedContract` (`shared`). They do
not check durability (`durable`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from genmcp.errors import ContractError, LogTruncated
from genmcp.stores.accounts import EVERYTHING, Capacity, Room, Usage, accounts_of, room_for
from genmcp.stores.deliveries import Deliveries
from genmcp.stores.outages import Outages

_PART: Final = "#"
_EVENT_ID: Final = re.compile("[0-7][0-9a-f]{15}")


class StoreEntry(Struct, frozen=True):
    """A record as it was read.

    Args:
        value: the stored bytes.
        version: incremented by each `Put`. If a key is written again after it was deleted or has
            expired, it never gets a version that it had before. A process that still has the old
            record (because its lease has expired, for example) cannot overwrite the new one.
    """

    value: bytes
    version: int


class FoundEntry(Struct, frozen=True):
    """A record that `Store.find` has found.

    Args:
        key: the name of the record.
        value: the stored bytes.
        version: as in `StoreEntry`.
    """

    key: str
    value: bytes
    version: int


class LogEvent(Struct, frozen=True):
    """One event of a log.

    Args:
        id: an opaque position: letters, digits, "-" and "_", fit for the header `Last-Event-ID`.
            Only the store can compare two of them. A log that has expired and is written again
            never gets an id that it had before.
        data: the bytes that were appended.
    """

    id: str
    data: bytes


class Put(Struct, frozen=True):
    """Write a record under *key*, and replace an existing one.

    Args:
        key: the name of the record.
        value: its bytes.
        ttl: seconds until it expires. None (the default): it is retained until it is deleted.
        expect: the version that the write replaces, checked before the write. 0: the record must
            not exist. None (the default): any version. Use None only for keys with a single writer.
        client: the client that the record counts towards: "principal" and its name, or "address"
            and its peer address, with a space between the two. "" (the default): that of the record
            that it replaces, whose limits are not checked.
        new: whether the write starts new work, as opposed to an update of accepted work. New work
            is rejected once only the reserve of the store, or of its client's share, is left.
            Default False.
        labels: the labels under which `Store.find` finds the record. They replace those of the
            record that it replaces. Default: none.
        optional: whether the caller can do without the record. It is rejected once half of the
            store, or of its client's share, is used. Default False.
    """

    key: str
    value: bytes
    ttl: float | None = None
    expect: int | None = None
    client: str = ""
    new: bool = False
    labels: Sequence[str] = ()
    optional: bool = False


class Append(Struct, frozen=True):
    """Append an event to *log*, and create the log if needed.

    If there is no room for it, it takes the room of the oldest events of its log. Other logs are
    never dropped. With *keep* = 1, in one write with a `Put` that replaces a record, it counts
    towards no limit of entries: an update of accepted work has room for its latest event.

    Args:
        log: the name of the log.
        data: the bytes of the event.
        ttl: seconds after its last event when the whole log expires.
        keep: the maximum number of events, at least 1; beyond it the oldest are dropped. Default
            1000.
        client: the client that the log counts towards. The first one that is named applies until
            the log is empty.
        new: as in `Put`.
        keep_bytes: the maximum number of bytes of data; beyond it the oldest events are dropped,
            but never the newest one. None (the default): unlimited.
        optional: whether the caller can do without the event. It is rejected once half of the
            store, or of its client's share, is used. Default False.
    """

    log: str
    data: bytes
    ttl: float
    keep: int = 1000
    client: str = ""
    new: bool = False
    keep_bytes: int | None = None
    optional: bool = False


class Delete(Struct, frozen=True):
    """Remove the record under *key*, if there is one.

    Args:
        key: the name of the record.
        expect: the version to remove. If several callers expect the same version, only one of them
            succeeds. 0: remove nothing, and fail if there is a record. None (the default): remove
            any version, even if another process has just written it.
    """

    key: str
    expect: int | None = None


Op: TypeAlias = Put | Append | Delete


def subject_of(name: str) -> str:
    """Return the subject that a key or log belongs to: its name up to the first "#".

    `task:7` and `task:7#call` belong to the subject `task:7`. Data that changes together has one
    subject. A store that is distributed over machines keeps each subject in one place: in a Redis
    Cluster it is the hash tag.
    """
    return name.partition(_PART)[0]


def check_one_subject(ops: Sequence[Op]) -> None:
    """Check that *ops* concern one subject. Every `Store.apply` calls this first.

    Raises:
        ContractError: they concern several.
    """
    subject: str | None = None
    for op in ops if len(ops) > 1 else ():
        other = (op.log if isinstance(op, Append) else op.key).partition(_PART)[0]
        if subject is None:
            subject = other
        elif other != subject:
            raise ContractError(
                f"one apply concerns one subject, not {subject!r} and {other!r}: write "
                f"them separately, or name the parts of a subject 'subject{_PART}part'"
            )


event_id: Final[Callable[[int], str]] = "{:016x}".format
"""Return the public id of an event: of fixed width, so that ids sort like their numbers."""


def event_number(log: str, id: str) -> int:
    """Return the number of the event *id* of *log*.

    Raises:
        LogTruncated: *id* is not an id, but another text of a client.
    """
    if not _EVENT_ID.fullmatch(id):
        raise LogTruncated(log, id)
    return int(id, 16)


def room_of(capacity: Capacity, ops: Sequence[Op]) -> Room:
    """Return the limits of the write *ops* in a store of *capacity*."""
    new = optional = replaces = grows = False
    accounts: tuple[str, ...] = accounts_of("")
    for op in ops:
        if isinstance(op, Delete):
            continue
        new = new or op.new
        optional = optional or op.optional
        if isinstance(op, Put):
            replaces, grows = True, grows or not op.expect
        else:
            grows = grows or op.keep > 1
        if op.client and op.client not in accounts:
            accounts = (*accounts_of(op.client)[:-1], *accounts)
    in_place = replaces and not (new or optional or grows)
    return room_for(capacity, accounts, new=new, optional=optional, in_place=in_place)


class StoreTotals(NamedTuple):
    """How full a store is.

    Attributes:
        used: the records and events in it, and their bytes.
        capacity: its capacity.
    """

    used: Usage
    capacity: Capacity


class Store(ABC):
    """Stores records and logs. Safe for any number of event loops and threads at the same time.

    To add a store, implement this class and run the contract tests on it:
    docs/how-to/add-a-store.md. Every method except `now` and `aclose` raises StoreUnavailable if
    the store cannot be reached or was closed.

    A store has a capacity, of which each client has a share, and which new work cannot use up. It
    counts the usage of each account (`accounts_of`). `room_of` returns the limits of a write; how a
    store compares with them is in `genmcp/stores/sqlite/tables.py`.
    """

    shared: bool
    """Whether other processes see the data. Constant for each instance. It has no default."""

    durable: bool
    """Whether the data outlives this process. Constant for each instance. It has no default."""

    lag: float = 0.0
    """Seconds by which another process may see a change later than this one does. 0 (the default):
    about the time of a message of the server of the store."""

    capacity: Capacity | None = None
    """The capacity of the store. None (the default): unknown."""

    @cached_property
    def outages(self) -> Outages:
        """Knows whether this store fails. The store records the outcome of its operations there."""
        return Outages(self)

    @property
    def deliveries(self) -> Deliveries | None:
        """The job queue that belongs to this store, or None. The worker claims from it."""
        return None

    @abstractmethod
    def now(self) -> float:
        """Return the time of the store's clock, in seconds since 1970.

        Every ttl, delay and lease is measured by this clock. It is used for each time that is
        written to the store, and for each comparison with such a time, because the processes that
        share a store may be on machines whose clocks differ. Setting the system time has no effect
        on it where the platform has such a clock.

        It does not block, makes no round trip, and works after `aclose`. A store with a server
        returns an estimate: it measures the offset of the server's clock when it connects, and
        again at least once a minute. Two processes that call this at the same moment get values
        that differ by at most one second, so the clock may step back by up to one second. Until an
        operation of the store has been awaited, the estimate may be this process's own time.
        """

    @abstractmethod
    async def get(self, key: str) -> StoreEntry | None:
        """Return the record under *key*, None if it does not exist or has expired.

        The record reflects every `apply` that has returned before, in any process: reads and writes
        of a single key are linearizable.
        """

    @abstractmethod
    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        """Return at most *limit* records that were put with *label*, in the order of their keys.

        Keys are ordered by code point. Expired records are never returned. Each page reflects every
        `apply` that has returned before, but several pages are not one state: a record that is
        written meanwhile may be missing from all of them, or may have lost the label since.

        Args:
            label: one of `Put.labels`, in full. An unknown label has no records.
            after: the key before the first one to return, which need not exist. None (the default):
                start at the first key.
            limit: the maximum number of records. Default 100.
        """

    @abstractmethod
    async def count(self, label: str) -> int:
        """Return the number of records that were put with *label*.

        Expired records may be included until they are removed, which happens soon.
        """

    @abstractmethod
    async def apply(self, *ops: Op) -> None:
        """Perform all of *ops* in order, or none of them; no reader sees a part of them.

        Each `expect` is compared with the state that the operations before it leave. If several
        callers expect the same version of a record, exactly one succeeds. When this returns, the
        data is acknowledged: every later read sees it, and a durable store retains it after a crash
        of the process. The followers of the logs are notified, but may not have been resumed yet.

        Args:
            *ops: operations on one subject (see `subject_of`).

        Raises:
            ContractError: they concern several subjects. Nothing was written.
            Conflict: an `expect` did not hold. Nothing was written.
            OverShare: the client's share has no room. Nothing was written.
            StoreFull: the store has no room. Nothing was written.
            StoreUnavailable: it is unknown whether anything was written. The write may even take
                effect after this was raised, but never after a later write to the same subject.
        """

    @abstractmethod
    async def usage(self, account: str) -> Usage:
        """Return the entries and bytes of *account*: one of `accounts_of` a client.

        Entries are records and events; bytes are those of keys, values and data. Expired data may
        be included until it is removed, which happens soon.
        """

    async def totals(self) -> StoreTotals | None:
        """Return how full the store is, for `genmcp store stats`. None: `capacity` is unknown."""
        if self.capacity is None:
            return None
        return StoreTotals(await self.usage(EVERYTHING), self.capacity)

    async def problems(self) -> Sequence[str]:
        """Return what an operator should change, for `genmcp store check`. Default: nothing.

        Each problem is a sentence that names the setting, its present value, and the remedy: a
        server that loses acknowledged writes at a restart, or evicts keys, or accepts no writes.
        """
        return ()

    async def migrate(self, *, dry_run: bool = False) -> str:
        """Create or update what the store needs, for `genmcp store migrate`. Default: nothing.

        Args:
            dry_run: whether to return the statements without executing them. Default False.

        Returns:
            The statements, "" if nothing is to be done.

        Raises:
            ConfigurationError: the data was written by a newer release, or cannot be updated.
        """
        return ""

    @abstractmethod
    async def touch(self, key: str, ttl: float) -> bool:
        """Make the record under *key* expire *ttl* seconds from now; its version stays.

        Returns:
            Whether the record exists. If not, nothing was changed.
        """

    @abstractmethod
    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        """Return at most *limit* events of *log*, in order.

        Args:
            log: the name of the log. A log that does not exist is empty.
            after: the id of the event before the first one to return; any text may be passed. None
                (the default): start at the oldest retained event.
            limit: the maximum number of events. Default 100.

        Raises:
            LogTruncated: events after *after* may have been dropped or have expired, or *after* is
                not an id of this log.
        """

    @abstractmethod
    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        """Yield the events of *log* that follow *after*, then each new one as it is appended.

        Events are in order, without duplicates, and without a gap between the stored and the new
        events. The generator does not end by itself, and the log need not exist yet. The store
        keeps only the position of a follower, so that a slow follower costs no memory and delays no
        other. The generator starts at the first `anext`. To end it, close it with
        `contextlib.aclosing`, or cancel the asyncio.Task that waits in it. Both take effect at
        once.

        Raises:
            LogTruncated: at the first `anext`, as for `read`. Or later, if the follower was so slow
                that an event was dropped before it was yielded. There was no gap before the last
                event that was yielded. The caller has to read the current state again, and may then
                follow the log anew.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Release all resources. A second call does nothing.

        Later calls of other methods raise StoreUnavailable, and so does each follower, at once. The
        data of a durable store is retained.
        """
