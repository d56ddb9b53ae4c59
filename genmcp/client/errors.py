"""The errors of a client, one class for each cause.

    ClientError               `server_name`; `sent`: the message may have reached the server
    ├── ConnectError          no connection could be opened; nothing was sent
    ├── HttpStatusError       an HTTP error status, with its headers and body
    │   ├── Unauthorized      401: authentication is required
    │   ├── Forbidden         403: `scopes` are needed, or access is denied for another reason
    │   └── NotFound          404: there is no MCP server at this URL
    │       └── SessionEnded  ... or the server at this URL does not know the session
    ├── AuthorizationFailed   no token could be obtained; the request was not processed
    │   ├── IssuerMismatch        the metadata is of another authorization server
    │   ├── ResourceMismatch      the metadata is of another resource
    │   ├── PkceUnsupported       the authorization server does not list S256
    │   ├── RegistrationFailed    there is no client id for the authorization server
    │   └── AuthorizationDenied   the user or the authorization server denied the request
    ├── ConnectionLost        the connection broke
    ├── RequestTimeout        a timeout expired
    ├── UnsupportedRevision   the server supports no revision that the client may use
    ├── InputFailed           the handler did not answer an input request of the server
    ├── ProtocolError         the server violated the protocol, or a limit of the client
    ├── ServerError           a JSON-RPC error: the server's code, message and data
    ├── ProcessExited         the server's process has exited
    ├── TaskCancelled         the task of a call was cancelled, by this client or another
    ├── OutcomeUnknown        the response to a request was lost: it may have had effects
    └── ClientClosed          the client is closed

Each message names the cause, the server, and where possible the remedy. These errors are raised
singly, and never within an exception group.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from genmcp.core.auth.challenges import parse_challenges, scopes_of
from genmcp.core.auth.steps import Failure, FlowFailed
from genmcp.core.client.events import HandshakeTimeout, NoCommonRevision, SendMessage
from genmcp.core.client.lifecycle import TransportFailure
from genmcp.errors import GenmcpError, McpError

_EXCERPT = 200  # characters of a response body that an error message contains
_TRANSIENT: Final = (408, 425, 429)  # HTTP statuses, besides 500 and above


class ClientError(GenmcpError):
    """Base class of the errors of a client: a request failed, or a server cannot be reached.

    Cure: match the subclass; if `sent` is False, the request can be repeated.

    A call may take several requests: the first, answers to questions of the server, polls of its
    task, and the resumption of a broken response. `sent` and `task` are about the whole call.

    Attributes:
        server_name: the server, as messages show it: a URL or a command, without secrets.
        sent: whether the server may have processed a part of the call. False only if the first
            request did not reach the server, or was rejected before it was processed: by HTTP 401
            or 403, or since its session had ended. Then it is safe to repeat the call.
        task: the id of the task that the call became, if the server could not be asked for its
            state. The task may continue: the client has not cancelled it. `sent` is True. Use
            `client.task(error.task)` to wait for it again.
    """

    sent: bool = True
    task: str | None = None

    def __init__(self, message: str, server_name: str) -> None:
        super().__init__(message)
        self.server_name = server_name


class ConnectError(ClientError):
    """No connection to the server could be opened. The request can be repeated.

    Cure: start the server, or correct host, port and scheme of the URL.
    """

    sent = False

    def __init__(self, server_name: str, reason: str) -> None:
        super().__init__(f"cannot reach {server_name}: {reason}", server_name)
        self.reason = reason


class HttpStatusError(ClientError):
    """The server, or a proxy in front of it, responded with an HTTP error.

    Cure: the message has the beginning of the body; look at the log of the server or proxy.

    Attributes:
        status: the HTTP status.
        headers: the headers of the response, with names in lower case.
        content: the body of the response; the message contains the beginning of it.
    """

    advice: str | None = None

    def __init__(
        self,
        server_name: str,
        status: int,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        self.content = content
        start = " ".join(content[: 4 * _EXCERPT].decode("utf-8", "replace").split())[:_EXCERPT]
        excerpt = f": {start}" if start else ""
        advice = f" ({self.advice})" if self.advice else ""
        super().__init__(f"{server_name} answered HTTP {status}{excerpt}{advice}", server_name)


class Unauthorized(HttpStatusError):
    """The server requires authentication (HTTP 401).

    Cure: pass `auth=`, or run `genmcp login URL`; `genmcp auth URL` says what the server demands.
    """

    sent = False
    advice = "give credentials with auth=; the log of the server says why it refuses those it got"

    @property
    def challenge(self) -> str | None:
        """The `WWW-Authenticate` header, which names the expected credentials; None without it."""
        return self.headers.get("www-authenticate")


class Forbidden(HttpStatusError):
    """The server denied access (HTTP 403).

    Cure: ask for `scopes`, if there are any; otherwise the server's `Security` does not allow this
    host or origin, or the user may not.
    """

    sent = False

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the operation needs, if the server names them; the token lacks one."""
        challenges = parse_challenges([self.headers.get("www-authenticate", "")])
        named = (challenge.params.get("scope") for challenge in challenges)
        return tuple(dict.fromkeys(scope for text in named for scope in scopes_of(text)))


class NotFound(HttpStatusError):
    """There is no MCP server at this URL (HTTP 404).

    Cure: correct the path; the usual one is `/mcp`.
    """

    advice = "is the path of the URL right?"


class SessionEnded(NotFound):
    """The server no longer has the session, and did not process the request.

    2025-11-25, transports, "Session Management": the server responds with HTTP 404, and the client
    begins a new session. Servers made with the TypeScript SDK respond with HTTP 400 instead.

    Cure: the client opens a new session at its next request; call again.
    """

    sent = False
    advice = "the session has ended; open a new one"


class AuthorizationFailed(ClientError):
    """No access token could be obtained. The message names the option that helps, if there is one.

    The request was not processed, since authorization precedes processing. If the server has begun
    to process the call before, the error is OutcomeUnknown, and this one its `__cause__`.

    Cure: follow the message; `genmcp auth URL` shows each step.

    Attributes:
        error: the error code of the authorization server, such as `invalid_client`, or "".
    """

    sent = False

    def __init__(self, server_name: str, reason: str, error: str = "") -> None:
        super().__init__(f"authorization at {server_name} failed: {reason}", server_name)
        self.reason = reason
        self.error = error


class IssuerMismatch(AuthorizationFailed):
    """Metadata or a redirect is of another authorization server than expected.

    RFC 8414, 3.3, and RFC 9207, 2.4: neither is used, since it may be an attempt to obtain a code
    or a secret of another authorization server.

    Cure: set `issuer` exactly as the authorization server names itself, or mend the metadata.
    """


class ResourceMismatch(AuthorizationFailed):
    """The protected resource metadata is of another resource (RFC 9728, 3.3).

    Cure: use the URL that the metadata names; if the server is wrong, set `resource`.
    """


class PkceUnsupported(AuthorizationFailed):
    """The metadata of the authorization server does not list the PKCE method S256.

    Cure: set `assume_pkce=True` if you know that it has S256.
    """


class RegistrationFailed(AuthorizationFailed):
    """There is no client id for the authorization server, or it rejected the registration.

    Cure: register a client there, and set `client_id`, and `redirect_uri` as registered.
    """


class AuthorizationDenied(AuthorizationFailed):
    """The user or the authorization server denied the authorization request.

    Cure: log in again, and accept; otherwise the user lacks a right.
    """


_AUTHORIZATION: Final[Mapping[Failure, type[AuthorizationFailed]]] = {
    Failure.ISSUER: IssuerMismatch,
    Failure.RESOURCE: ResourceMismatch,
    Failure.PKCE: PkceUnsupported,
    Failure.REGISTRATION: RegistrationFailed,
    Failure.DENIED: AuthorizationDenied,
}


def authorization_error(failed: FlowFailed, server_name: str) -> AuthorizationFailed:
    """Return the error of a client for a flow that failed."""
    kind = _AUTHORIZATION.get(failed.failure, AuthorizationFailed)
    return kind(server_name, str(failed), failed.error)


class ConnectionLost(ClientError):
    """The connection broke.

    Cure: find out whether the request had its effect, and repeat it if it had not.
    """

    def __init__(self, server_name: str, reason: str) -> None:
        super().__init__(f"the connection to {server_name} broke: {reason}", server_name)
        self.reason = reason


class RequestTimeout(ClientError):
    """A timeout of *seconds* expired.

    Cure: raise `Client(timeout=)`, or `ClientOptions.idle_timeout` for a server that is silent; the
    work may continue there.

    Args:
        what: the request, such as `tools/call`.
        server_name: the server.
        seconds: the timeout.
        silent: True if `idle_timeout` expired, False if `timeout` expired.
    """

    def __init__(
        self, what: str, server_name: str, seconds: float, *, silent: bool = False
    ) -> None:
        happened = "was silent for" if silent else "took longer than"
        super().__init__(f"{what} {happened} {seconds:g} s at {server_name}", server_name)
        self.seconds = seconds


class UnsupportedRevision(ClientError):
    """The server supports no revision that the client may use; the message has the remedy.

    Cure: remove `ClientOptions.revision`, or upgrade the server.

    Attributes:
        supported: the revisions that the server names; empty if it names none.
    """

    sent = False

    def __init__(self, reason: str, server_name: str, supported: Sequence[str] = ()) -> None:
        super().__init__(f"{server_name}: {reason}", server_name)
        self.supported = tuple(supported)


class InputFailed(ClientError):
    """A call was given up: the handler did not answer an input request of the server.

    A hook failed or refused, or the request is not supported; `__cause__` is this McpError.
    2026-07-28 has no error response to an input request. A server of an earlier revision receives
    the error, and may do without the answer; this is raised if it then fails the call.

    Cure: give the client a `handler` with the method for this question.

    Attributes:
        code, message, data: those of the McpError.
    """

    def __init__(self, error: McpError, server_name: str) -> None:
        super().__init__(f"{error.message} ({error.code})", server_name)
        self.code = error.code
        self.message = error.message
        self.data = error.data


class ProtocolError(ClientError):
    """The server violated the protocol, or a limit of the client; the message describes how.

    Cure: report it to the author of the server.
    """

    def __init__(self, what: str, server_name: str) -> None:
        super().__init__(f"{server_name} broke the protocol: {what}", server_name)


class ServerError(ClientError):
    """The server responded with a JSON-RPC error.

    `__cause__` is the HttpStatusError that had the JSON-RPC error as its body; None without one.

    Cure: the code is in the table above; the text is the server's.

    Attributes:
        code: the JSON-RPC error code.
        message: the server's message.
        data: the server's data, decoded JSON.
        status: the HTTP status; 200 on other transports.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: Any = None,
        *,
        server_name: str = "",
        status: int = 200,
    ) -> None:
        super().__init__(f"{message} ({code})", server_name)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class TaskCancelled(ClientError):
    """The task *id* of a call was cancelled: by this client, another client, or the server.

    Cure: call again, if the result is still needed.
    """

    def __init__(self, id: str, server_name: str, reason: str | None = None) -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"the task {id} at {server_name} was cancelled{why}", server_name)
        self.id = id


class ProcessExited(ClientError):
    """The process of a stdio server has exited.

    Cure: run the command by itself to see its output; look for a missing package or variable, which
    `Command(env=)` sets.

    Args:
        server_name: the command.
        status: the exit status; negative: the number of the signal that killed it; None: unknown.
        last_line: the last line of its stderr; empty without output.
        advice: the remedy, if there is one.
    """

    def __init__(
        self, server_name: str, status: int | None, last_line: str = "", advice: str = ""
    ) -> None:
        self.status = status
        self.last_line = last_line
        output = f"; last line of stderr: {last_line}" if last_line else ""
        hint = f" ({advice})" if advice else ""
        super().__init__(f"{server_name} has ended, {_exit(status)}{output}{hint}", server_name)

    def with_advice(self, advice: str) -> "ProcessExited":
        """Return this error with *advice*."""
        return ProcessExited(self.server_name, self.status, self.last_line, advice)


class OutcomeUnknown(ClientError):
    """The response to a request was lost. The request may have been carried out.

    Whether the request can be repeated safely depends on the tool. `__cause__` is the error that
    lost the response: the connection broke, or the response or the task could not be asked for
    again, such as for want of an access token.

    Cure: look whether it had its effect, or make the tool idempotent by an idempotency key; then
    repeat it.
    """

    def __init__(self, what: str, server_name: str, cause: BaseException | str) -> None:
        super().__init__(f"{what} may or may not have been carried out: {cause}", server_name)
        self.__cause__ = cause if isinstance(cause, BaseException) else None


class ClientClosed(ClientError):
    """The client is closed or not open yet.

    If *sent* is true, the request was pending when the client was closed, and may have been carried
    out.

    Cure: use the client inside of `async with`, and keep that open while requests run.
    """

    def __init__(self, server_name: str, *, sent: bool = False, state: str = "closed") -> None:
        ran = ": the pending request may or may not have been carried out" if sent else ""
        super().__init__(f"the client of {server_name} is {state}{ran}", server_name)
        self.sent = sent


def as_client_error(
    error: BaseException | None, what: str, server_name: str, may_have_run: bool = False
) -> ClientError:
    """Return the ClientError to raise for *error*.

    If the server may have processed the request, the result is an OutcomeUnknown, unless *error* is
    a response to this request, which is more specific.

    Args:
        error: the failure of the transport or the state machine; None: the client was closed.
        what: the request, such as `tools/call`.
        server_name: the server.
        may_have_run: whether the server may have processed the request.
    """
    found: ClientError
    match error:
        case None | ClientClosed():
            return ClientClosed(server_name, sent=may_have_run)
        case ClientError():
            found = error
        case HandshakeTimeout():
            found = RequestTimeout("connecting", server_name, error.seconds)
        case NoCommonRevision():
            found = UnsupportedRevision(str(error), server_name, error.supported)
        case McpError():
            found = ServerError(
                error.code,
                error.message,
                error.data,
                server_name=server_name,
                status=error.status,
            )
        case _:
            found = ProtocolError(f"{what}: {error}", server_name)
    specific = isinstance(found, HttpStatusError | ProtocolError | ServerError | OutcomeUnknown)
    # With `sent` False it is that of another request: of the handshake of a new session.
    if may_have_run and not (specific and found.sent):
        return OutcomeUnknown(what, server_name, found)
    return found


def error_after_first_response(error: ClientError, what: str) -> ClientError:
    """Return the error to raise for a call that needed several requests; *error* ended a later one.

    The first request was answered, so the server has begun to process the call. Therefore `sent` of
    the returned error is true, even if the later request was not sent. *what* names the call.
    """
    match error:
        case ClientError(sent=True):
            return error
        case ClientClosed():
            return ClientClosed(error.server_name, sent=True)
        case HttpStatusError():
            error.sent = True
            return error
        case _:
            return OutcomeUnknown(what, error.server_name, error)


def as_task_error(error: ClientError, task: str) -> ClientError:
    """Return the error to raise if *task* cannot be polled because of *error*.

    `ClientError.task` of the returned error is the id *task*. The task continues on the server, and
    the caller can wait for it again by this id.
    """
    if isinstance(error, OutcomeUnknown | RequestTimeout):
        cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
        error = OutcomeUnknown(f"the task {task}", error.server_name, cause or error)
    else:
        error = error_after_first_response(error, f"the task {task}")
    error.task = task
    return error


def is_transient(error: ClientError) -> bool:
    """Return whether the same request may succeed later.

    The network, the server or the authorization server had trouble, or a function that returns
    access tokens has raised an OSError.
    """
    if isinstance(error, HttpStatusError | ServerError):
        return error.status in _TRANSIENT or error.status >= 500
    if isinstance(error, AuthorizationFailed):
        cause = error.__cause__
        return isinstance(cause, OSError) or (
            isinstance(cause, FlowFailed) and cause.failure is Failure.UNAVAILABLE
        )
    return isinstance(error, ConnectionLost | OutcomeUnknown | RequestTimeout | ConnectError)


def transport_failure(error: ClientError) -> TransportFailure:
    """Return *error* of a transport in the form that `ClientDispatch.failed` takes."""
    status = error.status if isinstance(error, HttpStatusError) else None
    return TransportFailure(
        error, status=status, sent=error.sent, session=isinstance(error, SessionEnded)
    )


def lost_response_error(
    message: SendMessage, error: ClientError, *, delivered: bool = False
) -> ClientError:
    """Return the error to report for *message*, whose response was lost because of *error*.

    This is OutcomeUnknown if the server may have received the message: if *delivered* is true, or
    if *error* is ConnectionLost. Otherwise it is *error*.
    """
    if delivered or isinstance(error, ConnectionLost):
        return OutcomeUnknown(message.method or "the request", error.server_name, error)
    return error


def _exit(status: int | None) -> str:
    if status is None:
        return "with unknown exit status"
    if status >= 0:
        return f"with exit status {status}"
    return f"by signal {-status}"
