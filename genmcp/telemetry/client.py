"""Telemetry of the requests that a client sends: the interface."""

from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp._mux.telemetry import RequestFailure

__all__ = ["ClientTelemetry", "SentRequest"]


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a client.

    method: the method. name: the tool or prompt. uri: the resource. server: the server as errors
    name it, a URL or a command without its secrets. revision: the negotiated revision.
    """

    method: str
    name: str | None
    uri: str | None
    server: str
    revision: str


class ClientTelemetry:
    """Observes the requests of clients: override the methods for the events of interest.

    Each method is called in the event loop, in the asyncio.Task and the context of the request, and
    must not block. An exception is logged, and changes nothing. Results from the cache, the
    handshake, notifications and streams of changes are not observed.
    """

    def request_began(self, request: SentRequest) -> Any:
        """Handle the start of *request*; return the *mark* for the other methods."""

    def trace_context(self, mark: Any) -> Mapping[str, str]:
        """Return members to add to the `_meta` of the request: `traceparent`, for example.

        Members that the caller has given take precedence.
        """
        return {}

    def request_ended(
        self, request: SentRequest, failure: RequestFailure | None, mark: Any
    ) -> None:
        """Handle the end of *request*; *failure*: None if it succeeded.

        A call that becomes a task ends with its handle; the polls of it are further requests.
        `failure.raised` is the error that the caller gets, None for a result with `isError`.
        """

    def session_ended(self, server: str, revision: str, seconds: float) -> None:
        """Handle the end of a connection with a legacy session, after *seconds*."""
