"""The content of an access token, and the scopes of options."""

from typing import Any

import pytest

from genmcp.core.access import Access, AuthorizationUnavailable, InvalidToken, checked_scopes
from genmcp.core.failures import failure_result
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import ConfigurationError, InsufficientScope
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tools import CallToolResult


@pytest.mark.parametrize(
    ("access", "principal"),
    [
        (Access(subject="ann"), "ann"),
        (Access(issuer="https://as", subject="ann"), "https://as sub ann"),
        (Access(issuer="https://as", client_id="ann"), "https://as client ann"),
        (Access(issuer="https://as", subject="ann", client_id="app"), "https://as sub ann"),
        (Access(client_id="app"), " client app"),
        (Access(), " client "),
    ],
)
def test_principal_is_issuer_and_subject_or_client(access: Access, principal: str) -> None:
    """A user and a client with the same name are different principals."""
    assert access.principal == principal


def test_missing_scopes_keep_their_order() -> None:
    access = Access(subject="ann", scopes=frozenset({"b"}))

    assert access.missing(["c", "b", "a"]) == ["c", "a"]


def test_scopes_of_an_option_are_checked_and_unique() -> None:
    assert checked_scopes("scopes", ["a:b", "c", "a:b"]) == ("a:b", "c")
    assert checked_scopes("scopes", ()) == ()


@pytest.mark.parametrize("wrong", ["read", 5, None, [5], [""], ["a b"], ['a"'], ["a\\"], ["ä"]])
def test_wrong_scopes_name_their_option(wrong: Any) -> None:
    """RFC 6749, 3.3: a scope is ASCII without spaces, quotes and backslashes."""
    with pytest.raises(ConfigurationError, match=r"Tool\.scopes"):
        checked_scopes("Tool.scopes", wrong)


def test_offline_access_is_no_scope_of_a_server() -> None:
    with pytest.raises(ConfigurationError, match="offline_access"):
        checked_scopes("scopes", ["offline_access"])


def test_invalid_token_has_its_detail_only_in_the_log() -> None:
    error = InvalidToken("the token has expired", "exp 1, now 2")

    assert (error.reason, str(error)) == (
        "the token has expired",
        "the token has expired: exp 1, now 2",
    )
    assert str(InvalidToken("the token has expired")) == "the token has expired"


def test_unavailable_keys_may_be_asked_for_again() -> None:
    assert AuthorizationUnavailable("no keys").retry_after == 5
    assert AuthorizationUnavailable("no keys", retry_after=9).retry_after == 9


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_missing_scope_is_a_tool_result_but_an_error_elsewhere(method: str) -> None:
    """A model reads the result of its tool; prompts and resources have no error result."""
    client = ClientInfo(LATEST.version)
    request = Request(id=1, method=method, params=RequestParams(), revision=LATEST, client=client)
    error = InsufficientScope("parts:write", "parts:bulk")
    outcome = failure_result(error, request, "ref")

    if method == "tools/call":
        assert isinstance(outcome, CallToolResult)
        assert outcome.is_error
        assert "parts:write parts:bulk" in str(outcome.content)
    else:
        assert outcome is error
        assert error.data == {"scopes": ["parts:write", "parts:bulk"]}
