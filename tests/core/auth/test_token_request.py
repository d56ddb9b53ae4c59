"""Token requests: how the client authenticates, and which responses are used."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp.core.auth.discovery import DiscoveredServer
from genmcp.core.auth.flow import authorization_request
from genmcp.core.auth.metadata import ServerMetadata
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.steps import Failure, Fetch, Fetched, FlowFailed
from genmcp.core.auth.token_request import TokenResponse, request_token, with_tokens
from tests.core.auth.auth_world import (
    ACCESS,
    CODE,
    ISSUER,
    REDIRECT,
    REFRESH,
    SECRET,
    TOKEN,
    URL,
    Prover,
    World,
    form_of,
    page,
    raw,
)

PARAMS = {
    "grant_type": "authorization_code",
    "code": CODE,
    "code_verifier": "the-verifier",
    "refresh_token": REFRESH,
    "assertion": "the-assertion",
    "subject_token": "the-subject",
}
SENT = (CODE, "the-verifier", REFRESH, "the-assertion", "the-subject", SECRET)


def record(method: str = "none", **members: Any) -> Record:
    """A record of a client that authenticates by *method*."""
    client = RegisteredClient(id=members.pop("id", "client-1"), method=method, **members)
    return Record(issuer=ISSUER, token_endpoint=TOKEN, resource=URL, client=client)


# Authentication


def test_public_client_sends_its_id() -> None:
    """RFC 6749, 3.2.1."""
    world = World()

    world.run(request_token(world.options, record(), PARAMS))

    [request] = world.fetches
    assert form_of(request) == {**PARAMS, "client_id": "client-1"}
    headers = dict(request.headers)
    assert headers == {
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    assert request.method == "POST"


@pytest.mark.parametrize("dynamic", [False, True])
def test_basic_encodes_id_and_secret_first(dynamic: bool) -> None:
    """RFC 6749, 2.3.1: as a form, before Basic. The secret is not in the body as well."""
    world = World(client_secret=None if dynamic else "s e:c%r/t+\u00e4")
    secret = "s e:c%r/t+\u00e4" if dynamic else None
    client = record("client_secret_basic", id="a:b c", secret=secret, dynamic=dynamic)

    world.run(request_token(world.options, client, PARAMS))

    [request] = world.fetches
    scheme, _, value = dict(request.headers)["Authorization"].partition(" ")
    assert (scheme, b64decode(value)) == ("Basic", b"a%3Ab+c:s+e%3Ac%25r%2Ft%2B%C3%A4")
    assert form_of(request) == {**PARAMS, "client_id": "a:b c"}


def test_post_sends_id_and_secret_in_the_body() -> None:
    """RFC 6749, 2.3.1."""
    world = World(client_secret=SECRET)

    world.run(request_token(world.options, record("client_secret_post"), PARAMS))

    [request] = world.fetches
    assert form_of(request) == {**PARAMS, "client_id": "client-1", "client_secret": SECRET}
    assert "Authorization" not in dict(request.headers)


def test_key_signs_a_new_assertion_for_each_request() -> None:
    """RFC 7523, 3; without `client_id` beside it."""
    signed: list[Mapping[str, Any]] = []

    def sign(claims: Mapping[str, Any]) -> str:
        signed.append(claims)
        return "the-jwt"

    world = World(sign=sign)
    for _ in range(2):
        world.run(request_token(world.options, record("private_key_jwt"), PARAMS))

    first, second = signed
    assert (first["iss"], first["sub"], first["aud"]) == ("client-1", "client-1", ISSUER)
    assert first["exp"] == world.time + 300
    assert first["jti"] != second["jti"]
    assert form_of(world.fetches[0]) == {
        **PARAMS,
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "the-jwt",
    }


@pytest.mark.parametrize("method", ["private_key_jwt", "tls_client_auth"])
def test_method_without_means_is_an_error(method: str) -> None:
    """The record is of other options, or of another release."""
    world = World()

    with pytest.raises(FlowFailed, match=method) as caught:
        world.run(request_token(world.options, record(method), PARAMS))

    assert caught.value.failure is Failure.REGISTRATION
    assert world.fetches == []


@pytest.mark.parametrize("url", ["http://login.example.com/token", "file:///token", ""])
def test_stored_endpoint_is_checked_as_well(url: str) -> None:
    """A file of tokens may have been changed."""
    world = World()
    stored = Record(issuer=ISSUER, token_endpoint=url, client=RegisteredClient(id="c"))

    with pytest.raises(FlowFailed, match="token_endpoint"):
        world.run(request_token(world.options, stored, PARAMS))

    assert world.fetches == []


# The response


@pytest.mark.parametrize(
    ("expires_in", "lifetime"),
    [
        (3600, 3600.0),
        (0.5, 0.5),
        ("3600", 3600.0),
        (0, None),
        (-5, None),
        (None, None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("-inf", None),
        (1e300, None),
    ],
)
def test_expiry_is_absolute(expires_in: float | str | None, lifetime: float | None) -> None:
    """A relative one means nothing after a restart."""
    world = World()
    world.token["expires_in"] = expires_in
    world.time = 5000.0

    response = world.run(request_token(world.options, record(), PARAMS))
    made = with_tokens(world.options, record(), response)

    assert made.lifetime == lifetime
    assert made.expires == (None if lifetime is None else 5000.0 + lifetime)


@pytest.mark.parametrize(
    ("scope", "before", "scopes"),
    [
        ("x y", (), ("x", "y")),
        (None, (), ("a", "b")),
        ("", (), ("a", "b")),
        (None, ("g",), ("g",)),
        ("x", ("g",), ("x",)),
        ('x "y" \x1b[2J', (), ("x",)),
    ],
)
def test_absent_scope_means_those_that_were_asked_for(
    scope: str | None, before: tuple[str, ...], scopes: tuple[str, ...]
) -> None:
    """RFC 6749, 5.1; of a renewal those that were granted before (6)."""
    world = World()
    asked = Record(
        issuer=ISSUER,
        token_endpoint=TOKEN,
        client=RegisteredClient(id="c"),
        scopes=before,
        requested=("a", "b"),
    )

    made = with_tokens(world.options, asked, TokenResponse(ACCESS, "Bearer", scope=scope))

    assert made.scopes == scopes
    assert made.requested == ("a", "b")


def good(**members: Any) -> dict[str, Any]:
    return {"access_token": ACCESS, "token_type": "Bearer", **members}


@pytest.mark.parametrize(
    "response",
    [
        page({}),
        page([]),
        page({"token_type": "Bearer"}),
        page({"access_token": ACCESS}),
        page(good(token_type="mac")),
        page(good(token_type="N_A")),
        page(good(token_type="DPoP")),
        page(good(token_type=7)),
        page(good(access_token="")),
        page(good(access_token=7)),
        page(good(access_token=[ACCESS])),
        page(good(access_token=f"{ACCESS}\r\nX-Evil: 1")),
        page(good(access_token=f"{ACCESS} {ACCESS}")),
        page(good(access_token=f"{ACCESS}\u00e4")),
        page(good(access_token=ACCESS * 4096)),
        page(good(expires_in=[1])),
        page(good(refresh_token=7)),
        page(good(refresh_token="")),
        page(good(refresh_token=f"{REFRESH}\u00e4")),
        page(good(refresh_token="\ud800")),
        page(good(scope="a\ud800")),
        page(good(expires_in=10**400)),
        page(good(expires_in=True)),
        page(good(scope=["a"])),
        raw(f'{{"access_token": "{ACCESS}", "token_type": "Bearer", "access_token": "evil-one"}}'),
        raw(f"access_token={ACCESS}&token_type=Bearer"),
        raw("<html>"),
        raw(""),
        raw(b"\xff"),
        raw('{"access_token": "' + ACCESS),
        raw("[" * 100_000),
        raw(f'{{"access_token": "{ACCESS}", "token_type": "Bearer"}}' + " " * 262_144),
        page(good(), 201),
        raw("", 302, Location="https://evil.example.com/token"),
        raw("", 307, Location="https://evil.example.com/token"),
        page({"error": "invalid_grant"}, 400),
        page({"error": "invalid_grant"}, 200),
        page({"error": "a" * 5000}, 400),
        page({"error": {"a": 1}, "error_description": [1]}, 400),
        page({"error": CODE, "error_description": f"the code {CODE} is used"}, 400),
        page({"error": "invalid_grant", "error_description": " ".join(SENT)}, 400),
        page({"error": "invalid_client", "error_description": f"{SECRET}\x1b[2J" * 50}, 401),
        raw(" ".join(SENT), 400),
    ],
)
def test_unusable_token_response_is_an_error(response: Fetched) -> None:
    """Its text has no secret of the request or the response; servers repeat both."""
    world = World(client_secret=SECRET)
    world.pages[TOKEN] = response

    with pytest.raises(FlowFailed) as caught:
        sent = record("client_secret_post")
        with_tokens(world.options, sent, world.run(request_token(world.options, sent, PARAMS)))

    text = f"{caught.value} {caught.value!r} {caught.value.error}"
    assert [secret for secret in (ACCESS, *SENT) if secret in text] == []
    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable()
    assert caught.value.failure is not Failure.UNAVAILABLE
    assert [fetch.url for fetch in world.fetches] == [TOKEN]


@pytest.mark.parametrize(
    ("error", "status", "failure", "advice"),
    [
        ("invalid_grant", 400, Failure.OTHER, ""),
        ("access_denied", 403, Failure.DENIED, ""),
        ("invalid_client", 401, Failure.REGISTRATION, ""),
        ("unauthorized_client", 400, Failure.REGISTRATION, ""),
        ("temporarily_unavailable", 400, Failure.UNAVAILABLE, ""),
        ("server_error", 400, Failure.UNAVAILABLE, ""),
        ("invalid_target", 400, Failure.OTHER, "resource=None"),
        ("invalid_scope", 400, Failure.OTHER, "scopes="),
    ],
)
def test_error_of_the_token_endpoint_has_its_class(
    error: str, status: int, failure: Failure, advice: str
) -> None:
    """RFC 6749, 5.2; RFC 8707, 2."""
    world = World()
    world.pages[TOKEN] = page({"error": error, "error_description": "because"}, status)

    with pytest.raises(FlowFailed, match=f"{error}: because") as caught:
        world.run(request_token(world.options, record(), PARAMS))

    assert (caught.value.failure, caught.value.error) == (failure, error)
    assert advice in str(caught.value)


def test_representation_of_a_response_has_no_token() -> None:
    """Tracebacks with variables show it."""
    assert ACCESS not in repr(TokenResponse(ACCESS, "Bearer", refresh_token=REFRESH))


# DPoP


BOUND = replace(record(), dpop_key="the-key")


def test_bound_token_is_kept_with_its_key() -> None:
    """RFC 9449, 5: a proof at the token endpoint; the key is needed after a restart."""
    world = World(prover=Prover())
    world.token["token_type"] = "dpop"

    response = world.run(request_token(world.options, BOUND, PARAMS))
    made = with_tokens(world.options, BOUND, response)

    assert dict(world.fetches[0].headers)["DPoP"] == f"the-key POST {TOKEN} no nonce"
    assert (made.token_type, made.dpop_key) == ("DPoP", "the-key")


def test_server_without_dpop_gives_a_bearer_token() -> None:
    """RFC 9449, 5: it ignores the proof."""
    world = World(prover=Prover())

    response = world.run(request_token(world.options, BOUND, PARAMS))

    made = with_tokens(world.options, BOUND, response)
    assert (made.token_type, made.dpop_key) == ("Bearer", None)


def test_nonce_of_the_token_endpoint_is_used_once() -> None:
    """RFC 9449, 8: the request is sent again with it, and once only."""
    world = World(prover=Prover())

    def tokens(fetch: Fetch) -> Fetched:
        if dict(fetch.headers)["DPoP"].endswith(" n1"):
            return page(world.token)
        return Fetched(400, [("DPoP-Nonce", "n1")], b'{"error": "use_dpop_nonce"}')

    world.pages[TOKEN] = tokens
    assert world.run(request_token(world.options, BOUND, PARAMS)).access_token == ACCESS
    assert len(world.fetches) == 2

    world.pages[TOKEN] = page({"error": "use_dpop_nonce"}, 400)
    with pytest.raises(FlowFailed, match="use_dpop_nonce"):
        world.run(request_token(world.options, BOUND, PARAMS))
    assert len(world.fetches) == 4


def test_authorization_request_names_the_key() -> None:
    """RFC 9449, 10: the code is bound to it as well."""
    world = World(prover=Prover())
    server = ServerMetadata(issuer=ISSUER, authorization_endpoint=f"{ISSUER}/authorize")

    request = authorization_request(
        world.options,
        DiscoveredServer(server=server),
        BOUND,
        REDIRECT,
        (),
    )

    assert "dpop_jkt=thumbprint+of+the-key" in request.url
