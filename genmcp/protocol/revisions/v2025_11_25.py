"""Revision 2025-11-25, where it differs from 2026-07-28: sessions, and requests of the server.

Its experimental `tasks`, `notifications/elicitation/complete` and the error -32042 are not
supported. `notifications/cancelled` has an optional `requestId` there because of these tasks.
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
from genmcp.protocol.prompts import PromptDefinition
from genmcp.protocol.revisions import v2026_07_28
from genmcp.protocol.revisions.revision import Conversion, convert_to, without
from genmcp.protocol.tools import ToolDefinition
from genmcp.protocol.value import Result


class InitializeRequestParams(RequestParams):
    """The client, and the revision that it requests: basic/lifecycle, "Initialization"."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result):
    """The server, and the revision of the session."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelRequestParams(RequestParams):
    """The minimum level of log messages that the client requests."""

    level: LoggingLevel


class SubscribeRequestParams(RequestParams):
    """The URI of a resource to subscribe to."""

    uri: str


class UnsubscribeRequestParams(RequestParams):
    """The URI of a resource to unsubscribe from."""

    uri: str


class ListToolsResult(Result):
    """One page of the tools."""

    # Not `tools.ToolDefinition`: Python 3.14 would look for it in the member.
    tools: Sequence[ToolDefinition]
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

    prompts: Sequence[PromptDefinition]
    next_cursor: str | None = None


class ReadResourceResult(Result):
    """The contents of a resource."""

    contents: Sequence[ResourceContents]


class ElicitRequestParams(client_features.ElicitRequestParams):
    """A request to the user; with a URL, it has an id."""

    elicitation_id: str | None = None


#: The types of the results that are cacheable from 2026-07-28 on.
_CACHEABLE: Final[Mapping[Any, type[Result]]] = {
    tools.ListToolsResult: ListToolsResult,
    resources.ListResourcesResult: ListResourcesResult,
    resources.ListResourceTemplatesResult: ListResourceTemplatesResult,
    resources.ReadResourceResult: ReadResourceResult,
    prompts.ListPromptsResult: ListPromptsResult,
}


def _without_tasks(capabilities: Any) -> Any:
    """Drop the tasks extension, which requires 2026-07-28. Other extensions are kept."""
    extensions = capabilities.extensions
    if extensions is None or TASKS not in extensions:
        return capabilities
    others = {key: value for key, value in extensions.items() if key != TASKS}
    return structs.replace(capabilities, extensions=others or None)


def _without_reserved_meta(result: Any) -> Any:
    """Drop the keys that only 2026-07-28 defines, such as the server's name.

    A hub may get such keys from a member server of that revision. In 2025-11-25 their prefix is
    reserved, and they have no meaning (basic, "_meta").
    """
    meta = result.meta
    if meta is None or not any(key.startswith(RESERVED) for key in meta):
        return result
    kept = {key: value for key, value in meta.items() if not key.startswith(RESERVED)}
    return structs.replace(result, meta=kept or None)


_NO_OBJECTS: Final = (str, int, float, list, tuple, NoneType)


def _only_objects(result: Any) -> Any:
    """Drop structured content other than objects, which is only allowed since SEP-2106."""
    if _may_be_object(result.structured_content):
        return result
    return structs.replace(result, structured_content=UNSET)


def _with_object(result: tools.CallToolResult) -> tools.CallToolResult:
    """Wrap structured content other than objects, as `_with_object_output` does its schema."""
    content = result.structured_content
    if content is UNSET or _may_be_object(content):
        return result
    if isinstance(content, Raw):
        content = Raw(b'{"result":' + bytes(content) + b"}")
    else:
        content = {"result": content}
    return structs.replace(result, structured_content=content)


def _may_be_object(content: Any) -> bool:
    if isinstance(content, Raw):
        return bytes(content).lstrip().startswith(b"{")
    return not isinstance(content, _NO_OBJECTS)


def _with_object_output(tool: tools.ToolDefinition) -> tools.ToolDefinition:
    """Wrap an output schema without objects, which are only optional since SEP-2106.

    A list is sent as `{"result": [...]}`. A schema that allows objects and other values is dropped,
    since the results do not show which of them were wrapped; so is one whose references would refer
    to other places within the wrapped schema.
    """
    schema = tool.output_schema
    if schema is None or schema.get("type") == "object":
        return tool
    if not _excludes_objects(schema) or "$id" in schema or not _is_movable(schema):
        return structs.replace(tool, output_schema=None)
    outer = {key: schema[key] for key in ("$schema", "$defs") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in outer}
    wrapped = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    return structs.replace(tool, output_schema={**outer, **wrapped})


def _excludes_objects(schema: Any) -> bool:
    """Return whether it is evident that no value of *schema* is an object."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return kinds != "object" and "object" not in kinds
    return bool(schema.get("anyOf")) and all(map(_excludes_objects, schema["anyOf"]))


def _is_movable(part: Any) -> bool:
    """Return whether all references are to `$defs`, which stays at the root."""
    if isinstance(part, Mapping):
        reference = part.get("$ref", "#/$defs/")
        if isinstance(reference, str) and not reference.startswith("#/$defs/"):
            return False
        return all(map(_is_movable, part.values()))
    return not isinstance(part, list | tuple) or all(map(_is_movable, part))


def _with_id(params: client_features.ElicitRequestParams) -> client_features.ElicitRequestParams:
    """Add the id that this revision requires in a URL request: a hash of the URL."""
    if params.url is None:
        return params
    id_ = sha256(params.url.encode()).hexdigest()[:32]
    return ElicitRequestParams(**structs.asdict(params), elicitation_id=id_)


#: Members that this revision does not define. They are dropped from messages in both directions.
_BOTH: Final[dict[type, Conversion]] = {
    RequestMeta: without("protocol_version", "client_info", "client_capabilities", "log_level"),
    InputResponseRequestParams: without("input_responses", "request_state"),
    ClientCapabilities: _without_tasks,
    ServerCapabilities: _without_tasks,
}

_DOWN: Final[dict[type, Conversion]] = {
    Result: _without_reserved_meta,
    tools.CallToolResult: _with_object,
    tools.ToolDefinition: _with_object_output,
    ToolResultContent: _only_objects,
    client_features.ElicitRequestParams: _with_id,
    **{newer: convert_to(older) for newer, older in _CACHEABLE.items()},
    **_BOTH,
}

# These results have no cache lifetime in this revision, so they must not be cached.
_UP: Final[dict[type, Conversion]] = {
    ElicitRequestParams: convert_to(client_features.ElicitRequestParams),
    **{
        older: convert_to(newer, ttl_ms=0, cache_scope="private")
        for newer, older in _CACHEABLE.items()
    },
    **_BOTH,
}

_REMOVED: Final = {
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
            replace(method, result=_CACHEABLE.get(method.result, method.result), may_ask=False)
            for method in v2026_07_28.REVISION.methods.values()
            if method.name not in _REMOVED
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
