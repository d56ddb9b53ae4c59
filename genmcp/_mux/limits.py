"""Limits: the settings, and the counters of open things."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from threading import Lock
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from genmcp._options import Count, Part, Seconds, check_bounds
from genmcp.core.client_key import ClientKey, Share
from genmcp.errors import Overloaded, ToolError
from genmcp.stores.store import Append

MAX_CONTAINERS: Final = 100_000
"""The maximum number of objects and arrays in a body."""

MAX_REPLAY_BYTES: Final = 32 * 1024 * 1024
"""The total size of the retained events of a stream; the newest event is retained in any case."""

MAX_SUBSCRIBED_BYTES: Final = 64 * 1024 * 1024
"""The total size of what all open streams of `subscriptions/listen` are subscribed to."""

CLIENT_THREADS: Final = 0.75
"""The part of the threads that one client may use. It is larger than `Limits.client_share`, since
many servers have one client, and free threads are assigned to clients in rotation."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on requests, responses and stored data of a mux. Sizes in bytes, times in seconds.

    A client that exceeds a limit gets an error that names the setting. A client is a principal, or
    a peer address without one. It may use `client_share` of each total, and all clients without a
    principal together `anonymous_share` of it.

    Args:
        max_body_bytes: the maximum size of a request body.
        max_depth: the maximum nesting depth of JSON.
        body_timeout: the maximum time until a body has arrived.
        max_total_body_bytes: a total: the size of all bodies of more than 16 KiB that belong to
            requests without a response.
        max_result_bytes: the maximum size of a result, as JSON; for a batch, of all responses
            together.
        max_threads: the number of `def` hooks that run at once. One client may use three quarters
            of them.
        max_thread_queue: a total: the number of `def` hooks that wait for a thread. Threads are
            assigned to the waiting clients in rotation.
        max_waiting_calls: a total: the number of calls that wait for something at once. A call with
            an idempotency key counts twice while its hook runs: for the request that waits, and for
            the hook, which runs on without it.
        max_streams: a total: the number of open streams of sessions and subscriptions.
        max_subscriptions: the maximum number of resources that one stream, or one session, is
            subscribed to.
        client_share: the fraction of each total, from 0 to 1, that one client may use.
        anonymous_share: the fraction of each total, from 0 to 1, that all clients without a
            principal may use together.
        progress_per_second: the maximum number of progress notifications that a response sends per
            second. Of further notifications, only the newest is sent.
        logs_per_second: the number of log messages that a response sends per second; a hook that
            logs more waits.
        write_buffer_bytes: the size of the part of a response that may wait for a client that reads
            slowly. If more waits, newer progress replaces older progress, and a hook that sends
            another message waits.
        write_timeout: the time after which the connection of a client that reads nothing is closed.
        input_timeout: the time that a client has to answer a question.
        session_ttl: the lifetime of a legacy session.
        replay_ttl: the time for which events are retained for a client that resumes, and changes
            for a process that is slow to read them.
        max_replay_events: the number of retained events of a stream.

    Raises:
        ConfigurationError: one of them is out of range.
    """

    max_body_bytes: Count = 4 * 1024 * 1024
    # A body that nests as deep as allowed has as many objects and arrays.
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTAINERS)] = 64
    body_timeout: Seconds = 30.0
    max_total_body_bytes: Count = 24 * 1024 * 1024
    max_result_bytes: Count = 16 * 1024 * 1024
    max_threads: Count = 32
    max_thread_queue: Count = 1_000
    max_waiting_calls: Count = 10_000
    max_streams: Count = 10_000
    max_subscriptions: Count = 1_000
    client_share: Part = 0.25
    anonymous_share: Part = 0.8
    progress_per_second: Seconds = inf
    logs_per_second: Seconds = inf
    write_buffer_bytes: Count = 256 * 1024
    write_timeout: Seconds = 60.0
    input_timeout: Seconds = 1200.0
    session_ttl: Seconds = 24 * 3600.0
    replay_ttl: Seconds = 300.0
    max_replay_events: Count = 1000

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_bounds(self)

    def share_of_client(self, total: int) -> int:
        """Return the part of *total* that one client may use; at least 1."""
        return max(1, int(total * self.client_share))

    def too_large(self) -> ToolError:
        """Return the error of a call with a result of more than `max_result_bytes`."""
        return ToolError(
            f"The result is larger than {self.max_result_bytes} bytes (limit: max_result_bytes)"
        )


def replayed(limits: Limits) -> partial[Append]:
    """Return the append, of a log and data, of an event that is retained for a client to resume."""
    return partial(
        Append, ttl=limits.replay_ttl, keep=limits.max_replay_events, keep_bytes=MAX_REPLAY_BYTES
    )


class _Counter(msgspec.Struct, eq=False):
    """The number of open units of *share*, and their maximum. Exists while at least one is open."""

    share: Share
    most: int
    count: int = 0


Slots: TypeAlias = Sequence[_Counter]
"""The shares that an open call, stream or body counts towards."""


class ConcurrencyLimit:
    """Limits open calls, streams or bodies, in total and per client. Owned by the mux. Thread-safe.

    Args:
        noun: the counted things, for error messages.
        most: the maximum in total.
        limits: has the shares of a client and of all anonymous clients.
        setting: the name of the setting that bounds the total; empty if it is a constant.
        least: the part of the total that a client may use in any case.
        retry_after: the seconds after which a client may try again, for error responses.

    Attributes:
        full: whether some client may have reached a limit.
    """

    def __init__(
        self,
        noun: str,
        most: int,
        limits: Limits,
        *,
        setting: str = "",
        least: int = 1,
        retry_after: int = 1,
    ) -> None:
        self.full = False
        self._setting = setting
        self._noun = noun
        self._retry_after = retry_after
        self._most = most
        of_client = max(least, limits.share_of_client(most))
        anonymous = max(least, int(most * limits.anonymous_share))
        bounds = {"principal": of_client, "address": of_client, "anonymous": anonymous}
        # A share as large as the total needs no counting. A session has none: it would be that of
        # its address, and a client can open any number of sessions.
        self._most_of = {kind: part for kind, part in bounds.items() if part < most}
        self._lock = Lock()
        self._total = 0
        self._counters: dict[Share, _Counter] = {}
        self._full_ones = 0

    def __len__(self) -> int:
        return self._total

    def check(self, client: ClientKey, *, size: int = 1) -> None:
        """Check that *client* may open *size* more units.

        Raises:
            Overloaded: with status 429 if the client has used up its own share, with status 503 if
                the total, or the part of it for anonymous clients, is used up.
        """
        for share in client.shares:
            kind = share[0]
            most, counter = self._most_of.get(kind), self._counters.get(share)
            used = counter.count if counter else 0
            if most is not None and used + size > most:
                if kind == "anonymous":
                    owner = "clients without authentication"
                    raise self._overloaded(f" of {owner}: {most}", "anonymous_share")
                raise self._overloaded(f" of one {kind}: {most}", "client_share", status=429)
        if self._total + size > self._most:
            raise self._overloaded(f": {self._most}")

    def _overloaded(self, bound: str, share: str = "", *, status: int = 503) -> Overloaded:
        names = ", of ".join(filter(None, (share, self._setting)))
        message = f"Too many {self._noun}{bound}" + (f" (limit: {names})" if names else "")
        return Overloaded(message, status=status, retry_after=self._retry_after)

    def acquire(self, client: ClientKey, *, size: int = 1) -> Slots:
        """Count *size* more units without a check, and return the argument of `release`.

        Call `check` first. The returned counters spare `release` a second look-up of each share,
        because every call that waits acquires and releases.
        """
        slots: list[_Counter] = []
        with self._lock:
            for share in client.shares:
                counter = self._counters.get(share)
                if counter is None:
                    most = self._most_of.get(share[0])
                    if most is None:
                        continue
                    counter = self._counters[share] = _Counter(share, most)
                slots.append(counter)
            self._count(slots, size)
        return slots

    def release(self, slots: Slots, *, size: int = 1) -> None:
        """Count *size* units less. *slots* was returned by the `acquire` of these units."""
        with self._lock:
            self._count(slots, -size)
            for counter in slots:
                # Units of size 0 share a counter that the release of another may have removed.
                if not counter.count and self._counters.get(counter.share) is counter:
                    del self._counters[counter.share]

    @contextmanager
    def acquired(self, client: ClientKey, *, size: int = 1) -> Iterator[None]:
        """Check that *client* may open *size* more units; count them until the context is exited.

        Raises:
            Overloaded: as for `check`.
        """
        self.check(client, size=size)
        slots = self.acquire(client, size=size)
        try:
            yield
        finally:
            self.release(slots, size=size)

    def _count(self, slots: Slots, size: int) -> None:
        self._total += size
        for counter in slots:
            was_full = counter.count >= counter.most
            counter.count += size
            self._full_ones += (counter.count >= counter.most) - was_full
        self.full = self._total >= self._most or self._full_ones > 0


# The account of bytes that wait to be sent, because their clients do not read. It is one for all
# HTTP responses of a mux, of each kind: JSON bodies, batches, event streams. A client whose share
# is used up may make no further calls until it has read, or closed, what it asked for. All clients
# together cannot be refused for that, since most of them read: above their bound, the connection is
# closed that has been unread for longest.

UNSENT_TOTAL: Final = 40 * 1024 * 1024
"""Bytes that may wait for all clients together."""

UNSENT_SHARE: Final = 16 * 1024 * 1024
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
        self._bounds = {"all": UNSENT_TOTAL, "anonymous": int(UNSENT_TOTAL * anonymous_share)}
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
                    f"Responses of {UNSENT_SHARE} bytes wait to be read by this {share[0]}: "
                    f"read them, or close their connections",
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
            is_full = account.size >= UNSENT_SHARE
            (self._full_ones.add if is_full else self._full_ones.discard)(share)
            self.full = bool(self._full_ones)

    def _above_bounds(self, newest: Unread) -> Sequence[Unread]:
        """Remove the responses above a bound of *newest*, longest unread first; return them."""
        removed: list[Unread] = []
        for share in (*newest.client_key.shares, _ALL):
            account, bound = self._accounts[share], self._bounds.get(share[0], UNSENT_SHARE)
            # The newest one is sent in any case: a response may be larger than a share.
            while account.size > bound and len(account.responses) > 1:
                others = (each for each in account.responses if each is not newest)
                oldest = next(others)
                removed.append(oldest)
                for each in (*oldest.client_key.shares, _ALL):
                    self._set(each, oldest, 0, False)
        return removed
