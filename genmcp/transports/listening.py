"""What answers `subscriptions/listen`: 2026-07-28, basic/patterns, "Subscriptions"."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

from msgspec.structs import replace

from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.subscription import ACKNOWLEDGED, acknowledgement, changes_of, completion
from genmcp.mux.mux import Mux
from genmcp.mux.subscriptions import Subscription
from genmcp.mux.task_methods import TASKS_CHANGED, status_of
from genmcp.mux.task_news import TaskNews
from genmcp.protocol.subscriptions import SubscriptionFilter, SubscriptionsListenRequestParams
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.visit import Visit
from genmcp.wire import sse
from genmcp.wire.encoder import Encoder

__all__ = ["farewell", "heard", "listen"]


async def listen(visit: Visit, request: Request) -> None:
    """Tell the client what it wants to hear, until it leaves or the server goes away.

    Raises:
        Overloaded: it wants too much, or too many listen.
        MissingCapability: it wants to hear of tasks, and did not declare that it knows them.
    """
    end = sse.event(farewell(visit.mux, request))
    async with heard(visit.mux, request, visit.client_key) as messages:
        await EventStream(visit, farewell=end).serve(_events(messages))


def farewell(mux: Mux, request: Request) -> bytes:
    """Return the answer to *request* that says that the server ends its stream."""
    return mux.encoder.response(request.revision, request.id, completion(request.id))


@asynccontextmanager
async def heard(
    mux: Mux, request: Request, client: ClientKey
) -> AsyncGenerator[AsyncGenerator[list[bytes], None], None]:
    """Give the messages of the stream that *request* opens, as they come.

    Raises:
        Overloaded: it wants too much, or too many listen.
        MissingCapability: it wants to hear of tasks, and did not declare that it knows them.
    """
    assert isinstance(request.params, SubscriptionsListenRequestParams)
    principal = client.principal
    wanted = mux.heard(request.params.notifications, principal)
    ids = await mux.task_methods.heard(request, principal)
    uris = wanted.resource_subscriptions
    with place(mux, client):
        async with mux.server.hearing(uris or ()) as told:
            honored = None if uris is None else [*told]
            wanted = replace(wanted, resource_subscriptions=honored, task_ids=ids or None)
            async with (
                mux.subscriptions.listening(changes_of(wanted)) as subscription,
                TaskNews.of(mux.long.jobs, ids, principal) as tasks,
                aclosing(_messages(mux.encoder, request, wanted, subscription, tasks)) as messages,
            ):
                yield messages


async def _messages(
    encoder: Encoder,
    request: Request,
    wanted: SubscriptionFilter,
    subscription: Subscription,
    tasks: TaskNews,
) -> AsyncGenerator[list[bytes], None]:
    encode, revision, id = encoder.notification, request.revision, request.id

    async def changed() -> list[bytes]:
        news = await subscription.news()
        return [encode(revision, change.method, change.params(id)) for change in news]

    async def gone_on() -> list[bytes]:
        said = [status_of(task, encoder, id) for task in await tasks.take()]
        return [encode(revision, TASKS_CHANGED, each) for each in said]

    yield [encode(revision, ACKNOWLEDGED, acknowledgement(wanted, id))]
    sources = [changed, gone_on] if wanted.task_ids else [changed]
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
