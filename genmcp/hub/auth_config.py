"""The `auth` of a server in `mcpServers`: an access token, or an object that describes a login."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.client.auth.base import Auth
from genmcp.errors import ConfigurationError

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


class _LoginEntry(
    msgspec.Struct, tag_field="type", tag="oauth", rename="camel", forbid_unknown_fields=True
):
    """A login of a person: `OAuth`, with the tokens in the files of this user."""

    name: str = "genmcp"
    client_id: str | None = None
    secret: str | None = None
    scopes: Sequence[str] | None = None
    issuer: str | None = None
    redirect_uri: str | None = None


class _CredentialsEntry(
    msgspec.Struct,
    tag_field="type",
    tag="client_credentials",
    rename="camel",
    forbid_unknown_fields=True,
):
    """The credentials of a service: `ClientCredentials`, with the tokens in memory."""

    client_id: str
    secret: str | None = None
    key: str | None = None
    scopes: Sequence[str] | None = None
    issuer: str | None = None


def read_auth(entry: Any, environment: Mapping[str, str] = os.environ) -> Auth:
    """Return the authorization that *entry* describes.

        "${TOKEN}"                                  an access token
        {"type": "oauth", "name": "Parts hub"}      a login of a person: `OAuth`
        {"type": "client_credentials",              a service: `ClientCredentials`
         "clientId": "hub", "secret": "${SECRET}", "issuer": "https://login.example.com"}

    `${NAME}` in any text is the environment variable NAME. The members of an object are the options
    of the class, in camel case. The tokens of a person are stored as `genmcp login` stores them.

    Args:
        entry: the decoded JSON.
        environment: the variables.

    Raises:
        ConfigurationError: *entry* is invalid, or a variable is not set. The message has no secret.
    """
    filled = _fill(entry, environment)
    if isinstance(filled, str):
        return filled
    try:
        found: _LoginEntry | _CredentialsEntry
        found = msgspec.convert(filled, _LoginEntry | _CredentialsEntry)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"auth: {error}") from None
    from genmcp.client.auth import ClientCredentials, FileTokens, OAuth

    options = msgspec.structs.asdict(found)
    if isinstance(found, _CredentialsEntry):
        return ClientCredentials(**options)
    return OAuth(**options, tokens=FileTokens())


def _fill(entry: Any, environment: Mapping[str, str]) -> Any:
    """Return *entry* with the values of the variables."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in environment:
            raise ConfigurationError(f"auth: the environment variable {name} is not set")
        return msgspec.json.encode(environment[name]).decode()[1:-1]  # without the quotes

    return msgspec.json.decode(_VARIABLE.sub(value, msgspec.json.encode(entry).decode()))
