"""`DocketEngine`: delivers the steps of tasks through Docket, on Redis or Valkey.

Docket (the package `pydocket`) stores and delivers the ids, schedules delayed ones, renews leases,
and passes cancellations on. Its results, retries and progress are not used. Each queue is a docket
of its own, because a worker of Docket reads one.

Docket alone promises less than `Engine`. This module adds the rest:

- A worker of Docket that loses its connection for a moment waits for all of its running tasks
  before it takes new ones, and renews no lease meanwhile; so does one that is stopped. Here the
  tasks of Docket end at once in both cases. Their handlers continue, and `DocketServing` renews
  their leases and acknowledges them.
- A worker that was suspended acknowledges a message that another one has taken over; the id is lost
  if that one is then killed. Here a message that is taken over is replaced by a new one, which only
  its new holder can acknowledge.
- A task that raises counts as done. Here its id is scheduled again, atomically with the
  acknowledgement (`Execution.schedule` with `reschedule_message`). So is an id that a stopping
  process hands over.
- A cancellation is published, and therefore lost while a worker connects again. Here its state is
  read as well when the leases are renewed.

Not all that is used here is in Docket's documentation: the contract of engines is tested on it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores.deliveries import Backlog
from genmcp.tasks.engine import DeliveryHandler, Engine, EnginePromise, engine_queue

try:
    from docket import Docket, Execution, Worker
    from docket.dependencies import Dependency, current_execution, current_worker
    from docket.execution import Disposition
    from redis.exceptions import AuthenticationError, RedisError

    from genmcp.tasks.docket_steps import FAILURES, WRITES, DocketServing
except ImportError as error:
    raise missing_extra("DocketEngine", "docket", error) from error

__all__ = ["DocketEngine"]

logger = logging.getLogger("genmcp")

STEP: Final = "genmcp_step"
"""The name of the function that runs a step, as registered with Docket."""

_CONNECTIONS: Final = 256  # per docket. By default redis-py raises at the 101st


class _StepExecution(Dependency[Execution]):
    """Provides the execution of a step, and attaches the workers that run steps to the engine."""

    @classmethod
    def worker_lifecycle(cls, docket: Docket, worker: Worker) -> Any:
        engine: DocketEngine = cast(Any, docket.tasks[STEP]).__self__
        return engine.attached(docket, worker)

    async def __aenter__(self) -> Execution:
        return current_execution.get()


_EXECUTION: Final = cast(Execution, _StepExecution())


class _Service(Protocol):
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...


class DocketEngine(Engine):
    """Delivers ids through Docket. Needs the extra `docket`.

    Use it with a `RedisStore`, which keeps the records of tasks; both may use the same server.
    Docket reads messages with cloudpickle: any client that can write to this Redis database can run
    code in the workers. Give it a user and a database of its own.

    Args:
        url: the Redis or Valkey server, in a form that Docket accepts (`redis://`, `rediss://`,
            `redis+sentinel://host:26379/service/0`, `unix://`), or `valkey://`, `valkeys://`.
        name: the prefix of the names of dockets. Default: "genmcp".
        dockets: dockets of the application, by the name of the queue whose ids are put there. Only
            its own workers with `tasks_for` deliver them. Default: none.
        check_interval: seconds for which a worker waits for a message at a time. It does not delay
            deliveries, only the exit of `serve`. Default 0.25.
        scheduling_interval: seconds between two checks for delayed ids that are due. Default 0.25.
        timeout: seconds for a command. Default 5.
        reconnect_delay: seconds until a worker connects again. Default 1.
        cancel_grace: seconds for the cleanup of a cancelled handler. Default 5.
        record_ttl: seconds for which Docket keeps its record of a delivery that has ended, of about
            0.5 KiB. Longer than a process may be suspended. Default 300.

    Raises:
        ConfigurationError: *url* has another form, or an interval is not positive.
    """

    promises = (EnginePromise.LOST_LEASES, EnginePromise.BACKLOG)

    def __init__(
        self,
        url: str,
        *,
        name: str = "genmcp",
        dockets: Mapping[str, str] | None = None,
        check_interval: float = 0.25,
        scheduling_interval: float = 0.25,
        timeout: float = 5.0,
        reconnect_delay: float = 1.0,
        cancel_grace: float = 5.0,
        record_ttl: float = 300.0,
    ) -> None:
        for option, value in (
            ("check_interval", check_interval),
            ("scheduling_interval", scheduling_interval),
            ("timeout", timeout),
            ("reconnect_delay", reconnect_delay),
            ("record_ttl", record_ttl),
        ):
            if value < 0.001:  # the smallest time of a Redis command; 0 means no limit
                raise ConfigurationError(f"{option} must be at least 0.001 seconds, not {value}")
        self._url = _docket_url(url)
        self._name = name
        given = dockets or {}
        self._dockets = {engine_queue("", queue): docket for queue, docket in given.items()}
        self._check_interval = timedelta(seconds=check_interval)
        self._scheduling_interval = timedelta(seconds=scheduling_interval)
        self._timeout = timeout
        self._reconnect_delay = timedelta(seconds=reconnect_delay)
        self._cancel_grace = cancel_grace
        self._record_ttl = timedelta(seconds=record_ttl)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _DocketClient]
        self._clients = WeakKeyDictionary()
        self._servings: WeakKeyDictionary[Worker, DocketServing] = WeakKeyDictionary()
        self._hosted: dict[str, DocketServing] = {}  # by the name of a docket of the application
        self._service: _Service | None = None

    @classmethod
    def from_url(cls, url: str) -> "DocketEngine":
        """Return the engine on the server at *url*, with the other options at their defaults."""
        return cls(url)

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        async with self._client() as client:
            docket = await client.docket(self.docket_name(queue))
            when = datetime.now(UTC) + timedelta(seconds=delay) if delay > 0 else None
            added = await docket.add(STEP, when=when, key=_key(id))(id)
        if added.disposition is Disposition.STRUCK:
            raise StoreUnavailable(f"docket: a strike on {STEP} rejects steps in {docket.name!r}")

    async def cancel(self, id: str) -> None:
        async with self._client() as client:
            for name in await client.find(_key(id)):
                docket = await client.docket(name)
                await docket.cancel(_key(id))

    async def backlog(self, queue: str) -> Backlog:
        async with self._client() as client:
            docket = await client.docket(self.docket_name(queue))
            return await _backlog(docket)

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
        serving = DocketServing(
            handler,
            concurrency,
            lease,
            takeover_delay,
            timeout=self._timeout,
            check_interval=self._check_interval,
        )
        names = {self.docket_name(queue) for queue in queues}
        hosted = names.intersection(self._dockets.values())
        self._hosted |= dict.fromkeys(hosted, serving)
        stop = asyncio.Event()
        working = [asyncio.create_task(serving.watch())]
        working += [asyncio.create_task(self._work(serving, name, stop)) for name in names - hosted]
        try:
            yield
            await serving.drain(grace)
        finally:
            await serving.close(self._cancel_grace)
            for name in hosted:
                del self._hosted[name]
            stop.set()
            working[0].cancel()
            await asyncio.wait(working)

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def tasks_for(self, mux: Any) -> list[Callable[..., Awaitable[None]]]:
        """Return the functions by which a Docket worker of the application runs the steps of *mux*.

        Register them with the worker of a docket that is in *dockets*:
        `docket worker --docket shop --tasks shop.tasks:tasks`. The jobs of *mux* start and end with
        the loop of that worker.

        Args:
            mux: a `Mux` with this engine.
        """
        self._service = mux.tasks.service
        return [self.genmcp_step]

    async def genmcp_step(self, id: str, execution: Execution = _EXECUTION) -> None:
        """Run the step *id*. Called by the workers of Docket."""
        worker = current_worker.get()
        await self._servings[worker].run(id, execution, worker)

    @asynccontextmanager
    async def attached(self, docket: Docket, worker: Worker) -> AsyncGenerator[None, None]:
        """Let *worker* deliver steps while its loop runs. Called by the workers of Docket."""
        if worker not in self._servings:
            self._servings[worker] = await self._host(docket)
        with self._servings[worker].attached(worker):
            try:
                yield
            except asyncio.CancelledError:
                # The application stops its worker. A worker that has lost its connection ends its
                # loop without an exception, and starts another one.
                if docket.name in self._hosted and self._service is not None:
                    await self._service.aclose()
                raise

    async def _host(self, docket: Docket) -> "DocketServing":
        """Start to serve the jobs of `tasks_for` in a worker of the application."""
        if self._service is None:
            raise ConfigurationError(f"{STEP} was registered without DocketEngine.tasks_for(mux)")
        try:
            await self._service.start()
        except StoreUnavailable as error:
            # Docket repeats the start of its loop after errors of Redis, and ends at others.
            raise RedisError(str(error)) from error
        if docket.name not in self._hosted:
            raise ConfigurationError(
                f"no queue that this process serves (JobOptions.queues) uses the docket "
                f"{docket.name!r}: add it to DocketEngine(dockets={{queue: docket}})"
            )
        return self._hosted[docket.name]

    def docket_name(self, queue: str) -> str:
        """Return the name of the docket with the ids of *queue*."""
        # The name of a queue begins with the audience of its server (`engine_queue`).
        return self._dockets.get(queue.rpartition("/")[2]) or f"{self._name}:{queue}"

    def open_docket(self, name: str) -> Docket:
        """Return the docket *name*, which is not connected yet."""
        docket = Docket(name, self._url, execution_ttl=self._record_ttl)
        docket.register(self.genmcp_step, names=[STEP])
        return docket

    async def _work(self, serving: "DocketServing", name: str, stop: asyncio.Event) -> None:
        """Deliver from the docket *name* until *stop* is set."""
        delay = self._reconnect_delay.total_seconds()
        async with self.open_docket(name) as docket:
            while not stop.is_set():
                await self._run_worker(serving, docket, stop)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await stop.wait()

    async def _run_worker(
        self, serving: "DocketServing", docket: Docket, stop: asyncio.Event
    ) -> None:
        """Run a worker of *docket* until it fails, or *stop* is set."""
        worker = Worker(
            docket,
            name=f"genmcp-{token_hex(8)}",  # holds the leases; not used again after a restart
            concurrency=1,  # until it is attached
            redelivery_timeout=timedelta(seconds=serving.lease),
            reconnection_delay=self._reconnect_delay,
            minimum_check_interval=self._check_interval,
            scheduling_resolution=self._scheduling_interval,
            schedule_automatic_tasks=False,
        )
        self._servings[worker] = serving
        async with worker:
            running = asyncio.create_task(worker.run_forever())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not stop.is_set():
                # Docket waits through failures of the server; this is a defect. The process would
                # otherwise appear to serve, and run no jobs any more.
                text = "the worker of %s ended, and is started again"
                logger.error(text, docket.name, exc_info=running.exception())
            stopping.cancel()
            # The exit of `worker` waits for its loop, and that for a response of the server.
            bound = asyncio.create_task(_cancel_after(running, self._timeout))
        bound.cancel()
        await asyncio.wait({bound, running, stopping})

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator["_DocketClient", None]:
        """Give one command the connections of the running loop, within `timeout`."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = _DocketClient(self, f"{self._name}:dockets")
        try:
            async with asyncio.timeout(self._timeout), client.slots:
                yield client
        except FAILURES as error:
            reason = str(error) or f"no response within {self._timeout:g} s"
            if isinstance(error, AuthenticationError):
                reason = f"{reason} (the user and password are part of the URL)"
            raise StoreUnavailable(f"docket: {reason}") from error


class _DocketClient:
    """The dockets to which one event loop submits. Owned by an engine.

    Args:
        engine: opens dockets.
        key: the key of a Redis set with the names of all dockets, in which `cancel` finds an id.
    """

    def __init__(self, engine: DocketEngine, key: str) -> None:
        self._engine = engine
        self._key = key
        self._stack = AsyncExitStack()
        self._opened: dict[str, asyncio.Task[Docket]] = {}
        self.slots = asyncio.Semaphore(WRITES)

    async def docket(self, name: str) -> Docket:
        """Return the docket *name*, connected."""
        opening = self._opened.get(name)
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = self._opened[name] = asyncio.create_task(self._open(name))
        return await asyncio.shield(opening)

    async def find(self, key: str) -> list[str]:
        """Return the names of the dockets in which the task *key* waits or runs."""
        docket = await self.docket(self._engine.docket_name("default"))
        async with docket.redis() as client:
            redis = cast(Any, client)
            names = sorted(name.decode() for name in await redis.smembers(self._key))
            async with redis.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.hget(self._engine.open_docket(name).runs_key(key), "state")
                states = await pipeline.execute()
        # `Docket.cancel` would write a record of an unknown task, which does not expire.
        live = {b"scheduled", b"queued", b"running"}
        return [name for name, state in zip(names, states, strict=True) if state in live]

    async def aclose(self) -> None:
        for opening in self._opened.values():
            opening.cancel()
        if self._opened:
            await asyncio.wait(self._opened.values())
        await self._stack.aclose()

    async def _open(self, name: str) -> Docket:
        async with AsyncExitStack() as stack:
            docket = await stack.enter_async_context(self._engine.open_docket(name))
            async with docket.redis() as client:
                await cast(Any, client).sadd(self._key, name)
            self._stack.push_async_callback(stack.pop_all().aclose)
        return docket


async def _backlog(docket: Docket) -> Backlog:
    now = datetime.now(UTC)
    async with docket.redis() as client, cast(Any, client).pipeline(transaction=False) as pipeline:
        pipeline.xlen(docket.stream_key)
        pipeline.xinfo_groups(docket.stream_key)
        pipeline.zcount(docket.queue_key, "-inf", now.timestamp())
        length, groups, overdue = await pipeline.execute(raise_on_error=False)
        if isinstance(groups, Exception):  # nothing was submitted, or no worker has started
            groups = []
        held, last = 0, "-"
        for group in groups:
            held, last = group["pending"], f"({group['last-delivered-id'].decode()}"
        first = await cast(Any, client).xrange(docket.stream_key, last, "+", count=1)
    age = 0.0
    for _, message in first:
        age = (now - datetime.fromisoformat(message[b"when"].decode())).total_seconds()
    return Backlog(max(0, length - held) + overdue, held, max(0.0, age))


async def _cancel_after(task: "asyncio.Task[None]", delay: float) -> None:
    """Cancel *task* after *delay* seconds, and repeat that until it has ended."""
    while not (await asyncio.wait({task}, timeout=delay))[0]:
        task.cancel()


def _key(id: str) -> str:
    """Return the key of *id* in a docket, where some names are taken ("queue", "stream")."""
    return f"step:{id}"


def _docket_url(url: str) -> str:
    """Return *url* in a form that Docket accepts."""
    schemes = {"valkey": "redis", "valkeys": "rediss"}
    parts = urlsplit(url)
    scheme = schemes.get(parts.scheme, parts.scheme)
    if scheme not in ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix"):
        raise ConfigurationError(
            f"engine: docket needs a Redis or Valkey server (redis://host:6379/0), not a URL with "
            f"the scheme {scheme!r}"
        )
    query = parts.query
    if "max_connections=" not in query:
        query = f"{query}{'&' if query else ''}max_connections={_CONNECTIONS}"
    return urlunsplit(parts._replace(scheme=scheme, query=query))
