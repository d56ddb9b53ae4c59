"""Handles that several processes change: no change is lost, and none is half-written."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from genmcp import Client, ClientError, ClientHandler, ClientOptions, Mux
from genmcp.protocol.params import LoggingMessageNotificationParams
from genmcp.testing import connect
from tests.handles.counting import SECRET, suite
from tests.support.processes import server_process
from tests.support.stores import KINDS, shared_store

CALLS = 100
LEASE = 0.5  # seconds, in a process that is killed
slow = pytest.mark.slow
STORES = [KINDS[0], *(pytest.param(kind, marks=slow) for kind in KINDS[1:])]


class Informed(ClientHandler):
    """Notes that the server has logged a message."""

    def __init__(self) -> None:
        self.logged = asyncio.Event()

    async def handle_log(self, message: LoggingMessageNotificationParams) -> None:
        self.logged.set()


@asynccontextmanager
async def processes(
    number: int, store: str, *options: object
) -> AsyncIterator[Sequence[tuple[str, Process]]]:
    """Serve the counting tools in *number* processes over *store*, with these *options*."""
    arguments = "tests.handles.counting", store, *map(str, options)
    async with AsyncExitStack() as stack:
        served = [server_process(*arguments, stop=Process.kill) for _ in range(number)]
        yield [await stack.enter_async_context(each) for each in served]


async def counted(clients: Sequence[Client]) -> None:
    """Count `CALLS` times at once, by the *clients* in turn, and check that each call counted."""
    id = (await clients[0].call("start")).text
    calls = [clients[n % len(clients)].call("count", {"counter": id}) for n in range(CALLS)]

    results = await asyncio.gather(*calls)

    assert sorted(result.data for result in results) == list(range(1, CALLS + 1))
    assert (await clients[-1].call("read", {"counter": id})).data == CALLS


@slow
@pytest.mark.parametrize("kind", KINDS)
async def test_changes_by_two_processes_are_all_kept(kind: str, tmp_path: Path) -> None:
    """A hundred calls at once, half of them to each process."""
    async with (
        shared_store(kind, tmp_path) as store,
        processes(2, store.url) as ((one, _), (two, _)),
        Client(one) as first,
        Client(two) as second,
    ):
        await counted([first, second])


@pytest.mark.parametrize("kind", STORES)
async def test_changes_by_two_muxes_are_all_kept(kind: str, tmp_path: Path) -> None:
    """Also between two muxes of one process, each with connections of its own."""
    async with shared_store(kind, tmp_path) as store:
        muxes = [Mux(suite, secret=SECRET, store=store.url) for _ in range(2)]
        async with connect(muxes[0]) as first, connect(muxes[1]) as second:
            await counted([first, second])
        for mux in muxes:
            await mux.aclose()


@pytest.mark.parametrize("kind", STORES)
async def test_killed_process_leaves_the_value_as_it_was(kind: str, tmp_path: Path) -> None:
    """Its change is not written, not even in part; after its lease the next call may change it."""
    informed = Informed()
    async with (
        shared_store(kind, tmp_path) as store,
        processes(1, store.url, LEASE) as ((url, process),),
        connect(mux := Mux(suite, secret=SECRET, store=store.url)) as client,
    ):
        id = (await client.call("start")).text
        await client.call("count", {"counter": id})
        async with Client(url, handler=informed, options=ClientOptions(log_level="info")) as doomed:
            hanging = asyncio.create_task(doomed.call("hang", {"counter": id}))
            await informed.logged.wait()
            process.kill()
            with pytest.raises(ClientError):
                await hanging

        assert (await client.call("read", {"counter": id})).data == 1
        async with asyncio.timeout(20 * LEASE):
            assert (await client.call("count", {"counter": id})).data == 2
        await mux.aclose()
