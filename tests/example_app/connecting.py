"""The workshop behind a real uvicorn, and the official client at it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from example_app import create_app
from tests.serving import serve

Mode = Literal["auto", "legacy"]
"""How the client begins: `auto` finds 2026-07-28 by server/discover, `legacy` shakes hands."""


@asynccontextmanager
async def connected(
    path: Path, mode: Mode, *, user: str = "ines", **options: Any
) -> AsyncIterator[Client]:
    """Serve the workshop on the database at `path`, and give a client of `user`.

    `options` are those of the official client.
    """
    async with (
        serve(create_app(path)) as url,
        create_mcp_http_client(headers={"X-Forwarded-User": user}) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, **options
        ) as client,
    ):
        yield client
