"""Limits: the settings, and the counters of open things."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from threading import Lock
from typing import TypeAlias

import msgspec

from genmcp._core.client_key import ClientKey, Share
from genmcp.errors import ConfigurationError, Overloaded, ToolError
from genmcp.stores.store import Append


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on requests, responses and stored data of a mux. Sizes in bytes, times in seconds.

    A client that exceeds a limit gets an error that names the setting. `..._per_client` limits the
    part of one client in a total: of one principal, or of one peer address without a principal.

    Args:
        max_header_bytes: the maximum size of a header that determines how a request is handled.
        max_body_bytes: the maximum size of a request body.
        max_depth: the maximum nesting depth of JSON.
        max_containers: the maximum number of objects and arrays in a body; at least `max_depth`.
        max_uri_bytes: the maximum length of a URI, or of the name of a tool, prompt, resource
            template or task, that a client may send.
        max_batch_messages: the maximum number of messages in one batch (2025-03-26).
        batch_concurrency: the number of requests of a batch that run at once.
        body_timeout: the maximum time until a body has arrived.
        max_total_body_bytes: the total size of all bodies of more than 16 KiB that belong to
            requests without a response. Share: max_total_body_bytes_per_client.
        max_threads: the number of `def` hooks that run at once.
        max_threads_per_client: the number of `def` hooks of one client that run at once.
        max_thread_queue: the number of `def` hooks that wait for a thread. Threads are assigned to
            the waiting clients in rotation.
        max_thread_queue_per_client: the number of `def` hooks of one client that wait.
        max_waiting_calls: the number of calls that wait for something at once. Share:
            max_waiting_calls_per_client.
        anonymous_share: the fraction of each total (`max_waiting_calls`, `max_streams`, and so on),
            from 0 to 1, that all clients without a principal may have together.
        max_result_bytes: the maximum size of a result, as JSON; for a batch, of all responses
            together.
        progress_per_second: the maximum number of progress notifications that a response sends per
            second. Of further notifications, only the newest is sent.
        logs_per_second: the number of log messages that a response sends per second; a hook that
            logs more waits.
        max_streams: the number of open streams of sessions and subscriptions. Share:
            max_streams_per_client.
        max_subscriptions: the maximum number of resources that one stream, or one session, is
            subscribed to.
        max_subscribed_bytes: the total size of the URIs and task ids that all open streams of
            `subscriptions/listen` are subscribed to, plus 256 bytes each. Share, of all streams
            together: max_subscribed_bytes_per_client.
        max_subscribed_bytes_per_stream: the same size for one stream.
        max_subscribed_bytes_per_session: the total size of the URIs that one legacy session is
            subscribed to.
        cursor_ttl: the lifetime of a cursor of a list.
        input_timeout: the time that a client has to answer a question.
        write_buffer_bytes: the size of the part of a response that may wait for a client that reads
            slowly. If more waits, newer progress replaces older progress, and a hook that sends
            another message waits.
        write_timeout: the time after which the connection of a client that reads nothing is closed.
        session_ttl: the lifetime of a legacy session.
        replay_ttl: the time for which events are retained for a client that resumes, and changes
            for a process that is slow to read them.
        max_replay_events: the number of retained events of a stream.
        max_replay_bytes: the total size of the retained events of a stream; the newest event is
            retained in any case.
        max_revoked_sessions: the number of remembered sessions that were ended before they expire.
            If so many are remembered, a client cannot end its session. Share:
            max_revoked_sessions_per_client.
    """

    max_header_bytes: int = 8 * 1024
    max_body_bytes: int = 4 * 1024 * 1024
    max_depth: int = 64
    max_containers: int = 100_000
    max_uri_bytes: int = 2048
    max_batch_messages: int = 100
    batch_concurrency: int = 10
    body_timeout: float = 30.0
    max_total_body_bytes: int = 24 * 1024 * 1024
    max_total_body_bytes_per_client: int = 8 * 1024 * 1024
    max_threads: int = 32
    max_threads_per_client: int = 24
    max_thread_queue: int = 1_000
    max_thread_queue_per_client: int = 200
    max_waiting_calls: int = 10_000
    max_waiting_calls_per_client: int = 1_000
    anonymous_share: float = 0.8
    max_result_bytes: int = 16 * 1024 * 1024
    progress_per_second: float = inf
    logs_per_second: float = inf
    max_streams: int = 10_000
    max_streams_per_client: int = 1_000
    max_subscriptions: int = 1_000
    max_subscribed_bytes: int = 64 * 1024 * 1024
    max_subscribed_bytes_per_stream: int = 512 * 1024
    max_subscribed_bytes_per_client: int = 8 * 1024 * 1024
    max_subscribed_bytes_per_session: int = 256 * 1024
    cursor_ttl: float = 3600.0
    input_timeout: float = 1200.0
    write_buffer_bytes: int = 256 * 1024
    write_timeout: float = 60.0
    session_ttl: float = 24 * 3600.0
    replay_ttl: float = 300.0
    max_replay_events: int = 1000
    max_replay_bytes: int = 32 * 1024 * 1024
    max_revoked_sessions: int = 10_000
    max_revoked_sessions_per_client: int = 1_000

    def __post_init__(self) -> None:
        """Validate the bounds.

        Raises:
            ConfigurationError: one of them is out of range.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value <= 0:
                raise ConfigurationError(f"Limits.{name} must be positive, not {value!r}")
        if self.max_containers < self.max_depth:
            raise ConfigurationError(
                f"Limits.max_containers must not be less than max_depth, {self.max_depth}: "
                f"{self.max_containers!r}"
            )
        if self.anonymous_share > 1:
            raise ConfigurationError(
                f"Limits.anonymous_share is at most 1, not {self.anonymous_share!r}"
            )

    def too_large(self) -> ToolError:
        """Return the error of a call with a result of more than `max_result_bytes`."""
        return ToolError(
            f"The result is larger than {self.max_result_bytes} bytes (limit: max_result_bytes)"
        )


def replayed(limits: Limits) -> partial[Append]:
    """Return the append, of a log and data, of an event that is retained for a client to resume."""
    return partial(
        Append,
        ttl=limits.replay_ttl,
        keep=limits.max_replay_events,
        keep_bytes=limits.max_replay_bytes,
    )


class _Counter(msgspec.Struct, eq=False):
    """The number of open units of *share*, and their maximum. Exists while at least one is open."""

    share: Share
    most: int
    count: int = 0


Slots: TypeAlias = Sequence[_Counter]
"""The shares that an open call, stream or body counts towards."""


class ConcurrencyLimit:
    """Limits open calls, streams or bodies, in total and per share. Owned by the mux. Thread-safe.

    *setting* is the name of the setting in *limits* that bounds the total; `<setting>_per_client`
    bounds the share of one client. All anonymous clients together have `limits.anonymous_share` of
    the total.

    full: whether some client may have reached a limit. noun: the counted things, for error
    messages. retry_after: the seconds after which a client may try again, for error responses.
    """

    def __init__(
        self,
        setting: str,
        limits: Limits,
        noun: str,
        *,
        retry_after: int = 1,
    ) -> None:
        self.full = False
        self._setting = setting
        self._noun = noun
        self._retry_after = retry_after
        self._most: int = getattr(limits, setting)
        of_client: int = getattr(limits, f"{setting}_per_client")
        anonymous = max(1, int(self._most * limits.anonymous_share))
        bounds = {"principal": of_client, "address": of_client, "anonymous": anonymous}
        # A share as large as the total needs no counting.
        self._most_of = {kind: most for kind, most in bounds.items() if most < self._most}
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
            most, counter = self._most_of.get(share[0]), self._counters.get(share)
            used = counter.count if counter else 0
            if most is not None and used + size > most:
                if share[0] == "anonymous":
                    raise self._overloaded(
                        f" of clients without authentication: {most}",
                        f"anonymous_share, of {self._setting}",
                    )
                setting = f"{self._setting}_per_client"
                raise self._overloaded(f" of one client: {most}", setting, status=429)
        if self._total + size > self._most:
            raise self._overloaded(f": {self._most}", self._setting)

    def _overloaded(self, bound: str, setting: str, *, status: int = 503) -> Overloaded:
        message = f"Too many {self._noun}{bound} (limit: {setting})"
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
