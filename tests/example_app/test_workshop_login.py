"""The workshop with logins: an authorization server beside it, and a tool with a scope."""

from pathlib import Path
from typing import Any

import httpx
from mcp import Client

from tests.e2e.authorizing import Kept, official_client
from tests.example_app.connecting import command, url_of

DELIVERY = {"supplier": "Albatros", "csv": "number,quantity\nCH-103,2"}


async def test_workshop_login_steps_up_for_deliveries(tmp_path: Path) -> None:
    """The user logs in once for reading, and again for the scope of one tool."""
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


async def test_workshop_login_is_off_by_default(tmp_path: Path) -> None:
    """Every tool is open then, also that with a scope."""
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
    """Anyone can log in at that authorization server."""
    async with command(tmp_path, PORT="0", HOST="0.0.0.0", EXAMPLE_LOGIN="1") as process:
        assert process.stdout
        printed = (await process.stdout.read()).decode()

        assert await process.wait() == 2
    assert "--login is for 127.0.0.1 only" in printed
