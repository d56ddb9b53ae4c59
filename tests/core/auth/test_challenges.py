"""The header WWW-Authenticate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.auth.challenges import (
    Challenge,
    bearer_challenge,
    find_challenge,
    parse_challenges,
    scopes_of,
)

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (['Bearer realm="a"'], [Challenge("Bearer", {"realm": "a"})]),
        (["Bearer"], [Challenge("Bearer")]),
        (
            [f'Bearer resource_metadata="{METADATA}", scope="a b"'],
            [Challenge("Bearer", {"resource_metadata": METADATA, "scope": "a b"})],
        ),
        # Two challenges in one header, and in two.
        (
            ['DPoP algs="ES256", Bearer scope="x"'],
            [Challenge("DPoP", {"algs": "ES256"}), Challenge("Bearer", {"scope": "x"})],
        ),
        (
            ['Basic realm="r"', "Bearer error=invalid_token"],
            [Challenge("Basic", {"realm": "r"}), Challenge("Bearer", {"error": "invalid_token"})],
        ),
        # A quoted value is not searched for parameters.
        (
            [r'Bearer error_description="needs scope=\"admin\", or more", scope="a"'],
            [
                Challenge(
                    "Bearer",
                    {"error_description": 'needs scope="admin", or more', "scope": "a"},
                )
            ],
        ),
        (
            ["Negotiate oWcCAgEBoGo=, Bearer a=b"],
            [Challenge("Negotiate"), Challenge("Bearer", {"a": "b"})],
        ),
        (
            [f"Bearer resource_metadata={METADATA}"],
            [Challenge("Bearer", {"resource_metadata": METADATA})],
        ),
        (['bearer SCOPE = "a" , scope="b"'], [Challenge("bearer", {"scope": "a"})]),
        ([', ,Bearer ,realm="a"'], [Challenge("Bearer", {"realm": "a"})]),
        (['realm="a", Bearer scope="b"'], [Challenge("Bearer", {"scope": "b"})]),
        (['Bearer scope="unterminated'], [Challenge("Bearer")]),
        ([""], []),
    ],
)
def test_challenges_are_parsed(values: list[str], expected: list[Challenge]) -> None:
    """Servers send several schemes, several headers, and syntax that is nearly right."""
    assert parse_challenges(values) == expected


def test_scheme_is_found_in_any_case() -> None:
    """RFC 9110, 11.1: a scheme is case-insensitive."""
    challenges = parse_challenges(['Basic realm="r", BEARER scope="a"'])

    found = find_challenge(challenges, "Bearer")

    assert found is not None
    assert found.params == {"scope": "a"}
    assert find_challenge(challenges, "DPoP") is None


def test_number_of_challenges_is_limited() -> None:
    """Of a header with thousands of schemes, only the first are kept."""
    assert len(parse_challenges(["Bearer, " * 5000])) == 16


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40),
        max_size=5,
    )
)
def test_encoded_challenge_is_parsed_again(params: dict[str, str]) -> None:
    """Quotes and backslashes in a description must not end it."""
    challenge = Challenge("Bearer", params)

    assert parse_challenges([challenge.encode()]) == [challenge]


def test_encoded_challenge_has_no_control_characters() -> None:
    """A line break in a description would begin another header."""
    encoded = Challenge("Bearer", {"error_description": "a\r\nSet-Cookie: b\u00e9"}).encode()

    assert encoded == 'Bearer error_description="a??Set-Cookie: b?"'


@given(st.lists(st.text(max_size=60), max_size=3))
def test_any_header_can_be_parsed(values: list[str]) -> None:
    """No header of a foreign server raises."""
    parse_challenges(values)


def test_scopes_are_split_without_duplicates() -> None:
    """RFC 6749, 3.3: scopes are separated by spaces, and their order does not matter."""
    assert scopes_of("a b  a") == ["a", "b"]
    assert scopes_of(None) == []


@pytest.mark.parametrize(
    ("error", "scopes", "further", "expected"),
    [
        ("", (), {}, "Bearer"),
        (
            "",
            ("a", "b", "a"),
            {"resource_metadata": METADATA, "algs": None},
            f'Bearer scope="a b", resource_metadata="{METADATA}"',
        ),
        (
            "invalid_token",
            (),
            {"algs": "ES256"},
            'Bearer error="invalid_token", error_description="it has expired", algs="ES256"',
        ),
    ],
)
def test_refusal_is_written_as_challenge(
    error: str, scopes: tuple[str, ...], further: dict[str, str | None], expected: str
) -> None:
    """RFC 6750, 3.1: without credentials, there is neither an error code nor a description."""
    assert bearer_challenge(error, "it has expired", scopes, **further) == expected
