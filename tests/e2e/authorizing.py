"""Third-party authorization servers, MCP servers and clients, for tests of logins."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastmcp import Client as FastMCPClient
from fastmcp import FastMCP
from fastmcp.client.auth import OAuth as FastMCPOAuth
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.oidc_proxy import OIDCProxy
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token as fastmcp_access_token
from joserfc import jwk, jwt
from key_value.aio.stores.memory import MemoryStore
from mcp import Client
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyHttpUrl, BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.types import ASGIApp

from genmcp import Channel, Endpoint, Suite, tool
from genmcp import Client as OwnClient
from genmcp.auth import Bearer
from genmcp.auth.bearer import Verifier
from genmcp.client.auth import OAuth
from tests.e2e.browsing import USER, browse, parameters
from tests.e2e.processes import kill, serving
from tests.support.npm import npm_package
from tests.support.oauth.server import OAuthServer
from tests.support.peers import OIDC_PROVIDER, SDK

SCRIPT = Path(__file__).with_name("oidc_provider.mjs")
TYPESCRIPT = Path(__file__).with_name("typescript_client.mjs")
SERVER_ID, SERVER_SECRET = "rs", "of-a-resource-server"  # to introspect tokens
PROXY_ID = "proxy"  # with the same secret
SIGNER_ID, SIGNER = (
    "signer",
    jwk.ECKey.generate_key("P-256"),
)  # a service that authenticates with a key
CLIENT_ID, REDIRECT = "app", "http://127.0.0.1:9999/callback"  # registered in advance


@dataclass(frozen=True)
class AuthorizationServer:
    """A running authorization server: its issuer identifier and metadata URLs."""

    issuer: str
    jwks_uri: str
    introspection: str
    revocation: str


async def found_at(issuer: str) -> AuthorizationServer:
    """Fetch the metadata of an issuer."""
    async with httpx.AsyncClient() as http:
        found = (await http.get(f"{issuer}/.well-known/openid-configuration")).json()
    assert found["issuer"] == issuer
    ends = ("jwks_uri", "introspection_endpoint", "revocation_endpoint")
    return AuthorizationServer(issuer, *(found[end] for end in ends))


@asynccontextmanager
async def own_issuer(
    resource: str, port: int, *, opaque: bool = False
) -> AsyncIterator[AuthorizationServer]:
    """Serve `OAuthServer`."""
    issuer = OAuthServer(resources=[resource], user=USER, consent="ask", opaque=opaque)
    issuer.add_client(SERVER_ID, secret=SERVER_SECRET)
    issuer.add_client(SIGNER_ID, keys=SIGNER.as_dict(private=False))
    proxied = f"{resource.removesuffix('/mcp')}/auth/callback"
    issuer.add_client(PROXY_ID, secret=SERVER_SECRET, redirect_uris=[proxied])
    issuer.add_client(CLIENT_ID, redirect_uris=[REDIRECT])
    async with issuer.serve(port) as url:
        yield await found_at(url)


@asynccontextmanager
async def oidc_provider(
    resource: str, port: int, *, opaque: bool = False
) -> AsyncIterator[AuthorizationServer]:
    """Run the npm package oidc-provider."""
    node, modules = npm_package(*OIDC_PROVIDER)
    public = json.dumps(SIGNER.as_dict(private=False))
    options = [str(port), str(modules), resource, "opaque" if opaque else "jwt", public]
    async with serving([node, str(SCRIPT), *options], port):
        yield await found_at(f"http://127.0.0.1:{port}")


class Keys(TokenVerifier):
    """Verifies tokens by the published keys, for the official server."""

    def __init__(self, resource: str, server: AuthorizationServer) -> None:
        self.resource = resource
        self.server = server

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx.AsyncClient() as http:
            found = await http.get(self.server.jwks_uri)
        keys = jwk.KeySet.import_key_set(found.json())
        claims = jwt.decode(token, keys, algorithms=["ES256"]).claims
        assert claims["iss"] == self.server.issuer
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims["scope"].split(),
            expires_at=claims["exp"],
            resource=claims["aud"],
            subject=claims["sub"],
            claims=claims,
        )


class Verbatim(BaseModel):
    """A URL without the slash that `AnyHttpUrl` adds after a host.

    With the slash it would not equal the issuer's own identifier, and clients would reject it.
    """

    model_config = ConfigDict(url_preserve_empty_path=True)

    url: AnyHttpUrl


def verbatim(url: str) -> AnyHttpUrl:
    return Verbatim.model_validate({"url": url}).url


def official_server(resource: str, server: AuthorizationServer) -> ASGIApp:
    """Return a server made with the official SDK."""
    settings = AuthSettings(
        issuer_url=verbatim(server.issuer),
        resource_server_url=verbatim(resource),
        required_scopes=["read"],
        validate_token_resource=True,
    )
    it = MCPServer("official", auth=settings, token_verifier=Keys(resource, server))

    @it.tool()
    async def whoami() -> str:
        """Returns the user."""
        token = get_access_token()
        return f"{token and token.subject}"

    return it.streamable_http_app()


async def fastmcp_whoami_tool() -> str:
    """Returns the user."""
    token = fastmcp_access_token()
    return f"{token and token.claims['sub']}"


def fastmcp_server(resource: str, server: AuthorizationServer) -> ASGIApp:
    """Return a server made with FastMCP."""
    verifier = JWTVerifier(
        jwks_uri=server.jwks_uri,
        issuer=server.issuer,
        audience=resource,
        algorithm="ES256",
        required_scopes=["read"],
    )
    auth = RemoteAuthProvider(
        verifier, [verbatim(server.issuer)], base_url=resource.removesuffix("/mcp")
    )
    it = FastMCP("fastmcp", auth=auth)

    it.tool(fastmcp_whoami_tool, name="whoami")
    return it.http_app()


def fastmcp_with_authorization(resource: str) -> ASGIApp:
    """Return a FastMCP server that contains the SDK's authorization server."""
    auth = InMemoryOAuthProvider(
        base_url=resource.removesuffix("/mcp"),
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=["read"], default_scopes=["read"]
        ),
        revocation_options=RevocationOptions(enabled=True),
        required_scopes=["read"],
    )
    it = FastMCP("fastmcp", auth=auth)

    @it.tool
    async def scopes() -> str:
        """Returns the scopes of the client."""
        token = fastmcp_access_token()
        return " ".join(token.scopes) if token else ""

    return it.http_app()


def fastmcp_proxy(resource: str, server: AuthorizationServer) -> ASGIApp:
    """Return a FastMCP server that registers clients itself, and logs in at *server* for them."""
    auth = OIDCProxy(
        config_url=f"{server.issuer}/.well-known/openid-configuration",
        client_id=PROXY_ID,
        client_secret=SERVER_SECRET,
        token_endpoint_auth_method="client_secret_basic",
        base_url=resource.removesuffix("/mcp"),
        algorithm="ES256",
        required_scopes=["read"],
        client_storage=MemoryStore(),
    )
    it = FastMCP("fastmcp", auth=auth)
    it.tool(fastmcp_whoami_tool, name="whoami")
    return it.http_app()


@tool
async def whoami(channel: Channel) -> str:
    """Returns the user."""
    return f"{channel.access and channel.access.subject}"


@tool(scopes=["write"])
async def write(channel: Channel) -> str:
    """Returns the scopes of the client."""
    assert channel.access
    return " ".join(sorted(channel.access.scopes))


def own_server(
    resource: str, server: AuthorizationServer, verify: Verifier | None = None
) -> ASGIApp:
    """Return a genmcp server."""
    auth = Bearer(resource, issuers=[server.issuer], scopes=["read"], verify=verify)
    endpoint = Endpoint(Suite(name="own", version="1", tools=[whoami, write]), auth=auth)
    return Starlette(routes=endpoint.routes("/mcp"))


class Kept(TokenStorage):
    """The token storage of the official client, in memory."""

    def __init__(self, *, registered: bool = False) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if registered:
            self.client = OAuthClientInformationFull.model_validate(
                {
                    "client_id": CLIENT_ID,
                    "redirect_uris": [REDIRECT],
                    "token_endpoint_auth_method": "none",
                }
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def official_auth(url: str, storage: Kept) -> OAuthClientProvider:
    """Return the authorization of the official client, with `browse` as the browser."""
    ended = ""

    async def redirect(target: str) -> None:
        nonlocal ended
        ended = await browse(target)

    async def callback() -> AuthorizationCodeResult:
        found = parameters(ended)
        return AuthorizationCodeResult(
            code=found["code"], state=found.get("state"), iss=found.get("iss")
        )

    metadata = OAuthClientMetadata.model_validate(
        {"redirect_uris": [REDIRECT], "client_name": "official"}
    )
    return OAuthClientProvider(url, metadata, storage, redirect, callback)


@asynccontextmanager
async def official_client(url: str, mode: Any, storage: Kept) -> AsyncIterator[Client]:
    """Connect the official client."""
    async with (
        create_mcp_http_client(auth=official_auth(url, storage)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def official_whoami(url: str) -> str:
    """Call `whoami` with the official client."""
    async with official_client(url, "auto", Kept()) as client:
        result: Any = await client.call_tool("whoami", {})
        return str(result.content[0].text)


async def own_whoami(url: str) -> str:
    """Call `whoami` with genmcp's client."""
    async with OwnClient(url, auth=OAuth("own", ask=browse)) as client:
        return (await client.call("whoami")).text


class Browserless(FastMCPOAuth):
    """FastMCP's authorization, where `browse` replaces the browser."""

    async def redirect_handler(self, authorization_url: str) -> None:
        self.visit = asyncio.create_task(self._visit(await browse(authorization_url)))

    async def _visit(self, url: str) -> None:
        async with httpx.AsyncClient() as http:
            while True:
                try:
                    await http.get(url)
                    return
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)  # the client starts its listener later


async def fastmcp_whoami(url: str) -> str:
    """Call `whoami` with FastMCP's client."""
    auth = Browserless(url, client_name="fastmcp")
    async with FastMCPClient(url, auth=auth) as client:
        result: Any = await client.call_tool("whoami", {})
        await auth.visit
        return str(result.content[0].text)


async def typescript_calls(url: str, *tools: str) -> list[str]:
    """Call tools with the client of the TypeScript SDK, which logs in as often as needed."""
    node, modules = npm_package(*SDK)
    process = await asyncio.create_subprocess_exec(
        node, str(TYPESCRIPT), url, str(modules), *tools, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin
    assert process.stdout
    results = []
    try:
        async for line in process.stdout:
            text = line.decode().strip()
            if text.startswith("="):
                results.append(text[1:])
            else:
                process.stdin.write(f"{await browse(text)}\n".encode())
    finally:
        await kill(process)
    return results


async def typescript_whoami(url: str) -> str:
    """Call `whoami` with the client of the TypeScript SDK."""
    (result,) = await typescript_calls(url, "whoami")
    return result
