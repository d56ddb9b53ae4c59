"""Discovery: from the URL of a server to its authorization server."""

from typing import Any

import pytest
from msgspec.structs import replace

from genmcp.client.auth.oauth import by_credentials
from genmcp.core.auth.challenges import Challenge
from genmcp.core.auth.discovery import discover
from genmcp.core.auth.fetching import is_private_address
from genmcp.core.auth.flow import authorize
from genmcp.core.auth.steps import Failure, Fetched, FlowFailed
from tests.core.auth.auth_world import (
    ISSUER,
    METADATA,
    OPENID,
    PRM,
    PRM_ROOT,
    URL,
    Prover,
    World,
    page,
    raw,
)

ORIGIN = "https://mcp.example.com"
NAMED = f"{ORIGIN}/custom/metadata.json"
TENANT = f"{ISSUER}/t1"


def named(url: str = NAMED) -> Challenge:
    """A challenge that names the metadata of the resource."""
    return Challenge("Bearer", {"resource_metadata": url})


# Protected resource metadata


@pytest.mark.parametrize(
    ("at", "challenge", "asked"),
    [
        (NAMED, named(), [NAMED]),
        (PRM, named(), [NAMED, PRM]),
        (PRM, None, [PRM]),
        (PRM, Challenge("Bearer"), [PRM]),
        (PRM_ROOT, None, [PRM, PRM_ROOT]),
        (PRM_ROOT, named(), [NAMED, PRM, PRM_ROOT]),
        (PRM, named(PRM), [PRM]),
    ],
)
def test_resource_metadata_is_asked_in_order(
    at: str, challenge: Challenge | None, asked: list[str]
) -> None:
    """2026-07-28, "Protected Resource Metadata Discovery Requirements": no URL after the hit."""
    world = World()
    world.pages[at] = world.pages.pop(PRM)

    found = world.run(discover(world.options, challenge))

    assert world.urls == [*asked, METADATA]
    assert (found.issuer, found.resource) == (ISSUER, URL)


@pytest.mark.parametrize(
    "first",
    [
        raw("Not Found", 404),
        raw("no", 401),
        raw("", 405),
        raw("<html>", 200),
        raw("", 200),
        raw("[]", 200),
        raw("null", 200),
        raw(b"\xff\xfe", 200),
        page({"detail": "Not Found"}),
        page({"resource": 1}),
        page({"resource": URL, "authorization_servers": "https://login.example.com"}),
        page({"resource": URL}),
        page({"resource": URL, "authorization_servers": []}),
        raw('{"resource": "https://mcp.example.com/mcp"'),
        raw("down", 503),
        Fetched(0, error="timed out"),
    ],
)
def test_unusable_document_is_passed_over(first: Fetched) -> None:
    """After a 404 or another kind of document, the next URL is tried."""
    world = World()
    world.pages[PRM_ROOT] = world.pages[PRM]
    world.pages[PRM] = first

    assert world.run(discover(world.options, None)).issuer == ISSUER
    assert world.urls == [PRM, PRM_ROOT, METADATA]


@pytest.mark.parametrize(
    "resource", [URL, f"{URL}/", ORIGIN, f"{ORIGIN}/", "HTTPS://MCP.EXAMPLE.COM"]
)
def test_resource_is_sent_as_it_is_in_the_metadata(resource: str) -> None:
    """Verbatim, without a slash added or removed."""
    world = World()
    world.prm["resource"] = resource

    assert world.run(discover(world.options, None)).resource == resource


@pytest.mark.parametrize(
    ("option", "listed", "sent"),
    [
        (None, URL, None),
        (
            "https://other.example.com/mcp",
            "https://other.example.com/mcp",
            "https://other.example.com/mcp",
        ),
        ("", URL, URL),
    ],
)
def test_option_replaces_the_resource(option: str | None, listed: str, sent: str | None) -> None:
    """An explicit word: None for servers that know no resources, a text for a wrong document."""
    world = World(resource=option)
    world.prm["resource"] = listed

    assert world.run(discover(world.options, None)).resource == sent


def test_metadata_of_nothing_but_an_outage_is_no_old_server() -> None:
    """It would be taken for its own authorization server, and get a registration."""
    world = World()
    world.pages[PRM] = raw("down", 503)

    with pytest.raises(FlowFailed, match="HTTP 503") as caught:
        world.run(discover(world.options, None))

    assert caught.value.failure is Failure.UNAVAILABLE


def test_metadata_that_the_challenge_names_has_to_exist() -> None:
    """Its server has a wrong URL. It is not a server of 2025-03-26, which has no metadata."""
    world = World()
    del world.pages[PRM]

    with pytest.raises(FlowFailed, match="no protected resource metadata at"):
        world.run(discover(world.options, named()))


def test_discovery_sends_the_protocol_version() -> None:
    """2025-03-26, "Server Metadata Discovery Headers"."""
    world = World()

    world.run(discover(world.options, None))

    versions = [dict(fetch.headers)["MCP-Protocol-Version"] for fetch in world.fetches]
    assert versions == ["2026-07-28", "2026-07-28"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["/elsewhere", f"{ORIGIN}/elsewhere"])
def test_redirect_within_the_origin_is_followed(status: int, target: str) -> None:
    """A host may have moved its documents."""
    world = World()
    world.pages[f"{ORIGIN}/elsewhere"] = world.pages[PRM]
    world.pages[PRM] = raw("", status, Location=target)

    assert world.run(discover(world.options, None)).issuer == ISSUER


# The authorization server


@pytest.mark.parametrize(
    ("option", "listed", "used"),
    [
        (None, [TENANT, "https://b.example.com"], TENANT),
        (TENANT, ["https://b.example.com", TENANT], TENANT),
        (TENANT, [f"{TENANT}/"], TENANT),
        (f"{TENANT}/", [TENANT], f"{TENANT}/"),
        (TENANT, [], TENANT),
    ],
)
def test_authorization_server_is_that_of_the_option_or_the_first(
    option: str | None, listed: list[str], used: str
) -> None:
    """`issuer` is for a difference of a slash: both forms have one document."""
    world = World(issuer=option)
    world.prm["authorization_servers"] = listed
    world.metadata["issuer"] = used
    world.pages[f"{ISSUER}/.well-known/oauth-authorization-server/t1"] = page(world.metadata)

    assert world.run(discover(world.options, None)).issuer == used


def test_server_without_resource_metadata_uses_the_issuer_option() -> None:
    """Its own origin need not be its authorization server."""
    world = World(issuer=ISSUER)
    world.pages.pop(PRM)

    found = world.run(discover(world.options, None))

    assert (found.issuer, found.resource, found.scopes) == (ISSUER, None, None)


@pytest.mark.parametrize(
    ("issuer", "urls"),
    [
        (ISSUER, [METADATA, OPENID]),
        (
            TENANT,
            [f"{METADATA}/t1", f"{OPENID}/t1", f"{TENANT}/.well-known/openid-configuration"],
        ),
    ],
)
@pytest.mark.parametrize("broken", [raw("", 404), page({"issuer": 3}), page({})])
def test_server_metadata_is_asked_in_order(issuer: str, urls: list[str], broken: Fetched) -> None:
    """2026-07-28, "Authorization Server Metadata Discovery"."""
    for at, hit in enumerate(urls):
        world = World()
        world.prm["authorization_servers"] = [issuer]
        world.metadata["issuer"] = issuer
        world.pages |= dict.fromkeys(urls, broken) | {hit: page(world.metadata)}

        assert world.run(discover(world.options, None)).issuer == issuer
        assert world.urls[1:] == urls[: at + 1]


@pytest.mark.parametrize(
    ("members", "failure"),
    [
        ({"issuer": f"{ISSUER}/"}, Failure.ISSUER),
        ({"code_challenge_methods_supported": None}, Failure.PKCE),
        ({"code_challenge_methods_supported": []}, Failure.PKCE),
        ({"code_challenge_methods_supported": ["plain"]}, Failure.PKCE),
        ({"code_challenge_methods_supported": ["s256"]}, Failure.PKCE),
        ({"token_endpoint": None}, Failure.OTHER),
        ({"authorization_endpoint": None}, Failure.OTHER),
    ],
)
def test_refused_metadata_is_passed_over(members: dict[str, Any], failure: Failure) -> None:
    """The next document may be good; if none is, the error is that of the first."""
    world = World()
    world.pages[METADATA] = page(world.metadata | members)
    with pytest.raises(FlowFailed) as caught:
        world.run(discover(world.options, None))
    assert caught.value.failure is failure

    world.pages[OPENID] = page(world.metadata)
    assert world.run(discover(world.options, None)).issuer == ISSUER


def test_assumed_pkce_needs_no_list() -> None:
    """Entra and Cognito list no methods, and know S256."""
    world = World(assume_pkce=True)
    world.metadata.pop("code_challenge_methods_supported")

    assert world.run(discover(world.options, None)).issuer == ISSUER


def test_machine_grants_need_only_a_token_endpoint() -> None:
    """Client credentials, for instance, use the token endpoint only."""
    world = World(grant=by_credentials)
    world.metadata.pop("code_challenge_methods_supported")
    world.metadata.pop("authorization_endpoint")

    assert world.run(discover(world.options, None)).issuer == ISSUER


def test_null_means_absent() -> None:
    """RFC 8414, 3.2; some servers send all members."""
    world = World()
    world.metadata |= {"client_id_metadata_document_supported": None, "jwks_uri": None}

    assert not world.run(discover(world.options, None)).server.client_id_metadata_document_supported


# Servers of 2025-03-26


@pytest.mark.parametrize("issuer", [ORIGIN, f"{ORIGIN}/"])
def test_old_server_has_its_metadata_at_its_origin(issuer: str) -> None:
    """No text names the issuer, only an origin, which a slash does not change."""
    world = World()
    world.pages.pop(PRM)
    world.metadata["issuer"] = issuer
    world.pages[f"{ORIGIN}/.well-known/oauth-authorization-server"] = page(world.metadata)

    found = world.run(discover(world.options, None))

    assert (found.issuer, found.resource) == (issuer, None)
    assert found.server.token_endpoint == f"{ISSUER}/token"


def test_old_server_without_metadata_has_fixed_paths() -> None:
    """2025-03-26, "Fallbacks for Servers without Metadata Discovery"."""
    world = World()
    world.pages.clear()

    found = world.run(discover(world.options, None))

    assert found.server.registration_endpoint == f"{ORIGIN}/register"
    assert found.server.authorization_endpoint == f"{ORIGIN}/authorize"
    assert found.server.token_endpoint == f"{ORIGIN}/token"


def test_old_server_with_a_resource_of_the_option_gets_it() -> None:
    """2025-06-18 and later demand it from clients in any case."""
    world = World(resource=URL)
    world.pages.clear()

    assert world.run(discover(world.options, None)).resource == URL


# Private addresses


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("::ffff:8.8.8.8", False),
        ("64:ff9b::808:808", False),
        ("2002:808:808::1", False),
        ("2a00:1450:4001::1", False),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", True),
        ("10.0.0.1", True),
        ("172.16.0.1", True),
        ("192.168.1.1", True),
        ("169.254.169.254", True),
        ("100.64.0.1", True),
        ("224.0.0.1", True),
        ("255.255.255.255", True),
        ("::1", True),
        ("::", True),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("ff02::1", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:127.0.0.1", True),
        ("64:ff9b::a00:1", True),
        ("2002:a00:1::1", True),
        ("64:ff9b:1::a9fe:a9fe", True),
        ("64:ff9b:1:fffe::808:808", True),
        ("::ffff:0:a00:1", True),
        ("::127.0.0.1", True),
        ("fec0::10", True),
        ("5f00::1", True),
        ("2001:db8::1", True),
        ("2001:0:a00:1::1", True),
        ("not an address", True),
        ("", True),
    ],
)
def test_private_addresses_are_known(address: str, private: bool) -> None:
    """Also those within an IPv6 address, which a gateway translates."""
    assert is_private_address(address) is private


def test_endpoint_with_a_parameter_of_the_request_is_refused() -> None:
    """Otherwise a parameter is there twice, and the first one may be that which is used."""
    full = World(scopes=["offline_access", "a"], prover=Prover())
    full.token["token_type"] = "DPoP"
    full.run(authorize(full.options))

    for name in (*full.asked, "request", "request_uri"):
        world = World()
        world.metadata["authorization_endpoint"] += f"?tenant=7&{name.replace('_', '%5f')}="
        with pytest.raises(FlowFailed, match=f"in its own query: {name}$"):
            world.run(discover(world.options, None))
        world.run(discover(replace(world.options, grant=by_credentials), None))  # unused
    assert len(full.asked) == 10


def test_query_of_the_url_is_not_shown() -> None:
    """Some servers put the key of a user there."""
    world = World(url=f"{URL}?key=s3cr3t")
    world.prm["resource"] = "https://evil.example.com/mcp"

    with pytest.raises(FlowFailed) as caught:
        world.run(discover(world.options, None))

    assert caught.value.failure is Failure.RESOURCE
    assert f"not for '{URL}'" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
