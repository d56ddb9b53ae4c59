"""Logins: discovery, registration, consent and tokens in one flow."""

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from genmcp.core.auth.flow import authorize, rejected
from genmcp.core.auth.record import RegisteredClient
from genmcp.core.auth.steps import Ask, Failure, FlowFailed
from tests.core.auth.auth_world import (
    ACCESS,
    CODE,
    ISSUER,
    METADATA,
    REDIRECT,
    REFRESH,
    STEP_UP,
    TOKEN,
    URL,
    World,
    challenge,
    form_of,
    logged_in,
    page,
    record_of,
)

DOCUMENT = "https://client.example.com/id.json"


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
    assert form_of(request) == {
        "grant_type": "authorization_code",
        "code": CODE,
        "redirect_uri": world.asked["redirect_uri"],
        "code_verifier": form_of(request)["code_verifier"],
        "resource": URL,
        "client_id": "client-1",
    }
    digest = sha256(form_of(request)["code_verifier"].encode()).digest()
    challenged = urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert challenged == world.asked["code_challenge"]


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
    assert world.listened == [None, record_of(world).client.redirect_uri]


def test_unanswered_login_keeps_tokens_that_can_be_used() -> None:
    """Other programs use them, while the user runs `genmcp login` once more and gives up."""
    world = logged_in()
    world.answer = TimeoutError("no answer")
    before = record_of(world)

    with pytest.raises(TimeoutError):
        world.run(authorize(world.options))

    assert world.record == before


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
    """Further registrations would not help."""
    world = World()
    world.pages[TOKEN] = page({"error": "invalid_client"}, 401)

    with pytest.raises(FlowFailed) as caught:
        world.run(authorize(world.options))

    assert caught.value.failure is Failure.REGISTRATION
    assert len(world.to("/register")) == 1


def test_own_client_that_is_unknown_is_an_error() -> None:
    """Its id is the user's to correct."""
    world = World(client_id="own", issuer=ISSUER)
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

    assert (record.client.redirect_uri or "").startswith(f"{world.redirect_uri}/")
    assert len(world.to("/register")) == 1


def test_own_client_needs_no_registration_for_another_port() -> None:
    """RFC 8252, 7.3: any port of a loopback address."""
    world = logged_in(client_id="own", issuer=ISSUER)
    world.redirect_uri = "http://127.0.0.1:9999/callback"

    record = world.run(authorize(world.options))

    assert record.client == RegisteredClient(id="own")
    assert world.to("/register") == []


# The redirect URI where redirects have no `iss`: RFC 9700, 4.4.2


def test_redirect_path_is_that_of_the_issuer() -> None:
    """Two authorization servers without `iss` get different paths, and each the same again."""
    other = "https://other.example.com"
    paths = []
    for issuer in (ISSUER, other, ISSUER):
        world = World()
        world.prm["authorization_servers"] = [issuer]
        world.metadata["issuer"] = issuer
        world.pages[METADATA.replace(ISSUER, issuer)] = page(world.metadata)
        record = world.run(authorize(world.options))
        paths.append(world.asked["redirect_uri"])
        assert record.client.redirect_uri == paths[-1]
        assert paths[-1].startswith(f"{REDIRECT}/")

    assert paths[0] == paths[2] != paths[1]


def test_redirect_path_is_plain_where_iss_is_promised() -> None:
    """`iss` identifies the issuer; a document of a client lists one redirect URI."""
    world = World()
    world.metadata["authorization_response_iss_parameter_supported"] = True
    world.answer = {"iss": ISSUER}

    world.run(authorize(world.options))

    assert world.asked["redirect_uri"] == REDIRECT


def test_mixed_up_code_goes_to_no_token_endpoint() -> None:
    """A hostile server sent the browser to an honest one, which redirects to its own path."""
    world = World()
    honest = f"{REDIRECT}/{'0' * 32}"

    def redirected(step: object) -> None:
        if isinstance(step, Ask):
            state = dict(parse_qsl(urlsplit(step.url).query))["state"]
            world.answer = f"{honest}?code=stolen&state={state}"

    world.before = redirected
    with pytest.raises(FlowFailed, match="another path") as caught:
        world.run(authorize(world.options))

    assert caught.value.failure is Failure.ISSUER
    assert world.to("/token") == []


@pytest.mark.parametrize(
    "options", [{"client_id": "own"}, {"client_id": DOCUMENT}, {"fixed_redirect": True}]
)
def test_registered_redirect_uri_needs_an_issuer(options: dict[str, Any]) -> None:
    """It is the same for all authorization servers."""
    world = World(**options)
    world.metadata["client_id_metadata_document_supported"] = True
    if "client_id" in options:
        del world.metadata["registration_endpoint"]

    with pytest.raises(FlowFailed, match=f"issuer='{ISSUER}'") as caught:
        world.run(authorize(world.options))

    assert caught.value.failure is Failure.ISSUER
    assert (world.asks, world.to("/register")) == ([], [])


@pytest.mark.parametrize(
    "options", [{"client_id": "own"}, {"client_id": DOCUMENT}, {"fixed_redirect": True}]
)
def test_registered_redirect_uri_of_one_issuer_is_used(options: dict[str, Any]) -> None:
    """The options name the only authorization server that this client logs in at."""
    world = World(issuer=ISSUER, **options)
    world.metadata["client_id_metadata_document_supported"] = True

    world.run(authorize(world.options))

    assert world.asked["redirect_uri"] == REDIRECT


def test_document_client_registers_for_a_path_of_its_own() -> None:
    """Its document lists the same redirect URIs for all authorization servers."""
    world = World(client_id=DOCUMENT)
    world.metadata["client_id_metadata_document_supported"] = True

    record = world.run(authorize(world.options))

    assert record.client.dynamic
    assert world.asked["redirect_uri"].startswith(f"{REDIRECT}/")
