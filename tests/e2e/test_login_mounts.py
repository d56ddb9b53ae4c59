"""Logins of several clients to a genmcp server, for each way to mount it."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from genmcp import Endpoint, Registry, Suite
from genmcp.auth import Bearer
from genmcp.registry import RegistryEndpoint
from tests.e2e import authorizing
from tests.e2e.authorizing import whoami
from tests.e2e.browsing import USER
from tests.support.serving import serve

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),  # the first run installs packages
    pytest.mark.usefixtures("npm_packages"),
    pytest.mark.filterwarnings("ignore:Using in-memory token storage"),
]
CLIENTS = {
    "own": authorizing.own_whoami,
    "official": authorizing.official_whoami,
    "fastmcp": authorizing.fastmcp_whoami,
    "typescript": authorizing.typescript_whoami,
}


def guarded(auth: Bearer) -> Endpoint:
    return Endpoint(Suite(name="own", version="1", tools=[whoami]), auth=auth)


def bare(auth: Bearer) -> ASGIApp:
    return guarded(auth)


def fastapi(auth: Bearer) -> ASGIApp:
    app = FastAPI()
    app.router.routes.extend(guarded(auth).routes("/api/mcp"))
    return app


def mount(auth: Bearer) -> ASGIApp:
    inner = Starlette(routes=[guarded(auth).route("/mcp")])
    return Starlette(routes=[Mount("/api", inner)])


def mount_and_root(auth: Bearer) -> ASGIApp:
    endpoint = guarded(auth)
    inner = Starlette(routes=[endpoint.route("/mcp")])
    return Starlette(routes=[endpoint.metadata_route(), Mount("/api", inner)])


def registry(auth: Bearer) -> ASGIApp:
    servers = Registry([Suite(name="mcp", version="1", tools=[whoami])])
    return Starlette(routes=RegistryEndpoint(servers, auth=auth).routes("/api"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("application", "path"),
    [
        (bare, "/api/mcp"),
        (fastapi, "/api/mcp"),
        (mount, "/api/mcp"),
        (mount_and_root, "/api/mcp"),
        (registry, "/api"),  # the tests call its server `mcp`
    ],
)
async def test_client_finds_the_metadata(
    application: Callable[[Bearer], ASGIApp], path: str, client: str, free_port: int
) -> None:
    """Mounted at a path, without a route at the root, only the challenge leads to it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        login_port: int = listener.getsockname()[1]
    resource = f"http://127.0.0.1:{free_port}{path}"
    calls: Any = CLIENTS[client]
    async with (
        asyncio.timeout(60),
        authorizing.own_issuer(resource, login_port) as issuer,
        serve(application(Bearer(resource, issuers=[issuer.issuer], scopes=["read"])), free_port),
    ):
        assert await calls(f"http://127.0.0.1:{free_port}/api/mcp") == USER
