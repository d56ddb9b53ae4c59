"""The mux: serves one server, keeps its state, and routes its live messages.

It decides nothing about the protocol (that is `genmcp._core`) and moves no bytes (that is
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
from types import MappingProxyType
from typing import Any, Final

import msgspec

from genmcp._core.access import InsufficientScope
from genmcp._core.call import Promote, RouteResolved
from genmcp._core.client_key import ClientKey
from genmcp._core.failures import failure_outcome, http_status_of, is_expected, store_failure
from genmcp._core.outcome import Outcome
from genmcp._core.request import Request
from genmcp._core.seal import Purpose, Seal
from genmcp._core.server import BUILTIN, is_offered
from genmcp._core.session import Session
from genmcp._core.waiting import Continue, ExternalJob, Suspended
from genmcp._mux.builtin_methods import BuiltinMethods
from genmcp._mux.bus import MessageBus, ServerRequests
from genmcp._mux.changes import Subscriptions
from genmcp._mux.continuations import Continuations, has_tasks
from genmcp._mux.deployment import DeploymentLimits
from genmcp._mux.keyed import KeyedCalls, key_of
from genmcp._mux.limits import ConcurrencyLimit, Limits
from genmcp._mux.performing import report
from genmcp._mux.replay import Replay
from genmcp._mux.resumption import Resumption
from genmcp._mux.scopes import check_named, has_waited, refused
from genmcp._mux.session_streams import SessionStreams
from genmcp._mux.sessions import CallRegistry, SessionBroadcast, Sessions
from genmcp._mux.sinks import Services
from genmcp._mux.tasks import Tasks, new_id
from genmcp._mux.telemetry import Observers, Telemetry
from genmcp._mux.threads import ThreadPool
from genmcp._mux.unsent import UnsentBytes
from genmcp._wire.encoder import Encoder
from genmcp._wire.jsonrpc import printable
from genmcp.cancellation import cancel_requested
from genmcp.channel import CallServices, ChangeNotifier, Channel, hint_of_name
from genmcp.errors import (
    CapabilityMissing,
    ConfigurationError,
    InternalError,
    InvalidParams,
    McpError,
    SealError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.params import InputResponseRequestParams, PaginatedRequestParams
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Server, resolve_route
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store
from genmcp.tasks.engine import engine_on
from genmcp.tasks.external import ExternalQueue, ExternalStatus
from genmcp.tasks.options import JobOptions
from genmcp.tasks.retry import LogThrottle

logger = logging.getLogger("genmcp")

SECRET_VARIABLE: Final = "GENMCP_SECRET"
_STORE_VARIABLE: Final = "GENMCP_STORE"

_LOOK: Final = 1.0
"""Maximum seconds of silence after which a resumed stream checks whether its process is alive."""

_NOT_STORED: Final = MappingProxyType({"cache-control": "no-store"})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class EncodedResponse(msgspec.Struct, frozen=True):
    """The response to a request, as JSON, with its HTTP status and headers.

    message: None if the request was cancelled and gets no response. status, headers: used if the
    message is the whole HTTP response. outcome: the result or error in the message. raised: the
    exception of the hook, if any. refusal: the scopes that the client lacks. The whole HTTP
    response is then a challenge for them, in place of the message; there are headers in that case.
    """

    message: bytes | None
    status: int = 200
    headers: Mapping[str, str] = _NO_HEADERS
    outcome: Result | McpError | None = None
    raised: BaseException | None = None
    refusal: InsufficientScope | None = None


TASK_SUSPENDED: Final = EncodedResponse(None)


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
        jobs: how this process runs jobs. external: the queues that an `ExternalJob` may name.
        limits: all bounds. assigns: initial values of `channel.assigns`.
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
        self.server, self.find = _checked(server), server.find
        self.limits = bounds = limits or Limits()
        self.longest_name = bounds.max_uri_bytes
        self.store, self._closes_store = _store(store, clock)
        jobs, audience = jobs or JobOptions(), audience or server.info.name
        self.assigns, self.encoder = dict(assigns or {}), Encoder(server.info)
        clock, secret = clock or _clock(self.store), _secret(secret, self.store)
        self.seal = seal = Seal(secret, audience, now=clock, nonce=secrets.token_bytes)
        self._warnings = LogThrottle(logger)
        self.subscriptions = Subscriptions(self.store, f"changes:{audience}", bounds)
        self.session_streams = SessionStreams(
            self.store, self.subscriptions, server, self.encoder, bounds
        )
        self.changes = server.changes or ChangeNotifier()
        self.changes.follow(self.subscriptions)
        self._deployment = shared = DeploymentLimits(self.store, audience, bounds)
        self.waiting_calls, self.streams = shared.waiting_calls, shared.streams
        self.body_bytes = ConcurrencyLimit("max_total_body_bytes", bounds, "bytes of bodies")
        self.unsent_bytes = UnsentBytes(bounds.anonymous_share)
        self.subscribed_bytes = ConcurrencyLimit("max_subscribed_bytes", bounds, "subscribed bytes")
        self.calls = CallRegistry()
        ttl, keep = bounds.replay_ttl, bounds.max_replay_events
        self.bus = MessageBus(self.store, audience, ttl, keep, bounds.max_replay_bytes)
        self.broadcast = SessionBroadcast(self.calls, self.bus, self.store, audience, bounds, clock)
        self.sessions = Sessions(seal, self.store, bounds, clock, self.broadcast)
        self.threads = _thread_pool(bounds)
        self.observers = Observers(telemetry)
        self.server_requests = ServerRequests(seal, self.bus, self.encoder, bounds.input_timeout)
        options = {"engine": engine_on(self.store), "jobs": jobs, "external": external}
        self._make_tasks(seal, audience, **options)
        lives, look = self.tasks.service.heartbeats.is_alive, min(_LOOK, jobs.lease / 3)
        self.replay = Replay(self.store, bounds, self.bus.node, lives, look)
        state = self.sessions, self.session_streams, self.tasks
        self.builtin = BuiltinMethods(server, *state, self.encoder, bounds)
        self.offers = partial(is_offered, server)
        self.observers.attach(self.waiting_calls, self.streams, self.tasks.worker, self.store)
        # Chosen once: without telemetry, a call pays nothing for it.
        self.answer = self._observed if self.observers else self._answer

    def _make_tasks(self, seal: Seal, audience: str, **options: Any) -> None:
        self.services = services = Services(
            server=self.server,
            store=self.store,
            seal=seal,
            limits=self.limits,
            assigns=self.assigns,
            bus=self.bus,
            sessions=self.sessions,
            threads=self.threads,
            observers=self.observers,
        )
        self.tasks = Tasks(
            services,
            audience,
            **options,
            # Called later: `resumption` is made below, from the tasks.
            resume=lambda task, call, outcome: self.resumption.resume(task, call, outcome),
            cancelled=lambda task, call: self.resumption.cancelled(task, call),
        )
        self.call_services = CallServices(
            self.changes, self.sessions.level_of, self.tasks.result_of, self.threads.run
        )
        self.continuations = Continuations(services, self.tasks)
        self.resumption = Resumption(
            services, self.call_services, self.tasks, self.continuations, self.outcome
        )
        self.keyed = KeyedCalls(
            services, self.tasks, self.continuations, self.resumption, self.waiting_calls
        )

    def __repr__(self) -> str:
        return f"<Mux of {self.server.info.name}, {len(self.calls)} sessions with open calls>"

    async def end_session(self, session: Session, client: ClientKey) -> None:
        """End *session* of *client*: cancel its calls, end its streams, revoke its id.

        Raises:
            Overloaded: too many ended sessions are remembered; this one stays open.
        """
        await self.broadcast.end(session, client)
        self.observers.session_ended(session, self.store.now())
        await self.session_streams.end(session.key, client.client)

    async def _answer(self, request: Request, channel: Channel) -> EncodedResponse:
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
            cursor = (
                None if route is not None else _seal_cursor(self.seal, result, channel, self.limits)
            )
            message = self.encoder.response(request.revision, request.id, result, cursor)
            # The result of a task was checked when it ended.
            if len(message) > self.limits.max_result_bytes and request.method != "tasks/get":
                raise self.limits.too_large()
            return EncodedResponse(message, 200, _NO_HEADERS, result)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                raise
            return _failed(self, channel, error)

    async def _checked(self, request: Request, channel: Channel) -> Result | Suspended:
        """Answer a *request* that needs a check before its hook runs, or has a state or a key.

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
            return await self.keyed.answer(request, channel, key)
        if policy.task == "always" and has_tasks(request):
            await self._promote(channel)
        step = await self.server.handle(request, channel)
        return await self.continuations.advance(step, channel)

    async def _promote(self, channel: Channel) -> None:
        """Make the call a task before its hook begins."""
        await asyncio.sleep(0)  # the call is registered when it first waits
        channel.context.sink.watch_client()
        await report(channel, Promote(new_id()))
        await channel.context.settle()

    async def _observed(self, request: Request, channel: Channel) -> EncodedResponse:
        """Answer as `_answer` does, and notify the telemetry; a route is resolved at the end."""
        channel.context.marks = marks = self.observers.began(request, channel)
        try:
            answer = await self._answer(request, channel)
        except BaseException as error:
            # A task that is only followed here continues without this.
            context = channel.context
            followed = None if context.promoted else context.handle
            self.observers.ended(channel.request, followed, None if followed else error, marks)
            raise
        outcome = answer.outcome or channel.context.handle
        self.observers.ended(channel.request, outcome, answer.raised, marks)
        return answer

    def respond(
        self, request: Request, outcome: Result | McpError, raised: BaseException | None = None
    ) -> EncodedResponse:
        """Return the answer with *outcome*; *raised*: the exception of the hook, if it failed."""
        revision, id = request.revision, request.id
        if isinstance(outcome, McpError):
            message = self.encoder.error(revision, id, outcome)
            return EncodedResponse(
                message, http_status_of(outcome, revision), outcome.headers, outcome, raised
            )
        message = self.encoder.response(revision, id, outcome)
        return EncodedResponse(message, 200, _NO_HEADERS, outcome, raised)

    async def _unrouted(self, request: Request, channel: Channel) -> Result | Continue:
        method, params = request.method, request.params
        check_named(self.server, channel)
        if method in BUILTIN:
            return await self.builtin.answer(request, channel)
        if isinstance(params, PaginatedRequestParams):
            cursor = params.cursor
            if cursor is not None:
                cursor = _open_cursor(self.seal, cursor, channel)
            return await self.server.listed(method, cursor, channel)
        return await self.server.handle(request, channel)

    def outcome(self, request: Request, error: BaseException) -> Result | McpError:
        """Return the result or error of a call that has ended with *error*."""
        outcome = self.failure(request, error).outcome
        assert outcome is not None
        return outcome

    def failure(self, request: Request, error: BaseException) -> EncodedResponse:
        """Return the response to *request*, after its hook has raised *error*."""
        reference = secrets.token_hex(6)
        if isinstance(error, StoreFull):
            self._warnings.log(logging.ERROR, "%s was rejected: %s", request.method, error)
        elif not is_expected(error):
            _log_failure(request, error, reference)
        if not isinstance(error, Exception):
            error = RuntimeError("a hook ended itself")
        try:
            return self.respond(request, failure_outcome(error, request, reference), error)
        except (TypeError, ValueError, msgspec.MsgspecError) as fault:
            # The data of an McpError come from a hook, and may not be JSON.
            logger.error("an error cannot be encoded [%s]", reference, exc_info=fault)
            internal = InternalError(f"Internal error (reference {reference})", reference=reference)
            return self.respond(request, internal, fault)

    async def job_value(self, task: str) -> Outcome | None:
        """Return the outcome of the last job of a task with too large a result."""
        return await self.tasks.service.values.find(task)

    async def settle(self, ref: ExternalJob, snapshot: ExternalStatus) -> None:
        """Report the end of an external job, from a callback of its queue or a webhook.

        The first report counts, this one or that of `ExternalQueue.watch`.

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
        await self.broadcast.aclose()
        await self._deployment.aclose()
        self.threads.close()
        if self._closes_store:
            await self.store.aclose()


# A cursor is bound to its list and its principal: it opens no other list, and shows no entries
# that another principal sees. 2026-07-28, server/utilities, "Pagination": cursors are opaque, and
# an invalid one is -32602.


def _seal_cursor(seal: Seal, result: Result, channel: Channel, limits: Limits) -> str | None:
    if not isinstance(result, PaginatedResult) or result.next_cursor is None:
        return None
    # A server may use any text, also one with a lone surrogate.
    cursor = result.next_cursor.encode("utf-8", "surrogatepass")
    bound = channel.request.method, channel.principal
    return seal.seal(Purpose.CURSOR, cursor, *bound, ttl=limits.cursor_ttl)


def _open_cursor(seal: Seal, text: str, channel: Channel) -> str:
    bound = channel.request.method, channel.principal
    try:
        return seal.open(Purpose.CURSOR, text, *bound).decode("utf-8", "surrogatepass")
    except SealError:
        raise InvalidParams("Invalid cursor") from None


def mux_of(target: Mux | Server) -> Mux:
    """Return *target* if it is a mux, else a new mux of this server.

    Raises:
        ConfigurationError: it is not one server; a hub, or a registry, has many.
    """
    return target if isinstance(target, Mux) else Mux(target)


def add_telemetry(mux: Mux, telemetry: Telemetry) -> None:
    """Let *telemetry* observe *mux* as well from now on."""
    mux.observers.add(telemetry)
    mux.answer = mux._observed


def error_of(error: Exception) -> McpError:
    """Return the error response for *error*, which no hook has raised; log a defect."""
    if isinstance(error, McpError):
        return error
    reference = secrets.token_hex(6)
    if isinstance(error, StoreError):
        logger.warning("a request was rejected [%s]: %s", reference, error)
        return store_failure(error, reference)
    logger.error("a request failed [%s]", reference, exc_info=error)
    return InternalError(f"Internal error (reference {reference})", reference=reference)


def _failed(mux: Mux, channel: Channel, error: BaseException) -> EncodedResponse:
    """Return the response to the request of *channel*, after its hook has raised *error*."""
    if not isinstance(error, InsufficientScope):
        return mux.failure(channel.request, error)
    error = refused(channel, error)
    answer = mux.failure(channel.request, error)
    if has_waited(channel):
        return msgspec.structs.replace(answer, status=200)
    return msgspec.structs.replace(answer, headers=_NOT_STORED, refusal=error)


def _log_failure(request: Request, error: BaseException, reference: str) -> None:
    if (hint := hint_of_name(error)) is not None:
        error.add_note(hint)
    named = f"{request.method} {printable(request.key)}".rstrip()
    if isinstance(error, StoreUnavailable):  # no trace: it is the same for every request
        logger.warning("%s was rejected [%s]: %s", named, reference, error)
    else:
        logger.error("%s failed [%s]", named, reference, exc_info=error)


def _checked(server: Server) -> Server:
    if isinstance(server, Server):
        return server
    if callable(getattr(server, "server", None)):
        raise ConfigurationError(
            f"{server!r} is not one server: give what its server() returns; "
            "a RegistryEndpoint serves each server of a registry as well"
        )
    raise ConfigurationError(f"server must be an instance of a Server (a Suite), not {server!r}")


def _store(given: Store | str | None, clock: Callable[[], float] | None) -> tuple[Store, bool]:
    """Return the store to use, and whether `Mux.aclose` closes it: all but the default store."""
    chosen = given or os.environ.get(_STORE_VARIABLE)
    if not chosen:
        return MemoryStore(clock=clock), False
    if not isinstance(chosen, Store | str):
        raise ConfigurationError(f"store must be a Store or its URL, not {chosen!r}")
    return open_store(chosen) if isinstance(chosen, str) else chosen, True


def _thread_pool(bounds: Limits) -> ThreadPool:
    return ThreadPool(
        bounds.max_threads,
        bounds.max_thread_queue,
        of_client=bounds.max_threads_per_client,
        waiting_of_client=bounds.max_thread_queue_per_client,
    )


def _clock(store: Store) -> Callable[[], float]:
    """Return the clock by which sealed values expire, common to the processes that open them.

    Without a shared store they have only the time of day in common.
    """
    return store.now if store.shared else lambda: time.time()


def _secret(
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
