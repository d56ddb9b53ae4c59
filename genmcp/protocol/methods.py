"""The table of methods: their senders, params and results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from genmcp.protocol.capabilities import TASKS, DiscoverResult
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsRequestParams,
    ListRootsResult,
)
from genmcp.protocol.params import (
    CancelledNotificationParams,
    LoggingMessageNotificationParams,
    NotificationParams,
    PaginatedRequestParams,
    ProgressNotificationParams,
    RequestParams,
)
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
)
from genmcp.protocol.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceUpdatedNotificationParams,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from genmcp.protocol.tasks import (
    DetailedTask,
    TaskParams,
    TaskStatusNotificationParams,
    UpdateTaskParams,
)
from genmcp.protocol.tools import CallToolRequestParams, CallToolResult, ListToolsResult
from genmcp.protocol.value import Result, Value, decoder_for

Sender = Literal["client", "server", "either"]


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One method of a revision.

    result: the type of the result; None for a notification.
    name_member: the member of the params that the header `Mcp-Name` repeats (2026-07-28,
        Streamable HTTP, "Standard Request Headers").
    may_ask: whether an InputRequiredResult may take the place of the result.
    routed: whether *name_member* identifies a tool, prompt or resource of the server.
    needs: the extension that both sides must have declared for the method (SEP-2133); None: no
        declaration of the client is needed.
    """

    name: str
    params: type[Value]
    result: type[Value] | None = None
    sender: Sender = "client"
    name_member: str | None = None
    may_ask: bool = False
    routed: bool = False
    needs: str | None = None
    params_decoder: msgspec.json.Decoder[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Made at import, so that no request waits for it.
        object.__setattr__(self, "params_decoder", decoder_for(self.params))

    @property
    def is_notification(self) -> bool:
        """Whether the method has no response."""
        return self.result is None


def table(methods: Iterable[Method]) -> Mapping[str, Method]:
    """Return *methods* by their names."""
    return MappingProxyType({method.name: method for method in methods})


#: The methods of 2026-07-28. `sampling/createMessage`, `roots/list` and `elicitation/create`
#: are not messages in that revision: they are parts of an InputRequiredResult.
METHODS: Final = table(
    (
        Method("server/discover", RequestParams, DiscoverResult),
        Method("tools/list", PaginatedRequestParams, ListToolsResult),
        Method(
            "tools/call",
            CallToolRequestParams,
            CallToolResult,
            name_member="name",
            may_ask=True,
            routed=True,
        ),
        Method("resources/list", PaginatedRequestParams, ListResourcesResult),
        Method("resources/templates/list", PaginatedRequestParams, ListResourceTemplatesResult),
        Method(
            "resources/read",
            ReadResourceRequestParams,
            ReadResourceResult,
            name_member="uri",
            may_ask=True,
            routed=True,
        ),
        Method("prompts/list", PaginatedRequestParams, ListPromptsResult),
        Method(
            "prompts/get",
            GetPromptRequestParams,
            GetPromptResult,
            name_member="name",
            may_ask=True,
            routed=True,
        ),
        Method("completion/complete", CompleteRequestParams, CompleteResult),
        Method("tasks/get", TaskParams, DetailedTask, name_member="task_id", needs=TASKS),
        Method("tasks/update", UpdateTaskParams, Result, name_member="task_id", needs=TASKS),
        Method("tasks/cancel", TaskParams, Result, name_member="task_id", needs=TASKS),
        Method("notifications/tasks", TaskStatusNotificationParams, sender="server"),
        Method("subscriptions/listen", SubscriptionsListenRequestParams, SubscriptionsListenResult),
        Method("sampling/createMessage", CreateMessageRequestParams, CreateMessageResult, "server"),
        Method("roots/list", ListRootsRequestParams, ListRootsResult, "server"),
        Method("elicitation/create", ElicitRequestParams, ElicitResult, "server"),
        Method("notifications/cancelled", CancelledNotificationParams, sender="either"),
        Method("notifications/progress", ProgressNotificationParams, sender="server"),
        Method("notifications/message", LoggingMessageNotificationParams, sender="server"),
        Method(
            "notifications/resources/updated", ResourceUpdatedNotificationParams, sender="server"
        ),
        Method("notifications/resources/list_changed", NotificationParams, sender="server"),
        Method("notifications/tools/list_changed", NotificationParams, sender="server"),
        Method("notifications/prompts/list_changed", NotificationParams, sender="server"),
        Method(
            "notifications/subscriptions/acknowledged",
            SubscriptionsAcknowledgedNotificationParams,
            sender="server",
        ),
    )
)
