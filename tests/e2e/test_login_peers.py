"""Logins: clients and servers of three projects, with two authorization servers."""

import asyncio
import socket
from typing import Any

import pytest

from tests.e2e import authorizing
from tests.support.serving import serve

# The first run installs a package.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Using in-memory token storage"),
]
AUTHORIZATION_SERVERS = {
    "issuer": authorizing.own_issuer,
    "oidc-provider": authorizing.oidc_provider,
}
SERVERS = {
    "own": authorizing.own_server,
    "official": authorizing.official_server,
    "fastmcp": authorizing.fastmcp_server,
}
CLIENTS = {
    "official": authorizing.official_whoami,
    "fastmcp": authorizing.fastmcp_whoami,
    "typescript": authorizing.typescript_whoami,
}


@pytest.mark.parametrize("authorization_server", AUTHORIZATION_SERVERS)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_client_logs_in(
    client: str,
    server: str,
    authorization_server: str,
    free_port: int,
) -> None:
    """It registers itself, its user logs in, and the tool knows who it is."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    resource = f"http://127.0.0.1:{free_port}/mcp"
    start: Any = AUTHORIZATION_SERVERS[authorization_server]
    async with (
        asyncio.timeout(60),
        start(resource, port) as issuer,
        serve(SERVERS[server](resource, issuer), free_port),
    ):
        assert await CLIENTS[client](resource) == authorizing.USER
