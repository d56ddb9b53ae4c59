"""The responses of a mux: results and errors, encoded for the revision of the client."""

import logging
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from genmcp._mux.scopes import log_insufficient
from genmcp.channel import Channel, hint_of_name
from genmcp.core.failures import failure_result, http_status_of, is_expected, store_failure
from genmcp.core.request import Request
from genmcp.errors import (
    InsufficientScope,
    InternalError,
    McpError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from genmcp.log_throttle import LogThrottle
from genmcp.protocol.value import Result
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import printable

logger = logging.getLogger("genmcp")

_NOT_STORED: Final = MappingProxyType({"cache-control": "no-store"})
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class EncodedResponse(msgspec.Struct, frozen=True):
    """The response to a request, as JSON, with its HTTP status and headers.

    body: None if the request was cancelled and gets no response. status, headers: used if the
    body is the whole HTTP response. result: the result or error in it. raised: the
    exception of the hook, if any. refusal: the scopes that the client lacks. The whole HTTP
    response is then a challenge for them, in place of the message; there are headers in that case.
    """

    body: bytes | None
    status: int = 200
    headers: Mapping[str, str] = NO_HEADERS
    result: Result | McpError | None = None
    raised: BaseException | None = None
    refusal: InsufficientScope | None = None


TASK_SUSPENDED: Final = EncodedResponse(None)


class Responses:
    """Encodes the responses of one mux, and logs its failures. Owned by the mux."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._warnings = LogThrottle(logger)

    def encode(
        self, request: Request, result: Result | McpError, raised: BaseException | None = None
    ) -> EncodedResponse:
        """Return the response with *result*; *raised*: the exception of the hook, if it failed."""
        revision, id = request.revision, request.id
        if isinstance(result, McpError):
            message = self._encoder.error(revision, id, result)
            status = http_status_of(result, revision)
            return EncodedResponse(message, status, result.headers, result, raised)
        message = self._encoder.response(revision, id, result)
        return EncodedResponse(message, 200, NO_HEADERS, result, raised)

    def result_of(self, request: Request, error: BaseException) -> Result | McpError:
        """Return the result or error of a call that has ended with *error*."""
        result = self.failure(request, error).result
        assert result is not None
        return result

    def failed_call(self, channel: Channel, error: BaseException) -> EncodedResponse:
        """Return the response to the call of *channel*, after its hook has raised *error*."""
        request, access = channel.request, channel.access
        if not isinstance(error, InsufficientScope):
            return self.failure(request, error)
        # Those of the component and those that a hook found to be needed: a client asks its user
        # for all of them at once.
        scopes = () if request.route is None else request.route.scopes
        error = InsufficientScope(*dict.fromkeys((*scopes, *error.scopes)))
        log_insufficient(request, access, error.scopes)
        response = self.failure(request, error)
        # The first steps of a call that has waited for a job or an answer have taken effect: its
        # client must not be invited to repeat it from the beginning.
        has_begun = not scopes or (access is not None and not access.missing(scopes))
        if has_begun and (channel.context.continuation is not None or request.request_state):
            return msgspec.structs.replace(response, status=200)
        return msgspec.structs.replace(response, headers=_NOT_STORED, refusal=error)

    def failure(self, request: Request, error: BaseException) -> EncodedResponse:
        """Return the response to *request*, after its hook has raised *error*."""
        reference = secrets.token_hex(6)
        if isinstance(error, StoreFull):
            self._warnings.log(logging.ERROR, "%s was rejected: %s", request.method, error)
        elif not is_expected(error):
            _log_failure(request, error, reference)
        if not isinstance(error, Exception):
            error = RuntimeError("a hook ended itself")
        try:
            return self.encode(request, failure_result(error, request, reference), error)
        except (TypeError, ValueError, msgspec.MsgspecError) as fault:
            # The data of an McpError come from a hook, and may not be JSON.
            logger.error("an error cannot be encoded [%s]", reference, exc_info=fault)
            internal = InternalError(f"Internal error (reference {reference})", reference=reference)
            return self.encode(request, internal, fault)


def error_of(error: Exception) -> McpError:
    """Return the error response for *error*, which no hook has raised; log a defect."""
    if isinstance(error, McpError):
        return error
    reference = secrets.token_hex(6)
    if isinstance(error, StoreError):
        logger.warning("a request was rejected [%s]: %s", reference, error)
        return store_failure(error, reference)
    logger.error("a request failed [%s]", reference, exc_info=error)
    return InternalError(f"Internal error (reference {reference})", reference=reference)


def _log_failure(request: Request, error: BaseException, reference: str) -> None:
    if (hint := hint_of_name(error)) is not None:
        error.add_note(hint)
    named = f"{request.method} {printable(request.key)}".rstrip()
    if isinstance(error, StoreUnavailable):  # no trace: it is the same for every request
        logger.warning("%s was rejected [%s]: %s", named, reference, error)
    else:
        logger.error("%s failed [%s]", named, reference, exc_info=error)
