"""`genmcp serve` and `genmcp worker` over a store that they cannot use, or not yet."""

import asyncio
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Client
from tests.cli.studio import SECRET
from tests.cli.test_operating import started, until_ready
from tests.support.asgi import Client as Asked
from tests.support.redis_server import RedisServer

SERVE = ("serve", "tests.cli.shop:suite", "--port", "0")
COMMANDS = (
    SERVE,
    (*SERVE, "--workers", "2"),
    ("serve", "tests.cli.shop:suite", "--stdio"),
    ("worker", "tests.cli.shop:suite"),
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"requirepass": "secret"}, "(the user and password are part of the URL)"),
        ({"maxmemory-policy": "allkeys-lru"}, "set maxmemory-policy to noeviction"),
        ({"replicaof": "127.0.0.1 1"}, "is a read-only replica; use the URL of the primary"),
    ],
    ids=["password", "eviction", "replica"],
)
def test_unusable_store_ends_the_process_with_one_line(
    options: Mapping[str, str], reason: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each mode, with status 1; without a traceback, and without the password."""
    server = RedisServer(options, password=options.get("requirepass"))
    monkeypatch.setenv("GENMCP_SECRET", SECRET)
    monkeypatch.setenv("GENMCP_STORE", server.url.replace("secret", "mistaken"))
    asyncio.run(server.start())
    try:
        ended = [run(*command) for command in COMMANDS]
    finally:
        server.end()
    for status, output, errors in ended:
        errors = [each for each in errors.splitlines() if " INFO " not in each]
        assert (status, output, len(errors)) == (1, "", 1), errors
        assert errors[0].startswith("genmcp: the Redis store at redis://")
        assert reason in errors[0]
        assert "mistaken" not in errors[0]


async def test_worker_waits_for_an_unavailable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive and not ready meanwhile, and ready without a restart."""
    async with RedisServer() as server:
        server.kill()
        monkeypatch.setenv("GENMCP_SECRET", SECRET)
        monkeypatch.setenv("GENMCP_STORE", server.url)
        target = ("tests.cli.shop:suite", "--health", "127.0.0.1:0")
        with started("worker", *target, folder=tmp_path) as worker:
            base = await worker.find(r"at (http://\S+)")
            await worker.find(r"(no jobs are run until the store is available: .*)")
            async with httpx.AsyncClient(timeout=20) as http:
                assert (await http.get(f"{base}/health")).status_code == 200
                assert (await http.get(f"{base}/ready")).status_code == 503
                await server.start()
                await until_ready(http, base)
            assert await worker.stop() == 0
            assert "Traceback" not in worker.log


HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "works",
}


@pytest.mark.parametrize(
    ("module", "options", "address"),
    [
        ("genmcp", ("worker", "tests.cli.patient:mux", "--health", "127.0.0.1:0"), "ready at "),
        ("genmcp", ("serve", "tests.cli.patient:mux", "--port", "0"), "at "),
        ("uvicorn", ("tests.cli.patient:app", "--port", "0"), "running on "),
    ],
    ids=["worker", "serve", "uvicorn"],
)
async def test_processes_wait_for_a_locked_sqlite_file(
    module: str, options: tuple[str, ...], address: str, tmp_path: Path
) -> None:
    """As for a server that is away; the endpoint responds with 503, and works without a restart."""
    lock = sqlite3.connect(tmp_path / "studio.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with started(*options, folder=tmp_path, module=module) as process:
        url = await process.find(rf"{address}(http://[\w.:]+)")
        async with httpx.AsyncClient(timeout=20) as http:
            assert (await http.get(f"{url}/ready")).status_code == 503
            if options[0] == "worker":
                await process.find("(no jobs are run until the store is available: .*locked)")
            else:
                call = Asked(None).call("works")
                response = await http.post(f"{url}/mcp", json=call, headers=HEADERS)
                assert response.status_code == 503
            await process.find(r"(\d WARNING <SQLiteStore: .*> is unavailable: .*locked)")
            lock.close()
            await until_ready(http, url)
            await process.find("(is available again, after )")
            if options[0] != "worker":
                async with Client(f"{url}/mcp") as client:
                    assert (await client.call("works")).data == "done"
        await process.stop()
        assert "Traceback" not in process.log
