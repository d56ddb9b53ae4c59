"""The commands `login`, `logout` and `auth`, and the options `--login` and `--token` of others."""

import asyncio
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from genmcp.cli.output import as_command_options, private_output, sanitize
from genmcp.cli.parsing import PORT, Decorator, argument, command, option, options_as
from genmcp.client.auth.base import Auth, Authorization, Authorizer
from genmcp.client.errors import ClientError
from genmcp.errors import ConfigurationError

# What a login needs is imported by the functions that need it: most commands do not.
if TYPE_CHECKING:
    from genmcp._core.auth.record import Record
    from genmcp.auth.extensions.dpop_client import DpopAuth
    from genmcp.cli.authorization import LoginRequest, WriteLine
    from genmcp.client.auth.oauth import OAuth
    from genmcp.client.auth.tokens import TokenStorage

CLIENT_NAME: Final = "genmcp"
"""The name under which the commands register. It belongs to the names of their records."""

TOKEN_VARIABLE: Final = "GENMCP_TOKEN"
SECRET_VARIABLE: Final = "GENMCP_CLIENT_SECRET"

_TOKENS_HELP: Final = "the folder in which logins are stored"

Work: TypeAlias = "Callable[[LoginRequest, WriteLine], Awaitable[bool | None]]"


CONNECTION: Final = "connection"  # the section of these options


class AuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options by which a command that calls a server is authorized."""

    login: bool = False
    tokens: str | None = None
    token: bool = False


auth_parameters: Final[Sequence[Decorator]] = (
    option(
        "--login",
        section=CONNECTION,
        is_flag=True,
        help="authorize by the tokens of `genmcp login`, and log in if there are none",
    ),
    option("--tokens", section=CONNECTION, metavar="FOLDER", help=_TOKENS_HELP),
    option(
        "--token",
        section=CONNECTION,
        is_flag=True,
        help=f"authorize by the access token in the variable ${TOKEN_VARIABLE}",
    ),
)
"""The parameters of `AuthOptions`, for `options_as`."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a login, and where the login is stored."""

    url: str
    tokens: str | None = None
    client_id: str | None = None
    issuer: str | None = None


class LoginOptions(ServerOptions, frozen=True, kw_only=True):
    """The server of a login, and how the login is made."""

    scopes: Sequence[str] = ()
    resource: str = ""
    no_resource: bool = False
    assume_pkce: bool = False
    dpop: bool = False
    no_browser: bool = False
    port: int = 0


_server_parameters: Final[Sequence[Decorator]] = (
    argument("url", "the URL of the MCP server"),
    option("--tokens", metavar="FOLDER", help=_TOKENS_HELP),
    option(
        "--client-id",
        metavar="ID",
        help=f"the id of a registered client; its secret, which needs --issuer, is read from "
        f"${SECRET_VARIABLE}",
    ),
    option("--issuer", metavar="URL", help="the authorization server, exactly as in its metadata"),
)

_login_parameters: Final[Sequence[Decorator]] = (
    *_server_parameters,
    option(
        "--scope",
        "scopes",
        multiple=True,
        metavar="SCOPE",
        help="a scope to ask for, instead of those that the server names; repeatable",
    ),
    option(
        "--resource",
        metavar="URL",
        default="",
        help="the resource, if the metadata has another",
    ),
    option(
        "--no-resource",
        is_flag=True,
        help="leave out the parameter `resource`, which some authorization servers reject",
    ),
    option(
        "--assume-pkce",
        is_flag=True,
        help="accept an authorization server that does not list the PKCE method S256",
    ),
    option(
        "--dpop",
        is_flag=True,
        help="bind the tokens to a key of this client (DPoP); extra: auth",
    ),
)

_prompt_parameters: Final[Sequence[Decorator]] = (
    option(
        "--no-browser",
        is_flag=True,
        help="print the URL, for a browser on another machine; paste the URL of the redirect",
    ),
    option(
        "--port",
        type=PORT,
        default=0,
        metavar="N",
        help="the port of the redirect URI, for a client that is registered with one",
    ),
)


@command("login", "log in at a server over HTTP, and store the tokens")
@options_as(LoginOptions, *_login_parameters, *_prompt_parameters)
def login(options: LoginOptions) -> int:
    """Log in at a server, and store the tokens."""
    from genmcp.cli.authorization import log_in

    return _run(options, log_in)


@command("logout", "revoke and remove the tokens of a login; status 1 if they cannot be revoked")
@options_as(ServerOptions, *_server_parameters)
def logout(options: ServerOptions) -> int:
    """Revoke and remove the tokens of a server. The status is 1 if one may still be valid."""
    from genmcp.cli.authorization import log_out_of

    return _run(LoginOptions(**msgspec.structs.asdict(options)), log_out_of)


@command("auth", "explain the steps of a login; status 1 if a client could not log in")
@options_as(LoginOptions, *_login_parameters)
def auth(options: LoginOptions) -> int:
    """Explain the steps of a login. The status is 1 if a client could not log in."""
    from genmcp.cli.authorization import explain_login

    return _run(options, explain_login)


def auth_of(arguments: AuthOptions, url: object, configured: Auth | None) -> Auth | None:
    """Return the authorization by *arguments*, by default *configured*.

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
    stored = _stored(tokens, url)
    oauth = OAuth(CLIENT_NAME, tokens=tokens, **_options_of(stored))
    return _attended(_bound(oauth) if stored and stored.dpop_key else oauth)


def _attended(auth: Auth | None) -> Auth | None:
    """Return *auth*, which begins a login at a terminal only."""
    is_interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if is_interactive or not isinstance(auth, Authorizer):
        return auth
    return UnattendedLogin(auth)


class UnattendedLogin:
    """Authorization by stored tokens without a terminal, such as in a script.

    The tokens are renewed as usual. In place of a login, a request fails with `Unauthorized` or
    `Forbidden`.

    Args:
        settings: those of the login, such as `OAuth`.
    """

    def __init__(self, settings: Authorizer) -> None:
        self._settings = settings
        self.extension = getattr(settings, "extension", None)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        authorization = self._settings.authorization(url, tls)
        authorization.interactive = False
        return authorization


def _run(arguments: LoginOptions, work: Work) -> int:
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


def _request(arguments: LoginOptions) -> "LoginRequest":
    """Return the login that *arguments* denote.

    Raises:
        ConfigurationError: one of them is invalid.
    """
    from genmcp.cli.authorization import LoginRequest
    from genmcp.client.auth.oauth import OAuth

    url = arguments.url
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # a malformed IPv6 address
        scheme = ""
    if scheme not in ("http", "https"):
        raise ConfigurationError(f"{url!r} is not a URL: only servers over HTTP need a login")
    tokens = _storage(arguments.tokens)
    stored = _stored(tokens, url)
    options = _options_of(stored)
    if arguments.client_id not in (None, options.get("client_id")):
        options |= _client(arguments.client_id)
    if arguments.issuer is not None:
        options["issuer"] = arguments.issuer
    if options.get("secret") and not options["issuer"]:
        raise ConfigurationError(
            f"the secret in ${SECRET_VARIABLE} needs --issuer, the authorization server that "
            "issued it: a server must not choose who gets it"
        )
    oauth = OAuth(
        CLIENT_NAME,
        scopes=_scopes(arguments.scopes),
        resource=None if arguments.no_resource else arguments.resource,
        assume_pkce=arguments.assume_pkce,
        tokens=tokens,
        redirect_uri=f"http://127.0.0.1:{arguments.port}/callback" if arguments.port else None,
        ask=_paste if arguments.no_browser else None,
        **options,
    )
    bound = arguments.dpop or (stored is not None and stored.dpop_key is not None)
    authorization = (_bound(oauth) if bound else oauth).authorization(url)
    return LoginRequest(url=url, oauth=oauth, authorization=authorization)


def _bound(oauth: "OAuth") -> "DpopAuth":
    """Return *oauth* with tokens that are bound to a key. Needs the extra `auth`."""
    from genmcp.auth.extensions.dpop_client import DpopAuth

    return DpopAuth(oauth)


def _paste(url: str) -> str:
    """Let the user paste the URL of the redirect, which their browser shows with an error."""
    from genmcp._core.auth.steps import FlowFailed
    from genmcp.client.auth.asking import show

    show(url)
    sys.stderr.write("The browser shows an error after that. Paste its URL here:\n")
    sys.stderr.flush()
    pasted = sys.stdin.readline().strip()
    if not pasted:
        raise FlowFailed("no URL was pasted")
    return pasted


def _options_of(stored: "Record | None") -> dict[str, Any]:
    """Return the options of `OAuth` that a stored login was made with."""
    if stored is None or stored.client.dynamic:
        return {}
    return _client(stored.client.id, stored.issuer)


def _client(client_id: str, issuer: str | None = None) -> dict[str, Any]:
    secret = os.environ.get(SECRET_VARIABLE)
    return {"client_id": client_id, "secret": secret, "issuer": issuer}


def _stored(tokens: "TokenStorage", url: str) -> "Record | None":
    """Return the record of the login at *url*.

    Raises:
        ConfigurationError: the storage cannot be used.
    """
    from genmcp._core.auth.record import record_key
    from genmcp.client.auth.tokens import TokensUnavailable

    try:
        return asyncio.run(tokens.load(record_key(url, CLIENT_NAME)))
    except TokensUnavailable as error:
        raise ConfigurationError(str(error)) from None


def _scopes(values: Sequence[str]) -> list[str] | None:
    """Return the scopes of `--scope`, of which one value may have several; None without any."""
    return [scope for value in values for scope in value.split()] if values else None


def _storage(folder: str | None) -> "TokenStorage":
    from genmcp.client.auth.files import FileTokens

    return FileTokens(folder)
