"""Readiness of `genmcp serve` over real servers that are suspended or killed."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_operating import ready, started, until_ready
from tests.support.asgi import PATIENCE
from tests.support.stores import shared_store


async def problem_of_store(http: httpx.AsyncClient, url: str) -> str:
    """Wait until the server is not ready, and return the reason."""
    async with asyncio.timeout(PATIENCE):
        while True:  # the state before is remembered for a second
            status, body = await ready(http, url)
            if status == 503:
                return str(body["problems"]["store"])
            await asyncio.sleep(0.05)


async def _awaited(done: Any) -> None:
    if inspect.isawaitable(done):
        await done


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_server_is_not_ready_without_its_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspended or killed; it is alive meanwhile, and ready again without a restart.

    Neither the log nor the response contains the password of the store.
    """
    async with shared_store(kind, tmp_path, own_server=True) as (url, server):
        assert server is not None
        monkeypatch.setenv("GENMCP_STORE", url)
        monkeypatch.setenv("GENMCP_SECRET", "a secret of at least 16 bytes")
        with started("serve", "tests.cli.shop:suite", "--port", "0", folder=tmp_path) as run:
            base = await run.find(r"at (http://\S+)/mcp")
            async with httpx.AsyncClient(timeout=20) as http:
                await until_ready(http, base)
                server.pause()
                assert await problem_of_store(http, base) == "no response in 2 seconds"
                assert (await http.get(f"{base}/health")).status_code == 200
                server.resume()
                await until_ready(http, base)

                await _awaited(server.kill())
                assert await problem_of_store(http, base)
                assert (await http.get(f"{base}/health")).status_code == 200
                await _awaited(server.start())
                await until_ready(http, base)
            log = run.log
    password = url.partition("@")[0].rpartition(":")[2] if "@" in url else None
    assert password is None or password not in log
