"""Services without a user, DPoP keys, and single sign-on, with peers on either side."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import Client as OfficialClient
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from genmcp import Client
from genmcp.auth import Introspection, Verifier
from genmcp.auth.extensions.dpop import Dpop
from genmcp.client.auth import ClientCredentials, OAuth
from genmcp.client.auth.dpop import DpopAuth
from genmcp.client.auth.identities import Enterprise
from tests.e2e import authorizing
from tests.e2e.authorizing import (
    SERVER_ID,
    SERVER_SECRET,
    SIGNER,
    SIGNER_ID,
    AuthorizationServer,
    Kept,
    found_at,
)
from tests.e2e.browsing import USER, browse
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve

pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),  # the first run installs packages
    pytest.mark.usefixtures("npm_packages"),
]
AUTHORIZATION_SERVERS: dict[str, Any] = {
    "issuer": authorizing.own_issuer,
    "oidc-provider": authorizing.oidc_provider,
}
by_authorization_server = pytest.mark.parametrize(
    "start", AUTHORIZATION_SERVERS.values(), ids=AUTHORIZATION_SERVERS
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def guarded(
    start: Any, verify: Verifier | None = None
) -> AsyncIterator[tuple[str, AuthorizationServer]]:
    """Serve a server that accepts tokens of an authorization server; yield both URLs."""
    port = free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    async with (
        asyncio.timeout(60),
        start(resource, free_port()) as server,
        serve(authorizing.own_server(resource, server, verify), port),
    ):
        yield resource, server


async def own_call(url: str, auth: Any) -> str:
    """Call `whoami` with genmcp's client."""
    async with Client(url, auth=auth) as client:
        return (await client.call("whoami")).text


async def official_call(url: str, auth: Any) -> str:
    """Call `whoami` with the official client."""
    async with (
        create_mcp_http_client(auth=auth) as http,
        OfficialClient(streamable_http_client(url, http_client=http)) as client,
    ):
        result: Any = await client.call_tool("whoami", {})
        return str(result.content[0].text)


async def by_secret(url: str, issuer: str) -> str:
    return await own_call(url, ClientCredentials(SERVER_ID, secret=SERVER_SECRET, issuer=issuer))


async def by_key(url: str, issuer: str) -> str:
    key = SIGNER.as_dict(private=True)
    return await own_call(url, ClientCredentials(SIGNER_ID, key=key, issuer=issuer))


async def official_by_secret(url: str, issuer: str) -> str:
    auth = ClientCredentialsOAuthProvider(url, Kept(), SERVER_ID, SERVER_SECRET, issuer=issuer)
    return await official_call(url, auth)


async def official_by_key(url: str, issuer: str) -> str:
    parameters = SignedJWTParameters(
        issuer=SIGNER_ID,
        subject=SIGNER_ID,
        signing_key=SIGNER.as_pem(private=True).decode(),
        signing_algorithm="ES256",
    )
    assertion = parameters.create_assertion_provider()
    auth = PrivateKeyJWTOAuthProvider(url, Kept(), SIGNER_ID, assertion, issuer=issuer)
    return await official_call(url, auth)


@by_authorization_server
@pytest.mark.parametrize(
    ("service", "subject"),
    [
        (by_secret, SERVER_ID),
        (by_key, SIGNER_ID),
        (official_by_secret, SERVER_ID),
        (official_by_key, SIGNER_ID),
    ],
)
async def test_service_calls_without_a_user(
    start: Any, service: Callable[[str, str], Awaitable[str]], subject: str
) -> None:
    """Client credentials, with a secret or `private_key_jwt`. The client is the subject."""
    async with guarded(start) as (url, server):
        assert await service(url, server.issuer) == subject


@by_authorization_server
async def test_token_is_bound_to_the_key_of_the_client(start: Any) -> None:
    """Our server requires DPoP; the tokens are from oidc-provider."""
    async with guarded(start, Dpop(required=True)) as (url, _):
        assert await own_call(url, DpopAuth(OAuth("own", ask=browse))) == USER


@pytest.mark.parametrize("opaque", [False, True], ids=["jwt", "opaque"])
async def test_nonces_of_another_authorization_server_are_honoured(opaque: bool) -> None:
    """oidc-provider and our server require nonces; `cnf` is in the token or its introspection."""
    port = free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    async with (
        asyncio.timeout(60),
        authorizing.oidc_provider(resource, free_port(), opaque=opaque) as issuer,
    ):
        introspected = Introspection(issuer.introspection, SERVER_ID, SERVER_SECRET)
        server = authorizing.own_server(
            resource,
            issuer,
            Dpop(introspected if opaque else None, required=True, nonces=True),
        )
        key = SIGNER.as_dict(private=True)
        auth = DpopAuth(ClientCredentials(SIGNER_ID, key=key, issuer=issuer.issuer))
        async with serve(server, port):
            # Its introspection response has a client, but no subject.
            assert await own_call(resource, auth) == ("None" if opaque else SIGNER_ID)


@asynccontextmanager
async def trusting(resource: str, port: int) -> AsyncIterator[AuthorizationServer]:
    """Serve an issuer that accepts ID-JAGs of `IDP`."""
    issuer = OAuthServer(resources=[resource])
    issuer.add_client("agent", secret="at the server")
    issuer.trust(IDP.url, IDP.jwks)
    async with issuer.serve(port) as url:
        yield await found_at(url)


IDP = OAuthServer()
IDP.add_client("agent-at-idp", secret="at the provider", known_as="agent")


async def test_own_client_signs_on_by_the_company() -> None:
    """Enterprise-managed authorization: ID token, ID-JAG, access token, without a login."""
    async with IDP.serve(), guarded(trusting) as (url, server):
        auth = Enterprise(
            server.issuer,
            IDP.url,
            lambda: IDP.id_token(USER, "agent-at-idp"),
            client_id="agent",
            secret="at the server",
            idp_client_id="agent-at-idp",
            idp_secret="at the provider",
        )
        assert await own_call(url, auth) == USER


async def test_official_client_signs_on_by_the_company() -> None:
    """It leaves the exchange at the identity provider to its caller."""

    async def id_jag(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": IDP.id_token(USER, "agent-at-idp"),
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": audience,
            "resource": resource,
            "scope": "read",
        }
        async with httpx.AsyncClient() as http:
            auth = ("agent-at-idp", "at the provider")
            answer = await http.post(f"{IDP.url}/token", data=form, auth=auth)
        return str(answer.json()["access_token"])

    async with IDP.serve(), guarded(trusting) as (url, server):
        auth = IdentityAssertionOAuthProvider(
            url,
            Kept(),
            "agent",
            "at the server",
            server.issuer,
            id_jag,
            scope="read",
            token_endpoint_auth_method="client_secret_basic",
        )
        assert await official_call(url, auth) == USER
