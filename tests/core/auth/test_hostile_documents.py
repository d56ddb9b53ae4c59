"""Documents of hostile servers: each is refused with its error, and no secret is in any text."""

import json
from random import Random
from typing import Any

import pytest

from genmcp.core.auth.flow import authorize
from genmcp.core.auth.record import decode_record, encode_record
from genmcp.core.auth.steps import Failure, Fetched, FlowFailed
from tests.core.auth.auth_world import (
    ISSUER,
    METADATA,
    PRM,
    PRM_ROOT,
    REDIRECT,
    SECRETS,
    URL,
    World,
    challenge,
    page,
    raw,
)

EVIL = "https://evil.example.com"


def refused(world: World, text: str = "Bearer") -> FlowFailed:
    """Run a login that must fail before it reaches the user; return its failure."""
    with pytest.raises(FlowFailed) as caught:
        world.run(authorize(world.options, challenge(text)))
    assert world.asks == []
    assert world.to("/token") == []
    shown = [str(caught.value), repr(caught.value), *map(repr, world.events)]
    assert [secret for secret in SECRETS if any(secret in text for text in shown)] == []
    assert all(len(text) < 1200 for text in shown)
    assert all(text.isprintable() for text in shown)
    return caught.value


# The protected resource metadata


@pytest.mark.parametrize(
    "resource",
    [
        f"{EVIL}/mcp",
        "https://mcp.example.com.evil.example.com/mcp",
        "https://mcp.example.com:8443/mcp",
        "http://mcp.example.com/mcp",
        "https://mcp.example.com/mc",
        "https://mcp.example.com/mcp2",
        "https://mcp.example.com/mcp/other",
        "https://mcp.example.com/MCP",
        "https://mcp.example.com/mcp?tenant=1",
        "https://mcp.example.com/mcp#part",
        "https://mcp.example.com/#",
        "https://user@mcp.example.com/mcp",
        "https://mcp.example.com@evil.example.com/mcp",
        "https://mcp.example.com:port/mcp",
        "https://[mcp.example.com/mcp",
        "mcp.example.com/mcp",
        "/mcp",
        "",
        "javascript:alert(1)",
        "file:///etc/passwd",
    ],
)
def test_metadata_of_another_resource_is_refused(resource: str) -> None:
    """RFC 9728, 3.3. This server would get the tokens of another."""
    world = World()
    world.prm["resource"] = resource

    failure = refused(world)

    assert failure.failure is Failure.RESOURCE
    assert "resource=" in str(failure)


def test_metadata_of_another_resource_than_the_option_is_refused() -> None:
    """Also if it is that of the server."""
    world = World(resource="https://other.example.com/mcp")

    assert refused(world).failure is Failure.RESOURCE


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://login.example.com/t",
        "data:application/json,{}",
        "http://login.example.com",
        "http://127.0.0.1:8080",
        "http://localhost",
        "http://169.254.169.254/latest",
        "https://user:pass@login.example.com",
        "https://login.example.com/#a",
        "https://login.example.com:70000",
        "https://[::1",
        "https://",
        "https:///path",
        "//login.example.com",
        "login.example.com",
        "",
        "https://login.example.com/\\evil",
        "https://login.example.com/a b",
        "https://login.example.com/\r\nX: y",
        "https://log\u0131n.example.com",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://1.2.3.4.5/",
        "https://login.example.com/" + "a" * 2048,
    ],
)
@pytest.mark.parametrize("place", ["challenge", "issuer", "authorization", "token", "registration"])
def test_unsafe_url_is_never_fetched_or_opened(place: str, url: str) -> None:
    """Security best practices, "Server-Side Request Forgery"; and a browser runs javascript."""
    world = World()
    text = "Bearer"
    if place == "challenge":
        quoted = url.replace("\\", "\\\\").replace('"', '\\"')
        text = f'Bearer resource_metadata="{quoted}"'
    elif place == "issuer":
        world.prm["authorization_servers"] = [url]
    else:
        world.metadata[f"{place}_endpoint"] = url

    failure = refused(world, text)

    assert failure.failure is Failure.OTHER
    assert url not in world.urls or not url
    assert world.to("/register") == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "app.localhost",
        "localhost.",
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "[::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "100.64.0.1",
        "0.0.0.0",
    ],
)
@pytest.mark.parametrize("place", ["challenge", "issuer", "token"])
def test_private_address_is_refused_if_the_option_says_so(place: str, host: str) -> None:
    """A hub on a server must not be made to reach its own network."""
    world = World(public_only=True)
    text, url = "Bearer", f"https://{host}/x"
    if place == "challenge":
        text = f'Bearer resource_metadata="{url}"'
    elif place == "issuer":
        world.prm["authorization_servers"] = [url]
    else:
        world.metadata["token_endpoint"] = url

    failure = refused(world, text)

    assert "its address is private" in str(failure)
    assert url not in world.urls


def test_public_addresses_only_is_passed_to_the_runner() -> None:
    """The addresses of a name are known to the runner alone; the server itself may be private."""
    world = World(public_only=True)
    world.run(authorize(world.options, challenge()))
    assert [fetch.public_only for fetch in world.fetches] == [False, True, True, True]

    world = World()
    world.run(authorize(world.options, challenge()))
    assert not any(fetch.public_only for fetch in world.fetches)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/as", "http://localhost:9", "http://[::1]:9"])
def test_loopback_is_allowed_for_a_server_on_loopback(url: str) -> None:
    """A server under development, with an authorization server beside it."""
    world = World(url="http://127.0.0.1:8000/mcp")
    world.prm = {"resource": world.options.url, "authorization_servers": [url]}
    world.pages["http://127.0.0.1:8000/.well-known/oauth-protected-resource/mcp"] = page(world.prm)

    with pytest.raises(FlowFailed, match="has no metadata"):
        world.run(authorize(world.options, challenge()))

    assert any(asked.startswith(url[:16]) for asked in world.urls[1:])


def nested(depth: int) -> str:
    return '{"resource": "https://mcp.example.com/mcp", "a": ' + "[" * depth + "]" * depth + "}"


DOCUMENT = json.dumps({"resource": URL, "authorization_servers": [ISSUER]})


@pytest.mark.parametrize(
    "document",
    [
        raw(DOCUMENT[:-1] + f', "resource": "{EVIL}"}}'),
        raw(f'{{"authorization_servers": ["{EVIL}"], ' + DOCUMENT[1:]),
        raw(DOCUMENT[:-1] + ', "a": {"b": 1, "b": 2}}'),
        raw(DOCUMENT[:-1] + ', "\\u0072esource": "x"}'),
        raw(DOCUMENT[:-1]),
        raw(DOCUMENT + "x"),
        raw(DOCUMENT[:-1] + ', "a": NaN}'),
        raw(DOCUMENT[:-1] + ', "a": Infinity}'),
        raw(DOCUMENT[:-1] + ', "a": ' + "9" * 5000 + "}"),
        raw(DOCUMENT.encode() + b"\xff"),
        raw(nested(200_000)[:100_000]),
        raw(nested(100_000)),
        raw(DOCUMENT + " " * 262_144),
        page({"resource": URL, "authorization_servers": {}}),
        page({"resource": URL, "authorization_servers": [1]}),
        page({"resource": URL, "authorization_servers": [None]}),
        page({"resource": [URL], "authorization_servers": [ISSUER]}),
        page({"authorization_servers": [ISSUER]}),
        page({"resource": URL, "authorization_servers": [ISSUER], "scopes_supported": "a"}),
        page({"resource": URL, "authorization_servers": [ISSUER], "scopes_supported": [1]}),
        page({"resource": URL, "authorization_servers": []}),
        raw("", 302, Location=f"{EVIL}/prm"),
        raw("", 302, Location="http://mcp.example.com/prm"),
        raw("", 302, Location="javascript:alert(1)"),
        raw("", 302, Location="http://[::1"),
        raw("", 302, Location="https://mcp.example.com:port/prm"),
        raw("", 307, Location="https://mcp.example.com:8443/prm"),
        raw("", 302, Location=PRM),
        raw("", 302),
    ],
)
def test_broken_resource_metadata_is_an_error(document: Fetched) -> None:
    """Not a sign of an old server, which is its own authorization server."""
    world = World()
    world.pages[PRM] = document
    world.pages[PRM_ROOT] = raw("", 404)

    assert refused(world).failure is Failure.OTHER
    assert all(url.startswith("https://mcp.example.com/.well-known/") for url in world.urls)


# The metadata of the authorization server


@pytest.mark.parametrize(
    "issuer",
    [
        f"{ISSUER}/",
        EVIL,
        ISSUER.upper(),
        "https://LOGIN.example.com",
        "https://login.example.com:443",
        "https://login.example.com./",
        "http://login.example.com",
        f"{ISSUER}/tenant",
        f"{ISSUER} ",
        "https://login%2Eexample.com",
        "",
    ],
)
def test_metadata_of_another_issuer_is_refused(issuer: str) -> None:
    """RFC 8414, 3.3: identical. No endpoint in it is used."""
    world = World()
    world.metadata["issuer"] = issuer

    failure = refused(world)

    assert failure.failure is Failure.ISSUER
    assert ("issuer=" in str(failure)) is (issuer == f"{ISSUER}/")
    assert world.to("/register") == []


def test_metadata_of_another_issuer_than_the_option_is_refused() -> None:
    """A server cannot direct the client, and its secret, to another authorization server."""
    world = World(issuer=ISSUER, client_id="own", client_secret="client-secret")
    world.prm["authorization_servers"] = [EVIL]

    failure = refused(world)

    assert failure.failure is Failure.ISSUER
    assert world.urls == [PRM]


def test_issuer_with_a_query_is_refused() -> None:
    """RFC 8414, 2."""
    world = World()
    world.prm["authorization_servers"] = [f"{ISSUER}?tenant=1"]

    assert "query" in str(refused(world))


@pytest.mark.parametrize(
    ("members", "failure"),
    [
        ({"code_challenge_methods_supported": None}, Failure.PKCE),
        ({"code_challenge_methods_supported": []}, Failure.PKCE),
        ({"code_challenge_methods_supported": ["plain"]}, Failure.PKCE),
        ({"code_challenge_methods_supported": "S256"}, Failure.OTHER),
        ({"issuer": 1}, Failure.OTHER),
        ({"token_endpoint": ["x"]}, Failure.OTHER),
        ({"token_endpoint": None}, Failure.OTHER),
        ({"authorization_endpoint": None}, Failure.OTHER),
        ({"authorization_endpoint": 1}, Failure.OTHER),
        ({"scopes_supported": "a"}, Failure.OTHER),
        ({"token_endpoint_auth_methods_supported": "none"}, Failure.OTHER),
        ({"client_id_metadata_document_supported": "yes"}, Failure.OTHER),
        ({"authorization_response_iss_parameter_supported": 1}, Failure.OTHER),
        ({"registration_endpoint": None}, Failure.REGISTRATION),
    ],
)
def test_unusable_server_metadata_is_an_error(members: dict[str, Any], failure: Failure) -> None:
    """Without S256, codes can be injected; with wrong types nothing can be relied on."""
    world = World()
    world.metadata |= members

    assert refused(world).failure is failure
    assert world.to("/register") == []


@pytest.mark.parametrize(
    "document",
    [
        raw("<html>login</html>"),
        raw(""),
        raw("[1]"),
        raw("", 302, Location=f"{EVIL}/metadata"),
        raw(json.dumps({"issuer": ISSUER})[:-1] + f', "issuer": "{EVIL}"}}'),
        raw('{"issuer": "https://login.example.com"} ' + " " * 262_144),
        raw("{" * 100_000),
    ],
)
def test_server_without_usable_metadata_is_an_error(document: Fetched) -> None:
    """The fixed paths of 2025-03-26 are for servers that name no authorization server."""
    world = World()
    world.pages[METADATA] = document

    assert refused(world).failure is Failure.OTHER


def test_text_of_a_server_is_short_and_printable() -> None:
    """A terminal would obey its control characters, and a log has lines."""
    world = World()
    world.metadata["issuer"] = "\x1b[2J\u202e\n" + "x" * 10_000

    assert "\\x1b[2J" in str(refused(world))


# Anything at all

ODD: list[Any] = [
    None,
    True,
    -1,
    10**30,
    1e308,
    "",
    "\ud800",
    "\x00",
    "https://",
    "https://[",
    "https://login.example.com:99999",
    "x" * 5000,
    [],
    [[]],
    ["\ud800", ""],
    [ISSUER] * 500,
    {},
    {"a": [1]},
]


@pytest.mark.parametrize("seed", range(40))
def test_odd_documents_cause_no_other_error(seed: int) -> None:
    """Each member of each document with each odd value: a login, or a failure of the flow."""
    chance = Random(seed)
    for _ in range(25):
        world = World(public_only=chance.random() < 0.5, client_secret="client-secret")
        world.prm["scopes_supported"] = ["a"]
        world.client |= {"client_secret": "client-secret", "redirect_uris": [REDIRECT]}
        for document in (world.prm, world.metadata, world.client, world.token):
            if chance.random() < 0.4:
                document[chance.choice([*document, "other"])] = chance.choice(ODD)
        odd = chance.choice([*ODD[5:12], "a"])
        text = f'Bearer scope="{odd}"' if chance.random() < 0.5 else "Bearer"
        try:
            record = world.run(authorize(world.options, challenge(text)))
        except FlowFailed as failed:
            assert str(failed).isprintable()
            assert "client-secret" not in str(failed)
        else:
            assert decode_record(encode_record(record)) == record
