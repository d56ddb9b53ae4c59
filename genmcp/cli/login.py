"""The commands `login`, `logout` and `auth`: log in, log out, and explain the steps of a login.

No token is in any output.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from genmcp.cli.output import (
    CommandError,
    as_command_options,
    duration,
    one_line,
    private_output,
)
from genmcp.cli.parsing import PORT, Decorator, example, options_as
from genmcp.client.auth.asking import show
from genmcp.client.auth.base import Authorizer
from genmcp.client.auth.files import FileTokens
from genmcp.client.auth.flows import FlowAuthorization, LoginNeeded
from genmcp.client.auth.oauth import OAuth
from genmcp.client.auth.tokens import TokenStorage, TokensUnavailable
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, Forbidden, Unauthorized
from genmcp.core.auth.discovery import find_resource
from genmcp.core.auth.flow import RejectedAttempt, authorize, log_out
from genmcp.core.auth.metadata import ResourceMetadata
from genmcp.core.auth.record import Record, record_key
from genmcp.core.auth.steps import Failure, FlowEvent, FlowFailed
from genmcp.errors import ConfigurationError

WriteLine = Callable[[str], None]

CLIENT_NAME: Final = "genmcp"
"""The name under which the commands register. It belongs to the names of their records."""

SECRET_VARIABLE: Final = "GENMCP_CLIENT_SECRET"


class LoginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a login, and how it is made."""

    url: str
    client_id: str | None = None
    issuer: str | None = None
    scopes: Sequence[str] = ()
    resource: str = ""
    no_resource: bool = False
    assume_pkce: bool = False
    no_browser: bool = False
    port: int = 0


_server_parameters: Final[Sequence[Decorator]] = (
    click.argument("url"),
    click.option(
        "--client-id",
        metavar="ID",
        help=f"a registered client; ${SECRET_VARIABLE} has its secret, which needs --issuer",
    ),
    click.option("--issuer", metavar="URL", help="the authorization server, as in its metadata"),
)

_login_parameters: Final[Sequence[Decorator]] = (
    *_server_parameters,
    click.option("--scope", "scopes", multiple=True, help="a scope to ask for; repeatable"),
    click.option("--resource", metavar="URL", default="", help="instead of that of the metadata"),
    click.option("--no-resource", is_flag=True, help="leave out the parameter `resource`"),
    click.option("--assume-pkce", is_flag=True, help="accept a server that does not list S256"),
)

_prompt_parameters: Final[Sequence[Decorator]] = (
    click.option("--no-browser", is_flag=True, help="print the URL; paste that of the redirect"),
    click.option("--port", type=PORT, default=0, help="the port of the redirect URI"),
)


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A login at one server.

    Args:
        url: the URL of the MCP server.
        oauth: the settings of the login, and where its tokens are stored.
        authorization: the authorization of the requests to the server by that login.
    """

    url: str
    oauth: OAuth
    authorization: FlowAuthorization


@click.command("login", epilog=example("login https://mcp.example.com/mcp"))
@options_as(LoginOptions, *_login_parameters, *_prompt_parameters)
def login(options: LoginOptions) -> int:
    """Log in at the server URL, and store the tokens."""
    return _run(options, log_in)


@click.command("logout", epilog=example("logout https://mcp.example.com/mcp"))
@options_as(LoginOptions, *_server_parameters)
def logout(options: LoginOptions) -> int:
    """Revoke and remove the tokens of the server URL. The status is 1 if one may still be valid."""
    return _run(options, log_out_of)


@click.command("auth", epilog=example("auth https://mcp.example.com/mcp"))
@options_as(LoginOptions, *_login_parameters)
def auth(options: LoginOptions) -> int:
    """Explain a login at the server URL, step by step; the status is 1 if no client can log in."""
    return _run(options, explain_login)


def stored_login(url: str) -> Authorizer:
    """Return the authorization by the login at *url* that was stored."""
    storage = FileTokens()
    return OAuth(CLIENT_NAME, tokens=storage, **_options_of(_stored(storage, url)))


def _run(
    arguments: LoginOptions, work: Callable[[LoginRequest, WriteLine], Awaitable[bool]]
) -> int:
    request = _request(arguments)

    async def perform() -> bool:
        return await work(request, output.write_line)

    with private_output() as output:
        try:
            return int(not asyncio.run(perform()))
        except (ClientError, FlowFailed, TokensUnavailable) as error:
            raise CommandError(as_command_options(str(error))) from error


def _request(arguments: LoginOptions) -> LoginRequest:
    """Return the login that *arguments* denote.

    Raises:
        ConfigurationError: one of them is invalid.
    """
    url = arguments.url
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # a malformed IPv6 address
        scheme = ""
    if scheme not in ("http", "https"):
        raise ConfigurationError(f"{url!r} is not a URL: only servers over HTTP need a login")
    tokens = FileTokens()
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
    return LoginRequest(url=url, oauth=oauth, authorization=oauth.authorization(url))


def _paste(url: str) -> str:
    """Let the user paste the URL of the redirect, which their browser shows with an error."""
    show(url)
    sys.stderr.write("The browser shows an error after that. Paste its URL here:\n")
    sys.stderr.flush()
    pasted = sys.stdin.readline().strip()
    if not pasted:
        raise FlowFailed("no URL was pasted")
    return pasted


def _options_of(stored: Record | None) -> dict[str, Any]:
    """Return the options of `OAuth` that a stored login was made with."""
    if stored is None or stored.client.dynamic:
        return {}
    return _client(stored.client.id, stored.issuer)


def _client(client_id: str, issuer: str | None = None) -> dict[str, Any]:
    secret = os.environ.get(SECRET_VARIABLE)
    return {"client_id": client_id, "secret": secret, "issuer": issuer}


def _stored(tokens: TokenStorage, url: str) -> Record | None:
    """Return the record of the login at *url*.

    Raises:
        ConfigurationError: the storage cannot be used.
    """
    try:
        return asyncio.run(tokens.load(record_key(url, CLIENT_NAME)))
    except TokensUnavailable as error:
        raise ConfigurationError(str(error)) from None


def _scopes(values: Sequence[str]) -> list[str] | None:
    """Return the scopes of `--scope`, of which one value may have several; None without any."""
    return [scope for value in values for scope in value.split()] if values else None


async def log_in(request: LoginRequest, write: WriteLine) -> bool:
    """Log in, store the tokens, and describe them.

    Raises:
        ClientError: the server cannot be reached.
        FlowFailed: the login failed.
    """
    rejection = await _probe(request)
    if rejection is None and await _find_login(request) is None:
        raise FlowFailed("the server asks for no login")
    # Without events: the error of a flow has its cause.
    options = replace(request.authorization.options, on_event=lambda event: None)
    record = await request.authorization.run(authorize(options, rejection), asks=True)
    write(f"logged in at {one_line(record.issuer)}")
    for label, text in _describe(record):
        write(f"  {label:<15}{text}")
    return True


async def log_out_of(request: LoginRequest, write: WriteLine) -> bool:
    """Revoke the tokens, remove the record, and return whether all of it succeeded."""
    outcome = await request.authorization.run(log_out(request.authorization.options))
    if outcome.record is None or outcome.record.access_token is None:
        write(f"there is no login for {request.url}")
        return True
    write(f"logged out of {one_line(outcome.record.issuer)}")
    for problem in outcome.problems:
        write(f"  {one_line(problem)}")
    return not outcome.problems


async def explain_login(request: LoginRequest, write: WriteLine) -> bool:
    """Begin a login, write its events, and return whether it came to the user.

    The user is not asked: the login registers and stores nothing before that.

    Raises:
        ClientError: the server cannot be reached.
    """

    def on_event(event: FlowEvent) -> None:
        for line in _lines(event):
            write(line)

    failure = ""
    rejection = await _probe(request)
    options = replace(request.authorization.options, on_event=on_event)
    try:
        if rejection is None:
            on_event(FlowEvent("server", "answers without a token", request.url))
            if await _find_login(request) is None:
                write("The server asks for no login.")
                return True
        await request.authorization.run(authorize(options, rejection))
    except LoginNeeded:
        pass
    except FlowFailed as failed:
        failure = as_command_options(str(failed))
    oauth = request.oauth
    on_event(_stored_event(await oauth.tokens.load(record_key(request.url, oauth.name))))
    if failure:
        write(f"A client cannot log in: {one_line(failure)}")
    else:
        write("A client can log in.")
    return not failure


async def _find_login(request: LoginRequest) -> ResourceMetadata | None:
    """Return the metadata of a server that accepts requests without a token.

    Without such metadata it has no login. The rules of 2025-03-26, by which each server is its own
    authorization server, are for a server that demands a token.
    """
    try:
        return await request.authorization.run(find_resource(request.authorization.options, None))
    except FlowFailed as failed:
        if failed.failure is Failure.RESOURCE:  # another server of the same host
            return None
        raise


async def _probe(request: LoginRequest) -> RejectedAttempt | None:
    """Return the response of the server to a client without a token, None if it accepts one.

    Raises:
        ClientError: the server cannot be reached, or responded with another error.
    """
    client = Client(request.url)
    try:
        await client.open()
    except (Unauthorized, Forbidden) as error:
        return RejectedAttempt(status=error.status, headers=[*error.headers.items()])
    finally:
        await client.aclose()
    return None


def _lines(event: FlowEvent) -> Iterator[str]:
    """Yield the lines of an event, with the URL below the text."""
    mark, text = ("ok", event.text) if event.ok else ("--", as_command_options(event.text))
    yield f"{mark}  {event.topic:<22}{one_line(text)}"
    if event.url:
        yield f"{'':26}{one_line(event.url)}"


def _stored_event(record: Record | None) -> FlowEvent:
    if record is None:
        return FlowEvent("stored", "none", ok=False)
    described = "; ".join(f"{label} {text}" for label, text in _describe(record))
    text = f"login at {record.issuer}; {described}"
    expired = record.expires is not None and record.expires <= time.time()
    usable = record.access_token is not None and (not expired or record.refresh_token is not None)
    return FlowEvent("stored", text, ok=usable)


def _describe(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the contents of *record* by labels, without its tokens."""
    if record.access_token is None:
        yield "access token", "none: a login is needed"
    elif record.expires is None:
        yield "access token", "of an unknown lifetime"
    else:
        left = record.expires - time.time()
        yield "access token", f"expires in {duration(left)}" if left > 0 else "has expired"
    yield "refresh token", "yes" if record.refresh_token else "no"
    yield "scopes", one_line(" ".join(record.scopes)) or "unknown"
    yield "client", one_line(record.client.id)
