"""The record that a client keeps of a login: its tokens, and the means to renew them."""

from typing import Final

import msgspec

_MARGIN: Final = 60.0  # seconds ahead of expiry, at most
SHARE: Final = 0.1
"""The share of the life of a token by which it is renewed ahead of its expiry."""


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client as its authorization server knows it. The secret is not in its repr.

    Args:
        id: the client id, valid for one issuer.
        secret: the client secret, None for a public client.
        secret_expires: the Unix time at which the secret expires, None for never (RFC 7591, 3.2.1).
        method: how the client authenticates at the token endpoint, such as `none`.
        redirect_uri: the redirect URI that was registered, None for a client of the options.
        dynamic: whether it was registered dynamically (RFC 7591). Only then is the secret stored.
    """

    id: str
    secret: str | None = None
    secret_expires: float | None = None
    method: str = "none"
    redirect_uri: str | None = None
    dynamic: bool = False

    def __repr__(self) -> str:
        return f"RegisteredClient(id={self.id!r}, method={self.method!r})"

    def expired(self, now: float) -> bool:
        """Return whether the secret has expired at the Unix time *now*."""
        return self.secret_expires is not None and self.secret_expires <= now


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one client for one resource. Neither tokens nor keys are in its repr.

    All of it is stored together, so that a process that starts later can renew the token without
    discovery, and never sends it to another server.

    Args:
        issuer: the authorization server, exactly as in its metadata.
        token_endpoint: the URL at which the token is renewed.
        resource: the value of the parameter `resource`, None if it is left out.
        client: the client that the tokens were issued to.
        access_token: the access token, None if there is a registration only.
        token_type: `Bearer` or `DPoP`, as the token endpoint gave it.
        expires: the Unix time at which the access token expires, None if unknown.
        lifetime: seconds from the issue of the access token until it expires, None if unknown.
        refresh_token: the refresh token, None without one.
        scopes: the granted scopes, or the requested ones if the response named none.
        requested: the requested scopes, without `offline_access`.
        renewals: how often the token was renewed since the login; 0: it is that of the login.
        revocation_endpoint: the URL at which the tokens are revoked (RFC 7009), None without one.
        dpop_key: the private key that the tokens are bound to, or will be, as JWK; None for bearer
            tokens.
    """

    issuer: str
    token_endpoint: str
    resource: str | None = None
    client: RegisteredClient
    access_token: str | None = None
    token_type: str = "Bearer"
    expires: float | None = None
    lifetime: float | None = None
    refresh_token: str | None = None
    scopes: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    renewals: int = 0
    revocation_endpoint: str | None = None
    dpop_key: str | None = None

    def __repr__(self) -> str:
        return (
            f"Record(issuer={self.issuer!r}, resource={self.resource!r}, client={self.client!r}, "
            f"scopes={self.scopes!r})"
        )

    def due(self, now: float) -> bool:
        """Return whether the access token is to be renewed at the Unix time *now*.

        That is ahead of its expiry by a tenth of its life, at most 60 seconds.
        """
        if self.expires is None:
            return False
        return now >= self.expires - min(_MARGIN, SHARE * (self.lifetime or 0.0))

    def without_tokens(self) -> "Record":
        """Return this record with the client but no tokens."""
        return msgspec.structs.replace(
            self, access_token=None, expires=None, lifetime=None, refresh_token=None, scopes=()
        )


def record_key(url: str, name: str = "") -> str:
    """Return the name of the record of the client *name* at the MCP server *url*.

    The issuer and the resource are in the record, and not in its name: they are not known before
    discovery, which a client with a valid token has no need of. The flow uses no record of another
    issuer than the one that it found.
    """
    return f"{url} {name}" if name else url


def encode_record(record: Record) -> bytes:
    """Return *record* as JSON, with its tokens."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record | None:
    """Return the record in *data*; None if it is damaged, so that a new login replaces it."""
    try:
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
