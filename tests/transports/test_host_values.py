"""Values from the host: assigns, the principal, and its defects."""

import logging
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.testclient import TestClient

from genmcp import (
    Channel,
    ConfigurationError,
    Endpoint,
    Mux,
    Security,
    Suite,
    Tool,
    ToolRequest,
)
from genmcp._transports.request import HttpRequest
from genmcp._transports.writing import reply
from genmcp.core.access import Access
from tests.support.asgi import Client, serving


class Tell(Tool):
    """Returns its assigns and its principal."""

    name = "tell"

    def __init__(self) -> None:
        self.saw: list[dict[str, Any]] = []
        self.principals: list[str | None] = []

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.saw.append(dict(channel.assigns))
        self.principals.append(channel.principal)
        channel.assigns["mine"] = request.arguments.get("mine")
        channel.assigns["fixed"] = "changed"
        return "told"


def mux(tool: Tool, **assigns: Any) -> Mux:
    return Mux(Suite(name="test", version="1", tools=[tool]), assigns=assigns)


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_assigns_have_three_layers(version: str) -> None:
    """Copied over static; a null is copied, an absent key is not; nothing else leaks in."""
    tell = Tell()
    endpoint = Endpoint(mux(tell, fixed="f", user="nobody"), copy_assigns=["user", "team", "gone"])
    state = {"user": "ada", "team": None, "secret": 1}
    client = await Client.begin(endpoint, version, state=state)

    for _ in range(2):
        await client.send(client.call("tell", {"mine": 1}))

    seen = {"fixed": "f", "user": "ada", "team": None}
    assert [seen, seen] == tell.saw  # the next call does not see the value
    assert state == {"user": "ada", "team": None, "secret": 1}


async def test_assigns_of_a_host_without_state_are_the_static_ones() -> None:
    """A scope without a `state` has none of the keys."""
    tell = Tell()
    client = Client(Endpoint(mux(tell, user="nobody"), copy_assigns=["user"]))

    await client.send(client.call("tell"))

    assert tell.saw == [{"user": "nobody"}]


class User:
    def __init__(self, identity: Any, *, authenticated: bool = True) -> None:
        self.identity = identity
        self.is_authenticated = authenticated


@pytest.mark.parametrize(
    ("scope", "principal"),
    [
        ({}, None),
        ({"user": None}, None),
        ({"user": User("ada")}, "ada"),
        ({"user": User("ada", authenticated=False)}, None),
        ({"user": SimpleUser("bob")}, "bob"),
    ],
)
async def test_principal_is_the_authenticated_user(scope: Any, principal: str | None) -> None:
    """By default the identity of `scope["user"]`, Starlette's convention."""
    tell = Tell()
    client = Client(serving(tell), **scope)

    await client.send(client.call("tell"))

    assert [principal] == tell.principals


async def test_principal_may_be_found_by_a_function() -> None:
    """principal= is given the scope."""
    tell = Tell()
    client = Client(serving(tell, principal=lambda scope: scope["who"]), who="ada")

    await client.send(client.call("tell"))

    assert tell.principals == ["ada"]


class Nameless:
    is_authenticated = True

    @property
    def identity(self) -> str:
        raise NotImplementedError


@pytest.mark.parametrize("user", [User(""), User(None), User(7), Nameless(), {"name": "ada"}])
async def test_principal_without_an_identity_is_an_error_in_the_log(
    user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with a reference; the log names the option. No client gets another's identity."""
    client = Client(serving(Tell), user=user)

    answer = await client.send(client.call("tell"))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    (record,) = caplog.records
    assert answer.json["error"]["data"]["reference"] in record.getMessage()
    assert "principal=" in caplog.text


@pytest.mark.parametrize("found", ["", 7, b"ada", Access(issuer="https://as")])
async def test_principal_that_is_no_identity_is_an_error_in_the_log(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty text would be one principal for all clients."""
    client = Client(serving(Tell, principal=lambda scope: found))

    answer = await client.send(client.call("tell"))

    assert answer.status == 500
    assert "principal=" in caplog.text


def test_principal_through_starlettes_own_middleware() -> None:
    """AuthenticationMiddleware and SimpleUser work as they come."""
    tell = Tell()

    class Everybody(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            return AuthCredentials([]), SimpleUser(conn.headers["x-user"])

    app = Starlette(
        routes=[serving(tell).route("/mcp")],
        middleware=[Middleware(AuthenticationMiddleware, backend=Everybody())],
    )
    client = Client(None)
    message = client.call("tell")
    with TestClient(app) as http:
        answer = http.post(
            "/mcp", json=message, headers={**client._headers(message), "x-user": "ada"}
        )

    assert answer.status_code == 200
    assert tell.principals == ["ada"]


@pytest.mark.parametrize(
    ("options", "scope", "access"),
    [
        ({}, {}, None),
        ({}, {"user": User("ada")}, Access(subject="ada")),
        (
            {},
            {"user": SimpleUser("ada"), "auth": AuthCredentials(["parts:read"])},
            Access(subject="ada", scopes=frozenset({"parts:read"})),
        ),
        ({}, {"auth": AuthCredentials(["parts:read"])}, None),
        ({"principal": lambda scope: "ada"}, {}, Access(subject="ada")),
        (
            {"principal": lambda scope: Access(issuer="https://as", subject="ada")},
            {},
            Access(issuer="https://as", subject="ada"),
        ),
    ],
)
async def test_host_application_gives_access(
    options: Any, scope: Any, access: Access | None
) -> None:
    """Scopes come from Starlette's convention, or with the Access that principal= returns."""
    found: list[tuple[Access | None, str | None]] = []

    async def serve(http: HttpRequest) -> None:
        found.append((http.access, http.principal))
        await reply(http, 204)

    endpoint = serving(Tell, **options)
    client = Client(partial(endpoint, serve=serve), **scope)
    await client.send(client.call("tell"))

    assert found == [(access, access and access.principal)]


async def principal_that_waits(scope: Any) -> str:
    return "ada"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"copy_assigns": "user"}, "copy_assigns"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"grace": -1}, "grace"),
        ({"principal": principal_that_waits}, "principal"),
        ({"principal": "ada"}, "principal"),
    ],
)
def test_options_that_are_wrong_are_named(options: Any, said: str) -> None:
    """At construction, never per request."""
    with pytest.raises(ConfigurationError, match=said):
        serving(**options)


async def test_defects_of_the_host_cost_one_request(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in the endpoint itself: logged with its reference, 500, and on it goes."""

    def broken(scope: Any) -> str | None:
        if "x-broken" in {k.decode(): v for k, v in scope["headers"]}:
            raise LookupError("secret")
        return None

    client = Client(serving(Tell, principal=broken))

    failed = await client.send(client.call("tell"), headers={"x-broken": "1"})
    fine = await client.send(client.call("tell"))

    (record,) = caplog.records
    assert (failed.status, fine.status) == (500, 200)
    assert "secret" not in failed.body.decode()
    assert record.levelno == logging.ERROR
    assert failed.json["error"]["data"]["reference"] in record.getMessage()
    assert "LookupError: secret" in caplog.text


@pytest.mark.parametrize(
    ("peer", "allowed_hosts", "warnings"),
    [
        (("192.0.2.1", 1), None, 1),
        (("192.0.2.1", 1), ["*"], 0),
        (("127.0.0.1", 1), None, 0),
        (None, None, 0),
    ],
)
async def test_host_is_warned_of_an_endpoint_that_serves_strangers(
    peer: tuple[str, int] | None,
    allowed_hosts: list[str] | None,
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, when a remote client connects and no authentication is configured."""
    suite = Suite(name="open", version="1")
    endpoint = Endpoint(suite, security=Security(allowed_hosts=allowed_hosts))
    client = Client(endpoint, client=peer)

    for _ in range(2):
        await client.send(client.request("tools/list"), headers={"host": "localhost"})

    told = [record for record in caplog.records if "without authentication" in record.getMessage()]
    assert warnings == len(told)
