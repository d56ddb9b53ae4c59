"""The events of a login, which `genmcp auth` prints and the log has."""

from contextlib import suppress

import pytest

from genmcp.core.auth.flow import RejectedAttempt, authorize
from genmcp.core.auth.steps import FlowFailed
from tests.core.auth.auth_world import PRM, World, challenge


def test_events_name_each_step() -> None:
    """In the order of the login."""
    world = World()

    world.run(authorize(world.options, challenge('Bearer scope="a b"')))

    assert [event.topic for event in world.events] == [
        "challenge",
        "resource metadata",
        "server metadata",
        "scopes",
        "registration",
        "authorization",
        "token",
    ]
    assert all(event.ok for event in world.events)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, "PKCE S256"),
        ({"authorization_response_iss_parameter_supported": True}, "iss in the redirect"),
        ({"client_id_metadata_document_supported": True}, "metadata documents, dynamic"),
        ({"revocation_endpoint": "https://login.example.com/revoke"}, "revocation of tokens"),
    ],
)
def test_events_show_the_metadata_that_decides(members: dict[str, object], text: str) -> None:
    """A user sees why a login is as it is, or fails."""
    world = World()
    world.metadata |= members
    with suppress(FlowFailed):
        world.run(authorize(world.options, challenge('Bearer scope="a"')))

    assert any(text in event.text for event in world.events)


def test_failed_step_names_the_option_that_helps() -> None:
    """Also before the login fails."""
    world = World()
    world.metadata["code_challenge_methods_supported"] = ["plain"]

    with pytest.raises(FlowFailed, match="assume_pkce=True"):
        world.run(authorize(world.options))

    assert ["assume_pkce=True" in event.text for event in world.events if not event.ok] == [True]


def test_events_of_an_old_server_name_the_rules_that_apply() -> None:
    """It is its own authorization server (2025-03-26)."""
    world = World()
    world.pages.clear()
    with pytest.raises(FlowFailed):  # the table has no page to register at
        world.run(authorize(world.options, RejectedAttempt(status=401)))

    texts = [event.text for event in world.events]
    assert "none: /authorize, /token and /register are used" in texts
    assert "no document (HTTP 404)" in [event.text for event in world.events if event.url == PRM]
    assert any("issuer= names another one" in text for text in texts)
