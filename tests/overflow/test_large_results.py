"""Results of 50 MB, of a tool and of a job, over each store: read by three clients in ranges."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import fastmcp
import mcp
import pytest

from genmcp import Client
from genmcp.overflow import LENGTH, MAX_RANGE
from genmcp.protocol.content import ResourceLink, TextContent
from tests.overflow.exports import LIMIT, text
from tests.support.processes import server_process
from tests.support.stores import KINDS, shared_store

pytestmark = [pytest.mark.e2e, pytest.mark.peers, pytest.mark.timeout(300)]

Read: TypeAlias = Callable[[str], Awaitable[str]]
MOST = 32  # MiB more than before, at any time


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Read]:
    async with Client(url) as client:

        async def read(uri: str) -> str:
            return (await client.read(uri)).contents[0].text or ""

        yield read


@asynccontextmanager
async def official(url: str) -> AsyncIterator[Read]:
    async with mcp.Client(url) as client:

        async def read(uri: str) -> str:
            return (await client.read_resource(uri)).contents[0].text  # type: ignore[union-attr]

        yield read


@asynccontextmanager
async def of_fastmcp(url: str) -> AsyncIterator[Read]:
    async with fastmcp.Client(url) as client:

        async def read(uri: str) -> str:
            (contents,) = await client.read_resource(uri)
            return str(contents.text)

        yield read


CLIENTS: list[Callable[[str], AbstractAsyncContextManager[Read]]] = [ours, official, of_fastmcp]


class Memory:
    """How much memory a process uses more than at the beginning, in MiB."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        (self._folder / "clear_refs").write_text("5")
        self._before = self._field("VmRSS")

    @property
    def added(self) -> float:
        """The most memory since the beginning, less that at the beginning."""
        return (self._field("VmHWM") - self._before) / 1024

    def _field(self, name: str) -> int:
        status = (self._folder / "status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1])  # type: ignore[index]


async def kept(client: Client, name: str) -> ResourceLink:
    """Call the tool *name*, check the beginning of its result, and return the link to the whole."""
    begin, note, link = (await client.call(name)).content
    assert isinstance(begin, TextContent) and isinstance(note, TextContent)
    assert isinstance(link, ResourceLink)
    assert text().startswith(begin.text) and LIMIT // 2 < len(begin.text) <= LIMIT
    assert f"{link.uri}?from={len(begin.text)}" in note.text
    assert (link.size, link.meta) == (len(text().encode()), {LENGTH: len(text())})
    return link


async def digest(read: Read, uri: str) -> str:
    """Return the digest of all that is read in ranges, one after another."""
    found = sha256()
    for at in range(0, len(text()), MAX_RANGE):
        found.update((await read(f"{uri}?from={at}&to={at + MAX_RANGE}")).encode())
    return found.hexdigest()


@asynccontextmanager
async def exports(store: str) -> AsyncIterator[tuple[str, Client, Memory]]:
    """Yield the URL of a new process, a client of it, and the memory of the process."""
    async with (
        server_process("tests.overflow.exports", store) as (url, process),
        Client(url) as client,
    ):
        await client.tools()
        yield url, client, Memory(process.pid)


@pytest.mark.parametrize("kind", KINDS)
async def test_result_of_50_mb_is_read_after_a_restart(kind: str, tmp_path: Path) -> None:
    """The memory of the server is bounded by the range, not by the result."""
    async with shared_store(kind, tmp_path) as store:
        # A client's kept results have room in an eighth of the store: 128 MiB of 1 GiB, the default
        # of Redis, would be too few for the value of the job and two results.
        url = f"{store.url}?max_bytes={4 * 1024**3}" if kind == "redis" else store.url
        async with exports(url) as (_, client, memory):
            links = [await kept(client, "export")]
            assert memory.added < MOST
            links.append(await kept(client, "report"))
        async with exports(url) as (server, _, memory):
            found = []
            for reader in CLIENTS:
                async with reader(server) as read:
                    found += [await digest(read, link.uri) for link in links]
            assert memory.added < MOST

    assert {*found} == {sha256(text().encode()).hexdigest()}
