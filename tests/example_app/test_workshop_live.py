"""The workshop announces what changes: to MCP clients, and to the live page beside the endpoint."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from example_app import create_app
from genmcp import Client
from genmcp.client.subscriptions import ChangeStream
from tests.example_app.connecting import PATIENCE, command, url_of
from tests.support.serving import serve

PART = "workshop://parts/CH-103"
STOCK = "workshop://stock"


@asynccontextmanager
async def live(url: str) -> AsyncIterator[AsyncIterator[dict[str, int]]]:
    """Open the event stream of the live page, and yield the stock of each of its events."""

    async def levels(response: httpx.Response) -> AsyncGenerator[dict[str, int]]:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    async with (
        httpx.AsyncClient(timeout=PATIENCE) as http,
        http.stream("GET", f"{url}/live/events") as response,
        aclosing(levels(response)) as events,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events


async def uris(changes: ChangeStream, *wanted: str) -> None:
    """Wait until all of *wanted* were announced: URIs, or the method of a list."""
    missing = {*wanted}
    async with asyncio.timeout(PATIENCE):
        while missing:
            change: Any = await anext(changes)
            missing -= {change.method, getattr(change.params, "uri", "")}


async def test_workshop_announces_its_changes(tmp_path: Path) -> None:
    """Each tool that changes a part, a repair or the list of repairs."""
    async with (
        serve(create_app(tmp_path / "workshop.db")) as url,
        Client(f"{url}/mcp") as client,
        client.listen(PART, STOCK, "workshop://repairs/2", resources=True) as changes,
    ):
        note = {"supplier": "Albatros", "csv": "number,quantity\nCH-103,5"}
        await client.call("book_delivery", note)
        await uris(changes, PART, STOCK)

        await client.call("withdraw_part", {"part": "CH-103", "repair": 2})
        await uris(changes, PART, STOCK, "workshop://repairs/2")

        await client.call("open_repair", {"bicycle": "Tandem", "customer": "Ada"})
        await uris(changes, "notifications/resources/list_changed")

        await client.call("close_repair", {"repair": 2})
        await uris(changes, "workshop://repairs/2")


async def test_workshop_page_shows_changes_of_another_process(tmp_path: Path) -> None:
    """The page of one process gets what a tool has changed in another one, over the store."""
    path = tmp_path / "workshop.db"
    async with serve(create_app(path)) as here, serve(create_app(path)) as there:
        async with live(here) as events, Client(f"{there}/mcp") as client:
            before = await anext(events)
            (contents,) = (await client.read(PART)).contents
            assert json.loads(contents.text or "")["stock"] == before["CH-103"]
            await client.call("withdraw_part", {"part": "CH-103", "repair": 2})
            async with asyncio.timeout(PATIENCE):
                while (after := await anext(events)) == before:
                    pass

        async with httpx.AsyncClient() as browser:
            page = await browser.get(f"{here}/live")

    assert after == {**before, "CH-103": before["CH-103"] - 1}
    assert f'<td id="CH-103">{after["CH-103"]}' in page.text


async def test_workshop_ends_both_streams_at_shutdown(tmp_path: Path) -> None:
    """That of sse-starlette and that of genmcp, without an error in the log or at a client."""
    async with command(tmp_path, PORT="0") as process:
        url = await url_of(process)
        async with (
            live(url.removesuffix("/mcp")) as events,
            Client(url) as client,
            client.subscribe(STOCK) as changes,
        ):
            before = await anext(events)
            await client.call("withdraw_part", {"part": "CH-103", "repair": 2})
            await uris(changes, STOCK)
            while await anext(events) == before:  # the page is fed
                pass
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                assert [each async for each in changes] == []
                async for _ in events:  # ends without httpx.RemoteProtocolError
                    pass
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)

    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in output.decode()
    assert "ERROR" not in output.decode()
