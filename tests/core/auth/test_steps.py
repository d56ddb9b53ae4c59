"""The steps of a flow and its failures as values."""

import pytest

from genmcp.core.auth.steps import (
    Ask,
    Failure,
    Fetch,
    Fetched,
    FlowFailed,
    FlowOptions,
)

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    "value",
    [
        Fetch(url="https://as/token", headers=[("Authorization", SECRET)], body=SECRET.encode()),
        Fetched(200, [("DPoP-Nonce", SECRET)], SECRET.encode()),
        Ask(f"https://as/authorize?state={SECRET}", "http://127.0.0.1:1/callback"),
        FlowOptions(url="https://h", now=lambda: 0.0, random=lambda: "", client_secret=SECRET),
        FlowOptions(url=f"https://h/mcp?key={SECRET}", now=lambda: 0.0, random=lambda: ""),
    ],
)
def test_representation_has_no_secret(value: object) -> None:
    """Steps and records appear in logs of applications and in tracebacks with variables."""
    assert SECRET not in repr(value)
    assert SECRET not in str(value)


def test_header_of_a_response_is_found_in_any_case() -> None:
    """RFC 9110, 5.1. The first one counts."""
    fetched = Fetched(302, [("LOCATION", "/a"), ("location", "/b")])

    assert fetched.header("Location") == "/a"
    assert fetched.header("Retry-After") is None


def test_failure_names_the_option_that_helps() -> None:
    """A user need not search for it."""
    failed = FlowFailed("no S256", Failure.PKCE, advice="assume_pkce=True")

    assert str(failed) == "no S256 (assume_pkce=True)"
    assert str(FlowFailed("no S256")) == "no S256"
    assert failed.failure is Failure.PKCE


def test_events_are_ignored_without_an_observer() -> None:
    """Observation is an option."""
    options = FlowOptions(url="https://h", now=lambda: 0.0, random=lambda: "")

    options.report("token", "issued")
