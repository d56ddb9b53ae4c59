"""Accounts: how much of a store each client uses, and how much it may use.

A record or log of a client counts towards one or more accounts, such as the client's own account
and the account that all anonymous clients share. A write after which an account would exceed one of
its limits is rejected, so that one client cannot fill the store for all others.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from genmcp.errors import ConfigurationError, OverShare

# An update of a stored task changes a few bytes of its record, such as a counter. A write that adds
# at most this number of bytes to an account, and is not new work, is never rejected because of the
# client's share: otherwise the tasks of a client that has used up its share could not be ended.
_SMALL_UPDATE: Final = 512
_name = attrgetter("name")


class Account(Struct, frozen=True):
    """An account that a write counts towards, and its limits.

    Args:
        name: identifies the account in its store.
        share: the fraction of the store, in entries and in bytes, that the account may use. Default
            1.0.
        most: the maximum number of entries. None (the default): only *share* limits them.
        setting: the name of the setting that the limit comes from, for the error message.
    """

    name: str
    share: float = 1.0
    most: int | None = None
    setting: str = "share"


Owner: TypeAlias = Sequence[Account]
"""All accounts that one write counts towards. Empty: it belongs to no client."""


class Usage(NamedTuple):
    """The entries (records and events) and bytes that an account uses."""

    entries: int = 0
    size: int = 0

    def minus(self, other: "Usage") -> "Usage":
        """Return this usage without *other*."""
        return Usage(self.entries - other.entries, self.size - other.size)


class Capacity(Struct, frozen=True):
    """The capacity of a store, and the part of it that is reserved.

    Args:
        size: the capacity in bytes.
        entries: the capacity in records and events. None: unlimited.
        reserve: the fraction that new work may not use. It stays free for updates of work that the
            store has accepted before. Default 0.1.

    Raises:
        ConfigurationError: one of them is out of range.
    """

    size: int
    entries: int | None = None
    reserve: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("max_bytes", self.size), ("max_entries", self.entries)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.reserve < 1:
            raise ConfigurationError(
                f"reserve must be at least 0 and less than 1, not {self.reserve}"
            )

    def size_for(self, *, new: bool) -> float:
        """Return how many bytes of the store a write may fill."""
        return self.size * (1 - self.reserve) if new else self.size

    def entries_for(self, *, new: bool) -> float | None:
        """Return how many entries of the store a write may fill, None if unlimited."""
        if self.entries is None or not new:
            return self.entries
        return self.entries * (1 - self.reserve)

    def check(self, account: Account, used: Usage, growth: Usage, *, new: bool) -> None:
        """Check that *account* may grow by *growth*.

        Args:
            account: the account, with its limits.
            used: the present usage of the account.
            growth: the entries and bytes that the write adds; negative if it removes more.
            new: whether the write starts new work, as in `Put`.

        Raises:
            OverShare: the account would exceed one of its limits.
        """
        entries, size = used.entries + growth.entries, used.size + growth.size
        if growth.entries > 0 and account.most is not None and entries > account.most:
            raise OverShare(
                f"This client already has {account.most} entries, which is the maximum "
                f"(limit: {account.setting})"
            )
        most = self.entries_for(new=new)
        over = growth.entries > 0 and most is not None and entries > account.share * most
        if growth.size > (0 if new else _SMALL_UPDATE):
            over |= size > account.share * self.size_for(new=new)
        if over:
            raise OverShare(
                f"This client has used its share of the store, {account.share:.3g} of it: "
                f"{used.entries} entries and {used.size} bytes (limit: {account.setting})"
            )


def names_of(owner: Owner) -> tuple[str, ...]:
    """Return the names of the accounts of *owner*."""
    return tuple(map(_name, owner))


class AccountUsage:
    """The usage of each account. Owned by the records or the logs of a store in memory."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        # Entries and bytes; an account without entries is removed, so that memory stays bounded.
        self.of: dict[str, tuple[int, int]] = {}

    def used(self, name: str) -> Usage:
        """Return the usage of the account *name*."""
        return Usage(*self.of.get(name, (0, 0)))

    def add(self, names: Sequence[str], entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to each account in *names*."""
        used = self.of
        for name in names:
            had = used.get(name)
            if had is None:
                used[name] = (entries, size)
                continue
            now = (had[0] + entries, had[1] + size)
            if now[0]:
                used[name] = now
            else:
                del used[name]
