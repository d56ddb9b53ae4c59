"""Resource subscriptions of a hub's clients, forwarded to the servers that own the resources."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Listener
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerError
from genmcp.client.subscriptions import ChangeStream
from genmcp.composite.server import CompositeServer, Members
from genmcp.core.subscription import RESOURCES, ServerChange, is_at_or_below
from genmcp.errors import Overloaded
from genmcp.hub.config import STABLE_AFTER, STREAM_RETRY, Sleep

logger = logging.getLogger("genmcp.hub")

# Resources that all clients together may subscribe to.
_MAX_SUBSCRIPTIONS: Final = 10_000
# Seconds for which a subscription at a server is kept after the last client has unsubscribed:
# clients that reconnect, or that change their subscriptions, subscribe again at once.
_LINGER: Final = 5.0
# Seconds that a server may take to accept a subscription, which then counts as accepted.
_ACCEPT_TIMEOUT: Final = 5.0


class StreamBackoff:
    """The waits before a stream that has ended is opened again.

    Each wait is longer than the one before. After a stream that lasted for longer than
    `STABLE_AFTER`, the waits begin with the shortest again.
    """

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._failures = 0
        self._began = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """Wait after a stream has ended. The caller opens the next stream when this returns."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._began > STABLE_AFTER:
            self._failures = 0
        await STREAM_RETRY.wait(self._failures, self._sleep)
        self._failures += 1
        self._began = loop.time()


class MemberSubscriptions:
    """The subscriptions at one server, opened again on each connection. Owned by its member.

    One stream carries all resources that were added together. If the server rejects it, each
    resource gets a stream of its own, since the server may have rejected only one of them.

    on_updated: called with the URI of each resource that has changed, or that may have changed
        while there was no stream.
    """

    def __init__(self, server_name: str, on_updated: Callable[[str], None], sleep: Sleep) -> None:
        self._name = server_name
        self._on_updated = on_updated
        self._sleep = sleep
        self._wanted: Counter[str] = Counter()
        self._accepted: dict[str, asyncio.Future[bool]] = {}
        self._open: set[str] = set()  # URIs of the open streams
        self._seen: set[str] = set()  # URIs that had a stream, on any connection
        self._alone: set[str] = set()  # URIs of rejected common streams: each gets its own stream
        self._rejected: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, uri: str) -> None:
        """Subscribe to *uri*, or count one more subscriber."""
        self._wanted[uri] += 1
        if uri not in self._accepted:
            self._accepted[uri] = asyncio.get_running_loop().create_future()
            self._changed.set()
            # Accepted at once in two cases. Without a connection the server cannot be asked. With
            # an open stream for *uri* the server has accepted it already: a stream stays open for
            # a moment after its last subscriber has left.
            if self._task is None or uri in self._open:
                self._settle(uri, accepted=True)

    def remove(self, uri: str) -> None:
        """Remove one subscriber of *uri*. Unsubscribe if it was the last one."""
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            for uris in (self._seen, self._alone, self._rejected):
                uris.discard(uri)
            self._accepted.pop(uri).cancel()
            self._changed.set()

    def accepted(self, uri: str) -> asyncio.Future[bool]:
        """Return a future: True if the server sends updates of *uri*, False if it rejected *uri*.

        Without a connection the future is True, since the server cannot be asked.
        """
        return self._accepted[uri]

    def begin(self, client: Client) -> None:
        """Open subscriptions with *client*, which is connected, until `end` is called."""
        self._rejected.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(client))

    async def end(self) -> None:
        """Stop using the client. Closing its connection ends its subscriptions at the server."""
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None
            for uri in self._wanted:
                self._settle(uri, accepted=True)

    def _settle(self, uri: str, *, accepted: bool) -> None:
        future = self._accepted.get(uri)
        if future is not None and not future.done():
            future.set_result(accepted)

    async def _run(self, client: Client) -> None:
        """Open streams for resources that have none, and close those without a subscriber."""
        streams: dict[asyncio.Task[None], set[str]] = {}
        closing: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()

        def ended(stream: "asyncio.Task[None]") -> None:
            streams.pop(stream, None)
            closing.discard(stream)
            self._changed.set()

        try:
            while True:
                # Cleared before the subscriptions are read: a later change sets the event again,
                # and the next iteration handles it.
                self._changed.clear()
                for stream, uris in [*streams.items()]:
                    if not uris & self._wanted.keys():
                        closing.add(stream)
                        self._open -= streams.pop(stream)
                        stream.cancel()
                covered = {uri for uris in streams.values() for uri in uris}
                for group in self._groups(self._wanted.keys() - covered - self._rejected):
                    stream = loop.create_task(self._stream(client, group))
                    streams[stream] = group
                    stream.add_done_callback(ended)
                await self._changed.wait()
        finally:
            self._open.clear()
            await cancel_and_wait(*streams, *closing)

    def _groups(self, uris: set[str]) -> list[set[str]]:
        """Divide *uris* into groups, each of which gets one stream."""
        single = [{uri} for uri in uris & self._alone]
        common = uris - self._alone
        return [common, *single] if common else single

    async def _stream(self, client: Client, uris: set[str]) -> None:
        """Receive updates of *uris* until the client is closed, reopening the stream if it ends.

        URIs that the server does not accept are removed from *uris*. Returns early if that leaves
        it empty, or if the URIs have to get streams of their own.
        """
        backoff = StreamBackoff(self._sleep)
        while True:
            try:
                async with client.subscribe(*uris) as changes:
                    self._begun(uris, changes)
                    if not uris:
                        return
                    async for change in changes:
                        self._updated(uris, change)
            except ServerError as error:
                # The server may have rejected only one URI: each URI gets a stream of its own.
                if len(uris) > 1:
                    self._alone |= uris & self._wanted.keys()
                    return
                if not uris & self._seen:
                    logger.info("%s sends no updates of %s: %s", self._name, *uris, error)
                    self._reject(uris)
                    return
            except ClientError as error:
                logger.info("%s no longer sends updates: %s", self._name, error)
            self._open -= uris
            if not client.is_open:
                return
            for uri in uris:
                self._settle(uri, accepted=True)  # accepted, as the stream will be opened again
            await backoff.wait()

    def _begun(self, uris: set[str], changes: ChangeStream) -> None:
        honored = set(changes.honored.resource_subscriptions or ())
        self._reject(uris - honored)
        uris &= honored
        self._open |= uris
        for uri in uris & self._wanted.keys():
            self._settle(uri, accepted=True)
            if uri in self._seen:
                self._on_updated(uri)  # the resource may have changed while there was no stream
            self._seen.add(uri)

    def _reject(self, uris: set[str]) -> None:
        for uri in uris & self._wanted.keys():
            self._rejected.add(uri)
            self._settle(uri, accepted=False)

    def _updated(self, uris: Collection[str], change: Any) -> None:
        for uri in uris:
            if uri in self._wanted and is_at_or_below(change.params.uri, uri):
                self._on_updated(uri)


class HubServer(CompositeServer, Listener):
    """The composite server of a hub; see `Hub.server`.

    The hub subscribes to a resource once for all clients, at each owner: a server that has, or may
    have, the resource. When the lists of resources change, the owners are looked up again. If a
    resource has moved to servers that did not own it before, its content may differ: an update of
    it is announced.
    """

    def __init__(
        self, members: Members[Any], *, name: str, version: str, separator: str = "/"
    ) -> None:
        super().__init__(members, name=name, version=version, separator=separator)
        self._subscribers: Counter[str] = Counter()
        self._owners: dict[str, Sequence[MemberSubscriptions]] = {}
        self._pending: asyncio.Handle | None = None
        self.changes.follow(self)

    @asynccontextmanager
    async def watch_resources(self, uris: Collection[str]) -> AsyncIterator[Collection[str]]:
        """Yield those of *uris* that a server sends updates of, while this is entered.

        Raises:
            Overloaded: too many resources are subscribed to.
        """
        wanted = [*dict.fromkeys(uris)]
        if len(self._owners.keys() | wanted) > _MAX_SUBSCRIPTIONS:
            raise Overloaded(
                f"Too many resources are subscribed to: {_MAX_SUBSCRIPTIONS}", status=429
            )
        # Counted before the first await. Otherwise another subscriber that leaves meanwhile would
        # end the subscription that this subscriber uses.
        for uri in wanted:
            self._subscribers[uri] += 1
            if uri not in self._owners:
                self._look_up(uri)
        held = set(wanted)
        try:
            held = await self._accepted(wanted)
            for uri in wanted:
                if uri not in held:
                    self._drop(uri, 0)  # the next subscriber asks the server again
            yield [uri for uri in wanted if uri in held]
        finally:
            for uri in held:
                self._drop(uri, _LINGER)

    def announce(self, change: ServerChange) -> None:
        """Look up the owners again when the lists of resources have changed."""
        # Deferred to the next iteration of the event loop, so that changes of several servers at
        # the same time cause a single look-up.
        if change == RESOURCES and self._owners and self._pending is None:
            self._pending = asyncio.get_running_loop().call_soon(self._look_up_all)

    def _drop(self, uri: str, linger: float) -> None:
        self._subscribers[uri] -= 1
        # Removed after *linger* seconds.
        if not self._subscribers[uri]:
            asyncio.get_running_loop().call_later(linger, self._forget, uri)

    def _forget(self, uri: str) -> None:
        if not self._subscribers[uri]:
            del self._subscribers[uri]
            for owner in self._owners.pop(uri, ()):
                owner.remove(uri)

    async def _accepted(self, uris: Collection[str]) -> set[str]:
        """Return the URIs that a server accepted, or did not reject in `_ACCEPT_TIMEOUT`."""
        answers = {uri: [each.accepted(uri) for each in self._owners[uri]] for uri in uris}
        waiting = [each for some in answers.values() for each in some if not each.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=_ACCEPT_TIMEOUT)
        return {uri for uri, some in answers.items() if any(map(_not_rejected, some))}

    def _look_up(self, uri: str) -> bool:
        """Move the subscription to the servers that own *uri* now.

        Returns whether there are owners now, none of which owned *uri* before.
        """
        before = self._owners.get(uri, [])
        route = self.find("resources/read", uri)
        members: list[Any] = [each.member for each in route.alternatives] if route else []
        now = [each.subscriptions for each in members if each.catalog.subscribable]
        self._owners[uri] = now
        # New owners are added before old owners are removed, so that an update in between is not
        # lost.
        for owner in now:
            if owner not in before:
                owner.add(uri)
        for owner in before:
            if owner not in now:
                owner.remove(uri)
        return bool(now) and not any(each in now for each in before)

    def _look_up_all(self) -> None:
        self._pending = None
        for uri in [*self._owners]:
            if self._look_up(uri):
                self.changes.resource_updated(uri)


def _not_rejected(answer: asyncio.Future[bool]) -> bool:
    return not answer.done() or (not answer.cancelled() and answer.result())
