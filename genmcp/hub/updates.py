"""Resources of one server that somebody wants to hear of, whatever connection there is to it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerError
from genmcp.client.subscriptions import Listening
from genmcp.hub.pace import Again, Pace

__all__ = ["Updates"]

logger = logging.getLogger("genmcp.hub")


class Updates:
    """Keeps a server subscribed to what is wanted of it.

    name: that of the server. told: is given the URI of each resource that has changed, and that
    of each that may have, because there was no connection meanwhile.
    """

    def __init__(self, name: str, told: Callable[[str], None], pace: Pace) -> None:
        self._name = name
        self._told = told
        self._pace = pace
        self._wanted: Counter[str] = Counter()
        self._answers: dict[str, asyncio.Future[bool]] = {}
        self._open: set[str] = set()  # what a stream is there for
        self._heard: set[str] = set()  # ... or was
        self._alone: set[str] = set()  # what may be the reason why a stream was refused
        self._refused: set[str] = set()
        self._news = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def want(self, uri: str) -> None:
        """Want to hear of *uri*, once more."""
        self._wanted[uri] += 1
        if uri not in self._answers:
            self._answers[uri] = asyncio.get_running_loop().create_future()
            self._news.set()
            if self._work is None or uri in self._open:
                self._settle(uri, told=True)

    def unwant(self, uri: str) -> None:
        """Take one `want` back."""
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            for those in (self._heard, self._alone, self._refused):
                those.discard(uri)
            self._answers.pop(uri).cancel()
            self._news.set()

    def answer(self, uri: str) -> asyncio.Future[bool]:
        """Return what will say whether the server tells of *uri*, which is wanted.

        Where it cannot be asked now, that is supposed.
        """
        return self._answers[uri]

    def begin(self, client: Client) -> None:
        """Subscribe by *client* to what is wanted, until `end`."""
        self._refused.clear()
        self._work = asyncio.get_running_loop().create_task(self._follow(client))

    async def end(self) -> None:
        """Use the client no more; it is closed, so that nothing need be taken back."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))
            self._work = None
            for uri in self._wanted:
                self._settle(uri, told=True)

    def _settle(self, uri: str, *, told: bool) -> None:
        """Answer who waits for the first answer about *uri*."""
        answer = self._answers.get(uri)
        if answer is not None and not answer.done():
            answer.set_result(told)

    async def _follow(self, client: Client) -> None:
        """Have streams for all that is wanted, and none for what is not."""
        streams: dict[asyncio.Task[None], set[str]] = {}
        ending: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()

        def ended(stream: "asyncio.Task[None]") -> None:
            streams.pop(stream, None)
            ending.discard(stream)
            self._news.set()

        try:
            while True:
                self._news.clear()
                for stream, uris in [*streams.items()]:
                    if not uris & self._wanted.keys():
                        ending.add(stream)
                        self._open -= streams.pop(stream)
                        stream.cancel()
                held = {uri for uris in streams.values() for uri in uris}
                for group in self._groups(self._wanted.keys() - held - self._refused):
                    stream = loop.create_task(self._hear(client, group))
                    streams[stream] = group
                    stream.add_done_callback(ended)
                await self._news.wait()
        finally:
            self._open.clear()
            left = {*streams, *ending}
            for stream in left:
                stream.cancel()
            if left:
                await asyncio.wait(left)

    def _groups(self, uris: set[str]) -> list[set[str]]:
        """Return *uris* as they are subscribed to, by one stream each."""
        alone = [{uri} for uri in uris & self._alone]
        together = uris - self._alone
        return [together, *alone] if together else alone

    async def _hear(self, client: Client, uris: set[str]) -> None:
        """Hear of *uris*, from which those are taken of which the server does not tell."""
        again = Again(self._pace)
        while True:
            try:
                async with client.subscribe(*uris) as changes:
                    self._begun(uris, changes)
                    if not uris:
                        return
                    async for change in changes:
                        self._changed(uris, change)
            except ServerError as error:
                if len(uris) > 1:  # perhaps for one of them alone
                    self._alone |= uris & self._wanted.keys()
                    return
                if not uris & self._heard:
                    logger.info("%s does not tell of %s: %s", self._name, *uris, error)
                    self._deny(uris)
                    return
            except ClientError as error:
                logger.info("%s tells of resources no more: %s", self._name, error)
            self._open -= uris
            if not client.is_open:
                return
            for uri in uris:
                self._settle(uri, told=True)  # as soon as it can
            await again.wait()

    def _begun(self, uris: set[str], changes: Listening) -> None:
        honored = set(changes.honored.resource_subscriptions or ())
        self._deny(uris - honored)
        uris &= honored
        self._open |= uris
        for uri in uris & self._wanted.keys():
            self._settle(uri, told=True)
            if uri in self._heard:
                self._told(uri)  # what was said meanwhile is not known
            self._heard.add(uri)

    def _deny(self, uris: set[str]) -> None:
        for uri in uris & self._wanted.keys():
            self._refused.add(uri)
            self._settle(uri, told=False)

    def _changed(self, uris: Collection[str], change: Any) -> None:
        """Tell of a change; a server may be subscribed to what is above the resource."""
        changed: str = change.params.uri
        for uri in uris:
            if uri in self._wanted and (
                changed == uri or changed.startswith(f"{uri.rstrip('/')}/")
            ):
                self._told(uri)
