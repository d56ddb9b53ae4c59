"""Resources: 2026-07-28, server/resources."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition
from genmcp.protocol.implementation import Icon
from genmcp.protocol.params import InputResponseRequestParams, NotificationParams
from genmcp.protocol.result import CacheableResult, PaginatedResult
from genmcp.protocol.value import Value

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceRequestParams",
    "ReadResourceResult",
    "ResourceTemplateDefinition",
    "ResourceUpdatedNotificationParams",
]


class ResourceTemplateDefinition(Value):
    """A template of resource URIs (RFC 6570) as it is listed; the schema's ResourceTemplate."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    icons: Sequence[Icon] | None = None
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class ListResourcesResult(PaginatedResult):
    """One page of the resources."""

    resources: Sequence[ResourceDefinition]


class ListResourceTemplatesResult(PaginatedResult):
    """One page of the resource templates."""

    resource_templates: Sequence[ResourceTemplateDefinition]


class ReadResourceRequestParams(InputResponseRequestParams):
    """Which resource to read."""

    uri: str


class ReadResourceResult(CacheableResult):
    """What the resource holds; a folder may answer with several contents."""

    contents: Sequence[ResourceContents]


class ResourceUpdatedNotificationParams(NotificationParams):
    """A resource has changed; *uri* may be below the one that was subscribed to."""

    uri: str
