"""What a mux has for calls that do not end at once."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.seal import Seal
from genmcp.core.task import Ended, Parked, Task
from genmcp.errors import McpError
from genmcp.jobs.engine import Engine
from genmcp.jobs.jobs import Jobs
from genmcp.mux.continuations import Continuations
from genmcp.mux.inbox import Inbox
from genmcp.mux.limits import Limits
from genmcp.mux.resumption import Resumption
from genmcp.mux.server_requests import ServerRequests
from genmcp.mux.sessions import Sessions
from genmcp.mux.states import States
from genmcp.mux.storage import Storage
from genmcp.mux.tasks import Tasks
from genmcp.mux.threads import Threads
from genmcp.protocol.result import Result
from genmcp.protocol.severity import LoggingLevel
from genmcp.server import Server
from genmcp.stores.store import Store
from genmcp.subscription import Announcer
from genmcp.wire.encoder import Encoder

__all__ = ["Host", "LongCalls"]


class Host(Protocol):
    """The mux, as far as it is needed here."""

    server: Server
    store: Store
    assigns: dict[str, Any]
    limits: Limits
    sessions: Sessions
    threads: Threads
    announcer: Announcer
    encoder: Encoder

    def outcome(self, request: Request, error: BaseException) -> Result | McpError:
        """Return what a call that has ended with *error* comes to."""


class LongCalls:
    """The calls of one mux that wait, wherever what they need to go on is kept.

    inbox: what other processes tell. asked: what clients are asked. jobs, tasks: the calls in the
    store. continuations: goes on with calls.
    """

    def __init__(
        self, host: Host, engine: Engine, storage: Storage, seal: Seal, audience: str
    ) -> None:
        self._host = host
        limits, store, server = host.limits, host.store, host.server
        self.inbox = Inbox(store, audience, ttl=limits.replay, keep=limits.replay_events)
        self.asked = ServerRequests(seal, self.inbox, host.encoder, timeout=limits.question)
        self.jobs = Jobs(
            store,
            engine,
            node=self.inbox.node,
            resume=self._resume,
            foreign=storage.foreign,
            options=replace(storage.jobs, assigns=self._assigns, in_thread=self.in_thread),
        )
        self.tasks = Tasks(self.jobs, seal, self.inbox)
        states = States(seal, ttl=limits.question)
        self.continuations = Continuations(server, states, store, self.tasks, kept=limits.question)
        self.resumption = Resumption(server, self.continuations, self, host.assigns, host.outcome)

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self._host.announcer

    async def level_of(self, request: Request) -> LoggingLevel | None:
        """Return the least severe level that *request* wants to hear of."""
        if request.session is None:
            return request.log_level
        return await self._host.sessions.level(request.session)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the pool of threads."""
        return await self._host.threads.run(function, *arguments)

    async def end(self, channel: Channel, outcome: Result | McpError | None) -> None:
        """Keep what the call of *channel*, a task that ran here, has come to.

        None: nothing, since it is carried on elsewhere, or was stopped. One that nobody can go on
        with is lost.
        """
        task = channel.task
        assert task is not None
        self.tasks.stopped(task)
        if outcome is not None:
            await self.tasks.end(channel, outcome)

    async def cancel(self, channel: Channel) -> None:
        """Stop what the store keeps of a call that nobody wants any more, and tell its tool."""
        task = channel.task
        if task is None or await self.tasks.cancel(task, channel.principal):
            await self._host.server.cancelled(channel)

    async def aclose(self) -> None:
        """Work on nothing any more, and hear of nothing."""
        await self.jobs.aclose()
        await self.inbox.aclose()

    def _assigns(self, task: Task) -> Mapping[str, Any]:
        return self._host.assigns

    async def _resume(self, task: Task, call: bytes, outcome: Outcome) -> Parked | Ended:
        return await self.resumption.resume(task, call, outcome)
