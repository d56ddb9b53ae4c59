"""Accounts: how much of a store each client uses, and how much it may use.

A store counts the entries and bytes of each client, of all anonymous clients together, and of
everything. A write after which one of these would exceed its limit is rejected, so that one client,
or the crowd of anonymous ones, cannot fill the store for all others.
"""

from functools import lru_cache
from math import inf
from typing import Final, NamedTuple

from msgspec import Struct

from genmcp.core.client_key import ADDRESS
from genmcp.errors import ConfigurationError, OverShare, StoreFull, StoreUnavailable

# The limits, as fractions of a store's capacity in entries and in bytes.
CLIENT_SHARE: Final = 0.25
"""The part of a store that one client may use: a principal, or a peer address without one."""

ANONYMOUS_SHARE: Final = 0.8
"""The part that all clients without a principal may use together."""

RESERVE: Final = 0.1
"""The part of the store, and of each share, that new work may not use.

It stays free for updates of accepted work, which could otherwise never end.
"""

OPTIONAL_SHARE: Final = 0.5
"""The part of the store, and of each share, that optional writes may use."""

# An update of a stored task changes a few bytes of its record, such as a counter. A write that adds
# at most this number of bytes, and is not new work, is never rejected because of its bytes:
# otherwise the tasks of a client that has used up its share could not be ended.
SMALL_UPDATE: Final = 512

EVERYTHING: Final = ""
"""The account that counts the whole store."""

ANONYMOUS: Final = "anonymous"
"""The account that counts all clients without a principal."""

_ENTRY_BYTES: Final = 256  # estimated overhead of an entry, to limit the number of entries
_CACHED_CLIENTS: Final = 1024


@lru_cache(_CACHED_CLIENTS)
def accounts_of(client: str) -> tuple[str, ...]:
    """Return the accounts that count an entry of *client* (`Put.client`)."""
    if not client:
        return (EVERYTHING,)
    if client.startswith(ADDRESS):
        return (client, ANONYMOUS, EVERYTHING)
    return (client, EVERYTHING)


class Usage(NamedTuple):
    """The entries (records and events) and bytes that an account uses."""

    entries: int = 0
    size: int = 0


class Limit(NamedTuple):
    """The entries and bytes that *account* may use after a write. `inf`: any number of entries."""

    account: str
    entries: float
    size: float


class Room(NamedTuple):
    """The limits of one write.

    Attributes:
        limits: those of the accounts that it names, and of the store. The store's is the last one.
        slack: the bytes by which an account may grow although it exceeds its limit.
    """

    limits: tuple[Limit, ...]
    slack: int


class Capacity(Struct, frozen=True):
    """The capacity of a store.

    Args:
        size: the capacity in bytes.
        entries: the capacity in records and events. 0 (the default): as many as have room if each
            needs 256 bytes.

    Raises:
        ConfigurationError: one of them is out of range.
    """

    size: int
    entries: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigurationError(f"max_bytes must be at least 1, not {self.size}")
        if self.entries < 0:
            raise ConfigurationError(f"max_entries must be at least 1, not {self.entries}")

    @property
    def most_entries(self) -> int:
        """The capacity in records and events."""
        return self.entries or max(1, self.size // _ENTRY_BYTES)

    def refusal(self, account: str, used: Usage) -> StoreUnavailable:
        """Return the error of a write for which *account*, which uses *used*, has no room."""
        use = f"{used.entries} entries and {used.size} bytes"
        if account == EVERYTHING:
            most = f", max_entries={self.entries}" if self.entries else ""
            return StoreFull(
                f"the store is full: max_bytes={self.size}{most}, of which {RESERVE} is reserved "
                f"for updates of accepted work; in use are {use}"
            )
        owner = "All anonymous clients have" if account == ANONYMOUS else "This client has"
        return OverShare(f"{owner} used the share of the store, {_share_of(account)} of it: {use}")


def _share_of(account: str) -> float:
    if account == EVERYTHING:
        return 1
    return ANONYMOUS_SHARE if account == ANONYMOUS else CLIENT_SHARE


@lru_cache(_CACHED_CLIENTS)
def room_for(
    capacity: Capacity,
    accounts: tuple[str, ...],
    *,
    new: bool = False,
    optional: bool = False,
    in_place: bool = False,
) -> Room:
    """Return the limits of a write to *accounts* in a store of *capacity*.

    *new* and *optional* are as for `Put`. *in_place*: it is an update that replaces records, and
    leaves no other event in the logs that it appends to. Cached, since most writes are of a recent
    client.
    """
    part = OPTIONAL_SHARE if optional else 1 - RESERVE if new else 1
    limits = []
    for name in accounts:
        most = part * _share_of(name)
        # An update in place is never rejected because of its entries: otherwise a client at its
        # share could not end the tasks that have no event yet. It adds at most the only event of
        # the log of a stored task, and no task can be created then: a client exceeds its share by
        # at most one event for each of its tasks.
        entries = inf if in_place else most * capacity.most_entries
        limits.append(Limit(name, entries, most * capacity.size))
    return Room(tuple(limits), 0 if new or optional else SMALL_UPDATE)
