"""The workshop behind a real uvicorn server, in this process or in its own, and its clients."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from example_app import create_app
from tests.support.serving import serve

PATIENCE = 20  # seconds for a process to start, and to stop
REPOSITORY = Path(__file__).parents[2]

Mode = Literal["auto", "legacy"]
"""How the client begins: `auto` finds 2026-07-28 by server/discover, `legacy` shakes hands."""


@asynccontextmanager
async def connected(
    path: Path, mode: Mode, *, user: str = "ines", **options: Any
) -> AsyncIterator[Client]:
    """Serve the workshop with the database at `path`, and yield a client of `user`.

    `options` are those of the official client.
    """
    async with (
        serve(create_app(path, user_header="X-Forwarded-User")) as url,
        create_mcp_http_client(headers={"X-Forwarded-User": user}) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, **options
        ) as client,
    ):
        yield client


@asynccontextmanager
async def command(folder: Path, **environment: str) -> AsyncIterator[Process]:
    """Run `python -m example_app` in a folder. At the end it is stopped, as by Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "example_app",
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "EXAMPLE_USER_HEADER": "X-Forwarded-User",
            **environment,
        },
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), PATIENCE)


async def until(process: Process, word: str) -> str:
    """Return the output of a process up to the first line with a word."""
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while word not in "".join(lines[-1:]):
            line = await process.stdout.readline()
            assert line, f"it ended after:\n{''.join(lines)}"
            lines.append(line.decode())
    return "".join(lines)


async def url_of(process: Process) -> str:
    """Return the URL that a process prints when it accepts requests."""
    return url_in(await until(process, '"mcpServers"'))


def url_in(printed: str) -> str:
    """Return the URL in the configuration at the end of the output."""
    url: str = json.loads(printed.splitlines()[-1])["mcpServers"]["workshop"]["url"]
    return url
