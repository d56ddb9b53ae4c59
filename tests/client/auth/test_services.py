"""Services, workloads and employees obtain tokens of an authorization server, over HTTP."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from joserfc.jwk import ECKey

from genmcp import Channel, Endpoint, Suite, tool
from genmcp.client.auth import ClientCredentials, RejectedRequest
from genmcp.client.auth.identities import Enterprise, Workload
from genmcp.client.client import Client
from genmcp.client.errors import AuthorizationFailed, IssuerMismatch, Unauthorized
from genmcp.client.sync import SyncClient
from genmcp.errors import ConfigurationError
from tests.client.auth.logins import Place, guarded_place
from tests.support.oauth.server import OAuthServer

KEY = ECKey.generate_key("P-256")
PEM = KEY.as_pem(private=True).decode()
SECRET = "the secret of the service"
CLIENT_EXTENSION = "io.modelcontextprotocol/oauth-client-credentials"
ENTERPRISE_EXTENSION = "io.modelcontextprotocol/enterprise-managed-authorization"


def service(place: Place, **options: Any) -> ClientCredentials:
    """A service with a key, which the issuer knows."""
    place.issuer.add_client("reports", keys=KEY.as_dict(private=False))
    return ClientCredentials("reports", key=PEM, issuer=place.issuer.url, **options)


async def called(place: Place, auth: Any) -> str:
    """Call a tool, and return its text."""
    async with Client(place.url, auth=auth) as client:
        result = await client.call("whoami", {"name": "me"})
    return str(result.text)


async def test_service_with_a_key_calls_a_tool() -> None:
    """SEP-1046: an assertion signed with the key, for the issuer."""
    async with guarded_place() as place:
        assert await called(place, service(place)) == "me"

    (request,) = place.issuer.received("token")
    assert request.params["grant_type"] == "client_credentials"
    assert request.params["resource"] == place.url
    assert request.params["scope"] == "parts:read"
    assert "client_id" not in request.params
    assert place.asked == []


@pytest.mark.parametrize("method", [None, "client_secret_basic", "client_secret_post"])
async def test_service_with_a_secret_calls_a_tool(method: Any) -> None:
    """Special characters are encoded before HTTP Basic (RFC 6749, 2.3.1)."""
    async with guarded_place() as place:
        secret, issuer = "a:b/c %+", place.issuer.url
        place.issuer.add_client("my service", secret=secret, method=method or "client_secret_basic")
        auth = ClientCredentials("my service", secret=secret, method=method, issuer=issuer)

        assert await called(place, auth) == "me"


async def test_services_share_one_token() -> None:
    """One object, two connections, one token request."""
    async with guarded_place() as place:
        auth = service(place)
        await called(place, auth)
        await called(place, auth)

    assert place.grants() == ["client_credentials"]


async def test_service_gets_a_token_in_the_background() -> None:
    """Nobody is asked, so that a stream for notifications may request one at any time."""
    async with guarded_place() as place:
        authorization = service(place).authorization(place.url)
        challenge = [("www-authenticate", "Bearer")]
        rejection = RejectedRequest(
            method="GET", url=place.url, sent={}, status=401, headers=challenge, foreground=False
        )
        assert await authorization.rejected(rejection)

    assert place.grants() == ["client_credentials"]


async def test_expired_token_is_replaced_before_it_is_sent() -> None:
    """The server refuses no request after the first one."""
    async with guarded_place() as place:
        auth = service(place)
        place.issuer.faults.tokens = {"expires_in": 1e-3}
        await called(place, auth)
        first = place.tokens
        place.seen.clear()
        await called(place, auth)

    assert None not in place.tokens
    assert not {*place.tokens} & {*first}


async def test_service_asks_for_missing_scopes() -> None:
    """HTTP 403 with `insufficient_scope`: a new token with both, and the call succeeds."""

    @tool(scopes=["parts:write"])
    async def write(channel: Channel) -> str:
        """Needs a scope."""
        assert channel.access is not None
        return " ".join(sorted(channel.access.scopes))

    async with guarded_place() as place:
        endpoint = Endpoint(Suite(name="parts", version="1", tools=[write]), auth=place.bearer)
        place.app = endpoint
        async with Client(place.url, auth=service(place)) as client:
            result = await client.call("write", {})

    assert result.text == "parts:read parts:write"
    assert place.grants() == ["client_credentials"] * 2


async def test_refused_service_gets_the_reason() -> None:
    """The error of the authorization server, without the secret."""
    async with guarded_place() as place:
        place.issuer.add_client("reports", secret="another secret than that")
        auth = ClientCredentials("reports", secret=SECRET, issuer=place.issuer.url)
        with pytest.raises(AuthorizationFailed, match="invalid_client") as caught:
            await called(place, auth)

    assert caught.value.error == "invalid_client"
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(auth)
    assert place.grants() == ["client_credentials"]


async def test_token_that_the_server_refuses_is_replaced_once() -> None:
    """A server that refuses all tokens gets two requests, not an endless number."""
    async with guarded_place() as place:
        place.issuer.faults.claims = {"aud": "https://other.example.com"}
        with pytest.raises(Unauthorized):
            await called(place, service(place))

    assert len(place.grants()) == 1


async def test_service_works_in_threads() -> None:
    """`SyncClient` takes the same settings."""
    async with guarded_place() as place:
        auth = service(place)

        def call() -> str:
            with SyncClient(place.url, auth=auth) as client:
                return str(client.call("whoami", {"name": "me"}).text)

        assert await asyncio.to_thread(call) == "me"


@tool
async def extensions(channel: Channel) -> list[str]:
    """Return the extensions that the client declares."""
    return sorted(channel.client.capabilities.extensions or {})


async def test_extension_is_declared() -> None:
    """Each request has it, for servers that offer something for it."""
    async with guarded_place() as place:
        place.app = Endpoint(
            Suite(name="parts", version="1", tools=[extensions]), auth=place.bearer
        )
        async with Client(place.url, auth=service(place)) as client:
            result = await client.call("extensions", {})

    assert CLIENT_EXTENSION in str(result.text)


async def test_workload_presents_the_assertion_of_its_platform() -> None:
    """SEP-1933: the token of the platform is the grant."""
    platform = OAuthServer("https://platform.test/k8s")
    asked: list[str] = []
    async with guarded_place() as place:
        place.issuer.trust(platform.url, platform.jwks)

        async def assertion() -> str:
            asked.append("assertion")
            return platform.id_token("system:pod:reports", place.issuer.url)

        assert await called(place, Workload(assertion, place.issuer.url)) == "me"

    assert place.grants() == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    assert asked == ["assertion"]


async def test_refused_workload_tries_nothing_else() -> None:
    """SEP-1933: one token request, with one grant."""
    platform = OAuthServer("https://platform.test/k8s")
    async with guarded_place() as place:
        auth = Workload(lambda: platform.id_token("pod", place.issuer.url), issuer=place.issuer.url)
        with pytest.raises(AuthorizationFailed, match="invalid_grant"):
            await called(place, auth)

    assert place.grants() == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]


async def test_failing_function_is_an_error_of_the_client() -> None:
    """For instance a missing file."""

    def assertion() -> str:
        raise FileNotFoundError("/var/run/secrets/tokens/mcp")

    async with guarded_place() as place:
        with pytest.raises(AuthorizationFailed, match="/var/run/secrets"):
            await called(place, Workload(assertion, place.issuer.url))


async def test_assertion_goes_to_no_other_authorization_server() -> None:
    """A hostile server names one of its own, and would get in as the workload."""
    async with guarded_place() as place:
        auth = Workload(lambda: "a.b.c", issuer="https://login.example.com")
        with pytest.raises(IssuerMismatch, match="issuer"):
            await called(place, auth)

    assert place.issuer.received("token") == []


def employee(place: Place, idp: OAuthServer, **options: Any) -> Enterprise:
    """An employee who is signed in at *idp*, with a client that both know."""
    place.issuer.trust(idp.url, idp.jwks)
    place.issuer.add_client("agent", secret=SECRET)
    idp.add_client("agent-at-idp", secret="idp secret", known_as="agent")
    given: dict[str, Any] = {
        "client_id": "agent",
        "secret": SECRET,
        "idp_client_id": "agent-at-idp",
        "idp_secret": "idp secret",
    }
    return Enterprise(
        place.issuer.url,
        idp.url,
        lambda: idp.id_token("ann", "agent-at-idp"),
        **{**given, **options},
    )


async def test_employee_needs_no_login() -> None:
    """SEP-990: ID token, ID-JAG, access token; the user is that of the identity provider."""
    idp = OAuthServer()
    async with guarded_place() as place, idp.serve():
        assert await called(place, employee(place, idp)) == "me"

    (exchange,) = idp.received("token")
    (grant,) = place.issuer.received("token")
    assert exchange.params["audience"] == place.issuer.url
    assert exchange.params["resource"] == place.url
    assert grant.headers["authorization"].startswith("Basic ")
    assert place.asked == [] and place.issuer.received("authorize") == []


async def test_policy_of_the_company_is_an_error() -> None:
    """The identity provider refuses; nothing is sent to the authorization server."""
    idp = OAuthServer()
    async with guarded_place() as place, idp.serve():
        idp.faults.fail("token", 400, error="access_denied")
        with pytest.raises(AuthorizationFailed, match="identity provider") as caught:
            await called(place, employee(place, idp))

    assert caught.value.error == "access_denied"
    assert place.issuer.received("token") == []


async def test_nothing_secret_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """At any level, for a flow that succeeds and one that fails."""
    caplog.set_level(logging.DEBUG)
    idp = OAuthServer()
    async with guarded_place() as place, idp.serve():
        auth = employee(place, idp)
        await called(place, auth)
        idp.faults.fail("token", 400, error="invalid_grant")
        with pytest.raises(AuthorizationFailed):
            await called(place, employee(place, idp))

    secrets = [SECRET, "idp secret"]
    for request in (*idp.received("token"), *place.issuer.received("token")):
        secrets += [request.params.get(name, "") for name in ("subject_token", "assertion")]
    secrets += [token for token in place.tokens if token]
    for secret in filter(None, secrets):
        assert secret not in caplog.text
        assert secret.rpartition(".")[2] not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_id": ""}, "client_id"),
        ({}, "either a secret or a key"),
        ({"secret": "s", "key": PEM}, "either a secret or a key"),
        ({"key": "no key"}, "neither PEM nor a JWK"),
        ({"key": KEY.as_pem(private=False)}, "cannot sign"),
        ({"secret": "s", "method": "private_key_jwt"}, "method"),
        ({"secret": "s", "issuer": "http://login.example.com"}, "ClientCredentials.issuer"),
        ({"secret": "s", "issuer": None}, "needs issuer='https"),
        ({"key": PEM, "issuer": None}, "needs issuer='https"),
        ({"secret": "s", "scopes": "a b"}, "scopes"),
    ],
)
def test_wrong_credentials_are_refused_at_construction(
    options: Mapping[str, Any], message: str
) -> None:
    """The message names the option, and has no secret."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        ClientCredentials(
            **{"client_id": "reports", "issuer": "https://login.example.com", **options}
        )

    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Workload, {"assertion": "a.b.c"}, "must be a function"),
        (Workload, {"issuer": "login.example.com"}, "issuer"),
        (Enterprise, {"id_token": "a.b.c"}, "must be a function"),
        (Enterprise, {"idp": "idp"}, "idp"),
        (Enterprise, {"issuer": "issuer"}, "issuer"),
        (Enterprise, {"idp_token_endpoint": "http://idp.example.com"}, "idp_token_endpoint"),
        (Enterprise, {"client_id": ""}, "client_id"),
        (Enterprise, {"key": PEM}, "either a secret or a key"),
        (Enterprise, {"idp_client_id": None}, "idp_client_id"),
    ],
)
def test_wrong_identities_are_refused_at_construction(
    kind: Any, options: Mapping[str, Any], message: str
) -> None:
    """The message names the option, and has no assertion."""
    issuer = "https://login.example.com"
    given: dict[str, Any] = {"assertion": lambda: "", "issuer": issuer}
    if kind is Enterprise:
        given = {"issuer": issuer, "idp": "https://idp.example.com", "id_token": lambda: ""}
        given |= {"client_id": "a", "secret": "s", "idp_client_id": "i", "idp_secret": "i"}
    with pytest.raises(ConfigurationError, match=message) as caught:
        kind(**{**given, **options})

    assert "a.b.c" not in str(caught.value)


def test_extensions_are_those_of_the_specification() -> None:
    """The identifiers of ext-auth; the drafts of DPoP and workloads have none to declare."""
    assert ClientCredentials.extension == CLIENT_EXTENSION
    assert Enterprise.extension == ENTERPRISE_EXTENSION
    assert Workload.extension is None
