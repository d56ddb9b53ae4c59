"""What failed below, as the one error a caller sees."""

from genmcp.client.errors import (
    ClientError,
    Closed,
    HttpStatus,
    OutcomeUnknown,
    ProtocolFault,
    ServerSaid,
    SessionEnded,
)
from genmcp.core.client_dispatch import Failure
from genmcp.errors import McpError, OutOfTurn

__all__ = ["failure_of", "said"]


def said(
    error: BaseException | None, what: str, where: str, may_have_run: bool = False
) -> ClientError:
    """Return what a caller sees of *error*, which ended *what*; None: this side ended it.

    What may have been carried out, and was broken off, has an unknown outcome; an answer that says
    so itself, an HTTP status for one, says more than that.
    """
    match error:
        case None | Closed():
            return Closed(where)
        case HttpStatus() | ProtocolFault() | ServerSaid() | OutcomeUnknown():
            return error
        case ClientError() if not may_have_run:
            return error
        case ClientError():
            return OutcomeUnknown(what, where, error)
        case McpError():
            return ServerSaid(error.code, error.message, error.data, where=where)
        case OutOfTurn() if error.__cause__ is not None:
            return said(error.__cause__, what, where)
        case _:
            return ProtocolFault(f"{what}: {error}", where)


def failure_of(error: ClientError) -> Failure:
    """Return *error*, of a transport, as the machine takes it."""
    status = error.status if isinstance(error, HttpStatus) else None
    return Failure(error, status=status, sent=error.sent, session=isinstance(error, SessionEnded))
