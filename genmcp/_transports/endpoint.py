"""The MCP endpoint: an ASGI application that serves every revision at one URL."""

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from genmcp._mux.limits import MAX_CONTAINERS
from genmcp._mux.mux import Mux, mux_of
from genmcp._mux.responses import EncodedResponse, error_of
from genmcp._transports.admission import Admission, Principal, authenticated, check_function
from genmcp._transports.body import MAX_BATCH_MESSAGES, read_body
from genmcp._transports.post import delete, get, post
from genmcp._transports.request import (
    IN_PROCESS,
    ClientLeft,
    FindClientKey,
    HttpRequest,
    Receive,
    Scope,
    Send,
    Serve,
    as_headers,
    reject,
)
from genmcp._transports.responder import Responder
from genmcp._transports.shutdown import JobsAtWork, Shutdown
from genmcp._transports.writing import reply
from genmcp.core.request import RESULT_TOOL
from genmcp.core.server import Reject
from genmcp.core.server_dispatch import SESSION_HEADER, plain_request
from genmcp.errors import ConfigurationError, InsufficientScope, NotAllowed
from genmcp.server import Server
from genmcp.stores import log_problems
from genmcp.wire import jsonrpc
from genmcp.wire.http import Security, check_post_headers, prefers_html, preflight_headers

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from genmcp._transports.console import Console
    from genmcp.auth.authenticator import Authenticator
    from genmcp.auth.bearer import Bearer

logger = logging.getLogger("genmcp")

_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The path of the metadata below the endpoint, and below the root of a host (RFC 9728, 3.1)."""


class Endpoint:
    """Serves a mux, or a server in a mux of its own, over HTTP. It is an ASGI application.

        app = Starlette(routes=[Endpoint(suite).route("/mcp")])

    Args:
        target: the mux or server to serve. A mux that is made here is closed by `aclose`.
        security: the allowed origins and host names.
        principal: returns the authenticated identity of a request, or an `Access` if the host
            application knows scopes as well; the default reads `scope["user"]` and the scopes of
            `scope["auth"]`.
        copy_assigns: keys of the request's state (`request.state` in Starlette) that are copied to
            `channel.assigns`.
        keep_assigns: those of copy_assigns that are stored with a call; their values are JSON, or
            structs, dataclasses, models and the like.
        heartbeat: seconds without output after which an open response sends a comment; default 15.
        grace: seconds that calls have to finish at shutdown; default 5.
        client_key: returns the key that an anonymous request counts towards, from its ASGI scope;
            None falls back to the peer address, `scope["client"]`, which is the default.
        auth: the access tokens that clients must send, `genmcp.auth.Bearer`. Default: the host
            application authenticates. Excludes *principal*.
        console: whether a browser that opens the URL gets a page with which to try the server.
            Default False.

    No lifespan is needed, nothing is started before the first request, and one process may have
    several endpoints. With a durable store, the lifespan or the first request starts the work on
    stored jobs.

    Attributes:
        console, shutdown: as *console*, and `shutdown.grace` as *grace*; both may be changed.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        target: Mux | Server,
        *,
        security: Security | None = None,
        principal: Principal = authenticated,
        copy_assigns: Iterable[str] = (),
        keep_assigns: Iterable[str] = (),
        heartbeat: float = 15.0,
        grace: float = 5.0,
        client_key: FindClientKey | None = None,
        auth: "Bearer | Authenticator | None" = None,
        console: bool = False,
    ) -> None:
        if heartbeat <= 0 or grace < 0:
            raise ConfigurationError("heartbeat must be positive, grace not negative")
        if client_key is not None:
            check_function("client_key", client_key)
        self.mux = mux_of(target)
        self._owns_mux = self.mux is not target
        if auth is not None and principal is not authenticated:
            raise ConfigurationError("principal= belongs to Bearer if auth= is given")
        self.authenticator = None if auth is None else _authenticator_of(auth)
        self._admission = Admission(
            self.mux,
            security,
            principal if auth is None else None,
            copy_assigns,
            keep_assigns,
            None if self.authenticator is None else self.authenticator.bearer.resource,
        )
        self.console = console
        self._page: Console | None = None
        self._heartbeat = heartbeat
        self.shutdown = Shutdown(grace)
        self._find_client_key = client_key
        self._durable = self.mux.store.durable
        self._at_work: JobsAtWork | None = None  # only for a durable store
        self._was_started = False

    def __repr__(self) -> str:
        return f"<Endpoint of {self.mux!r}>"

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, serve: Serve | None = None
    ) -> None:
        """Serve one ASGI scope; *serve* is used in place of the endpoint's own methods."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        http = HttpRequest(
            self.mux, self.shutdown, self._heartbeat, receive, send, scope, self._find_client_key
        )
        try:
            if self.mux.tasks.worker.dormant or (self._durable and self._at_work is None):
                self._warn_if_late(scope)
                self._wake()
            auth = self.authenticator
            if auth is not None and auth.document.matches(scope):
                await auth.document.serve(scope["method"], send)
                return
            self._admission.admit(http, scope)
            if serve is None and scope["method"] == "GET" and _opens_page(http):
                await self._serve_page(http)  # a browser sends no token when it opens a page
            elif auth is None or auth.knows(http) or await auth.admits(http):
                await (serve or _METHODS.get(scope["method"], _not_allowed))(http)
        except Exception as error:
            await _fail(http, error)
        finally:
            if http.body_size:
                http.release_body()
            if http.unread is not None:
                http.unread.queue(0)
        if not http.response_begun:
            await _hang_up(http)

    def route(self, path: str) -> "Route":
        """Return a Starlette route that answers at *path*, with and without a slash at its end.

        It takes every method and redirects nowhere. With `auth=`, it answers for the metadata below
        *path* as well.
        """
        return self._route_to(self, path)

    def routes(self, path: str) -> "list[Route]":
        """Return `route(path)` and, with `auth=`, `metadata_route()`, for an application's root."""
        metadata = [] if self.authenticator is None else [self.metadata_route()]
        return [self.route(path), *metadata]

    def metadata_route(self) -> "Route":
        """Return a Starlette route to the metadata of `auth=`, for the root of the application.

        An application that has the endpoint below a mount adds it to its own list, outside the
        mount: clients look at the root of the host (RFC 9728, 3.1). It answers at the path with the
        path of the resource, and at the one without.

        Raises:
            ConfigurationError: the endpoint has no `auth=`.
        """
        if self.authenticator is None:
            raise ConfigurationError("metadata_route: only an endpoint with auth= has metadata")
        document = self.authenticator.document
        document.at_root = True
        route = route_to(document, _METADATA, name="mcp-metadata")
        paths = "|".join(map(re.escape, document.paths))
        route.path_regex = re.compile(f"^(?:{paths})/?$")
        return route

    def sse_route(self, path: str) -> "Route":
        """Return a Starlette route for clients that speak only HTTP+SSE of 2024-11-05.

        They open an event stream at *path*; its first event names the URL to POST to: the same
        path, with their session in its query. Newer clients use `route`.
        """
        from genmcp._transports.sse_pair import SseEndpoint

        return self._route_to(SseEndpoint(self.__call__), path)

    def _route_to(self, app: "ASGIApp", path: str) -> "Route":
        return route_to(app, path, below="" if self.authenticator is None else _METADATA)

    def start(self) -> None:
        """Start the work on stored jobs, as the lifespan or the first request would.

        Call this in the lifespan of an application that mounts the endpoint as a route, since
        Starlette does not forward its lifespan to a route. Does nothing if the work has started, or
        if the store is not durable.
        """
        self.mux.tasks.service.log_start()
        if self.mux.tasks.worker.dormant or (self._durable and self._at_work is None):
            self._wake()

    async def check_store(self) -> None:
        """Check the store before the process serves requests, and log its problems.

        The lifespan calls this. A store that is unavailable may be started later.

        Raises:
            ConfigurationError: the store can never be used with its settings.
        """
        await log_problems(self.mux.store)

    async def aclose(self) -> None:
        """Close responses on this event loop, hand jobs to other processes, and close an own mux.

        Calls have `grace` seconds to finish, jobs `JobOptions.shutdown_grace`. The jobs of a mux
        that was passed in are released to other processes when its last endpoint is closed; the mux
        itself is closed by its owner. The endpoint can be used again: the next request restarts the
        jobs.
        """
        await self.shutdown.stop()
        if self._owns_mux:
            await self.mux.aclose()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1000, "reason": "not a web socket"})
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.check_store()
                except ConfigurationError as error:
                    await self.aclose()
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                self._wake()  # a host may be restarted on another loop
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve_page(self, http: HttpRequest) -> None:
        """Respond to a browser that opens the URL: a GET without a session.

        Raises:
            NotAllowed: there is no console; in words for the user of the browser.
        """
        if not self.console:
            raise NotAllowed(
                "This is an MCP endpoint: connect a client to the URL of this page. A page with "
                "which to try the server is here with Endpoint(console=True), or genmcp serve "
                "--console",
                *_METHODS,
            )
        if self._page is None:
            self._page = _console_of(self.authenticator)
        await self._page.serve(http)

    def _warn_if_late(self, scope: Scope) -> None:
        """Warn once if the work on stored jobs begins only with the first request."""
        mux, worker = self.mux, self.mux.tasks.worker
        if self._was_started or not worker.dormant or IN_PROCESS in scope.get("extensions", ()):
            return
        # A suite offers that tool if a call can wait.
        if worker.options.schedules or mux.find("tools/call", RESULT_TOOL) is not None:
            logger.warning(
                "%r: after a restart, stored jobs wait for the first request, which this is; call "
                "start() of the endpoint in the lifespan of the application that mounts it",
                mux,
            )

    def _wake(self) -> None:
        """Start to work on the jobs in the store, and register their release at shutdown."""
        self._was_started = True
        worker, at_work = self.mux.tasks.worker, self._at_work
        self.mux.tasks.service.log_start()
        lost = at_work is not None and at_work.gone  # its loop was closed without a shutdown
        if worker.dormant or lost:
            worker.wake()
        if lost or (self._durable and at_work is None):
            self._at_work = JobsAtWork(worker, self.shutdown, self._released)

    def _released(self) -> None:
        self._at_work = None


def route_to(app: "ASGIApp", path: str, *, name: str = "mcp", below: str = "") -> "Route":
    """Return a Starlette route to *app* at *path*, with and without a slash at its end.

    The route matches *path* followed by *below*, too.

    Raises:
        ConfigurationError: the path does not begin with a slash.
    """
    if not path.startswith("/"):
        raise ConfigurationError(f"The path of an endpoint begins with a slash, unlike {path!r}")
    from starlette.routing import Route  # optional: not every host application is Starlette

    route = Route(path.rstrip("/") or "/", app, name=name, include_in_schema=False)
    # One pattern for both forms: a redirect would lose the body of a POST with some clients.
    pattern = route.path_regex.pattern.removesuffix("$").rstrip("/")
    route.path_regex = re.compile(f"{pattern}(?:{re.escape(below)})?/?$")
    return route


def _authenticator_of(auth: "Bearer | Authenticator") -> "Authenticator":
    from genmcp.auth.authenticator import Authenticator  # an endpoint without auth= needs no OAuth
    from genmcp.auth.bearer import Bearer

    if isinstance(auth, Authenticator):
        return auth
    if not isinstance(auth, Bearer):
        raise ConfigurationError(f"auth= takes a Bearer, not {auth!r}")
    return Authenticator(auth)


def _console_of(authenticator: "Authenticator | None") -> "Console":
    from genmcp._transports.console import Console
    from genmcp.core.auth.metadata import origin_of

    issuers = () if authenticator is None else authenticator.bearer.issuers
    return Console(dict.fromkeys(origin_of(each) for each in issuers))


def _opens_page(http: HttpRequest) -> bool:
    return prefers_html(http.table.get(b"accept", b"")) and SESSION_HEADER not in http.table


async def _post(http: HttpRequest) -> None:
    table = http.table
    mux = http.mux
    http.streams = check_post_headers(table.get(b"content-type", b""), table.get(b"accept", b"*/*"))
    body = await read_body(http, table.get(b"content-length"))
    try:
        jsonrpc.check(body, mux.limits.max_depth, MAX_CONTAINERS)
        request = plain_request(table, body, mux)
        if request is None:
            message = jsonrpc.parse(body, MAX_BATCH_MESSAGES)
    except Exception:
        http.id = jsonrpc.id_of(body)
        raise
    if request is not None:
        http.id = request.id
        answering = Responder(http, request).serve()
    else:
        answering = post(http, message)
        del message
    # Many calls and streams may be open for long: they must not keep the bytes of their requests.
    del table, body, request
    await answering


async def _options(http: HttpRequest) -> None:
    origin = http.table.get(b"origin")
    allowed = (b"allow", ", ".join(_METHODS).encode())
    http.headers = preflight_headers(http.table, origin) if origin else [allowed]
    await reply(http, 204)


async def _not_allowed(http: HttpRequest) -> None:
    raise NotAllowed("This endpoint takes POST, and GET and DELETE within a session", *_METHODS)


async def _fail(http: HttpRequest, error: Exception) -> None:
    """Respond with *error*, or raise it to the host if the response has already begun."""
    if isinstance(error, ClientLeft):
        return
    refusal = error_of(error)
    if http.response_begun:
        raise error
    method = http.method or http.table.get(b"mcp-method", b"").decode("latin-1") or None
    body = reject(http, Reject(refusal, True, http.id, method))
    insufficient = refusal if isinstance(refusal, InsufficientScope) else None
    response = EncodedResponse(body, refusal.status, refusal.headers, refusal=insufficient)
    response = http.as_whole(response)
    with suppress(ClientLeft):
        await reply(http, response.status, response.body or b"", as_headers(response.headers))
    # The traceback refers to the request, which may refer to the error: a reference cycle. Without
    # the traceback, a rejected request is freed at once, not by the garbage collector.
    error.__traceback__ = None


async def _hang_up(http: HttpRequest) -> None:
    """End a request after a disconnect: a middleware would report a missing response."""
    with suppress(ClientLeft):
        await reply(http, _CLIENT_CLOSED_REQUEST)


_CLIENT_CLOSED_REQUEST: Final = 499

_METHODS: Final[dict[str, Serve]] = {
    "GET": get,
    "POST": _post,
    "DELETE": delete,
    "OPTIONS": _options,
}
