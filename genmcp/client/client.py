"""The client of one server."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from msgspec import UNSET

from genmcp.client.cache import copied
from genmcp.client.current import Current
from genmcp.client.errors import ClientError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.requests import Wait
from genmcp.client.session import ClientSession
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.targets import Target, target_name
from genmcp.protocol.capabilities import DiscoverResult, Implementation, ServerCapabilities
from genmcp.protocol.completion import Completion, Reference
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.prompts import GetPromptResult, PromptDefinition
from genmcp.protocol.resources import (
    ReadResourceResult,
    ResourceTemplateDefinition,
    SubscriptionFilter,
)
from genmcp.protocol.tools import CallToolResult, ToolDefinition

__all__ = ["Client"]

_USUAL = ClientOptions()


class Client:
    """A client of one server, whatever it speaks and however it is reached.

        async with Client("https://example.com/mcp") as client:
            for tool in await client.tools():
                print(tool.name)
            result = await client.call("add", {"a": 1, "b": 2})
            print(result.data)

    target: a URL; a `Command`, which is run and spoken to over stdio; or a `Suite`, `Mux` or
        `Endpoint` of this process. handler: answers what the server asks back.

    It may be used from any asyncio.Task of the loop it is opened in, several at once, and be opened
    again when it is closed. What its methods return are values of `genmcp.protocol`, those of
    2026-07-28 whatever revision the server speaks. They raise a `ClientError`, each cause its own
    class; cancelling one cancels its request. No request that may have been carried out is ever
    sent again.
    """

    def __init__(
        self,
        target: Target,
        *,
        handler: ClientHandler[Any] | None = None,
        options: ClientOptions = _USUAL,
    ) -> None:
        self._current = Current(
            partial(ClientSession, target, handler, options), target_name(target)
        )

    async def open(self) -> None:
        """Connect, and find out which revision the server speaks.

        A client that is open stays as it is; one that is being opened is waited for.

        Raises:
            ClientError: there is no server, none that can be talked to, or it was closed meanwhile.
        """
        await self._current.open()

    async def close(self) -> None:
        """Disconnect, and return when that is done: what is under way fails with `ClientClosed`.

        More than once does no harm. Leaving this early leaves the closing to go on. A hook, which
        is waited for itself, goes on at once.
        """
        await self._current.close()

    async def __aenter__(self) -> Self:
        """Connect; see `open`."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect; see `close`."""
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent: it was opened, and its connection is not over."""
        return self._current.is_open

    @property
    def abandoned_calls(self) -> int:
        """How many calls were given up here that the server may still work on, and ask about."""
        return self._current.abandoned_calls

    async def ended(self) -> ClientError | None:
        """Wait until the connection is over, and return what ended it; None: it was closed here."""
        return await self._now.ended()

    @property
    def revision(self) -> str:
        """The revision that is spoken."""
        return self._now.connection.server.revision

    @property
    def server_info(self) -> Implementation | None:
        """Who the server says it is, if it does."""
        server = self._now.connection.server.server
        return None if server is None else copied(server)

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server can do."""
        return copied(self._now.connection.server.capabilities)

    @property
    def instructions(self) -> str | None:
        """How the server is to be used, if it says so."""
        return self._now.connection.server.instructions

    async def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools the server lists, on all pages; so do the other lists.

        Over HTTP a tool whose `x-mcp-header` annotations break their rules is left out, with a
        warning in the log (2026-07-28, server/tools, "x-mcp-header").
        """
        return await self._now.calls.tools()

    async def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources the server lists."""
        return await self._now.requests.listed("resources/list", "resources")

    async def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates the server lists."""
        return await self._now.requests.listed("resources/templates/list", "resource_templates")

    async def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts the server lists."""
        return await self._now.requests.listed("prompts/list", "prompts")

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
    ) -> CallToolResult:
        """Call a tool and return its result, answering questions and polling tasks on the way.

        The handler answers what the tool asks, and a task is waited for. A failure of the tool is
        a result whose `is_error` is true. `result.data` is its structured content, or its text.

        progress: is called with the progress, the total or None, and a message or None.
        timeout: seconds it may take in all. idle_timeout: seconds without a word; progress counts
            as one. None is for ever, and what is not given is as the options say.

        Raises:
            ServerError: the server answers with an error.
            RequestTimeout: it took too long; it is cancelled, its task too.
            TaskCancelled: its task was cancelled by somebody else.
            OutcomeUnknown: the connection broke: it may have been carried out.
            ProtocolError: the answer is none, or does not fit the tool's `outputSchema`.
            McpError: a question was not answered: the handler refused.
        """
        opened = self._now
        patience = opened.requests.patience(timeout, idle_timeout)
        return await opened.calls.call(name, arguments or {}, patience, progress)

    async def call_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
    ) -> TaskHandle:
        """Call a tool, and return as soon as it has a result or is a task.

        Keep the `id` of the handle, and `task(id)` finds it again after a restart.

        Raises:
            ClientError, McpError: as `call`.
        """
        opened = self._now
        patience = opened.requests.patience(timeout, idle_timeout)
        return await opened.calls.begin(name, arguments or {}, patience, None)

    def task(self, id: str, *, tool: str | None = None) -> TaskHandle:
        """Return a handle of a task that was begun before, by this process or another.

        tool: the name of its tool, if its result is to be checked.
        """
        return self._now.calls.task(id, tool)

    async def read(self, uri: str, *, timeout: Wait = UNSET) -> ReadResourceResult:
        """Read a resource, in *timeout* seconds at most."""
        requests = self._now.requests
        return await requests.read(uri, requests.patience(timeout))

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Wait = UNSET
    ) -> GetPromptResult:
        """Get a prompt, in *timeout* seconds at most."""
        requests = self._now.requests
        return await requests.prompt(name, arguments or {}, requests.patience(timeout))

    async def complete(
        self,
        reference: Reference,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Complete an argument of a prompt, or a variable of a resource template.

        value: what is typed so far. context: the arguments that are complete already.
        """
        return await self._now.requests.complete(reference, argument, value, context)

    def subscribe(self, *uris: str) -> ChangeStream:
        """Hear of changes of resources, and of what is below them; see `ChangeStream`."""
        return self._now.listen(SubscriptionFilter(resource_subscriptions=uris))

    def listen(
        self,
        *uris: str,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
    ) -> ChangeStream:
        """Hear of changes of lists, and of the resources *uris*; see `ChangeStream`.

        While something listens, no result is taken from the cache that it says is stale.
        """
        return self._now.listen(
            SubscriptionFilter(
                tools_list_changed=tools or None,
                prompts_list_changed=prompts or None,
                resources_list_changed=resources or None,
                resource_subscriptions=uris or None,
            )
        )

    async def log_level(self, level: LoggingLevel) -> None:
        """Want log messages of *level* and above from now on; the handler gets them."""
        opened = self._now
        await opened.connection.log_level(level, opened.timeouts)

    async def ping(self) -> None:
        """See whether the server answers; since 2026-07-28 that is `server/discover`.

        Raises:
            ClientError: it does not.
        """
        opened = self._now
        method = "ping" if opened.connection.supports("ping") else "server/discover"
        await opened.requests.result(method, {})

    async def discover(self) -> DiscoverResult:
        """Return what the server says of itself; before 2026-07-28, what it said at first."""
        return await self._now.discover()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request of any method, and return its result.

        A value of `genmcp.protocol`, or what its JSON holds where no revision knows the method.
        """
        return await self._now.requests.result(method, params or {})

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, `notifications/roots/list_changed` for one."""
        await self._now.connection.notify(method, params)

    @property
    def _now(self) -> ClientSession:
        return self._current.now
