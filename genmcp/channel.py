"""One request's line to its client: the only way a hook reaches the outside."""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Coroutine, Mapping, MutableMapping
from concurrent.futures import wait
from enum import Enum
from math import inf
from threading import Lock
from typing import Any, Generic, Protocol
from weakref import WeakSet

import msgspec
from typing_extensions import TypeVar

from genmcp.core.call import CallState
from genmcp.core.client_key import ClientKey
from genmcp.core.request import ClientInfo, Request
from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange, updated
from genmcp.errors import AssignUnavailable, ContractError
from genmcp.protocol.params import (
    SEVERITY,
    LoggingLevel,
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.tasks.records import HeldTask

__all__ = ["ChangeNotifier", "Channel", "Listener", "SendStatus", "Sink", "is_detached"]


T = TypeVar("T")


R_co = TypeVar("R_co", bound=Request, default=Request, covariant=True)


class Listener:
    """A receiver of changes: a mux, which notifies its clients."""

    def announce(self, change: ServerChange) -> None:
        """Receive a change. It is called from any thread, and must not wait for clients."""


class ChangeNotifier:
    """Announces changes to every mux that serves the server, and so to all clients that listen.

    A server of your own makes one and returns it as its `changes`; a `Suite` has one, and a tool
    finds that of its server in `channel.changes`. Without a mux it has no effect.

    It may be used from any thread, and does not wait for clients: a change that is announced again
    before it was sent is sent once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: WeakSet[Listener] = WeakSet()

    def tools_list_changed(self) -> None:
        """Announce that the list of tools has changed."""
        self._announce(TOOLS)

    def prompts_list_changed(self) -> None:
        """Announce that the list of prompts has changed."""
        self._announce(PROMPTS)

    def resources_list_changed(self) -> None:
        """Announce that the list of resources or templates has changed."""
        self._announce(RESOURCES)

    def resource_updated(self, uri: str) -> None:
        """Announce that the contents of the resource *uri* have changed.

        Clients that have subscribed to exactly this URI are notified.

        Raises:
            ContractError: *uri* is not a text.
        """
        if not isinstance(uri, str):
            raise ContractError(f"resource_updated takes a URI, not {uri!r}")
        self._announce(updated(uri))

    def follow(self, listener: Listener) -> None:
        """Announce each change from now on to *listener*, which is referenced weakly."""
        with self._lock:
            self._listeners.add(listener)

    def _announce(self, change: ServerChange) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.announce(change)


class SendStatus(Enum):
    """The outcome of sending a message from a hook; true if it was sent."""

    SENT = "sent"
    UNWANTED = "unwanted"
    """The client did not ask for it, or cannot receive it; the next one may be wanted."""
    NOT_INCREASING = "not increasing"
    """Progress must increase with each notification (2026-07-28, progress), and be finite."""
    CLOSED = "closed"
    """The request was answered or cancelled, or its client has left. Nothing more is sent."""

    def __bool__(self) -> bool:
        """Whether it was sent."""
        return self is SendStatus.SENT


class Sink(Protocol):
    """Where channels' messages go: a response, a log, a test."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    @property
    def client_key(self) -> ClientKey:
        """The client that the requests count towards."""

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies all clients of the server of changes."""

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that go along where a store keeps the call."""

    def watch_client(self) -> None:
        """Detect a disconnect of the client at once from now on, and not only after a tick."""

    async def promote(self) -> None:
        """Make the call a task, while it runs on."""

    def route_resolved(self) -> None:
        """Apply the policy of a route that was not known when the hook began."""

    async def settle(self) -> None:
        """Wait until a promotion that was started has succeeded or failed."""

    async def following(self, task: str) -> None:
        """Record that the call waits for the end of *task*."""

    async def flush(self) -> None:
        """Write notifications that are still pending."""

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification that belongs to *request*; let others run meanwhile.

        False: the client takes none.
        """

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the least severe level *request* wants to hear of, None for nothing."""

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request of the server's own, and return its result as JSON.

        Raises:
            WaitError: the client cannot be asked, answers with an error, or not in time.
        """

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id* of *principal*; an `isError` result if nothing did."""

    def open(self) -> None:
        """Make the response an event stream, if it is not one yet."""

    def release(self, retry: int) -> None:
        """End the connection, not the stream."""

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the bounded pool of threads."""


class Channel(msgspec.Struct, Generic[R_co], eq=False):
    """The connection of a hook to its request and its client.

    request: the request. client: the client, as it describes itself. principal: the identity that
    the transport has authenticated, or None. Not for hooks: sink: where messages go. state: that of
    the call, if it is more than its hook. keyed: the task of its idempotency key.

    A `def` hook runs in a thread and cannot await: it calls
    `channel.in_loop(channel.progress(1, 3))`.
    """

    request: R_co
    sink: Sink
    principal: str | None = None
    _static: Mapping[str, Any] | None = None
    _copied: Mapping[str, Any] | None = None
    _assigns: "_Assigns | None" = None
    _loop: asyncio.AbstractEventLoop | None = None
    _progress: float = -inf
    state: CallState | None = None
    keyed: HeldTask | None = None
    _given: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Channel {self.request.method} {self.request.id!r}, {state}>"

    @property
    def client(self) -> ClientInfo:
        """The client, as it describes itself: name, capabilities, revision."""
        return self.request.client

    @property
    def closed(self) -> bool:
        """Whether the request is over: answered, cancelled, or its client gone."""
        return self.sink.closed

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies all clients that listen of changes.

        `channel.changes.resource_updated("note://today")`.
        """
        return self.sink.changes

    @property
    def assigns(self) -> MutableMapping[str, Any]:
        """The request's own values over those copied from the host's request over static ones.

        What is set here stays with this request; neither the host's request nor the mount's
        static values change. Only what was set here can be deleted.
        """
        if self._assigns is None:
            self._restore({})
        assert self._assigns is not None
        return self._assigns

    @property
    def _own(self) -> dict[str, Any]:
        """The assigns that hooks of this request have set: those that a continuation stores."""
        own: dict[str, Any] = self.assigns.maps[0]  # type: ignore[attr-defined]
        return own

    def _restore(self, own: Mapping[str, Any], gone: Collection[str] = ()) -> None:
        """Replace the assigns that hooks have set by *own*.

        Keys of *gone* were copied from another request: reading one raises AssignUnavailable.
        """
        layers = [dict(layer) for layer in (self._copied, self._given, self._static) if layer]
        self._assigns = _Assigns(dict(own), *layers)
        self._assigns.gone = gone

    def _give(self, static: Mapping[str, Any]) -> None:
        """Set the *static* assigns of one of several servers of a mux, over those of the mux.

        What hooks have set is kept.
        """
        if static or self._given:
            own, gone = self._own, self._assigns.gone if self._assigns else ()
            self._given = static
            self._restore(own, gone)

    @property
    def call(self) -> CallState:
        """The state of the call; made at the first access."""
        if self.state is None:
            self.state = CallState()
        return self.state

    @property
    def task(self) -> str | None:
        """The id of the task that this call has become, None if it has not."""
        return None if self.state is None else self.state.task

    @property
    def run_id(self) -> str | None:
        """In `on_cancel` and after a wait: the `run.id` of the job that the call waited for."""
        return None if self.state is None else self.state.run

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> SendStatus:
        """Send the progress of the call; return whether it was sent, or why not."""
        token = self.request.progress_token
        if token is None:
            return self._unsent
        if not self._progress < progress < inf:
            return SendStatus.CLOSED if self.closed else SendStatus.NOT_INCREASING
        self._progress = progress
        return await self.notify(
            "notifications/progress",
            ProgressNotificationParams(
                progress_token=token, progress=progress, total=total, message=message
            ),
        )

    async def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> SendStatus:
        """Send a log message of any JSON *data*; return whether it was sent, or why not.

        A client that speaks 2026-07-28 gets none unless the request asks for them; before, it
        set a level for its session ("info" if it did not).

        Raises:
            ValueError: there is no such level.
        """
        if level not in SEVERITY:
            raise ValueError(f"unknown log level {level!r}: one of {', '.join(SEVERITY)}")
        least = await self.log_level()
        if least is None or SEVERITY[level] < SEVERITY[least]:
            return self._unsent
        return await self.notify(
            "notifications/message",
            LoggingMessageNotificationParams(level=level, data=data, logger=logger),
        )

    async def log_level(self) -> LoggingLevel | None:
        """Return the least severe level of log messages that are sent; None: none is."""
        return None if self.closed else await self.sink.level(self.request)

    async def settle(self) -> None:
        """Wait until it is decided whether the client gets a handle, if that is being decided."""
        while self.call.undecided:
            await self.sink.settle()

    async def outcome_of(self, id: str) -> CallToolResult:
        """Return what came of another call of the same principal that was held over or is a task.

        An `isError` result says that it still runs, that it failed, or that there is none.
        """
        return await self.sink.outcome_of(id, self.principal)

    async def notify(self, method: str, params: Value | None = None) -> SendStatus:
        """Send any notification that belongs to this request; return whether it was sent."""
        if not self.closed and await self.sink.note(self.request, method, params):
            return SendStatus.SENT
        return self._unsent

    @property
    def _unsent(self) -> SendStatus:
        """The reason that nothing was sent, derived from the state of the request."""
        return SendStatus.CLOSED if self.closed else SendStatus.UNWANTED

    def start_stream(self) -> None:
        """Make the response an event stream now, so that its heartbeat keeps it alive."""
        if not self.closed:
            self.sink.open()

    def release(self, retry: int = 1000) -> None:
        """End the connection but not the call: the client comes back for what follows.

        *retry* is how many milliseconds it is asked to wait. 2025-11-25, transports, "Sending
        Messages to the Server", point 6; on other revisions nothing happens.
        """
        if not self.closed:
            self.sink.release(retry)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool of threads (`Limits.max_threads`).

        A call that is cancelled meanwhile goes on without its result; the thread is free again
        when *function* returns.
        """
        self._loop = asyncio.get_running_loop()
        return await self.sink.in_thread(function, *arguments)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the server's event loop and wait for it, from a `def` hook's thread.

        Raises:
            RuntimeError: this is no such thread (`await` it instead), or the loop has ended.
        """
        if self._loop is None or _in_a_loop():
            work.close()
            raise RuntimeError("in_loop is for threads (a `def` hook, in_thread): await it instead")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([done], timeout=0.5).done:
            if self._loop.is_closed():  # the worker has stopped
                work.close()
                raise RuntimeError("the server's event loop has ended")
        return done.result()


class _Assigns(ChainMap[str, Any]):
    """Assigns; reading one of the keys in *gone* raises AssignUnavailable."""

    gone: Collection[str] = ()

    def __missing__(self, key: str) -> Any:
        if key in self.gone:
            raise AssignUnavailable(key)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_detached(channel: Channel) -> bool:
    """Return whether the client has disconnected, even if its request is still served.

    The client may resume the stream (2025-11-25, transports, "Resumability and Redelivery").
    """
    # Only a response over HTTP can outlive its connection.
    return getattr(getattr(channel.sink, "caller", None), "detached", False)
