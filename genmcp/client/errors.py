"""What can go wrong between a client and a server, one class a cause.

    ClientError               `where` is the server; `sent` whether the message may have arrived
    ├── ConnectError          no connection came about; nothing was sent
    │   └── ConnectionRefused ... nobody listens there
    ├── HttpStatusError       an HTTP status that is an error; carries it and the body
    │   ├── Unauthorized      401: the server wants to know who asks
    │   └── NotFound          404: there is no server at this URL
    │       └── SessionEnded  ... there is one, but it does not know the session (any more)
    ├── ConnectionLost        the connection broke
    ├── RequestTimeout        the time that was allowed ran out
    ├── TooManyRequests       as many requests are unanswered as may be; nothing was sent
    ├── ProtocolError         the server broke the protocol
    │   ├── MessageTooLarge   ... or sent a message larger than the client's limit
    │   └── ListTooLong       ... or a list larger than the client's limits
    ├── ServerError           a JSON-RPC error: the server's own code, message and data
    ├── ProcessExited         the server's process is over; carries its exit status
    ├── TaskCancelled         the task of a call was cancelled, here or elsewhere
    ├── OutcomeUnknown        the connection broke while a request ran: it may have had effects
    └── ClientClosed          the client is closed

Each says what happened, where, and what can be done. None of them is ever in an exception group.
"""

import signal
from collections.abc import Mapping
from typing import Any

from genmcp.core.client.dispatch import TransportFailure
from genmcp.core.client.events import Send
from genmcp.errors import GenmcpError, McpError

__all__ = [
    "ClientClosed",
    "ClientError",
    "ConnectError",
    "ConnectionLost",
    "ConnectionRefused",
    "HttpStatusError",
    "ListTooLong",
    "MessageTooLarge",
    "NotFound",
    "OutcomeUnknown",
    "ProcessExited",
    "ProtocolError",
    "RequestTimeout",
    "ServerError",
    "SessionEnded",
    "TaskCancelled",
    "TooManyRequests",
    "Unauthorized",
    "afterwards",
    "failure_of",
    "left",
    "said",
    "unanswered",
]

_EXCERPT = 200  # characters of a foreign body that an error shows


class ClientError(GenmcpError):
    """A request that failed, or a server that cannot be reached.

    `task` is the id of a task that was waited for, and of which is not known how it stands:
    `client.task(error.task)` goes on.
    """

    sent: bool = True
    task: str | None = None

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class ConnectError(ClientError):
    """No connection to the server came about; the same request may be tried again."""

    sent = False

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"cannot reach {where}: {reason}", where)
        self.reason = reason


class ConnectionRefused(ConnectError):
    """Nobody listens there."""

    def __init__(self, where: str, reason: str = "connection refused") -> None:
        super().__init__(where, f"{reason}; is the server running, and is the port right?")


class HttpStatusError(ClientError):
    """The server, or something before it, answered with an HTTP error.

    `headers` have names in lower case; `content` is the body, of which the text has the beginning.
    """

    advice: str | None = None

    def __init__(
        self,
        where: str,
        status: int,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        self.content = content
        start = " ".join(content[: 4 * _EXCERPT].decode("utf-8", "replace").split())[:_EXCERPT]
        said = f": {start}" if start else ""
        advice = f" ({self.advice})" if self.advice else ""
        super().__init__(f"{where} answered HTTP {status}{said}{advice}", where)


class Unauthorized(HttpStatusError):
    """The server wants to know who asks; `challenge` is its `WWW-Authenticate`."""

    sent = False
    advice = "give credentials: an authorization header, or an httpx client that adds it"

    @property
    def challenge(self) -> str | None:
        """How the server wants to be told, if it said so."""
        return self.headers.get("www-authenticate")


class NotFound(HttpStatusError):
    """Nothing is at this URL, or nothing that speaks the Model Context Protocol."""

    advice = "is the path of the URL right?"


class SessionEnded(NotFound):
    """The server no longer has the session; the client has to begin a new one.

    2025-11-25, transports, "Session Management": HTTP 404. The TypeScript SDK responds with 400.
    """

    sent = False
    advice = "the session is over; a new one has to be begun"


class ConnectionLost(ClientError):
    """The connection broke: what was under way on it is over."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the connection to {where} broke: {reason}", where)
        self.reason = reason


class RequestTimeout(ClientError):
    """It took longer than it was allowed to; `seconds` is how long that was.

    silent: how long without a word (`idle_timeout`), not in all.
    """

    def __init__(self, what: str, where: str, seconds: float, *, silent: bool = False) -> None:
        happened = "was silent for" if silent else "took longer than"
        super().__init__(f"{what} {happened} {seconds:g} s at {where}", where)
        self.seconds = seconds


class TooManyRequests(ClientError):
    """As many requests are unanswered as the option `max_pending` allows; this one was not sent."""

    sent = False

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}", where)


class ProtocolError(ClientError):
    """The server broke the protocol; the message says how."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where} broke the protocol: {what}", where)


class MessageTooLarge(ProtocolError):
    """The server sent a message of more than `limit` bytes; `size` is what is known of it."""

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes or more (max_message: {limit})", where)
        self.size = size
        self.limit = limit


class ListTooLong(ProtocolError):
    """The pages of a list exceed the bytes or items that the client's option *setting* allows."""

    def __init__(self, where: str, method: str, size: int, setting: str, limit: int) -> None:
        what = "bytes" if setting.endswith("bytes") else "items"
        super().__init__(
            f"the list of {method} has {size} {what} or more (ClientOptions.{setting}: {limit})",
            where,
        )
        self.method = method
        self.size = size
        self.limit = limit


class ServerError(ClientError):
    """The server answered with a JSON-RPC error; over HTTP, with *status*.

    Its cause is the `HttpStatusError` in which it came, if it did.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: Any = None,
        *,
        where: str = "",
        status: int = 200,
        advice: str = "",
    ) -> None:
        hint = f"; {advice}" if advice else ""
        super().__init__(f"{message} ({code}){hint}", where)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class TaskCancelled(ClientError):
    """The task `id` of a call was cancelled, by this client or another, or by the server."""

    def __init__(self, id: str, where: str, reason: str | None = None) -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"the task {id} at {where} was cancelled{why}", where)
        self.id = id


class ProcessExited(ClientError):
    """The process of a server over stdio is over.

    status: its exit status; negative: the number of the signal that ended it; None if unknown.
    last_line: the last line it wrote to stderr, empty if none. advice: what can be done.
    """

    def __init__(
        self, where: str, status: int | None, last_line: str = "", advice: str = ""
    ) -> None:
        self.status = status
        self.last_line = last_line
        said = f"; the last it said: {last_line}" if last_line else ""
        hint = f" ({advice})" if advice else ""
        super().__init__(f"{where} has ended, {_how(status)}{said}{hint}", where)

    def advised(self, advice: str) -> "ProcessExited":
        """Return this error with *advice*."""
        return ProcessExited(self.where, self.status, self.last_line, advice)


class OutcomeUnknown(ClientError):
    """The connection broke while a request was under way: it may have been carried out, or not.

    Only who sent it knows whether it can be sent again. `cause` is what broke.
    """

    def __init__(self, what: str, where: str, cause: BaseException | str) -> None:
        super().__init__(f"{what} may or may not have been carried out: {cause}", where)
        self.__cause__ = cause if isinstance(cause, BaseException) else None


class ClientClosed(ClientError):
    """The client is closed, by this side, or not open yet; what was under way then is *sent*."""

    def __init__(self, where: str, *, sent: bool = False, state: str = "closed") -> None:
        ran = ": what was under way may or may not have been carried out" if sent else ""
        super().__init__(f"the client of {where} is {state}{ran}", where)
        self.sent = sent


def _how(status: int | None) -> str:
    if status is None:
        return "nobody knows how"
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def said(
    error: BaseException | None, what: str, where: str, may_have_run: bool = False
) -> ClientError:
    """Return what a caller sees of *error*, which ended *what*; None: this side ended it.

    What may have been carried out, and was broken off, has an unknown outcome; an answer that says
    so itself, an HTTP status for one, says more than that.
    """
    match error:
        case None | ClientClosed():
            return ClientClosed(where, sent=may_have_run)
        case HttpStatusError() | ProtocolError() | ServerError() | OutcomeUnknown():
            return error
        case ClientError() if not may_have_run:
            return error
        case ClientError():
            return OutcomeUnknown(what, where, error)
        case McpError():
            return ServerError(
                error.code, error.message, error.data, where=where, status=error.status
            )
        case _:
            return ProtocolError(f"{what}: {error}", where)


def afterwards(error: ClientError, what: str) -> ClientError:
    """Return what a caller of *what* sees of *error*, by which a later request of it failed.

    The first one was answered: the server has begun, whether or not this one was sent.
    """
    match error:
        case ClientError(sent=True):
            return error
        case ClientClosed():
            return ClientClosed(error.where, sent=True)
        case HttpStatusError():
            error.sent = True
            return error
        case _:
            return OutcomeUnknown(what, error.where, error)


def left(error: ClientError, task: str) -> ClientError:
    """Return what who waits for *task* sees of *error*, by which its server cannot be asked.

    The task goes on, and can be taken up with the error.
    """
    if isinstance(error, OutcomeUnknown | RequestTimeout):
        cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
        error = OutcomeUnknown(f"the task {task}", error.where, cause or error)
    else:
        error = afterwards(error, f"the task {task}")
    error.task = task
    return error


def failure_of(error: ClientError) -> TransportFailure:
    """Return *error*, of a transport, as the machine takes it."""
    status = error.status if isinstance(error, HttpStatusError) else None
    return TransportFailure(
        error, status=status, sent=error.sent, session=isinstance(error, SessionEnded)
    )


def unanswered(message: Send, error: ClientError, *, arrived: bool = False) -> ClientError:
    """Return *error* as the one who waits for the answer to *message* should see it.

    arrived: whether the message did arrive, whatever stands in the way now.
    """
    if arrived or isinstance(error, ConnectionLost):
        return OutcomeUnknown(message.method or "the request", error.where, error)
    return error
