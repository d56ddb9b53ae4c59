"""One server of a hub: connected to, watched, and connected to again when it is gone."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from genmcp.client.client import Client
from genmcp.client.errors import ClientError, Closed, ProcessEnded, ServerSaid, Unreachable
from genmcp.client.handler import ClientHandler
from genmcp.client.http_options import HttpOptions
from genmcp.client.listening import Listening
from genmcp.client.options import ClientOptions
from genmcp.client.stdio_options import Command
from genmcp.client.targets import Target, transport_to
from genmcp.errors import GenmcpError, MethodNotFound
from genmcp.hub.catalog import KINDS, Catalog
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.errors import ConnectFailed, ServerNotFound
from genmcp.hub.following import kinds_of, listed, listening, told_of

__all__ = ["Member", "Observer", "Pace"]

logger = logging.getLogger("genmcp.hub")

# What says that there is no connection any more. A request that takes too long, that is refused,
# or whose response breaks off says nothing of it.
_BROKEN: Final = (Closed, ProcessEnded, Unreachable)

#: After what time changes are listened for again, and what stream counts as one that lasted.
_AGAIN: Final = Retry(base_delay=1.0, cap=60.0, jitter=0.5)
_LIVED: Final = 60.0

R = TypeVar("R")


class Pace(msgspec.Struct, frozen=True):
    """How time passes between attempts to connect: *sleep*, and *chance*, below 1, for jitter."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class Observer(ABC):
    """Who is told of a member: the hub."""

    @abstractmethod
    def changed(self, kinds: Collection[str]) -> None:
        """Learn that lists of these *kinds* (`tools`, `resources`, `prompts`) are others now."""

    @abstractmethod
    def lost(self, member: "Member", error: Exception) -> None:
        """Learn that *member* is gone for good."""


class _Line(NamedTuple):
    """A connection: its client, what tells of changes if anything does, and how it is closed."""

    client: Client
    changes: Listening | None
    closing: AsyncExitStack


class Member:
    """The server of *config*, with a new client for each connection.

    `catalog` is what it lists, as far as is known. handler, options: those of each client.
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
        self._pace = pace
        self._observer = observer
        self._client: Client | None = None
        self._running: WeakKeyDictionary[Client, int] = WeakKeyDictionary()
        self._connected: asyncio.Future[Client] | None = None
        self._broken = asyncio.Event()
        self._cause: Exception | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and find out what it has.

        Raises:
            ConnectFailed: that was not possible; nothing of it is left.
        """
        self._connected = asyncio.get_running_loop().create_future()
        line = await self._connect()
        self._watch = asyncio.get_running_loop().create_task(self._run(line))

    async def close(self) -> None:
        """End the connection, and what would begin another."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        self._client = None
        self._give_up(ServerNotFound(self.name))

    async def client(self) -> Client:
        """Return the connected client; while it is being connected to again, wait for that.

        Raises:
            ConnectFailed: it cannot be connected to. ServerNotFound: it was unregistered.
        """
        assert self._connected is not None  # it was opened
        if self._client is not None and not self._client.is_open:
            self._suspect(self._client)
        return await asyncio.shield(self._connected)

    async def ask(self, request: Callable[[Client], Awaitable[R]]) -> R:
        """Return what a *request* to the server gives; see `Members.on`."""
        attempt = 0
        while True:
            client = await self.client()
            self._running[client] = self._running.get(client, 0) + 1
            try:
                return await request(client)
            except ClientError as error:
                failure = error
            finally:
                self._running[client] -= 1
            if not await self._may_repeat(client, failure, attempt):
                raise failure
            attempt += 1

    @property
    def calls(self) -> int:
        """How many requests the server may be working on, those that were given up among them."""
        client = self._client
        return 0 if client is None else self._running.get(client, 0) + client.left_calls

    async def _may_repeat(self, client: Client, error: ClientError, attempt: int) -> bool:
        """Take in that a request of *client* failed; return whether it is to be made again.

        Where others are being answered one that reached nobody says nothing of the connection: it
        waits as long as there is between two attempts to connect.
        """
        retry = self.config.retry
        repeats = not error.sent and attempt < (retry.max_attempts if retry else 1)
        if isinstance(error, Unreachable) and client.is_open and self._running[client]:
            if retry is not None and repeats:
                await self._pace.sleep(retry.delay(attempt, self._pace.chance()))
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

    async def _connect(self) -> _Line:
        """Connect, for the first time or again.

        Raises:
            ConnectFailed: that was not possible; nothing is left of it.
        """
        config, options = self.config, self._options
        async with AsyncExitStack() as stack:
            try:
                client = Client(_target(config, options), handler=self.handler, options=options)
                await stack.enter_async_context(client)
                # First this, then the lists: what changes in between is heard of.
                changes = None
                if told_of(client):
                    with suppress(ClientError):  # it is tried again
                        changes = await stack.enter_async_context(listening(client))
                catalog = Catalog(reads=client.capabilities.resources is not None)
                catalog, failure = await listed(client, [*KINDS], catalog)
                if failure is not None:
                    raise failure
            except Exception as error:  # of whatever kind: the `init` of a handler runs here, too
                raise ConnectFailed(self.name, error) from error
            line = _Line(client, changes, stack.pop_all())
        self._broken.clear()
        self._client = client
        self.catalog = catalog
        assert self._connected is not None
        self._connected.set_result(client)
        return line

    async def _run(self, line: _Line) -> None:
        """Watch *line*, and see to the next one, until there is none."""
        while True:
            try:
                error = await self._watched(line)
                self._suspect(line.client, error)
            finally:
                await line.closing.aclose()
            try:
                line = await self._reconnected(error)
            except ConnectFailed as failure:
                self._give_up(failure)
                self._observer.lost(self, failure)
                return
            self._observer.changed(KINDS)

    async def _reconnected(self, cause: Exception | None) -> _Line:
        """Connect again, after ever longer waits.

        Raises:
            ConnectFailed: that is given up.
        """
        retry = self.config.retry
        failure = ConnectFailed(self.name, cause or Closed(self.name))
        for attempt in range(retry.max_attempts if retry else 0):
            assert retry is not None
            await self._pace.sleep(retry.delay(attempt, self._pace.chance()))
            try:
                return await self._connect()
            except ConnectFailed as error:
                logger.warning("%s (attempt %d)", error, attempt + 1)
                failure = error
        raise failure

    async def _watched(self, line: _Line) -> Exception | None:
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

    async def _follow(self, line: _Line) -> None:
        """Look at each list again when it has changed, for as long as *line* is there.

        That the stream of changes ends, or a list cannot be read, says nothing of the connection:
        after a while there is another stream, and what was missed is looked at.
        """
        client, changes = line.client, line.changes
        loop = asyncio.get_running_loop()
        failures = 0
        while told_of(client):
            began = loop.time()
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
                if isinstance(error, ServerSaid) and error.code == MethodNotFound.code:
                    return
            if not client.is_open:
                return
            changes = None
            await self._pace.sleep(_AGAIN.delay(failures, self._pace.chance()))
            failures = 0 if loop.time() - began > _LIVED else failures + 1

    async def _refresh(self, client: Client, kinds: Collection[str]) -> None:
        """Read the lists of *kinds*, and tell which have changed.

        Raises:
            ClientError: not all of them can be read; the others are.
        """
        before = self.catalog
        self.catalog, failure = await listed(client, kinds, before)
        self._observer.changed([kind for kind in kinds if not self.catalog.agrees(before, kind)])
        if failure is not None:
            raise failure

    def _give_up(self, error: Exception) -> None:
        """Tell whoever waits for the connection, or asks for it later."""
        if self._connected is None or self._connected.done():
            self._connected = asyncio.get_running_loop().create_future()
        self._connected.set_exception(error)
        self._connected.exception()  # nobody need wait for it


def _target(config: ServerConfig, options: ClientOptions) -> Target:
    """Return what a client is to be a client of."""
    if config.command is not None:
        return Command(config.command, config.args, config.env, config.cwd)
    if config.url is not None and config.headers:
        http = HttpOptions(headers=config.headers)
        return transport_to(config.url, max_message=options.max_message, http=http)
    return config.target if config.url is None else config.url
