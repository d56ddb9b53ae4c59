"""The examples of the pages on engines for jobs, run with the commands of these pages."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from genmcp import ClientError
from genmcp.client.client import Client
from tests.support.documented import write_examples
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.temporal_server import TemporalServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    "brochures": "celery",
    "invoices": "procrastinate",
    "photos": "docket",
    "parcels": "temporal",
}
MODULES: Final = ("brochures", "invoices", "photos", "shipping", "parcels", "parcels_worker")


@pytest.fixture
async def environment(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, str]]:
    """Variables of the environment for the example, whose broker runs."""
    name: str = request.getfixturevalue("name")
    if name == "invoices":
        async with PostgresServer() as postgres:
            yield {"POSTGRES_URL": postgres.url}
    elif name == "parcels":
        async with TemporalServer() as temporal:
            yield {"TEMPORAL_ADDRESS": temporal.url}
    else:
        async with RedisServer() as redis:
            yield {"REDIS_URL": redis.url}


@pytest.fixture
async def url(
    name: str, environment: dict[str, str], tmp_path: Path, free_port: int
) -> AsyncIterator[str]:
    """The URL of the example, after all commands of the page."""
    page = f"how-to/{PAGES[name]}"
    write_examples(page, tmp_path, **{each: f"{each}.py" for each in MODULES})
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```sh\n([^`]*?uvicorn {name}:app\n)```$", text, re.MULTILINE)
    block = block.replace("redis://localhost:6379", environment.get("REDIS_URL", ""))
    _, *preparations, worker, server = block.splitlines()  # the first one sets the secret
    settings = {
        **os.environ,
        **environment,
        "GENMCP_SECRET": "a secret of the tests",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for command in preparations:
        await asyncio.to_thread(
            subprocess.run, command, shell=True, check=True, cwd=tmp_path, env=settings, timeout=60
        )
    processes = [
        await asyncio.create_subprocess_shell(
            f"exec env {command}", cwd=tmp_path, env=settings, start_new_session=True
        )
        for command in (worker, f"{server} --port {free_port}")
    ]
    try:
        yield f"http://127.0.0.1:{free_port}/mcp"
        for process in reversed(processes):
            process.terminate()
            async with asyncio.timeout(20):
                await process.wait()
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "brochures",
            [
                ("brochure", {"pages": 3}, "The brochure has 3 pages."),
                ("archive_brochures", {"month": "May"}, "Archived: brochures of May."),
            ],
        ),
        (
            "invoices",
            [
                ("invoice", {"customers": 3}, "Sent 3 invoices."),
                ("remind_customer", {"customer": "Ada"}, "Reminded."),
            ],
        ),
        (
            "photos",
            [
                ("resize_photos", {"photos": 3}, "Resized 3 photos."),
                ("clean_folder", {"folder": "Porto"}, "Done: Porto is clean."),
            ],
        ),
        (
            "parcels",
            [
                ("pack_items", {"items": 3}, "Packed 3 items."),
                ("ship", {"parcels": 2}, "The order is on its way: 2 parcels shipped."),
            ],
        ),
    ],
)
async def test_example_runs_as_documented(
    url: str, name: str, calls: list[tuple[str, dict[str, object], str]]
) -> None:
    """A job on the engine, and work of the engine that is not a job; then both processes stop."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        client: Client | None = None
        while client is None:
            with suppress(ClientError):
                client = await stack.enter_async_context(Client(url))
            await asyncio.sleep(0.2)
        for tool, arguments, expected in calls:
            assert (await client.call(tool, arguments, timeout=60)).text == expected
