"""The account of bytes that wait to be sent, because their clients do not read.

It is one for all HTTP responses of a mux, of each kind: JSON bodies, batches, event streams. A
client whose share is used up may make no further calls until it has read, or closed, what it asked
for. All clients together cannot be refused for that, since most of them read: above their bound,
the connection is closed that has been unread for longest.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Final, Protocol

import msgspec

from genmcp.core.client_key import ClientKey, Share
from genmcp.errors import Overloaded

TOTAL: Final = 40 * 1024 * 1024
"""Bytes that may wait for all clients together."""

SHARE: Final = 16 * 1024 * 1024
"""Bytes that may wait for one principal, one legacy session, or one peer address without a
principal, before its calls are refused."""

_ALL: Final[Share] = ("all", "")


class Unread(Protocol):
    """A response that waits for its client to read."""

    @property
    def client_key(self) -> ClientKey:
        """The client that it counts towards."""

    def close(self) -> None:
        """Close its connection, and drop its bytes. May be called from any thread."""


class _UnreadOfShare(msgspec.Struct, eq=False):
    """The bytes that wait for one share, and their responses: the longest unread one first."""

    size: int = 0
    responses: dict[Unread, int] = {}


class UnsentBytes:
    """The accounts of all clients. Owned by the mux. Thread-safe.

    full: whether some client has used up its share.
    """

    def __init__(self, anonymous_share: float) -> None:
        self.full = False
        self._bounds = {"all": TOTAL, "anonymous": int(TOTAL * anonymous_share)}
        self._lock = Lock()
        self._accounts: dict[Share, _UnreadOfShare] = {}
        self._full_ones: set[Share] = set()

    def __len__(self) -> int:
        account = self._accounts.get(_ALL)
        return 0 if account is None else account.size

    def check(self, client: ClientKey) -> None:
        """Check that the share of *client* is not used up.

        Raises:
            Overloaded: it is; status 429.
        """
        for share in client.shares:
            if share in self._full_ones:
                raise Overloaded(
                    f"Responses of {SHARE} bytes wait to be read by this {share[0]}: read them, or "
                    f"close their connections",
                    status=429,
                    retry_after=1,
                )

    def count(self, response: Unread, size: int, *, was_read: bool = False) -> None:
        """Set the bytes of *response* that wait to *size*; 0 removes it.

        Other responses are closed where an account exceeds its bound. *was_read*: the client has
        just read a part of it, so that it is the last one to be closed.
        """
        with self._lock:
            for share in (*response.client_key.shares, _ALL):
                self._set(share, response, size, was_read)
            closing = self._above_bounds(response) if size else ()
        for each in closing:
            each.close()

    def _set(self, share: Share, response: Unread, size: int, was_read: bool) -> None:
        account = self._accounts.setdefault(share, _UnreadOfShare())
        responses = account.responses
        account.size += size - responses.get(response, 0)
        if was_read or not size:
            responses.pop(response, None)
        if size:
            responses[response] = size
        if not responses:
            del self._accounts[share]
        if share[0] not in self._bounds:
            (self._full_ones.add if account.size >= SHARE else self._full_ones.discard)(share)
            self.full = bool(self._full_ones)

    def _above_bounds(self, newest: Unread) -> Sequence[Unread]:
        """Remove the responses above a bound of *newest*, longest unread first; return them."""
        removed: list[Unread] = []
        for share in (*newest.client_key.shares, _ALL):
            account, bound = self._accounts[share], self._bounds.get(share[0], SHARE)
            # The newest one is sent in any case: a response may be larger than a share.
            while account.size > bound and len(account.responses) > 1:
                others = (each for each in account.responses if each is not newest)
                oldest = next(others)
                removed.append(oldest)
                for each in (*oldest.client_key.shares, _ALL):
                    self._set(each, oldest, 0, False)
        return removed
