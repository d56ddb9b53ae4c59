"""Liveness and readiness of a process, for the probes of a supervisor or a load balancer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint, route_to
from genmcp._transports.request import Receive, Scope, Send
from genmcp._transports.shutdown import is_exiting, uvicorn_server
from genmcp.errors import ConfigurationError, StoreError
from genmcp.log_throttle import LogThrottle

if TYPE_CHECKING:
    from starlette.routing import Route

logger = logging.getLogger("genmcp")

HEALTH_PATH: Final = "/health"
READY_PATH: Final = "/ready"

_PROBE_KEY: Final = "health:probe"
"""No record has this key, but reading it needs the store like any other read."""


class Health:
    """Responds to probes: a process is alive (for a supervisor), or ready (for a load balancer).

        health = Health(endpoint)
        app = Starlette(routes=[endpoint.route("/mcp"), *health.routes()])

    A process is *alive* if it responds: its event loop runs. It is *ready* if it is not shutting
    down, its store responds, and jobs of a durable store are delivered to it. Both respond with a
    JSON object that contains `status`, "ok" or "unavailable" (status 503), and `problems`, with a
    text for each part that is not ready: `process`, `store` or `worker`. Neither contains
    addresses, credentials or data; the reason of a problem is logged.

    Args:
        target: the endpoint, or the mux of a process without one.
        timeout: seconds that the store has to respond to one read. Default 2.
        cache: seconds for which the state of store and worker is remembered, so that any number of
            probes costs one read. Default 1.

    Attributes:
        live: responds that the process is alive: an ASGI application.
        ready: responds whether the process is ready: an ASGI application.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(self, target: Endpoint | Mux, *, timeout: float = 2.0, cache: float = 1.0) -> None:
        if not isinstance(target, Endpoint | Mux):
            raise ConfigurationError(f"Health takes an Endpoint or a Mux, not {target!r}")
        if timeout <= 0 or cache < 0:
            raise ConfigurationError("Health: timeout must be positive, cache not negative")
        self._endpoint = target if isinstance(target, Endpoint) else None
        self._mux = target.mux if isinstance(target, Endpoint) else target
        self._timeout = timeout
        self._cache = cache
        self._draining = False
        self._checking: asyncio.Task[Mapping[str, str]] | None = None
        self._valid_until = 0.0  # by the clock of the event loop
        self._warnings = LogThrottle(logger, interval=60.0)
        self.live = HealthProbe(self._alive)
        self.ready = HealthProbe(self.problems)

    def routes(
        self, *, health: str | None = HEALTH_PATH, ready: str | None = READY_PATH
    ) -> "list[Route]":
        """Return Starlette routes to `live` and `ready`; a path of None leaves one out.

        Raises:
            ConfigurationError: a path does not begin with a slash.
        """
        paths = ((health, self.live), (ready, self.ready))
        return [route_to(app, path, name=path[1:]) for path, app in paths if path is not None]

    def drain(self) -> None:
        """Report from now on that the process is not ready, because it is about to stop.

        Not needed with uvicorn, whose exit is detected.
        """
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether the process is about to stop."""
        return self._draining or is_exiting(uvicorn_server())

    async def problems(self) -> Mapping[str, str]:
        """Return a text for each part that is not ready; empty if the process is ready."""
        if self.draining:
            return {"process": "shutting down"}
        loop = asyncio.get_running_loop()
        checking = self._checking
        if checking is None or checking.get_loop() is not loop or loop.time() >= self._valid_until:
            checking = self._checking = loop.create_task(self._check())
            self._valid_until = loop.time() + self._cache
        # One prober may disconnect while others wait for the same result.
        return await asyncio.shield(checking)

    async def _check(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(self._timeout):
                await self._mux.store.get(_PROBE_KEY)
        except TimeoutError:
            found["store"] = f"no response in {self._timeout:g} seconds"
        except (StoreError, ConfigurationError) as error:
            found["store"] = f"{type(error).__name__}; the log has the reason"
            self._warnings.log(logging.WARNING, "not ready: the store fails: %s", error)
        if self._endpoint is not None:
            # A balancer may send no request before the process is ready.
            self._endpoint.start()
        if (problem := self._mux.tasks.worker.problem) is not None:
            found["worker"] = problem
        return found

    async def _alive(self) -> Mapping[str, str]:
        return {}


class HealthProbe:
    """Responds to a probe with the problems that *check* returns. An ASGI application.

    It is an instance, not a function: Starlette would call a function with its own `Request`.
    """

    def __init__(self, check: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            raise ConfigurationError("Health responds to HTTP requests only")
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        status, content = 200, dict[str, Any](status="ok")
        if scope["method"] not in ("GET", "HEAD"):
            status, content = 405, {"status": "method not allowed"}
            headers.append((b"allow", b"GET, HEAD"))
        elif problems := await self._check():
            status, content = 503, {"status": "unavailable", "problems": problems}
        body = msgspec.json.encode(content)
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})
