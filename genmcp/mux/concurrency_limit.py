"""Bounds on what is open at once, in total and per client and tool."""

from collections.abc import Sequence
from threading import Lock
from typing import Final, TypeAlias

from genmcp.core.client_key import ClientKey, Share
from genmcp.errors import Overloaded
from genmcp.mux.limits import Limits

__all__ = ["ConcurrencyLimit", "Slots"]

_KINDS: Final = ("principal", "session", "address", "tool")


class _Counter:
    """The number of open units of *share*, and their maximum. Exists while at least one is open."""

    __slots__ = ("count", "most", "share")

    def __init__(self, share: Share, most: int) -> None:
        self.share = share
        self.most = most
        self.count = 0


Slots: TypeAlias = Sequence[_Counter]
"""The shares that something open counts towards."""


class ConcurrencyLimit:
    """Limits what is open at once, in total and per client and tool. Owned by the mux. Thread-safe.

    *what* is the setting of *limits* that bounds the total; the settings `<what>_of_<kind>` bound
    the shares of one principal, session, address or tool. All anonymous clients together have
    `limits.anonymous` of the total.

    full: whether a client may find no room. noun: what is counted, for error messages. retry_after:
    seconds, for error responses.
    """

    def __init__(
        self, what: str, limits: Limits, *, noun: str | None = None, retry_after: int = 1
    ) -> None:
        self.full = False
        self._what = what
        self._noun = noun or f"open {what}"
        self._retry_after = retry_after
        self._most: int = getattr(limits, what)
        bounds = {kind: getattr(limits, f"{what}_of_{kind}", None) for kind in _KINDS}
        if limits.anonymous < 1:
            bounds["anonymous"] = max(1, int(self._most * limits.anonymous))
        # A share as large as the total needs no counting.
        self._most_of: dict[str, int] = {
            kind: most for kind, most in bounds.items() if most is not None and most < self._most
        }
        self._lock = Lock()
        self._total = 0
        self._counters: dict[Share, _Counter] = {}
        self._full_ones = 0

    def __len__(self) -> int:
        return self._total

    def check(self, client: ClientKey, tool: str | None = None, *, size: int = 1) -> None:
        """Check that *client* may open *size* more.

        Raises:
            Overloaded: 429, the client or the tool has used up its own share; 503, the total, or
                the part of it for anonymous clients, is used up.
        """
        what, noun = self._what, self._noun
        for share in _shares(client, tool):
            kind, most = share[0], self._most_of.get(share[0])
            counter = self._counters.get(share)
            if most is not None and (counter.count if counter else 0) + size > most:
                if kind == "anonymous":
                    raise Overloaded(
                        f"Too many {noun} of clients without authentication: {most} "
                        f"(limit: anonymous, of {what})",
                        retry_after=self._retry_after,
                    )
                raise Overloaded(
                    f"Too many {noun} of one {kind}: {most} (limit: {what}_of_{kind})",
                    status=429,
                    retry_after=self._retry_after,
                )
        if self._total + size > self._most:
            raise Overloaded(
                f"Too many {noun}: {self._most} (limit: {what})", retry_after=self._retry_after
            )

    def acquire(self, client: ClientKey, tool: str | None = None, *, size: int = 1) -> Slots:
        """Count *size* more without a check, and return what `release` needs; call `check` first.

        Each share is looked up here only: every call that waits acquires and releases.
        """
        slots: list[_Counter] = []
        with self._lock:
            self._total += size
            for share in _shares(client, tool):
                counter = self._counters.get(share)
                if counter is None:
                    most = self._most_of.get(share[0])
                    if most is None:
                        continue
                    counter = self._counters[share] = _Counter(share, most)
                before = counter.count
                counter.count = before + size
                if before < counter.most <= counter.count:
                    self._full_ones += 1
                slots.append(counter)
            self.full = self._total >= self._most or self._full_ones > 0
        return slots

    def release(self, slots: Slots, *, size: int = 1) -> None:
        """Count *size* less; *slots* are those of an `acquire` of the same client and tool."""
        with self._lock:
            self._total -= size
            for counter in slots:
                before = counter.count
                counter.count = before - size
                if counter.count < counter.most <= before:
                    self._full_ones -= 1
                if not counter.count:
                    del self._counters[counter.share]
            self.full = self._total >= self._most or self._full_ones > 0


def _shares(client: ClientKey, tool: str | None) -> Sequence[Share]:
    return client.shares if tool is None else (*client.shares, ("tool", tool))
