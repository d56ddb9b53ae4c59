"""Several processes use the tokens of one user, and some of them are killed."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from genmcp import Client
from genmcp.client.auth import OAuth
from genmcp.core.auth.record import record_key
from tests.cli.guarded import guarded
from tests.client.auth.storage_process import KINDS, open_storage
from tests.contracts.tokens import KEY, RECORD, renewed, save

ROOT = Path(__file__).parents[3]
BOUND = 50  # seconds

pytestmark = pytest.mark.e2e


async def start(kind: str, folder: Path, *action: str) -> Process:
    module = "tests.client.auth.storage_process"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, kind, str(folder), *action),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_no_renewal_of_another_process_is_lost(kind: str, tmp_path: Path) -> None:
    """Processes that renew at once each count on from the one before."""
    async with asyncio.timeout(BOUND):
        processes = [await start(kind, tmp_path, "renew") for _ in range(4)]
        assert [await process.wait() for process in processes] == [0] * 4

        record = await open_storage(kind, tmp_path).load(KEY)
    assert record is not None
    assert record.renewals == 40


@pytest.mark.parametrize("kind", KINDS)
async def test_lock_of_a_killed_process_is_free(kind: str, tmp_path: Path) -> None:
    """While it lives, the lock is held; after `kill -9` the next process gets it."""
    tokens = open_storage(kind, tmp_path)
    async with asyncio.timeout(BOUND):
        holder = await start(kind, tmp_path, "hold")
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        entered = asyncio.Event()

        async def enter() -> None:
            async with tokens.lock(KEY):
                entered.set()

        waiting = asyncio.create_task(enter())
        await asyncio.sleep(0.2)
        assert not entered.is_set()
        holder.kill()
        await holder.wait()
        await waiting


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_write_leaves_the_old_record(kind: str, tmp_path: Path) -> None:
    """The record is complete at any moment; the rest of the process is not in the way."""
    tokens = open_storage(kind, tmp_path)
    async with asyncio.timeout(BOUND):
        await save(tokens, RECORD)
        process = await start(kind, tmp_path, "die")
        assert await process.wait() == -9
        assert [*tmp_path.joinpath("tokens").glob("*.new")]

        assert await tokens.load(KEY) == RECORD
        await save(tokens, renewed(RECORD))
        assert await tokens.load(KEY) == renewed(RECORD)
        assert [*tmp_path.joinpath("tokens").glob("*.new")] == []


async def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A child has the open files of its parent, which releases the lock for both."""
    tokens = open_storage("file", tmp_path)
    async with asyncio.timeout(BOUND):
        process = await start("file", tmp_path, "fork")
        assert process.stdout is not None
        assert process.stdin is not None
        assert await process.stdout.readline() == b"released\n"
        async with tokens.lock(KEY):
            pass
        process.stdin.close()
        assert await process.wait() == 0


async def test_one_of_many_processes_renews(tmp_path: Path) -> None:
    """The refresh token rotates: a second use of it would end the login of all processes."""

    async def approve(url: str) -> str:
        async with httpx.AsyncClient() as browser:
            return str((await browser.get(url)).headers["location"])

    tokens = open_storage("sealed", tmp_path)
    async with asyncio.timeout(BOUND), guarded(tmp_path) as server:
        login = OAuth("tests", tokens=tokens, ask=approve)
        async with Client(server.url, auth=login) as client:
            assert (await client.call("whoami")).text == "mia"
        key = record_key(server.url, "tests")
        record = await tokens.load(key)
        assert record is not None
        await save(tokens, replace(record, expires=1.0), key)

        processes = [await start("sealed", tmp_path, "call", server.url) for _ in range(8)]
        out = [(await process.communicate())[0] for process in processes]

        assert out == [b"mia"] * 8
        grants = [each.params["grant_type"] for each in server.issuer.received("token")]
        assert grants == ["authorization_code", "refresh_token"]
