"""The verified content of an access token: its user or client, and its scopes."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The verified content of an access token. Immutable; shared by all requests with the token.

    Args:
        issuer: the authorization server, exactly as in the token.
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
        does not belong to the identity of a user: a client that registers anew gets a new id, and the user's
        tasks must remain readable.
        """
        kind, name = ("sub", self.subject) if self.subject else ("client", self.client_id or "")
        # A URL has no space, so that no issuer and subject equal another issuer and subject.
        return f"{self.issuer} {kind} {name}"

    def missing(self, scopes: Collection[str]) -> Collection[str]:
        """Return those of *scopes* that were not granted, in the same order."""
        return [scope for scope in scopes if scope not in self.scopes]
