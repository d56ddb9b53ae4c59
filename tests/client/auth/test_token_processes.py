"""Several processes use the tokens of one user, and some of them are killed."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import httpx
import keyring
import pytest
from msgspec.structs import replace

from genmcp import Client
from genmcp._core.auth.record import record_key
from genmcp.client.auth import OAuth
from tests.cli.guarded import guarded
from tests.client.auth.file_keyring import FileKeyring
from tests.client.auth.storage_process import KINDS, open_storage
from tests.contracts.tokens import KEY, RECORD, renewed

ROOT = Path(__file__).parents[3]
BOUND = 50  # seconds

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def file_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and its children have a keyring in a file."""
    path = tmp_path / "keyring.json"
    monkeypatch.setenv("FILE_KEYRING", str(path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", f"{FileKeyring.__module__}.FileKeyring")
    monkeypatch.setattr(keyring.core, "_keyring_backend", FileKeyring(path))


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
    """Processes that renew at once, with and without the lock, each add a generation."""
    async with asyncio.timeout(BOUND):
        processes = [await start(kind, tmp_path, "renew") for _ in range(4)]
        assert [await process.wait() for process in processes] == [0] * 4

        async with open_storage(kind, tmp_path) as tokens:
            record = await tokens.get(KEY)
    assert record is not None
    assert record.generation == 40


@pytest.mark.parametrize("kind", KINDS)
async def test_lock_of_a_killed_process_is_free(kind: str, tmp_path: Path) -> None:
    """While it lives, the lock is held; after `kill -9` the next process gets it."""
    async with asyncio.timeout(BOUND), open_storage(kind, tmp_path) as tokens:
        holder = await start(kind, tmp_path, "hold")
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        entered = asyncio.Event()

        async def enter() -> None:
            async with tokens.lock(KEY):
                entered.set()

        waiting = asyncio.create_task(enter())
        await asyncio.sleep(0.2)
        # The lease of a store is a time: the holder may have lost it on a slow machine.
        assert kind == "store" or not entered.is_set()
        holder.kill()
        await holder.wait()
        await waiting


@pytest.mark.parametrize("kind", ["file", "sealed", "keyring"])
async def test_killed_write_leaves_the_old_record(kind: str, tmp_path: Path) -> None:
    """The record is complete at any moment, and what the process left is not in the way."""
    async with asyncio.timeout(BOUND), open_storage(kind, tmp_path) as tokens:
        assert await tokens.swap(KEY, None, RECORD)
        process = await start(kind, tmp_path, "die")
        assert await process.wait() == -9
        assert [*tmp_path.joinpath("tokens").glob("*.new")]

        assert await tokens.get(KEY) == RECORD
        assert await tokens.swap(KEY, RECORD, renewed(RECORD))
        assert await tokens.get(KEY) == renewed(RECORD)
        assert [*tmp_path.joinpath("tokens").glob("*.new")] == []


async def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A child has the open files of its parent, which releases the lock for both."""
    async with asyncio.timeout(BOUND), open_storage("file", tmp_path) as tokens:
        process = await start("file", tmp_path, "fork")
        assert process.stdout is not None
        assert process.stdin is not None
        assert await process.stdout.readline() == b"released\n"
        async with tokens.lock(KEY):
            pass
        process.stdin.close()
        assert await process.wait() == 0


@pytest.mark.parametrize("kind", ["sealed", "keyring", "store"])
async def test_one_of_many_processes_renews(kind: str, tmp_path: Path) -> None:
    """The refresh token rotates: a second use of it would end the login of all processes."""

    async def approve(url: str) -> str:
        async with httpx.AsyncClient() as browser:
            return str((await browser.get(url)).headers["location"])

    async with asyncio.timeout(BOUND), guarded(tmp_path) as server:
        async with open_storage(kind, tmp_path) as tokens:
            login = OAuth("tests", tokens=tokens, ask=approve)
            async with Client(server.url, auth=login) as client:
                assert (await client.call("whoami")).text == "mia"
            key = record_key(server.url, "tests")
            record = await tokens.get(key)
            assert record is not None
            expired = replace(record, expires=1.0, generation=record.generation + 1)
            assert await tokens.swap(key, record, expired)

        processes = [await start(kind, tmp_path, "call", server.url) for _ in range(8)]
        out = [(await process.communicate())[0] for process in processes]

        assert out == [b"mia"] * 8
        grants = [each.params["grant_type"] for each in server.issuer.received("token")]
        assert grants == ["authorization_code", "refresh_token"]
