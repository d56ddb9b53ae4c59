"""What a mux has for calls that do not end at once."""

import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.seal import Seal
from genmcp.core.task import Ended, Parked, Task, run_id
from genmcp.errors import McpError, StoreError, TaskNotFound
from genmcp.jobs.engine import Engine
from genmcp.jobs.jobs import Jobs
from genmcp.jobs.options import JobOptions
from genmcp.jobs.scoped import ScopedEngine
from genmcp.jobs.values import JobValues
from genmcp.mux.continuations import Continuations
from genmcp.mux.idempotency import Idempotency
from genmcp.mux.inbox import Inbox
from genmcp.mux.limits import Limits
from genmcp.mux.owners import Owners
from genmcp.mux.resumption import Resumption
from genmcp.mux.routes import find_route
from genmcp.mux.server_requests import ServerRequests
from genmcp.mux.sessions import Sessions
from genmcp.mux.states import States
from genmcp.mux.storage import Storage
from genmcp.mux.tasks import Tasks
from genmcp.mux.telemetry import Observers
from genmcp.mux.threads import Threads
from genmcp.protocol.result import Result
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.server import Server
from genmcp.stores.scoped import ScopedStore
from genmcp.stores.store import Store
from genmcp.subscription import Announcer
from genmcp.wire.encoder import Encoder

__all__ = ["Host", "LongCalls", "User"]

logger = logging.getLogger("genmcp")


class Host(Protocol):
    """The mux, as far as it is needed here."""

    server: Server
    store: Store
    assigns: dict[str, Any]
    limits: Limits
    owners: Owners
    sessions: Sessions
    threads: Threads
    announcer: Announcer
    encoder: Encoder
    observers: Observers

    def outcome(self, request: Request, error: BaseException) -> Result | McpError:
        """Return what a call that has ended with *error* comes to."""


class User(Protocol):
    """A user of the jobs of this process: an endpoint that serves."""

    @property
    def gone(self) -> bool:
        """Whether it ended together with its event loop."""

    def end(self) -> None:
        """Handle the end of the work on jobs: the mux was closed. Called from any loop."""


class LongCalls:
    """The calls of one mux that wait, wherever what they need to go on is kept.

    inbox: what other processes tell. asked: what clients are asked. jobs, tasks: the calls in the
    store. continuations: goes on with calls. idempotency: calls with a key. dormant: whether
    processes that died may have left something to do, and this one has not looked yet.
    """

    def __init__(
        self, host: Host, engine: Engine, storage: Storage, seal: Seal, audience: str
    ) -> None:
        self._host = host
        limits, store, server = host.limits, host.store, host.server
        self.inbox = Inbox(store, audience, ttl=limits.replay, keep=limits.replay_events)
        self.asked = ServerRequests(seal, self.inbox, host.encoder, timeout=limits.question)
        # Another mux over the same store has other tools, and other clients.
        scoped = ScopedStore(store, audience)
        self.values = JobValues(scoped, host.owners.of_task)
        self.jobs = Jobs(
            scoped,
            ScopedEngine(engine, audience),
            node=self.inbox.node,
            resume=self._resume,
            foreign=storage.foreign,
            options=self._options(storage.jobs),
        )
        self.tasks = Tasks(self.jobs, seal, self.inbox)
        states = States(seal, ttl=limits.question)
        self.continuations = Continuations(
            server, states, store, self.tasks, host.owners, kept=limits.question
        )
        self.idempotency = Idempotency(
            store,
            self.continuations,
            self.tasks,
            audience=audience,
            limits=limits,
            lease=storage.jobs.lease,
        )
        self.resumption = Resumption(self.continuations, self, host)
        self.dormant = store.durable
        self._users: set[User] = set()

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self._host.announcer

    def wake(self) -> None:
        """Begin to work on what is in the store, on the running loop; do not wait for that."""
        self.dormant = False
        self.jobs.service.begin().add_done_callback(self._woken)

    def _woken(self, ready: "Future[None]") -> None:
        if (error := ready.exception()) is not None:
            logger.warning("what other processes have left is not worked on yet: %s", error)
            self.dormant = True

    def use(self, user: User) -> None:
        """Register *user* as one that needs jobs to be run in this process, until its `rest`."""
        self._users.add(user)

    async def rest(self, user: User, *, within: float | None = None) -> None:
        """Hand the jobs that run here to other processes, unless another user still needs them.

        The next `wake` starts again.

        Args:
            user: given to `use` before.
            within: shortens `JobOptions.grace`, in seconds.
        """
        self._users.discard(user)
        if all(each.gone for each in self._users):
            self.dormant = self._host.store.durable
            await self.jobs.service.rest(within=within, busy=lambda: self.tasks.busy)

    async def begin(self, request: Request, channel: Channel) -> Result | Parked:
        """Answer a *request* that brings a state or a key along, has to be a task, or whose route
        is not known yet.

        Raises:
            InvalidParams: one of the two is not good for it.
            Unable: it needs tasks, and its client has none.
        """
        await find_route(channel)
        if self.idempotency.has_key(request):
            return await self.idempotency.answer(request, channel)
        return await self.continuations.begin(request, channel)

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id* of *principal*."""
        return await self.tasks.outcome_of(id, principal)

    async def failed(self, channel: Channel) -> None:
        """Take in that the call of *channel*, which was resumed, has failed."""
        await self.idempotency.failed(channel)

    async def level_of(self, request: Request) -> LoggingLevel | None:
        """Return the least severe level that *request* wants to hear of."""
        if request.session is None:
            return request.log_level
        return await self._host.sessions.level(request.session)

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, client: Hashable = None
    ) -> Any:
        """Run a blocking *function* in the thread pool; *client* takes turns with others."""
        return await self._host.threads.run(function, *arguments, client=client)

    async def ended(
        self, channel: Channel, outcome: Result | McpError | None, *, stopped: bool
    ) -> None:
        """Take in that the call of *channel*, a task, does not run here any more.

        *outcome* is what it came to, None if it was parked. *stopped*: it came to nothing, and goes
        on without this process, if it can and was not cancelled. An error of the store is logged:
        the client has the handle of the task, so that no response can state it.
        """
        task = channel.task
        assert task is not None
        channel.carrier.stopped = True
        try:
            if stopped:
                await self.tasks.leave(channel)
            elif outcome is not None:
                await self.tasks.end(channel, outcome)
        except (StoreError, TaskNotFound) as error:  # its time may have run out
            logger.warning("the end of task %s is not written yet: %s", task, error)
        finally:
            self.tasks.stopped(task)

    async def cancel(self, id: str, owner: str | None) -> None:
        """Cancel a task, wherever it is; one that is over stays as it is.

        Raises:
            TaskNotFound: there is no such task.
        """
        task = await self.tasks.cancel(id, owner)
        if task is not None and task.lives_in is None:  # there, who stops it tells its tool
            call = await self.jobs.call(id)
            if call is not None:
                await self._telling(self.resumption.cancelled(task, call))

    async def abandon(self, channel: Channel) -> None:
        """Take in that the call of *channel* was stopped: its job is, too, and its tool is told."""
        if channel.task is not None and not channel.promoted:
            try:
                was = await self.tasks.cancel(channel.task, channel.principal)
                channel.carrier.run = None if was is None else run_id(was)
            except TaskNotFound:  # its time has run out
                pass
            except StoreError as error:  # its tool is notified nevertheless
                logger.warning("task %s is not cancelled: %s", channel.task, error)
        await self._telling(self._host.server.cancelled(channel))

    async def _telling(self, telling: Coroutine[Any, Any, None]) -> None:
        try:
            await telling
        except Exception as error:  # a tool's own: nobody waits for what it says
            logger.error("on_cancel failed", exc_info=error)

    async def aclose(self) -> None:
        """Stop working on jobs, and stop listening for messages.

        If the store ends with this process, jobs get no grace: their results reach no client.
        """
        await self.idempotency.aclose()
        await self.jobs.aclose(within=None if self._host.store.durable else 0.0)
        await self.inbox.aclose()
        users, self._users = self._users, set()
        for each in users:
            each.end()
        self.dormant = self._host.store.durable

    def _options(self, options: JobOptions) -> JobOptions:
        if not self._host.store.shared:  # no other process could have code that this one lacks
            options = replace(options, unknown_timeout=0.0)
        return replace(
            options,
            assigns=self._assigns,
            accounts=self._host.owners.of_task,
            in_thread=self.in_thread,
        )

    def _assigns(self, task: Task) -> Mapping[str, Any]:
        return self._host.assigns

    async def _resume(self, task: Task, call: bytes, outcome: Outcome) -> Parked | Ended:
        return await self.resumption.resume(task, call, outcome)
