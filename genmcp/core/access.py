"""Who may call: the content of a verified access token, and the errors of authorization."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from genmcp.errors import ConfigurationError, GenmcpError

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, 3.3


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The verified content of an access token. Immutable; shared by all requests with the token.

    Args:
        issuer: the authorization server, exactly as in the token. Empty if the host application
            authenticates.
        subject: the user (`sub`), None if the token was issued to a client for itself.
        client_id: the client that obtained the token, None if the token does not name it.
        scopes: the granted scopes.
        expires: the Unix time at which the token expires, None if unknown.
        claims: all claims of the token, or the response of the introspection endpoint.
    """

    issuer: str = ""
    subject: str | None = None
    client_id: str | None = None
    scopes: frozenset[str] = frozenset()
    expires: float | None = None
    claims: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def principal(self) -> str:
        """The identity that sessions, tasks and cursors are bound to.

        The issuer with the subject, or with the client if the token names no subject. The client
        does not belong to the identity of a user: a client that registers again gets a new id, and
        the user's tasks must remain readable. Without an issuer, the subject alone.
        """
        if not self.issuer and self.subject:
            return self.subject
        kind, name = ("sub", self.subject) if self.subject else ("client", self.client_id or "")
        # A URL has no space, so that no issuer and subject equal another issuer and subject.
        return f"{self.issuer} {kind} {name}"

    def missing(self, scopes: Collection[str]) -> Collection[str]:
        """Return those of *scopes* that were not granted, in the same order."""
        return [scope for scope in scopes if scope not in self.scopes]


class InvalidToken(GenmcpError):
    """An access token is not valid here. Raised by a verifier; the client gets HTTP 401.

    Args:
        reason: which check failed, such as "the token has expired". The client and the log get it,
            so it must contain neither the token nor a secret.
        detail: what was found and expected, for the log only.
    """

    code = "invalid_token"  # of the challenge: RFC 6750, 3.1

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


class AuthorizationUnavailable(GenmcpError):
    """Keys or introspection cannot be reached. The client gets HTTP 503, and keeps its token.

    Args:
        message: what could not be reached, and why; for the log.
        retry_after: seconds after which the client may try again, default 5.
    """

    def __init__(self, message: str, *, retry_after: int = 5) -> None:
        self.retry_after = retry_after
        super().__init__(message)


def check_text(access: Access) -> None:
    """Check that the identity and scopes of *access* are text that can be stored and sent.

    JSON can name one half of a surrogate pair, which is no text: no store could keep a task of such
    a client. RFC 7493, 2.1, forbids it.

    Raises:
        InvalidToken: one of them is not.
    """
    try:
        texts = (access.issuer, access.subject, access.client_id, *access.scopes)
        "".join(map(str, texts)).encode()
    except UnicodeEncodeError:
        raise InvalidToken(
            "the issuer, subject, client or a scope has half of a surrogate pair, which is no text"
        ) from None


def checked_scopes(option: str, scopes: object) -> tuple[str, ...]:
    """Return *scopes*, the value of an *option*, without duplicates.

    Raises:
        ConfigurationError: they are not a collection of scopes; the message names *option*.
    """
    if isinstance(scopes, str | Mapping) or not isinstance(scopes, Iterable):
        raise ConfigurationError(f"{option} takes a list of scopes, not {scopes!r}")
    given = tuple(dict.fromkeys(scopes))
    for scope in given:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise ConfigurationError(
                f"{option}: {scope!r} is not a scope (RFC 6749, 3.3: ASCII without spaces, quotes "
                f"and backslashes)"
            )
        if scope == "offline_access":
            # 2026-07-28, authorization, "Refresh Tokens": a matter of client and issuer.
            raise ConfigurationError(
                f"{option}: offline_access concerns refresh tokens, which a server never gets"
            )
    return given
