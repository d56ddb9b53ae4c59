"""The lists of a server of a hub, and how they are read."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ProtocolError, ServerError
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.tool_catalog import read_tool_headers
from genmcp.core.request import Policy
from genmcp.errors import ConfigurationError
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.prompts import ListPromptsResult, PromptArgument, PromptDefinition
from genmcp.protocol.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ResourceTemplateDefinition,
)
from genmcp.protocol.tools import ListToolsResult, ToolDefinition, is_for_models
from genmcp.protocol.value import PaginatedResult
from genmcp.server import Route
from genmcp.uri_template import UriTemplate
from genmcp.wire.param_headers import HeaderRule

logger = logging.getLogger("genmcp.hub")

#: The lists of a server, by the capability that declares them.
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "tools": ("tools",),
    "resources": ("resources", "templates"),
    "prompts": ("prompts",),
}


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


class HubPrompt(msgspec.Struct, frozen=True):
    """A prompt of a hub's server. Its names have the meaning of those of a tool."""

    name: str
    description: str | None
    server_name: str
    original_name: str
    arguments: Sequence[PromptArgument]
    definition: PromptDefinition


class MemberCatalog(msgspec.Struct, frozen=True, dict=True):
    """The lists of one server, as they were read last. Owned by its member.

    headers: for each tool name, the rules of the HTTP headers that repeat arguments.
    matchers: the parsed templates, without invalid and ambiguous ones.
    readable: whether there may be resources that are not listed.
    subscribable: whether the server sends updates of resources.
    policy: when a call of a tool becomes a task of the hub.
    extensions: those that the server declares.

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
    extensions: Mapping[str, Any] | None = None

    def agrees(self, other: "MemberCatalog", kind: str) -> bool:
        """Whether the lists of *kind* are equal in both."""
        return all(getattr(self, name) == getattr(other, name) for name in KINDS[kind])

    @cached_property
    def routes(self) -> Mapping[str, Mapping[str, Route]]:
        """The routes by request method, then by the name of the tool or prompt, or by the URI."""
        headers = self.headers
        plain = Route()
        hidden = replace(self.policy, apps_only=True)
        return {
            "tools/call": {
                each.name: Route(
                    header_rules=headers.get(each.name, ()),
                    policy=self.policy if is_for_models(each) else hidden,
                )
                for each in self.tools
            },
            "prompts/get": {each.name: plain for each in self.prompts},
            "resources/read": {each.uri: plain for each in self.resources},
        }

    @cached_property
    def pages(self) -> Mapping[str, PaginatedResult]:
        """The lists as results, each with all items on one page, by method."""
        options: Any = {"ttl_ms": 0, "cache_scope": "private"}
        return {
            "tools/list": ListToolsResult(tools=self.tools, **options),
            "prompts/list": ListPromptsResult(prompts=self.prompts, **options),
            "resources/list": ListResourcesResult(resources=self.resources, **options),
            "resources/templates/list": ListResourceTemplatesResult(
                resource_templates=self.templates, **options
            ),
        }

    def claims(self, uri: str) -> bool:
        """Whether *uri* matches a template that begins with a scheme."""
        # A template without a scheme, such as `{+path}`, would match the URIs of every other
        # server.
        return any(":" in each.prefix and each.match(uri) is not None for each in self.matchers)


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
            except ProtocolError as error:  # other lists, and calls, still work
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
        # In a thread: a hundred templates take about 3 ms.
        lists["matchers"] = await asyncio.to_thread(_matchers, texts) if texts else ()
    return replace(catalog, **lists)


def _matchers(texts: Sequence[str]) -> Sequence[UriTemplate]:
    templates = []
    for text in texts:
        with suppress(ConfigurationError):  # an invalid or ambiguous template
            templates.append(UriTemplate(text))
    return templates
