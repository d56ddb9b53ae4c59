"""`subscriptions/listen` (2026-07-28, basic/patterns, "Subscriptions"), and streams without a call.

The event streams of listeners, and streams that are resumed, are not written by a call.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from msgspec.structs import replace

from genmcp.core.client_key import ClientKey
from genmcp.core.exchange import Action, Begin, Chunk, End
from genmcp.core.request import Request
from genmcp.core.subscription import ACKNOWLEDGED, acknowledgement, changes_of, completion
from genmcp.errors import Overloaded
from genmcp.mux.changes import Subscription
from genmcp.mux.mux import Mux
from genmcp.mux.own_methods import TASKS_CHANGED, TaskWatcher, status_of
from genmcp.protocol.params import RequestParams
from genmcp.protocol.subscriptions import SubscriptionFilter, SubscriptionsListenRequestParams
from genmcp.transports.asgi import ClientLeft, Receive, left, perform
from genmcp.transports.shutdown import LAST_WORDS
from genmcp.transports.visit import Visit
from genmcp.wire import sse
from genmcp.wire.sse import COMMENT

__all__ = ["EventStream", "farewell", "heard", "honoured", "listen", "without_params"]


class EventStream:
    """Sends what a source yields until it ends, the client leaves, or it is told to stop.

    *heartbeat* is how many seconds of silence a comment breaks. *farewell* is the event that
    tells the client that it was the server who ended the stream.
    """

    idle = True

    def __init__(self, visit: Visit, *, farewell: bytes = b"") -> None:
        self._visit = visit
        self._heartbeat = visit.heartbeat
        self._stall = visit.mux.limits.stall
        self._farewell = farewell
        self._stopped = visit.loop.create_future()

    def stop(self) -> None:
        """End the stream; its client may come back elsewhere. From any thread."""
        with suppress(RuntimeError):  # the loop was closed, and the stream went with it
            self._visit.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def hand_over(self) -> None:
        """Leave the stream to another connection of its client, which is there already."""
        self.stop()

    async def serve(self, source: AsyncGenerator[bytes, None]) -> None:
        """Answer with the events of *source*, which have the form they have on the wire.

        Raises:
            ClientLeft: a write told of it.
        """
        visit = self._visit
        visit.answered = True
        visit.shutdown.add(self)
        try:
            async with aclosing(source):
                await self._serve(source, visit.receive)
        finally:
            visit.shutdown.discard(self)

    async def _serve(self, source: AsyncIterator[bytes], receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        ends = {self._stopped, loop.create_task(left(receive))}
        following = loop.create_task(_next(source))
        try:
            await self._perform(Begin(), ends)
            while True:
                done, _ = await asyncio.wait(
                    {following, *ends},
                    timeout=self._heartbeat,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if following in done:
                    data = following.result()
                    if data is None:
                        break
                    await self._perform(Chunk(data), ends)
                    following = loop.create_task(_next(source))
                elif done:
                    break
                else:
                    await self._perform(Chunk(COMMENT), ends)
            await self._perform(End(self._farewell), ())
        finally:
            for task in (following, *ends):
                task.cancel()
            await asyncio.gather(following, *ends, return_exceptions=True)

    async def _perform(self, action: Action, ends: Collection["asyncio.Future[None]"]) -> None:
        """Write, for as long as the client reads and none of *ends* has come."""
        writing = asyncio.get_running_loop().create_task(
            perform([action], self._visit.send, self._visit.headers)
        )
        await asyncio.sleep(0)  # a write that nothing holds up is done after this
        try:
            if not writing.done():
                patience = self._stall if ends else LAST_WORDS
                await asyncio.wait(
                    {writing, *ends}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
            if not writing.done():
                raise ClientLeft
            writing.result()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)


_BESIDES: Final = 256
"""Bytes counted in addition for each URI or id: it is in the tables of several listeners."""


async def listen(visit: Visit, request: Request) -> None:
    """Tell the client what it wants to hear, until it leaves or the server goes away.

    Raises:
        Overloaded: it wants too much, or too many listen.
        MissingCapability: it wants to hear of tasks, and did not declare that it knows them.
    """
    mux, client = visit.mux, visit.client_key
    wanted = await honoured(mux, request, client)
    request = without_params(request)
    visit.table = {}
    if visit.body_size:
        visit.release_body()
    end = sse.event(farewell(mux, request))
    async with heard(mux, request, wanted, client) as messages:
        await EventStream(visit, farewell=end).serve(_events(messages))


def farewell(mux: Mux, request: Request) -> bytes:
    """Return the answer to *request* that says that the server ends its stream."""
    return mux.encoder.response(request.revision, request.id, completion(request.id))


def without_params(request: Request) -> Request:
    """Return *request* without params and raw body, which an open stream must not keep alive."""
    return replace(request, params=RequestParams(), raw=b"")


async def honoured(mux: Mux, request: Request, client: ClientKey) -> SubscriptionFilter:
    """Return the part of the filter of *request* that the server honors for *client*.

    Raises:
        Overloaded: its URIs and ids exceed `Limits.subscribed_of_stream`.
        MalformedParams: a URI is too long.
        MissingCapability: it subscribes to tasks without having declared the tasks extension.
    """
    assert isinstance(request.params, SubscriptionsListenRequestParams)
    wanted = mux.heard(request.params.notifications, client.principal)
    ids = await mux.task_methods.heard(request, client.principal)
    wanted = replace(wanted, task_ids=ids or None)
    most = mux.limits.subscribed_of_stream
    if _size_of(wanted) > most:
        raise Overloaded(
            f"A stream is subscribed to at most {most} bytes of URIs and ids, each with "
            f"{_BESIDES} more (limit: subscribed_of_stream)",
            status=429,
        )
    return wanted


@asynccontextmanager
async def heard(
    mux: Mux, request: Request, wanted: SubscriptionFilter, client: ClientKey
) -> AsyncGenerator[AsyncGenerator[list[bytes], None], None]:
    """Yield an iterator of the messages of the stream that *request* opens.

    Raises:
        Overloaded: there are too many streams, or their subscriptions are too large.
    """
    uris, ids = wanted.resource_subscriptions, wanted.task_ids or ()
    with mux.streams.hold(client), mux.subscribed.hold(client, size=_size_of(wanted)):
        async with mux.server.hearing(uris or ()) as told:
            honored = None if uris is None else [*told]
            wanted = replace(wanted, resource_subscriptions=honored)
            async with (
                mux.subscriptions.listening(changes_of(wanted)) as subscription,
                TaskWatcher.of(mux.tasks.service, ids, client.principal) as tasks,
                aclosing(_messages(mux, request, wanted, subscription, tasks)) as messages,
            ):
                yield messages


def _size_of(wanted: SubscriptionFilter) -> int:
    """Return the approximate memory of a stream's subscriptions, in bytes."""
    named = [*(wanted.resource_subscriptions or ()), *(wanted.task_ids or ())]
    return sum(len(each.encode()) + _BESIDES for each in named)


async def _messages(
    mux: Mux,
    request: Request,
    wanted: SubscriptionFilter,
    subscription: Subscription,
    tasks: TaskWatcher,
) -> AsyncGenerator[list[bytes], None]:
    encoder, revision, id = mux.encoder, request.revision, request.id
    encode = encoder.notification

    async def changed() -> list[bytes]:
        news = await subscription.news()
        return [encode(revision, change.method, change.params(id)) for change in news]

    async def gone_on() -> list[bytes]:
        news, now = await tasks.take(), mux.store.now()
        said = [status_of(task, encoder, id, now) for task in news]
        return [encode(revision, TASKS_CHANGED, each) for each in said]

    sources = [changed, gone_on] if wanted.task_ids else [changed]
    acknowledged = [encode(revision, ACKNOWLEDGED, acknowledgement(wanted, id))]
    del wanted
    yield acknowledged
    del acknowledged  # it would keep a copy of all subscriptions for the life of the stream
    async for messages in _merged(sources):
        yield messages


async def _events(messages: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
    async for each in messages:
        yield b"".join(map(sse.event, each))


async def _merged(
    sources: Sequence[Callable[[], Awaitable[list[bytes]]]],
) -> AsyncGenerator[list[bytes], None]:
    """Yield what each of *sources* gives, again and again."""
    if len(sources) == 1:
        while True:
            yield await sources[0]()
    waiting = {asyncio.ensure_future(source()): source for source in sources}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                source = waiting.pop(each)
                waiting[asyncio.ensure_future(source())] = source
                yield each.result()
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
