"""Requests of a client: repeated requests with input, paginated lists, and cached results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from genmcp._core.client.codec import Params
from genmcp._core.client.events import Answered, InputNeeded, ParamHeaders, TaskCreated
from genmcp._core.client.lifecycle import Timeouts
from genmcp.client.cache import ResultCache
from genmcp.client.connection import Connection
from genmcp.client.errors import (
    ClientError,
    InputFailed,
    ListTooLong,
    ProtocolError,
    RequestTimeout,
    ServerError,
    error_after_first_response,
)
from genmcp.client.handler_runner import Answer, HandlerRunner
from genmcp.client.options import ClientOptions
from genmcp.client.pending import OnProgress, Response
from genmcp.errors import McpError
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    Reference,
)
from genmcp.protocol.resources import ReadResourceResult

Wait: TypeAlias = float | UnsetType | None
"""A timeout in seconds; None: no timeout; UNSET: the timeout of the client's options."""


class RequestDeadline:
    """The deadline of one call, shared by all its requests. Owned by the call.

    Args:
        idle: seconds without progress; None: no limit.
        total: seconds in all, from now on; None: no limit.
    """

    __slots__ = ("_until", "idle", "total")

    def __init__(self, idle: float | None, total: float | None) -> None:
        self.idle = idle
        self.total = total
        self._until = None if total is None else asyncio.get_running_loop().time() + total

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the next request: its total is the time that remains for the call."""
        if self._until is None:
            return Timeouts(idle=self.idle, total=None)
        remaining = self._until - asyncio.get_running_loop().time()
        # Never 0 or less: the request is sent and times out, so the caller gets RequestTimeout.
        return Timeouts(idle=self.idle, total=max(remaining, 0.001), whole=self.total)

    def limit(self) -> asyncio.Timeout:
        """Return a context manager that raises TimeoutError at the deadline."""
        return asyncio.timeout_at(self._until)


async def answers_of(
    handler: HandlerRunner[Any], requests: Mapping[str, InputRequest], server_name: str
) -> dict[str, Answer]:
    """Return the answers to *requests*; see `HandlerRunner.answer_all`.

    Raises:
        InputFailed: The handler refused or failed.
    """
    try:
        return await handler.answer_all(requests)
    except McpError as error:
        raise InputFailed(error, server_name) from error


class Requests:
    """Sends the requests of one session. Owned by a `ClientSession`.

    Args:
        connection: the connection.
        handler: answers the input requests of the server.
        cache: the cached results.
        options: the options of the client.
    """

    def __init__(
        self,
        connection: Connection,
        handler: HandlerRunner[Any],
        cache: ResultCache,
        options: ClientOptions,
    ) -> None:
        self.connection = connection
        self.handler = handler
        self.options = options
        self._cache = cache

    def deadline(self, timeout: Wait = UNSET, idle_timeout: Wait = UNSET) -> RequestDeadline:
        """Return the deadline of a call that starts now. UNSET: the timeout of the options."""
        return RequestDeadline(
            self.options.idle_timeout if idle_timeout is UNSET else idle_timeout,
            self.options.timeout if timeout is UNSET else timeout,
        )

    async def result(self, method: str, params: Params, timeouts: Timeouts | None = None) -> Any:
        """Send a request that needs no input, and return its result.

        Args:
            method: the method.
            params: the params.
            timeouts: the timeouts; None: those of the options.

        Raises:
            ClientError: As for `Connection.request`.
        """
        if timeouts is None:
            timeouts = Timeouts(idle=self.options.idle_timeout, total=self.options.timeout)
        response = await self.connection.request(method, params, timeouts=timeouts)
        return self._complete(method, response)

    async def cached(self, method: str) -> Any:
        """Return the result of a request without params, from the cache if possible.

        Raises:
            ClientError: As for `Connection.request`.
        """

        async def fetch() -> tuple[Any, bool]:
            return await self.result(method, {}), True

        return await self._from_cache(method, "", fetch)

    async def _from_cache(
        self, method: str, key: str, fetch: Callable[[], Awaitable[tuple[Any, bool]]]
    ) -> Any:
        """Return the cached result, or a result of *fetch*, which also returns whether to cache."""
        result = self._cache.get(method, key)
        if result is None:
            generation = self._cache.generation
            result, cacheable = await fetch()
            if cacheable:
                self._cache.put(method, key, result, generation)
        return result

    async def list_all(self, method: str, member: str) -> list[Any]:
        """Return the items on all pages of a list; *member* is the attribute of a page with items.

        Raises:
            ProtocolError: The list has more than `max_pages` pages, or a cursor is repeated.
            ListTooLong: The list exceeds the bytes or items that the options allow.
            ClientError: As for `Connection.request`.
        """
        try:
            return await self._pages(method, member)
        except ServerError:
            # The cursor of a cached page may have expired: read the list again (2026-07-28,
            # caching, "Interaction with Pagination").
            if self._cache.get(method) is None:
                raise
            self._cache.discard(method)
            return await self._pages(method, member)

    async def _pages(self, method: str, member: str) -> list[Any]:
        found: list[Any] = []
        cursors: set[str | None] = {None}
        cursor: str | None = None
        size = 0
        while True:
            page, length = await self._page(method, cursor)
            size += length
            items = getattr(page, member)
            self._check_length(method, size, len(found) + len(items))
            found += items
            cursor = page.next_cursor
            if cursor is None:
                return found
            if cursor in cursors or len(cursors) >= self.options.max_pages:
                self._cache.discard(method)
                raise ProtocolError(
                    f"the list of {method} does not end after {len(cursors)} pages "
                    "(ClientOptions.max_pages)",
                    self.connection.server_name,
                )
            cursors.add(cursor)

    async def _page(self, method: str, cursor: str | None) -> tuple[Any, int]:
        """Return a page, from the cache or the server, and its size in bytes."""
        key = cursor or ""
        page, size = self._cache.get(method, key), self._cache.size(method, key)
        if page is None:
            generation = self._cache.generation
            params = {} if cursor is None else {"cursor": cursor}
            timeouts = Timeouts(idle=self.options.idle_timeout, total=self.options.timeout)
            response = await self.connection.request(method, params, timeouts=timeouts)
            page = self._complete(method, response)
            size = len(response.raw) if isinstance(response, Answered) else 0
            if size <= self.options.max_list_bytes:
                self._cache.put(method, key, page, generation)
        return page, size

    def _check_length(self, method: str, size: int, items: int) -> None:
        options, name = self.options, self.connection.server_name
        if size > options.max_list_bytes:
            self._cache.discard(method)
            raise ListTooLong(name, method, size, "max_list_bytes", options.max_list_bytes)
        if items > options.max_list_items:
            self._cache.discard(method)
            raise ListTooLong(name, method, items, "max_list_items", options.max_list_items)

    async def with_input(
        self,
        method: str,
        params: Mapping[str, Any],
        deadline: RequestDeadline,
        on_progress: OnProgress | None = None,
        param_headers: ParamHeaders = (),
    ) -> tuple[Answered | TaskCreated, int]:
        """Send a request; while the response needs input, repeat it with the handler's answers.

        2026-07-28, basic/patterns, "Multi Round-Trip Requests". Return the final response, and the
        number of responses that needed input.

        Raises:
            ProtocolError: The server asked for input too often.
            InputFailed: The handler did not answer.
            ClientError: As for `Connection.request`.
        """
        connection, limit = self.connection, self.options.max_input_rounds
        answers: Mapping[str, Any] = {}
        for rounds in range(limit + 1):
            try:
                response = await connection.request(
                    method,
                    {**params, **answers} if answers else params,
                    timeouts=deadline.timeouts,
                    on_progress=on_progress,
                    param_headers=param_headers,
                )
            except ClientError as error:
                if not rounds:
                    raise
                unknown = error_after_first_response(error, method)
                raise unknown from unknown.__cause__
            if not isinstance(response, InputNeeded):
                return response, rounds
            answers = await self._answers(method, response, deadline)
        raise ProtocolError(
            f"{method} needs input more than {limit} times (ClientOptions.max_input_rounds)",
            connection.server_name,
        )

    async def read(self, uri: str, deadline: RequestDeadline) -> ReadResourceResult:
        """Read a resource, from the cache if possible.

        Raises:
            ClientError: As for `with_input`.
        """
        method = "resources/read"

        async def fetch() -> tuple[Any, bool]:
            response, rounds = await self.with_input(method, {"uri": uri}, deadline)
            # A result that depends on input must not be cached (2026-07-28, caching, "Cache Key").
            return self._complete(method, response), not rounds

        result: ReadResourceResult = await self._from_cache(method, uri, fetch)
        return result

    async def prompt(
        self, name: str, arguments: Mapping[str, str], deadline: RequestDeadline
    ) -> GetPromptResult:
        """Get a prompt.

        Raises:
            ClientError: As for `with_input`.
        """
        method, params = "prompts/get", {"name": name, "arguments": arguments}
        response, _ = await self.with_input(method, params, deadline)
        result: GetPromptResult = self._complete(method, response)
        return result

    async def complete(
        self,
        reference: Reference,
        argument: str,
        value: str,
        context: Mapping[str, str] | None,
    ) -> Completion:
        """Complete an argument; see `Client.complete`.

        Raises:
            ClientError: As for `Connection.request`.
        """
        params = CompleteRequestParams(
            ref=reference,
            argument=CompletionArgument(argument, value),
            context=CompletionContext(context) if context else None,
        )
        result: CompleteResult = await self.result("completion/complete", params)
        return result.completion

    async def _answers(
        self, method: str, needed: InputNeeded, deadline: RequestDeadline
    ) -> Mapping[str, Any]:
        """Return the additional params of the next round: the answers and the state."""
        answers: dict[str, Any] = {}
        name = self.connection.server_name
        try:
            async with deadline.limit():
                if asked := needed.requests:
                    answers["inputResponses"] = await answers_of(self.handler, asked, name)
        except TimeoutError:
            what = f"{method}, including its input requests,"
            raise RequestTimeout(what, name, deadline.total or 0) from None
        if needed.state is not None:
            answers["requestState"] = needed.state
        return answers

    def _complete(self, method: str, response: Response) -> Any:
        if isinstance(response, Answered):
            return response.result
        raise ProtocolError(
            f"the response to {method} must not be a task or an input request",
            self.connection.server_name,
        )
