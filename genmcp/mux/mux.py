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
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.failures import is_expected, outcome_of
from genmcp.core.request import Request
from genmcp.core.seal import Keyring, Seal
from genmcp.core.session import Session
from genmcp.errors import ConfigurationError, ContractError, McpError
from genmcp.mux.limits import Limits
from genmcp.mux.listeners import Listeners
from genmcp.mux.replay import Replay
from genmcp.mux.sessions import Sessions
from genmcp.protocol.discovery import DiscoverResult
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.revisions.v2025_11_25 import SetLevelRequestParams
from genmcp.protocol.value import Value
from genmcp.server import Route, Server
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store
from genmcp.wire.encoder import Encoder

__all__ = ["Answer", "Mux"]

logger = logging.getLogger("genmcp")

SECRET_VARIABLE: Final = "GENMCP_SECRET"

_OWN_METHODS: Final = frozenset({"server/discover", "ping", "logging/setLevel"})
_LISTS: Final = frozenset(
    {"tools/list", "resources/list", "resources/templates/list", "prompts/list"}
)


class Answer(msgspec.Struct, frozen=True):
    """A request's answer as JSON, and the HTTP status it has if it is the whole response.

    No message: the request was cancelled, and gets no answer.
    """

    message: bytes | None
    status: int = 200


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
            raise ConfigurationError(f"server must be a Server (a Suite), not {server!r}")
        self.server = server
        self.limits = limits or Limits()
        self.store = store or MemoryStore()
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
        self._calls: dict[str, dict[str | int, asyncio.Task[Answer]]] = {}
        self._threads = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="genmcp")

    def __repr__(self) -> str:
        return f"<Mux of {self.server.info.name}, {len(self._calls)} sessions with open calls>"

    def offers(self, method: str) -> bool:
        """Return whether *method* is answered, by the mux itself or by its server."""
        return method in _OWN_METHODS or method in self.server.methods

    def find(self, method: str, key: str) -> Route | None:
        """Return the server's route of a tool, prompt or resource, or None."""
        return self.server.find(method, key)

    def start(self, request: Request, channel: Channel) -> "asyncio.Task[Answer]":
        """Begin to answer *request* in an asyncio.Task of its own.

        On Python 3.12 and later it has run up to its first wait when this returns. Whoever
        starts it waits for it, or cancels it.
        """
        hook = start_task(self._answer(request, channel))
        if request.session is not None and not hook.done():
            self._calls.setdefault(request.session, {})[request.id] = hook
            hook.add_done_callback(lambda _: self._forget(request))
        return hook

    def _forget(self, request: Request) -> None:
        calls = self._calls.get(request.session or "", {})
        calls.pop(request.id, None)
        if not calls:
            self._calls.pop(request.session or "", None)

    def cancel(self, session: str, id: str | int) -> None:
        """Cancel the call *id* of a *session*, if it is open here; else nothing happens.

        2025-11-25, cancellation, "Behavior Requirements": an unknown one is ignored.
        """
        hook = self._calls.get(session, {}).get(id)
        if hook is not None:
            hook.get_loop().call_soon_threadsafe(hook.cancel)

    async def end_session(self, session: Session) -> None:
        """End *session*: its calls are cancelled, its streams end, its id is worth nothing."""
        self.sessions.end(session)
        for id in list(self._calls.get(session.key, {})):
            self.cancel(session.key, id)
        await self.listeners.end(session.key)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the pool; at most `Limits.threads` run at once."""
        loop = asyncio.get_running_loop()
        work = partial(copy_context().run, function, *arguments)
        return await loop.run_in_executor(self._threads, work)

    async def _answer(self, request: Request, channel: Channel) -> Answer:
        outcome: Value | McpError
        try:
            outcome = await self._outcome(request, channel)
        except Exception as error:
            outcome = self._failed(request, error)
        if isinstance(outcome, McpError):
            return self.refusal(request, outcome)
        return Answer(self.encoder.response(request.revision, request.id, outcome))

    def refusal(self, request: Request, error: McpError) -> Answer:
        """Return the answer that says *error*.

        Before 2026-07-28 an error that answers an accepted request is a message like any other,
        so that clients read it: its HTTP status is 200.
        """
        message = self.encoder.error(request.revision, request.id, error)
        return Answer(message, error.status if request.revision.modern else 200)

    async def _outcome(self, request: Request, channel: Channel) -> Value:
        if request.route is not None:
            result = await self.server.handle(request, channel)
        elif request.method in _LISTS:
            cursor = request.params.cursor  # type: ignore[attr-defined]  # a list's params
            result = await self.server.listed(request.method, cursor, channel)
        else:
            return await _OWN[request.method](self, request)
        if not isinstance(result, Result):
            raise ContractError(
                f"{type(self.server).__name__} answered {request.method} "
                f"with {type(result).__name__}, not a result"
            )
        return result

    def _failed(self, request: Request, error: Exception) -> Value | McpError:
        reference = secrets.token_hex(6)
        if not is_expected(error):
            logger.error("%s %s failed [%s]", request.method, request.id, reference, exc_info=error)
        return outcome_of(error, request, reference)

    async def _discover(self, request: Request) -> Result:
        # 2026-07-28, server/discover: the versions of both eras, newest first.
        return DiscoverResult(
            supported_versions=list(REVISIONS),
            capabilities=self.server.capabilities,
            instructions=self.server.instructions,
            ttl_ms=0,
            cache_scope="private",
        )

    async def _ping(self, request: Request) -> Result:
        return Result()

    async def _set_level(self, request: Request) -> Result:
        assert isinstance(request.params, SetLevelRequestParams)
        if request.session is not None:
            await self.sessions.set_level(request.session, request.params.level)
        return Result()

    async def aclose(self) -> None:
        """Cancel the calls of sessions that are open, and let go of threads and store."""
        for session, calls in list(self._calls.items()):
            for id in list(calls):
                self.cancel(session, id)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self.store.aclose()


_OWN: Final[Mapping[str, Callable[[Mux, Request], Coroutine[Any, Any, Result]]]] = {
    "server/discover": Mux._discover,
    "ping": Mux._ping,
    "logging/setLevel": Mux._set_level,
}

if sys.version_info >= (3, 12):

    def start_task(work: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
        """Return a task that has run *work* up to its first wait already."""
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)

else:

    def start_task(work: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
        """Return a task that runs *work* as soon as the loop is free."""
        return asyncio.get_running_loop().create_task(work)


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
    workers = os.environ.get("WEB_CONCURRENCY", "1")
    if workers.isdigit() and int(workers) > 1:
        logger.warning(
            "no secret is configured and WEB_CONCURRENCY is %s: the workers will not know each "
            "other's sessions. Give all of them one secret (secret= or %s).",
            workers,
            SECRET_VARIABLE,
        )
    return secrets.token_bytes(32)
