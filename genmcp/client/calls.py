"""Calls of tools: with the headers they need, their tasks, and a look at what comes back."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from genmcp.client.cache import ResultCache
from genmcp.client.errors import ClientError, RequestTimeout, ServerError
from genmcp.client.hooks import ProgressCallback, ProgressReporter
from genmcp.client.requests import RequestDeadline, Requests
from genmcp.client.tasks import Listen, TaskHandle
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.core.client.events import TaskCreated
from genmcp.errors import HeaderMismatch, MethodNotFound
from genmcp.protocol.tools import CallToolResult, ToolDefinition

__all__ = ["Calls"]

logger = logging.getLogger("genmcp.client")

_LIST: Final = "tools/list"
_CALL: Final = "tools/call"
_OLD_TASKS: Final = "if it wants the tasks of 2025-11-25: this client does not speak those"
#: Seconds that cancelling the task of a call nobody waits for may take.
_GRACE: Final = 2.0


class Calls:
    """Calls the tools of one server."""

    def __init__(
        self, requests: Requests, offers: ToolCatalog, cache: ResultCache, listen: Listen
    ) -> None:
        self._requests = requests
        self._offers = offers
        self._cache = cache
        self._listen = listen
        self._listed = False

    async def tools(self) -> list[ToolDefinition]:
        """Return the tools that can be called; one with a faulty annotation is left out.

        Raises:
            ClientError: as `Requests.listed`.
        """
        tools = await self._requests.listed(_LIST, "tools")
        self._listed = True
        return await self._offers.learn(tools)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        patience: RequestDeadline,
        progress: ProgressCallback | None,
    ) -> CallToolResult:
        """Call a tool, and wait for its result, of its task too.

        A task whose call is given up is cancelled; one that cannot be asked about is not.

        Raises:
            ClientError, McpError: as `begin` and `TaskHandle.wait`.
        """
        reports = None if progress is None else ProgressReporter(progress)
        try:
            result = await self._found(name, arguments, patience, reports)
            if isinstance(result, TaskCreated):
                handle = self.task(result.task.task_id, name)
                try:
                    result = await handle.wait_for(patience, reports)
                except BaseException as error:
                    if not (isinstance(error, ClientError) and error.task):
                        await self._abandon(handle)
                    raise
        except BaseException:
            if reports is not None:
                await reports.cancel()
            raise
        if reports is not None:
            await self._report(reports, patience)
        return result

    async def begin(
        self,
        name: str,
        arguments: Mapping[str, Any],
        patience: RequestDeadline,
        reports: ProgressReporter | None,
    ) -> TaskHandle:
        """Call a tool, and return its task, or what stands for one if it is answered at once.

        Raises:
            ProtocolError: the tool was left out, or its result does not fit.
            ClientError, McpError: as `Requests.answered`.
        """
        found = await self._found(name, arguments, patience, reports)
        if isinstance(found, TaskCreated):
            return self.task(found.task.task_id, name)
        return TaskHandle(self._requests, self._listen, _unchecked, found)

    def task(self, id: str, tool: str | None) -> TaskHandle:
        """Return a handle of the task *id*, whose result is checked if its *tool* is known."""
        check = _unchecked if tool is None else partial(self._check, tool)
        return TaskHandle(self._requests, self._listen, check, id)

    async def _found(
        self,
        name: str,
        arguments: Mapping[str, Any],
        patience: RequestDeadline,
        reports: ProgressReporter | None,
    ) -> CallToolResult | TaskCreated:
        """Call a tool, and return its result, which is checked, or the task it became."""
        if self._offers.mirrors and not self._offers.knows(name):
            async with self._in_time(patience):
                await self._list_once()
        try:
            found = await self._send(name, arguments, patience, reports)
        except ServerError as error:
            self._check_tasks(error)
            # 2026-07-28, Streamable HTTP, "Client Behavior": the tool may be another by now. The
            # call was refused for its headers, so that it has not run.
            if error.code != HeaderMismatch.code or not self._offers.mirrors:
                raise
            self._cache.forget(_LIST)
            async with self._in_time(patience):
                await self.tools()
            found = await self._send(name, arguments, patience, reports)
        if isinstance(found, CallToolResult):
            await self._check(name, found, patience)
        return found

    def _check_tasks(self, error: ServerError) -> None:
        """2025-11-25, tasks, "Tool-Level Negotiation": so is a call refused that wants a task."""
        connection = self._requests.connection
        if error.code == MethodNotFound.code and connection.server.revision == "2025-11-25":
            code, message, data, where = error.code, error.message, error.data, error.where
            raise ServerError(
                code, message, data, where=where, status=error.status, advice=_OLD_TASKS
            ) from error

    async def _send(
        self,
        name: str,
        arguments: Mapping[str, Any],
        patience: RequestDeadline,
        reports: ProgressReporter | None,
    ) -> CallToolResult | TaskCreated:
        found, _ = await self._requests.answered(
            _CALL,
            {"name": name, "arguments": arguments},
            patience,
            reports,
            self._offers.headers(name, arguments),
        )
        if isinstance(found, TaskCreated):
            return found
        result: CallToolResult = found.result
        return result

    async def _check(
        self, name: str, result: CallToolResult, patience: RequestDeadline | None = None
    ) -> None:
        if not self._requests.options.check_output:
            return
        if result.structured_content is not UNSET and not self._offers.knows(name):
            with suppress(RequestTimeout):  # what is here would be lost
                async with self._in_time(patience):
                    await self._list_once()
        await self._offers.check(name, result)

    async def _list_once(self) -> None:
        """Learn what tools there are; a server that does not tell is called as it is."""
        if not self._listed:
            with suppress(ClientError):
                await self.tools()
            self._listed = True

    @asynccontextmanager
    async def _in_time(self, patience: RequestDeadline | None) -> AsyncIterator[None]:
        if patience is None:
            yield
            return
        try:
            async with patience.limit():
                yield
        except TimeoutError:
            where = self._requests.connection.where
            raise RequestTimeout(_LIST, where, patience.total or 0) from None

    async def _report(self, reports: ProgressReporter, patience: RequestDeadline) -> None:
        """Wait until a call that is over is reported, unless its callback takes too long."""
        try:
            async with self._in_time(patience):
                await reports.end()
        except RequestTimeout:
            logger.warning("a callback of progress takes longer than its call may: it is cancelled")
            await reports.cancel()

    async def _abandon(self, handle: TaskHandle) -> None:
        if handle.id is not None and not handle.is_over:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await handle.cancel()


async def _unchecked(_: CallToolResult) -> None:
    """Nothing is known of the tool."""
