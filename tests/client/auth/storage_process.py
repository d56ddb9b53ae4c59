"""A process that uses a token storage: `python -m tests.client.auth.storage_process KIND ...`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from genmcp import Client
from genmcp.client.auth import OAuth
from genmcp.client.auth.files import FileTokens
from genmcp.client.auth.keyring_tokens import KeyringTokens
from genmcp.client.auth.store_tokens import StoreTokens
from genmcp.client.auth.tokens import TokenStorage
from genmcp.stores.sqlite.store import SQLiteStore
from tests.contracts.tokens import KEY, RECORD, renewed

KINDS = ["file", "sealed", "keyring", "store"]
SECRET = "a secret for the tests"


@asynccontextmanager
async def open_storage(kind: str, folder: Path, lease: float = 60.0) -> AsyncIterator[TokenStorage]:
    """Open the storage of a *kind* in *folder*, which processes share."""
    match kind:
        case "file":
            yield FileTokens(folder / "tokens")
        case "sealed":
            yield FileTokens(folder / "tokens", secret=SECRET)
        case "keyring":
            yield KeyringTokens("tests", folder / "tokens")
        case _:
            store = SQLiteStore(folder / "tokens.sqlite")
            try:
                yield StoreTokens(store, SECRET, lease=lease)
            finally:
                await store.aclose()


async def renew_often(tokens: TokenStorage, times: int) -> None:
    """Renew the record *times* times, some of them under the lock."""
    for number in range(times):
        if number % 2:
            async with tokens.lock(KEY):
                await _renew(tokens)
        else:
            await _renew(tokens)


async def _renew(tokens: TokenStorage) -> None:
    while True:
        old = await tokens.get(KEY)
        new = RECORD if old is None else renewed(old)
        if await tokens.swap(KEY, old, new):
            return


def refuse(url: str) -> str:
    raise RuntimeError("a login began")


async def main(kind: str, folder: str, action: str, url: str = "") -> None:
    # A short lease only for a holder that is killed: a renewal may be slow on a busy machine.
    lease = 1.0 if action == "hold" else 60.0
    async with open_storage(kind, Path(folder), lease) as tokens:
        match action:
            case "hold":  # until killed
                async with tokens.lock(KEY):
                    os.write(1, b"held\n")
                    await asyncio.Event().wait()
            case "call":
                async with Client(url, auth=OAuth("tests", tokens=tokens, ask=refuse)) as client:
                    os.write(1, str((await client.call("whoami")).text).encode())
            case "renew":
                await renew_often(tokens, 10)
            case "fork":  # a child outlives the lock
                async with tokens.lock(KEY):
                    child = os.fork()
                    if not child:
                        os.read(0, 1)
                        os._exit(0)
                os.write(1, b"released\n")
                os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else runs here
            case "die":  # between the write of the new record and its rename

                def die(source: str, target: str) -> None:
                    os.kill(os.getpid(), signal.SIGKILL)

                os.replace = die  # type: ignore[assignment]
                await tokens.swap(KEY, RECORD, replace(renewed(RECORD), access_token="lost"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
