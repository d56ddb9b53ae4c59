"""The record for the next request, and the renewal of its token."""

import pytest
from msgspec.structs import replace

from genmcp.core.auth.flow import authorize, rejected, renew, usable
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import Failure, FlowFailed, Locked
from tests.core.auth.auth_world import (
    ISSUER,
    REFRESH,
    TOKEN,
    URL,
    Prover,
    World,
    challenge,
    forget,
    form_of,
    logged_in,
    page,
    raw,
    record_of,
)


def test_token_is_used_until_it_is_due() -> None:
    """No step is needed for the requests in between."""
    world = logged_in()
    held = record_of(world)

    assert world.run(usable(world.options, held)) is held
    assert world.run(usable(world.options)) == held
    assert world.fetches == []


def test_token_is_renewed_ahead_of_its_expiry() -> None:
    """A request with an expired token would cost a round trip."""
    world = logged_in()
    held = record_of(world)
    world.time += 3545
    world.token = {"access_token": "second", "token_type": "bearer", "expires_in": 60}

    record = world.run(usable(world.options, held))

    assert record is not None
    assert (record.access_token, record.refresh_token) == ("second", REFRESH)
    assert (record.scopes, record.renewals) == (("a", "b"), 1)
    assert record.expires == world.time + 60
    assert world.locked == 0
    [request] = world.to("/token")
    assert form_of(request) == {
        "grant_type": "refresh_token",
        "refresh_token": REFRESH,
        "resource": URL,
        "client_id": "client-1",
    }


def test_resource_is_left_out_of_a_renewal_as_well() -> None:
    """Entra rejects it in each request."""
    world = logged_in(resource=None)
    world.time += 4000

    world.run(usable(world.options))

    [request] = world.to("/token")
    assert "resource" not in form_of(request)


def test_client_without_a_login_has_no_token() -> None:
    """The first request is sent without one; its response has the challenge."""
    world = World()
    assert world.run(usable(world.options)) is None

    world = logged_in()
    world.record = record_of(world).without_tokens()
    assert world.run(usable(world.options)) is None


@pytest.mark.parametrize(
    ("late", "found"),
    [(3545, True), (3600, False)],
)
def test_token_without_renewal_is_used_until_it_expires(late: int, found: bool) -> None:
    """An authorization server need not issue refresh tokens."""
    world = World()
    world.token.pop("refresh_token")
    world.run(authorize(world.options))
    world.time += late

    assert (world.run(usable(world.options)) is not None) is found
    assert len(world.to("/token")) == 1


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@pytest.mark.parametrize(("late", "usable_still"), [(3545, True), (3700, False)])
def test_outage_removes_nothing(status: int, late: int, usable_still: bool) -> None:
    """The token is used as long as it is valid; the refresh token is kept in any case."""
    world = logged_in()
    before = record_of(world)
    world.pages[TOKEN] = replace(raw("down", status), error="timed out")
    world.time += late

    if usable_still:
        held = world.run(usable(world.options))
        assert held is not None
        assert held.access_token == before.access_token
    else:
        with pytest.raises(FlowFailed) as caught:
            world.run(usable(world.options))
        assert caught.value.failure is Failure.UNAVAILABLE
    assert world.record == before


def test_outage_delays_few_requests() -> None:
    """Each attempt may last until the timeout; they come at half of the time that is left."""
    world = logged_in()
    world.pages[TOKEN] = raw("down", 503)
    held: Record | None = record_of(world)

    attempts = []
    for second in range(3530, 3600):
        world.time = 1000.0 + second
        forget(world)
        held = world.run(usable(world.options, held))
        attempts += [second] * len(world.fetches)

    assert held is not None
    assert attempts[:4] == [3540, 3570, 3585, 3593]
    assert len(attempts) < 10


@pytest.mark.parametrize(("late", "found"), [(3545, True), (3700, False)])
def test_refused_refresh_token_is_removed(late: int, found: bool) -> None:
    """The registration is kept for the login that has to follow."""
    world = logged_in()
    world.pages[TOKEN] = page({"error": "invalid_grant"}, 400)
    world.time += late

    assert (world.run(usable(world.options)) is not None) is found
    assert record_of(world).refresh_token is None
    assert record_of(world).client.id == "client-1"


@pytest.mark.parametrize(
    ("own", "error", "kept"),
    [
        (None, "invalid_client", False),
        (None, "unauthorized_client", False),
        (None, "invalid_scope", True),
        ("own", "invalid_client", True),
    ],
)
def test_refused_renewal_needs_a_login(own: str | None, error: str, kept: bool) -> None:
    """A dynamic client that is not known any more is useless, with all that it got."""
    world = logged_in(client_id=own, issuer=ISSUER)
    world.pages[TOKEN] = page({"error": error}, 400)

    assert world.run(renew(world.options, record_of(world))) is None
    assert (world.record is not None) is kept


def test_renewal_of_another_process_is_used() -> None:
    """The lock was free only after it."""
    world = logged_in()
    failed = record_of(world)

    def before(step: object) -> None:
        if isinstance(step, Locked):
            world.change(access_token="theirs")

    world.before = before
    record = world.run(renew(world.options, failed))

    assert record is not None
    assert record.access_token == "theirs"
    assert world.fetches == []


def test_record_that_a_logout_removed_is_not_renewed() -> None:
    """There is nothing to renew it with."""
    world = logged_in()
    failed = record_of(world)
    world.record = None

    assert world.run(renew(world.options, failed)) is None


def test_expired_client_secret_is_no_way_to_renew() -> None:
    """RFC 7591, 3.2.1; the login registers again."""
    world = World()
    world.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    world.client |= {"client_secret": "client-secret", "client_secret_expires_at": 2000}
    world.run(authorize(world.options))
    world.time = 2001.0

    assert world.run(renew(world.options, record_of(world))) is None
    world.run(authorize(world.options))
    assert len(world.to("/register")) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "other"},
        {"client_id": None},
        {"issuer": "https://other.example.com"},
        {"resource": "https://mcp.example.com"},
        {"resource": None},
    ],
)
def test_record_of_other_options_is_not_used(changed: dict[str, str | None]) -> None:
    """The user has configured another client since."""
    world = logged_in(client_id="own", issuer=ISSUER)
    options = replace(world.options, **changed)

    assert world.run(usable(options)) is None
    assert world.run(renew(options, record_of(world))) is None


def test_login_in_place_of_the_record_of_other_options() -> None:
    """Neither its client nor its scopes are those of the new options."""
    world = logged_in(client_id="old", issuer=ISSUER)
    options = replace(world.options, client_id="new")

    record = world.run(rejected(options, challenge('Bearer scope="x"')))

    assert record is not None
    assert (record.client.id, record.requested) == ("new", ("x",))
    assert record == world.record


def test_bound_token_is_renewed_with_its_key() -> None:
    """RFC 9449, 5: the refresh token of a public client is bound, too."""
    world = World(prover=Prover())
    world.token["token_type"] = "DPoP"
    world.run(authorize(world.options, challenge()))

    world.run(renew(world.options, record_of(world)))

    assert [dict(fetch.headers)["DPoP"].split()[0] for fetch in world.to("/token")] == ["key-1"] * 2
    assert record_of(world).dpop_key == "key-1"


def test_record_of_a_document_client_is_used() -> None:
    """Also if the authorization server has no client id metadata documents, and registered it."""
    world = logged_in(client_id="https://client.example.com/id.json")

    assert world.run(usable(world.options)) == world.record


def test_token_that_a_challenge_repeats_is_not_reported() -> None:
    """The findings are logged."""
    world = logged_in()
    used = record_of(world)
    text = f'Bearer error="invalid_token", error_description="no such token: {used.access_token}"'

    world.run(rejected(world.options, challenge(text, used=used)))

    [found] = [each.text for each in world.events if each.topic == "challenge"]
    assert "no such token: ***" in found
