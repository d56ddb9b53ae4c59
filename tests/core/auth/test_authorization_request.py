"""The authorization request, its scopes, and the check of the redirect."""

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from msgspec.structs import replace

from genmcp.core.auth.challenges import Challenge
from genmcp.core.auth.discovery import DiscoveredServer
from genmcp.core.auth.flow import (
    AuthorizationRequest,
    authorization_request,
    code_of,
    scope_parameter,
    select_scopes,
)
from genmcp.core.auth.metadata import ServerMetadata
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.steps import Failure, FlowFailed
from tests.core.auth.auth_world import CODE, ISSUER, REDIRECT, TOKEN, URL, World

RECORD = Record(issuer=ISSUER, token_endpoint=TOKEN, client=RegisteredClient(id="client-1"))
EVIL = "https://evil.example.com"
MANY = [f"p{number}" for number in range(100)]
STATE, VERIFIER = "the-state", "the-verifier"
REQUEST = AuthorizationRequest(
    url=f"{ISSUER}/authorize",
    redirect_uri=REDIRECT,
    state=STATE,
    verifier=VERIFIER,
    issuer=ISSUER,
    issuer_expected=False,
)


def found(resource: str | None = URL, **members: Any) -> DiscoveredServer:
    """An authorization server."""
    known = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/authorize"}
    return DiscoveredServer(server=ServerMetadata(**(known | members)), resource=resource)


# Scopes


@pytest.mark.parametrize(
    ("own", "challenged", "listed", "earlier", "chosen"),
    [
        (None, "a b", ["x"], (), ("a", "b")),
        (None, "a a b", None, (), ("a", "b")),
        (None, None, ["x", "y"], (), ("x", "y")),
        (None, "", ["x"], (), ("x",)),
        (None, None, [], (), ()),
        (None, None, None, (), ()),
        (["o"], "a", ["x"], (), ("o",)),
        ([], "a", ["x"], (), ()),
        (["o p", "q"], None, None, (), ("o", "p", "q")),
        (None, "a", ["x"], ("b", "a"), ("a", "b")),
        (["o"], "a", None, ("b",), ("o", "b")),
        (None, "a offline_access", None, (), ("a",)),
        (None, None, ["offline_access", "x"], (), ("x",)),
        (None, None, ['a"b', "a\\b", "a\x1bb", "", "x" * 257, "\u00e4", "ok"], (), ("ok",)),
    ],
)
def test_scopes_are_those_of_the_challenge_or_the_list(
    own: list[str] | None,
    challenged: str | None,
    listed: list[str] | None,
    earlier: tuple[str, ...],
    chosen: tuple[str, ...],
) -> None:
    """2026-07-28, "Scope Selection Strategy"; those of the options come before both."""
    world = World(scopes=own)
    challenge = Challenge("Bearer", {} if challenged is None else {"scope": challenged})

    assert select_scopes(world.options, challenge, listed, earlier) == chosen


def test_number_of_scopes_is_bounded() -> None:
    """A URL has to remain one that a browser opens."""
    world = World()

    chosen = select_scopes(world.options, None, [f"s{number}" for number in range(10_000)])

    assert len(chosen) == 200


@pytest.mark.parametrize(
    ("own", "supported", "scopes", "asked"),
    [
        (None, ["offline_access"], ("a",), ("a", "offline_access")),
        (None, ["a"], ("a",), ("a",)),
        (None, None, ("a",), ("a",)),
        (None, ["offline_access"], (), ()),
        (["a", "offline_access"], None, ("a",), ("a", "offline_access")),
    ],
)
def test_refresh_token_is_asked_for_where_the_server_lists_it(
    own: list[str] | None,
    supported: list[str] | None,
    scopes: tuple[str, ...],
    asked: tuple[str, ...],
) -> None:
    """2026-07-28, "Refresh Tokens". Alone it would replace the scopes that are granted else."""
    world = World(scopes=own)

    assert scope_parameter(world.options, found(scopes_supported=supported), scopes) == asked


# The request


def query(request: AuthorizationRequest) -> dict[str, str]:
    """The parameters of a request, each of which occurs once."""
    params = parse_qs(urlsplit(request.url).query, strict_parsing=True)
    assert all(len(values) == 1 for values in params.values())
    return {name: values[0] for name, values in params.items()}


def test_request_has_the_specified_parameters() -> None:
    """RFC 6749, 4.1.1; RFC 7636, 4.2; RFC 8707, 2."""
    world = World()

    request = authorization_request(world.options, found(), RECORD, REDIRECT, ("a", "b"))

    digest = sha256(request.verifier.encode()).digest()
    assert query(request) == {
        "response_type": "code",
        "client_id": "client-1",
        "redirect_uri": REDIRECT,
        "state": request.state,
        "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": URL,
        "scope": "a b",
    }
    assert len(request.verifier) >= 43  # RFC 7636, 4.1
    assert request.verifier != request.state
    assert request.issuer == ISSUER


def test_request_leaves_out_empty_parameters() -> None:
    """An empty scope or resource would be an invalid one."""
    world = World()

    params = query(authorization_request(world.options, found(None), RECORD, REDIRECT, ()))

    assert params.keys() & {"scope", "resource", "prompt", "dpop_jkt"} == set()


def test_each_request_is_unguessable() -> None:
    """State and verifier are used once."""
    world = World()
    made = [authorization_request(world.options, found(), RECORD, REDIRECT, ()) for _ in range(2)]

    assert len({text for request in made for text in (request.state, request.verifier)}) == 4


def test_offline_access_asks_for_consent() -> None:
    """OpenID Connect Core 1.0, 11: it is ignored otherwise."""
    world = World()

    request = authorization_request(world.options, found(), RECORD, REDIRECT, ("offline_access",))

    assert query(request)["prompt"] == "consent"


def test_query_of_the_endpoint_is_kept() -> None:
    """RFC 6749, 3.1."""
    world = World()
    server = found(authorization_endpoint=f"{ISSUER}/authorize?tenant=1")

    request = authorization_request(world.options, server, RECORD, REDIRECT, ())

    assert request.url.startswith(f"{ISSUER}/authorize?tenant=1&response_type=code&")


def test_representation_of_a_request_has_no_secret() -> None:
    """The verifier would let a thief of the code redeem it."""
    assert repr(REQUEST) == f"AuthorizationRequest(issuer='{ISSUER}')"


# The redirect


def redirect(**params: str) -> str:
    """The URL that the browser ends at."""
    return f"{REDIRECT}?{urlencode(params)}"


@pytest.mark.parametrize("expected", [False, True])
def test_redirect_with_state_and_issuer_has_the_code(expected: bool) -> None:
    """RFC 9207, 2.4: a present `iss` is compared in any case."""
    request = replace(REQUEST, issuer_expected=expected)

    assert code_of(request, redirect(code=CODE, state=STATE, iss=ISSUER)) == CODE


def test_redirect_without_issuer_is_used_if_none_is_promised() -> None:
    """Most authorization servers send none yet."""
    assert code_of(REQUEST, redirect(code=CODE, state=STATE, other="x")) == CODE


@pytest.mark.parametrize(
    ("url", "expected", "failure"),
    [
        (redirect(code=CODE), False, Failure.OTHER),
        (redirect(code=CODE, state=""), False, Failure.OTHER),
        (redirect(code=CODE, state="other"), False, Failure.OTHER),
        (redirect(code=CODE, state=STATE.upper()), False, Failure.OTHER),
        (redirect(code=CODE, state=f"{STATE} "), False, Failure.OTHER),
        (
            redirect(code=CODE, state="\ud800".encode("utf-16", "surrogatepass").hex()),
            False,
            Failure.OTHER,
        ),
        (f"{REDIRECT}?code={CODE}&state=%ED%A0%80", False, Failure.OTHER),
        (redirect(error="access_denied", state="other"), False, Failure.OTHER),
        (f"{REDIRECT}?code={CODE}&state={STATE}&state={STATE}", False, Failure.OTHER),
        (f"{REDIRECT}?code={CODE}&state={STATE}&code=evil", False, Failure.OTHER),
        (
            f"{redirect(code=CODE, state=STATE, iss=ISSUER)}&iss=https://evil.example.com",
            False,
            Failure.OTHER,
        ),
        (f"{REDIRECT}?state={STATE}", False, Failure.OTHER),
        (f"{REDIRECT}?state={STATE}&code=", False, Failure.OTHER),
        (f"{REDIRECT}?state={STATE}&code={CODE}\udc80", False, Failure.OTHER),
        (f"{REDIRECT}?state={STATE}&code={CODE}%0d%0a", False, Failure.OTHER),
        (redirect(code=CODE * 2000, state=STATE), False, Failure.OTHER),
        (f"{REDIRECT}#code={CODE}&state={STATE}", False, Failure.OTHER),
        (REDIRECT, False, Failure.OTHER),
        ("", False, Failure.OTHER),
        ("http://[::1", False, Failure.OTHER),
        (
            f"{REDIRECT}?state={STATE}&code={CODE}&" + "&".join(f"p{n}=1" for n in range(100)),
            False,
            Failure.OTHER,
        ),
        (redirect(code=CODE, state=STATE), True, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=""), False, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=f"{ISSUER}/"), False, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=f"{ISSUER}/"), True, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=ISSUER.upper()), True, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=f"{ISSUER}:443"), True, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=ISSUER.replace(".", "%2E")), True, Failure.ISSUER),
        (redirect(code=CODE, state=STATE, iss=EVIL), False, Failure.ISSUER),
        (redirect(error="access_denied", state=STATE), True, Failure.ISSUER),
        (
            redirect(error="access_denied", state=STATE, iss=EVIL),
            False,
            Failure.ISSUER,
        ),
        (redirect(error="access_denied", state=STATE), False, Failure.DENIED),
        (redirect(error="access_denied", state=STATE, code=CODE), False, Failure.DENIED),
        (redirect(error="invalid_scope", state=STATE), False, Failure.DENIED),
        (redirect(error="\x1b[2J", state=STATE), False, Failure.DENIED),
        (redirect(error="", state=STATE), False, Failure.DENIED),
        (redirect(error="server_error", state=STATE), False, Failure.UNAVAILABLE),
        (redirect(error="temporarily_unavailable", state=STATE), False, Failure.UNAVAILABLE),
        (redirect(error="unauthorized_client", state=STATE), False, Failure.REGISTRATION),
    ],
)
def test_wrong_redirect_is_not_used(url: str, expected: bool, failure: Failure) -> None:
    """First the state, then the issuer: until both fit, it may be of another server."""
    request = replace(REQUEST, issuer_expected=expected)

    with pytest.raises(FlowFailed) as caught:
        code_of(request, url)

    assert caught.value.failure is failure
    for secret in (CODE, STATE, VERIFIER):
        assert secret not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "params",
    [
        {"state": "other"},
        {"state": STATE, "iss": "https://evil.example.com"},
    ],
)
def test_error_of_another_server_is_not_shown(params: dict[str, str]) -> None:
    """2026-07-28: neither `error` nor `error_description` nor `error_uri`."""
    url = redirect(error="phishing", error_description="call 555", error_uri="https://x", **params)

    with pytest.raises(FlowFailed) as caught:
        code_of(REQUEST, url)

    assert all(text not in str(caught.value) for text in ("phishing", "555", "https://x"))
    assert caught.value.error == ""


@pytest.mark.parametrize(
    ("description", "shown"),
    [
        ("AADSTS9010010: resource", "resource=None"),
        ("nobody\x1b[2J consented", "nobody?[2J consented"),
        (f"the state {STATE}", "the state ***"),
    ],
)
def test_denial_has_the_reason_of_the_server(description: str, shown: str) -> None:
    """A person has to read it."""
    url = redirect(error="access_denied", error_description=description, state=STATE)

    with pytest.raises(FlowFailed) as caught:
        code_of(REQUEST, url)

    assert shown in str(caught.value)
    assert caught.value.error == "access_denied"
