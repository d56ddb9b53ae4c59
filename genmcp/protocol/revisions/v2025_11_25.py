"""Revision 2025-11-25, where it differs from 2026-07-28: sessions, and requests of the server.

Not offered: its experimental `tasks`, `notifications/elicitation/complete`, and the error
-32042. `notifications/cancelled` needs no `requestId` there, for the sake of these tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from types import NoneType
from typing import Any, Final

from msgspec import UNSET, Raw, structs

from genmcp.protocol import client_features, prompts, resources, tools
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    Implementation,
    ServerCapabilities,
)
from genmcp.protocol.client_features import ToolResultContent
from genmcp.protocol.content import ResourceContents, ResourceDefinition
from genmcp.protocol.methods import Method, table
from genmcp.protocol.params import (
    RESERVED,
    InputResponseRequestParams,
    LoggingLevel,
    NotificationParams,
    ProgressNotificationParams,
    RequestMeta,
    RequestParams,
)
from genmcp.protocol.revisions import v2026_07_28
from genmcp.protocol.revisions.revision import Conversion, convert_to, without
from genmcp.protocol.value import Result

__all__ = [
    "REVISION",
    "ElicitRequestParams",
    "InitializeRequestParams",
    "InitializeResult",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListToolsResult",
    "ReadResourceResult",
    "SetLevelRequestParams",
    "SubscribeRequestParams",
    "UnsubscribeRequestParams",
]


class InitializeRequestParams(RequestParams):
    """Who the client is, and the revision it would like: basic/lifecycle, "Initialization"."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result):
    """Who the server is, and the revision that is spoken from now on."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelRequestParams(RequestParams):
    """The least severe log message the client wants to see."""

    level: LoggingLevel


class SubscribeRequestParams(RequestParams):
    """The resource the client wants to hear of."""

    uri: str


class UnsubscribeRequestParams(RequestParams):
    """The resource the client does not want to hear of any more."""

    uri: str


class ListToolsResult(Result):
    """One page of the tools."""

    tools: Sequence[tools.ToolDefinition]
    next_cursor: str | None = None


class ListResourcesResult(Result):
    """One page of the resources."""

    resources: Sequence[ResourceDefinition]
    next_cursor: str | None = None


class ListResourceTemplatesResult(Result):
    """One page of the resource templates."""

    resource_templates: Sequence[resources.ResourceTemplateDefinition]
    next_cursor: str | None = None


class ListPromptsResult(Result):
    """One page of the prompts."""

    prompts: Sequence[prompts.PromptDefinition]
    next_cursor: str | None = None


class ReadResourceResult(Result):
    """What the resource holds."""

    contents: Sequence[ResourceContents]


class ElicitRequestParams(client_features.ElicitRequestParams):
    """Asks the user; one who is sent to a URL is sent with an id."""

    elicitation_id: str | None = None


#: The results that only 2026-07-28 lets a client keep, and what they are here.
_KEPT: Final[Mapping[Any, type[Result]]] = {
    tools.ListToolsResult: ListToolsResult,
    resources.ListResourcesResult: ListResourcesResult,
    resources.ListResourceTemplatesResult: ListResourceTemplatesResult,
    resources.ReadResourceResult: ReadResourceResult,
    prompts.ListPromptsResult: ListPromptsResult,
}


def _without_tasks(capabilities: Any) -> Any:
    """The extension counts on 2026-07-28 and later; others may be declared before it, too."""
    extensions = capabilities.extensions
    if extensions is None or TASKS not in extensions:
        return capabilities
    others = {key: value for key, value in extensions.items() if key != TASKS}
    return structs.replace(capabilities, extensions=others or None)


def _without_reserved_meta(result: Any) -> Any:
    """Leave out the keys that only 2026-07-28 defines, such as the server's name.

    A hub may have them from a server of that revision. 2025-11-25, basic, "_meta": the prefix is
    reserved, so a key under it would claim a meaning that this revision does not know.
    """
    meta = result.meta
    if meta is None or not any(key.startswith(RESERVED) for key in meta):
        return result
    kept = {key: value for key, value in meta.items() if not key.startswith(RESERVED)}
    return structs.replace(result, meta=kept or None)


_NO_OBJECTS: Final = (str, int, float, list, tuple, NoneType)


def _only_objects(result: Any) -> Any:
    """SEP-2106: structured content was an object."""
    if _may_be_object(result.structured_content):
        return result
    return structs.replace(result, structured_content=UNSET)


def _may_be_object(content: Any) -> bool:
    if isinstance(content, Raw):
        return bytes(content).lstrip().startswith(b"{")
    return not isinstance(content, _NO_OBJECTS)


def _with_object_output(tool: tools.ToolDefinition) -> tools.ToolDefinition:
    """SEP-2106: an output schema was of type object."""
    schema = tool.output_schema
    if schema is None or schema.get("type") == "object":
        return tool
    return structs.replace(tool, output_schema=None)


def _with_id(params: client_features.ElicitRequestParams) -> client_features.ElicitRequestParams:
    """A URL is asked for with an id; one made of the URL is as unique as the URL is."""
    if params.url is None:
        return params
    id_ = sha256(params.url.encode()).hexdigest()[:32]
    return ElicitRequestParams(**structs.asdict(params), elicitation_id=id_)


#: Neither side says these, and what the other says of them is not listened to.
_NEITHER: Final[dict[type, Conversion]] = {
    RequestMeta: without("protocol_version", "client_info", "client_capabilities", "log_level"),
    InputResponseRequestParams: without("input_responses", "request_state"),
    ClientCapabilities: _without_tasks,
    ServerCapabilities: _without_tasks,
}

_DOWN: Final[dict[type, Conversion]] = {
    Result: _without_reserved_meta,
    tools.CallToolResult: _only_objects,
    tools.ToolDefinition: _with_object_output,
    ToolResultContent: _only_objects,
    client_features.ElicitRequestParams: _with_id,
    **{newer: convert_to(older) for newer, older in _KEPT.items()},
    **_NEITHER,
}

# A result that does not say how long it may be kept may not be kept.
_UP: Final[dict[type, Conversion]] = {
    ElicitRequestParams: convert_to(client_features.ElicitRequestParams),
    **{older: convert_to(newer, ttl_ms=0, cache_scope="private") for newer, older in _KEPT.items()},
    **_NEITHER,
}

_GONE: Final = {
    "server/discover",
    "subscriptions/listen",
    "notifications/subscriptions/acknowledged",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "notifications/tasks",
}

_METHODS: Final = table(
    (
        *(
            replace(method, result=_KEPT.get(method.result, method.result), may_ask=False)
            for method in v2026_07_28.REVISION.methods.values()
            if method.name not in _GONE
        ),
        Method("initialize", InitializeRequestParams, InitializeResult),
        Method("ping", RequestParams, Result, sender="either"),
        Method("logging/setLevel", SetLevelRequestParams, Result),
        Method("resources/subscribe", SubscribeRequestParams, Result),
        Method("resources/unsubscribe", UnsubscribeRequestParams, Result),
        Method("notifications/initialized", NotificationParams),
        Method("notifications/roots/list_changed", NotificationParams),
        Method("notifications/progress", ProgressNotificationParams, sender="either"),
        Method("elicitation/create", ElicitRequestParams, client_features.ElicitResult, "server"),
    )
)

REVISION: Final = v2026_07_28.REVISION.older(
    "2025-11-25",
    modern=False,
    priming_event=True,
    resource_not_found=-32002,
    methods=_METHODS,
    down=_DOWN,
    up=_UP,
)
