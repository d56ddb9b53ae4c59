"""Requests as a caller means them: with the questions they raise, and what is kept of lists."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from genmcp.client.cache import ResultCache
from genmcp.client.connection import Connection
from genmcp.client.errors import (
    ClientError,
    ListTooLong,
    ProtocolError,
    RequestTimeout,
    ServerError,
    afterwards,
)
from genmcp.client.handler_runner import HandlerRunner
from genmcp.client.options import ClientOptions
from genmcp.client.pending import Outcome, Report
from genmcp.core.client.codec import Params
from genmcp.core.client.events import Answered, InputNeeded, ParamHeaders, TaskCreated
from genmcp.core.client.lifecycle import Timeouts
from genmcp.protocol.completion import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    Reference,
)
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.resources import ReadResourceResult

__all__ = ["RequestDeadline", "Requests", "Wait"]

Wait: TypeAlias = float | UnsetType | None
"""Seconds to wait; None is for ever, UNSET what the options say."""


class RequestDeadline:
    """How long one call is waited for, all its requests together.

    idle: seconds in which nothing is heard. total: seconds in all. Either may be None: for ever.
    """

    __slots__ = ("_until", "idle", "total")

    def __init__(self, idle: float | None, total: float | None) -> None:
        self.idle = idle
        self.total = total
        self._until = None if total is None else asyncio.get_running_loop().time() + total

    @property
    def left(self) -> Timeouts:
        """What is left for the next request."""
        if self._until is None:
            return Timeouts(idle=self.idle, total=None)
        left = self._until - asyncio.get_running_loop().time()
        return Timeouts(idle=self.idle, total=max(left, 0.001), whole=self.total)

    def limit(self) -> asyncio.Timeout:
        """A scope that ends with a TimeoutError when the time is over."""
        return asyncio.timeout_at(self._until)


class Requests:
    """Sends requests over *connection*, and answers what they ask with *answering*."""

    def __init__(
        self,
        connection: Connection,
        answering: HandlerRunner[Any],
        cache: ResultCache,
        options: ClientOptions,
    ) -> None:
        self.connection = connection
        self.answering = answering
        self.options = options
        self._cache = cache

    def patience(self, timeout: Wait = UNSET, idle_timeout: Wait = UNSET) -> RequestDeadline:
        """How long to wait for a call: what is given, or else what the options say."""
        return RequestDeadline(
            self.options.idle_timeout if idle_timeout is UNSET else idle_timeout,
            self.options.timeout if timeout is UNSET else timeout,
        )

    async def result(self, method: str, params: Params, timeouts: Timeouts | None = None) -> Any:
        """Send a request that is not answered with questions, and return its result.

        timeouts: how long it may take, if that is not what the options say.

        Raises:
            ClientError: as `Connection.request`.
        """
        waits = timeouts or Timeouts(idle=self.options.idle_timeout, total=self.options.timeout)
        return self._complete(method, await self.connection.request(method, params, timeouts=waits))

    async def kept(self, method: str, member: str, what: str | None) -> Any:
        """Send a request unless its result is kept: for *what*, the member of its params.

        Raises:
            ClientError: as `Connection.request`.
        """

        async def ask() -> tuple[Any, bool]:
            return await self.result(method, {} if what is None else {member: what}), True

        return await self._cached(method, what or "", ask)

    async def _cached(
        self, method: str, what: str, ask: Callable[[], Awaitable[tuple[Any, bool]]]
    ) -> Any:
        """Return what is kept, or else what *ask* returns, kept if it says that it may be."""
        found = self._cache.get(method, what)
        if found is None:
            changes = self._cache.changes
            found, keeps = await ask()
            if keeps:
                self._cache.keep(method, what, found, changes)
        return found

    async def listed(self, method: str, member: str) -> list[Any]:
        """Return the items on all pages of a list.

        A cursor the server does not take any more was that of a page kept too long: the list is
        read again (2026-07-28, caching, "Interaction with Pagination").

        Raises:
            ProtocolError: the list does not end.
            ListTooLong: it has more bytes or items than the options allow.
            ClientError: as `Connection.request`.
        """
        try:
            return await self._pages(method, member)
        except ServerError:
            if self._cache.get(method) is None:
                raise
            self._cache.forget(method)
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
                self._cache.forget(method)
                raise ProtocolError(
                    f"the list of {method} does not end after {len(cursors)} pages",
                    self.connection.where,
                )
            cursors.add(cursor)

    async def _page(self, method: str, cursor: str | None) -> tuple[Any, int]:
        """Return a page, from the cache or the server, and its size in bytes."""
        what = cursor or ""
        page, size = self._cache.get(method, what), self._cache.size(method, what)
        if page is None:
            changes = self._cache.changes
            params = {} if cursor is None else {"cursor": cursor}
            waits = Timeouts(idle=self.options.idle_timeout, total=self.options.timeout)
            outcome = await self.connection.request(method, params, timeouts=waits)
            page = self._complete(method, outcome)
            size = len(outcome.raw) if isinstance(outcome, Answered) else 0
            if size <= self.options.max_list_bytes:
                self._cache.keep(method, what, page, changes)
        return page, size

    def _check_length(self, method: str, size: int, items: int) -> None:
        """Check the length of a list as far as it was read.

        Raises:
            ListTooLong: it exceeds one of the options.
        """
        options, where = self.options, self.connection.where
        if size > options.max_list_bytes:
            self._cache.forget(method)
            raise ListTooLong(where, method, size, "max_list_bytes", options.max_list_bytes)
        if items > options.max_list_items:
            self._cache.forget(method)
            raise ListTooLong(where, method, items, "max_list_items", options.max_list_items)

    async def answered(
        self,
        method: str,
        params: Mapping[str, Any],
        patience: RequestDeadline,
        report: Report | None = None,
        param_headers: ParamHeaders = (),
    ) -> tuple[Answered | TaskCreated, int]:
        """Send a request, and again with answers as long as it is answered with questions.

        2026-07-28, basic/patterns, "Multi Round-Trip Requests". Returns how often it asked, too.

        Raises:
            ProtocolError: it asks too often.
            McpError: a question was not answered: the handler refused.
            ClientError: as `Connection.request`.
        """
        given: Mapping[str, Any] = {}
        for asked in range(self.options.max_input_rounds + 1):
            try:
                found = await self.connection.request(
                    method,
                    {**params, **given},
                    timeouts=patience.left,
                    progress=report,
                    param_headers=param_headers,
                )
            except ClientError as error:
                if not asked:
                    raise
                ended = afterwards(error, method)
                raise ended from ended.__cause__
            if not isinstance(found, InputNeeded):
                return found, asked
            given = await self._answers(method, found, patience)
        raise ProtocolError(
            f"{method} asks more than {self.options.max_input_rounds} times (option: rounds)",
            self.connection.where,
        )

    async def read(self, uri: str, patience: RequestDeadline) -> ReadResourceResult:
        """Read a resource, unless what it holds is kept.

        What depends on answers is not kept (2026-07-28, caching, "Cache Key").

        Raises:
            ClientError, McpError: as `answered`.
        """
        method = "resources/read"

        async def ask() -> tuple[Any, bool]:
            outcome, asked = await self.answered(method, {"uri": uri}, patience)
            return self._complete(method, outcome), not asked

        result: ReadResourceResult = await self._cached(method, uri, ask)
        return result

    async def prompt(
        self, name: str, arguments: Mapping[str, str], patience: RequestDeadline
    ) -> GetPromptResult:
        """Get a prompt.

        Raises:
            ClientError, McpError: as `answered`.
        """
        method, params = "prompts/get", {"name": name, "arguments": arguments}
        outcome, _ = await self.answered(method, params, patience)
        result: GetPromptResult = self._complete(method, outcome)
        return result

    async def complete(
        self,
        reference: Reference,
        argument: str,
        value: str,
        context: Mapping[str, str] | None,
    ) -> Completion:
        """Complete an argument.

        Raises:
            ClientError: as `Connection.request`.
        """
        params = CompleteRequestParams(
            ref=reference,
            argument=CompletionArgument(argument, value),
            context=CompletionContext(context) if context else None,
        )
        result: CompleteResult = await self.result("completion/complete", params)
        return result.completion

    async def _answers(
        self, method: str, asked: InputNeeded, patience: RequestDeadline
    ) -> Mapping[str, Any]:
        """What the same request is sent with again; the state as it came, if it came."""
        given: dict[str, Any] = {}
        try:
            async with patience.limit():
                if asked.requests:
                    given["inputResponses"] = await self.answering.answer_all(asked.requests)
        except TimeoutError:
            what = f"{method}, with the questions it asks,"
            raise RequestTimeout(what, self.connection.where, patience.total or 0) from None
        if asked.state is not None:
            given["requestState"] = asked.state
        return given

    def _complete(self, method: str, outcome: Outcome) -> Any:
        if isinstance(outcome, Answered):
            return outcome.result
        raise ProtocolError(
            f"{method} must not be answered with questions or a task", self.connection.where
        )
