"""The client of one server of a hub, replaced by a new client when its connection breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from msgspec import UNSET

from genmcp._core.request import Policy
from genmcp.cancellation import cancel_and_wait
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ProcessExited,
    RequestTimeout,
    ServerError,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import ReconnectError, UnknownServer
from genmcp.errors import (
    GenmcpError,
    MethodNotFound,
)
from genmcp.hub.config import Backoff, HubLimits, Retry, ServerConfig
from genmcp.hub.connection import (
    KINDS,
    MemberCatalog,
    MemberConnection,
    announced_kinds,
    kinds_of,
    listen,
    read_lists,
)
from genmcp.hub.relay import (
    current_caller,
)
from genmcp.hub.subscriptions import MemberSubscriptions, StreamBackoff

logger = logging.getLogger("genmcp.hub")

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


class ConnectionDeadline:
    """The deadline of a request, which includes the wait for a connection.

    *seconds* count from the construction. With None or UNSET the wait for a connection is not
    limited, and the value is passed to the client as the timeout of the request.
    """

    def __init__(self, seconds: Timeout = UNSET) -> None:
        self._seconds = seconds
        self._until: float | None = None
        if isinstance(seconds, int | float):
            self._until = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> Timeout:
        """The seconds that are left, as the `timeout` of a client's request."""
        if self._until is None:
            return self._seconds
        left = self._until - asyncio.get_running_loop().time()
        # A passed deadline gives 1 ms: a client rejects a timeout that is not above zero.
        return max(round(left, 2), 0.001)

    @asynccontextmanager
    async def limit(self, server_name: str) -> AsyncIterator[None]:
        """Limit the block, which waits for a connection to *server_name*, to the deadline.

        Raises:
            RequestTimeout: the deadline has passed.
        """
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            assert isinstance(self._seconds, int | float)
            raise _ConnectionTimeout("connecting again", server_name, self._seconds) from None


_NO_DEADLINE: Final = ConnectionDeadline()


class InflightCounter:
    """The requests of each connection that are running, or were cancelled without a response."""

    def __init__(self) -> None:
        self._running: WeakKeyDictionary[Client, int] = WeakKeyDictionary()
        self._cancelled: WeakKeyDictionary[Client, set[Hashable]] = WeakKeyDictionary()

    @contextmanager
    def request(self, client: Client) -> Iterator[None]:
        """Count a request of *client* while this is entered."""
        # Drops the callers of cancelled calls if the server has responded to all of these calls.
        # Otherwise those callers would still count when a later call is cancelled.
        self.cancelled_by(client)
        self._running[client] = self.running(client) + 1
        try:
            yield
        except (asyncio.CancelledError, RequestTimeout):
            self._cancelled.setdefault(client, set()).add(current_caller())
            raise
        finally:
            self._running[client] -= 1

    def running(self, client: Client) -> int:
        """Return how many requests wait for a response."""
        return self._running.get(client, 0)

    def cancelled_by(self, client: Client) -> Collection[Hashable]:
        """Return the callers of the cancelled calls that the server may still be running.

        None among them stands for a caller that is not known.
        """
        if client.abandoned_calls:
            return self._cancelled.get(client, {None})
        self._cancelled.pop(client, None)  # the server has responded to all of them
        return ()


class ReconnectingClient:
    """The client of one server, replaced by another when its connection breaks.

    Owned by the `HubMember`. A task watches the connection, reads lists that have changed, and
    reconnects as the server's `Retry` allows; if that fails, `on_lost` is called once.

    catalog: the lists of the server as they were read last.
    on_changed: called with the kinds of lists (`tools`, `resources`, `prompts`) that have changed.
    """

    def __init__(
        self,
        config: ServerConfig,
        options: ClientOptions,
        backoff: Backoff,
        limits: HubLimits,
        subscriptions: MemberSubscriptions,
        *,
        on_changed: Callable[[Collection[str]], None],
        on_lost: Callable[[ReconnectError], None],
    ) -> None:
        self.config = config
        self.handler: ClientHandler | None = None
        self.catalog = MemberCatalog()
        self._name = config.name
        self._options = options
        self._backoff = backoff
        self._limits = limits
        self._subscriptions = subscriptions
        self._on_changed = on_changed
        self._on_lost = on_lost
        self._client: Client | None = None
        self._inflight = InflightCounter()
        self._stale: Client | None = None
        self._connected: asyncio.Future[Client] | None = None
        self._broken = asyncio.Event()
        self._cause: Exception | None = None
        self._connection: MemberConnection
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and read the lists.

        Raises:
            ConnectError: the connection failed, and was closed.
        """
        self._connected = asyncio.get_running_loop().create_future()
        self._connection = await self._connect()
        self._watcher = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Close the connection, and stop reconnecting."""
        if self._watcher is not None:
            await cancel_and_wait(self._watcher)
            # A watcher that is cancelled before its first step has not closed the connection.
            await self._connection.close()
        self._client = None
        self._fail_waiting(UnknownServer(self._name))

    async def current(self) -> Client:
        """Return the connected client. While the hub reconnects, wait for the new client.

        Raises:
            ConnectError: the hub cannot reconnect.
            UnknownServer: the server was unregistered.
        """
        assert self._connected is not None  # it was opened
        if self._client is not None and not self._client.is_open:
            self._replace(self._client)
        # Shielded: a request that is cancelled must not cancel the future that all others wait for.
        return await asyncio.shield(self._connected)

    async def send(
        self,
        request: Callable[[Client], Awaitable[R]],
        deadline: ConnectionDeadline = _NO_DEADLINE,
    ) -> R:
        """Return the response to *request*, which is called with the connected client.

        A request that failed before anything was sent is sent again on the next connection; if the
        connection still works for other requests, after a wait. It is repeated as often as the
        `Retry` has attempts, or once. A request that was sent is never repeated.

        Raises:
            ConnectError, UnknownServer: the connection cannot be restored.
            RequestTimeout: *deadline* has passed.
            ClientError: the error of the request.
        """
        attempt = 0
        while True:
            async with deadline.limit(self._name):
                client = await self.current()
            try:
                with self._inflight.request(client):
                    return await request(client)
            except ClientError as error:
                failure = error
            finally:
                # This request no longer counts: it may be the last one on a stale connection.
                self._renew_if_idle(client)
            async with deadline.limit(self._name):
                repeat = await self._may_repeat(client, failure, attempt)
            if not repeat:
                raise failure
            attempt += 1

    def work(self) -> tuple[int, Collection[Hashable]]:
        """Return how many requests are running, and the callers of those that were cancelled."""
        client = self._client
        if client is None:
            return 0, ()
        return self._inflight.running(client), self._inflight.cancelled_by(client)

    def renew(self) -> None:
        """Reconnect once no request is running, so that cancelled calls send no more questions."""
        self._stale = self._client
        self._renew_if_idle(self._client)

    def _renew_if_idle(self, client: Client | None) -> None:
        if client and client is self._stale and not self._inflight.running(client):
            self._stale = None
            logger.warning(
                "%s is connected to again: a call was cancelled, and the server asks questions",
                self._name,
            )
            self._replace(client, _Renewed(self._name))

    async def _may_repeat(self, client: Client, error: ClientError, attempt: int) -> bool:
        """Handle a failed request of *client*; return whether to send it again.

        While other requests are running, a request that could not be sent does not show that the
        connection is broken. It is repeated after the delay of the `Retry`.
        """
        retry = self.config.retry
        repeat = not error.sent and attempt < (retry.max_attempts if retry else 1)
        if isinstance(error, ConnectError) and client.is_open and self._inflight.running(client):
            if retry is not None and repeat:
                await self._backoff.wait(retry, attempt)
                return True
            return False
        if isinstance(error, _BROKEN):
            self._replace(client, error)
        return repeat and client is not self._client

    def _replace(self, client: Client, error: Exception | None = None) -> None:
        """Discard *client*, and make the watcher reconnect, unless it was replaced already."""
        # A request of a broken connection may fail after the next connection was opened.
        if client is self._client:
            self._client = None
            self._connected = asyncio.get_running_loop().create_future()
            self._cause = error
            self._broken.set()

    async def _connect(self) -> MemberConnection:
        """Open a connection, and give its client to the waiting requests.

        Raises:
            ConnectError: the connection failed, and was closed.
        """
        connection = await MemberConnection.open(
            self.config,
            self.handler,
            self._options,
            Policy(promote_after=self._limits.promote_after),
            self._subscriptions.end,
        )
        # Cleared before requests get the client: the first request may set the event again.
        self._broken.clear()
        self._client = connection.client
        self.catalog = connection.catalog
        assert self._connected is not None
        self._connected.set_result(connection.client)
        self._subscriptions.begin(connection.client)
        return connection

    async def _run(self) -> None:
        """Watch the connection, and reconnect when it breaks, until reconnecting fails."""
        loop = asyncio.get_running_loop()
        # After each consecutive short connection the wait is longer: the server may crash again.
        short_lived = -1
        while True:
            connection, began = self._connection, loop.time()
            try:
                error = await self._watch(connection)
                self._replace(connection.client, error)
            finally:
                # Closed before the next one is opened: two processes could write to the same files.
                await connection.close()
            stable = loop.time() - began > self._limits.stable_after
            short_lived = 0 if stable else short_lived + 1
            try:
                self._connection = await self._reconnect(error, short_lived)
            except ReconnectError as failure:
                self._fail_waiting(failure)
                self._on_lost(failure)
                return
            self._on_changed([*KINDS])

    async def _reconnect(self, cause: Exception | None, first: int) -> MemberConnection:
        """Reconnect after ever longer waits; *first* is the number of the first wait.

        Raises:
            ReconnectError: every attempt failed, or there is no `Retry`.
        """
        retry = self.config.retry or (_ONE_ATTEMPT if isinstance(cause, _Renewed) else None)
        failure: BaseException = cause or ClientClosed(self._name)
        attempts = retry.max_attempts if retry else 0
        for attempt in range(attempts):
            assert retry is not None
            await self._backoff.wait(retry, first + attempt)
            try:
                return await self._connect()
            except ConnectError as error:
                logger.warning("%s (attempt %d)", error, attempt + 1)
                failure = error.__cause__ or error
        raise ReconnectError(self._name, attempts, failure) from failure

    async def _watch(self, connection: MemberConnection) -> Exception | None:
        """Keep the lists up to date until *connection* breaks; return the error, if any."""
        loop = asyncio.get_running_loop()
        ended = loop.create_task(connection.client.ended())
        broken = loop.create_task(self._broken.wait())
        backoff = StreamBackoff(self._backoff, self._limits)
        following = loop.create_task(
            _follow(self._name, connection, backoff, partial(self._refresh, connection.client))
        )
        try:
            await asyncio.wait((ended, broken), return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else self._cause
        finally:
            await cancel_and_wait(ended, broken, following)

    async def _refresh(self, client: Client, kinds: Collection[str]) -> None:
        """Read the lists of *kinds*, and announce the kinds that have changed.

        Raises:
            ClientError: a list could not be read. The lists that could be read were updated.
        """
        before = self.catalog
        self.catalog, failure = await read_lists(client, kinds, before)
        self._on_changed([kind for kind in kinds if not self.catalog.agrees(before, kind)])
        if failure is not None:
            raise failure

    def _fail_waiting(self, error: Exception) -> None:
        """Raise *error* in all requests that wait for a connection, and in later ones."""
        if self._connected is None or self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_exception(error)
        self._connected.exception()  # marks the error as retrieved, in case no request waits


async def _follow(
    server_name: str,
    connection: MemberConnection,
    backoff: StreamBackoff,
    refresh: Callable[[Collection[str]], Awaitable[None]],
) -> None:
    """Call *refresh* with the kinds of lists whenever the server announces changes.

    If the stream ends, or a list cannot be read, the connection may still work. The stream is
    opened again after a wait, and all lists are read, since changes may have been missed.
    """
    client, changes = connection.client, connection.changes
    while announced_kinds(client):
        try:
            async with AsyncExitStack() as stack:
                if changes is None:
                    changes = await stack.enter_async_context(listen(client))
                    await refresh([*KINDS])
                else:
                    stack.push_async_exit(changes)
                async for change in changes:
                    await refresh(kinds_of(change.method))
        except GenmcpError as error:
            logger.info("%s no longer announces changes: %s", server_name, error)
            # The server declares `listChanged`, but does not have a method to receive changes.
            if isinstance(error, ServerError) and error.code == MethodNotFound.code:
                return
        if not client.is_open:
            return
        changes = None
        await backoff.wait()
