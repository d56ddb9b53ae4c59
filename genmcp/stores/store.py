"""What a store is: the one interface, and the values that go in and out.

A store keeps two things, each until its time runs out: small **records** under a key, changed by
compare-and-set, and ordered **logs** of events, which are replayed and then followed live.
Sessions, tasks, leases and replay logs are made of nothing else, and all are written by `apply`.

Each engine passes tests/stores/test_store_contract.py, which says the same as the docstrings here.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from genmcp.errors import ContractError
from genmcp.stores.accounts import Owner, Usage
from genmcp.stores.deliveries import Deliveries

__all__ = [
    "Append",
    "Delete",
    "Entry",
    "Event",
    "Op",
    "Put",
    "Store",
    "check_one_subject",
    "subject_of",
]

_PART: Final = "#"


class Entry(Struct, frozen=True):
    """A record as it was read.

    Each Put makes *version* one larger. A key that was gone and comes back never has a version it
    had before, so that whoever held the old record (a lease that lapsed) cannot change the new one.
    """

    value: bytes
    version: int


class Event(Struct, frozen=True):
    """One event of a log.

    *id* is opaque: letters, digits, "-" and "_". Only the store can say which of two is the later;
    a log that was gone and comes back never has an id it had before. It is fit for Last-Event-ID.
    """

    id: str
    data: bytes


class Put(Struct, frozen=True):
    """Writes a record, replacing the one under *key* if it exists.

    The record expires after *ttl* seconds; with None (the default) it is retained until it is
    deleted. *expect* is the version to replace, 0 if the record must not exist, None (the default)
    for any.

    *owner* names the accounts that the record counts towards. Without one it counts towards those
    of the record it replaces, and their bounds are not checked. *new* marks work that the store has
    not accepted yet: it is rejected if only the store's reserve is left.
    """

    key: str
    value: bytes
    ttl: float | None = None
    expect: int | None = None
    owner: Owner = ()
    new: bool = False


class Append(Struct, frozen=True):
    """Appends an event to *log*, creating the log if needed.

    The whole log expires *ttl* seconds after its last event. Of more than *keep* events (default
    1000), or more than *keep_bytes* of data (default None: unbounded), the oldest are dropped; the
    newest is retained in any case.

    *owner* names the accounts that the log counts towards; the owner of the first event that has
    one applies until the log is empty. If an account has no room, its other logs are dropped, the
    one without an append for longest first. *new* is as for Put.
    """

    log: str
    data: bytes
    ttl: float
    keep: int = 1000
    owner: Owner = ()
    new: bool = False
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ContractError(f"keep is {self.keep}; a log keeps at least the event added last")


class Delete(Struct, frozen=True):
    """Removes the record under *key*, if there is one.

    *expect* is as for Put: with a version this takes the record, and only one taker succeeds. With
    0 it removes nothing, and fails if there is a record: None removes whatever is there, also the
    record of another writer.
    """

    key: str
    expect: int | None = None


Op: TypeAlias = Put | Append | Delete


def subject_of(name: str) -> str:
    """Return the subject that a key or log belongs to: its name up to the first "#".

    `task:7` and `task:7#call` belong to the subject `task:7`. Whatever changes together has one
    subject, and an engine that distributes its data keeps each subject in one place: in a Redis
    Cluster, for example, it is the hash tag.
    """
    return name.partition(_PART)[0]


def check_one_subject(ops: Sequence[Op]) -> None:
    """Check that *ops* concern one subject; each `Store.apply` calls this first.

    Raises:
        ContractError: they concern several.
    """
    subject: str | None = None
    for op in ops if len(ops) > 1 else ():
        found = (op.log if isinstance(op, Append) else op.key).partition(_PART)[0]
        if subject is None:
            subject = found
        elif found != subject:
            raise ContractError(
                f"one apply concerns one subject, not {subject!r} and {found!r}: write "
                f"them separately, or name the parts of a subject 'subject{_PART}part'"
            )


class Store(ABC):
    """Keeps records and logs, for any number of event loops and threads at the same time."""

    shared: bool
    """Whether other processes see what is kept. Constant, and known once the store is made."""

    durable: bool
    """Whether what is kept outlives this process. Constant, and known once the store is made."""

    @property
    def deliveries(self) -> Deliveries | None:
        """What carries jobs beside this store, if it has that: `LocalEngine` stands on it."""
        return None

    @abstractmethod
    def now(self) -> float:
        """Return the time of the store's clock, in seconds since 1970.

        Every ttl, delay and lease is measured by this clock. It is used for each time that is
        written to the store, and for each comparison with such a time: the processes that share a
        store may be on machines whose clocks differ. It is not affected by setting the system time,
        where the platform has such a clock.

        It does not block, makes no round trip, and works after `aclose`. An engine with a server
        returns an estimate: it measures the offset of the server's clock when it connects and
        renews it at least once a minute. Two processes that call this at one moment get values
        that differ by one second at most, so it may step back by up to one second. Until an
        operation of the store has been awaited, the estimate may be the time of this process.
        """

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the record under *key*, or None if there is none or its time has run out.

        Every `apply` that was awaited before is seen, whichever process awaited it.

        Raises:
            StoreUnavailable: the engine could not be reached, or the store is closed.
        """

    @abstractmethod
    async def apply(self, *ops: Op) -> None:
        """Perform all of *ops*, in order, or none of them; no reader sees a part.

        Each `expect` is compared with the state left by the ops before it. If several callers
        expect the same version of a record, exactly one succeeds. When this returns, followers of
        the logs are being woken. The ops of one call concern one subject (see `subject_of`), so
        that an engine may store subjects separately.

        Raises:
            ContractError: *ops* concern several subjects; nothing was written.
            Conflict: an `expect` did not hold; nothing was written.
            OverShare: an account of the owner has no room, and nothing was written.
            StoreFull: the store has no room, and nothing was written.
            StoreUnavailable: the store is closed, or the engine could not be reached, and it is not
                known whether it was written.
        """

    @abstractmethod
    async def usage(self, account: str) -> Usage:
        """Return the entries and bytes that count towards *account*, by its name.

        Entries are records and events; bytes are those of keys, values and data. Expired entries
        may count until they are removed, which is soon.

        Raises:
            StoreUnavailable: the engine could not be reached, or the store is closed.
        """

    @abstractmethod
    async def touch(self, key: str, ttl: float) -> bool:
        """Let the record under *key* live for *ttl* seconds from now; its version stays.

        Return False, and do nothing, if there is none.

        Raises:
            StoreUnavailable: the engine could not be reached, or the store is closed.
        """

    @abstractmethod
    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Sequence[Event]:
        """Return at most *limit* events of *log*, in order, from the one that follows *after*.

        With None, from the oldest there is. A log that does not exist has no events.

        Raises:
            LogTruncated: events after *after* may have been dropped or have run out, or *after* is
                not an id of this log. Any text may be given.
            StoreUnavailable: the engine could not be reached, or the store is closed.
        """

    @abstractmethod
    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of *log* from the one that follows *after*, then each new one.

        In order, each once, with no gap between what was there and what comes. It never ends of
        itself, and the log need not exist. Nothing is kept for a follower but its place, so a slow
        one holds nobody up and costs no memory. It begins at the first `anext`. Close it with
        `contextlib.aclosing`, or cancel the asyncio.Task that waits in it; either takes effect at
        once and leaves nothing behind.

        Raises:
            LogTruncated: as for `read`, at the first `anext` or when the follower fell so far
                behind that an event was dropped before its turn. What it yielded until then was
                complete.
            StoreUnavailable: the engine could not be reached, or the store is or was closed.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what the engine holds; a second time does nothing.

        Whatever is asked afterwards raises StoreUnavailable, and so does every follower, at once.
        What a durable store keeps stays kept.
        """
