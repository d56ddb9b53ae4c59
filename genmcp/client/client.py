"""`Client`: a client of one MCP server."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec import UNSET

from genmcp.client.auth.base import Auth, check_auth
from genmcp.client.cache import copied
from genmcp.client.errors import ClientClosed, ClientError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.requests import Wait
from genmcp.client.session import ClientSession
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.targets import Target, target_name
from genmcp.protocol.capabilities import DiscoverResult, Implementation, ServerCapabilities
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.prompts import Completion, GetPromptResult, PromptDefinition, Reference
from genmcp.protocol.resources import (
    ReadResourceResult,
    ResourceTemplateDefinition,
    SubscriptionFilter,
)
from genmcp.protocol.tools import CallToolResult, ToolDefinition

_DEFAULTS = ClientOptions()


class ClientLifecycle:
    """Opens and closes the connection of a client, and describes the server. Base of `Client`."""

    def __init__(
        self,
        target: Target,
        *,
        handler: ClientHandler[Any] | None = None,
        options: ClientOptions = _DEFAULTS,
        auth: Auth | None = None,
    ) -> None:
        if auth is not None:
            check_auth(auth)
        self._auth = auth
        self._target = target
        self._handler = handler
        self._options = options
        self._opened: ClientSession | None = None
        self._closes = 0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<{type(self).__name__} of {target_name(self._target)}, {state}>"

    async def open(self) -> None:
        """Connect and negotiate a revision. Does nothing if the client is open.

        Raises:
            ClientError: The server cannot be reached, or the client was closed meanwhile.
        """
        closes = self._closes
        # Another task may be opening the client: wait for that attempt, and try again if it failed.
        while (session := self._opened) is not None:
            await session.opened()
            if closes == self._closes and session.connection.is_open:
                return
            await session.close()
            if closes != self._closes:
                raise ClientClosed(target_name(self._target))
            if self._opened is session:
                break  # otherwise a third task has begun another attempt
        self._opened = ClientSession(self._target, self._handler, self._options, self._auth)
        await self._opened.open()

    async def close(self) -> None:
        """Disconnect, and wait until the connection is closed.

        Pending requests fail with `ClientClosed`. May be called repeatedly. If the caller is
        cancelled, the closing continues. A call by a hook of the handler returns at once, since the
        closing waits for the hooks.
        """
        self._closes += 1
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        """Connect; see `open`."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect; see `close`."""
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._opened is not None and self._opened.connection.is_open

    @property
    def abandoned_calls(self) -> int:
        """The number of calls that this client has cancelled and the server may still process."""
        return 0 if self._opened is None else len(self._opened.connection.abandoned_calls)

    async def ended(self) -> ClientError | None:
        """Wait until the connection ends; return the error that ended it, None after `close`."""
        return await self._session.ended()

    @property
    def revision(self) -> str:
        """The negotiated protocol revision, such as "2026-07-28"."""
        return self._session.connection.server.revision

    @property
    def server_info(self) -> Implementation | None:
        """Name and version of the server; None if it does not send them."""
        server = self._session.connection.server.server
        return None if server is None else copied(server)

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server."""
        return copied(self._session.connection.server.capabilities)

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._session.connection.server.instructions

    @property
    def _session(self) -> ClientSession:
        session = self._opened
        if session is None:
            name = target_name(self._target)
            raise ClientClosed(name, state="not open: use `async with`, or `open`")
        if session.connection.is_closed:
            raise ClientClosed(target_name(self._target))
        return session


class Client(ClientLifecycle):
    """A client of one server.

        async with Client("https://example.com/mcp") as client:
            for tool in await client.tools():
                print(tool.name)
            result = await client.call("add", {"a": 1, "b": 2})
            print(result.data)

    Args:
        target: a URL; a `Command`, which is started and used over stdio; a `Suite`, `Mux` or
            `Endpoint` of this process; or a `Transport` of your own.
        handler: answers the input requests of the server, and receives its notifications.
        options: timeouts and limits.
        auth: authorizes the requests to a URL or an `Endpoint`: `OAuth(...)` or the like, an access
            token, or a function, `async` or not, that returns one. Default: none.

    A client may be used by any number of asyncio tasks of the event loop in which it was opened.
    It may be opened again after it was closed, unless its target is a `Transport` that can be used
    only once. The methods return values of `genmcp.protocol` in the form of 2026-07-28, for any
    negotiated revision. They raise a `ClientError`, with a class for each cause. If the task that
    awaits a method is cancelled, the request is cancelled. A request that may have been carried out
    is never sent again.
    """

    async def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools of the server: all pages of the list together.

        Over HTTP, a tool with invalid `x-mcp-header` annotations is left out, and a warning is
        logged (2026-07-28, server/tools, "x-mcp-header").
        """
        return await self._session.calls.tools()

    async def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources of the server: all pages of the list together."""
        return await self._session.requests.list_all("resources/list", "resources")

    async def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates of the server: all pages of the list together."""
        requests = self._session.requests
        return await requests.list_all("resources/templates/list", "resource_templates")

    async def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts of the server: all pages of the list together."""
        return await self._session.requests.list_all("prompts/list", "prompts")

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
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
            timeout: seconds for the whole call; None: no limit. Default: `ClientOptions.timeout`.
            idle_timeout: seconds without progress; None: no limit. Default:
                `ClientOptions.idle_timeout`.

        Raises:
            ServerError: The server responds with an error.
            RequestTimeout: A timeout expired; the call and its task, if it has one, are cancelled.
            TaskCancelled: The task of the call was cancelled by another client or the server.
            OutcomeUnknown: The connection broke; the call may have been carried out.
            ProtocolError: The result is invalid, or does not match the tool's `outputSchema`.
            InputFailed: The handler did not answer an input request.
        """
        session = self._session
        deadline = session.requests.deadline(timeout, idle_timeout)
        return await session.calls.call(name, arguments or {}, deadline, progress)

    async def call_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
    ) -> TaskHandle:
        """Call a tool, and return a handle as soon as the call has a result or becomes a task.

        To continue after a restart of this process, store the `id` of the handle, and pass that id
        to `task`.

        Raises:
            ClientError: As for `call`.
        """
        session = self._session
        deadline = session.requests.deadline(timeout, idle_timeout)
        return await session.calls.start(name, arguments or {}, deadline)

    def task(self, id: str, *, tool: str | None = None) -> TaskHandle:
        """Return a handle of a task that this or another process has created.

        Args:
            id: the id of the task.
            tool: the name of its tool, to check the result against the `outputSchema`.
        """
        return self._session.calls.task(id, tool)

    async def read(self, uri: str, *, timeout: Wait = UNSET) -> ReadResourceResult:
        """Read a resource and return its contents.

        Args:
            uri: the URI of the resource.
            timeout: seconds for the whole request; None: no limit. Default:
                `ClientOptions.timeout`.

        Raises:
            ClientError: The resource does not exist, or the request failed.
        """
        requests = self._session.requests
        return await requests.read(uri, requests.deadline(timeout))

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Wait = UNSET
    ) -> GetPromptResult:
        """Get a prompt and return its messages.

        Args:
            name: the name of the prompt.
            arguments: the arguments; None: no arguments.
            timeout: seconds for the whole request; None: no limit. Default:
                `ClientOptions.timeout`.

        Raises:
            ClientError: The prompt does not exist, or the request failed.
        """
        requests = self._session.requests
        return await requests.prompt(name, arguments or {}, requests.deadline(timeout))

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
        return await self._session.requests.complete(reference, argument, value, context)

    def subscribe(self, *uris: str) -> ChangeStream:
        """Return a stream that reports changes of the resources *uris* and of resources below them.

        The stream opens when it is entered with `async with`.
        """
        return self._session.change_stream(SubscriptionFilter(resource_subscriptions=uris))

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
        return self._session.change_stream(
            SubscriptionFilter(
                tools_list_changed=tools or None,
                prompts_list_changed=prompts or None,
                resources_list_changed=resources or None,
                resource_subscriptions=uris or None,
            )
        )

    async def log_level(self, level: LoggingLevel) -> None:
        """Set the log level of the server for this client.

        The server then sends log messages of *level* and above, which are passed to `handle_log` of
        the handler.
        """
        await self._session.set_log_level(level)

    async def ping(self) -> None:
        """Check that the server responds.

        Sends `ping`, or `server/discover` in 2026-07-28, which has no `ping`.

        Raises:
            ClientError: The server does not respond.
        """
        session = self._session
        method = "ping" if session.connection.supports("ping") else "server/discover"
        await session.requests.result(method, {})

    async def discover(self) -> DiscoverResult:
        """Return the server's description of itself: its revisions, capabilities and instructions.

        Sends `server/discover` in 2026-07-28. Before 2026-07-28, the description is made of the
        result of the handshake, and nothing is sent.
        """
        return await self._session.discover()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request of any method, and return its result.

        The result is a value of `genmcp.protocol`. For a method that no revision defines, the
        result is decoded JSON.
        """
        return await self._session.requests.result(method, params or {})

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, such as `notifications/roots/list_changed`."""
        await self._session.connection.notify(method, params)
