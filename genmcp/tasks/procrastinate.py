"""An engine on procrastinate, a job queue in PostgreSQL: the extra `procrastinate`.

An id is a row of procrastinate's table of jobs. A `Worker` of procrastinate fetches rows, runs
their handlers, renews its heartbeat, and listens for new rows and cancellations. This module adds
four things that procrastinate leaves to its user:

- **Takeover.** The rows of a dead worker stay `doing`. `_ServedJobs` finds them, and queues new
  ones in their place.
- **Fencing.** procrastinate acknowledges a row by its id, and not by its holder: a worker that was
  suspended would remove the row that another one has taken over. A row that is delivered again is
  therefore always a new row, and an acknowledgement names the worker.
- **Failures of the database.** A `Worker` ends when one of its statements fails, and waits for its
  handlers first, however long they take. Statements that fail are logged here, and repeated. A
  statement without a response fails after `timeout` seconds, and its connection is closed.
- **Wake-ups.** A row that is queued again or becomes due is not announced. A new row is; for
  delayed ones the workers poll every `poll_interval` seconds.

All times are those of the database's clock.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, LiteralString
from weakref import WeakKeyDictionary

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores import redacted
from genmcp.stores.deliveries import Backlog
from genmcp.tasks.engine import DeliveryHandler, Engine, EnginePromise
from genmcp.tasks.procrastinate_sql import (
    ACKNOWLEDGE,
    BACKLOG,
    CANCEL,
    EXISTS,
    HELD,
    LOCK,
    RELEASE,
    SUBMIT,
    TAKE_OVER,
    TAKE_OVER_REMOVED,
)
from genmcp.tasks.retry import LogThrottle

try:
    from procrastinate import App, JobContext
    from procrastinate.exceptions import ConnectorException
    from procrastinate.jobs import Job, Status
    from procrastinate.manager import JobManager, NotificationCallback
    from procrastinate.retry import BaseRetryStrategy, RetryDecision
    from procrastinate.schema import SchemaManager
    from procrastinate.worker import Worker
    from psycopg import Error as PsycopgError
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import ForeignKeyViolation, ProgrammingError

    from genmcp.stores.postgres.connection import PostgresConnection
    from genmcp.tasks.procrastinate_connector import PoolConnector, whole_seconds
except ImportError as error:
    raise missing_extra("ProcrastinateEngine", "procrastinate", error) from error

__all__ = ["ProcrastinateEngine"]

logger = logging.getLogger("genmcp")

_TASK: Final = "genmcp.step"

# A queue is a part of the name of a channel of NOTIFY, which has at most 63 bytes.
_QUEUE_BYTES: Final = 63 - len("procrastinate_queue_v1#")

# The rows of dead workers are found by their heartbeats. procrastinate would remove those workers
# when another one starts, after 30 seconds: the rows of a process that was suspended would be taken
# over even by a process that must not judge it (`takeover_delay`).
_PRUNE: Final = 86400.0

# Workers of the application do remove workers without a heartbeat for 30 seconds when they start.
_MAX_HEARTBEAT_INTERVAL: Final = 10.0


class ProcrastinateEngine(Engine):
    """An engine on procrastinate's tables in PostgreSQL. Ids of all owners are served in order.

    The tables are created by `genmcp store migrate`. The database may be that of a `PostgresStore`,
    or another one. Each event loop has connections of its own: a pool, and one connection for each
    `serve`, which listens.

    Args:
        url: `postgresql://user:password@host/database`, with any parameter of libpq.
        poll_interval: seconds between two checks for delayed ids that have become due, which is how
            late they may be. New ids are announced by the database. Default 1.
        retry_delay: seconds before the next attempt after the database has failed. Default 1.
        cancel_grace: seconds for the cleanup of a cancelled handler. Default 5.
        timeout: seconds until an operation fails if there is no connection, or no response.
            Default 5.
        max_connections: the maximum number of connections in each pool. Default 10.

    Raises:
        ConfigurationError: *url* cannot be parsed.
    """

    promises = (EnginePromise.LOST_LEASES, EnginePromise.BACKLOG)

    def __init__(
        self,
        url: str,
        *,
        poll_interval: float = 1.0,
        retry_delay: float = 1.0,
        cancel_grace: float = 5.0,
        timeout: float = 5.0,
        max_connections: int = 10,
    ) -> None:
        try:
            conninfo_to_dict(url)
        except ProgrammingError:  # its text may contain the password
            raise ConfigurationError(f"engine: {redacted(url)!r} is not a PostgreSQL URL") from None
        self._url = url
        self._poll_interval = poll_interval
        self._retry_delay = retry_delay
        self._cancel_grace = cancel_grace
        self._timeout = timeout
        self._max_connections = max_connections
        self._connectors: WeakKeyDictionary[asyncio.AbstractEventLoop, PoolConnector]
        self._connectors = WeakKeyDictionary()

    @classmethod
    def from_url(cls, url: str) -> "ProcrastinateEngine":
        """Return the engine in the database at *url*, with the other options at their defaults."""
        return cls(url)

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        await self._execute(SUBMIT, id=id, queue=_queue_name(queue), delay=delay)

    async def cancel(self, id: str) -> None:
        await self._execute(CANCEL, id=id)

    async def backlog(self, queue: str) -> Backlog:
        try:
            (row,) = await (await self._connector()).execute_query_all_async(
                BACKLOG, task=_TASK, queue=_queue_name(queue)
            )
        except ConnectorException as error:
            raise _unavailable(error) from error
        return Backlog(row["waiting"], row["held"], max(0.0, row["age"] or 0.0))

    async def migrate(self, *, dry_run: bool = False) -> str:
        """Create procrastinate's tables, unless they exist; return the statements.

        If several processes call this, one of them does it. An upgrade of procrastinate may need a
        migration of its tables, which its documentation describes.
        """
        try:
            # A transaction on a connection of its own: statements may take longer than `timeout`.
            async with await PostgresConnection.connect(
                self._url, connect_timeout=whole_seconds(self._timeout)
            ) as connection:
                await connection.execute(LOCK)
                ((exists,),) = await (await connection.execute(EXISTS)).fetchall()
                statements = "" if exists else SchemaManager.get_schema()
                if statements and not dry_run:
                    await connection.execute(statements.encode())
        except PsycopgError as error:
            raise _unavailable(error) from error
        return statements

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        connector = self._connectors.pop(asyncio.get_running_loop(), None)
        if connector is not None:
            await connector.pool.close()

    @asynccontextmanager
    async def serve(
        self,
        handler: DeliveryHandler,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        max_per_owner: int | None = None,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
    ) -> AsyncGenerator[None, None]:
        names = [_queue_name(queue) for queue in queues]
        jobs = _ServedJobs(await self._connector(), names, lease, takeover_delay, self._retry_delay)
        try:
            installed = await jobs.check_connection_async()
        except ConnectorException:
            installed = True  # not known until the database is back
        if not installed:
            raise ConfigurationError(
                f"{redacted(self._url)} has no tables of procrastinate: create them by "
                "genmcp store migrate (with GENMCP_ENGINE, or with --app)"
            )
        jobs.serve(handler, concurrency, self._poll_interval)
        running = asyncio.create_task(jobs.run())
        try:
            yield
            await jobs.drain(grace)
        finally:
            await jobs.close(running, self._cancel_grace)

    async def _execute(self, query: LiteralString, **arguments: Any) -> None:
        connector = await self._connector()
        try:
            await connector.execute_query_async(query, task=_TASK, **arguments)
        except ConnectorException as error:
            raise _unavailable(error) from error

    async def _connector(self) -> PoolConnector:
        loop = asyncio.get_running_loop()
        connector = self._connectors.get(loop)
        if connector is None:
            connector = PoolConnector(self._timeout)
            self._connectors[loop] = connector
            await connector.open_pool(self._url, self._max_connections)
        return connector


class _ServedJobs(JobManager):
    """The statements of one `Worker`, which it runs as well. Owned by one `serve`.

    None of its statements makes the worker end. If the result of one is not known, a handler may be
    missing for a row that this worker holds, or a row for a handler: `sweep` compares them.
    """

    def __init__(
        self,
        connector: PoolConnector,
        queues: Collection[str],
        lease: float,
        takeover_delay: Callable[[], float],
        retry_delay: float,
    ) -> None:
        super().__init__(connector)
        self._queues = list(queues)
        self._lease = lease
        self._takeover_delay = takeover_delay
        self._retry_delay = retry_delay
        self._fetching = asyncio.Lock()
        self._held: set[int] = set()  # the rows that were fetched and not yet acknowledged
        self._running: dict[int, asyncio.Task[Any]] = {}  # their handlers
        self._stopping = False
        self._last_beat = self._unsure_until = self._next_search = 0.0  # by the clock of the loop
        self._warnings = LogThrottle(logger)
        self._worker: Worker

    def serve(self, handler: DeliveryHandler, concurrency: int, poll_interval: float) -> None:
        """Create the worker that calls *handler*."""
        app = App(connector=self.connector)
        app.job_manager = self
        app.task(name=_TASK, pass_context=True, retry=_Always())(partial(self._step, handler))
        self._worker = Worker(
            app,
            queues=self._queues,
            name=None,
            concurrency=concurrency,
            fetch_job_polling_interval=poll_interval,
            abort_job_polling_interval=poll_interval,
            update_heartbeat_interval=min(self._lease / 3, _MAX_HEARTBEAT_INTERVAL),
            stalled_worker_timeout=_PRUNE,
            install_signal_handlers=False,
        )

    async def run(self) -> None:
        """Serve until `close`."""
        sweeping = asyncio.create_task(self._sweep_repeatedly())
        try:
            while not self._stopping:
                try:
                    await self._worker.run()  # type: ignore[no-untyped-call]
                except ConnectorException as error:
                    self._warn("the database cannot be reached", error)
                if not self._stopping:  # it also ends if one of its own tasks has failed
                    await asyncio.sleep(self._retry_delay)
        finally:
            sweeping.cancel()
            await asyncio.wait({sweeping})

    async def drain(self, grace: float) -> None:
        """Fetch nothing more, and wait up to *grace* seconds for the running handlers."""
        self._stopping = True  # the worker goes on: one that stops does not renew its heartbeat
        async with self._fetching:
            running = set(self._running.values())
        if running and grace:
            await asyncio.wait(running, timeout=grace)

    async def close(self, running: "asyncio.Task[None]", cancel_grace: float) -> None:
        """Cancel the running handlers, whose rows are released to other workers at once."""
        self._stopping = True
        self._worker.stop()  # type: ignore[no-untyped-call]
        for work in self._running.values():
            work.cancel()
        _, late = await asyncio.wait({running}, timeout=cancel_grace)
        if late:
            logger.error("handlers of %s continue although they were cancelled", self._queues)
            running.cancel()

    async def _step(self, handler: DeliveryHandler, context: JobContext, id: str) -> None:
        row, work = context.job.id, asyncio.current_task()
        assert row is not None and work is not None
        if self._stopping:  # it was fetched just before, and nobody would cancel its handler
            raise _Stopping
        self._running[row] = work
        try:
            await handler(id)
        except asyncio.CancelledError:
            if self._stopping:
                raise
        except Exception as error:
            self._warn(f"the step of {id} failed, and will be repeated", error)
            raise
        finally:
            del self._running[row]

    # The methods of `JobManager` that a `Worker` calls.

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        async with self._fetching:
            if self._stopping:
                return None
            try:
                job = await super().fetch_job(queues, worker_id)
            except ConnectorException as error:
                self._warn("jobs cannot be fetched", error)
                if isinstance(error.__cause__, ForeignKeyViolation):
                    # Another worker has removed this one, which was suspended for a day.
                    self._worker.worker_id = await self.register_worker()
                return None
            if job is not None and job.id is not None:
                self._held.add(job.id)
            return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        try:
            await self._execute(ACKNOWLEDGE, id=job.id)
        finally:
            self._forget(job)

    async def retry_job(self, job: Job, *args: Any, **options: Any) -> None:
        try:
            # A failed handler is not repeated at once: that would load a store that has failed.
            delay = 0.0 if self._stopping else self._lease
            await self._execute(RELEASE, ids=[job.id], delay=delay)
        finally:
            self._forget(job)

    async def list_jobs_to_abort_async(self, queue: str | None = None) -> Iterable[int]:
        """Return the rows whose handlers must end: cancelled, or taken over by another worker."""
        running = set(self._running)
        rows = await self.connector.execute_query_all_async(HELD, worker=self._worker.worker_id)
        return running - {row["id"] for row in rows if not row["abort_requested"]}

    async def update_heartbeat(self, worker_id: int) -> None:
        try:
            await super().update_heartbeat(worker_id)
        except ConnectorException as error:
            self._warn("the leases cannot be renewed", error)
        else:
            self._record_beat()

    async def register_worker(self) -> int:
        id = await super().register_worker()
        self._last_beat = asyncio.get_running_loop().time()
        return id

    async def unregister_worker(self, worker_id: int) -> None:
        try:
            await super().unregister_worker(worker_id)
        except ConnectorException as error:
            self._warn("the worker cannot be removed", error)

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        while True:
            try:
                await super().listen_for_jobs(on_notification=on_notification, queues=queues)
            except ConnectorException as error:
                self._warn("new jobs are found later", error)
            await asyncio.sleep(self._retry_delay)

    # Heartbeats and takeover, which procrastinate leaves to its user.

    async def _sweep_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(min(self._lease / 4, 1.5))
            try:
                await self._sweep()
            except ConnectorException as error:
                self._warn("jobs of other processes cannot be taken over", error)

    async def _sweep(self) -> None:
        """Release the rows of workers that are dead, and those that this one holds in error."""
        now = asyncio.get_running_loop().time()
        if self._takeover_delay() <= 0 and now >= self._unsure_until:
            stale: dict[str, Any] = {"queues": self._queues, "lease": self._lease, "delay": 0}
            await self._execute(TAKE_OVER, **stale)
            if now >= self._next_search:
                self._next_search = now + self._lease
                await self._execute(TAKE_OVER_REMOVED, **stale)
        # The connection may have broken after a row was fetched, or before it was acknowledged.
        async with self._fetching:
            held = await self.connector.execute_query_all_async(HELD, worker=self._worker.worker_id)
            if unknown := [row["id"] for row in held if row["id"] not in self._held]:
                await self._execute(RELEASE, ids=unknown, delay=0)

    def _record_beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_beat > self._lease * 2 / 3:
            # The database was unavailable, and the others could not renew their heartbeats either.
            self._unsure_until = now + self._lease
        self._last_beat = now

    async def _execute(self, query: LiteralString, **arguments: Any) -> None:
        await self.connector.execute_query_async(
            query, task=_TASK, worker=self._worker.worker_id, **arguments
        )

    def _forget(self, job: Job) -> None:
        assert job.id is not None
        self._held.discard(job.id)

    def _warn(self, text: str, error: Exception) -> None:
        self._warnings.log(logging.ERROR, "%s: %s", text, error.__cause__ or error)


class _Stopping(Exception):
    """Raised from a handler whose worker stops, so that its row is released to another worker."""


class _Always(BaseRetryStrategy):
    """The retry strategy: each handler that raised is repeated."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        return RetryDecision()


def _is_logged(record: logging.LogRecord) -> bool:
    """Drop the start and the end of each step, which procrastinate logs with a level of INFO."""
    job = getattr(record, "job", None)
    return record.levelno > logging.INFO or not job or job["task_name"] != _TASK


logging.getLogger("procrastinate.worker").addFilter(_is_logged)


def _queue_name(queue: str) -> str:
    """Return the name of *queue* in the database: its hash if it is too long."""
    name = queue.encode()
    return queue if len(name) <= _QUEUE_BYTES else hashlib.sha256(name).hexdigest()[:_QUEUE_BYTES]


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"procrastinate's database: {error.__cause__ or error}")
