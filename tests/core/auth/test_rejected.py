"""The answers to 401 and 403: another token, a login, or more scopes."""

import pytest

from genmcp.core.auth.flow import RejectedAttempt, rejected
from genmcp.core.auth.steps import Failure, FlowFailed
from tests.core.auth.auth_world import (
    ISSUER,
    METADATA,
    STEP_UP,
    TOKEN,
    World,
    challenge,
    form_of,
    logged_in,
    page,
    record_of,
)

# 401


@pytest.mark.parametrize("used", [False, True])
def test_token_that_another_process_has_stored_is_tried(used: bool) -> None:
    """A login of another process is as good."""
    world = logged_in()
    mine = record_of(world) if used else None
    world.change(access_token="theirs")

    record = world.run(rejected(world.options, challenge(used=mine)))

    assert record is not None
    assert record.access_token == "theirs"
    assert world.fetches == []


def test_rejected_token_is_renewed_first() -> None:
    """It may have been revoked alone."""
    world = logged_in()
    world.token |= {"access_token": "second"}

    record = world.run(rejected(world.options, challenge(used=record_of(world))))

    assert record is not None
    assert record.access_token == "second"
    assert world.asks == []


def test_rejected_renewed_token_needs_a_login() -> None:
    """The session of the user has ended; the scopes remain those of before."""
    world = logged_in()
    world.run(rejected(world.options, challenge(used=record_of(world))))

    record = world.run(rejected(world.options, challenge(used=record_of(world), attempt=2)))

    assert record is not None
    assert record.renewals == 0
    assert world.asked["scope"] == "a b"


@pytest.mark.parametrize("attempt", [2, 3, 4])
def test_rejected_token_of_a_login_is_final(attempt: int) -> None:
    """Another login would end in the same."""
    world = logged_in()

    answer = rejected(world.options, challenge(used=record_of(world), attempt=attempt))

    assert world.run(answer) is None
    assert world.asks == []


def test_refused_renewal_is_followed_by_a_login() -> None:
    """Renewed once, then the whole flow."""
    world = logged_in()
    world.pages[TOKEN] = lambda fetch: (
        page({"error": "invalid_grant"}, 400)
        if form_of(fetch)["grant_type"] == "refresh_token"
        else page(world.token)
    )

    record = world.run(rejected(world.options, challenge(used=record_of(world))))

    assert record is not None
    assert len(world.asks) == 1
    assert world.to("/register") == []


@pytest.mark.parametrize("status", [401, 403])
def test_user_is_not_asked_in_the_background(status: int) -> None:
    """The stream for notifications is opened again at any time."""
    world = logged_in()
    world.change(refresh_token=None)
    text = STEP_UP if status == 403 else "Bearer"

    answer = rejected(
        world.options, challenge(text, status, used=record_of(world), may_log_in=False)
    )

    assert world.run(answer) is None
    assert world.asks == []


def test_server_that_moves_to_another_issuer_gets_a_new_client() -> None:
    """2026-07-28, "Authorization Server Binding": nothing of the old one is used at the new."""
    world = logged_in()
    other = "https://other.example.com"
    world.prm["authorization_servers"] = [other]
    world.metadata = {
        name: value.replace(ISSUER, other) if isinstance(value, str) else value
        for name, value in world.metadata.items()
    }
    for url in (METADATA, f"{ISSUER}/register", TOKEN):
        world.pages[url.replace(ISSUER, other)] = world.pages.pop(url)
    world.client = {"client_id": "client-2"}

    record = world.run(rejected(world.options, challenge(used=record_of(world))))

    assert record is not None
    assert (record.issuer, record.client.id) == (other, "client-2")
    assert world.asked["client_id"] == "client-2"
    assert "scope" not in world.asked  # a and b were scopes of the other server
    assert [url for url in world.urls if url.startswith(ISSUER)] == []


def test_own_client_does_not_follow_to_another_issuer() -> None:
    """Its id, and its secret, belong to the authorization server of the first login."""
    world = logged_in(client_id="own", issuer=ISSUER)
    world.prm["authorization_servers"] = ["https://other.example.com"]
    world.metadata["issuer"] = "https://other.example.com"
    world.pages[METADATA.replace(ISSUER, "https://other.example.com")] = page(world.metadata)

    with pytest.raises(FlowFailed, match="issuer=") as caught:
        world.run(rejected(world.options, challenge(used=record_of(world))))

    assert caught.value.failure is Failure.ISSUER
    assert world.asks == []


def test_response_without_challenge_begins_a_login() -> None:
    """Servers of 2025-03-26 send none."""
    world = World()

    assert world.run(rejected(world.options, RejectedAttempt(status=401))) is not None
    assert not world.events[0].ok


@pytest.mark.parametrize("status", [400, 407, 500])
def test_other_status_is_no_concern_of_the_flow(status: int) -> None:
    """No step is taken."""
    world = World()

    assert world.run(rejected(world.options, challenge(status=status))) is None
    assert world.fetches == []


# 403


def test_step_up_asks_for_the_union() -> None:
    """2026-07-28, "Step-Up Authorization Flow": nothing that was granted is lost."""
    world = logged_in()
    before = record_of(world)
    world.token |= {"access_token": "wider", "scope": "a b c"}

    record = world.run(rejected(world.options, challenge(STEP_UP, 403, used=before)))

    assert record is not None
    assert (record.access_token, record.scopes) == ("wider", ("a", "b", "c"))
    assert set(world.asked["scope"].split()) == {"a", "b", "c"}
    assert [form_of(request)["grant_type"] for request in world.to("/token")] == [
        "authorization_code"
    ]


def test_step_up_keeps_scopes_beyond_the_request() -> None:
    """An authorization server may grant more than the request."""
    world = logged_in()
    world.change(scopes=("a", "extra"))

    world.run(rejected(world.options, challenge(STEP_UP, 403, used=record_of(world))))

    assert set(world.asked["scope"].split()) == {"a", "b", "c", "extra"}


@pytest.mark.parametrize(
    "text",
    [
        'Bearer error="insufficient_scope", scope="a"',
        'Bearer error="insufficient_scope", scope="b a"',
        'Bearer error="insufficient_scope"',
        'Bearer error="invalid_token", scope="c"',
        'Bearer scope="c"',
        'Basic realm="x"',
    ],
)
def test_forbidden_for_another_reason_is_an_error_at_once(text: str) -> None:
    """The union adds nothing, or scopes are not the matter."""
    world = logged_in()

    answer = rejected(world.options, challenge(text, 403, used=record_of(world)))

    assert world.run(answer) is None
    assert world.fetches == []


@pytest.mark.parametrize(("attempt", "asked"), [(1, 1), (2, 1), (3, 0)])
def test_step_up_happens_twice_at_most(attempt: int, asked: int) -> None:
    """A server may name another scope each time; the flow ends in any case."""
    world = logged_in()

    world.run(
        rejected(world.options, challenge(STEP_UP, 403, used=record_of(world), attempt=attempt))
    )

    assert len(world.asks) == asked


def test_scopes_that_another_process_asked_for_are_used() -> None:
    """A second login would ask the user for the same."""
    world = logged_in()
    mine = record_of(world)
    world.change(access_token="theirs", scopes=("a", "c"))

    record = world.run(rejected(world.options, challenge(STEP_UP, 403, used=mine)))

    assert record is not None
    assert record.access_token == "theirs"
    assert world.asks == []


def test_forbidden_without_a_token_begins_a_login() -> None:
    """A server may be open but for one operation."""
    world = World()

    record = world.run(rejected(world.options, challenge(STEP_UP, 403)))

    assert record is not None
    assert record.requested == ("c",)
