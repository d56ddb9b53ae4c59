"""The mux: what a server needs in order to be served, and the router of its live messages.

It decides nothing about the protocol (that is `genmcp.core`) and moves no bytes (that is
`genmcp.transports`).
"""

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.failures import is_expected, outcome_of, status_of
from genmcp.core.request import Request
from genmcp.core.seal import Keyring, Seal
from genmcp.core.server_dispatch import discovered
from genmcp.core.session import Session
from genmcp.errors import (
    ConfigurationError,
    ContractError,
    InternalError,
    McpError,
    Overloaded,
    ToolError,
)
from genmcp.mux.calls import Calls
from genmcp.mux.limits import Limits
from genmcp.mux.listeners import Listeners
from genmcp.mux.occupancy import Occupancy
from genmcp.mux.replay import Replay
from genmcp.mux.sessions import Sessions
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.v2025_11_25 import SetLevelRequestParams
from genmcp.server import Server
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store
from genmcp.wire.encoder import Encoder

__all__ = ["Answer", "Mux"]

logger = logging.getLogger("genmcp")

SECRET_VARIABLE: Final = "GENMCP_SECRET"

_LISTS: Final = frozenset(
    {"tools/list", "resources/list", "resources/templates/list", "prompts/list"}
)


class Answer(msgspec.Struct, frozen=True):
    """A request's answer as JSON; its HTTP status and headers, if it is the whole response.

    No message: the request was cancelled, and gets no answer.
    """

    message: bytes | None
    status: int = 200
    headers: Mapping[str, str] = {}


class Mux:
    """Serves one server.

    server: what answers. secret: what seals session ids and the like: one, or several to rotate
    (the first seals, all open); default: the environment's `GENMCP_SECRET`, else a random one,
    which is fine for one process. store: where is kept what must be kept; default: in memory.
    limits: every bound. assigns: values every request finds in `channel.assigns`.
    audience: what sealed values are bound to, the server's name by default; two muxes that share
    a secret and should not take each other's values need two audiences.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        server: Server,
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        store: Store | None = None,
        limits: Limits | None = None,
        assigns: Mapping[str, Any] | None = None,
        audience: str | None = None,
    ) -> None:
        if not isinstance(server, Server):
            raise ConfigurationError(
                f"server must be an instance of a Server (a Suite), not {server!r}"
            )
        self.server = server
        self.find = server.find
        self.limits = limits or Limits()
        self.store = MemoryStore() if store is None else store
        self.assigns = dict(assigns or {})
        self.encoder = Encoder(server.info)
        seal = Seal(Keyring(_secret(secret, self.store)), audience or server.info.name)
        self.sessions = Sessions(
            seal, self.store, lifetime=self.limits.session, revoked=self.limits.revoked
        )
        self.replay = Replay(self.store, ttl=self.limits.replay, keep=self.limits.replay_events)
        self.listeners = Listeners(
            self.store, ttl=self.limits.replay, keep=self.limits.replay_events
        )
        bounds = self.limits
        self.held = Occupancy(
            "calls", bounds.calls, principal=bounds.calls_of_principal, tool=bounds.calls_of_tool
        )
        self.streams = Occupancy("streams", bounds.streams, principal=bounds.streams_of_principal)
        self.calls = Calls()
        self._threads = self._pool()
        self._in_threads = 0
        self._closes_store = store is not None

    def __repr__(self) -> str:
        return f"<Mux of {self.server.info.name}, {len(self.calls)} sessions with open calls>"

    def offers(self, method: str) -> bool:
        """Return whether *method* is answered, by the mux itself or by its server."""
        if method == "logging/setLevel":
            return self.server.capabilities.logging is not None
        return method in _OWN or method in self.server.methods

    async def end_session(self, session: Session) -> None:
        """End *session*: its calls are cancelled, its streams end, its id is worth nothing."""
        self.sessions.end(session)
        self.calls.cancel(session.key)
        await self.listeners.end(session.key)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the pool; at most `Limits.threads` run at once.

        Raises:
            Overloaded: too many wait for that.
        """
        limits = self.limits
        if self._in_threads >= limits.threads + limits.waiting:
            raise Overloaded(f"Too many calls wait for a thread: {limits.waiting} (limit: waiting)")
        loop = asyncio.get_running_loop()
        work = partial(copy_context().run, _run, function, *arguments)
        self._in_threads += 1
        try:
            return await loop.run_in_executor(self._threads, work)
        finally:
            self._in_threads -= 1

    async def answer(self, request: Request, channel: Channel) -> Answer:
        """Run what answers *request*, and return its answer, whatever becomes of it.

        Raises:
            asyncio.CancelledError: the asyncio.Task it runs in is cancelled.
        """
        try:
            if request.route is not None:
                result = await self.server.handle(request, channel)
            else:
                result = await self._unrouted(request, channel)
            if not isinstance(result, Result):
                raise ContractError(
                    f"{type(self.server).__name__} answered {request.method} "
                    f"with {type(result).__name__}, not a result"
                )
            message = self.encoder.response(request.revision, request.id, result)
            if len(message) > self.limits.result:
                raise ToolError(
                    f"The result is larger than {self.limits.result} bytes (limit: result)"
                )
            return Answer(message)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            return self.failure(request, error)

    def refusal(self, request: Request, error: McpError) -> Answer:
        """Return the answer that says *error*."""
        message = self.encoder.error(request.revision, request.id, error)
        return Answer(message, status_of(error, request.revision), error.headers)

    async def _unrouted(self, request: Request, channel: Channel) -> Result:
        method = request.method
        if method in _OWN:
            return await _OWN[method](self, request)
        if method in _LISTS:
            cursor = request.params.cursor  # type: ignore[attr-defined]  # a list's params
            return await self.server.listed(method, cursor, channel)
        return await self.server.handle(request, channel)

    def failure(self, request: Request, error: BaseException) -> Answer:
        """Return what answers *request*, whose hook ended with *error*."""
        reference = secrets.token_hex(6)
        if not is_expected(error):
            asked = getattr(request.params, "name", None) or getattr(request.params, "uri", "")
            logger.error("%s %s failed [%s]", request.method, asked, reference, exc_info=error)
        if not isinstance(error, Exception):
            error = RuntimeError("a hook ended itself")
        try:
            outcome = outcome_of(error, request, reference)
            if isinstance(outcome, McpError):
                return self.refusal(request, outcome)
            return Answer(self.encoder.response(request.revision, request.id, outcome))
        except (TypeError, ValueError, msgspec.MsgspecError) as fault:
            # What an McpError carries is up to whoever raised it.
            logger.error("an error cannot be said [%s]", reference, exc_info=fault)
            message = f"Internal error (reference {reference})"
            return self.refusal(request, InternalError(message, reference=reference))

    async def _discover(self, request: Request) -> Result:
        return discovered(self.server.capabilities, self.server.instructions)

    async def _ping(self, request: Request) -> Result:
        return Result()

    async def _set_level(self, request: Request) -> Result:
        assert isinstance(request.params, SetLevelRequestParams)
        if request.session is not None:
            await self.sessions.set_level(request.session, request.params.level)
        return Result()

    async def aclose(self) -> None:
        """Let go of threads and store, once the endpoints have let go of their calls.

        A store in memory that nobody gave holds nothing that must be let go of, so that the mux
        can go on serving: a host may be started a second time.
        """
        threads, self._threads = self._threads, self._pool()
        threads.shutdown(wait=False, cancel_futures=True)
        if self._closes_store:
            await self.store.aclose()

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.threads, thread_name_prefix="genmcp")


_OWN: Final[Mapping[str, Callable[[Mux, Request], Coroutine[Any, Any, Result]]]] = {
    "server/discover": Mux._discover,
    "ping": Mux._ping,
    "logging/setLevel": Mux._set_level,
}


def _is_cancelled() -> bool:
    """Whether somebody asked for the CancelledError that was just caught.

    One that comes from what a hook awaits (a task that was cancelled elsewhere) is a failure
    like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        # No future can carry it: whoever waits for this one would wait for ever.
        raise RuntimeError("StopIteration left a function that ran in a thread") from error


def _secret(
    given: str | bytes | Sequence[str | bytes] | None, store: Store
) -> str | bytes | Sequence[str | bytes]:
    """Return the secret to use; a random one only where it can do."""
    chosen = given or os.environ.get(SECRET_VARIABLE)
    if chosen:
        return chosen
    if store.shared:
        raise ConfigurationError(
            f"a shared store needs one secret for all its processes: secret= or {SECRET_VARIABLE}"
        )
    if (workers := _workers()) > 1:
        logger.warning(
            "no secret is configured and there are %s workers: they will not know each other's "
            "sessions. Give all of them one secret (secret= or %s).",
            workers,
            SECRET_VARIABLE,
        )
    return secrets.token_bytes(32)


def _workers() -> int:
    """Return how many processes serve this, as far as it shows.

    It shows in WEB_CONCURRENCY, or in the command line that a worker has from its parent.
    """
    counts = [os.environ.get("WEB_CONCURRENCY", "1")]
    for option, value in pairwise([*sys.argv, ""]):
        name, _, attached = option.partition("=")
        if name in ("--workers", "-w"):
            counts.append(attached or value)
    return max([1, *(int(count) for count in counts if count.isdigit())])
