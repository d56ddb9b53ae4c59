"""A server that demands a login, with its authorization server, for the tests of commands."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette

from genmcp import Channel, Endpoint, Suite, tool
from genmcp.auth import Bearer, Verifier
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve


@tool
async def whoami(channel: Channel) -> str:
    """Returns the user."""
    return f"{channel.access and channel.access.subject}"


@tool(scopes=["parts:write"])
async def order() -> str:
    """Orders a part."""
    return "ordered"


class Guarded(msgspec.Struct):
    """The two servers, and where the commands store tokens."""

    url: str
    issuer: OAuthServer
    folder: Path

    @property
    def records(self) -> list[Path]:
        """The files with records."""
        return sorted(self.folder.rglob("*.json"))

    @property
    def record(self) -> dict[str, Any]:
        """The only record."""
        (path,) = self.records
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def change(self, **members: Any) -> None:
        """Change members of the only record."""
        (path,) = self.records
        path.write_text(json.dumps(self.record | members))

    @property
    def secrets(self) -> list[str]:
        """The tokens that are stored."""
        found = [json.loads(path.read_text()) for path in self.records]
        return [each[name] for each in found for name in ("access_token", "refresh_token")]


@asynccontextmanager
async def guarded(
    folder: Path,
    auth: bool = True,
    host: str = "127.0.0.1",
    verify: Verifier | None = None,
    **options: Any,
) -> AsyncIterator[Guarded]:
    """Serve a suite, and an `OAuthServer` with *options*.

    Without *auth*, everybody is served. *host* is that of the resource, which clients may know
    under another one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    issuer = OAuthServer(user="mia", **options)
    async with issuer.serve() as login:
        resource = f"http://{host}:{port}/mcp"
        bearer = Bearer(resource, issuers=[login], scopes=["parts:read"], verify=verify)
        suite = Suite(name="parts", version="1", tools=[whoami, order])
        endpoint = Endpoint(suite, auth=bearer if auth else None)
        routes = [*endpoint.routes("/mcp"), *Endpoint(suite).routes("/open")]
        async with serve(Starlette(routes=routes), port):
            yield Guarded(url, issuer, folder)
