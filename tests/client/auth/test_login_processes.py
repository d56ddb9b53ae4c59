"""Several processes share one login, with refresh tokens that are valid once."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from genmcp import Client
from genmcp.client.auth import FileTokens, OAuth
from genmcp.core.auth.record import record_key
from tests.client.auth.logins import guarded_place

ROOT = Path(__file__).parents[3]
NAME = "Parts agent"

pytestmark = pytest.mark.e2e


async def start(url: str, folder: Path) -> Process:
    module = "tests.client.auth.login_process"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, url, str(folder), NAME),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )


async def test_processes_renew_a_rotating_token_once(tmp_path: Path) -> None:
    """A refresh token that is used twice revokes the login: no process may lose this race."""
    async with asyncio.timeout(60), guarded_place() as place:
        tokens = FileTokens(tmp_path)
        async with Client(place.url, auth=OAuth(NAME, ask=place.browse, tokens=tokens)) as client:
            await client.tools()
        for _ in range(2):
            processes = [await start(place.url, tmp_path) for _ in range(2)]
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"open\n"
            record = await tokens.load(record_key(place.url, NAME))
            assert record is not None
            place.refused.add(record.access_token or "")
            ended = await asyncio.gather(*(each.communicate(b"go\n") for each in processes))
            assert [output for output, _ in ended] == [b"5 results\n"] * 2

    assert place.grants() == ["authorization_code", "refresh_token", "refresh_token"]
    assert len(place.asked) == 1
