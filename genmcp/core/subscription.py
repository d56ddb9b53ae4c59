"""What a listener may hear of, and what it is told: the rules of subscriptions.

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

__all__ = [
    "ACKNOWLEDGED",
    "EVERYTHING",
    "PROMPTS",
    "RESOURCES",
    "TOOLS",
    "ServerChange",
    "acknowledgement",
    "changes_of",
    "completion",
    "session_filter",
    "supported_subset",
    "updated",
]

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class ServerChange(msgspec.Struct, frozen=True, array_like=True):
    """Something to tell of: the notification's method, and the resource if it is about one."""

    method: str
    uri: str | None = None

    def params(self, subscription: RequestId | None = None) -> NotificationParams:
        """Return the notification's params; *subscription* is the stream's, from 2026-07-28 on."""
        meta = None if subscription is None else _meta(subscription)
        if self.uri is None:
            return NotificationParams(meta=meta)
        return ResourceUpdatedNotificationParams(self.uri, meta=meta)


TOOLS: Final = ServerChange("notifications/tools/list_changed")
PROMPTS: Final = ServerChange("notifications/prompts/list_changed")
RESOURCES: Final = ServerChange("notifications/resources/list_changed")
EVERYTHING: Final = ServerChange("")
"""Nobody knows any more what has changed: listeners are told of all that they listen for."""


def updated(uri: str) -> ServerChange:
    """Return the change of the resource *uri*."""
    return ServerChange("notifications/resources/updated", uri)


def session_filter(capabilities: ServerCapabilities, uris: list[str]) -> SubscriptionFilter:
    """Return what a session hears of without asking, and the resources it has asked for."""
    every = SubscriptionFilter(
        tools_list_changed=True,
        prompts_list_changed=True,
        resources_list_changed=True,
        resource_subscriptions=uris,
    )
    return supported_subset(every, capabilities, lambda uri: True)


def supported_subset(
    wanted: SubscriptionFilter, capabilities: ServerCapabilities, there: Callable[[str], bool]
) -> SubscriptionFilter:
    """Return the part of *wanted* that a server of these *capabilities* can give.

    *there* tells whether there is a resource with a URI, for whoever asks.
    """
    tools, prompts, resources = capabilities.tools, capabilities.prompts, capabilities.resources
    uris = wanted.resource_subscriptions if resources and resources.subscribe else None
    return SubscriptionFilter(
        tools_list_changed=_both(wanted.tools_list_changed, tools and tools.list_changed),
        prompts_list_changed=_both(wanted.prompts_list_changed, prompts and prompts.list_changed),
        resources_list_changed=_both(
            wanted.resources_list_changed, resources and resources.list_changed
        ),
        resource_subscriptions=None if uris is None else [*filter(there, dict.fromkeys(uris))],
    )


def changes_of(heard: SubscriptionFilter) -> Iterator[ServerChange]:
    """Yield all that *heard* lets through."""
    if heard.tools_list_changed:
        yield TOOLS
    if heard.prompts_list_changed:
        yield PROMPTS
    if heard.resources_list_changed:
        yield RESOURCES
    yield from map(updated, heard.resource_subscriptions or ())


def acknowledgement(
    heard: SubscriptionFilter, subscription: RequestId
) -> SubscriptionsAcknowledgedNotificationParams:
    """Return what a stream begins with."""
    return SubscriptionsAcknowledgedNotificationParams(heard, meta=_meta(subscription))


def completion(subscription: RequestId) -> SubscriptionsListenResult:
    """Return what a stream ends with when it is the server that ends it: "Graceful Closure"."""
    return SubscriptionsListenResult(meta=_meta(subscription))


def _both(wanted: bool | None, offered: object) -> bool | None:
    return True if wanted and offered else None


def _meta(subscription: RequestId) -> dict[str, Any]:
    return {SUBSCRIPTION_ID: subscription}
