"""The rules of subscriptions: which changes a subscriber gets, and in which notifications.

2026-07-28, basic/patterns, "Subscriptions"; before, server/resources, "Subscriptions", and the
"List Changed Notification" of tools, prompts and resources.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.params import SUBSCRIPTION_ID, NotificationParams, RequestId
from genmcp.protocol.resources import (
    ResourceUpdatedNotificationParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenResult,
)

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class ServerChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of a server: the method of its notification, and the URI of an updated resource."""

    method: str
    uri: str | None = None

    def params(self, subscription: RequestId | None = None) -> NotificationParams:
        """Return the params of the notification.

        *subscription* is the id of the stream, from 2026-07-28 on.
        """
        meta = None if subscription is None else _meta(subscription)
        if self.uri is None:
            return NotificationParams(meta=meta)
        return ResourceUpdatedNotificationParams(self.uri, meta=meta)


TOOLS: Final = ServerChange("notifications/tools/list_changed")
PROMPTS: Final = ServerChange("notifications/prompts/list_changed")
RESOURCES: Final = ServerChange("notifications/resources/list_changed")
# One value for "unknown", so that a log which has dropped entries costs one notification of each
# kind, and not a list of all resources that might have changed.
EVERYTHING: Final = ServerChange("")
"""Changes were lost: each subscriber is notified of everything that it has subscribed to."""


def updated(uri: str) -> ServerChange:
    """Return the change of the resource *uri*."""
    return ServerChange("notifications/resources/updated", uri)


def is_at_or_below(uri: str, subscribed: str) -> bool:
    """Return whether an update of *uri* is one of the resource *subscribed*.

    A server may announce the update of a part of it (2025-11-25, schema, "ResourceUpdated
    Notification"): a path below, a query or a fragment. `x://a/12` is no part of `x://a/1`.
    """
    parts = (f"{subscribed.rstrip('/')}/", f"{subscribed}?", f"{subscribed}#")
    return uri == subscribed or uri.startswith(parts)


def session_filter(capabilities: ServerCapabilities, uris: list[str]) -> SubscriptionFilter:
    """Return the filter of a legacy session: all lists, and its subscribed resources *uris*."""
    every = SubscriptionFilter(
        tools_list_changed=True,
        prompts_list_changed=True,
        resources_list_changed=True,
        resource_subscriptions=uris,
    )
    return supported_subset(every, capabilities, lambda uri: True)


def supported_subset(
    wanted: SubscriptionFilter, capabilities: ServerCapabilities, exists: Callable[[str], bool]
) -> SubscriptionFilter:
    """Return the part of *wanted* that a server with these *capabilities* supports.

    *exists* returns whether a resource exists for the client.
    """
    tools, prompts, resources = capabilities.tools, capabilities.prompts, capabilities.resources
    # Unsupported parts are left out and not rejected: the acknowledgement names the supported
    # parts, and the client can poll for the unsupported ones. Duplicate URIs are removed.
    uris = wanted.resource_subscriptions if resources and resources.subscribe else None
    return SubscriptionFilter(
        tools_list_changed=_both(wanted.tools_list_changed, tools and tools.list_changed),
        prompts_list_changed=_both(wanted.prompts_list_changed, prompts and prompts.list_changed),
        resources_list_changed=_both(
            wanted.resources_list_changed, resources and resources.list_changed
        ),
        resource_subscriptions=None if uris is None else [*filter(exists, dict.fromkeys(uris))],
    )


def changes_of(subscribed: SubscriptionFilter) -> Iterator[ServerChange]:
    """Yield the changes that *subscribed* subscribes to."""
    if subscribed.tools_list_changed:
        yield TOOLS
    if subscribed.prompts_list_changed:
        yield PROMPTS
    if subscribed.resources_list_changed:
        yield RESOURCES
    yield from map(updated, subscribed.resource_subscriptions or ())


def acknowledgement(
    subscribed: SubscriptionFilter, subscription: RequestId
) -> SubscriptionsAcknowledgedNotificationParams:
    """Return the params of the first message of a stream."""
    return SubscriptionsAcknowledgedNotificationParams(subscribed, meta=_meta(subscription))


def completion(subscription: RequestId) -> SubscriptionsListenResult:
    """Return the result that the server ends a stream with: "Graceful Closure"."""
    return SubscriptionsListenResult(meta=_meta(subscription))


def _both(wanted: bool | None, offered: object) -> bool | None:
    return True if wanted and offered else None


def _meta(subscription: RequestId) -> dict[str, Any]:
    return {SUBSCRIPTION_ID: subscription}
