"""The application: its pages, the MCP endpoint, and the files of the endpoint.

The store and the secret are files next to the database by default, so that other workers on this
machine, and the process after a restart, use the same ones. Explained by step 4 of the tutorial.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from example_app.database import Database
from example_app.live import LIVE, StockFeed
from example_app.pages import PAGES
from example_app.resources import announce
from example_app.seed import fill
from example_app.suite import create_suite
from example_app.workshop import Workshop
from genmcp import Endpoint, JobOptions, Mux, Suite
from genmcp.auth import Bearer
from genmcp.telemetry import LoggingTelemetry

__all__ = ["create_app", "secret_for", "store_for"]


def create_app(
    path: Path,
    *,
    user_header: str | None = None,
    auth: Bearer | None = None,
    suite: Suite | None = None,
) -> Starlette:
    """Return the application.

    Args:
        path: the database file, which is created when the application starts.
        user_header: the header in which a proxy sends the user who is logged in; None: all users
            are guests.
        auth: the access tokens that the endpoint accepts. None: it needs none.
        suite: the MCP server. Default: `create_suite()`.
    """
    suite = suite or create_suite()
    database = Database(path)
    workshop = Workshop(database, partial(announce, suite))
    # Every tool finds these in channel.assigns: the workshop, and the user of the request. The user
    # is stored with a long-running call, which may be resumed without a request.
    mux = Mux(
        suite,
        assigns={"workshop": workshop},
        store=store_for(path),
        # Seconds without a heartbeat after which another process resumes a job. Shorter than the
        # default of 30, to try out a crash quickly.
        jobs=JobOptions(lease=3),
        secret=secret_for(path),
        telemetry=LoggingTelemetry(),
    )
    endpoint = Endpoint(mux, auth=auth, copy_assigns=["user"], keep_assigns=["user"], console=True)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(database.create, fill)
        app.state.feed = feed = StockFeed(mux)
        feeding = asyncio.create_task(feed.run())
        yield
        feeding.cancel()
        await asyncio.wait([feeding])
        await endpoint.aclose()
        await mux.aclose()

    app = Starlette(
        routes=[*PAGES, *LIVE, *endpoint.routes("/mcp")],
        middleware=[Middleware(UserFromHeader, name=user_header)],
        lifespan=lifespan,
    )
    app.state.workshop = workshop
    app.state.mux = mux
    return app


class UserFromHeader:
    """Middleware that sets `request.state.user`.

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


def store_for(database: Path) -> str:
    """Return the URL of the store: GENMCP_STORE, or a SQLite file next to *database*."""
    beside = f"sqlite:///{database.with_suffix('.calls.db')}"
    return os.environ.get("GENMCP_STORE") or beside


def secret_for(database: Path) -> str:
    """Return GENMCP_SECRET, or the content of a file next to *database*, created at first start.

    Anyone who can read that file can forge sealed values. In production, set the variable.
    """
    if chosen := os.environ.get("GENMCP_SECRET"):
        return chosen
    path = database.with_suffix(".secret")
    if not path.exists():
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(32), encoding="ascii")
        with suppress(FileExistsError):  # another process was first: its secret counts
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text(encoding="ascii")
