"""`Client`: a client of one MCP server."""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, Self

import msgspec
from msgspec import UNSET, ValidationError

from genmcp.client.auth.base import Auth, check_auth
from genmcp.client.connection import Connection, Deadline, OnProgress, ProgressReports, Timeout
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    InputFailed,
    ProtocolError,
    RequestTimeout,
    ServerError,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.handler_runner import HandlerRunner
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions, check_headers, check_seconds
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.base import Transport
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.client.transports.targets import Target, target_name, transport_to
from genmcp.core.client.events import Answered, TaskCreated
from genmcp.errors import ConfigurationError, HeaderMismatch
from genmcp.protocol.capabilities import TASKS, DiscoverResult, Implementation, ServerCapabilities
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    PromptDefinition,
    Reference,
)
from genmcp.protocol.resources import (
    ReadResourceResult,
    ResourceTemplateDefinition,
    SubscriptionFilter,
)
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.protocol.value import Value

if TYPE_CHECKING:
    from genmcp.extensions.extension import Extension
    from genmcp.extensions.remote_skills import Skill

logger = logging.getLogger("genmcp.client")

_DEFAULTS = ClientOptions()
_LIST: Final = "tools/list"
# Of all pages of a list: a server must not fill the memory.
_MAX_PAGES = 1000
_MAX_LIST_BYTES = 8 * 1024 * 1024
_MAX_LIST_ITEMS = 10_000
_TASK_CANCEL_TIMEOUT: Final = 2.0  # seconds to cancel the task of a call that was given up
_HOW_TO_ENTER: Final = (
    "a Client is entered with `async with Client(...) as client`; a program without asyncio uses "
    "`with SyncClient(...) as client`"
)
#: Methods of other clients.
_OTHER_NAMES: Final = {
    "call_tool": "call",
    "list_tools": "tools",
    "read_resource": "read",
    "list_resources": "resources",
    "list_resource_templates": "templates",
    "get_prompt": "prompt",
    "list_prompts": "prompts",
    "set_logging_level": "log_level",
    "initialize": "open",
    "connect": "open",
    "close": "aclose",
    "disconnect": "aclose",
}
_ARGUMENTS: Final = ("headers", "timeout", "auth", "handler", "extensions", "options")


class Client:
    """A client of one server.

        async with Client("https://example.com/mcp") as client:
            for tool in await client.tools():
                print(tool.name)
            result = await client.call("add", {"a": 1, "b": 2})
            print(result.data)

    Args:
        target: a URL; a `Command`, which is started and used over stdio; a `Suite`, `Mux` or
            `Endpoint` of this process; or a `Transport` of your own.
        headers: HTTP headers that are sent with every request. Without a `User-Agent` among them,
            `genmcp/VERSION` is sent. Default: none.
        timeout: seconds for one call, including its input requests and its task; None: no limit.
            Default: 600.
        auth: authorizes the requests to a URL or an `Endpoint`: `OAuth(...)` or the like, an access
            token, or a function, `async` or not, that returns one. Default: none.
        handler: answers the input requests of the server, and receives its notifications.
        extensions: extensions of the protocol to declare, see `genmcp.extensions`. Default: none.
        options: the less common settings.

    A client may be used by any number of asyncio tasks of the event loop in which it was opened.
    It may be opened again after it was closed, unless its target is a `Transport` that can be used
    only once. The methods return values of `genmcp.protocol` in the form of 2026-07-28, for any
    negotiated revision. They raise a `ClientError`, with a class for each cause. If the task that
    awaits a method is cancelled, the request is cancelled. A request that may have been carried out
    is never sent again.
    """

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = 600.0,
        auth: Auth | None = None,
        handler: ClientHandler | None = None,
        extensions: "Sequence[Extension]" = (),
        options: ClientOptions = _DEFAULTS,
        **unknown: Never,
    ) -> None:
        for name in unknown:
            raise ConfigurationError(_unknown_option(name))
        check_headers(headers)
        if timeout is not None:
            check_seconds("timeout", timeout)
        if auth is not None:
            check_auth(auth)
        if handler is not None and not isinstance(handler, ClientHandler):
            raise ConfigurationError(
                f"handler must be an instance of a ClientHandler, not {handler!r}"
            )
        if not isinstance(options, ClientOptions):
            raise ConfigurationError(f"options must be a ClientOptions(...), not {options!r}")
        self._target = target
        self._headers = headers
        self._timeout = timeout
        self._auth = auth
        self._handler = handler
        self._extensions = None
        if extensions:
            from genmcp.extensions.declared import DeclaredExtensions  # here: most have none

            self._extensions = DeclaredExtensions(extensions)
        self._options = options
        self._current: Connection | None = None  # that of the last `open`
        self._closes = 0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<{type(self).__name__} of {target_name(self._target)}, {state}>"

    async def open(self) -> None:
        """Connect and negotiate a revision. Does nothing if the client is open.

        Raises:
            ClientError: the server cannot be reached, or the client was closed meanwhile.
        """
        closes = self._closes
        # Another task may be opening the client: wait for that attempt, and try again if it failed.
        while (connection := self._current) is not None:
            await connection.opened()
            if closes == self._closes and connection.is_open:
                return
            await connection.close()
            if closes != self._closes:
                raise ClientClosed(target_name(self._target))
            if self._current is connection:
                break  # otherwise a third task has begun another attempt
        transport = transport_to(self._target, self._headers, self._auth, self._options)
        connection = self._current = self._connection_over(transport)
        await connection.open()

    async def aclose(self) -> None:
        """Disconnect, and wait until the connection is closed.

        Pending requests fail with `ClientClosed`. May be called repeatedly. If the caller is
        cancelled, the closing continues. A call by a hook of the handler returns at once, since the
        closing waits for the hooks.
        """
        self._closes += 1
        if self._current is not None:
            await self._current.close()

    async def __aenter__(self) -> Self:
        """Connect; see `open`."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect; see `aclose`."""
        await self.aclose()

    def __await__(self) -> NoReturn:
        raise TypeError(_HOW_TO_ENTER)

    def __enter__(self) -> NoReturn:
        raise TypeError(_HOW_TO_ENTER)

    def __exit__(self, *_: object) -> None:
        """Not reached: `__enter__` says what to write."""

    if not TYPE_CHECKING:  # otherwise every name would exist for type checkers

        def __getattr__(self, name: str) -> Never:
            """Name the method for one of another client, or for a misspelt one."""
            names = [each for each in dir(type(self)) if not each.startswith("_")]
            near = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else get_close_matches(name, names)
            kind = type(self).__name__
            if not near or name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise AttributeError(f"{kind} has no {name!r}; it has {near[0]}")

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._current is not None and self._current.is_open

    @property
    def abandoned_calls(self) -> int:
        """The number of calls that this client has cancelled and the server may still process."""
        return 0 if self._current is None else len(self._current.abandoned)

    async def ended(self) -> ClientError | None:
        """Wait until the connection ends; return the error that ended it, None after `aclose`."""
        return await self._connection.ended()

    @property
    def revision(self) -> str:
        """The negotiated protocol revision, such as "2026-07-28"."""
        return self._connection.server.revision

    @property
    def server_info(self) -> Implementation | None:
        """Name and version of the server; None if it does not send them."""
        return self._connection.server.server

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server."""
        return self._connection.server.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._connection.server.instructions

    @property
    def _connection(self) -> Connection:
        connection = self._current
        if connection is None:
            name = target_name(self._target)
            raise ClientClosed(name, state="not open: use `async with`, or `open`")
        if connection.is_closed:
            raise ClientClosed(target_name(self._target))
        return connection

    def _connection_over(self, transport: Transport) -> Connection:
        options = self._options
        extension, added = getattr(self._auth, "extension", None), self._extensions
        declared: dict[str, Any] = {TASKS: {}} if options.tasks else {}
        if extension:
            declared[extension] = {}
        if added is None:
            handler = HandlerRunner(self._handler, declared)
        else:
            declared |= added.settings
            handler = HandlerRunner(self._handler, declared, added.notification)
        if options.telemetry is None:
            return Connection(transport, handler, options, self._timeout)
        # Imported here, since most clients have no telemetry.
        from genmcp.client.observed import ObservedConnection

        return ObservedConnection(transport, handler, options, self._timeout)

    async def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools of the server: all pages of the list together.

        Over HTTP, a tool with invalid `x-mcp-header` annotations is left out, and a warning is
        logged (2026-07-28, server/tools, "x-mcp-header").
        """
        return await self._list_tools(self._connection)

    async def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources of the server: all pages of the list together."""
        return await self._list(self._connection, "resources/list", "resources")

    async def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates of the server: all pages of the list together."""
        method = "resources/templates/list"
        return await self._list(self._connection, method, "resource_templates")

    async def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts of the server: all pages of the list together."""
        return await self._list(self._connection, "prompts/list", "prompts")

    async def skills(self) -> "Sequence[Skill]":
        """Return the skills that the server lists (SEP-2640); none if it has no such extension.

        No file of a skill is read before `Skill.load`.
        """
        from genmcp.extensions.remote_skills import list_skills  # here: most clients read none

        return await list_skills(self, self._connection.server_name)

    async def skill(self, uri: str) -> "Skill":
        """Return the skill whose `SKILL.md` has this *uri*; the server need not list it.

        Raises:
            ClientError: the server has no such skill, or its entry is invalid.
        """
        from genmcp.extensions.remote_skills import get_skill

        return await get_skill(self, self._connection.server_name, uri)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool and return its result.

        The handler answers the input requests of the tool. If the call becomes a task, the client
        waits for the result of the task. If the tool fails, `is_error` of the result is true.
        `result.data` is the structured content or, without structured content, the text. Over HTTP,
        the client lists the tools before it calls a tool for the first time: the definition of the
        tool says which arguments the headers of the call repeat.

        Args:
            name: the name of the tool.
            arguments: the arguments; None: no arguments.
            progress: a function or coroutine function, called with the progress, the total or None,
                and a message or None.
            timeout: seconds for the whole call; None: no limit. Default: that of the client.
            idle_timeout: seconds without progress; None: no limit. Default:
                `ClientOptions.idle_timeout`.
            meta: members of the request's `_meta`, such as an idempotency key. Default: none.

        Raises:
            ServerError: the server responds with an error.
            RequestTimeout: a timeout expired; the call and its task, if it has one, are cancelled.
            TaskCancelled: the task of the call was cancelled by another client or the server.
            OutcomeUnknown: the response was lost; the call may have been carried out.
            ProtocolError: the result is invalid, or does not match the tool's `outputSchema`.
            InputFailed: the handler did not answer an input request; the task of the call, if it
                has one, is cancelled.
        """
        connection = self._connection
        deadline = connection.deadline(timeout, idle_timeout)
        async with ProgressReports(progress, deadline) as on_progress:
            values = arguments or {}
            result = await self._call(connection, name, values, deadline, on_progress, meta)
            if isinstance(result, TaskCreated):
                return await self._wait_for_task(connection, name, result, deadline, on_progress)
            return result

    async def call_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
    ) -> TaskHandle:
        """Call a tool, and return a handle as soon as the call has a result or becomes a task.

        To continue after a restart of this process, store the `id` of the handle, and pass that id
        to `task`.

        Raises:
            ClientError: as for `call`.
        """
        connection = self._connection
        deadline = connection.deadline(timeout, idle_timeout)
        result = await self._call(connection, name, arguments or {}, deadline)
        if isinstance(result, TaskCreated):
            return self._handle_of(connection, result.task.task_id, name)
        return TaskHandle(connection, None, result)

    def task(self, id: str, *, tool: str | None = None) -> TaskHandle:
        """Return a handle of a task that this or another process has created.

        Args:
            id: the id of the task.
            tool: the name of its tool, to check the result against the `outputSchema`.
        """
        return self._handle_of(self._connection, id, tool)

    async def read(self, uri: str, *, timeout: Timeout = UNSET) -> ReadResourceResult:
        """Read a resource and return its contents.

        Args:
            uri: the URI of the resource.
            timeout: seconds for the whole request; None: no limit. Default: that of the
                client.

        Raises:
            ClientError: the resource does not exist, or the request failed.
        """
        connection, method = self._connection, "resources/read"
        found: ReadResourceResult | None = connection.cache.get(method, uri)
        if found is not None:
            return found
        generation, deadline = connection.cache.generation, connection.deadline(timeout)
        response, rounds = await connection.with_input(method, {"uri": uri}, deadline)
        result: ReadResourceResult = connection.complete(method, response)
        # A result that depends on input must not be cached (2026-07-28, caching, "Cache Key").
        if not rounds:
            connection.cache.put(method, uri, result, generation)
        return result

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Timeout = UNSET
    ) -> GetPromptResult:
        """Get a prompt and return its messages.

        Args:
            name: the name of the prompt.
            arguments: the arguments; None: no arguments.
            timeout: seconds for the whole request; None: no limit. Default: that of the
                client.

        Raises:
            ClientError: the prompt does not exist, or the request failed.
        """
        connection, method = self._connection, "prompts/get"
        params = {"name": name, "arguments": arguments or {}}
        response, _ = await connection.with_input(method, params, connection.deadline(timeout))
        result: GetPromptResult = connection.complete(method, response)
        return result

    async def complete(
        self,
        reference: Reference,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return completions of an argument of a prompt, or a variable of a resource template.

        Args:
            reference: the prompt or template.
            argument: the name of the argument or variable.
            value: the beginning of the argument's value, as typed so far.
            context: the other arguments that already have a value.
        """
        params = CompleteRequestParams(
            ref=reference,
            argument=CompletionArgument(argument, value),
            context=CompletionContext(context) if context else None,
        )
        result: CompleteResult = await self._connection.result("completion/complete", params)
        return result.completion

    def subscribe(self, *uris: str) -> ChangeStream:
        """Return a stream that reports changes of the resources *uris* and of resources below them.

        The stream opens when it is entered with `async with`.
        """
        return self.listen(*uris)

    def listen(
        self,
        *uris: str,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
    ) -> ChangeStream:
        """Return a stream that reports changes of the server's lists, and of the resources *uris*.

        The stream opens when it is entered with `async with`. While it is open, the client discards
        a cached result as soon as the server reports that the result has changed.

        Args:
            uris: resources; changes of resources below them are included.
            tools: whether to include the list of tools.
            prompts: whether to include the list of prompts.
            resources: whether to include the list of resources.
        """
        wanted = SubscriptionFilter(
            tools_list_changed=tools or None,
            prompts_list_changed=prompts or None,
            resources_list_changed=resources or None,
            resource_subscriptions=uris or None,
        )
        return ChangeStream(self._connection, wanted)

    async def log_level(self, level: LoggingLevel) -> None:
        """Set the log level of the server for this client.

        The server then sends log messages of *level* and above, which are passed to `handle_log` of
        the handler.
        """
        await self._connection.set_log_level(level)

    async def ping(self) -> None:
        """Check that the server responds.

        Sends `ping`, or `server/discover` in 2026-07-28, which has no `ping`.

        Raises:
            ClientError: the server does not respond.
        """
        connection = self._connection
        method = "ping" if connection.supports("ping") else "server/discover"
        await connection.result(method, {})

    async def discover(self) -> DiscoverResult:
        """Return the server's description of itself: its revisions, capabilities and instructions.

        Sends `server/discover` in 2026-07-28. Before 2026-07-28, the description is made of the
        result of the handshake, and nothing is sent.
        """
        connection, method = self._connection, "server/discover"
        if not connection.is_modern:
            server = connection.server
            return DiscoverResult(
                ttl_ms=0,
                cache_scope="private",
                supported_versions=[server.revision],
                capabilities=server.capabilities,
                instructions=server.instructions,
            )
        found: DiscoverResult | None = connection.cache.get(method)
        if found is not None:
            return found
        generation = connection.cache.generation
        result: DiscoverResult = await connection.result(method, {})
        connection.cache.put(method, "", result, generation)
        return result

    async def request(self, method: str, params: Value | Mapping[str, Any] | None = None) -> Any:
        """Send a request of any method, and return its result.

        The result is a value of `genmcp.protocol`. For a method of one of the client's extensions
        it is of the type that the extension names; for another method that no revision defines, the
        result is decoded JSON.

        Raises:
            ProtocolError: the result of a method of an extension is of another shape.
            ClientError: the request failed.
        """
        connection, extensions = self._connection, self._extensions
        result = await connection.result(method, params or {})
        try:
            return result if extensions is None else extensions.result(method, result)
        except ValidationError as error:
            text = f"the result of {method} is of another shape: {error}"
            raise ProtocolError(text, connection.server_name) from None

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, such as `notifications/roots/list_changed`."""
        await self._connection.notify(method, params)

    async def _call(
        self,
        connection: Connection,
        name: str,
        arguments: Mapping[str, Any],
        deadline: Deadline,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult | TaskCreated:
        """Call a tool, and return its checked result or the task it became."""
        tools, method = connection.tools, "tools/call"
        # Only the listed definition of a tool says which arguments the headers repeat.
        if tools.mirrors and not tools.listed:
            try:
                await self._list_tools(connection, deadline)
            except RequestTimeout:
                raise
            except ClientError:
                tools.listed = True  # not tried again: calls are sent without such headers
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        for attempt in range(2):
            headers = tools.headers(name, arguments)
            try:
                response, _ = await connection.with_input(
                    method, params, deadline, on_progress, headers
                )
                break
            except ServerError as error:
                # 2026-07-28, Streamable HTTP, "Client Behavior": the tool may have changed since it
                # was listed. The call was rejected for its headers, so that it has not run.
                if attempt or error.code != HeaderMismatch.code or not tools.mirrors:
                    raise
            connection.cache.discard(_LIST)
            await self._list_tools(connection, deadline)
        if isinstance(response, TaskCreated):
            return response
        result: CallToolResult = response.result
        if connection.options.check_output:
            await tools.check(name, result)
        return result

    async def _wait_for_task(
        self,
        connection: Connection,
        name: str,
        created: TaskCreated,
        deadline: Deadline,
        on_progress: OnProgress | None,
    ) -> CallToolResult:
        handle = self._handle_of(connection, created.task.task_id, name)
        try:
            return await handle.wait_until(deadline, on_progress)
        except (asyncio.CancelledError, RequestTimeout, InputFailed):
            # The caller or its handler has given the call up, and has no handle of the task. After
            # any other error the task may still be worth hours: the error has its id.
            if not handle.is_over:
                with suppress(ClientError, TimeoutError):
                    async with asyncio.timeout(_TASK_CANCEL_TIMEOUT):
                        await handle.cancel()
            raise

    def _handle_of(self, connection: Connection, id: str, tool: str | None) -> TaskHandle:
        check = None
        if connection.options.check_output and tool is not None:
            check = partial(connection.tools.check, tool)
        return TaskHandle(connection, check, id)

    async def _list_tools(
        self, connection: Connection, deadline: Deadline | None = None
    ) -> list[ToolDefinition]:
        """Return the tools of the server, except those with invalid annotations."""
        tools = await self._list(connection, _LIST, "tools", deadline)
        return await connection.tools.update(tools)

    async def _list(
        self, connection: Connection, method: str, member: str, deadline: Deadline | None = None
    ) -> list[Any]:
        """Return the items on all pages of a list; *member* is the attribute of a page with items.

        All pages must come before the *deadline*: that of a call, by default the client's timeout.
        The pages are cached together, for the shortest time that any of them is fresh.

        Raises:
            ProtocolError: the list has too many pages, bytes or items, or a cursor is repeated.
            ClientError: as for `Connection.request`.
        """
        cache = connection.cache
        if (cached := cache.get(method)) is not None:
            whole: list[Any] = getattr(cached, member)
            return whole
        generation, deadline = cache.generation, deadline or connection.deadline()
        found: list[Any] = []
        cursors: set[str] = set()
        params: dict[str, str] = {}
        size, ttl = 0, math.inf
        while True:
            # Not `limit`: the timeouts of a request are paused while a person is asked.
            response = await connection.request(method, params, timeouts=deadline.timeouts)
            page = connection.complete(method, response)
            found += getattr(page, member)
            size += len(response.raw) if isinstance(response, Answered) else 0
            ttl = min(ttl, page.ttl_ms)
            for count, limit, unit in (
                (size, _MAX_LIST_BYTES, "bytes"),
                (len(found), _MAX_LIST_ITEMS, "items"),
            ):
                if count > limit:
                    text = f"the list of {method} has {count} {unit} or more, with a limit of"
                    raise ProtocolError(f"{text} {limit}", connection.server_name)
            if page.next_cursor is None:
                break
            if page.next_cursor in cursors or len(cursors) >= _MAX_PAGES:
                text = f"the list of {method} does not end after {len(cursors) + 1} pages"
                raise ProtocolError(text, connection.server_name)
            deadline.check(method, connection.server_name)
            cursors.add(page.next_cursor)
            params = {"cursor": page.next_cursor}
        cache.put(
            method, "", msgspec.structs.replace(page, ttl_ms=ttl, **{member: found}), generation
        )
        return found


def _unknown_option(name: str) -> str:
    """Return the error for an argument that `Client` does not have."""
    settings = ClientOptions.__struct_fields__
    near = get_close_matches(name, [*_ARGUMENTS, *settings], 1)
    if not near:
        return f"Client has no argument {name!r}; it has {', '.join(_ARGUMENTS)}"
    [found] = near
    write = f"options=ClientOptions({found}=...)" if found in settings else f"{found}=..."
    return f"Client has no argument {name!r}; write {write}"
