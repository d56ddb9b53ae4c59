"""Calls that wait for workflows of Temporal: the extra `temporal`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from genmcp.cancellation import cancel_and_wait
from genmcp.extras import missing_extra
from genmcp.tasks.queues import ExternalQueue, ExternalStatus

try:
    from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
    from temporalio.exceptions import CancelledError, TemporalError, TerminatedError
    from temporalio.service import RPCError, RPCStatusCode
except ImportError as error:
    raise missing_extra("TemporalQueue", "temporal", error) from error

__all__ = ["TemporalQueue"]

_QUERY_TIMEOUT: Final = timedelta(seconds=5)  # no worker of the workflow may be there to respond


class TemporalQueue(ExternalQueue):
    """The workflows of a Temporal namespace: `ExternalJob("temporal", workflow_id)`.

    The end of a workflow is pushed by the server. Its progress is polled, by a query that returns a
    dict with "current", "total" and "message".

    Args:
        connect: returns a client: `lambda: Client.connect("localhost:7233")`.
        progress_query: the name of that query. None (the default): progress is not reported.
        poll_interval: seconds between two queries. Default 1.
    """

    scheme = "temporal"

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        *,
        progress_query: str | None = None,
        poll_interval: float = 1.0,
    ) -> None:
        self._connect = connect
        self._progress_query = progress_query
        self._poll_interval = poll_interval
        self._client: Client | None = None
        self._connecting = asyncio.Lock()  # many jobs may be followed from the start

    async def snapshot(self, ref: str) -> ExternalStatus:
        return await self._outcome(await self._handle(ref), wait=False)

    async def watch(self, ref: str) -> AsyncGenerator[ExternalStatus, None]:
        handle = await self._handle(ref)
        ending = asyncio.create_task(self._outcome(handle, wait=True))
        try:
            while not ending.done():
                yield await self._progress(handle)
                await asyncio.wait({ending}, timeout=self._poll_interval)
            yield ending.result()
        finally:
            await cancel_and_wait(ending)

    async def cancel(self, ref: str) -> None:
        try:
            await (await self._handle(ref)).cancel()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # it has ended
                raise

    async def _handle(self, ref: str) -> WorkflowHandle[Any, Any]:
        async with self._connecting:
            self._client = self._client or await self._connect()
        return self._client.get_workflow_handle(ref)

    async def _progress(self, handle: WorkflowHandle[Any, Any]) -> ExternalStatus:
        found: dict[str, Any] = {}
        if self._progress_query is not None:
            with suppress(TemporalError):
                found = await handle.query(self._progress_query, rpc_timeout=_QUERY_TIMEOUT)
        return ExternalStatus("working", *map(found.get, ("current", "total", "message")))

    async def _outcome(self, handle: WorkflowHandle[Any, Any], *, wait: bool) -> ExternalStatus:
        """Return the status of the workflow once it has ended; without *wait*, its present one."""
        try:
            if not wait and (await handle.describe()).close_time is None:
                return await self._progress(handle)
            return ExternalStatus("completed", result=await handle.result())
        except WorkflowFailureError as error:
            cancelled = isinstance(error.cause, CancelledError | TerminatedError)
            return ExternalStatus("cancelled" if cancelled else "failed", error=repr(error.cause))
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return ExternalStatus("failed", error=f"no workflow {handle.id!r}")
            raise
