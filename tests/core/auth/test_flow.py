"""Logins, renewals, and the answers to 401 and 403."""

import pytest
from msgspec.structs import replace

from genmcp._core.auth.flow import RejectedAttempt, authorize, explain, rejected, renew, usable
from genmcp._core.auth.record import Record, RegisteredClient
from genmcp._core.auth.steps import Failure, FlowFailed, Lock, Swap
from tests.core.auth.auth_world import (
    ACCESS,
    ISSUER,
    METADATA,
    PRM,
    REDIRECT,
    REFRESH,
    URL,
    Prover,
    World,
    challenge,
    form_of,
    page,
    raw,
)

TOKEN = f"{ISSUER}/token"
STEP_UP = 'Bearer error="insufficient_scope", scope="c"'


def logged_in(**options: object) -> World:
    """A world whose client has logged in for the scopes a and b."""
    world = World(**options)
    world.run(authorize(world.options, challenge('Bearer scope="a b"')))
    forget(world)
    return world


def forget(world: World) -> None:
    """Empty the lists of what was asked for."""
    for steps in (world.fetches, world.asks, world.listened, world.findings):
        steps.clear()


def record_of(world: World) -> Record:
    assert world.record is not None
    return world.record


def test_login_of_a_new_client() -> None:
    """All of it: discovery, registration, consent, token."""
    world = World()

    record = world.run(authorize(world.options, challenge('Bearer scope="a b"')))

    assert (record.access_token, record.refresh_token) == (ACCESS, REFRESH)
    assert record == world.record
    assert record.expires == world.time + 3600
    assert (record.scopes, record.requested, record.renewals) == (("a", "b"), ("a", "b"), 0)
    assert (record.issuer, record.token_endpoint, record.resource) == (ISSUER, TOKEN, URL)
    assert world.asked["resource"] == URL
    assert world.asked["scope"] == "a b"
    [request] = world.to("/token")
    assert form_of(request)["resource"] == URL


def test_login_without_a_response_asks_for_the_listed_scopes() -> None:
    """A user logs in before the first request."""
    world = World()
    world.prm["scopes_supported"] = ["x", "y"]

    record = world.run(authorize(world.options))

    assert record.requested == ("x", "y")


# The registration of a login


def test_client_is_kept_before_the_user_consents() -> None:
    """A login that was given up does not register the client another time."""
    world = World()
    world.answer = {"code": None, "error": "access_denied"}
    with pytest.raises(FlowFailed) as caught:
        world.run(authorize(world.options))
    assert caught.value.failure is Failure.DENIED
    assert record_of(world).access_token is None

    world.answer = {}
    world.run(authorize(world.options))

    assert len(world.to("/register")) == 1
    assert world.listened == [None, REDIRECT]


def test_client_that_gets_no_answer_is_forgotten() -> None:
    """The page of a server that does not know the client any more is seen by the user only."""
    world = World()
    world.answer = TimeoutError("no answer")
    with pytest.raises(TimeoutError):
        world.run(authorize(world.options))
    assert record_of(world).client.id == "client-1"  # it is new: the server knows it

    with pytest.raises(TimeoutError):
        world.run(authorize(world.options))

    assert world.record is None


def test_unanswered_step_up_keeps_the_token() -> None:
    """It is valid for everything else."""
    world = logged_in()
    world.answer = TimeoutError("no answer")
    before = record_of(world)

    with pytest.raises(TimeoutError):
        world.run(rejected(world.options, challenge(STEP_UP, 403, used=before)))

    assert world.record == before


@pytest.mark.parametrize("place", ["token", "redirect"])
@pytest.mark.parametrize("error", ["invalid_client", "unauthorized_client"])
def test_forgotten_client_registers_once_more(place: str, error: str) -> None:
    """An authorization server may remove registrations at any time."""
    world = logged_in()
    world.client = {"client_id": "client-2"}

    def tokens(fetch: object) -> object:
        known = form_of(fetch)["client_id"] == "client-2"  # type: ignore[arg-type]
        return page(world.token) if known else page({"error": error}, 401)

    def browser(step: object) -> None:
        if place == "redirect" and len(world.asks) == 0:
            world.answer = {"code": None, "error": error}
        else:
            world.answer = {}

    world.before = browser
    if place == "token":
        world.pages[TOKEN] = tokens  # type: ignore[assignment]

    record = world.run(authorize(world.options))

    assert record.client.id == "client-2"
    assert len(world.to("/register")) == 1
    assert len(world.asks) == 2


def test_new_client_that_is_unknown_is_an_error() -> None:
    """Registering for ever would help nobody."""
    world = World()
    world.pages[TOKEN] = page({"error": "invalid_client"}, 401)

    with pytest.raises(FlowFailed) as caught:
        world.run(authorize(world.options))

    assert caught.value.failure is Failure.REGISTRATION
    assert len(world.to("/register")) == 1


def test_own_client_that_is_unknown_is_an_error() -> None:
    """Its id is the user's to correct."""
    world = World(client_id="own")
    world.pages[TOKEN] = page({"error": "invalid_client"}, 401)

    with pytest.raises(FlowFailed) as caught:
        world.run(authorize(world.options))

    assert caught.value.failure is Failure.REGISTRATION
    assert world.to("/register") == []


def test_another_port_needs_another_registration() -> None:
    """Many authorization servers compare the redirect URI with its port."""
    world = logged_in()
    world.redirect_uri = "http://127.0.0.1:9999/callback"

    record = world.run(authorize(world.options))

    assert record.client.redirect_uri == world.redirect_uri
    assert len(world.to("/register")) == 1


def test_own_client_needs_no_registration_for_another_port() -> None:
    """RFC 8252, 7.3: any port of a loopback address."""
    world = logged_in(client_id="own")
    world.redirect_uri = "http://127.0.0.1:9999/callback"

    record = world.run(authorize(world.options))

    assert record.client == RegisteredClient(id="own")
    assert world.to("/register") == []


# The record for a request


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


def test_nobody_has_a_token() -> None:
    """The first request is sent without one; its response says what is needed."""
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
        assert world.run(usable(world.options)) == before
    else:
        with pytest.raises(FlowFailed) as caught:
            world.run(usable(world.options))
        assert caught.value.failure is Failure.UNAVAILABLE
    assert world.record == before


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
    world = logged_in(client_id=own)
    world.pages[TOKEN] = page({"error": error}, 400)

    assert world.run(renew(world.options, record_of(world))) is None
    assert (world.record is not None) is kept


def test_renewal_of_another_process_is_used() -> None:
    """The lock was free only after it."""
    world = logged_in()
    failed = record_of(world)

    def before(step: object) -> None:
        if isinstance(step, Lock):
            world.change(access_token="theirs")

    world.before = before
    record = world.run(renew(world.options, failed))

    assert record is not None
    assert record.access_token == "theirs"
    assert world.fetches == []


@pytest.mark.parametrize("tokens", [{"access_token": "theirs"}, {"access_token": None}, None])
@pytest.mark.parametrize("status", [200, 400])
def test_only_the_generation_that_failed_is_removed(
    tokens: dict[str, str | None] | None, status: int
) -> None:
    """A login, or a logout, replaced the record while the refresh token was refused."""
    world = logged_in()
    failed = record_of(world)
    if status == 400:
        world.pages[TOKEN] = page({"error": "invalid_grant"}, 400)

    def before(step: object) -> None:
        if isinstance(step, Swap):
            if tokens is None:
                world.record = None
            else:
                world.change(**tokens)

    world.before = before
    record = world.run(renew(world.options, failed))

    theirs = tokens is not None and tokens["access_token"]
    assert (record.access_token if record else None) == (theirs or None)
    assert (world.record is None) is (tokens is None)


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
    world = logged_in(client_id="own")
    options = replace(world.options, **changed)

    assert world.run(usable(options)) is None
    assert world.run(renew(options, record_of(world))) is None


def test_login_in_place_of_the_record_of_other_options() -> None:
    """Neither its client nor its scopes are those of the new options."""
    world = logged_in(client_id="old")
    options = replace(world.options, client_id="new")

    record = world.run(rejected(options, challenge('Bearer scope="x"')))

    assert record is not None
    assert (record.client.id, record.requested) == ("new", ("x",))
    assert record == world.record


def test_bound_token_is_renewed_with_its_key() -> None:
    """RFC 9449, 5: the refresh token of a public client is bound, too."""
    prover = Prover()
    world = World(prover=prover)
    world.token["token_type"] = "DPoP"
    world.run(authorize(world.options, challenge()))

    world.run(renew(world.options, record_of(world)))

    assert prover.used == [prover.key]


def test_record_of_a_document_client_is_used() -> None:
    """Also if the authorization server has no client id metadata documents, and registered it."""
    world = logged_in(client_id="https://client.example.com/id.json")

    assert world.run(usable(world.options)) == world.record


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
    """The session of the user has ended, and the scopes of before are asked for again."""
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
        world.options, challenge(text, status, used=record_of(world), interactive=False)
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
    world = logged_in(client_id="own")
    world.prm["authorization_servers"] = ["https://other.example.com"]
    world.metadata["issuer"] = "https://other.example.com"
    world.pages[METADATA.replace(ISSUER, "https://other.example.com")] = page(world.metadata)

    with pytest.raises(FlowFailed, match="issuer=") as caught:
        world.run(rejected(world.options, challenge(used=record_of(world))))

    assert caught.value.failure is Failure.ISSUER
    assert world.asks == []


@pytest.mark.parametrize(("attempt", "again"), [(1, True), (2, False)])
def test_missing_nonce_is_no_reason_for_a_renewal(attempt: int, again: bool) -> None:
    """RFC 9449, 9: the request is sent again, with the nonce."""
    world = logged_in()
    used = replace(record_of(world), token_type="DPoP")
    text = 'Bearer, DPoP error="use_dpop_nonce"'

    answer = world.run(rejected(world.options, challenge(text, used=used, attempt=attempt)))

    assert answer == (used if again else None)
    assert world.fetches == []


def test_response_without_challenge_begins_a_login() -> None:
    """Servers of 2025-03-26 send none."""
    world = World()

    assert world.run(rejected(world.options, RejectedAttempt(status=401))) is not None
    assert not world.findings[0].ok


@pytest.mark.parametrize("status", [400, 407, 500])
def test_other_status_is_no_concern_of_the_flow(status: int) -> None:
    """Nothing is asked for."""
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


def test_step_up_keeps_what_was_granted_without_being_asked_for() -> None:
    """An authorization server may grant more than was asked for."""
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
    """A server that names another scope each time is no reason to ask for ever."""
    world = logged_in()

    world.run(
        rejected(world.options, challenge(STEP_UP, 403, used=record_of(world), attempt=attempt))
    )

    assert len(world.asks) == asked


def test_scopes_that_another_process_asked_for_are_used() -> None:
    """The user need not be asked a second time."""
    world = logged_in()
    mine = record_of(world)
    world.change(access_token="theirs", scopes=("a", "c"))

    record = world.run(rejected(world.options, challenge(STEP_UP, 403, used=mine)))

    assert record is not None
    assert record.access_token == "theirs"
    assert world.asks == []


def test_forbidden_without_a_token_begins_a_login() -> None:
    """A server may let anybody in, and demand scopes for one operation."""
    world = World()

    record = world.run(rejected(world.options, challenge(STEP_UP, 403)))

    assert record is not None
    assert record.requested == ("c",)


# Storage


def test_login_replaces_the_record_of_another_process() -> None:
    """The user has just consented."""
    world = World()

    def before(step: object) -> None:
        stored = world.record
        final = isinstance(step, Swap) and step.new is not None and step.new.access_token
        if final and stored is not None and stored.access_token is None:
            world.change(access_token="theirs")

    world.before = before
    record = world.run(authorize(world.options))

    assert record == world.record
    assert (record.access_token, record.generation) == (ACCESS, 3)


def test_storage_that_keeps_changing_is_an_error() -> None:
    """The flow ends in any case."""
    world = World()

    def before(step: object) -> None:
        if isinstance(step, Swap) and step.new and step.new.access_token:
            world.change(access_token="theirs")

    world.before = before
    with pytest.raises(FlowFailed, match="could not be stored"):
        world.run(authorize(world.options))


# Explanation


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
    """A user learns why a login is asked for so often, or fails."""
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
    assert PRM in {finding.url for finding in world.findings if not finding.ok}
