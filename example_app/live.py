"""A live page of the stock: an event stream of the application's own, beside the MCP endpoint.

The page is fed by the changes that clients of the endpoint get: this process subscribes to the
stock as they do, so that the page shows the changes of every process. Explained by the page on
subscriptions.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from html import escape

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from example_app.pages import page, workshop_of
from example_app.resources import STOCK
from genmcp import Client, ClientError, Mux

__all__ = ["LIVE", "StockFeed"]

SCRIPT = """<script>
  new EventSource("/live/events").addEventListener("stock", event => {
    for (const [number, stock] of Object.entries(JSON.parse(event.data))) {
      const cell = document.getElementById(number);
      if (cell) cell.textContent = stock;
    }
  });
</script>"""


class StockFeed:
    """The changes of the stock, for all pages of this process. `run` runs in the lifespan."""

    def __init__(self, mux: Mux) -> None:
        self._mux = mux
        self.changed = asyncio.Event()
        self.over = False

    async def run(self) -> None:
        """Set `changed` at each change, and replace it. Ends when the server shuts down."""
        while True:
            try:
                async with Client(self._mux) as client, client.subscribe(STOCK) as changes:
                    self.report()  # what has changed before
                    async for _ in changes:
                        self.report()
                self.over = True  # the endpoint has ended its streams, and so does the page
                self.report()
                return
            except ClientError:  # such as a store that cannot be reached
                await asyncio.sleep(1)

    def report(self) -> None:
        """Wake the pages that wait."""
        self.changed.set()
        self.changed = asyncio.Event()


def live(request: Request) -> HTMLResponse:
    """Show the stock of each part, which the script replaces when it changes."""
    rows = "".join(
        f'<tr><td>{escape(part.number)}<td>{escape(part.name)}<td id="{escape(part.number)}">'
        f"{part.stock}</tr>"
        for part in workshop_of(request).parts()
    )
    table = f"<table><tr><th>Number<th>Name<th>Stock</tr>{rows}</table>"
    return page("Stock, live", f"{table}{SCRIPT}")


async def events(request: Request) -> EventSourceResponse:
    """Send the stock at once, and after each change."""
    feed: StockFeed = request.app.state.feed
    workshop = workshop_of(request)

    async def stock() -> AsyncIterator[ServerSentEvent]:
        while not feed.over:
            changed = feed.changed  # taken before the read: no change in between is missed
            levels = await run_in_threadpool(workshop.stock)
            yield ServerSentEvent(json.dumps(levels), event="stock")
            await changed.wait()

    # sse-starlette notices the exit of uvicorn as well: it cancels what has not ended after that.
    return EventSourceResponse(stock(), shutdown_grace_period=5)


LIVE = [Route("/live", live), Route("/live/events", events)]
