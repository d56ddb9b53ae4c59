"""The workshop with logins: its authorization server, and a tool with a scope."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from tests.cli.users import at_terminal
from tests.e2e.authorizing import Kept, official_client
from tests.example_app.connecting import REPOSITORY, command, until, url_of

pytestmark = pytest.mark.slow

BROWSER = REPOSITORY / "tests" / "e2e" / "browsing.py"

DELIVERY = {"supplier": "Albatros", "csv": "number,quantity\nCH-103,2"}


async def test_workshop_login_steps_up_for_deliveries(tmp_path: Path) -> None:
    """The user logs in once to read, and again for the scope of one tool."""
    storage = Kept()
    async with command(tmp_path, PORT="0", EXAMPLE_LOGIN="1") as process:
        url = await url_of(process)
        async with official_client(url, "auto", storage) as client:
            repairs: Any = await client.call_tool("list_repairs", {})
            assert storage.tokens
            before = storage.tokens.scope
            booked: Any = await client.call_tool("book_delivery", DELIVERY)
            after = storage.tokens.scope

    assert not repairs.is_error
    assert booked.content[0].text.startswith("Booked 2 pieces from Albatros.")
    assert (before, after) == ("workshop", "workshop workshop:deliveries")


async def test_workshop_login_prints_commands_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed login, call, and call with a scope can be copied to a terminal."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("BROWSER", f"{sys.executable} {BROWSER} %s")
    async with command(tmp_path, PORT="0", EXAMPLE_LOGIN="1") as process:
        printed = await until(process, '"mcpServers"')
        lines = re.findall(r"^    (genmcp (?:.*\\\n)*.*)$", printed, re.MULTILINE)
        ends = [await asyncio.to_thread(pasted, line) for line in lines]

    assert [status for status, _ in ends] == [0, 0, 0], ends
    assert "logged in at http://127.0.0.1:" in ends[0][1]
    assert "Gravel bike, green" in ends[1][1]
    assert "Booked 2 pieces from Albatros." in ends[2][1]


def pasted(line: str) -> tuple[int, str]:
    """Run a command of genmcp at a terminal, as a shell would; return its status and output."""
    shell = ["bash", "-c", f"printf '%s\\0' {line}"]
    arguments = subprocess.run(shell, capture_output=True, check=True).stdout.decode().split("\0")
    with at_terminal(*arguments[1:-1]) as user:
        return user.ends()


async def test_workshop_login_is_off_by_default(tmp_path: Path) -> None:
    """Without it every tool can be called, even the one with a scope."""
    async with command(tmp_path, PORT="0", EXAMPLE_LOGIN="0") as process:
        url = await url_of(process)
        async with Client(url) as client, httpx.AsyncClient() as http:
            booked: Any = await client.call_tool("book_delivery", DELIVERY)
            metadata = await http.get(
                httpx.URL(url).join("/.well-known/oauth-protected-resource/mcp")
            )

    assert not booked.is_error
    assert metadata.status_code == 404


async def test_workshop_login_is_for_this_machine_only(tmp_path: Path) -> None:
    """Its authorization server accepts anyone."""
    async with command(tmp_path, PORT="0", HOST="0.0.0.0", EXAMPLE_LOGIN="1") as process:
        assert process.stdout
        printed = (await process.stdout.read()).decode()

        assert await process.wait() == 2
    assert "--login is for 127.0.0.1 only" in printed
