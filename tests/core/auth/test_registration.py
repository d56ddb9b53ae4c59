"""The client at an authorization server: which id it uses, and how it registers."""

import json
from typing import Any

import msgspec
import pytest

from genmcp.core.auth.discovery import DiscoveredServer
from genmcp.core.auth.metadata import ServerMetadata
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.registration import choose_client, register
from genmcp.core.auth.steps import Failure, Fetched, FlowFailed
from tests.core.auth.auth_world import ISSUER, REDIRECT, SECRET, World, page, raw

REGISTER = f"{ISSUER}/register"
BOTH = ("client_secret_post", "client_secret_basic")
DOCUMENT = "https://client.example.com/id.json"


def found(**members: Any) -> DiscoveredServer:
    """An authorization server that registers clients, with other members."""
    endpoint = {"token_endpoint": f"{ISSUER}/token", "registration_endpoint": REGISTER}
    return DiscoveredServer(server=ServerMetadata(issuer=ISSUER, **(endpoint | members)))


def stored(issuer: str = ISSUER, **members: Any) -> Record:
    """The record of an earlier login."""
    known: dict[str, Any] = {"id": "earlier", "dynamic": True}
    client = RegisteredClient(**(known | members))
    return Record(issuer=issuer, token_endpoint=f"{ISSUER}/token", client=client)


@pytest.mark.parametrize(
    ("options", "members", "method"),
    [
        ({}, {}, "none"),
        ({"client_secret": SECRET}, {}, "client_secret_basic"),
        (
            {"client_secret": SECRET},
            {"token_endpoint_auth_methods_supported": ["client_secret_post"]},
            "client_secret_post",
        ),
        (
            {"client_secret": SECRET},
            {
                "token_endpoint_auth_methods_supported": [
                    "client_secret_post",
                    "client_secret_basic",
                ]
            },
            "client_secret_basic",
        ),
        ({"sign": lambda claims: "jwt"}, {}, "private_key_jwt"),
        ({}, {"client_id_metadata_document_supported": True}, "none"),
    ],
)
def test_own_client_comes_first(
    options: dict[str, Any], members: dict[str, Any], method: str
) -> None:
    """2026-07-28, "Client Registration": the order of preference. RFC 8414, 2: Basic by default."""
    world = World(client_id="own", **options)

    client = choose_client(world.options, found(**members), stored())

    assert client == RegisteredClient(id="own", method=method)


@pytest.mark.parametrize(
    ("sign", "method"), [(None, "none"), (lambda claims: "jwt", "private_key_jwt")]
)
def test_document_comes_before_registration(sign: Any, method: str) -> None:
    """A URL is the same client at each authorization server, also at another one than before."""
    world = World(client_id=DOCUMENT, sign=sign)
    server = found(
        client_id_metadata_document_supported=True,
        authorization_response_iss_parameter_supported=True,
    )

    client = choose_client(world.options, server, stored("https://old", id=DOCUMENT))

    assert client == RegisteredClient(id=DOCUMENT, method=method)


def test_document_is_not_sent_to_a_server_that_knows_none() -> None:
    """The client registers instead."""
    world = World(client_id=DOCUMENT)

    assert choose_client(world.options, found(), None) is None


@pytest.mark.parametrize(
    "url", ["https://client.example.com", "https://client.example.com/", "http://h/a"]
)
def test_id_that_is_no_url_of_a_document_is_an_own_client(url: str) -> None:
    """A document has an https URL with a path; some servers give other URLs as ids."""
    world = World(client_id=url)

    client = choose_client(world.options, found(), None)

    assert client is not None
    assert client.id == url


@pytest.mark.parametrize(
    ("record", "used"),
    [
        (None, False),
        (stored(), True),
        (stored(secret_expires=1001.0), True),
        (stored(secret_expires=1000.0), False),
        (stored("https://other.example.com"), False),
        (stored(dynamic=False), False),
    ],
)
def test_earlier_registration_is_used_at_its_issuer(record: Record | None, used: bool) -> None:
    """2026-07-28, "Authorization Server Binding"."""
    world = World()

    client = choose_client(world.options, found(), record)

    assert client == (record.client if record and used else None)


def test_no_way_to_an_id_is_an_error_with_advice() -> None:
    """The user is the last resort: the specification lets the client ask."""
    world = World()

    with pytest.raises(FlowFailed, match="client_id=") as caught:
        choose_client(world.options, found(registration_endpoint=None), None)

    assert caught.value.failure is Failure.REGISTRATION


# The request


@pytest.mark.parametrize(
    ("redirect_uri", "kind"),
    [
        (REDIRECT, "native"),
        ("http://localhost:1/callback", "native"),
        ("http://[::1]:1/callback", "native"),
        ("com.example.app:/callback", "native"),
        ("https://app.example.com/callback", "web"),
    ],
)
def test_registration_states_the_type_of_the_application(redirect_uri: str, kind: str) -> None:
    """2026-07-28, "Application Type and Redirect URI Constraints"."""
    world = World()

    world.run(register(world.options, found(), redirect_uri))

    [request] = world.fetches
    assert (request.method, request.url) == ("POST", REGISTER)
    assert json.loads(request.body or b"") == {
        "client_name": "genmcp",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_basic",
        "application_type": kind,
    }


@pytest.mark.parametrize(
    ("listed", "method"),
    [
        (None, "client_secret_basic"),
        (["none"], "none"),
        (["client_secret_post", "none"], "none"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
    ],
)
def test_registration_asks_for_a_method_of_the_server(
    listed: list[str] | None, method: str
) -> None:
    """A public client where it can; Basic where the metadata has no list."""
    world = World()
    world.client |= {"client_secret": SECRET, "token_endpoint_auth_method": method}

    client = world.run(
        register(world.options, found(token_endpoint_auth_methods_supported=listed), REDIRECT)
    )

    assert json.loads(world.fetches[0].body or b"")["token_endpoint_auth_method"] == method
    assert client.method == method
    assert client.secret == (None if method == "none" else SECRET)
    assert client.dynamic
    assert client.redirect_uri == REDIRECT


@pytest.mark.parametrize(
    ("listed", "grants"),
    [
        (["authorization_code"], ["authorization_code"]),
        (["authorization_code", "refresh_token"], ["authorization_code", "refresh_token"]),
    ],
)
def test_registration_asks_for_refresh_tokens_where_they_exist(
    listed: list[str], grants: list[str]
) -> None:
    """A server may reject a grant type that it does not list."""
    world = World()

    world.run(register(world.options, found(grant_types_supported=listed), REDIRECT))

    assert json.loads(world.fetches[0].body or b"")["grant_types"] == grants


def test_secret_for_a_public_client_is_used() -> None:
    """A server that issues one expects it; without a stated method, by one that it lists."""
    world = World()
    world.client |= {"client_secret": SECRET}
    server = found(token_endpoint_auth_methods_supported=["client_secret_post", "none"])

    client = world.run(register(world.options, server, REDIRECT))

    assert json.loads(world.fetches[0].body or b"")["token_endpoint_auth_method"] == "none"
    assert (client.method, client.secret) == ("client_secret_post", SECRET)


# The response


@pytest.mark.parametrize(
    ("members", "client"),
    [
        ({}, RegisteredClient(id="c")),
        ({"token_endpoint_auth_method": "none", "client_secret": SECRET}, RegisteredClient(id="c")),
        (
            {"client_secret": SECRET},
            RegisteredClient(id="c", secret=SECRET, method="client_secret_basic"),
        ),
        (
            {"client_secret": SECRET, "token_endpoint_auth_method": "client_secret_post"},
            RegisteredClient(id="c", secret=SECRET, method="client_secret_post"),
        ),
        (
            {"client_secret": SECRET, "client_secret_expires_at": 0},
            RegisteredClient(id="c", secret=SECRET, method="client_secret_basic"),
        ),
        (
            {"client_secret": SECRET, "client_secret_expires_at": 5000},
            RegisteredClient(
                id="c", secret=SECRET, method="client_secret_basic", secret_expires=5000.0
            ),
        ),
        (
            {"redirect_uris": [REDIRECT], "grant_types": ["authorization_code"]},
            RegisteredClient(id="c"),
        ),
    ],
)
def test_registered_client_is_the_one_that_the_server_returns(
    members: dict[str, Any], client: RegisteredClient
) -> None:
    """RFC 7591, 3.2.1: the server may replace any value; its method counts."""
    world = World()
    world.client = {"client_id": "c", **members}

    made = world.run(register(world.options, found(), REDIRECT))

    assert made == msgspec.structs.replace(client, dynamic=True, redirect_uri=REDIRECT)


@pytest.mark.parametrize(
    "response",
    [
        page({}, 201),
        page({"client_id": ""}, 201),
        page({"client_id": 7}, 201),
        page({"client_id": "\ud800"}, 201),
        page({"client_id": "c\u00e4"}, 201),
        page({"client_id": "c\r\nX-Evil: 1"}, 201),
        page({"client_id": "c" * 2049}, 201),
        page({"client_id": "c", "client_secret": f"{SECRET}\n"}, 201),
        page({"client_id": "c", "client_secret": 7}, 201),
        page({"client_id": "c", "client_secret_expires_at": "soon"}, 201),
        page({"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"}, 201),
        page({"client_id": "c", "token_endpoint_auth_method": "client_secret_jwt"}, 201),
        page({"client_id": "c", "token_endpoint_auth_method": "client_secret_post"}, 201),
        raw(f'{{"client_id": "c", "client_secret": "{SECRET}", "client_id": "d"}}', 201),
        raw("<html>", 201),
        raw("", 201),
        raw('{"client_id": "c"}' + " " * 262_144, 201),
        raw("", 302, Location="https://evil.example.com/register"),
        raw("", 400),
        raw("Not Found", 404),
        page({"error": "invalid_redirect_uri", "error_description": "no loopback"}, 400),
        page({"error": 7, "error_description": 7}, 400),
        page({"error": "a\nb", "error_description": "\x1b[2J"}, 403),
        page({"error": "invalid_client_metadata", "error_description": "x" * 10_000}, 400),
    ],
)
def test_unusable_response_to_a_registration_is_an_error(response: Fetched) -> None:
    """Nothing of the client that a server has made wrong is kept."""
    world = World()
    world.pages[REGISTER] = response

    with pytest.raises(FlowFailed) as caught:
        world.run(register(world.options, found(), REDIRECT))

    assert caught.value.failure is Failure.REGISTRATION
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()
    assert [fetch.url for fetch in world.fetches] == [REGISTER]


def test_rejected_registration_has_the_reason_of_the_server() -> None:
    """2026-07-28: a meaningful error, for instance about the redirect URI."""
    world = World()
    world.pages[REGISTER] = page(
        {"error": "invalid_redirect_uri", "error_description": "no loopback"}, 400
    )

    with pytest.raises(FlowFailed, match="invalid_redirect_uri: no loopback") as caught:
        world.run(register(world.options, found(), REDIRECT))

    assert caught.value.error == "invalid_redirect_uri"


@pytest.mark.parametrize("response", [raw("", 503), Fetched(0, error="timed out"), raw("", 429)])
def test_outage_of_the_registration_is_reported_as_one(response: Fetched) -> None:
    """Another attempt may succeed."""
    world = World()
    world.pages[REGISTER] = response

    with pytest.raises(FlowFailed) as caught:
        world.run(register(world.options, found(), REDIRECT))

    assert caught.value.failure is Failure.UNAVAILABLE
