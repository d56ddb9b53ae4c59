"""Handlers: they answer the requests of a server, and receive its notifications.

class Desk(ClientHandler):
    async def handle_elicitation_create(self, message, schema):
        return Accepted({"name": await ask_the_user(message)})

Client(url, handler=Desk())
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import isfunction, signature
from typing import Any

from genmcp.errors import ConfigurationError, McpError, MethodNotFound
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import CreateMessageRequestParams, CreateMessageResult
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.tasks import TaskStatusNotificationParams
from genmcp.question.question import Declined
from genmcp.question.urls import check_schemes

Sampled = CreateMessageRequestParams | CreateMessageResult
"""The subject of `approve`: a sampling request, and then the result of the model."""


class Denied(McpError):
    """The user rejected a sampling request, or its result.

    2025-11-25, client/sampling, "Error Handling", defines the code.
    """

    code = -1

    def __init__(self, message: str = "User rejected the request") -> None:
        super().__init__(message)


class ClientHandler:
    """Answers the requests of a server, and receives its notifications. Subclass it.

    Override the hooks you need. A hook is a `def`, which runs in a thread, or an `async def`. The
    same hooks answer the requests of earlier revisions and the input requests of 2026-07-28. The
    client declares the capabilities of the hooks that are overridden; requests for others are
    rejected with -32601. A misspelt `handle_...` is rejected when the class is defined.

    A hook that answers a request returns its answer; what one for a notification returns is
    ignored. Hooks of concurrent requests run concurrently.

    A hook refuses a request with an McpError: the server receives its code, message and data. Any
    other exception is logged, and the server receives -32603 with a reference to the log. A server
    of 2026-07-28 receives neither. The call fails with an `InputFailed` that has them; before
    2026-07-28, unless the server can do without the answer.

    Attributes:
        capabilities: the declared capabilities, if not those of the hooks.
        sampling_tools: whether `handle_create_message` supports requests with tools.
        sampling_context: whether it supports requests that include context.
        url_schemes: the schemes of URLs that the user may be asked to open. Default: https. URLs of
            loopback may always be http.
        most_open: for a handler that forwards requests and bounds them itself: the number of
            requests open on one connection. They do not count towards
            the 8 that a client answers at once.
    """

    capabilities: ClientCapabilities | None = None
    sampling_tools: bool = False
    sampling_context: bool = False
    url_schemes: Sequence[str] = ("https",)
    most_open: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a hook that is misspelt, or has other parameters than it is called with."""
        super().__init_subclass__(**options)
        check_schemes(f"{cls.__name__}.url_schemes", cls.url_schemes)
        for name, hook in vars(cls).items():
            if isfunction(hook) and isfunction(wanted := vars(ClientHandler).get(name)):
                parameters = signature(wanted).parameters
                try:
                    signature(hook).bind(*parameters)
                except TypeError:
                    raise ConfigurationError(
                        f"{cls.__name__}.{name} must take ({', '.join(parameters)})"
                    ) from None
            if name.startswith("handle_") and not hasattr(ClientHandler, name):
                hooks = [each for each in vars(ClientHandler) if each.startswith("handle_")]
                near = get_close_matches(name, hooks, 1, 0)[0]
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is not a hook; did you mean {near}? "
                    f"The hooks are {', '.join(hooks)}"
                )

    def handle_list_roots(self) -> Any:
        """Return a list or tuple of the folders that the server may use.

        Each is a Root, a mapping with `uri` (`file://...`) and optionally `name`, or an absolute
        Path.
        """
        return []

    def approve(self, subject: Sampled) -> Any:
        """Return whether the user agrees: True, False, or a modified *subject*.

        Called before `handle_create_message` with its params, and again with its result: a human
        should always be able to deny sampling (2026-07-28, client/sampling). Override this, or ask
        the user within `handle_create_message`.
        """
        return True

    def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
        """Return the answer of a model: a CreateMessageResult, or a mapping of that form."""
        raise McpError("The client has no model to ask")

    def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Return the user's response to a form with the fields of *schema*.

        `Accepted(content)`, `Declined()` or `Cancelled()`; or an ElicitResult, or a mapping of that
        form. Missing members of *content* get the defaults of *schema*; content that does not match
        *schema* is not sent.
        """
        return Declined()

    def handle_url_elicitation(self, message: str, url: str) -> Any:
        """Return whether the user opens *url*: `Accepted()`, `Declined()` or `Cancelled()`.

        The user must see the full URL before, and nothing may fetch it (2026-07-28,
        client/elicitation, "Safe URL Handling").
        """
        return Declined()

    def handle_request(self, method: str, params: Any) -> Any:
        """Return the result, a mapping, of a request without a hook of its own."""
        raise MethodNotFound(method)

    def handle_task_status(self, task: TaskStatusNotificationParams) -> Any:
        """Receive the status of a task: `notifications/tasks`."""
        return None

    def handle_progress(self, progress: ProgressNotificationParams) -> Any:
        """Receive the progress of a request."""
        return None

    def handle_log(self, message: LoggingMessageNotificationParams) -> Any:
        """Receive a log message of the server."""
        return None

    def handle_notification(self, method: str, params: Any) -> Any:
        """Receive a notification without a hook of its own."""
        return None

    def terminate(self, reason: BaseException | None) -> Any:
        """Called when the connection has ended; *reason* is None after `Client.aclose`."""
        return None
