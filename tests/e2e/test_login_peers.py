"""Logins between clients, servers and authorization servers of several projects."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from genmcp import Client
from genmcp.auth import Introspection
from genmcp.client.auth import FileTokens, MemoryTokens, OAuth
from genmcp.core.auth.record import record_key
from tests.contracts.tokens import save
from tests.e2e import authorizing
from tests.e2e.authorizing import (
    SERVER_ID,
    SERVER_SECRET,
    AuthorizationServer,
    Kept,
    official_client,
)
from tests.e2e.browsing import USER, browse, parameters
from tests.support.serving import serve

pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),  # the first run installs packages
    pytest.mark.usefixtures("npm_packages"),
    pytest.mark.filterwarnings("ignore:Using in-memory token storage"),
]
AUTHORIZATION_SERVERS: dict[str, Any] = {
    "issuer": authorizing.own_issuer,
    "oidc-provider": authorizing.oidc_provider,
}
SERVERS = {
    "own": authorizing.own_server,
    "official": authorizing.official_server,
    "fastmcp": authorizing.fastmcp_server,
}
CLIENTS = {
    "own": authorizing.own_whoami,
    "official": authorizing.official_whoami,
    "fastmcp": authorizing.fastmcp_whoami,
    "typescript": authorizing.typescript_whoami,
}
by_authorization_server = pytest.mark.parametrize(
    "start", AUTHORIZATION_SERVERS.values(), ids=AUTHORIZATION_SERVERS
)


@pytest.fixture
def login_port() -> int:
    """Return a free port for the authorization server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def resource(free_port: int) -> str:
    """Return the URL of the MCP server."""
    return f"http://127.0.0.1:{free_port}/mcp"


@pytest.mark.parametrize(
    ("client", "server", "name"),
    [
        (client, server, name)
        for client in CLIENTS
        for server in SERVERS
        for name in AUTHORIZATION_SERVERS
        # Pairs without genmcp only test `Issuer`.
        if "own" in (client, server) or name == "issuer"
    ],
)
async def test_client_logs_in(
    client: str, server: str, name: str, resource: str, free_port: int, login_port: int
) -> None:
    """It registers itself, its user logs in, and the tool gets the user's identity."""
    async with (
        asyncio.timeout(60),
        AUTHORIZATION_SERVERS[name](resource, login_port) as issuer,
        serve(SERVERS[server](resource, issuer), free_port),
    ):
        assert await CLIENTS[client](resource) == USER


@by_authorization_server
async def test_official_client_steps_up(
    start: Any, resource: str, free_port: int, login_port: int
) -> None:
    """The tool needs a scope that was not requested: HTTP 403, and a second authorization.

    The client is registered in advance. It would register itself only for the scopes of the first
    challenge (python-sdk 2.3.0), and oidc-provider rejects further ones (RFC 7591, 2: `scope`).
    """
    storage = Kept(registered=True)
    async with (
        asyncio.timeout(60),
        start(resource, login_port) as issuer,
        serve(authorizing.own_server(resource, issuer), free_port),
        official_client(resource, "auto", storage) as client,
    ):
        await client.call_tool("whoami", {})
        assert storage.tokens
        before = storage.tokens.access_token
        result: Any = await client.call_tool("write", {})

    assert {"read", "write"} <= set(result.content[0].text.split())
    assert storage.tokens.access_token != before


async def test_typescript_client_steps_up(resource: str, free_port: int, login_port: int) -> None:
    """It requests only the scopes of the challenge, so the challenge must list all.

    It registers for the scopes of the first challenge, which oidc-provider would enforce.
    """
    async with (
        asyncio.timeout(60),
        authorizing.own_issuer(resource, login_port) as issuer,
        serve(authorizing.own_server(resource, issuer), free_port),
    ):
        user, scopes = await authorizing.typescript_calls(resource, "whoami", "write")

    assert user == USER
    assert {"read", "write"} <= set(scopes.split())


@by_authorization_server
async def test_own_client_steps_up(
    start: Any, resource: str, free_port: int, login_port: int
) -> None:
    """The second authorization has all scopes, so that the next call needs none."""
    logins = []

    async def ask(url: str) -> str:
        logins.append(set(parameters(url)["scope"].split()))
        return await browse(url)

    async with (
        asyncio.timeout(60),
        start(resource, login_port) as issuer,
        serve(authorizing.own_server(resource, issuer), free_port),
        Client(resource, auth=OAuth("own", ask=ask)) as client,
    ):
        await client.call("whoami")
        found = [(await client.call("write")).text for _ in range(2)]

    assert {"read", "write"} <= set(found[0].split())
    assert found[0] == found[1]
    assert [scopes - {"offline_access"} for scopes in logins] == [{"read"}, {"read", "write"}]


@by_authorization_server
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_opaque_token_is_introspected_until_revoked(
    start: Any, mode: str, resource: str, free_port: int, login_port: int
) -> None:
    """RFC 7662. Once the client has revoked it, the server requires a new login."""
    storage = Kept()
    async with asyncio.timeout(60), start(resource, login_port, opaque=True) as issuer:
        verify = Introspection(issuer.introspection, SERVER_ID, SERVER_SECRET, cache=0)
        app = authorizing.own_server(resource, issuer, verify)
        async with serve(app, free_port), official_client(resource, mode, storage) as client:
            result: Any = await client.call_tool("whoami", {})
            assert storage.tokens
            token = storage.tokens.access_token
            assert storage.client
            method = storage.client.token_endpoint_auth_method
            secret = storage.client.client_secret
            await revoke(issuer, token, storage.client.client_id or "", secret, method)
            async with httpx.AsyncClient() as http:
                headers = {"authorization": f"Bearer {token}"}
                refused = await http.post(resource, json={}, headers=headers)
            second: Any = await client.call_tool("whoami", {})

    assert result.content[0].text == second.content[0].text == USER
    assert "." not in token
    assert refused.status_code == 401
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]
    assert storage.tokens.access_token != token


async def revoke(
    issuer: AuthorizationServer, token: str, client_id: str, secret: str | None, method: str | None
) -> None:
    """Revoke a token (RFC 7009) as the client to which it was issued."""
    form = {"token": token}
    auth: Any = None
    if method == "client_secret_basic":
        auth = (client_id, secret or "")
    else:
        form |= {"client_id": client_id, "client_secret": secret or ""}
    async with httpx.AsyncClient() as http:
        response = await http.post(issuer.revocation, data=form, auth=auth)
    assert response.status_code == 200, response.text


@by_authorization_server
async def test_own_client_renews_its_token_without_a_login(
    start: Any, resource: str, free_port: int, login_port: int, tmp_path: Path
) -> None:
    """Both servers rotate refresh tokens. A later connection uses those in the file."""
    logins = []

    async def ask(url: str) -> str:
        logins.append(url)
        return await browse(url)

    tokens = FileTokens(tmp_path / "tokens")
    key = record_key(resource, "own")
    seen: set[str | None] = set()
    async with asyncio.timeout(60), start(resource, login_port, opaque=True) as issuer:
        verify = Introspection(issuer.introspection, SERVER_ID, SERVER_SECRET, cache=0)
        async with serve(authorizing.own_server(resource, issuer, verify), free_port):
            for _ in range(3):
                async with Client(resource, auth=OAuth("own", ask=ask, tokens=tokens)) as client:
                    assert (await client.call("whoami")).text == USER
                record = await tokens.load(key)
                assert record
                seen |= {record.access_token, record.refresh_token}
                await save(tokens, replace(record, expires=time.time()), key)

    assert len(logins) == 1
    assert len(seen) == 6


async def test_own_client_logs_in_by_a_proxy(
    resource: str, free_port: int, login_port: int
) -> None:
    """FastMCP's proxy registers the client, shows a consent page, and logs in at an issuer."""
    async with (
        asyncio.timeout(60),
        authorizing.own_issuer(resource, login_port) as issuer,
        serve(authorizing.fastmcp_proxy(resource, issuer), free_port),
    ):
        assert await authorizing.own_whoami(resource) == USER


async def test_own_client_logs_in_where_the_server_issues_its_tokens(
    resource: str, free_port: int
) -> None:
    """The official SDK's authorization server in FastMCP requires the client id twice."""
    tokens, key, renewals = MemoryTokens(), record_key(resource, "own"), []
    async with (
        asyncio.timeout(60),
        serve(authorizing.fastmcp_with_authorization(resource), free_port),
    ):
        for _ in range(2):
            async with Client(resource, auth=OAuth("own", ask=browse, tokens=tokens)) as client:
                assert (await client.call("scopes")).text == "read"
            record = await tokens.load(key)
            assert record
            renewals.append(record.renewals)
            await save(tokens, replace(record, expires=time.time()), key)

    assert renewals == [0, 1]
