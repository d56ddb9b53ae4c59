"""A server of a hub: the connection to it, which is restored when it breaks, and calls to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from genmcp._mux.limits import ConcurrencyLimit
from genmcp.cancellation import cancel_and_wait, run_to_completion, shielded
from genmcp.channel import ChangeNotifier, Channel
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.errors import (
    AuthorizationFailed,
    ClientClosed,
    ClientError,
    ConnectError,
    Forbidden,
    InputFailed,
    OutcomeUnknown,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
    ServerError,
    Unauthorized,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.transports.targets import Target
from genmcp.composite.errors import CompositeError, ReconnectError, UnknownServer
from genmcp.composite.member import Member, UnlistedRoute
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Policy, Request
from genmcp.core.waiting import Continue
from genmcp.errors import (
    GenmcpError,
    InvalidParams,
    McpError,
    MethodNotFound,
    ResourceNotFound,
    ToolError,
)
from genmcp.hub.catalog import (
    KINDS,
    MemberCatalog,
    announced_kinds,
    kinds_of,
    listen,
    read_lists,
)
from genmcp.hub.config import STABLE_AFTER, Retry, ServerConfig, Sleep
from genmcp.hub.relay import (
    ForwardedCall,
    RelayingHandler,
    SuspendedCalls,
    current_call,
    question_limit,
)
from genmcp.hub.subscriptions import MemberSubscriptions, StreamBackoff
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.prompts import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route

logger = logging.getLogger("genmcp.hub")

# The assign of a suspended call that holds its key in `SuspendedCalls`.
_RELAY: Final = "relay"
_UNREACHABLE: Final = "The server behind this one cannot be reached"
_NO_QUESTION: Final = "The server behind this one asks a question, which only a component may"
_UNKNOWN: Final = "The server behind this one is gone: it may or may not have done this"

# Callers of cancelled calls at one server. Of more it is only known that there are some.
_MAX_CANCELLED: Final = 100

# The errors that mean that the connection is broken. Other errors do not: a request may time out,
# be rejected, or lose its response on a connection that still works.
_BROKEN: Final = (ClientClosed, ProcessExited, ConnectError)

#: If the hub itself closes the connection of a server without a `Retry`, it reconnects once.
_ONE_ATTEMPT: Final = Retry(1)

R = TypeVar("R")


class _Renewed(ClientClosed):
    """The hub itself closed the connection, in order to open a new one."""


class _ConnectionTimeout(RequestTimeout):
    """No connection was available in time; nothing was sent."""

    sent = False


class HubSettings(msgspec.Struct, frozen=True, eq=False):
    """The settings of a hub, and the counts of questions, which all its members share.

    handler: answers the questions of the servers.
    """

    handler: ClientHandler | None = None
    options: ClientOptions = ClientOptions()
    policy: Policy = Policy(promote_after=10.0)
    sleep: Sleep = asyncio.sleep
    questions: ConcurrencyLimit = msgspec.field(default_factory=question_limit)
    suspended: SuspendedCalls = msgspec.field(default_factory=SuspendedCalls)


class MemberConnection(msgspec.Struct, eq=False):
    """An open connection. Owned by the member, which replaces it when it breaks.

    changes: the stream of list changes, None if the server has none or it could not be opened.
    requests: for each request without a response, the forwarded call that it belongs to, None for a
    request of the application itself. cancelled: the callers of cancelled calls that the server may
    still be running, None for a caller that is not known; see `forget_answered`. stale: whether to
    close the connection when no request is running.
    """

    client: Client
    changes: ChangeStream | None
    exits: AsyncExitStack
    requests: list[ForwardedCall | None] = []
    cancelled: set[Hashable] = set()
    stale: bool = False

    def forget_answered(self) -> None:
        """Forget the callers of cancelled calls once the server has responded to all of them."""
        if not self.client.abandoned_calls:
            self.cancelled.clear()

    def gave_up(self, caller: Hashable) -> None:
        """Note that a call of *caller* was cancelled, if the server may still be running it."""
        if self.client.abandoned_calls:
            if len(self.cancelled) >= _MAX_CANCELLED:
                self.cancelled = {None}
            self.cancelled.add(caller)

    async def close(self) -> None:
        """Close the connection. A cancellation of the caller does not interrupt the closing."""
        await run_to_completion(self.exits.aclose())


class HubMember(Member):
    """A server of a hub as a member of the hub's composite server. Owned by the hub.

    Requests are sent on the open connection. A task watches the connection, reads lists that have
    changed, and reconnects as the server's `Retry` allows; if that fails, *on_lost* is called once,
    with this member and the error. With *relays*, questions and log messages of the server are
    forwarded to the client that made the call, unless the hub has a handler.

    catalog: the lists of the server as they were read last. subscriptions: the resources that
    clients subscribed to.
    """

    def __init__(
        self,
        config: ServerConfig,
        settings: HubSettings,
        on_lost: Callable[["HubMember", ReconnectError], None],
        *,
        relays: bool = False,
    ) -> None:
        self.name = config.name
        self.catalog = MemberCatalog()
        self._config = config
        self._settings = settings
        self._on_lost = on_lost
        self._changes = ChangeNotifier()
        self.subscriptions = MemberSubscriptions(
            config.name, self._changes.resource_updated, settings.sleep
        )
        self._handler = settings.handler
        if self._handler is None and relays:
            self._handler = RelayingHandler(self._work_of_server, self._renew)
        # The connection that requests are sent on; None while there is none.
        self._connection: MemberConnection | None = None
        self._opened: MemberConnection  # the last one, which may be broken
        self._connected: asyncio.Future[MemberConnection]
        self._broken = asyncio.Event()
        self._cause: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    # The connection.

    async def open(self) -> None:
        """Connect, and read the lists.

        Raises:
            ConnectError: the connection failed, and was closed.
        """
        self._connected = asyncio.get_running_loop().create_future()
        connection = await self._connect()
        self._watcher = asyncio.get_running_loop().create_task(self._run(connection))

    async def close(self) -> None:
        """Close the connection, and stop reconnecting."""
        if self._watcher is not None:
            await cancel_and_wait(self._watcher)
            # A watcher that is cancelled before its first step has not closed the connection.
            await self._opened.close()
        self._connection = None
        self._fail_waiting(UnknownServer(self.name))

    async def current(self) -> MemberConnection:
        """Return the open connection. While the hub reconnects, wait for the new one.

        Raises:
            ConnectError: the hub cannot reconnect.
            UnknownServer: the server was removed.
        """
        if self._connection is not None and not self._connection.client.is_open:
            self._replace(self._connection)
        return await shielded(self._connected)  # other requests wait for it as well

    async def send(
        self, request: Callable[[Client, Timeout], Awaitable[R]], timeout: Timeout = UNSET
    ) -> R:
        """Return the response to *request*, which is called with the connected client.

        A request that failed before anything was sent is sent again on the next connection; if the
        connection still works for other requests, after a wait. It is repeated as often as the
        `Retry` has attempts, or once. A request that was sent is never repeated.

        Args:
            request: sends the request; its second argument is the timeout of the client's request.
            timeout: seconds, including the wait for a connection. With None or UNSET that wait is
                not limited, and the value is the timeout of the client's request.

        Raises:
            ConnectError, UnknownServer: the connection cannot be restored.
            RequestTimeout: the timeout has passed.
            ClientError: the error of the request.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout if isinstance(timeout, int | float) else None
        failed: tuple[MemberConnection, ClientError] | None = None
        attempt = 0
        while True:
            try:
                async with asyncio.timeout_at(until):
                    if failed is not None and not await self._may_repeat(*failed, attempt - 1):
                        raise failed[1]
                    connection = await self.current()
            except TimeoutError:
                assert isinstance(timeout, int | float)
                raise _ConnectionTimeout("connecting again", self.name, timeout) from None
            # A passed deadline gives 1 ms: a client rejects a timeout that is not above zero.
            left = timeout if until is None else max(round(until - loop.time(), 2), 0.001)
            try:
                return await self._sent(connection, request(connection.client, left))
            except ClientError as error:
                failed = connection, error
                attempt += 1

    async def _sent(self, connection: MemberConnection, response: Awaitable[R]) -> R:
        """Wait for *response*, and count the request meanwhile."""
        call = current_call()
        connection.forget_answered()
        connection.requests.append(call)
        try:
            return await response
        except (asyncio.CancelledError, RequestTimeout):
            connection.gave_up(None if call is None else call.caller)
            raise
        finally:
            connection.requests.remove(call)
            self._renew_if_idle(connection)

    def _work_of_server(self) -> tuple[Sequence[ForwardedCall | None], Collection[Hashable]]:
        """Return the calls of running requests, and the callers of those that were cancelled."""
        connection = self._connection
        if connection is None:
            return (), ()
        connection.forget_answered()
        return connection.requests, connection.cancelled

    def _renew(self) -> None:
        """Reconnect once no request is running, so that cancelled calls send no more questions."""
        if self._connection is not None:
            self._connection.stale = True
            self._renew_if_idle(self._connection)

    def _renew_if_idle(self, connection: MemberConnection) -> None:
        if connection.stale and not connection.requests and connection is self._connection:
            logger.warning(
                "%s is connected to again: a call was cancelled, and the server asks questions",
                self.name,
            )
            self._replace(connection, _Renewed(self.name))

    async def _may_repeat(
        self, connection: MemberConnection, error: ClientError, attempt: int
    ) -> bool:
        """Handle a failed request on *connection*; return whether to send it again.

        While other requests are running, a request that could not be sent does not show that the
        connection is broken. It is repeated after the delay of the `Retry`.
        """
        retry = self._config.retry
        repeat = not error.sent and attempt < (retry.max_attempts if retry else 1)
        if isinstance(error, ConnectError) and connection.client.is_open and connection.requests:
            if retry is not None and repeat:
                await retry.wait(attempt, self._settings.sleep)
                return True
            return False
        if isinstance(error, _BROKEN):
            self._replace(connection, error)
        return repeat and connection is not self._connection

    def _replace(self, connection: MemberConnection, error: Exception | None = None) -> None:
        """Discard *connection*, and make the watcher reconnect, unless it was replaced already."""
        # A request of a broken connection may fail after the next connection was opened.
        if connection is self._connection:
            self._connection = None
            self._connected = asyncio.get_running_loop().create_future()
            self._cause = error
            self._broken.set()

    async def _connect(self) -> MemberConnection:
        """Connect, read the lists, and give the connection to the waiting requests.

        Raises:
            ConnectError: the server cannot be connected to, or a list cannot be read. The
                connection was closed.
        """
        config, settings = self._config, self._settings
        stack = AsyncExitStack()
        stack.push_async_callback(self.subscriptions.end)
        try:
            options = settings.options
            if config.revision is not None:
                options = replace(options, revision=config.revision)
            client = Client(
                _target(config),
                headers=config.headers or {},
                auth=config.auth,
                handler=self._handler,
                options=options,
            )
            stack.push_async_callback(client.aclose)
            await client.open()
            # The stream is opened before the lists are read, so that no change is missed.
            changes = None
            if announced_kinds(client):
                with suppress(ClientError):  # `_follow_lists` opens the stream later
                    changes = await stack.enter_async_context(listen(client))
            resources = client.capabilities.resources
            catalog = MemberCatalog(
                readable=resources is not None,
                subscribable=resources is not None and bool(resources.subscribe),
                policy=settings.policy,
                extensions=client.capabilities.extensions,
            )
            catalog, failure = await read_lists(client, [*KINDS], catalog)
            if failure is not None:
                raise failure
        except BaseException as error:
            await run_to_completion(stack.aclose())
            if not isinstance(error, Exception):
                raise
            # Every exception is converted: `config.target` may be a transport of the user's own,
            # which may raise any.
            raise ConnectError(self.name, str(error)) from error
        connection = MemberConnection(client, changes, stack)
        # Cleared before requests get the connection: the first one may set the event again.
        self._broken.clear()
        self._connection = self._opened = connection
        self.catalog = catalog
        self._connected.set_result(connection)
        self.subscriptions.begin(client)
        return connection

    async def _run(self, connection: MemberConnection) -> None:
        """Watch the connection, and reconnect when it breaks, until reconnecting fails."""
        loop = asyncio.get_running_loop()
        # After each consecutive short connection the wait is longer: the server may crash again.
        short_lived = -1
        while True:
            began = loop.time()
            try:
                error = await self._watch(connection)
                self._replace(connection, error)
            finally:
                # Closed before the next one is opened: two processes could write to the same files.
                await connection.close()
            short_lived = 0 if loop.time() - began > STABLE_AFTER else short_lived + 1
            try:
                connection = await self._reconnect(error, short_lived)
            except ReconnectError as failure:
                self._fail_waiting(failure)
                self._on_lost(self, failure)
                return
            self._announce([*KINDS])

    async def _reconnect(self, cause: Exception | None, first: int) -> MemberConnection:
        """Reconnect after ever longer waits; *first* is the number of the first wait.

        Raises:
            ReconnectError: every attempt failed, or there is no `Retry`.
        """
        retry = self._config.retry or (_ONE_ATTEMPT if isinstance(cause, _Renewed) else None)
        failure: BaseException = cause or ClientClosed(self.name)
        attempts = retry.max_attempts if retry else 0
        for attempt in range(attempts):
            assert retry is not None
            await retry.wait(first + attempt, self._settings.sleep)
            try:
                return await self._connect()
            except ConnectError as error:
                logger.warning("%s (attempt %d)", error, attempt + 1)
                failure = error.__cause__ or error
        raise ReconnectError(self.name, attempts, failure) from failure

    async def _watch(self, connection: MemberConnection) -> Exception | None:
        """Keep the lists up to date until *connection* breaks; return the error, if any."""
        loop = asyncio.get_running_loop()
        ended = loop.create_task(connection.client.ended())
        broken = loop.create_task(self._broken.wait())
        following = loop.create_task(self._follow_lists(connection))
        try:
            await asyncio.wait((ended, broken), return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else self._cause
        finally:
            await cancel_and_wait(ended, broken, following)

    async def _follow_lists(self, connection: MemberConnection) -> None:
        """Read the lists whenever the server announces changes.

        If the stream ends, or a list cannot be read, the connection may still work. The stream is
        opened again after a wait, and all lists are read, since changes may have been missed.
        """
        client, changes = connection.client, connection.changes
        backoff = StreamBackoff(self._settings.sleep)
        while announced_kinds(client):
            try:
                async with AsyncExitStack() as stack:
                    if changes is None:
                        changes = await stack.enter_async_context(listen(client))
                        await self._refresh(client, [*KINDS])
                    else:
                        stack.push_async_exit(changes)
                    async for change in changes:
                        await self._refresh(client, kinds_of(change.method))
            except GenmcpError as error:
                logger.info("%s no longer announces changes: %s", self.name, error)
                # The server declares `listChanged`, but does not have a method to receive changes.
                if isinstance(error, ServerError) and error.code == MethodNotFound.code:
                    return
            if not client.is_open:
                return
            changes = None
            await backoff.wait()

    async def _refresh(self, client: Client, kinds: Collection[str]) -> None:
        """Read the lists of *kinds*, and announce the kinds that have changed.

        Raises:
            ClientError: a list could not be read. The lists that could be read were updated.
        """
        before = self.catalog
        self.catalog, failure = await read_lists(client, kinds, before)
        self._announce([kind for kind in kinds if not self.catalog.agrees(before, kind)])
        if failure is not None:
            raise failure

    def _announce(self, kinds: Collection[str]) -> None:
        for kind in kinds:
            getattr(self._changes, f"{kind}_list_changed")()

    def _fail_waiting(self, error: Exception) -> None:
        """Raise *error* in all requests that wait for a connection, and in later ones."""
        if self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_exception(error)
        self._connected.exception()  # marks the error as retrieved, in case no request waits

    # The member of a composite server.

    @property
    def info(self) -> Implementation:
        """The name of the server in the hub."""
        return Implementation(name=self.name, version="")

    @property
    def capabilities(self) -> ServerCapabilities:
        """The extensions of the server alone: the composite declares those of all members."""
        return ServerCapabilities(extensions=self.catalog.extensions)

    @property
    def methods(self) -> Collection[str]:
        """All methods of a composite server. A server without prompts lists zero prompts."""
        return (*self.catalog.pages, "completion/complete")

    @property
    def changes(self) -> ChangeNotifier:
        """Announces changes of the lists, and updates of resources."""
        return self._changes

    def find(self, method: str, key: str) -> Route | None:
        """Return the route of *key*; None if the server does not have *key*."""
        catalog = self.catalog
        route = catalog.routes[method].get(key)
        if route is not None or method != "resources/read":
            return route
        claimed = catalog.claims(key)
        return UnlistedRoute(claimed=claimed) if claimed or catalog.readable else None

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the list *method*, with all items on one page.

        Raises:
            InvalidParams: a *cursor* was given, although there is only one page.
        """
        if cursor is not None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        return self.catalog.pages[method]

    async def relay(self, params: Mapping[str, Any], channel: Channel) -> Mapping[str, Any]:
        """Forward the request of *channel*, a method of an extension, to the server.

        Raises:
            MethodNotFound: it belongs to no extension of the server.
            McpError: the server asks a question, which no method of an extension may.
        """
        from genmcp.composite.relay import is_of_any  # here: most members have no extensions

        if not is_of_any(channel.request.method, self.catalog.extensions):
            raise MethodNotFound(channel.request.method)
        work = partial(self._forward, channel.request, given=params)
        call = ForwardedCall(channel, work, self._settings.questions)
        found: Any = await self._step(call, channel, may_ask=False)
        return found if isinstance(found, Mapping) else {}

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Forward *request* to the server."""
        if request.route is None:
            return await self._complete(request)
        call = ForwardedCall(channel, partial(self._forward, request), self._settings.questions)
        return await self._step(call, channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Send the client's answers to the server, and wait for the result."""
        # The forwarded call is in the memory of one process. Answers that reach another process
        # cannot resume the call.
        call = self._settings.suspended.pop(continuation.assigns.get(_RELAY))
        if call is None or call.cancelled:
            raise InvalidParams("The call no longer waits for an answer: make it again")
        call.channel = channel
        call.answer(outcome)
        return await self._step(call, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Cancel a call that waits for its client's answer."""
        self._settings.suspended.cancel(channel.context.own_assigns.get(_RELAY))

    async def _step(
        self, call: ForwardedCall, channel: Channel, *, may_ask: bool = True
    ) -> Result | Continue:
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
            if not may_ask:
                call.cancel()
                raise McpError(_NO_QUESTION)
            channel.context.assigns[_RELAY] = self._settings.suspended.add(call)
        return step

    async def _forward(
        self, request: Request, call: ForwardedCall, given: Mapping[str, Any] | None = None
    ) -> Result:
        """Send *request* to the server as *call*, and return the result.

        *given* are the params of a method of an extension, whose result is JSON values.
        """
        params: Any = request.params

        async def send(client: Client, _: Timeout) -> Any:
            if isinstance(self._handler, RelayingHandler):
                await self._handler.lower_log_level(call, client)
            match request.method:
                case "tools/call":
                    arguments = msgspec.json.decode(params.given or b"{}")
                    progress = call.progress if request.progress_token is not None else None
                    meta = call.meta(self.name)
                    return await client.call(params.name, arguments, progress=progress, meta=meta)
                case "prompts/get":
                    return await client.prompt(params.name, params.arguments)
                case "resources/read":
                    return await client.read(params.uri)
                case method:
                    return await client.request(method, given)

        result: Result = await self.send(send)
        return result

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
            completion = await self.send(
                lambda client, _: client.complete(ref, argument.name, argument.value, context)
            )
        except (ClientError, CompositeError) as error:
            raise _translated(error, request.method) from error
        return CompleteResult(completion=completion)


def _translated(error: Exception, method: str) -> Exception:
    """Return the error that the hub's client gets for *error*.

    An error that the server sent, or the client whose answer it needed, is forwarded with its text.
    The texts of other errors name the command line or URL of the server. These errors are logged,
    and replaced by a general text.
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


def _target(config: ServerConfig) -> Target:
    if config.command is not None:
        return Command(config.command, config.args, config.env, config.cwd)
    return config.target if config.url is None else config.url
