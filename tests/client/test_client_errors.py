"""The texts of a client's errors."""

import pytest

from genmcp.client import errors
from genmcp.client.errors import (
    AuthorizationDenied,
    AuthorizationFailed,
    ClientError,
    Forbidden,
    HttpStatusError,
    IssuerMismatch,
    OutcomeUnknown,
    PkceUnsupported,
    ProcessExited,
    RegistrationFailed,
    RequestTimeout,
    ResourceMismatch,
    ServerError,
    authorization_error,
)
from genmcp.core.auth.steps import Failure, FlowFailed
from genmcp.errors import GenmcpError


def test_client_errors_are_one_tree() -> None:
    """Every error is a ClientError, and the module's docstring shows all of them as a tree."""
    members = [member for member in vars(errors).values() if isinstance(member, type)]
    kinds = [member for member in members if member.__module__ == errors.__name__]

    assert all(issubclass(kind, ClientError) for kind in kinds)
    assert issubclass(ClientError, GenmcpError)
    assert [kind.__name__ for kind in kinds if f" {kind.__name__} " not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RequestTimeout("tools/call", "here", 1.5), "tools/call took longer than 1.5 s at here"),
        (ServerError(-32602, "Unknown tool: x", {"name": "x"}), "Unknown tool: x (-32602)"),
        (ProcessExited("server", None), "server has ended, with unknown exit status"),
        (ProcessExited("server", 0), "server has ended, with exit status 0"),
        (ProcessExited("server", -15, "bye"), "by signal 15; last line of stderr: bye"),
        (ProcessExited("server", -99), "server has ended, by signal 99"),
        (OutcomeUnknown("a call", "here", "it broke"), "not have been carried out: it broke"),
        (
            HttpStatusError("here", 500, b" a\n b" + b"\xff" * 900),
            "here answered HTTP 500: a b\ufffd",
        ),
    ],
)
def test_client_error_says_what_and_where(error: ClientError, text: str) -> None:
    """The text is enough to act on, and short."""
    assert text in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure.ISSUER, IssuerMismatch),
        (Failure.RESOURCE, ResourceMismatch),
        (Failure.PKCE, PkceUnsupported),
        (Failure.REGISTRATION, RegistrationFailed),
        (Failure.DENIED, AuthorizationDenied),
        (Failure.UNAVAILABLE, AuthorizationFailed),
        (Failure.OTHER, AuthorizationFailed),
    ],
)
def test_each_failure_of_authorization_has_its_error(
    failure: Failure, kind: type[AuthorizationFailed]
) -> None:
    """An application decides by the class; the text is for its user."""
    failed = FlowFailed("no", failure, advice="assume_pkce=True", error="invalid_client")

    error = authorization_error(failed, "https://h/mcp")

    assert type(error) is kind
    assert error.error == "invalid_client"
    assert not error.sent
    assert str(error) == "authorization at https://h/mcp failed: no (assume_pkce=True)"


@pytest.mark.parametrize(
    ("header", "scopes"),
    [
        ('Bearer error="insufficient_scope", scope="a b"', ("a", "b")),
        ('Bearer scope="a b", DPoP algs="ES256", scope="a b"', ("a", "b")),
        ("Bearer", ()),
        ("", ()),
    ],
)
def test_forbidden_has_the_scopes_of_the_challenge(header: str, scopes: tuple[str, ...]) -> None:
    """An application can ask its user for them."""
    error = Forbidden("here", 403, headers={"www-authenticate": header} if header else None)

    assert error.scopes == scopes
