"""Consumes the queues of a store in a process of its own, for the contract of consumers.

    python -m tests.tasks.engine_worker FACTORY TARGET OPTIONS

opens the store, consumes its queues with the OPTIONS (JSON), and prints one event a line: `ready`,
`started ID`, `ended ID`, `cancelled ID`, `failed ID`, `left`. It reads commands from standard
input: `release ID` lets the handler of ID return, `fail ID` lets it raise, and `leave` stops
serving.
"""

import asyncio
import importlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from genmcp.errors import StoreUnavailable
from genmcp.stores.deliveries import Backlog, Deliveries
from genmcp.stores.store import Store
from genmcp.tasks.consumer import Handler, QueueConsumer
from genmcp.tasks.heartbeats import Presence


class FixedPresence(Presence):
    """Delays takeovers by the seconds that a function returns."""

    def __init__(self, delay: Callable[[], float]) -> None:
        super().__init__(30.0, lambda: 0.0)
        self._delay = delay

    @property
    def takeover_delay(self) -> float:
        return self._delay()


class Engine:
    """The queues of a store, and a consumer of them: what the worker of a process uses."""

    def __init__(self, store: Store) -> None:
        assert store.deliveries is not None
        self.deliveries: Deliveries = store.deliveries

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        await self.deliveries.put(id, queue, delay, owner=owner)

    async def cancel(self, id: str) -> None:
        await self.deliveries.cancel(id)

    async def backlog(self, queue: str) -> Backlog:
        return await self.deliveries.backlog(queue)

    @asynccontextmanager
    async def serve(
        self,
        handler: Handler,
        *,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
        **options: Any,
    ) -> AsyncIterator[None]:
        """Consume queues as the worker of a process does, while this is entered."""
        consumer = QueueConsumer(
            self.deliveries, handler, presence=FixedPresence(takeover_delay), **options
        )
        running = asyncio.create_task(consumer.run())
        try:
            yield
            await consumer.drain(grace)
        finally:
            running.cancel()
            await asyncio.wait({running})
            await consumer.aclose()


OpenEngine: TypeAlias = Callable[[str], AbstractAsyncContextManager[Engine]]


def load_factory(path: str) -> OpenEngine:
    """Return the function that *path*, "module:function", names."""
    module, _, name = path.partition(":")
    factory: OpenEngine = getattr(importlib.import_module(module), name)
    return factory


class HandlerProbe:
    """A delivery handler that reports its events, and returns after `release`.

    Args:
        lease: seconds, for those that serve the engine with this handler. Default 2.
        holds: whether a handler waits for `release` or `fail`. Otherwise it returns at once.
    """

    def __init__(self, *, lease: float = 2.0, holds: bool = True) -> None:
        self.lease = lease
        self.holds = holds
        self.events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.running: list[str] = []
        self.peak = 0
        self.on_event: Callable[[str, str], None] = lambda event, id: None
        self._gates: dict[str, asyncio.Future[None]] = {}

    async def __call__(self, id: str) -> None:
        self.running.append(id)
        self.peak = max(self.peak, len(self.running))
        self._report("started", id)
        try:
            if self.holds:
                self._gates[id] = gate = asyncio.get_running_loop().create_future()
                await gate
        except asyncio.CancelledError:
            self._report("cancelled", id)
            raise
        except StoreUnavailable:
            self._report("failed", id)
            raise
        else:
            self._report("ended", id)
        finally:
            self.running.remove(id)

    def release(self, id: str) -> None:
        """Let the handler of *id* return, if it was not cancelled."""
        gate = self._gates.pop(id)
        if not gate.done():
            gate.set_result(None)

    def fail(self, id: str) -> None:
        """Let the handler of *id* raise."""
        self._gates.pop(id).set_exception(StoreUnavailable("the test lets the handler fail"))

    def _report(self, event: str, id: str) -> None:
        self.counts[event, id] += 1
        self.events.put_nowait((event, id))
        self.on_event(event, id)


def _say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


async def _read_commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def serve(open_engine: OpenEngine, target: str, options: dict[str, Any]) -> None:
    """Serve the engine of *target* until the end of standard input, or `leave`."""
    probe = HandlerProbe(holds=options.pop("holds"))
    probe.on_event = _say
    takeover_delay = options.pop("takeover_delay")
    lines = await _read_commands()
    leaving = asyncio.Event()

    async def obey() -> None:
        commands = {"release": probe.release, "fail": probe.fail}
        while (line := (await lines.readline()).decode().strip()) and line != "leave":
            command, _, id = line.partition(" ")
            commands[command](id)
        leaving.set()
        if line:
            await obey()  # handlers are released while the process stops

    async with open_engine(target) as engine:
        async with engine.serve(probe, takeover_delay=lambda: takeover_delay, **options):
            _say("ready")
            obeying = asyncio.create_task(obey())
            await leaving.wait()
        _say("left")
    obeying.cancel()
    await asyncio.wait([obeying])


if __name__ == "__main__":
    asyncio.run(serve(load_factory(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
