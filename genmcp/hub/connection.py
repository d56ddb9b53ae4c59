"""A connection of a hub to one server, and the lists that are read through it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from genmcp._core.request import Policy
from genmcp._wire.param_headers import HeaderRule
from genmcp.cancellation import run_to_completion
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ConnectError, ListTooLong, ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tool_catalog import read_tool_headers
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError
from genmcp.hub.config import ServerConfig
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.prompts import ListPromptsResult, PromptArgument, PromptDefinition
from genmcp.protocol.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ResourceTemplateDefinition,
)
from genmcp.protocol.tools import ListToolsResult, ToolDefinition
from genmcp.protocol.value import PaginatedResult
from genmcp.server import Route
from genmcp.uri_template import UriTemplate

logger = logging.getLogger("genmcp.hub")

#: The lists of a server, by the capability that declares them.
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "tools": ("tools",),
    "resources": ("resources", "templates"),
    "prompts": ("prompts",),
}

# Up to a hundred templates are parsed in the event loop, which takes about 3 ms. A longer list is
# parsed in a thread.
_MAX_TEMPLATES_INLINE: Final = 100


class HubTool(msgspec.Struct, frozen=True):
    """A tool of a hub's server.

    Attributes:
        name: the qualified name, `server/tool`.
        description: the description for the model.
        server_name: the name of the server in the hub.
        original_name: the name of the tool at the server.
        definition: the definition that the server sent.
    """

    name: str
    description: str | None
    server_name: str
    original_name: str
    definition: ToolDefinition


class HubResource(msgspec.Struct, frozen=True):
    """A resource of a hub's server. Its *name* is its URI if the server gives it none."""

    uri: str
    name: str
    description: str | None
    server_name: str
    definition: ResourceDefinition


class HubPromptArgument(msgspec.Struct, frozen=True):
    """An argument of a prompt."""

    name: str
    description: str | None = None
    required: bool = False


class HubPrompt(msgspec.Struct, frozen=True):
    """A prompt of a hub's server, with the name that the server uses."""

    name: str
    description: str | None
    server_name: str
    arguments: Sequence[HubPromptArgument]
    definition: PromptDefinition


class MemberCatalog(msgspec.Struct, frozen=True, dict=True):
    """The lists of one server, as they were read last. Owned by its member.

    headers: for each tool name, the rules of the HTTP headers that repeat arguments.
    matchers: the parsed templates, without invalid and ambiguous ones.
    readable: whether there may be resources that are not listed.
    subscribable: whether the server sends updates of resources.
    policy: when a call of a tool becomes a task of the hub.

    `headers` and `matchers` are derived when the lists are read, not at the first call, so that the
    schemas and templates of one server do not delay the calls of another server.
    """

    tools: Sequence[ToolDefinition] = ()
    resources: Sequence[ResourceDefinition] = ()
    templates: Sequence[ResourceTemplateDefinition] = ()
    prompts: Sequence[PromptDefinition] = ()
    headers: Mapping[str, tuple[HeaderRule, ...]] = {}
    matchers: Sequence[UriTemplate] = ()
    readable: bool = False
    subscribable: bool = False
    policy: Policy = Policy()

    def agrees(self, other: "MemberCatalog", kind: str) -> bool:
        """Whether the lists of *kind* are equal in both."""
        return all(getattr(self, name) == getattr(other, name) for name in KINDS[kind])

    @cached_property
    def routes(self) -> Mapping[str, Mapping[str, Route]]:
        """The routes by request method, then by the name of the tool or prompt, or by the URI."""
        headers = self.headers
        plain = Route()
        return {
            "tools/call": {
                each.name: Route(header_rules=headers.get(each.name, ()), policy=self.policy)
                for each in self.tools
            },
            "prompts/get": {each.name: plain for each in self.prompts},
            "resources/read": {each.uri: plain for each in self.resources},
        }

    @cached_property
    def pages(self) -> Mapping[str, PaginatedResult]:
        """The lists as results, each with all items on one page, by method."""
        return {
            "tools/list": ListToolsResult(tools=self.tools, ttl_ms=0, cache_scope="private"),
            "prompts/list": ListPromptsResult(
                prompts=self.prompts, ttl_ms=0, cache_scope="private"
            ),
            "resources/list": ListResourcesResult(
                resources=self.resources, ttl_ms=0, cache_scope="private"
            ),
            "resources/templates/list": ListResourceTemplatesResult(
                resource_templates=self.templates, ttl_ms=0, cache_scope="private"
            ),
        }

    def claims(self, uri: str) -> bool:
        """Whether *uri* matches a template that begins with a scheme."""
        # A template without a scheme, such as `{+path}`, would match the URIs of every other
        # server.
        return any(":" in each.prefix and each.match(uri) is not None for each in self.matchers)

    def hub_tools(self, server: str) -> list[HubTool]:
        """Return the tools with their qualified names."""
        return [
            HubTool(f"{server}/{each.name}", each.description, server, each.name, each)
            for each in self.tools
        ]

    def hub_resources(self, server: str) -> list[HubResource]:
        """Return the resources of *server*."""
        return [
            HubResource(each.uri, each.name or each.uri, each.description, server, each)
            for each in self.resources
        ]

    def hub_prompts(self, server: str) -> list[HubPrompt]:
        """Return the prompts of *server*."""
        return [
            HubPrompt(
                each.name, each.description, server, [*map(_argument, each.arguments or ())], each
            )
            for each in self.prompts
        ]


def _argument(argument: PromptArgument) -> HubPromptArgument:
    return HubPromptArgument(argument.name, argument.description, bool(argument.required))


class MemberConnection(NamedTuple):
    """An open connection. Owned by the member, which replaces it when it breaks.

    changes: the stream of list changes, None if the server has none or it could not be opened.
    """

    client: Client
    catalog: MemberCatalog
    changes: ChangeStream | None
    exits: AsyncExitStack

    @classmethod
    async def open(
        cls,
        config: ServerConfig,
        handler: ClientHandler | None,
        options: ClientOptions,
        policy: Policy,
        on_close: Callable[[], Awaitable[None]],
    ) -> "MemberConnection":
        """Connect to the server of *config*, and read its lists.

        *on_close* is called after the client was closed, also if this method fails.

        Raises:
            ConnectError: the server cannot be connected to, or a list cannot be read. The
                connection was closed.
        """
        if config.revision is not None:
            options = replace(options, revision=config.revision)
        stack = AsyncExitStack()
        stack.push_async_callback(on_close)
        try:
            client = Client(
                _target(config),
                headers=config.headers or {},
                auth=config.auth,
                handler=handler,
                options=options,
            )
            stack.push_async_callback(client.close)
            await client.open()
            # The stream is opened before the lists are read, so that no change is missed.
            changes = None
            if announced_kinds(client):
                with suppress(ClientError):  # `reconnecting._follow` opens the stream later
                    changes = await stack.enter_async_context(listen(client))
            resources = client.capabilities.resources
            catalog = MemberCatalog(
                readable=resources is not None,
                subscribable=resources is not None and bool(resources.subscribe),
                policy=policy,
            )
            catalog, failure = await read_lists(client, [*KINDS], catalog)
            if failure is not None:
                raise failure
        except BaseException as error:
            await run_to_completion(stack.aclose())
            if not isinstance(error, Exception):
                raise
            raise ConnectError(config.name, str(error)) from error
        return cls(client, catalog, changes, stack)

    async def close(self) -> None:
        """Close the connection. A cancellation of the caller does not interrupt the closing."""
        await run_to_completion(self.exits.aclose())


def _target(config: ServerConfig) -> Target:
    if config.command is not None:
        return Command(config.command, config.args, config.env, config.cwd)
    return config.target if config.url is None else config.url


def announced_kinds(client: Client) -> Collection[str]:
    """Return the kinds of lists for which the server announces changes."""
    return [
        kind for kind in KINDS if getattr(getattr(client.capabilities, kind), "list_changed", None)
    ]


def listen(client: Client) -> ChangeStream:
    """Return a stream of all list changes that the server announces. The caller enters it."""
    return client.listen(**dict.fromkeys(announced_kinds(client), True))


def kinds_of(method: str) -> Collection[str]:
    """Return the kind of list whose change the notification *method* announces, in a list.

    The result is empty for any other notification.
    """
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    return [kind] if kind in KINDS else []


async def read_lists(
    client: Client,
    kinds: Collection[str],
    catalog: MemberCatalog,
) -> tuple[MemberCatalog, ClientError | None]:
    """Read the lists of *kinds* from the server.

    Returns *catalog* with the lists that could be read, and an error if a list could not be read.
    A list that could not be read keeps its previous items. If there were no previous items, a
    rejection by the server is not an error: many servers declare lists that they do not have.
    """
    lists: dict[str, Any] = {}
    failure: ClientError | None = None
    for kind in kinds:
        if getattr(client.capabilities, kind) is None:
            continue
        for name in KINDS[kind]:
            try:
                lists[name] = await getattr(client, name)()
            except ServerError as error:
                if getattr(catalog, name):
                    failure = error
            except ListTooLong as error:  # other lists, and calls, still work
                logger.warning("%s: the list is left out: %s", name, error)
            except ClientError as error:  # the request itself failed: the others would fail too
                return await _updated(catalog, lists), error
    return await _updated(catalog, lists), failure


async def _updated(catalog: MemberCatalog, lists: dict[str, Any]) -> MemberCatalog:
    """Return *catalog* with new *lists*, and the headers and matchers derived from them."""
    if "tools" in lists:
        read = await read_tool_headers(lists["tools"])
        lists["headers"] = {name: each.rules for name, each in read.items() if each.rules}
    if "templates" in lists:
        texts = [each.uri_template for each in lists["templates"]]
        lists["matchers"] = (
            _matchers(texts)
            if len(texts) <= _MAX_TEMPLATES_INLINE
            else await asyncio.to_thread(_matchers, texts)
        )
    return replace(catalog, **lists)


def _matchers(texts: Sequence[str]) -> Sequence[UriTemplate]:
    templates = []
    for text in texts:
        with suppress(ConfigurationError):  # an invalid or ambiguous template
            templates.append(UriTemplate(text))
    return templates
