"""What answers `subscriptions/listen`: 2026-07-28, basic/patterns, "Subscriptions"."""

from collections.abc import AsyncGenerator

from genmcp.core.request import Request
from genmcp.core.subscription import ACKNOWLEDGED, acknowledgement, changes_of, completion
from genmcp.mux.subscriptions import Subscription
from genmcp.protocol.subscriptions import SubscriptionFilter, SubscriptionsListenRequestParams
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.visit import Visit
from genmcp.wire import sse

__all__ = ["listen"]


async def listen(visit: Visit, request: Request) -> None:
    """Tell the client what it wants to hear, until it leaves or the server goes away.

    Raises:
        Overloaded: it wants too much, or too many listen.
    """
    mux = visit.mux
    assert isinstance(request.params, SubscriptionsListenRequestParams)
    heard = mux.heard(request.params.notifications, visit.principal)
    end = mux.encoder.response(request.revision, request.id, completion(request.id))
    with place(visit):
        async with mux.subscriptions.listening(changes_of(heard)) as subscription:
            stream = EventStream(visit, farewell=sse.event(end))
            await stream.serve(_events(visit, request, heard, subscription))


async def _events(
    visit: Visit, request: Request, heard: SubscriptionFilter, subscription: Subscription
) -> AsyncGenerator[bytes, None]:
    encode, revision, id = visit.mux.encoder.notification, request.revision, request.id
    yield sse.event(encode(revision, ACKNOWLEDGED, acknowledgement(heard, id)))
    while True:
        messages = [
            encode(revision, change.method, change.params(id))
            for change in await subscription.news()
        ]
        yield b"".join(map(sse.event, messages))
