"""Where metadata documents are found, and which are used."""

import msgspec
import pytest

from genmcp.core.access import Access
from genmcp.core.auth.metadata import (
    ResourceMetadata,
    ServerMetadata,
    check_public_url,
    covers,
    fallback_metadata,
    resource_metadata_urls,
    same_origin,
    server_metadata_urls,
)
from genmcp.errors import ConfigurationError

RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("https://h/mcp", [f"{RESOURCE}/mcp", RESOURCE]),
        ("https://h/api/mcp/", [f"{RESOURCE}/api/mcp", RESOURCE]),
        ("https://h/", [RESOURCE]),
        ("https://h", [RESOURCE]),
    ],
)
def test_resource_metadata_is_asked_with_the_path_first(url: str, paths: list[str]) -> None:
    """RFC 9728, 3.1: the well-known part is between host and path."""
    assert resource_metadata_urls(url) == [f"https://h{path}" for path in paths]


@pytest.mark.parametrize(
    ("issuer", "paths"),
    [
        ("https://as", [SERVER, OPENID]),
        ("https://as/", [SERVER, OPENID]),
        ("https://as/t1", [f"{SERVER}/t1", f"{OPENID}/t1", f"/t1{OPENID}"]),
        ("https://as/a/b/", [f"{SERVER}/a/b", f"{OPENID}/a/b", f"/a/b{OPENID}"]),
    ],
)
def test_server_metadata_is_asked_in_the_specified_order(issuer: str, paths: list[str]) -> None:
    """2025-11-25, authorization, "Authorization Server Metadata Discovery"."""
    assert server_metadata_urls(issuer) == [f"https://as{path}" for path in paths]


def test_server_without_metadata_has_fixed_paths_at_its_origin() -> None:
    """2025-03-26, authorization, "Fallbacks for Servers without Metadata Discovery"."""
    metadata = fallback_metadata("https://h:8443/api/mcp")

    assert metadata.authorization_endpoint == "https://h:8443/authorize"
    assert metadata.token_endpoint == "https://h:8443/token"
    assert metadata.registration_endpoint == "https://h:8443/register"


@pytest.mark.parametrize(
    ("resource", "url", "expected"),
    [
        ("https://h/mcp", "https://h/mcp", True),
        ("https://h/mcp/", "https://h/mcp", True),
        ("https://h", "https://h/mcp", True),
        ("https://H:443/api", "https://h/api/mcp", True),
        ("https://h/mc", "https://h/mcp", False),
        ("https://h/mcp/v1", "https://h/mcp", False),
        ("https://evil/mcp", "https://h/mcp", False),
        ("http://h/mcp", "https://h/mcp", False),
        ("https://h:444/mcp", "https://h/mcp", False),
        ("https://h/mcp?tenant=2", "https://h/mcp?tenant=1", False),
    ],
)
def test_resource_covers_itself_and_paths_below(resource: str, url: str, expected: bool) -> None:
    """No token for another resource must be requested (RFC 9728, 7.3)."""
    assert covers(resource, url) is expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://mcp.example.com/mcp", "https://"),
        ("mcp.example.com/mcp", "not the URL of a host"),
        ("https://h:port/", "not the URL of a host"),
        ("https://user:secret@h/", "not the URL of a host"),
        ("https://h/mcp#part", "no fragment"),
        ("https://h/mcp#", "no fragment"),
    ],
)
def test_url_that_cannot_identify_a_resource_is_rejected(url: str, reason: str) -> None:
    """The error names the option, so that it can be corrected."""
    with pytest.raises(ConfigurationError, match=f"resource: .*{reason}"):
        check_public_url("resource", url)


@pytest.mark.parametrize("url", ["https://h/mcp", "http://127.0.0.1:8000/mcp", "http://[::1]/"])
def test_url_with_https_or_on_loopback_is_accepted(url: str) -> None:
    """Development servers on loopback have no certificate."""
    check_public_url("resource", url)


def test_default_port_is_part_of_the_origin() -> None:
    """RFC 6454, 4: an origin without a port has the default port of its scheme."""
    assert same_origin("https://h/a", "https://h:443/b")
    assert not same_origin("https://h/a", "https://h:8443/a")


def test_documents_are_decoded_without_unknown_members() -> None:
    """RFC 8414, 2: other members must be ignored."""
    text = b'{"issuer": "https://as", "token_endpoint": "https://as/token", "x": {"y": 1}}'
    server = msgspec.json.decode(text, type=ServerMetadata)

    assert server.token_endpoint == "https://as/token"
    assert (
        msgspec.json.encode(ResourceMetadata(resource="https://h")) == b'{"resource":"https://h"}'
    )


def test_principal_is_the_issuer_with_the_subject() -> None:
    """Users of two issuers, and a client with the name of a user, are different principals."""
    ann = Access(issuer="https://as", subject="ann", client_id="one")

    principals = {
        ann.principal,
        Access(issuer="https://other", subject="ann").principal,
        Access(issuer="https://as", client_id="ann").principal,
    }

    assert len(principals) == 3
    assert ann.principal == Access(issuer="https://as", subject="ann", client_id="two").principal
    assert list(Access(scopes=frozenset({"a"})).missing(["b", "a"])) == ["b"]
