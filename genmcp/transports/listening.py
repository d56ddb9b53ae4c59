"""What answers `subscriptions/listen`: 2026-07-28, basic/patterns, "Subscriptions"."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from msgspec.structs import replace

from genmcp.core.request import Request
from genmcp.core.subscription import ACKNOWLEDGED, acknowledgement, changes_of, completion
from genmcp.mux.subscriptions import Subscription
from genmcp.mux.task_methods import TASKS_CHANGED, status_of
from genmcp.mux.task_news import TaskNews
from genmcp.protocol.subscriptions import SubscriptionFilter, SubscriptionsListenRequestParams
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.visit import Visit
from genmcp.wire import sse

__all__ = ["listen"]


async def listen(visit: Visit, request: Request) -> None:
    """Tell the client what it wants to hear, until it leaves or the server goes away.

    Raises:
        Overloaded: it wants too much, or too many listen.
        MissingCapability: it wants to hear of tasks, and did not declare that it knows them.
    """
    mux = visit.mux
    assert isinstance(request.params, SubscriptionsListenRequestParams)
    heard = mux.heard(request.params.notifications, visit.principal)
    ids = await mux.task_methods.heard(request, visit.principal)
    heard = replace(heard, task_ids=ids or None)
    end = mux.encoder.response(request.revision, request.id, completion(request.id))
    with place(visit):
        async with (
            mux.subscriptions.listening(changes_of(heard)) as subscription,
            TaskNews.of(mux.long.jobs, ids, visit.principal) as tasks,
        ):
            stream = EventStream(visit, farewell=sse.event(end))
            await stream.serve(_events(visit, request, heard, subscription, tasks))


async def _events(
    visit: Visit,
    request: Request,
    heard: SubscriptionFilter,
    subscription: Subscription,
    tasks: TaskNews,
) -> AsyncGenerator[bytes, None]:
    encode, revision, id = visit.mux.encoder.notification, request.revision, request.id

    async def changed() -> list[bytes]:
        news = await subscription.news()
        return [encode(revision, change.method, change.params(id)) for change in news]

    async def gone_on() -> list[bytes]:
        said = [status_of(task, visit.mux.encoder, id) for task in await tasks.take()]
        return [encode(revision, TASKS_CHANGED, each) for each in said]

    yield sse.event(encode(revision, ACKNOWLEDGED, acknowledgement(heard, id)))
    sources = [changed, gone_on] if heard.task_ids else [changed]
    async for messages in _merged(sources):
        yield b"".join(map(sse.event, messages))


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
