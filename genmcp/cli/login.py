"""The commands `login`, `logout` and `auth`, and the options `--login` and `--token` of others."""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from msgspec.structs import replace

from genmcp.cli.output import as_command_options, private_output, sanitize
from genmcp.client.auth.base import Auth, Authorization, Authorizer, RejectedRequest
from genmcp.client.errors import ClientError
from genmcp.client.options import HttpOptions
from genmcp.errors import ConfigurationError

# What a login needs is imported by the functions that need it: most commands do not.
if TYPE_CHECKING:
    from genmcp._core.auth.record import Record
    from genmcp.cli.authorization import LoginRequest, WriteLine
    from genmcp.client.auth.tokens import TokenStorage

CLIENT_NAME: Final = "genmcp"
"""The name under which the commands register. It belongs to the names of their records."""

TOKEN_VARIABLE: Final = "GENMCP_TOKEN"
SECRET_VARIABLE: Final = "GENMCP_CLIENT_SECRET"

_KEYRING: Final = "keyring"
_TOKENS_HELP: Final = (
    f"where logins are stored: a folder, or {_KEYRING!r} for the keyring of the system"
)

Work: TypeAlias = "Callable[[LoginRequest, WriteLine], Awaitable[bool | None]]"


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `login`, `logout` and `auth` to *parser*."""
    parser.add_argument("url", help="the URL of the MCP server")
    parser.add_argument("--tokens", metavar="WHERE", help=_TOKENS_HELP)
    help = f"the id of a registered client; its secret is read from ${SECRET_VARIABLE}"
    parser.add_argument("--client-id", metavar="ID", help=help)


def add_login_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `login` and `auth` to *parser*."""
    add = parser.add_argument
    help = "a scope to ask for, instead of those that the server names; repeatable"
    add("--scope", action="append", dest="scopes", metavar="SCOPE", help=help)
    add("--issuer", metavar="URL", help="the authorization server, exactly as in its metadata")
    add("--resource", metavar="URL", default="", help="the resource, if the metadata has another")
    help = "leave out the parameter `resource`, which some authorization servers reject"
    add("--no-resource", action="store_const", const=None, dest="resource", help=help)
    help = "accept an authorization server that does not list the PKCE method S256"
    add("--assume-pkce", action="store_true", help=help)
    help = "bind the tokens to a key of this client (DPoP); extra: auth"
    add("--dpop", action="store_true", help=help)


def add_auth_options(add: Callable[..., Any]) -> None:
    """Add the options of commands that call a server, by the `add_argument` of their group."""
    help = "authorize by the tokens of `genmcp login`, and log in if there are none"
    add("--login", action="store_true", help=help)
    add("--tokens", metavar="WHERE", help=_TOKENS_HELP)
    help = f"authorize by the access token in the variable ${TOKEN_VARIABLE}"
    add("--token", action="store_true", help=help)


def login(arguments: argparse.Namespace) -> int:
    """Log in at a server, and store the tokens."""
    from genmcp.cli.authorization import log_in

    return _run(arguments, log_in)


def logout(arguments: argparse.Namespace) -> int:
    """Revoke and remove the tokens of a server. The status is 1 if one may still be valid."""
    from genmcp.cli.authorization import log_out_of

    return _run(arguments, log_out_of)


def auth(arguments: argparse.Namespace) -> int:
    """Explain the steps of a login. The status is 1 if a client could not log in."""
    from genmcp.cli.authorization import explain_login

    return _run(arguments, explain_login)


def auth_of(arguments: argparse.Namespace, url: object, configured: Auth | None) -> Auth | None:
    """Return the authorization by the arguments of `add_auth_options`, by default *configured*.

    Raises:
        ConfigurationError: they exclude each other, or the target has no URL.
    """
    if not arguments.login:
        if arguments.tokens is not None:
            raise ConfigurationError("--tokens needs --login")
        if not arguments.token:
            return _attended(configured)
    option = "--login" if arguments.login else "--token"
    if not isinstance(url, str):
        raise ConfigurationError(f"{option} applies only to a URL")
    if arguments.login and arguments.token:
        raise ConfigurationError("--login cannot be combined with --token")
    if arguments.token:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise ConfigurationError(f"--token: the variable {TOKEN_VARIABLE} is not set")
        return token
    from genmcp.client.auth.oauth import OAuth

    tokens = _storage(arguments.tokens)
    oauth = OAuth(CLIENT_NAME, tokens=tokens, **_options_of(_stored(tokens, url)))
    return _attended(oauth)


def _attended(auth: Auth | None) -> Auth | None:
    """Return *auth*, which begins a login at a terminal only."""
    is_interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if is_interactive or not isinstance(auth, Authorizer):
        return auth
    from genmcp.client.auth.oauth import OAuth

    return UnattendedLogin(auth) if isinstance(auth, OAuth) else auth


class UnattendedLogin:
    """Authorization by stored tokens without a terminal, such as in a script.

    Args:
        settings: those of the login, such as `OAuth`. Tokens are renewed as usual.
    """

    def __init__(self, settings: Authorizer) -> None:
        self._settings = settings

    def authorization(self, url: str, http: HttpOptions | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        return _UnattendedAuthorization(self._settings.authorization(url, http))


class _UnattendedAuthorization(Authorization):
    """Obtains tokens without a login. The caller gets `Unauthorized` or `Forbidden` instead."""

    def __init__(self, inner: Authorization) -> None:
        self._inner = inner

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers of the next request."""
        return await self._inner.headers(method, url)

    async def rejected(self, request: RejectedRequest) -> bool:
        """Renew the token, but begin no login."""
        return await self._inner.rejected(replace(request, foreground=False))

    def answered(self, url: str, headers: Mapping[str, str]) -> None:
        """Handle the headers of a response."""
        self._inner.answered(url, headers)

    async def close(self) -> None:
        """Release the resources of the connection."""
        await self._inner.close()


def _run(arguments: argparse.Namespace, work: Work) -> int:
    from genmcp._core.auth.steps import FlowFailed
    from genmcp.client.auth.tokens import TokensUnavailable

    request = _request(arguments)
    with private_output() as output:
        try:
            succeeded = asyncio.run(_perform(work, request, output.write_line))
        except (ClientError, FlowFailed, TokensUnavailable) as error:
            sys.stderr.write(f"genmcp: {sanitize(as_command_options(str(error)))}\n")
            return 1
    return 1 if succeeded is False else 0


async def _perform(work: Work, request: "LoginRequest", write: "WriteLine") -> bool | None:
    return await work(request, write)


def _request(arguments: argparse.Namespace) -> "LoginRequest":
    """Return the login that the arguments denote.

    Raises:
        ConfigurationError: one of them is invalid.
    """
    from genmcp.cli.authorization import LoginRequest
    from genmcp.client.auth.asking import DEFAULT_LOGIN_TIMEOUT
    from genmcp.client.auth.oauth import OAuth

    url = arguments.url
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # a malformed IPv6 address
        scheme = ""
    if scheme not in ("http", "https"):
        raise ConfigurationError(f"{url!r} is not a URL: only servers over HTTP need a login")
    tokens = _storage(arguments.tokens)
    options = _options_of(_stored(tokens, url))
    if arguments.client_id is not None:
        options |= _client(arguments.client_id)
    given = vars(arguments)  # each command has some of the options
    timeout = given.get("login_timeout")
    if given.get("dpop"):
        options["dpop"] = True
    oauth = OAuth(
        CLIENT_NAME,
        scopes=_scopes(given.get("scopes")),
        issuer=given.get("issuer"),
        resource=given.get("resource", ""),
        assume_pkce=given.get("assume_pkce", False),
        tokens=tokens,
        port=given.get("port", 0),
        login_timeout=DEFAULT_LOGIN_TIMEOUT if timeout is None else timeout,
        **options,
    )
    return LoginRequest(url=url, oauth=oauth, browser=given.get("browser", True))


def _options_of(stored: "Record | None") -> dict[str, Any]:
    """Return the options of `OAuth` that a stored login was made with."""
    if stored is None:
        return {}
    client = {} if stored.client.dynamic else _client(stored.client.id)
    return {**client, "dpop": stored.dpop_key is not None}


def _client(client_id: str) -> dict[str, Any]:
    return {"client_id": client_id, "secret": os.environ.get(SECRET_VARIABLE)}


def _stored(tokens: "TokenStorage", url: str) -> "Record | None":
    """Return the record of the login at *url*.

    Raises:
        ConfigurationError: the storage cannot be used.
    """
    from genmcp.client.auth.tokens import TokensUnavailable

    try:
        return asyncio.run(_get(tokens, url))
    except TokensUnavailable as error:
        raise ConfigurationError(str(error)) from None


async def _get(tokens: "TokenStorage", url: str) -> "Record | None":
    from genmcp._core.auth.record import record_key

    return await tokens.get(record_key(url, CLIENT_NAME))


def _scopes(values: list[str] | None) -> list[str] | None:
    """Return the scopes of `--scope`, of which one value may have several."""
    return None if values is None else [scope for value in values for scope in value.split()]


def _storage(where: str | None) -> "TokenStorage":
    from genmcp.client.auth.files import FileTokens
    from genmcp.client.auth.keyring_tokens import KeyringTokens

    return KeyringTokens() if where == _KEYRING else FileTokens(where)
