"""The mux: serves one server, keeps its state, and routes its live messages.

It decides nothing about the protocol (that is `genmcp.core`) and moves no bytes (that is
`genmcp._transports`).
"""

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from genmcp._mux.builtin_methods import BuiltinMethods
from genmcp._mux.bus import MessageBus, ServerRequests
from genmcp._mux.changes import Subscriptions
from genmcp._mux.continuations import Continuations, has_tasks
from genmcp._mux.keyed import KeyedCalls, key_of
from genmcp._mux.limits import (
    CLIENT_THREADS,
    MAX_REPLAY_BYTES,
    MAX_SUBSCRIBED_BYTES,
    ConcurrencyLimit,
    Limits,
    UnsentBytes,
)
from genmcp._mux.performing import report
from genmcp._mux.replay import Replay
from genmcp._mux.responses import NO_HEADERS, TASK_SUSPENDED, EncodedResponse, Responses
from genmcp._mux.scopes import scopes_of
from genmcp._mux.session_streams import SessionStreams
from genmcp._mux.sessions import CallRegistry, Sessions
from genmcp._mux.tasks import new_id
from genmcp._mux.telemetry import Observers, Telemetry
from genmcp._mux.threads import ThreadPool
from genmcp.binding import Owner
from genmcp.cancellation import cancel_requested
from genmcp.channel import ChangeNotifier, Channel
from genmcp.core.call import Promote, RouteResolved
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.core.server import BUILTIN, is_offered
from genmcp.core.session import Session
from genmcp.core.waiting import Continue, ExternalJob, Suspended
from genmcp.errors import CapabilityMissing, ConfigurationError, InvalidParams, SealError
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.params import InputResponseRequestParams, PaginatedRequestParams
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Server, added_method, resolve_route
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store
from genmcp.tasks.options import JobOptions
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.wire.encoder import Encoder

SECRET_VARIABLE: Final = "GENMCP_SECRET"
_STORE_VARIABLE: Final = "GENMCP_STORE"

logger = logging.getLogger("genmcp")

_LOOK: Final = 1.0
"""Maximum seconds of silence after which a resumed stream checks whether its process is alive."""

_MESSAGES: Final = 10_000
"""The number of messages to one process, or to all, that are retained for a slow process."""


class Mux:
    """Routes the requests of any number of transports to one server, and keeps its state.

    Args:
        server: the server, such as a `Suite`.
        secret: seals session ids, cursors and `requestState`: at least 16 bytes. Several rotate:
            the first seals, all of them open. Default: the environment variable `GENMCP_SECRET`,
            else a random one, which is enough for one process.
        store: where tasks, sessions and event streams are stored: a `Store`, or its URL
            (`sqlite:///jobs.db`). `aclose` closes it, also a `Store` that was passed in. Default:
            the environment variable `GENMCP_STORE`, else memory.
        jobs: how this process runs jobs. Default `JobOptions()`.
        external: the queues that an `ExternalJob` may name. Default: none.
        limits: all bounds. Default `Limits()`.
        assigns: initial values of `channel.assigns`. Default: none.
        audience: the name that sealed values are bound to; default: that of the server. Give muxes
            that share a secret different ones.
        telemetry: one or several observers of requests.
        clock: returns Unix time in seconds, by which sealed values (sessions, cursors) expire, and
            tasks if the mux makes its own store. Default: that of a shared store, else `time.time`.
            Tests give a clock to expire things without waiting.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        server: Server,
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        store: Store | str | None = None,
        jobs: JobOptions | None = None,
        external: Sequence[ExternalQueue] = (),
        limits: Limits | None = None,
        assigns: Mapping[str, Any] | None = None,
        audience: str | None = None,
        telemetry: Telemetry | Iterable[Telemetry] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.server, self.find = _checked_server(server), server.find
        self.offers = partial(is_offered, server)
        self.added = partial(added_method, server)
        self.limits = limits or Limits()
        self.assigns = dict(assigns or {})
        self.encoder = Encoder(server.info)
        self.responses = Responses(self.encoder)
        self.observers = Observers(telemetry)
        self.store, self._closes_store = _chosen_store(store, clock)
        clock = clock or _chosen_clock(self.store)
        self.audience = audience or server.info.name
        secret = _chosen_secret(secret, self.store)
        self.seal = Seal(secret, self.audience, now=clock, nonce=secrets.token_bytes)
        self._limit_clients()
        self._carry_messages(clock)
        self._store_calls(jobs or JobOptions(), external)
        self.builtin = BuiltinMethods(self, self.continuations)
        self.observers.attach(self.waiting_calls, self.streams, self.tasks.service, self.store)
        # Chosen once: without telemetry, a call pays nothing for it.
        self.handle = self._observed if self.observers else self._handled

    def _limit_clients(self) -> None:
        """Make the counters of what clients have open."""
        limits = self.limits
        self.waiting_calls = ConcurrencyLimit(
            "waiting calls", limits.max_waiting_calls, limits, setting="max_waiting_calls"
        )
        self.streams = ConcurrencyLimit(
            "open streams", limits.max_streams, limits, setting="max_streams"
        )
        self.body_bytes = ConcurrencyLimit(
            "bytes of bodies",
            limits.max_total_body_bytes,
            limits,
            setting="max_total_body_bytes",
            least=limits.max_body_bytes,
        )
        self.subscribed_bytes = ConcurrencyLimit("subscribed bytes", MAX_SUBSCRIBED_BYTES, limits)
        self.unsent_bytes = UnsentBytes(limits.anonymous_share)
        self.threads = ThreadPool(
            limits.max_threads,
            limits.max_thread_queue,
            of_client=max(1, int(limits.max_threads * max(limits.client_share, CLIENT_THREADS))),
            waiting_of_client=limits.share_of_client(limits.max_thread_queue),
        )

    def _carry_messages(self, clock: Callable[[], float]) -> None:
        """Make the parts that carry changes, and the messages of sessions, between processes."""
        store, limits, audience = self.store, self.limits, self.audience
        self.subscriptions = Subscriptions(store, f"changes:{audience}", limits)
        self.changes = self.server.changes or ChangeNotifier()
        self.changes.follow(self.subscriptions)
        self.session_streams = SessionStreams(
            store, self.subscriptions, self.server, self.encoder, limits
        )
        ttl = max(limits.replay_ttl, limits.input_timeout)  # replies are of use for that long
        self.bus = MessageBus(store, audience, ttl, _MESSAGES, MAX_REPLAY_BYTES)
        self.server_requests = ServerRequests(
            self.seal, self.bus, self.encoder, limits.input_timeout
        )
        self.calls = CallRegistry()
        self.sessions = Sessions(self.seal, store, limits, audience, clock, self.calls, self.bus)

    def _store_calls(self, jobs: JobOptions, external: Sequence[ExternalQueue]) -> None:
        """Make the parts of calls that wait, and of those that outlive their requests."""
        self.continuations = Continuations(self, jobs=jobs, external=external)
        self.tasks = self.continuations.tasks
        self.call_services = self.continuations.call_services
        self.keyed = KeyedCalls(self, self.continuations)
        lives, look = self.tasks.service.heartbeats.is_alive, min(_LOOK, jobs.lease / 3)
        self.replay = Replay(self.store, self.limits, self.bus.process_name, lives, look)

    def __repr__(self) -> str:
        return f"<Mux of {self.server.info.name}, {len(self.calls)} sessions with open calls>"

    def owner(self, principal: str | None, client: str) -> Owner:
        """Return a client, *client* in the store, as the owner of bound values."""
        return Owner(self.store, self.seal, self.audience, principal, client)

    async def end_session(self, session: Session, client: ClientKey) -> None:
        """End *session* of *client*: cancel its calls, end its streams, revoke its id.

        Raises:
            Overloaded: too many ended sessions are remembered; this one stays open.
        """
        await self.sessions.end(session, client)
        self.observers.session_ended(session, self.store.now())
        await self.session_streams.end(session.key)

    async def _handled(self, request: Request, channel: Channel) -> EncodedResponse:
        try:
            route, params = request.route, request.params
            result: Result | Continue | Suspended
            if route is None:
                result = await self._unrouted(request, channel)
            elif (
                (route.eager or route.scopes)
                or params.meta.idempotency_key is not None
                or (
                    isinstance(params, InputResponseRequestParams)
                    and params.request_state is not None
                )
            ):
                result = await self._checked(request, channel)
            else:
                result = await self.server.handle(request, channel)
            if not isinstance(result, Result):
                if not isinstance(result, Suspended):
                    result = await self.continuations.advance(result, channel)
                if isinstance(result, Suspended):
                    await self.tasks.park(channel, result)
                    return TASK_SUSPENDED
            cursor = None if route is not None else _seal_cursor(self.seal, result, channel)
            message = self.encoder.response(request.revision, request.id, result, cursor)
            # The result of a task was checked when it ended.
            if len(message) > self.limits.max_result_bytes and request.method != "tasks/get":
                raise self.limits.too_large()
            return EncodedResponse(message, 200, NO_HEADERS, result)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                raise
            return self.responses.failed_call(channel, error)

    async def _checked(self, request: Request, channel: Channel) -> Result | Suspended:
        """Handle a *request* that needs a check before its hook runs, or has a state or a key.

        The route is resolved first, and its scopes are checked: also the result of an earlier call
        with the key is only for a client that has them.

        Raises:
            InsufficientScope: the client lacks a scope of the component.
            InvalidParams: the state or the key is invalid for this request.
            CapabilityMissing: the call needs tasks, which the client does not support.
        """
        if request.route is not None and request.route.pending:
            request = await resolve_route(channel)
            await report(channel, RouteResolved())
        if request.route is not None and request.route.scopes:
            channel.context.caller.require_scopes(request.route.scopes)
        policy = request.policy
        if policy.requires_tasks and not has_tasks(request):
            raise CapabilityMissing({"extensions": {TASKS: {}}})
        key = key_of(request)
        if request.request_state is not None:
            keyed = () if key is None else self.keyed.ids(channel, key)
            return await self.continuations.retried(request, channel, keyed)
        if key is not None:
            return await self.keyed.handle(request, channel, key)
        if policy.task == "always" and has_tasks(request):
            await self._promote(channel)
        step = await self.server.handle(request, channel)
        return await self.continuations.advance(step, channel)

    async def _promote(self, channel: Channel) -> None:
        """Make the call a task before its hook begins."""
        await asyncio.sleep(0)  # the call is registered when it first waits
        channel.context.sink.watch_client()
        await report(channel, Promote(new_id()))
        await channel.context.promotion_decided()

    async def _observed(self, request: Request, channel: Channel) -> EncodedResponse:
        """Handle as `_handled` does, and notify the telemetry; a route is resolved at the end."""
        context = channel.context
        context.marks = marks = self.observers.began(request, channel)
        try:
            response = await self._handled(request, channel)
        except BaseException as error:
            # A task that is only followed here continues without this.
            followed = None if context.promoted else context.handle
            self.observers.ended(channel.request, followed, None if followed else error, marks)
            raise
        result = response.result or context.handle
        self.observers.ended(channel.request, result, response.raised, marks)
        return response

    def add_telemetry(self, telemetry: Telemetry) -> None:
        """Let *telemetry* observe the mux as well from now on."""
        self.observers.add(telemetry)
        self.handle = self._observed

    async def _unrouted(self, request: Request, channel: Channel) -> Result | Continue:
        method, params = request.method, request.params
        if scopes := scopes_of(self.server, request, channel.access):
            channel.context.caller.require_scopes(scopes)
        if method in BUILTIN:
            return await self.builtin.handle(request, channel)
        if isinstance(params, PaginatedRequestParams):
            cursor = params.cursor
            if cursor is not None:
                cursor = _open_cursor(self.seal, cursor, channel)
            return await self.server.listed(method, cursor, channel)
        return await self.server.handle(request, channel)

    async def settle(self, ref: ExternalJob, snapshot: ExternalStatus) -> None:
        """Report the end of an external job, from a callback of its queue or a webhook.

        The first report counts, this one or the one that is read from the queue.

        Raises:
            ValueError: *snapshot* is that of a job that has not ended.
        """
        await self.tasks.service.settle(ref, snapshot)

    async def aclose(self) -> None:
        """Close the threads and the store. Close the endpoints first.

        A `Store` that was passed to the mux is closed as well. Only the default store in memory
        stays open, because a host may be started a second time with the same mux.
        """
        await self.tasks.aclose()
        await self.subscriptions.aclose()
        await self.bus.aclose()
        await self.sessions.aclose()
        self.threads.close()
        if self._closes_store:
            await self.store.aclose()


# A cursor is bound to its list and its principal: it opens no other list, and shows no entries
# that another principal sees. 2026-07-28, server/utilities, "Pagination": cursors are opaque, and
# an invalid one is -32602.


_CURSOR_TTL: Final = 3600.0
"""Seconds for which a client may ask for the next page of a list."""


def _seal_cursor(seal: Seal, result: Result, channel: Channel) -> str | None:
    if not isinstance(result, PaginatedResult) or result.next_cursor is None:
        return None
    # A server may use any text, also one with a lone surrogate.
    cursor = result.next_cursor.encode("utf-8", "surrogatepass")
    bound = channel.request.method, channel.principal
    return seal.seal(Purpose.CURSOR, cursor, *bound, ttl=_CURSOR_TTL)


def _open_cursor(seal: Seal, text: str, channel: Channel) -> str:
    bound = channel.request.method, channel.principal
    try:
        return seal.open(Purpose.CURSOR, text, *bound).decode("utf-8", "surrogatepass")
    except SealError:
        raise InvalidParams("Invalid cursor") from None


# The settings without a constant default: the store, the clock and the secret.


def _checked_server(server: Server) -> Server:
    """Return *server*.

    Raises:
        ConfigurationError: it is not one server.
    """
    if isinstance(server, Server):
        return server
    if callable(getattr(server, "server", None)):
        raise ConfigurationError(
            f"{server!r} is not one server: give what its server() returns; "
            "a RegistryEndpoint serves each server of a registry as well"
        )
    raise ConfigurationError(f"server must be an instance of a Server (a Suite), not {server!r}")


def _chosen_store(
    given: Store | str | None, clock: Callable[[], float] | None
) -> tuple[Store, bool]:
    """Return the store to use, and whether `Mux.aclose` closes it: all but the default store."""
    chosen = given or os.environ.get(_STORE_VARIABLE)
    if not chosen:
        return MemoryStore(clock=clock), False
    if not isinstance(chosen, Store | str):
        raise ConfigurationError(f"store must be a Store or its URL, not {chosen!r}")
    return open_store(chosen) if isinstance(chosen, str) else chosen, True


def _chosen_clock(store: Store) -> Callable[[], float]:
    """Return the clock by which sealed values expire, common to the processes that open them.

    Without a shared store they have only the time of day in common.
    """
    # Looked up at each call, so that a test can replace it.
    return store.now if store.shared else lambda: time.time()


def _chosen_secret(
    given: str | bytes | Sequence[str | bytes] | None, store: Store
) -> str | bytes | Sequence[str | bytes]:
    """Return the secret to use; a random one only for a store that is not shared."""
    chosen = given or os.environ.get(SECRET_VARIABLE)
    if chosen:
        return chosen
    if store.shared:
        raise ConfigurationError(
            f"a shared store needs one secret for all its processes: secret= or {SECRET_VARIABLE}"
        )
    if (workers := _workers()) > 1:
        logger.warning(
            "no secret is configured and there are %s workers: each rejects the sessions of the "
            "others. Give all of them one secret (secret= or %s).",
            workers,
            SECRET_VARIABLE,
        )
    return secrets.token_bytes(32)


def _workers() -> int:
    """Return the number of processes that serve this application, as far as it is visible.

    It is visible in WEB_CONCURRENCY, or in the command line that a worker inherits from its parent.
    """
    counts = [os.environ.get("WEB_CONCURRENCY", "1")]
    for option, value in pairwise([*sys.argv, ""]):
        name, _, attached = option.partition("=")
        if name in ("--workers", "-w"):
            counts.append(attached or value)
    return max([1, *(int(count) for count in counts if count.isdigit())])


def mux_of(target: Mux | Server) -> Mux:
    """Return *target* if it is a mux, else a new mux of this server.

    Raises:
        ConfigurationError: it is not one server; a hub, or a registry, has many.
    """
    return target if isinstance(target, Mux) else Mux(target)
