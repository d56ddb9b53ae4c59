"""The workshop as people see it: its pages, its start, and what it prints there."""

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
from mcp import Client

from example_app import create_app
from example_app.database import Database
from example_app.seed import fill
from tests.example_app.connecting import PATIENCE, command, until, url_in
from tests.serving import serve


async def test_workshop_pages_show_stock_and_repairs(tmp_path: Path) -> None:
    """The application's own pages stand beside the endpoint."""
    async with (
        serve(create_app(tmp_path / "workshop.db")) as url,
        httpx.AsyncClient(base_url=url) as browser,
    ):
        stock = await browser.get("/", params={"q": "chain 11"})
        repairs = await browser.get("/repairs")
        sheet = await browser.get("/repairs/1")
        missing = await browser.get("/repairs/99")
        health = await browser.get("/health")

    assert "5 parts" in stock.text
    assert "Chain 11-speed, Albatros" in stock.text
    assert "Gravel bike, green" in repairs.text
    assert "gears slip" in sheet.text
    assert (missing.status_code, missing.text) == (404, "There is no repair 99.")
    assert health.json() == {"status": "ok", "parts": 205}


async def test_workshop_pages_escape_what_others_wrote(tmp_path: Path) -> None:
    """No text from the query, a header or the database becomes markup."""
    path = tmp_path / "workshop.db"
    async with serve(create_app(path)) as url, httpx.AsyncClient(base_url=url) as browser:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE parts SET name = '<i>' WHERE number = 'CH-103'")
            connection.execute("UPDATE repairs SET bicycle = '<i>', customer = '<i>' WHERE id = 1")
        pages = [
            await browser.get("/", params={"q": '"><i>'}, headers={"X-Forwarded-User": "<i>"}),
            await browser.get("/", params={"q": "CH-103"}),
            await browser.get("/repairs"),
            await browser.get("/repairs/1"),
        ]

    for page in pages:
        assert "&lt;i&gt;" in page.text
        assert "<i>" not in page.text


def test_workshop_database_is_filled_once_by_processes_that_start_together(
    tmp_path: Path,
) -> None:
    """Whoever comes first fills it; the others wait, and a later start changes nothing."""
    path = tmp_path / "workshop.db"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: Database(path).create(fill), range(8)))
    Database(path).create(fill)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM parts").fetchone() == (205,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_workshop_command_prints_what_a_client_needs(tmp_path: Path) -> None:
    """`python -m example_app` names its URL, which a client can be pasted, and serves there."""
    async with command(tmp_path, PORT="0", EXAMPLE_DATABASE="other.db") as process:
        printed = await until(process, '"mcpServers"')
        url = url_in(printed)
        async with Client(url) as client:
            result = await client.call_tool("repair_sheet", {"repair": 2})

    assert re.search(rf"^ +claude mcp add --transport http workshop {url}$", printed, re.MULTILINE)
    assert not result.is_error
    assert (tmp_path / "other.db").exists()


async def test_workshop_command_refuses_a_port_that_is_no_number(tmp_path: Path) -> None:
    """A wrong PORT is named, without a traceback."""
    async with command(tmp_path, PORT="eighty") as process:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        said = output.decode()

    assert said.endswith("error: argument --port: invalid int value: 'eighty'\n")
