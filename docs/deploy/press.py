# press.py
import asyncio

from msgspec import Struct

from genmcp import Channel, Continue, Run, Suite, Tool, ToolRequest, job


@job(retries=2)
async def print_pages(run: Run, pages: int) -> int:
    for page in range(run.saved or 0, pages):
        await asyncio.sleep(0.01)  # the work
        await run.save(page + 1)  # an attempt after a crash continues here
        await run.progress(page + 1, pages)
    return pages


class Order(Struct):
    pages: int


class Print(Tool[Order]):
    """Prints a number of pages."""

    name = "print"
    on_worker_lost = "rerun"  # if its process dies, the job may run again, in another one

    async def call(self, request: ToolRequest[Order], channel: Channel) -> Continue:
        return print_pages.job(request.arguments.pages).then(self.printed)

    async def printed(self, request: ToolRequest[Order], pages: int, channel: Channel) -> str:
        return f"Printed {pages} pages."


suite = Suite(name="press", version="1.0", tools=[Print])
