"""A process that works on jobs, and serves nobody."""

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.cli.lifespan import entered
from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux

__all__ = ["GRACE", "Hands", "first", "told_by_signals", "work"]

logger = logging.getLogger("genmcp")

GRACE: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does otherwise than the `JobOptions` of its mux say; None: nothing.

    queues: whose jobs it takes. concurrency: how many at once. shutdown_grace: seconds that running
        jobs have to end when it is told to stop.
    """

    queues: Sequence[str] | None = None
    concurrency: int | None = None
    shutdown_grace: float = GRACE


async def work(mux: Mux, hands: Hands, app: Any = None) -> None:
    """Work on the jobs of *mux* until SIGTERM or SIGINT, within the lifespan of *app*.

    Then nothing more is taken, and what has not ended when the grace is over is handed to other
    processes at once. A second signal ends this one without any of that.

    Raises:
        ConfigurationError: there is nothing to work on here, or the application does not start.
        StoreUnavailable: the store could not be reached.
    """
    if not mux.store.shared:
        raise ConfigurationError(
            f"{mux.store!r} is seen by this process only, so that there is nothing to work on: "
            f"give the Mux a store that the servers share (store=, or GENMCP_STORE), such as "
            f"sqlite:///jobs.db"
        )
    jobs = mux.tasks.service
    said = {name: each for name, each in msgspec.structs.asdict(hands).items() if each is not None}
    jobs.worker.options = replace(jobs.worker.options, **said)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.enter_context(told_by_signals(stop))
        stack.push_async_callback(mux.aclose)
        if app is not None:
            await stack.enter_async_context(entered(app))
        stack.push_async_callback(jobs.aclose)
        await jobs.start()
        queues = ", ".join(jobs.worker.options.queues)
        logger.info("working on jobs of %s, of %s", mux.server.info.name, queues)
        await first(stop.wait(), jobs.worker.ended())
        if not stop.is_set():
            raise RuntimeError("the engine has ended by itself; the log tells why")
        logger.info("stopping: what runs has %g seconds to end", jobs.worker.options.shutdown_grace)


@contextmanager
def told_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let *stop* be set by the first signal to stop; the next one does what it did before."""
    loop = asyncio.get_running_loop()

    def told(number: int, frame: object) -> None:
        let_go()
        loop.call_soon_threadsafe(stop.set)

    before = {each: signal.signal(each, told) for each in _SIGNALS}

    def let_go() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    try:
        yield
    finally:
        let_go()


async def first(*waits: Any) -> None:
    """Wait until one of *waits* is over."""
    waiting = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
