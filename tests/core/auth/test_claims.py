"""The claims of an access token."""

from typing import Any

import pytest

from genmcp.core.access import Access, InvalidToken
from genmcp.core.auth.claims import (
    Rules,
    check_claims,
    check_header,
    check_introspection,
    check_type,
    parse_object,
)

NOW = 1_800_000_000.0
ISSUER = "https://login.example.com"
RESOURCE = "https://mcp.example.com/mcp"
RULES = Rules(issuers=[ISSUER], audiences=[RESOURCE])


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token, with some of them changed; None removes one."""
    good: dict[str, Any] = {"iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": NOW + 600}
    return {name: value for name, value in (good | changes).items() if value is not None}


def test_access_has_the_content_of_the_token() -> None:
    """All that the server decides by, and the other claims as they are."""
    found = claims(client_id="web", scope="parts:read parts:write", org="x")

    access = check_claims(found, RULES, NOW)

    assert access == Access(
        issuer=ISSUER,
        subject="ada",
        client_id="web",
        scopes=frozenset({"parts:read", "parts:write"}),
        expires=NOW + 600,
        claims=found,
    )


def test_claims_cannot_be_changed() -> None:
    """One value serves all requests with the token."""
    access = check_claims(claims(), RULES, NOW)

    with pytest.raises(TypeError):
        access.claims["scope"] = "admin"  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "scopes"),
    [
        ({"scope": "a b"}, {"a", "b"}),
        ({"scope": " a  b "}, {"a", "b"}),
        ({"scope": ""}, set()),
        ({}, set()),
        ({"scp": "a b"}, {"a", "b"}),  # Entra
        ({"scp": ["a", "b"]}, {"a", "b"}),  # Okta
        ({"scope": ["a", "b"]}, {"a", "b"}),
        ({"scope": "a", "scp": "b"}, {"a"}),
    ],
)
def test_scopes_are_read_from_both_claims(changes: dict[str, Any], scopes: set[str]) -> None:
    """RFC 8693, 4.2, has `scope` as text; large providers send `scp`."""
    assert check_claims(claims(**changes), RULES, NOW).scopes == scopes


@pytest.mark.parametrize(
    ("changes", "client"),
    [
        ({"client_id": "a", "azp": "b", "cid": "c"}, "a"),
        ({"azp": "b", "cid": "c"}, "b"),
        ({"cid": "c"}, "c"),
        ({}, None),
    ],
)
def test_client_is_read_from_its_claims(changes: dict[str, Any], client: str | None) -> None:
    """RFC 9068 has `client_id`, OpenID Connect `azp`, Okta `cid`."""
    assert check_claims(claims(**changes), RULES, NOW).client_id == client


def test_token_of_a_client_has_no_subject() -> None:
    """Client credentials: the principal is the client."""
    access = check_claims(claims(sub=None, client_id="robot"), RULES, NOW)

    assert (access.subject, access.client_id) == (None, "robot")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": None}, "the token has no iss"),
        ({"iss": ISSUER + "/"}, "wrong iss"),
        ({"iss": [ISSUER]}, "wrong iss"),
        ({"aud": None}, "the token has no aud"),
        ({"aud": RESOURCE + "/"}, "wrong aud"),
        ({"aud": [RESOURCE, 1]}, "wrong aud"),
        ({"aud": {RESOURCE: 1}}, "wrong aud"),
        ({"aud": []}, "wrong aud"),
        ({"exp": None}, "the token has no exp"),
        ({"exp": NOW - 30}, "the token has expired"),
        ({"exp": "1900000000"}, "wrong exp"),
        ({"exp": True}, "wrong exp"),
        ({"exp": -1}, "wrong exp"),
        ({"exp": 10**400}, "wrong exp"),
        ({"exp": float("nan")}, "wrong exp"),
        ({"exp": (NOW + 600) * 1000}, "wrong exp"),
        ({"nbf": NOW + 31}, "the token is not valid yet (nbf)"),
        ({"nbf": "soon"}, "wrong nbf"),
        ({"iat": NOW + 31}, "the token is not valid yet (iat)"),
        ({"iat": []}, "wrong iat"),
        ({"sub": 7}, "the claim sub is not a string"),
        ({"client_id": ["a"]}, "the claim client_id is not a string"),
        ({"sub": ""}, "the token names neither a subject nor a client"),
        ({"scope": 7}, "the claim scope is neither text nor a list of texts"),
        ({"scp": ["a", 7]}, "the claim scp is neither text nor a list of texts"),
        ({"cnf": {"x5t#S256": "a"}}, "the token is bound to a key by an unsupported method (cnf)"),
        ({"cnf": "a"}, "the token is bound to a key by an unsupported method (cnf)"),
    ],
)
def test_wrong_claim_is_named(changes: dict[str, Any], reason: str) -> None:
    """The client learns which claim, and no more."""
    with pytest.raises(InvalidToken) as caught:
        check_claims(claims(**changes), RULES, NOW)

    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 30},
        {"iat": NOW + 30},
        {"aud": ["https://other.example.com", RESOURCE]},
        {"cnf": {"jkt": "a"}},
    ],
)
def test_claim_at_its_limit_is_accepted(changes: dict[str, Any]) -> None:
    """The clocks of two machines differ; a token may be for several resources."""
    assert check_claims(claims(**changes), RULES, NOW).subject == "ada"


def test_detail_has_found_and_expected_value() -> None:
    """The log helps to set the option, and is bounded."""
    with pytest.raises(InvalidToken) as caught:
        check_claims(claims(aud="api://7"), RULES, NOW)
    with pytest.raises(InvalidToken) as long:
        check_claims(claims(aud="x" * 9999), RULES, NOW)

    assert caught.value.detail == f"found: 'api://7'; expected: {RESOURCE}"
    assert len(long.value.detail) < 300


def test_audience_is_unchecked_only_with_none() -> None:
    """For issuers that name no audience. An empty list accepts nothing."""
    anywhere = Rules(issuers=[ISSUER], audiences=None)
    nowhere = Rules(issuers=[ISSUER], audiences=[])

    assert check_claims(claims(aud=None), anywhere, NOW).subject == "ada"
    with pytest.raises(InvalidToken):
        check_claims(claims(), nowhere, NOW)


def test_clients_can_be_limited() -> None:
    """In place of the audience, for issuers that name none. A token without a client is refused."""
    rules = Rules(issuers=[ISSUER], audiences=None, clients=["web", "app"])

    assert check_claims(claims(azp="app"), rules, NOW).client_id == "app"
    with pytest.raises(InvalidToken) as caught:
        check_claims(claims(client_id="other"), rules, NOW)
    assert str(caught.value) == "wrong client_id: found: 'other'; expected: web or app"
    with pytest.raises(InvalidToken, match="the token has no client_id"):
        check_claims(claims(), rules, NOW)


@pytest.mark.parametrize("kind", [None, "at+jwt", "AT+JWT", "application/at+jwt", "JWT", "jwt"])
def test_types_of_access_tokens_are_accepted(kind: str | None) -> None:
    """RFC 9068, 4; compared without case, as media types are."""
    check_type({"typ": kind} if kind else {})


@pytest.mark.parametrize("kind", ["dpop+jwt", "oauth-id-jag+jwt", "logout+jwt", "", 7, ["JWT"]])
def test_other_types_are_refused(kind: object) -> None:
    """RFC 8725, 3.11: a token for another purpose, signed by the same issuer."""
    with pytest.raises(InvalidToken, match="wrong typ"):
        check_type({"typ": kind})


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ({"crit": []}, "crit"),
        ({"crit": ["exp"], "exp": 1}, "crit"),
        ({"crit": ["b64"], "b64": True}, "crit"),
        ({"b64": False}, "b64"),
        ({"alg": None}, "alg"),
        ({"alg": ["RS256"]}, "alg"),
        ({"kid": 7}, "kid"),
    ],
)
def test_wrong_header_is_named(header: dict[str, Any], name: str) -> None:
    """RFC 7515, 4.1.11: an extension that is not understood."""
    with pytest.raises(InvalidToken, match=name):
        check_header({"alg": "RS256", **header})


def test_usual_headers_are_accepted() -> None:
    """Unknown members without `crit` are ignored."""
    check_header({"alg": "RS256", "kid": "a", "b64": True, "x": 1})


@pytest.mark.parametrize(
    "text",
    [
        b'{"sub": "a", "sub": "b"}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"exp": NaN}',
        b'{"exp": -Infinity}',
        b'{"exp": ' + b"9" * 5000 + b"}",
        b'{"a": "\xff"}',
        b"[]",
        b"null",
        b"",
        b"{",
        b'{"a":' * 100_000,
        b'\xef\xbb\xbf{"a": 1}',
    ],
)
def test_json_is_strict(text: bytes) -> None:
    """Two parsers must not see two tokens (RFC 8725, 2.4)."""
    with pytest.raises(InvalidToken, match="the payload of the token is not a JSON object"):
        parse_object(text)


def test_strict_json_is_read() -> None:
    """Members of one name in different objects are not duplicates."""
    assert parse_object(b'{"sub": "a", "act": {"sub": "b"}}') == {"sub": "a", "act": {"sub": "b"}}


def test_introspection_needs_an_active_token() -> None:
    """RFC 7662, 2.2: `active` is a boolean; the issuer and `exp` are optional."""
    rules = Rules(issuers=[ISSUER], audiences=[RESOURCE], introspected=True)
    found = claims(iss=None, exp=None, scope="a")

    access = check_introspection({"active": True, **found}, rules, NOW)

    assert (access.issuer, access.expires) == (ISSUER, None)
    assert access.scopes == {"a"}
    for active in (False, "true", 1, None):
        with pytest.raises(InvalidToken, match="the token is not active"):
            check_introspection({"active": active, **found}, rules, NOW)
