"""One server of a hub: connected to, watched, and connected to again when it is gone."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ClientError, ConnectError, ProcessExited, ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import ReconnectError, UnknownServer
from genmcp.errors import GenmcpError, MethodNotFound
from genmcp.hub.catalog import KINDS, Catalog
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.following import kinds_of, listed, listening, told_of
from genmcp.hub.line import Line, connected
from genmcp.hub.load import Load
from genmcp.hub.pace import LIVED, Again, Deadline, Pace
from genmcp.hub.updates import Updates

__all__ = ["Member", "Observer"]

logger = logging.getLogger("genmcp.hub")

# What says that there is no connection any more. A request that takes too long, that is refused,
# or whose response breaks off says nothing of it.
_BROKEN: Final = (ClientClosed, ProcessExited, ConnectError)

#: A connection that is ended here, of a server without a retry, has one attempt at another.
_ONCE: Final = Retry(1)

_NONE: Final = Deadline()

R = TypeVar("R")


class _Renewed(ClientClosed):
    """It was ended here, to begin another."""


class Observer(ABC):
    """Who is told of a member: the hub."""

    @abstractmethod
    def changed(self, kinds: Collection[str]) -> None:
        """Learn that lists of these *kinds* (`tools`, `resources`, `prompts`) are others now."""

    @abstractmethod
    def updated(self, uri: str) -> None:
        """Learn that the resource *uri* is another now."""

    @abstractmethod
    def lost(self, member: "Member", error: ReconnectError) -> None:
        """Learn that *member* is gone for good."""


class Member:
    """The server of *config*, with a new client for each connection.

    `catalog` is what it lists, as far as is known; `updates` subscribes to its resources.
    handler, options: those of each client.
    """

    def __init__(
        self,
        config: ServerConfig,
        handler: ClientHandler[Any] | None,
        options: ClientOptions,
        pace: Pace,
        observer: Observer,
    ) -> None:
        self.config = config
        self.handler = handler
        self._options = options
        self.name = config.name
        self.catalog = Catalog()
        self.updates = Updates(self.name, observer.updated, pace)
        self._pace = pace
        self._observer = observer
        self._client: Client | None = None
        self._load = Load()
        self._stale: Client | None = None
        self._connected: asyncio.Future[Client] | None = None
        self._broken = asyncio.Event()
        self._cause: Exception | None = None
        self._line: Line
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and find out what it has.

        Raises:
            ConnectError: that was not possible; nothing of it is left.
        """
        self._connected = asyncio.get_running_loop().create_future()
        self._line = await self._connect()
        self._watch = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the connection, and what would begin another."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
            await self._line.close()  # it may not have begun to watch
        self._client = None
        self._give_up(UnknownServer(self.name))

    async def client(self) -> Client:
        """Return the connected client; while it is being connected to again, wait for that.

        Raises:
            ConnectError: it cannot be connected to. UnknownServer: it was unregistered.
        """
        assert self._connected is not None  # it was opened
        if self._client is not None and not self._client.is_open:
            self._suspect(self._client)
        return await asyncio.shield(self._connected)

    async def ask(self, request: Callable[[Client], Awaitable[R]], deadline: Deadline = _NONE) -> R:
        """Return what a *request* to the server gives.

        One of which nothing was sent, because the connection had broken, is made again on the next
        one, and where none came about while others are being answered, after a while: once, or as
        often as the server's `Retry` has attempts. One that may have been carried out never is.
        deadline: until when a connection is waited for.

        Raises:
            ConnectError, UnknownServer: there is no next connection. RequestTimeout: not in time.
            ClientError: what the request fails with.
        """
        attempt = 0
        while True:
            async with deadline.limit(self.name):
                client = await self.client()
            try:
                with self._load.request(client):
                    return await request(client)
            except ClientError as error:
                failure = error
            finally:
                self._renew_if_idle(client)
            async with deadline.limit(self.name):
                repeats = await self._may_repeat(client, failure, attempt)
            if not repeats:
                raise failure
            attempt += 1

    @property
    def work(self) -> tuple[int, Collection[Hashable]]:
        """How many requests wait for the server; who has given up calls it may still work on."""
        client = self._client
        return (self._load.running(client), self._load.left_by(client)) if client else (0, ())

    def renew(self) -> None:
        """Connect again as soon as no request waits: nobody knows what the server works on."""
        self._stale = self._client
        self._renew_if_idle(self._client)

    def _renew_if_idle(self, client: Client | None) -> None:
        if client and client is self._stale and not self._load.running(client):
            self._stale = None
            logger.warning("%s is connected to again: a call was given up, and it asks", self.name)
            self._suspect(client, _Renewed(self.name))

    async def _may_repeat(self, client: Client, error: ClientError, attempt: int) -> bool:
        """Take in that a request of *client* failed; return whether it is to be made again.

        Where others are being answered one that reached nobody says nothing of the connection: it
        waits as long as there is between two attempts to connect.
        """
        retry = self.config.retry
        repeats = not error.sent and attempt < (retry.max_attempts if retry else 1)
        if isinstance(error, ConnectError) and client.is_open and self._load.running(client):
            if retry is not None and repeats:
                await self._pace.wait(retry, attempt)
                return True
            return False
        if isinstance(error, _BROKEN):
            self._suspect(client, error)
        return repeats and client is not self._client

    def _suspect(self, client: Client, error: Exception | None = None) -> None:
        """Take *client*, unless it is an older one, for broken: it is replaced, or evicted."""
        if client is self._client:
            self._client = None
            self._connected = asyncio.get_running_loop().create_future()
            self._cause = error
            self._broken.set()

    async def _connect(self) -> Line:
        """Connect, for the first time or again.

        Raises:
            ConnectError: that was not possible; nothing is left of it.
        """
        line = await connected(self.config, self.handler, self._options, self.updates.end)
        self._broken.clear()
        self._client = line.client
        self.catalog = line.catalog
        assert self._connected is not None
        self._connected.set_result(line.client)
        self.updates.begin(line.client)
        return line

    async def _run(self) -> None:
        """Watch the connection, and see to the next one, until there is none."""
        loop = asyncio.get_running_loop()
        before = -1  # how often in a row it has broken soon
        while True:
            line, began = self._line, loop.time()
            try:
                error = await self._watched(line)
                self._suspect(line.client, error)
            finally:
                await line.close()
            try:
                before = 0 if loop.time() - began > LIVED else before + 1
                self._line = await self._reconnected(error, before)
            except ReconnectError as failure:
                self._give_up(failure)
                self._observer.lost(self, failure)
                return
            self._observer.changed(KINDS)

    async def _reconnected(self, cause: Exception | None, before: int) -> Line:
        """Connect again, after ever longer waits; there have been some *before*.

        Raises:
            ReconnectError: that is given up.
        """
        retry = self.config.retry or (_ONCE if isinstance(cause, _Renewed) else None)
        failure: BaseException = cause or ClientClosed(self.name)
        attempts = retry.max_attempts if retry else 0
        for attempt in range(attempts):
            assert retry is not None
            await self._pace.wait(retry, before + attempt)
            try:
                return await self._connect()
            except ConnectError as error:
                logger.warning("%s (attempt %d)", error, attempt + 1)
                failure = error.__cause__ or error
        raise ReconnectError(self.name, attempts, failure) from failure

    async def _watched(self, line: Line) -> Exception | None:
        """Keep what is listed up to date until *line* is broken, and return what broke it."""
        loop = asyncio.get_running_loop()
        ended = loop.create_task(line.client.ended())
        broken = loop.create_task(self._broken.wait())
        following = loop.create_task(self._follow(line))
        tasks = (ended, broken, following)
        try:
            await asyncio.wait((ended, broken), return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else self._cause
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow(self, line: Line) -> None:
        """Look at each list again when it has changed, for as long as *line* is there.

        That the stream of changes ends, or a list cannot be read, says nothing of the connection:
        after a while there is another stream, and what was missed is looked at.
        """
        client, changes = line.client, line.changes
        again = Again(self._pace)
        while told_of(client):
            try:
                async with AsyncExitStack() as stack:
                    if changes is None:
                        changes = await stack.enter_async_context(listening(client))
                        await self._refresh(client, KINDS)
                    else:
                        stack.push_async_exit(changes)
                    async for change in changes:
                        await self._refresh(client, kinds_of(change.method))
            except GenmcpError as error:
                logger.info("%s tells of changes no more: %s", self.name, error)
                if isinstance(error, ServerError) and error.code == MethodNotFound.code:
                    return
            if not client.is_open:
                return
            changes = None
            await again.wait()

    async def _refresh(self, client: Client, kinds: Collection[str]) -> None:
        """Read the lists of *kinds*, and tell which have changed.

        Raises:
            ClientError: not all of them can be read; the others are.
        """
        before = self.catalog
        self.catalog, failure = await listed(client, kinds, before, self._options.schemas)
        self._observer.changed([kind for kind in kinds if not self.catalog.agrees(before, kind)])
        if failure is not None:
            raise failure

    def _give_up(self, error: Exception) -> None:
        """Tell whoever waits for the connection, or asks for it later."""
        if self._connected is None or self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_exception(error)
        self._connected.exception()  # nobody need wait for it
