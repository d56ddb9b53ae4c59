"""Resources: 2026-07-28, server/resources."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition
from genmcp.protocol.params import InputResponseRequestParams, NotificationParams, RequestParams
from genmcp.protocol.value import CacheableResult, PaginatedResult, Result, Value

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceRequestParams",
    "ReadResourceResult",
    "ResourceTemplateDefinition",
    "ResourceUpdatedNotificationParams",
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedNotificationParams",
    "SubscriptionsListenRequestParams",
    "SubscriptionsListenResult",
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


class SubscriptionFilter(Value, kw_only=True):
    """Which notifications a stream carries; *resource_subscriptions* are URIs.

    *task_ids* are those of the tasks extension (SEP-2663, "Task Status Notifications").
    """

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: Sequence[str] | None = None
    task_ids: Sequence[str] | None = None


class SubscriptionsListenRequestParams(RequestParams):
    """What the client wants to hear of."""

    notifications: SubscriptionFilter


class SubscriptionsAcknowledgedNotificationParams(NotificationParams):
    """What the server will tell of, which may be less."""

    notifications: SubscriptionFilter


class SubscriptionsListenResult(Result):
    """The server ended the stream; `_meta` holds its `SUBSCRIPTION_ID`."""

    meta: Mapping[str, Any]
