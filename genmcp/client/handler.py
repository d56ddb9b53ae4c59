"""What a client does when a server asks it something, or tells it something.

class Desk(ClientHandler[int]):
    \"\"\"Counts the questions it has answered.\"\"\"

    def init(self) -> int:
        return 0

    async def handle_elicitation_create(self, message, schema, state):
        return Accepted({"name": await ask_the_user(message)}), state + 1

Client(url, handler=Desk())
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from genmcp.errors import ConfigurationError, McpError, MethodNotFound
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import CreateMessageRequestParams, CreateMessageResult, Root
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.tasks import TaskStatusNotificationParams
from genmcp.question.question import Accepted, Declined
from genmcp.schema.limits import FOREIGN_LIMITS
from genmcp.schema.schema import Schema

__all__ = ["ClientHandler", "DefaultHandler", "Denied", "Model", "Sampled"]

S = TypeVar("S", default=Any)

Sampled = CreateMessageRequestParams | CreateMessageResult
"""What is approved of: what the model is to be asked, and then what it has answered."""

Model = Callable[[CreateMessageRequestParams], Any | Awaitable[Any]]


class Denied(McpError):
    """The user does not want what the server asks: the model asked for one, or its answer shown.

    2025-11-25, client/sampling, "Error Handling", is where the code comes from.
    """

    code = -1

    def __init__(self, message: str = "User rejected the request") -> None:
        super().__init__(message)


class ClientHandler(Generic[S]):
    """Responds to requests of servers. Subclass it and override the hooks you need.

    A hook is `def` (it runs in a thread) or `async def`. What the client declares follows from
    the hooks that are overridden, unless *capabilities* says it; what is not declared is answered
    with -32601. The same hooks answer the requests of earlier revisions and the input requests of
    2026-07-28.

    The *state* belongs to one connection: `init` makes it, each hook is given it. A hook that
    answers returns its value, or a tuple of two: the value, and the state from then on; a hook
    that is told something returns the new state, or None to leave it. Questions are answered side
    by side: those that overlap are given the same state, and of what they return the last counts.
    What several of them write belongs in something mutable.

    A hook refuses with an McpError, whose code, message and data the server gets. Any other
    exception is logged, and the server gets -32603 and a reference to the log.

    A name that begins with `handle_` and is no hook is refused when the class is made.

    capabilities: overrides what would follow from the hooks.
    sampling_tools: `handle_create_message` takes requests with tools.
    sampling_context: ... and those that want context included.
    most_open: for a handler that forwards questions and bounds them itself: the number of questions
        open on one connection. They do not count towards `ClientOptions.input_concurrency`.
    """

    capabilities: ClientCapabilities | None = None
    sampling_tools: bool = False
    sampling_context: bool = False
    most_open: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a hook that would never be called: it is misspelt."""
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("handle_") and not hasattr(ClientHandler, name):
                hooks = [each for each in vars(ClientHandler) if each.startswith("handle_")]
                near = get_close_matches(name, hooks, 1, 0)[0]
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is no hook: is it {near}? They are {', '.join(hooks)}"
                )

    def init(self) -> Any:
        """Return the state a connection begins with. What it raises, opening the client raises."""
        return None

    def handle_ping(self, state: S) -> Any:
        """Return the (empty) answer to a `ping`: a mapping."""
        return {}

    def handle_list_roots(self, state: S) -> Any:
        """Return a list of the folders the server may work in.

        Each is a Root, a mapping with `uri` (`file://...`) and perhaps `name`, or an absolute Path.
        """
        return []

    def approve(self, subject: Sampled, state: S) -> Any:
        """Return whether the user agrees: True, False, or *subject* as the user has changed it.

        Asked before `handle_create_message` with its params, and again with its result: there
        should always be a human who can say no (2026-07-28, client/sampling). Override this, or
        ask the user within `handle_create_message`.
        """
        return True

    def handle_create_message(self, params: CreateMessageRequestParams, state: S) -> Any:
        """Return what a model answers: a CreateMessageResult, or a mapping of that shape."""
        raise McpError("The client has no model to ask")

    def handle_elicitation_create(self, message: str, schema: Mapping[str, Any], state: S) -> Any:
        """Return what the user says to a form of *schema*.

        `Accepted(content)`, `Declined()` or `Cancelled()`; or an ElicitResult, or a mapping of
        that shape. What *content* leaves out is filled in with the defaults of *schema*; one that
        does not fit *schema* is not sent.

        Without `handle_url_elicitation` it is asked about URLs too, where *capabilities* declare
        that: *schema* is then `{"mode": "url", "url": ...}`.
        """
        return Declined()

    def handle_url_elicitation(self, message: str, url: str, state: S) -> Any:
        """Return whether the user agrees to go to *url*: `Accepted()`, `Declined()`, `Cancelled()`.

        The user has to see the whole URL first, and nothing may fetch it beforehand (2026-07-28,
        client/elicitation, "Safe URL Handling").
        """
        return Declined()

    def handle_request(self, method: str, params: Any, state: S) -> Any:
        """Return the result, a mapping, of a request that no other hook is for."""
        raise MethodNotFound(method)

    def handle_task_status(self, task: TaskStatusNotificationParams, state: S) -> Any:
        """Take in how a task stands: `notifications/tasks`, and 2025-11-25's `.../status`."""
        return None

    def handle_progress(self, progress: ProgressNotificationParams, state: S) -> Any:
        """Take in how far a request has come."""
        return None

    def handle_log(self, message: LoggingMessageNotificationParams, state: S) -> Any:
        """Take in a log message of the server."""
        return None

    def handle_notification(self, method: str, params: Any, state: S) -> Any:
        """Take in a notification that no other hook is for."""
        return None

    def terminate(self, reason: BaseException | None, state: S) -> Any:
        """Take in that the connection is over; *reason* is None if it was closed here."""
        return None


class DefaultHandler(ClientHandler[None]):
    """A handler without a class of its own: made of what a program usually has.

    roots: the folders servers may work in, as `handle_list_roots` returns them; None: roots are
        not declared.
    accept_defaults: forms are accepted as their defaults fill them in, if that is a whole answer;
        otherwise they are declined.
    model: asked for every sampling request, as `handle_create_message` is; None: not declared.
    approve: asked before *model*, and again about its answer, as `ClientHandler.approve` is. It
        has to be there for a model: `lambda subject: True` is a decision to write down.
    tools: *model* takes requests with tools.

    *model* and *approve* are `def` (run in a thread) or `async def`.

    Raises:
        ConfigurationError: there is a model, and nobody who approves.
    """

    def __init__(
        self,
        *,
        roots: Sequence[Root | Mapping[str, Any] | Path] | None = None,
        accept_defaults: bool = False,
        model: Model | None = None,
        approve: Callable[[Sampled], Any] | None = None,
        tools: bool = False,
    ) -> None:
        if model is not None and approve is None:
            raise ConfigurationError(
                "DefaultHandler: a model needs approve=, which is asked before and after it"
            )
        self._roots = roots
        self._accept_defaults = accept_defaults
        self._model = model
        self._approve = approve
        self.capabilities = ClientCapabilities(
            roots=None if roots is None else {},
            sampling=None if model is None else SamplingCapability(tools={} if tools else None),
            elicitation=ElicitationCapability(form={}),
        )

    async def handle_list_roots(self, state: None) -> Any:
        """Return the roots it was given."""
        return list(self._roots or ())

    def approve(self, subject: Sampled, state: None) -> Any:
        """Ask what was given as *approve*."""
        assert self._approve is not None  # there is a model, or sampling would not be declared
        return self._approve(subject)

    def handle_create_message(self, params: CreateMessageRequestParams, state: None) -> Any:
        """Ask the model."""
        assert self._model is not None
        return self._model(params)

    async def handle_elicitation_create(
        self, message: str, schema: Mapping[str, Any], state: None
    ) -> Any:
        """Decline, or accept what the form is filled in with already."""
        if self._accept_defaults:
            form = Schema(schema, origin="requestedSchema", limits=FOREIGN_LIMITS)
            filled = form.fill({})
            if not form.check(filled):
                return Accepted(filled)
        return Declined()
