"""Streams of notifications: 2026-07-28, basic/patterns, "Subscriptions"."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.params import NotificationParams, RequestParams
from genmcp.protocol.result import Result
from genmcp.protocol.value import Value

__all__ = [
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedNotificationParams",
    "SubscriptionsListenRequestParams",
    "SubscriptionsListenResult",
]


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
