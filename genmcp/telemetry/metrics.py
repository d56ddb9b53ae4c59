"""OpenTelemetry metrics of a server, by the semantic conventions for MCP (extra `otel`).

The names, units and buckets of `mcp.server.*` are those of the conventions, "Metrics". The names
that begin with `genmcp.` are our own.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from genmcp._mux.telemetry import (
    EndedSession,
    Gauges,
    JobAttempt,
    Rejection,
    RequestFailure,
    Telemetry,
)
from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.errors import StoreFull, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.protocol.prompts import GetPromptRequestParams
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.protocol.value import Result
from genmcp.stores.deliveries import Backlog
from genmcp.stores.outages import StoreFailure
from genmcp.telemetry.conventions import (
    HTTP,
    failure_attributes,
    job_attributes,
    job_error_type,
    method_name,
    request_attributes,
)

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
except ImportError as error:
    raise missing_extra("OpenTelemetry", "otel", error) from error

__all__ = ["OpenTelemetryMetrics"]

BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""The boundaries in seconds that the conventions give for each duration."""

# Attributes are cached by the request's method, revision and tool. The number of tools may be
# unlimited (a server of its own may find any name), so the cache is emptied at this size.
_CACHED: Final = 4096

Attributes = Mapping[str, str]


class OpenTelemetryMetrics(Telemetry):
    """Measures requests, sessions and jobs, and reports the state of the process.

    Instruments:
        mcp.server.operation.duration: seconds from the start of a request to its end.
        mcp.server.session.duration: seconds from `initialize` to the end of a session by its
            client. Sessions that expire are not measured; from revision 2026-07-28 on there are
            none.
        genmcp.server.rejections: messages that never became a request.
        genmcp.server.open_calls, genmcp.server.open_streams: calls that wait, and open streams.
        genmcp.job.duration, genmcp.job.wait: seconds of an attempt at a job, and those between the
            time when it was due and its start.
        genmcp.queue.depth, genmcp.queue.age: ids in a queue, by `genmcp.delivery.state` (waiting or
            held), and seconds for which the oldest has been due.
        genmcp.queue.up: 1 if these two are known, 0 if the store does not respond.
        genmcp.lease.losses: steps that were taken over from a process that had died or was
            suspended.
        genmcp.store.errors: failed operations of the store.
        genmcp.store.up: 1 if the store responds, 0 during an outage.

    Args:
        provider: the meter provider. Default: the global one.
        attributes: further attributes of the measurements of requests and sessions. Default: those
            of the HTTP transport.
    """

    def __init__(
        self, provider: MeterProvider | None = None, *, attributes: Attributes = HTTP
    ) -> None:
        self._attributes = dict(attributes)
        self._cache: dict[tuple[str, str, str | None], Attributes] = {}
        self._gauges: list[Gauges] = []
        meter = metrics.get_meter("genmcp", meter_provider=provider)
        self._operations = duration_histogram(
            meter,
            "mcp.server.operation.duration",
            "MCP request or notification duration as observed on the receiver from the time it was "
            "received until the result or ack is sent.",
        )
        self._sessions = duration_histogram(
            meter,
            "mcp.server.session.duration",
            "The duration of the MCP session as observed on the MCP server.",
        )
        self._jobs = duration_histogram(
            meter, "genmcp.job.duration", "Duration of an attempt at a job."
        )
        self._waits = duration_histogram(
            meter, "genmcp.job.wait", "Time from when a job was due until an attempt at it began."
        )
        self._rejections = meter.create_counter(
            "genmcp.server.rejections", "{message}", "Messages that never became a request."
        )
        self._lease_losses = meter.create_counter(
            "genmcp.lease.losses", "{step}", "Steps that were taken over from another process."
        )
        self._store_errors = meter.create_counter(
            "genmcp.store.errors", "{error}", "Failed operations of the store."
        )
        for name, unit, observe, description in (
            ("server.open_calls", "{call}", self._open_calls, "Calls that wait."),
            ("server.open_streams", "{stream}", self._open_streams, "Open streams."),
            ("store.up", "{store}", self._store_up, "Whether the store responds: 1 or 0."),
            ("queue.up", "{queue}", self._queues_up, "Whether depth and age are known: 1 or 0."),
            ("queue.depth", "{delivery}", self._depths, "Deliveries in a queue."),
            ("queue.age", "s", self._ages, "How long the oldest delivery has been due."),
        ):
            meter.create_observable_gauge(f"genmcp.{name}", [observe], unit, description)

    def attached(self, gauges: Gauges) -> None:
        """Report the gauges of a mux from now on."""
        self._gauges.append(gauges)
        # The increase of a counter is measured from its first value, so that it begins with 0.
        for kind in (StoreUnavailable, StoreFull):
            self._store_errors.add(0, {"error.type": kind.__name__})

    def request_began(self, request: Request, channel: Channel) -> float:
        """Return the start time."""
        return time.perf_counter()

    def request_ended(self, request: Request, result: Result, mark: float) -> None:
        """Record the duration."""
        self._operations.record(time.perf_counter() - mark, self._describe(request))

    def request_failed(self, request: Request, failure: RequestFailure, mark: float) -> None:
        """Record the duration, with the error."""
        attributes = {**self._describe(request), **failure_attributes(failure)}
        self._operations.record(time.perf_counter() - mark, attributes)

    def request_rejected(self, rejection: Rejection) -> None:
        """Count the message."""
        attributes = {
            "mcp.method.name": method_name(rejection.method),
            "rpc.response.status_code": str(rejection.error.code),
        }
        self._rejections.add(1, {**self._attributes, **attributes})

    def session_ended(self, session: EndedSession) -> None:
        """Record the duration."""
        attributes = {**self._attributes, "mcp.protocol.version": session.version}
        self._sessions.record(session.seconds, attributes)

    def job_began(self, job: JobAttempt) -> float:
        """Record how long the job has waited, and return the start time."""
        self._waits.record(job.queued, job_attributes(job))
        return time.perf_counter()

    def job_ended(self, job: JobAttempt, error: BaseException | None, mark: float) -> None:
        """Record the duration."""
        attributes = job_attributes(job)
        if error is not None:
            attributes["error.type"] = job_error_type(error)
        self._jobs.record(time.perf_counter() - mark, attributes)

    def lease_lost(self) -> None:
        """Count the step."""
        self._lease_losses.add(1)

    def store_failed(self, error: StoreFailure) -> None:
        """Count the failure."""
        self._store_errors.add(1, {"error.type": type(error).__name__})

    def _describe(self, request: Request) -> Attributes:
        params, name = request.params, None
        if isinstance(params, CallToolRequestParams | GetPromptRequestParams):
            name = params.name
        key = method_name(request.method), request.revision.version, name
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            found = self._cache[key] = {**self._attributes, **request_attributes(*key)}
        return found

    def _open_calls(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(each.open_calls for each in self._gauges))]

    def _open_streams(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(each.open_streams for each in self._gauges))]

    def _depths(self, options: CallbackOptions) -> Iterable[Observation]:
        for queue, backlog in self._backlogs():
            for state in ("waiting", "held") if backlog else ():
                attributes = {"genmcp.queue": queue, "genmcp.delivery.state": state}
                yield Observation(getattr(backlog, state), attributes)

    def _ages(self, options: CallbackOptions) -> Iterable[Observation]:
        for queue, backlog in self._backlogs():
            if backlog is not None:
                yield Observation(backlog.age, {"genmcp.queue": queue})

    # OpenTelemetry has no value for "unknown", and drops NaN.
    def _queues_up(self, options: CallbackOptions) -> Iterable[Observation]:
        for queue, backlog in self._backlogs():
            yield Observation(int(backlog is not None), {"genmcp.queue": queue})

    def _store_up(self, options: CallbackOptions) -> Iterable[Observation]:
        if self._gauges:
            yield Observation(int(all(each.is_store_up() for each in self._gauges)))

    def _backlogs(self) -> Iterable[tuple[str, Backlog | None]]:
        """Return the backlog of each queue; that of a name which several muxes use is one."""
        found: dict[str, Backlog | None] = {}
        for each in self._gauges:
            for queue, backlog in each.backlogs().items():
                if queue in found and backlog is not None:
                    other = found[queue]
                    backlog = other and Backlog(
                        backlog.waiting + other.waiting,
                        backlog.held + other.held,
                        max(backlog.age, other.age),
                    )
                found[queue] = backlog
        return found.items()


def duration_histogram(meter: Meter, name: str, description: str) -> metrics.Histogram:
    """Return a histogram of seconds, with the boundaries of the conventions."""
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS
    )
