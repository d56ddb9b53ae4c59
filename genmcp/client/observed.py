"""The connection of a client with telemetry: observes requests, and sends the trace context on."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp._mux.telemetry import RequestFailure
from genmcp.client.connection import Connection, Response
from genmcp.client.errors import ClientError, ServerError
from genmcp.core.client import events
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import LEGACY
from genmcp.telemetry.client import SentRequest

logger = logging.getLogger("genmcp.client")

_LISTEN: Final = "subscriptions/listen"  # lasts as long as the stream of changes
_LEGACY: Final = frozenset(revision.version for revision in LEGACY)


class ObservedConnection(Connection):
    """A connection whose requests `ClientOptions.telemetry` observes.

    Args:
        arguments: as for `Connection`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.options.telemetry is not None  # it is the reason for this class
        self._telemetry = self.options.telemetry
        self._session: tuple[str, float] | None = None  # the revision, and when it was negotiated

    async def open(self) -> None:
        """Connect, as `Connection.open` does."""
        await super().open()
        self._session = self.server.revision, time.perf_counter()

    async def close(self, reason: BaseException | None = None) -> None:
        """Close the connection, as `Connection.close` does."""
        session, self._session = self._session, None
        await super().close(reason)
        if session is not None and session[0] in _LEGACY:
            seconds = time.perf_counter() - session[1]
            _call(self._telemetry.session_ended, self.server_name, session[0], seconds)

    async def request(self, method: str, params: Any, **options: Any) -> Response:
        """Send a request, as `Connection.request` does."""
        if method == _LISTEN or self._session is None:
            return await super().request(method, params, **options)
        telemetry = self._telemetry
        request = self._describe(method, params, self._session[0])
        mark = _call(telemetry.request_began, request)
        failure: RequestFailure | None = None
        try:
            trace = _call(telemetry.trace_context, mark)
            response = await super().request(method, _with_trace(params, trace), **options)
            if isinstance(response, events.Answered) and getattr(
                response.result, "is_error", False
            ):
                failure = RequestFailure(kind="tool_error")
            return response
        except asyncio.CancelledError as error:
            failure = RequestFailure(kind="cancelled", raised=error)
            raise
        except ClientError as error:
            code = error.code if isinstance(error, ServerError) else None
            failure = RequestFailure(kind="error", message=str(error), code=code, raised=error)
            raise
        finally:
            _call(telemetry.request_ended, request, failure, mark)
            failure = None  # its traceback refers to this frame: a reference cycle

    def _describe(self, method: str, params: Any, revision: str) -> SentRequest:
        given = params if isinstance(params, Mapping) else {}
        return SentRequest(
            method=method,
            name=given.get("name"),
            uri=given.get("uri"),
            server=self.server_name,
            revision=revision,
        )


def _with_trace(params: Any, trace: Mapping[str, str] | None) -> Any:
    """Return *params* with the members of *trace* in `_meta`, unless the caller has set them."""
    if not trace:
        return params
    if isinstance(params, RequestParams):
        set_here = {name: value for name, value in trace.items() if _is_unset(params, name)}
        meta = msgspec.structs.replace(params.meta, **set_here)
        return msgspec.structs.replace(params, meta=meta)
    given = params or {}
    return {**given, "_meta": {**trace, **given.get("_meta", {})}}


def _is_unset(params: RequestParams, name: str) -> bool:
    return getattr(params.meta, name, "") is None


def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception:
        logger.exception("telemetry: %r failed", method)
    return None
