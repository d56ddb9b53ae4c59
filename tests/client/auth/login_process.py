"""A process that calls a server: `python -m tests.client.auth.login_process URL FOLDER NAME`.

It has the tokens of an earlier login in FOLDER. It opens the client, prints a line, waits for a
line, and calls the server.
"""

import asyncio
import sys

from genmcp import Client
from genmcp.client.auth import FileTokens, OAuth


def refuse(url: str) -> str:
    raise OSError("this process must not ask the user")


async def main(url: str, folder: str, name: str) -> None:
    auth = OAuth(name, ask=refuse, tokens=FileTokens(folder))
    async with Client(url, auth=auth) as client:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        results = await asyncio.gather(*(client.call("whoami") for _ in range(5)))
        sys.stdout.write(f"{len(results)} results\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
