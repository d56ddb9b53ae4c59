"""The findings and choices of a client, without a login."""

import pytest

from genmcp._core.auth.flow import RejectedAttempt, explain
from genmcp._core.auth.steps import FlowFailed
from tests.core.auth.auth_world import (
    PRM,
    World,
    challenge,
)


def test_explanation_names_each_step() -> None:
    """`genmcp auth URL` prints it, without a registration or a login."""
    world = World()

    world.run(explain(world.options, challenge('Bearer scope="a b"')))

    assert not world.asks
    assert not world.to("/register")
    topics = list(dict.fromkeys(finding.topic for finding in world.findings))
    assert topics == [
        "challenge",
        "resource metadata",
        "authorization server",
        "server metadata",
        "registration",
        "scopes",
        "authorization",
        "token",
    ]
    assert all(finding.ok for finding in world.findings)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"grant_types_supported": ["authorization_code"]}, "each expiry of the access token"),
        ({"grant_types_supported": ["refresh_token"]}, "at the discretion"),
        ({"scopes_supported": ["offline_access"]}, "asked for with offline_access"),
        ({"authorization_response_iss_parameter_supported": True}, "iss is promised"),
        ({"token_endpoint_auth_methods_supported": None}, "client_secret_basic"),
    ],
)
def test_explanation_has_what_decides_on_a_login(members: dict[str, object], text: str) -> None:
    """A user learns why a login is needed so often, or fails."""
    world = World()
    world.metadata |= members

    world.run(explain(world.options, challenge('Bearer scope="a"')))

    assert any(text in finding.text for finding in world.findings)


def test_explanation_names_the_option_that_helps() -> None:
    """Each failed step is a finding, with advice."""
    world = World()
    world.metadata.pop("registration_endpoint")

    with pytest.raises(FlowFailed, match="client_id="):
        world.run(explain(world.options))

    assert [finding.advice for finding in world.findings if not finding.ok] == [
        "client_id= with the id that its operator gives you"
    ]


def test_explanation_without_metadata_names_the_rules_that_apply() -> None:
    """An old server is its own authorization server."""
    world = World()
    world.pages.clear()

    found = world.run(explain(world.options, RejectedAttempt(status=401)))

    assert found.issuer == "https://mcp.example.com"
    texts = " ".join(finding.text for finding in world.findings)
    assert "as in 2025-03-26" in texts
    assert "resource=left out" in texts
    assert "HTTP 404" in [finding.text for finding in world.findings if finding.url == PRM]
    assert [finding.advice for finding in world.findings if not finding.ok] == [
        "",
        "issuer= names another one",
    ]
