"""Every bound, with its default."""

from math import inf

import msgspec

from genmcp.errors import ConfigurationError, ToolError

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what a mux takes and keeps; sizes in bytes, times in seconds.

    header: how large a header may be, of those by which a request is judged.
    body: the largest request body. depth: how deep JSON may nest. containers: how many objects and
        arrays a body may have; at least `depth`.
    uri: the largest URI, or name of a tool, prompt, resource template or task, that a client may
        send.
    batch: how many messages one batch may have (2025-03-26). batch_concurrency: how many requests
        of a batch run at once.
    body_time: how long a body may take to arrive.
    bodies: the bytes of all bodies of more than 16 KiB that belong to requests without a response.
        bodies_of_principal, bodies_of_address: of one principal, and of one peer address without
        one.
    threads: how many `def` hooks run at once. threads_of_client: of one client, which is a
        principal, or a peer address without one.
    waiting: how many `def` hooks wait for a thread; clients take turns. waiting_of_client: of one
        client.
    calls: how many calls wait for something at once. calls_of_principal: of one principal.
        calls_of_session, calls_of_address: of one legacy session and of one peer address without a
        principal. calls_of_tool: of one tool.
    anonymous: the part of each total (`calls`, `streams`, and so on), from 0 to 1, that all clients
        without a principal may have together.
    result: the largest result, as JSON; of a batch, all of its answers together.
    progress_rate: how many notifications of progress a response sends in a second; of those in
        between, the newest counts. log_rate: how many log messages; a hook that says more waits.
    streams: how many streams of sessions and subscriptions are open at once.
    streams_of_principal: of one principal. streams_of_session, streams_of_address: of one legacy
        session and of one peer address without a principal.
    subscriptions: how many resources one stream, or one session, is subscribed to.
    subscribed: the bytes of the URIs and task ids that all open streams of `subscriptions/listen`
        are subscribed to, each with 256 bytes more. subscribed_of_stream: of one stream.
        subscribed_of_principal, subscribed_of_address: of all streams of one principal, and of one
        peer address without one.
    subscribed_of_session: the bytes of the URIs that one legacy session is subscribed to.
    stored_of_principal, stored_of_address: the fraction of the store, from 0 to 1, that one
        principal, and one peer address without a principal, may use.
    cursor: how long a cursor of a list is good for.
    question: how long a client has to answer a question.
    buffer: how much of a response may wait for a client that reads slowly. Past it the newest
        progress replaces older, and a hook that says something else waits.
    stall: how long a client may read nothing of that, before its connection is given up.
    session: how long a legacy session lives.
    replay: how long events wait for a client that resumes, and changes for a process that is
        slow to read them. replay_events: how many of a stream.
    idempotency: how long what came of a call that has an `io.genmcp/idempotencyKey` is kept, for
        when it is sent again.
    revoked: how many sessions that were ended before their time are remembered until then; past
        it, a client cannot end its session. revoked_of_principal, revoked_of_address: of one
        principal, and of one peer address without one.
    """

    header: int = 8 * 1024
    body: int = 4 * 1024 * 1024
    depth: int = 64
    containers: int = 100_000
    uri: int = 2048
    batch: int = 100
    batch_concurrency: int = 10
    body_time: float = 30.0
    bodies: int = 128 * 1024 * 1024
    bodies_of_principal: int = 16 * 1024 * 1024
    bodies_of_address: int = 16 * 1024 * 1024
    threads: int = 32
    threads_of_client: int = 24
    waiting: int = 1_000
    waiting_of_client: int = 200
    calls: int = 10_000
    calls_of_principal: int = 1_000
    calls_of_session: int = 1_000
    calls_of_address: int = 2_000
    calls_of_tool: int = 10_000
    anonymous: float = 0.8
    result: int = 16 * 1024 * 1024
    progress_rate: float = inf
    log_rate: float = inf
    streams: int = 10_000
    streams_of_principal: int = 100
    streams_of_session: int = 100
    streams_of_address: int = 1_000
    subscriptions: int = 1_000
    subscribed: int = 64 * 1024 * 1024
    subscribed_of_stream: int = 512 * 1024
    subscribed_of_principal: int = 8 * 1024 * 1024
    subscribed_of_address: int = 8 * 1024 * 1024
    subscribed_of_session: int = 256 * 1024
    stored_of_principal: float = 0.25
    stored_of_address: float = 0.25
    cursor: float = 3600.0
    question: float = 1200.0
    buffer: int = 256 * 1024
    stall: float = 60.0
    session: float = 24 * 3600.0
    replay: float = 300.0
    replay_events: int = 1000
    idempotency: float = 24 * 3600.0
    revoked: int = 10_000
    revoked_of_principal: int = 1_000
    revoked_of_address: int = 1_000

    def __post_init__(self) -> None:
        """Check that every bound is positive."""
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"Limits.{name} must be positive, not {getattr(self, name)!r}"
                )
        if self.containers < self.depth:
            raise ConfigurationError(
                f"Limits.containers must not be less than depth, {self.depth}: {self.containers!r}"
            )
        for name in ("anonymous", "stored_of_principal", "stored_of_address"):
            if getattr(self, name) > 1:
                raise ConfigurationError(f"Limits.{name} is at most 1, not {getattr(self, name)!r}")

    def too_large(self) -> ToolError:
        """Return how a call fails whose result is larger than `result`."""
        return ToolError(f"The result is larger than {self.result} bytes (limit: result)")
