"""The application: its pages, and the MCP endpoint beside them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from example_app.database import Database
from example_app.pages import PAGES
from example_app.seed import fill
from example_app.settings import secret_for, store_for
from example_app.suite import suite
from example_app.workshop import Workshop
from genmcp import Endpoint, JobOptions, Mux

__all__ = ["create_app"]


def create_app(path: Path, *, user_header: str | None = None) -> Starlette:
    """Return the application.

    Args:
        path: the database file, which is created when the application starts.
        user_header: the header in which a proxy sends the user who is logged in; None: all users
            are guests.
    """
    database = Database(path)
    workshop = Workshop(database)
    # What every tool finds in channel.assigns: the workshop, and the user who asks. The user goes
    # along where a call is kept, for its end comes without a request.
    mux = Mux(
        suite,
        assigns={"workshop": workshop},
        store=store_for(path),
        # Seconds without a heartbeat after which another process resumes a job. Shorter than the
        # default of 30, so that a crash is quick to try out.
        jobs=JobOptions(lease=3),
        secret=secret_for(path),
    )
    endpoint = Endpoint(mux, copy_assigns=["user"], keep_assigns=["user"])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(database.create, fill)
        yield
        await endpoint.aclose()
        await mux.aclose()

    app = Starlette(
        routes=[*PAGES, endpoint.route("/mcp")],
        middleware=[Middleware(UserFromHeader, name=user_header)],
        lifespan=lifespan,
    )
    app.state.workshop = workshop
    app.state.mux = mux
    return app


class UserFromHeader:
    """Puts the user into `request.state`.

    A proxy that authenticates users, such as oauth2-proxy, sets such a header. Without a proxy a
    client could send any name, so no header is trusted unless it is configured.
    """

    def __init__(self, app: ASGIApp, name: str | None) -> None:
        self.app = app
        self.name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            user = None if self.name is None else Headers(scope=scope).get(self.name)
            scope.setdefault("state", {})["user"] = user or "guest"
        await self.app(scope, receive, send)
