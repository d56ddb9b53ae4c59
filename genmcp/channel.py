"""The channel of a request: how its hooks reach the client, and the values that they share."""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Coroutine, Mapping, MutableMapping, Sequence
from concurrent.futures import wait
from enum import Enum
from functools import partial
from math import inf
from threading import Lock
from typing import Any, Final, Generic, Protocol
from weakref import WeakSet

import msgspec
from typing_extensions import TypeVar

from genmcp.binding import GetOwner, Owner
from genmcp.core.access import Access
from genmcp.core.call import CallAction, CallPhase, CallState
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

_DISCARDED: Final = (CallPhase.CANCELLED_TASK, CallPhase.OVER)
"""Phases in which the output of a call is discarded."""

T = TypeVar("T")
R_co = TypeVar("R_co", bound=Request, default=Request, covariant=True)


class Listener:
    """A receiver of changes. Subclassed by each mux, which notifies its clients."""

    def announce(self, change: ServerChange) -> None:
        """Receive a *change*. It is called from any thread, and must not block."""


class ChangeNotifier:
    """Announces changes to all clients that listen, through every mux that serves the server.

    A `Suite` has one, and a hook finds it as `channel.changes`. A server of your own makes one and
    returns it as its `changes`. Without a mux it has no effect. It may be used from any thread and
    does not wait for clients; a change that is announced again before it was sent is sent once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # Weak, so that a mux that is dropped without being closed is collected.
        self._listeners: WeakSet[Listener] = WeakSet()

    def tools_list_changed(self) -> None:
        """Announce that the list of tools has changed."""
        self._announce(TOOLS)

    def prompts_list_changed(self) -> None:
        """Announce that the list of prompts has changed."""
        self._announce(PROMPTS)

    def resources_list_changed(self) -> None:
        """Announce that the list of resources or of templates has changed."""
        self._announce(RESOURCES)

    def resource_updated(self, uri: str) -> None:
        """Announce that the contents of a resource have changed.

        Args:
            uri: the URI. Clients that have subscribed to exactly this URI are notified.

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
        # Copied under the lock: a mux may be added by another thread meanwhile, and a listener
        # that is called under the lock could deadlock.
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.announce(change)


class SendStatus(Enum):
    """The result of sending a message from a hook; true if it was sent."""

    SENT = "sent"
    UNWANTED = "unwanted"
    """The client did not ask for it, or cannot receive it; the next message may be sent."""
    NOT_INCREASING = "not increasing"
    """Progress must be finite and increase with each notification (2026-07-28, progress)."""
    CLOSED = "closed"
    """The request has ended: it was answered or cancelled, or its client has disconnected."""

    def __bool__(self) -> bool:
        """Return whether the message was sent."""
        return self is SendStatus.SENT


class Sink(Protocol):
    """The receiver of a channel's messages: a response, a pipe, or the record of a task."""

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""

    def watch_client(self) -> None:
        """Detect a disconnect of the client at once from now on, instead of within a tick."""

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification that belongs to *request*, and yield to the event loop.

        Return False if the client cannot receive any.
        """

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request of the server to the client, and return its result as JSON.

        Raises:
            WaitError: the client cannot answer, responds with an error, or times out.
        """

    def begin_stream(self) -> None:
        """Make the response an event stream, unless it is one."""

    def release(self, retry: int) -> None:
        """Close the connection, but not the stream."""


class Caller(Protocol):
    """The source of a call: an HTTP request, the connection of a client, or a stored request."""

    @property
    def client_key(self) -> ClientKey:
        """The client that the call counts towards in limits."""

    @property
    def copied(self) -> Mapping[str, Any] | None:
        """The assigns copied from the host's request."""

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that are stored with the call."""

    @property
    def detached(self) -> bool:
        """Whether the client has closed the connection, while its request is still served."""

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check that the client was granted *scopes*, where the transport authenticates clients.

        Raises:
            InsufficientScope: it lacks one.
        """


class Performer(Protocol):
    """The runtime of a call, which performs the actions that follow from its events."""

    async def perform(self, action: CallAction, channel: "Channel[Any]") -> None:
        """Perform *action* for the call of *channel*."""


class CallServices(msgspec.Struct, frozen=True, eq=False):
    """The parts of a mux that channels use.

    level_of: returns the lowest level of log messages that a request wants; None for no messages.
    result_of: returns the result of a call of a principal by its id. in_thread: runs a blocking
    function in the thread pool. owner: returns a client (its principal, and `Put.client`) as an
    owner of bound values.
    """

    changes: ChangeNotifier
    level_of: Callable[[Request], Coroutine[Any, Any, LoggingLevel | None]]
    result_of: Callable[[str, str | None], Coroutine[Any, Any, CallToolResult]]
    in_thread: Callable[..., Coroutine[Any, Any, Any]]
    owner: Callable[[str | None, str], Owner]


class CallContext(CallState, kw_only=True, eq=False):
    """A call of this process: its state, and how it reaches its client. Owned by its channel.

    The mux and the transports share it. sink: replaced when the call becomes a task. static, given:
    the assigns of the mux, and of one of several servers of it. marks: those of each telemetry.
    step: the step of the task when the call began; an earlier call with its idempotency key had it.
    promoting: the asyncio.Task in which a promotion accesses the store, if one does now.
    """

    sink: Sink
    caller: Caller
    performer: Performer
    services: CallServices
    static: Mapping[str, Any] | None = None
    given: Mapping[str, Any] | None = None
    marks: Sequence[tuple[Any, Any]] = ()
    step: int = 0
    promoting: "asyncio.Task[None] | None" = None
    _assigns: "_Assigns | None" = None

    @property
    def client(self) -> str:
        """The client that stored data of the call count towards."""
        return self.caller.client_key.client

    @property
    def assigns(self) -> "_Assigns":
        """The values of the call, in layers: see `Channel.assigns`."""
        if self._assigns is None:
            self.restore({})
        assert self._assigns is not None
        return self._assigns

    @property
    def own_assigns(self) -> Mapping[str, Any]:
        """The assigns that hooks of the call have set. A continuation stores them."""
        return {} if self._assigns is None else self._assigns.maps[0]

    def restore(self, own: Mapping[str, Any], gone: Collection[str] = ()) -> None:
        """Replace the assigns that hooks have set by *own*.

        The keys *gone* were copied from a request that has ended: reading one raises
        AssignUnavailable.
        """
        layers = [dict(layer) for layer in (self.caller.copied, self.given, self.static) if layer]
        self._assigns = _Assigns(dict(own), *layers)
        self._assigns.gone = gone

    def give(self, static: Mapping[str, Any]) -> None:
        """Set the *static* assigns of one of several servers of a mux, over those of the mux.

        Assigns that hooks have set are kept.
        """
        if static or self.given:
            own, gone = self.own_assigns, self.assigns.gone
            self.given = static
            self.restore(own, gone)

    async def promotion_decided(self) -> None:
        """Wait until it is decided whether the client gets the handle of a task."""
        # A promotion that fails may be followed by another one.
        while self.promoting is not None and self.undecided:
            await asyncio.wait([self.promoting])


class Channel(msgspec.Struct, Generic[R_co], eq=False):
    """The connection of a hook to its client. Made by the transport, one for each request.

    `Channel[ToolRequest[City]]` is a channel for a tool with arguments of the type City. A
    `def` hook runs in a thread, where it cannot await: it calls
    `channel.in_loop(channel.progress(1, 3))`.

    Attributes:
        request: the request, with the arguments of the tool or prompt, or the key of the resource.
        access: who calls: the content of the verified access token, or the identity and the scopes
            that the host application gave. None for an anonymous client, and over stdio by
            default. In a call that is resumed without a request it has neither claims nor a time
            of expiry.
    """

    # For the mux and the transports; hooks have no use for it.
    request: R_co
    context: CallContext
    access: Access | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _progress: float = -inf

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Channel {self.request.method} {self.request.id!r}, {state}>"

    @property
    def client(self) -> ClientInfo:
        """The client as it describes itself: name, capabilities and revision, not verified."""
        return self.request.client

    @property
    def principal(self) -> str | None:
        """The identity of the client as one text, None if it is anonymous; see `access`."""
        return None if self.access is None else self.access.principal

    @property
    def closed(self) -> bool:
        """Whether the request was answered or cancelled, or its client has disconnected."""
        context = self.context
        return context.phase in _DISCARDED or context.sink.closed

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies all clients of changes: `channel.changes.resource_updated("note://today")`."""
        return self.context.services.changes

    @property
    def assigns(self) -> MutableMapping[str, Any]:
        """The values of this request.

        Those that hooks set here take precedence over those copied from the host's request
        (`Endpoint(copy_assigns=)`), and these over the static ones of the mux (`Mux(assigns=)`).
        Setting one here changes neither of the two. Only those set here can be deleted.
        """
        return self.context.assigns

    @property
    def task(self) -> str | None:
        """The id of the task that this call has become, or None."""
        return self.context.task

    @property
    def run_id(self) -> str | None:
        """The `run.id` of the job that the call waited for; in `on_cancel` and after a wait."""
        return self.context.run

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> SendStatus:
        """Send the progress of the call.

        Args:
            progress: how much is done, in any unit; it must increase with each notification.
            total: how much there is to do, if that is known.
            message: a text for people.

        Returns:
            Whether it was sent, or why not.
        """
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
        """Send a log message.

        A client of 2026-07-28 gets it only if its request asks for this level; before, the client
        sets a level for its session, by default "info".

        Args:
            level: its severity.
            data: the message, any JSON value.
            logger: the name of the logger.

        Returns:
            Whether it was sent, or why not.

        Raises:
            ValueError: the level is unknown.
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
        """Return the lowest level of log messages that are sent; None if none is sent."""
        return None if self.closed else await self.context.services.level_of(self.request)

    async def notify(self, method: str, params: Value | None = None) -> SendStatus:
        """Send a notification that belongs to this request.

        Returns:
            Whether it was sent, or why not.
        """
        if not self.closed and await self.context.sink.note(self.request, method, params):
            return SendStatus.SENT
        return self._unsent

    @property
    def _unsent(self) -> SendStatus:
        return SendStatus.CLOSED if self.closed else SendStatus.UNWANTED

    def start_stream(self) -> None:
        """Make the response an event stream now, so that heartbeats keep its connection open."""
        if not self.closed:
            self.context.sink.begin_stream()

    def release(self, retry: int = 1000) -> None:
        """Close the connection, but not the call: the client reconnects for the rest of the stream.

        2025-11-25, transports, "Sending Messages to the Server", point 6. It has no effect on other
        revisions.

        Args:
            retry: milliseconds after which the client should reconnect.
        """
        if not self.closed:
            self.context.sink.release(retry)

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, closing: bool = False
    ) -> Any:
        """Run a blocking *function* in the thread pool of the mux (`Limits.max_threads`).

        A call that is cancelled meanwhile does not wait for it. The thread is occupied until
        *function* returns.

        Args:
            function: what to run.
            arguments: its arguments.
            closing: whether *function* closes something that would stay open otherwise. It waits
                for a thread, however many calls do (`Limits.max_thread_queue`).
        """
        self._loop = asyncio.get_running_loop()
        client, services = self.context.client or None, self.context.services
        return await services.in_thread(function, *arguments, client=client, closing=closing)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the event loop of the server, and wait for it in the thread of a hook.

        Raises:
            RuntimeError: it is called outside of such a thread, where *work* can be awaited, or the
                event loop has ended.
        """
        if self._loop is None or _in_a_loop():
            work.close()
            raise RuntimeError("in_loop is for threads (a `def` hook, in_thread): await it instead")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        # A loop that ends does not cancel the future: without the timeout the thread would wait
        # for ever, and with it the exit of the process.
        while not wait([done], timeout=0.5).done:
            if self._loop.is_closed():
                work.close()
                raise RuntimeError("the server's event loop has ended")
        return done.result()


def owner_of(channel: Channel[Any]) -> GetOwner:
    """Return a function that returns the client of *channel* as an owner of bound values."""
    context = channel.context
    return partial(context.services.owner, channel.principal, context.client)


_ASKS = "return elicit(...).then(self.method): the method, or a step of @tool, gets the answer"

# Names that other frameworks have, and what to write instead. The hint is added when a hook has
# failed with the AttributeError: a `__getattr__` would slow down the attributes that exist.
_HINTS = {
    **dict.fromkeys(["debug", "info", "warning", "error"], 'write await channel.log("info", data)'),
    **dict.fromkeys(["elicit", "sample", "list_roots"], _ASKS),
    **dict.fromkeys(["state", "get_state", "set_state"], 'use channel.assigns["key"]'),
    "report_progress": "write await channel.progress(done, total, message)",
    "arguments": "write channel.request.arguments",
}


def hint_of_name(error: BaseException) -> str | None:
    """Return what to write instead of the attribute of a channel that *error* has not found."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Channel):
        return _HINTS.get(error.name or "")
    return None


class _Assigns(ChainMap[str, Any]):
    """Assigns in layers; reading one of the keys *gone* raises AssignUnavailable."""

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
