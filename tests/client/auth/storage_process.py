"""A process that uses a token storage: `python -m tests.client.auth.storage_process KIND ...`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from msgspec.structs import replace

from genmcp import Client
from genmcp.client.auth import FileTokens, OAuth, TokenStorage
from tests.contracts.tokens import KEY, RECORD, renewed, save

KINDS = ["file", "sealed"]
SECRET = "a secret for the tests"


def open_storage(kind: str, folder: Path) -> TokenStorage:
    """Return the storage of a *kind* in *folder*, which processes share."""
    return FileTokens(folder / "tokens", secret=SECRET if kind == "sealed" else None)


async def renew_often(tokens: TokenStorage, times: int) -> None:
    """Renew the record *times* times."""
    for _ in range(times):
        async with tokens.lock(KEY):
            record = await tokens.load(KEY)
            await tokens.save(KEY, renewed(record or RECORD))


def refuse(url: str) -> str:
    raise RuntimeError("a login began")


async def main(kind: str, folder: str, action: str, url: str = "") -> None:
    tokens = open_storage(kind, Path(folder))
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
            await save(tokens, replace(renewed(RECORD), access_token="lost"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
