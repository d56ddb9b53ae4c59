"""Logins at the command line: log in, log out, and explain the steps of a login.

The functions take a `LoginRequest`, and know nothing of arguments and terminals: they pass each
line of their output to a function. No token is in any of them.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from genmcp._core.auth.discovery import DiscoveredServer, find_resource
from genmcp._core.auth.flow import RejectedAttempt, authorize, explain
from genmcp._core.auth.metadata import ResourceMetadata
from genmcp._core.auth.record import Record, record_key
from genmcp._core.auth.revocation import log_out
from genmcp._core.auth.steps import Failure, FlowFailed, FlowFinding, Steps
from genmcp.cli.output import as_command_options, one_line
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.auth.fetcher import Fetcher
from genmcp.client.auth.oauth import OAuth, flow_options, redirect_uri_of
from genmcp.client.auth.runner import FlowRunner
from genmcp.client.client import Client
from genmcp.client.errors import Forbidden, Unauthorized
from genmcp.client.options import ClientOptions

T = TypeVar("T")
WriteLine = Callable[[str], None]

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A login at one server.

    Args:
        url: the URL of the MCP server.
        oauth: the settings of the login, and where its tokens are stored.
        client: the options of the client that calls the server.
        browser: whether to open a browser, beside printing the URL.
    """

    url: str
    oauth: OAuth
    client: ClientOptions = ClientOptions()
    browser: bool = True

    @property
    def key(self) -> str:
        """The name of the record."""
        return record_key(self.url, self.oauth.name)

    async def run(self, steps: Steps[T], prompt: UserPrompt | None = None) -> T:
        """Run the steps of a flow for this login."""
        fetcher = Fetcher(self.oauth.fetch_timeout)
        return await FlowRunner(self.key, self.oauth.tokens, fetcher, prompt).run(steps)


async def log_in(request: LoginRequest, write: WriteLine) -> None:
    """Log in, store the tokens, and describe them.

    Raises:
        ClientError: the server cannot be reached.
        FlowFailed: the login failed.
    """
    oauth = request.oauth
    rejection = await _probe(request)
    if rejection is None and await _find_login(request) is None:
        raise FlowFailed("the server asks for no login")
    prompt = UserPrompt(
        redirect_uri_of(oauth), timeout=oauth.login_timeout, browser=request.browser
    )
    record = await request.run(
        authorize(flow_options(oauth, request.url, _ignore), rejection), prompt
    )
    write(f"logged in at {one_line(record.issuer)}")
    for label, text in _describe(record):
        write(f"  {label:<15}{text}")


async def log_out_of(request: LoginRequest, write: WriteLine) -> bool:
    """Revoke the tokens, remove the record, and return whether all of it succeeded."""
    outcome = await request.run(log_out(flow_options(request.oauth, request.url, _ignore)))
    if outcome.record is None or outcome.record.access_token is None:
        write(f"there is no login for {request.url}")
        return True
    write(f"logged out of {one_line(outcome.record.issuer)}")
    for problem in outcome.problems:
        write(f"  {one_line(problem)}")
    return not outcome.problems


async def explain_login(request: LoginRequest, write: WriteLine) -> bool:
    """Write the findings of each step of a login, and return whether it would succeed.

    It registers and stores nothing, and opens no browser.

    Raises:
        ClientError: the server cannot be reached.
    """

    def observe(finding: FlowFinding) -> None:
        for line in _finding_lines(finding):
            write(line)

    failure = ""
    rejection = await _probe(request)
    options = flow_options(request.oauth, request.url, observe)
    try:
        if rejection is None:
            observe(FlowFinding("server", "answers without a token", request.url))
            if await _find_login(request) is None:
                write("The server asks for no login.")
                return True
        found = await request.run(explain(options, rejection))
        for finding in _server_findings(found):
            observe(finding)
        failure = _missing_proof(request, rejection)
    except FlowFailed as failed:
        failure = as_command_options(str(failed))
    observe(_stored_finding(await request.oauth.tokens.get(request.key)))
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
    options = flow_options(request.oauth, request.url, _ignore)
    try:
        return await request.run(find_resource(options, None))
    except FlowFailed as failed:
        if failed.failure is Failure.RESOURCE:  # another server of the same host
            return None
        raise


async def _probe(request: LoginRequest) -> RejectedAttempt | None:
    """Return the response of the server to a client without a token, None if it accepts one.

    Raises:
        ClientError: the server cannot be reached, or responded with another error.
    """
    client = Client(request.url, options=request.client)
    try:
        await client.open()
    except (Unauthorized, Forbidden) as error:
        return RejectedAttempt(status=error.status, headers=[*error.headers.items()])
    finally:
        await client.close()
    return None


def _ignore(finding: FlowFinding) -> None:
    """Report nothing: the error of a flow has its cause."""


def _missing_proof(request: LoginRequest, rejection: RejectedAttempt | None) -> str:
    """Return why the server would reject the token of a login, "" if it would accept it."""
    challenge = rejection.challenge if rejection else None
    if challenge is None or challenge.scheme.lower() != "dpop" or request.oauth.dpop:
        return ""
    return "the server accepts only tokens that are bound to a key (--dpop)"


def _finding_lines(finding: FlowFinding) -> Iterator[str]:
    """Yield the lines of a finding, with the URL and the advice below the text."""
    mark, text = ("ok", finding.text) if finding.ok else ("--", as_command_options(finding.text))
    yield f"{mark}  {finding.topic:<22}{one_line(text)}"
    for text in (finding.url, as_command_options(finding.advice)):
        if text:
            yield f"{'':26}{one_line(text)}"


def _server_findings(found: DiscoveredServer) -> Iterator[FlowFinding]:
    """Yield the findings in the metadata of the authorization server."""
    server = found.server
    methods = server.code_challenge_methods_supported or ()
    listed = f"listed: {', '.join(methods) or 'none'}"
    yield FlowFinding("PKCE", listed, ok="S256" in methods)
    ways = {
        "client id metadata documents": server.client_id_metadata_document_supported,
        "dynamic registration": server.registration_endpoint is not None,
        "--client-id": True,
    }
    text = ", ".join(way for way, possible in ways.items() if possible)
    yield FlowFinding("registration ways", text)
    endpoint = server.revocation_endpoint
    yield FlowFinding(
        "logout", "revokes the tokens" if endpoint else "only removes the tokens here"
    )


def _stored_finding(record: Record | None) -> FlowFinding:
    if record is None:
        return FlowFinding("stored", "none", ok=False)
    described = "; ".join(f"{label} {text}" for label, text in _describe(record))
    text = f"login at {record.issuer}; {described}"
    expired = record.expires is not None and record.expires <= time.time()
    usable = record.access_token is not None and (not expired or record.refresh_token is not None)
    return FlowFinding("stored", text, ok=usable)


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
