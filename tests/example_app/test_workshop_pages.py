"""The workshop's web pages, its start, and its output."""

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from mcp import Client

import genmcp
from example_app import create_app
from example_app.database import Database
from example_app.seed import fill
from tests.example_app.connecting import PATIENCE, command, until, url_in
from tests.support.serving import serve

pytestmark = pytest.mark.slow


async def test_workshop_pages_show_stock_and_repairs(tmp_path: Path) -> None:
    """The application serves web pages beside the endpoint."""
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


async def test_workshop_pages_escape_input(tmp_path: Path) -> None:
    """Text from a query, a header or the database never becomes markup."""
    path = tmp_path / "workshop.db"
    app = create_app(path, user_header="X-Forwarded-User")
    async with serve(app) as url, httpx.AsyncClient(base_url=url) as browser:
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


def test_workshop_database_is_filled_once(
    tmp_path: Path,
) -> None:
    """One of several processes fills it; the others wait. A later start changes nothing."""
    path = tmp_path / "workshop.db"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: Database(path).create(fill), range(8)))
    Database(path).create(fill)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM parts").fetchone() == (205,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_workshop_command_prints_client_configuration(tmp_path: Path) -> None:
    """`python -m example_app` serves at the URL that its output shows for clients."""
    async with command(tmp_path, PORT="0", EXAMPLE_DATABASE="other.db") as process:
        printed = await until(process, '"mcpServers"')
        url = url_in(printed)
        async with Client(url) as client:
            result = await client.call_tool("repair_sheet", {"repair": 2})

    assert re.search(rf"^ +claude mcp add --transport http workshop {url}$", printed, re.MULTILINE)
    assert not result.is_error
    assert (tmp_path / "other.db").exists()


async def test_workshop_trusts_no_user_header_by_default(tmp_path: Path) -> None:
    """Any client could send it. EXAMPLE_USER_HEADER names the header that a trusted proxy sets."""
    headers = {"x-forwarded-user": "director"}
    users = []
    for header in (None, "X-Forwarded-User"):
        app = create_app(tmp_path / "workshop.db", user_header=header)
        async with (
            serve(app) as url,
            genmcp.Client(f"{url}/mcp", headers=headers) as client,
        ):
            found = (await client.call("search_parts", {"text": "chain 11"})).data
            opened = (await client.call("open_repair", {"bicycle": "b", "customer": "c"})).data
            arguments = {"part": found["parts"][0]["number"], "repair": opened["id"]}
            await client.call("withdraw_part", arguments)
            sheet = (await client.call("repair_sheet", {"repair": opened["id"]})).data
        users.append(sheet["parts"][-1]["user"])

    assert users == ["guest", "director"]


async def test_workshop_writes_only_beside_its_database(tmp_path: Path) -> None:
    """The container can run with a read-only root: `docker run --read-only`."""
    data, cwd, home = tmp_path / "data", tmp_path / "cwd", tmp_path / "home"
    for folder in (data, cwd, home):
        folder.mkdir()
    places = {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    database = str(data / "workshop.db")
    async with command(cwd, PORT="0", EXAMPLE_DATABASE=database, **places) as process:
        url = url_in(await until(process, '"mcpServers"'))
        async with Client(url) as client:
            result = await client.call_tool("open_repair", {"bicycle": "b", "customer": "c"})
            assert not result.is_error

        assert [*cwd.iterdir(), *home.iterdir()] == []
        assert (data / "workshop.secret").exists()


async def test_workshop_command_rejects_an_invalid_port(tmp_path: Path) -> None:
    """An invalid PORT is an error message without a traceback."""
    async with command(tmp_path, PORT="eighty") as process:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        error = output.decode()

    assert error.endswith("error: argument --port: invalid int value: 'eighty'\n")
