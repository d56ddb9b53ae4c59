"""What failed below, as the one error a caller sees."""

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    HttpStatusError,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    ServerError,
    SessionEnded,
)
from genmcp.core.client.dispatch import TransportFailure
from genmcp.core.client.events import Send
from genmcp.errors import McpError

__all__ = ["afterwards", "failure_of", "left", "said", "unanswered"]


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
