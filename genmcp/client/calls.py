"""Tool calls: their headers, tasks and progress, and the check of their results."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import UNSET

from genmcp._core.client.events import TaskCreated
from genmcp.client.cache import ResultCache
from genmcp.client.errors import ClientError, RequestTimeout, ServerError
from genmcp.client.hooks import ProgressCallback, ProgressReporter
from genmcp.client.requests import RequestDeadline, Requests
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tasks import TaskHandle
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.errors import HeaderMismatch, MethodNotFound
from genmcp.protocol.tools import CallToolResult, ToolDefinition

logger = logging.getLogger("genmcp.client")

_LIST: Final = "tools/list"
_LEGACY_TASKS: Final = (
    "the tool may require a task of 2025-11-25, which this client does not support"
)

_Reporter: TypeAlias = ProgressReporter | None


class ToolCalls:
    """Calls the tools of one server. Owned by a `ClientSession`.

    Args:
        requests: sends the requests.
        tools: the tools that the server has listed.
        cache: the cached results.
        task_stream: returns a change stream for the task of an id.
    """

    def __init__(
        self,
        requests: Requests,
        tools: ToolCatalog,
        cache: ResultCache,
        task_stream: Callable[[str], ChangeStream],
    ) -> None:
        self._requests = requests
        self._tools = tools
        self._cache = cache
        self._task_stream = task_stream
        self._listed = False

    async def tools(self) -> list[ToolDefinition]:
        """Return the tools of the server, except those with invalid annotations.

        Raises:
            ClientError: As for `Requests.list_all`.
        """
        tools = await self._requests.list_all(_LIST, "tools")
        self._listed = True
        return await self._tools.update(tools)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        deadline: RequestDeadline,
        progress: ProgressCallback | None,
    ) -> CallToolResult:
        """Call a tool and return its result. If the call becomes a task, wait for the task.

        Raises:
            ClientError: As for `start` and `TaskHandle.wait`.
        """
        options = self._requests.options
        reporter = (
            None if progress is None else ProgressReporter(progress, options.max_queued_progress)
        )
        try:
            result = await self._call(name, arguments, deadline, reporter)
            if isinstance(result, TaskCreated):
                result = await self._wait_for_task(name, result, deadline, reporter)
        except BaseException:
            if reporter is not None:
                await reporter.cancel()
            raise
        if reporter is not None:
            await self._finish_reports(reporter, deadline)
        return result

    async def start(
        self, name: str, arguments: Mapping[str, Any], deadline: RequestDeadline
    ) -> TaskHandle:
        """Call a tool; return a handle of its task, or of its result if it has returned.

        Raises:
            ProtocolError: The tool was left out of the list, or its result is invalid.
            ClientError: As for `Requests.with_input`.
        """
        result = await self._call(name, arguments, deadline, None)
        if isinstance(result, TaskCreated):
            return self.task(result.task.task_id, name)
        return TaskHandle(self._requests, self._task_stream, None, result)

    def task(self, id: str, tool: str | None) -> TaskHandle:
        """Return a handle of the task *id*; its result is checked if its *tool* is given."""
        check = None if tool is None else partial(self._check, tool)
        return TaskHandle(self._requests, self._task_stream, check, id)

    async def _wait_for_task(
        self, name: str, created: TaskCreated, deadline: RequestDeadline, reporter: _Reporter
    ) -> CallToolResult:
        handle = self.task(created.task.task_id, name)
        try:
            return await handle.wait_until(deadline, reporter)
        except BaseException as error:
            # The caller has no handle: a call that was given up cancels its task. A task that
            # cannot be polled is in the error, and can be resumed.
            if not (isinstance(error, ClientError) and error.task) and not handle.is_over:
                with suppress(ClientError, TimeoutError):
                    async with asyncio.timeout(self._requests.options.task_cancel_timeout):
                        await handle.cancel()
            raise

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        deadline: RequestDeadline,
        reporter: _Reporter,
    ) -> CallToolResult | TaskCreated:
        """Call a tool, and return its checked result or the task it became."""
        tools = self._tools
        # Only the listed definition of a tool says which arguments the headers repeat.
        if tools.mirrors and not tools.has(name):
            async with self._limit(deadline):
                await self._list_once()
        try:
            result = await self._send(name, arguments, deadline, reporter)
        except ServerError as error:
            self._explain_legacy_task(error)
            # 2026-07-28, Streamable HTTP, "Client Behavior": the tool may have changed since it was
            # listed. The call was rejected for its headers, so that it has not run.
            if error.code != HeaderMismatch.code or not tools.mirrors:
                raise
            self._cache.discard(_LIST)
            async with self._limit(deadline):
                await self.tools()
            result = await self._send(name, arguments, deadline, reporter)
        if isinstance(result, CallToolResult):
            await self._check(name, result, deadline)
        return result

    def _explain_legacy_task(self, error: ServerError) -> None:
        """Add advice to the rejection of a call without a required task.

        2025-11-25, tasks, "Tool-Level Negotiation".
        """
        connection = self._requests.connection
        if error.code == MethodNotFound.code and connection.server.revision == "2025-11-25":
            raise ServerError(
                error.code,
                error.message,
                error.data,
                server_name=error.server_name,
                status=error.status,
                advice=_LEGACY_TASKS,
            ) from error

    async def _send(
        self,
        name: str,
        arguments: Mapping[str, Any],
        deadline: RequestDeadline,
        reporter: _Reporter,
    ) -> CallToolResult | TaskCreated:
        response, _ = await self._requests.with_input(
            "tools/call",
            {"name": name, "arguments": arguments},
            deadline,
            reporter,
            self._tools.headers(name, arguments),
        )
        if isinstance(response, TaskCreated):
            return response
        result: CallToolResult = response.result
        return result

    async def _check(
        self, name: str, result: CallToolResult, deadline: RequestDeadline | None = None
    ) -> None:
        if not self._requests.options.check_output:
            return
        if result.structured_content is not UNSET and not self._tools.has(name):
            # If listing the tools times out, the result is returned unchecked.
            with suppress(RequestTimeout):
                async with self._limit(deadline):
                    await self._list_once()
        await self._tools.check(name, result)

    async def _list_once(self) -> None:
        """List the tools, unless that was tried before.

        If listing fails, tools are called without headers, and their results are not checked.
        """
        if not self._listed:
            with suppress(ClientError):
                await self.tools()
            self._listed = True

    @asynccontextmanager
    async def _limit(self, deadline: RequestDeadline | None) -> AsyncIterator[None]:
        if deadline is None:
            yield
            return
        try:
            async with deadline.limit():
                yield
        except TimeoutError:
            name = self._requests.connection.server_name
            raise RequestTimeout(_LIST, name, deadline.total or 0) from None

    async def _finish_reports(self, reporter: ProgressReporter, deadline: RequestDeadline) -> None:
        """Wait for the progress callback of a call that has returned, until the deadline."""
        try:
            async with self._limit(deadline):
                await reporter.end()
        except RequestTimeout:
            logger.warning("a progress callback exceeds the timeout of its call: it is cancelled")
            await reporter.cancel()
