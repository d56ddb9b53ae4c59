"""A client for what is asked once, or in order: to check it, or to begin something with it."""

from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage

from benchmarks.load import INITIALIZE, Load, initialized
from benchmarks.processes import Served

__all__ = ["Answer", "begin", "check", "connected", "post"]


@dataclass(frozen=True)
class Answer:
    """The headers and the whole body of a response."""

    headers: HTTPMessage
    body: bytes


def connected(server: Served) -> "closing[HTTPConnection]":
    """Return a connection that the end of a with block closes."""
    return closing(HTTPConnection("127.0.0.1", server.port, timeout=30))


def post(connection: HTTPConnection, load: Load) -> Answer:
    """Send *load* once.

    Raises:
        RuntimeError: the answer was neither 200 nor 202. OSError, HTTPException: none came.
    """
    connection.request("POST", "/mcp", load.body.encode(), dict(load.headers))
    response = connection.getresponse()
    body = response.read()
    if response.status not in (200, 202):
        raise RuntimeError(f"answered {response.status}: {body[:200]!r}")
    return Answer(response.headers, body)


def begin(connection: HTTPConnection) -> str | None:
    """Begin a legacy session and return its id, None if the server has no sessions."""
    session = post(connection, INITIALIZE).headers.get("mcp-session-id")
    if session is not None:
        post(connection, initialized(session))
    return session


def check(server: Served, load: Load, notifications: int = 0) -> bytes:
    """Send *load* once and return the body, which has to be the answer that is to be measured.

    Raises:
        RuntimeError: it holds no result, or not so many *notifications* of progress.
    """
    with connected(server) as connection:
        body = post(connection, load).body
    told = body.count(b'"notifications/progress"')
    if told != notifications:
        raise RuntimeError(f"{told} notifications came, not {notifications}")
    if b'"result":' not in body or b'"isError":true' in body:
        raise RuntimeError(f"not the answer that is measured: {body[-200:]!r}")
    return body
