"""Logins at the command line: log in, log out, and explain the steps of a login.

The functions take a `LoginRequest`, and know nothing of arguments and terminals: they pass each
line of their output to a function. No token is in any of them.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from genmcp._core.auth.discovery import find_resource
from genmcp._core.auth.flow import RejectedAttempt, authorize, log_out
from genmcp._core.auth.metadata import ResourceMetadata
from genmcp._core.auth.record import Record, record_key
from genmcp._core.auth.steps import Failure, FlowEvent, FlowFailed
from genmcp.cli.output import as_command_options, one_line
from genmcp.client.auth.flows import FlowAuthorization, LoginNeeded
from genmcp.client.auth.oauth import OAuth
from genmcp.client.client import Client
from genmcp.client.errors import Forbidden, Unauthorized

WriteLine = Callable[[str], None]

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


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

    async def load(self) -> Record | None:
        """Return the stored record."""
        return await self.oauth.tokens.load(record_key(self.url, self.oauth.name))


async def log_in(request: LoginRequest, write: WriteLine) -> None:
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
    on_event(_stored_event(await request.load()))
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
        await client.close()
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
        yield "access token", _duration(record.expires - time.time())
    yield "refresh token", "yes" if record.refresh_token else "no"
    yield "scopes", one_line(" ".join(record.scopes)) or "unknown"
    yield "client", one_line(record.client.id)


def _duration(seconds: float) -> str:
    if seconds <= 0:
        return "has expired"
    for size, unit in _UNITS:
        if seconds > 2 * size:
            return f"expires in {round(seconds / size)} {unit}"
    return f"expires in {round(seconds)} s"
