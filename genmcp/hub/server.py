"""A server that has what all servers of a hub have."""

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import msgspec

from genmcp.channel import ChangeNotifier, Channel
from genmcp.client.client import Client
from genmcp.client.errors import (
    ClientError,
    ConnectError,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    ServerError,
)
from genmcp.composite.errors import CompositeError
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import (
    InvalidParams,
    McpError,
    Overloaded,
    ResourceNotFound,
    ToolError,
)
from genmcp.hub.index import LISTS, HubRoute, Index
from genmcp.hub.interests import Interests
from genmcp.hub.limits import HubLimits
from genmcp.hub.members import Members
from genmcp.hub.relay import Relay, RelayingHandler, Work
from genmcp.protocol.capabilities import (
    TASKS,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.completion import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Server

__all__ = ["HubServer"]

logger = logging.getLogger("genmcp.hub")

_RELAY: Final = "relay"

# What says that there is no such resource: 2026-07-28, and before.
_NOT_FOUND: Final = (-32602, -32002)

_GONE: Final = "The server behind this one cannot be reached"
_SAID: Final[Mapping[type[Exception], str]] = {
    OutcomeUnknown: "The server behind this one is gone: it may or may not have done this",
    RequestTimeout: "The server behind this one took too long",
    ProtocolError: "The server behind this one broke the protocol",
}

_CALLS: Final = ("tools/call", "prompts/get", "resources/read", "completion/complete")


class HubServer(Server):
    """What all *members* have, under the name of *info*; see `Hub.server`."""

    def __init__(self, members: Members, info: Implementation) -> None:
        self._members = members
        self._info = info
        self._kept = _Kept(members.asked.limits)
        self._index = Index(members)
        self._interests = Interests(self._index, members.changes)

    def __repr__(self) -> str:
        return f"<HubServer {self._info.name}>"

    @property
    def info(self) -> Implementation:
        """The name it was given."""
        return self._info

    @property
    def capabilities(self) -> ServerCapabilities:
        """What there may be, whatever servers there are."""
        return ServerCapabilities(
            logging={},
            tools=ToolsCapability(list_changed=True),
            resources=ResourcesCapability(list_changed=True, subscribe=True),
            prompts=PromptsCapability(list_changed=True),
            completions={},
            extensions={TASKS: {}},
        )

    @property
    def methods(self) -> Collection[str]:
        """Those of tools, resources, prompts and completion."""
        return (*LISTS, *_CALLS)

    @property
    def changes(self) -> ChangeNotifier:
        """What says that a server has other lists, has come, or is gone."""
        return self._members.changes

    def hearing(self, uris: Collection[str]) -> AbstractAsyncContextManager[Collection[str]]:
        """Have the servers whose resources they are tell of them."""
        return self._interests.hearing(uris)

    def find(self, method: str, key: str) -> HubRoute | None:
        """Return whom to ask: whose name *key* begins with, or who lists the URI."""
        return self._index.now.find(method, key)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Have the server answer whose request it is; pass on what it asks."""
        if request.route is None:
            return await self._completed(request)
        return await self._step(Relay(channel, self._work(request), self._members.asked), channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Give the server the answers it waits for."""
        relay = self._kept.take(continuation.assigns.get(_RELAY))
        if relay is None or relay.given_up:
            raise InvalidParams("The call does not wait for an answer any more: make it again")
        relay.channel = channel
        relay.answer(outcome)
        return await self._step(relay, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Have the server stop."""
        relay = self._kept.take(channel._own.get(_RELAY))
        if relay is not None:
            relay.cancel()

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return everything on one page."""
        if cursor is not None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        return self._index.now.page(method)

    async def _step(self, relay: Relay, channel: Channel) -> Result | Continue:
        try:
            step = await relay.step()
        except asyncio.CancelledError:
            relay.cancel()
            raise
        except (ClientError, CompositeError) as error:
            raise _told(error, channel.request.method) from error
        if isinstance(step, Continue):
            channel._own[_RELAY] = self._kept.keep(relay)
        return step

    def _work(self, request: Request) -> Work:
        """Return what asks the server for what *request* wants."""
        route = request.route
        assert isinstance(route, HubRoute)
        params: Any = request.params

        def asked(client: Client, relay: Relay) -> Any:
            match request.method:
                case "tools/call":
                    given = msgspec.json.decode(params.arguments or b"{}")
                    report = relay.progress if request.progress_token is not None else None
                    return client.call(route.key, given, progress=report)
                case "prompts/get":
                    return client.prompt(route.key, params.arguments)
                case _:
                    return client.read(route.key)

        async def work(relay: Relay) -> Result:
            async def ask(client: Client) -> Any:
                handler = member.handler
                served: AbstractAsyncContextManager[None] = nullcontext()
                if isinstance(handler, RelayingHandler):
                    served = handler.serving(relay, client)
                async with served:
                    return await asked(client, relay)

            failure: Exception | None = None
            for member in route.members:
                decides = len(route.members) == 1 or member in route.owners
                try:
                    answer: Result = await member.ask(ask)
                    return answer
                except (ServerError, ConnectError, CompositeError) as error:
                    lacks = isinstance(error, ServerError) and error.code in _NOT_FOUND
                    if decides and (not lacks or len(route.members) == 1):
                        raise
                    # Servers also use codes of their own for a resource they do not have.
                    failure = failure or (None if lacks else error)
            raise failure or ResourceNotFound(route.key)

        return work

    async def _completed(self, request: Request) -> CompleteResult:
        params: Any = request.params
        assert isinstance(params, CompleteRequestParams)
        ref = params.ref
        if isinstance(ref, PromptReference):
            route = self.find("prompts/get", ref.name)
        else:
            route = self._index.now.completing(ref.uri)
        if route is None:
            raise InvalidParams("Nothing is called like this whose arguments could be completed")
        if isinstance(ref, PromptReference):
            ref = msgspec.structs.replace(ref, name=route.key)
        context = params.context.arguments if params.context else None
        argument = params.argument
        try:
            completion = await route.members[0].ask(
                lambda client: client.complete(ref, argument.name, argument.value, context)
            )
        except (ClientError, CompositeError) as error:
            raise _told(error, request.method) from error
        return CompleteResult(completion=completion)


class _Kept:
    """Relays that wait for whoever has called to come back; each for a while, and not too many."""

    def __init__(self, limits: HubLimits) -> None:
        self._most = limits.all_questions
        self._timeout = limits.answer_timeout
        self._relays: dict[str, tuple[Relay, asyncio.TimerHandle]] = {}

    def keep(self, relay: Relay) -> str:
        """Keep *relay*, and return under which name.

        Raises:
            Overloaded: there are too many.
        """
        if len(self._relays) >= self._most:
            relay.cancel()
            raise Overloaded(
                f"Too many calls wait for an answer: {self._most} (HubLimits.all_questions)"
            )
        name = secrets.token_urlsafe(12)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._run_out, name)
        self._relays[name] = relay, timer
        return name

    def take(self, name: str | None) -> Relay | None:
        """Return the relay of that *name*, which is not kept any more; None: it is not there."""
        relay, timer = self._relays.pop(name or "", (None, None))
        if timer is not None:
            timer.cancel()
        return relay

    def _run_out(self, name: str) -> None:
        relay = self.take(name)
        if relay is not None:
            relay.cancel()


def _told(error: Exception, method: str) -> Exception:
    """Return the error that the caller gets for *error*.

    It has the text of the member server only: the text of this side names the command line or URL
    of the member, and belongs in the log.
    """
    if isinstance(error, ServerError):
        return McpError(error.message, error.data, code=error.code)
    logger.warning("%s failed: %s", method, error)
    other = _GONE if not getattr(error, "sent", False) else _SAID[OutcomeUnknown]
    text = next((text for kind, text in _SAID.items() if isinstance(error, kind)), other)
    return ToolError(text) if method == "tools/call" else McpError(text)
