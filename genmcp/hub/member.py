"""A server of a hub as a member of the hub's composite server, and that composite server."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import msgspec

from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Outcome
from genmcp._core.request import Request
from genmcp._core.waiting import Continue
from genmcp.channel import ChangeNotifier, Channel, Listener
from genmcp.client.client import Client
from genmcp.client.errors import (
    AuthorizationFailed,
    ClientError,
    Forbidden,
    InputFailed,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    ServerError,
    Unauthorized,
)
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import CompositeError, ReconnectError
from genmcp.composite.member import Certainty, Member
from genmcp.composite.server import CompositeServer
from genmcp.errors import InvalidParams, McpError, Overloaded, ResourceNotFound, ToolError
from genmcp.hub.config import Backoff, HubLimits, ServerConfig
from genmcp.hub.connection import MemberCatalog
from genmcp.hub.reconnecting import ReconnectingClient
from genmcp.hub.relay import ForwardedCall, QuestionLimiter, RelayingHandler, Work
from genmcp.hub.subscriptions import ClientSubscriptions, MemberSubscriptions
from genmcp.protocol.prompts import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route

logger = logging.getLogger("genmcp.hub")

# The assign of a suspended call that holds its key in `SuspendedCalls`.
_RELAY: Final = "relay"
_UNREACHABLE: Final = "The server behind this one cannot be reached"
_UNKNOWN: Final = "The server behind this one is gone: it may or may not have done this"


class SuspendedCalls:
    """Calls that wait for their client's answers, in this process. Owned by the hub."""

    def __init__(self, limits: HubLimits) -> None:
        self._limits = limits
        self._calls: dict[str, tuple[ForwardedCall, asyncio.TimerHandle]] = {}

    def add(self, call: ForwardedCall) -> str:
        """Keep *call* until it is resumed or `answer_timeout` has passed; return its key.

        Raises:
            Overloaded: too many calls wait. *call* is cancelled.
        """
        if len(self._calls) >= (limit := self._limits.max_questions):
            call.cancel()
            raise Overloaded(
                f"Too many calls wait for an answer: {limit} (HubLimits.max_questions)"
            )
        key = secrets.token_urlsafe(12)
        loop = asyncio.get_running_loop()
        self._calls[key] = call, loop.call_later(self._limits.answer_timeout, self._expire, key)
        return key

    def pop(self, key: str | None) -> ForwardedCall | None:
        """Remove and return the call *key*; None if it has expired or is in another process."""
        call, timer = self._calls.pop(key or "", (None, None))
        if timer is not None:
            timer.cancel()
        return call

    def _expire(self, key: str) -> None:
        call = self.pop(key)
        if call is not None:
            call.cancel()


class HubMember(Member):
    """A server of a hub as a member of the hub's composite server. Owned by the hub.

    Calls are forwarded to the server. After `relay_questions`, questions and log messages of the
    server are forwarded to the client that made the call. Otherwise the hub's handler gets them.

    client: sends requests to the server. subscriptions: the resources that clients subscribed to.
    on_lost: called with this member and the error when reconnecting has failed.
    """

    def __init__(
        self,
        config: ServerConfig,
        options: ClientOptions,
        backoff: Backoff,
        questions: QuestionLimiter,
        suspended: SuspendedCalls,
        on_lost: Callable[["HubMember", ReconnectError], None],
    ) -> None:
        self.name = config.name
        self._changes = ChangeNotifier()
        self._questions = questions
        self._suspended = suspended
        self.subscriptions = MemberSubscriptions(
            config.name, self._changes.resource_updated, backoff, questions.limits
        )
        self.client = ReconnectingClient(
            config,
            options,
            backoff,
            questions.limits,
            self.subscriptions,
            on_changed=self._announce,
            on_lost=lambda error: on_lost(self, error),
        )

    @property
    def catalog(self) -> MemberCatalog:
        """The lists of the server."""
        return self.client.catalog

    @property
    def methods(self) -> Collection[str]:
        """All methods of a composite server. A server without prompts lists zero prompts."""
        return (*self.catalog.pages, "completion/complete")

    def relay_questions(self) -> None:
        """Forward the questions of the server to its callers. Call this before `client.open`."""
        self.client.handler = RelayingHandler(
            self._questions,
            self.client.work,
            self.client.renew,
            in_turn=self.client.config.asks_in_turn,
        )

    def find(self, method: str, key: str) -> tuple[Route, Certainty] | None:
        """Return the route of *key*, and how certain it is that the server has *key*.

        None if the server does not have *key*.
        """
        catalog = self.catalog
        route = catalog.routes[method].get(key)
        if route is not None:
            return route, Certainty.CERTAIN
        if method != "resources/read":
            return None
        if catalog.claims(key):
            return Route(), Certainty.CLAIMED
        return (Route(), Certainty.POSSIBLE) if catalog.readable else None

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the list *method*, with all items on one page.

        Raises:
            InvalidParams: a *cursor* was given, although there is only one page.
        """
        if cursor is not None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        return self.catalog.pages[method]

    def follow(self, listener: Listener) -> None:
        """Announce the changes of the server to *listener*."""
        self._changes.follow(listener)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Forward *request* to the server."""
        if request.route is None:
            return await self._complete(request)
        call = ForwardedCall(channel, self._work(request), self._questions)
        return await self._step(call, channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Send the client's answers to the server, and wait for the result."""
        # The forwarded call is in the memory of one process. Answers that reach another process
        # cannot resume the call.
        call = self._suspended.pop(continuation.assigns.get(_RELAY))
        if call is None or call.cancelled:
            raise InvalidParams("The call no longer waits for an answer: make it again")
        call.channel = channel
        call.answer(outcome)
        return await self._step(call, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Cancel a call that waits for its client's answer."""
        call = self._suspended.pop(channel.context.own_assigns.get(_RELAY))
        if call is not None:
            call.cancel()

    async def _step(self, call: ForwardedCall, channel: Channel) -> Result | Continue:
        try:
            step = await call.step()
        except asyncio.CancelledError:
            call.cancel()
            raise
        except (ClientError, CompositeError) as error:
            raise _translated(error, channel.request.method) from error
        # The mux seals the assigns of the call into its continuation, from which `resume` reads
        # this key.
        if isinstance(step, Continue):
            channel.context.own_assigns[_RELAY] = self._suspended.add(call)
        return step

    def _work(self, request: Request) -> Work:
        """Return the function that sends *request* to the server."""
        params: Any = request.params

        def sent(client: Client, call: ForwardedCall) -> Any:
            match request.method:
                case "tools/call":
                    arguments = msgspec.json.decode(params.given or b"{}")
                    progress = call.progress if request.progress_token is not None else None
                    return client.call(params.name, arguments, progress=progress)
                case "prompts/get":
                    return client.prompt(params.name, params.arguments)
                case _:
                    return client.read(params.uri)

        async def work(call: ForwardedCall) -> Result:
            async def send(client: Client) -> Any:
                handler = self.client.handler
                running: AbstractAsyncContextManager[None] = nullcontext()
                if isinstance(handler, RelayingHandler):
                    running = handler.running(call, client)
                async with running:
                    return await sent(client, call)

            result: Result = await self.client.send(send)
            return result

        return work

    async def _complete(self, request: Request) -> CompleteResult:
        """Forward a request for completion.

        Raises:
            ResourceNotFound: the server does not list the template.
        """
        params: Any = request.params
        assert isinstance(params, CompleteRequestParams)
        ref, argument = params.ref, params.argument
        if not isinstance(ref, PromptReference) and not any(
            each.uri_template == ref.uri for each in self.catalog.templates
        ):
            raise ResourceNotFound(ref.uri)
        context = params.context.arguments if params.context else None
        try:
            completion = await self.client.send(
                lambda client: client.complete(ref, argument.name, argument.value, context)
            )
        except (ClientError, CompositeError) as error:
            raise _translated(error, request.method) from error
        return CompleteResult(completion=completion)

    def _announce(self, kinds: Collection[str]) -> None:
        for kind in kinds:
            getattr(self._changes, f"{kind}_list_changed")()


def _translated(error: Exception, method: str) -> Exception:
    """Return the error that the hub's client gets for *error*.

    An error that the server sent, or the client whose answer it needed, is forwarded with its text.
    The texts of other errors name the
    command line or URL of the server. These errors are logged, and replaced by a general text.
    """
    if isinstance(error, ServerError | InputFailed):
        return McpError(error.message, error.data, code=error.code)
    logger.warning("%s failed: %s", method, error)
    match error:
        case OutcomeUnknown():
            text = _UNKNOWN
        case AuthorizationFailed() | Forbidden() | Unauthorized():
            text = "The server behind this one denies this to the hub"
        case RequestTimeout():
            text = "The server behind this one took too long"
        case ProtocolError():
            text = "The server behind this one broke the protocol"
        case _:
            text = _UNKNOWN if getattr(error, "sent", False) else _UNREACHABLE
    return ToolError(text) if method == "tools/call" else McpError(text)


class HubServer(CompositeServer):
    """The composite server of a hub; see `Hub.server`."""

    def __init__(
        self,
        members: Callable[[], Mapping[str, HubMember]],
        limits: HubLimits,
        *,
        name: str,
        version: str,
    ) -> None:
        super().__init__(members, name=name, version=version)
        self._subscriptions = ClientSubscriptions(self._owners, self.changes, limits)

    def watch_resources(
        self, uris: Collection[str]
    ) -> AbstractAsyncContextManager[Collection[str]]:
        """Subscribe to *uris* at the servers that have them, while the context is entered.

        When other servers have a resource, the subscription moves to them.
        """
        return self._subscriptions.subscribe(uris)

    def _owners(self, uri: str) -> Sequence[MemberSubscriptions]:
        route = self.find("resources/read", uri)
        members: list[Any] = [each.member for each in route.alternatives] if route else []
        return [each.subscriptions for each in members if each.catalog.subscribable]
