"""Logout: the tokens are revoked, and the record is removed in any case."""

from typing import Any

import pytest

from genmcp.core.auth.flow import authorize, log_out
from genmcp.core.auth.steps import Fetch
from tests.core.auth.auth_world import ACCESS, ISSUER, REFRESH, SECRETS, World, form_of, page, raw

REVOKE = f"{ISSUER}/revoke"


def logged_in(**metadata: Any) -> World:
    """A world after a login, at an authorization server that revokes tokens."""
    world = World()
    world.metadata["revocation_endpoint"] = REVOKE
    world.metadata |= metadata
    world.pages[REVOKE] = raw("")
    world.run(authorize(world.options))
    return world


def test_both_tokens_are_revoked() -> None:
    """RFC 7009, 2.1, with the authentication of the client; the refresh token first."""
    world = logged_in()

    outcome = world.run(log_out(world.options))

    assert not outcome.problems
    assert outcome.record is not None
    assert world.record is None
    assert world.locked == 0
    sent = [form_of(fetch) for fetch in world.to("/revoke")]
    assert [(each["token"], each["token_type_hint"]) for each in sent] == [
        (REFRESH, "refresh_token"),
        (ACCESS, "access_token"),
    ]
    assert [each["client_id"] for each in sent] == ["client-1"] * 2


def test_logout_without_a_login_does_nothing() -> None:
    """No request is sent, and no record exists afterwards."""
    world = World()
    outcome = world.run(log_out(world.options))

    assert (outcome.record, [*outcome.problems], world.locked) == (None, [], 0)
    assert world.fetches == []


@pytest.mark.parametrize("has_tokens", [True, False])
def test_missing_endpoint_is_a_problem_if_tokens_live(has_tokens: bool) -> None:
    """The user learns that a copy of the token remains valid."""
    world = logged_in()
    world.change(revocation_endpoint=None)
    if not has_tokens:
        assert world.record is not None
        world.record = world.record.without_tokens()

    outcome = world.run(log_out(world.options))

    assert world.record is None
    assert [*map(bool, outcome.problems)] == [True] * has_tokens
    assert not world.to("/revoke")


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (raw("", 503), "answered HTTP 503"),
        (page({"error": "unsupported_token_type"}, 400), "unsupported_token_type"),
        (page({"error_description": f"no {REFRESH} {ACCESS}"}, 400), "no ***"),
        (raw("Not Found", 404), "HTTP 404"),
    ],
)
def test_failed_revocation_still_removes_the_record(response: Any, problem: str) -> None:
    """Each token has its problem, which does not repeat the token."""
    world = logged_in()
    world.pages[REVOKE] = response

    outcome = world.run(log_out(world.options))

    assert world.record is None
    assert [problem in each for each in outcome.problems] == [True, True]
    assert outcome.problems[0].startswith("the refresh token was not revoked: ")
    assert not any(secret in each for secret in SECRETS for each in outcome.problems)


def test_unsafe_endpoint_is_not_asked() -> None:
    """An endpoint without TLS would make the token public."""
    world = logged_in(revocation_endpoint="http://login.example.com/revoke")
    outcome = world.run(log_out(world.options))

    assert world.record is None
    assert not world.to("/revoke")
    assert "must begin with https://" in outcome.problems[0]


def test_dynamic_client_authenticates_with_its_secret() -> None:
    """As at the token endpoint."""
    world = World()
    world.metadata |= {
        "revocation_endpoint": REVOKE,
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
    }
    world.client = {"client_id": "client-1", "client_secret": "client-secret"}
    seen: list[Fetch] = []

    def revoke(fetch: Fetch) -> Any:
        seen.append(fetch)
        return raw("")

    world.pages[REVOKE] = revoke
    world.run(authorize(world.options))
    world.run(log_out(world.options))

    assert form_of(seen[0])["client_secret"] == "client-secret"
