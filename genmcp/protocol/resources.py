"""Resources and subscriptions: 2026-07-28, server/resources and basic/patterns, "Subscriptions"."""

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
    """A template of resource URIs (RFC 6570) in a list; the schema's ResourceTemplate."""

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
    """The URI of the resource to read."""

    uri: str


class ReadResourceResult(CacheableResult):
    """The contents of a resource; a folder may have several."""

    contents: Sequence[ResourceContents]


class ResourceUpdatedNotificationParams(NotificationParams):
    """A resource has changed; *uri* may be below the subscribed one."""

    uri: str


class SubscriptionFilter(Value, kw_only=True):
    """The notifications of a subscription stream; *resource_subscriptions* are URIs.

    *task_ids* are those of the tasks extension (SEP-2663, "Task Status Notifications").
    """

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: Sequence[str] | None = None
    task_ids: Sequence[str] | None = None


class SubscriptionsListenRequestParams(RequestParams):
    """The notifications that the client requests."""

    notifications: SubscriptionFilter


class SubscriptionsAcknowledgedNotificationParams(NotificationParams):
    """The notifications that the server will send, a subset of the requested ones."""

    notifications: SubscriptionFilter


class SubscriptionsListenResult(Result):
    """The end of a subscription stream; `_meta` contains its `SUBSCRIPTION_ID`."""

    meta: Mapping[str, Any]
