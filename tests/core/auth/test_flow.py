"""Logins, renewals, and the answers to 401 and 403."""

from genmcp._core.auth.flow import authorize, explain
from tests.core.auth.auth_world import ACCESS, REFRESH, URL, World, challenge, form_of


def test_login_of_a_new_client() -> None:
    """All of it: discovery, registration, consent, token."""
    world = World()

    record = world.run(authorize(world.options, challenge('Bearer scope="a b"')))

    assert (record.access_token, record.refresh_token) == (ACCESS, REFRESH)
    assert record == world.record
    assert record.expires == world.time + 3600
    assert world.asked["resource"] == URL
    assert world.asked["scope"] == "a b"
    [request] = world.to("/token")
    assert form_of(request)["resource"] == URL


def test_explanation_names_each_step() -> None:
    """`genmcp auth URL` prints it; nothing is registered, and nobody is asked."""
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
