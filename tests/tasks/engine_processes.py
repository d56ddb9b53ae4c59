"""The contract of an `Engine` between processes, some of which are killed or suspended."""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import pytest

from genmcp.errors import StoreUnavailable
from tests.tasks.engine_contract import (
    BOUND,
    LONG_LEASE,
    EngineContract,
    expect,
    serving,
)
from tests.tasks.engine_worker import Engine, HandlerProbe, load_factory


class EngineProcess:
    """A process that serves an engine (`tests.tasks.engine_worker`)."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.seen: list[str] = []

    @classmethod
    async def start(
        cls, factory: str, target: str, *, lease: float, takeover_delay: float = 0.0, **options: Any
    ) -> "EngineProcess":
        """Start a process that serves the engine of *target*, and wait until it does."""
        options = {"queues": ["default"], "concurrency": 4, **options}
        options |= {"holds": True, "lease": lease, "takeover_delay": takeover_delay}
        command = sys.executable, "-m", "tests.tasks.engine_worker"
        process = await asyncio.create_subprocess_exec(
            *command, factory, target, json.dumps(options), stdin=PIPE, stdout=PIPE
        )
        started = cls(process)
        try:
            await started.expect("ready")
        except BaseException:
            await started.end()
            raise
        return started

    async def expect(self, event: str) -> float:
        """Wait for *event*, and return the time of the loop at which it arrived."""
        try:
            async with asyncio.timeout(BOUND):
                while event not in self.seen:
                    self.seen.append(await self.next_event())
        except TimeoutError:
            raise AssertionError(f"no {event!r} within {BOUND} s, but {self.seen}") from None
        self.seen.remove(event)
        return asyncio.get_running_loop().time()

    async def next_event(self) -> str:
        """Return the next event that was not read."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, f"the process has ended; its last events: {self.seen}"
        return line.decode().strip()

    def tell(self, command: str) -> None:
        """Send *command*, one of those that `tests.tasks.engine_worker` lists."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def freeze(self, fits: Callable[[], bool] = lambda: True) -> None:
        """Suspend the process at a moment at which *fits* returns True meanwhile."""
        for _ in range(50):
            self.signal(signal.SIGSTOP)
            # The signal takes effect later: a thread in a system call completes that first.
            while not self._is_suspended():
                time.sleep(0.001)
            if fits():
                return
            self.signal(signal.SIGCONT)
        raise AssertionError("the process was never at the right moment")

    def _is_suspended(self) -> bool:
        """Return whether all threads are stopped; True where the system has no /proc."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] in "tT" for each in threads)

    async def end(self) -> None:
        """Kill the process, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


StartProcess: TypeAlias = Callable[..., Awaitable[EngineProcess]]


class EngineBroker(Protocol):
    """A broker that keeps its data when it is killed."""

    @property
    def url(self) -> str:
        """The argument of `SharedEngineContract.factory`."""
        ...

    async def start(self) -> None:
        """Start the broker again, at the same URL and with its data, and wait for it."""

    def kill(self) -> Awaitable[None] | None:
        """Kill the broker (SIGKILL), at once or when the result was awaited."""

    def pause(self) -> None:
        """Suspend the broker (SIGSTOP)."""

    def resume(self) -> None:
        """End `pause`."""


class SharedEngineContract(EngineContract):
    """The behaviour of an engine between processes.

    A subclass provides the fixture `target`: the argument of `factory`, such as the URL of a
    broker without ids, or the path of a file.
    """

    factory: ClassVar[str]
    """"module:function" returns a context manager with the engine of a target, in any process."""

    @pytest.fixture
    async def engine(self, target: str) -> AsyncIterator[Engine]:
        async with load_factory(self.factory)(target) as engine:
            yield engine

    @pytest.fixture
    async def start(self, target: str) -> AsyncIterator[StartProcess]:
        """A function that starts a process, which ends with the test."""
        async with AsyncExitStack() as stack:

            async def start(**options: Any) -> EngineProcess:
                options = {"lease": self.lease, **options}
                process = await EngineProcess.start(self.factory, target, **options)
                stack.push_async_callback(process.end)
                return process

            yield start

    def freeze(self, process: EngineProcess, target: str) -> None:
        """Suspend *process*. Overridden if that must not happen at any moment."""
        process.freeze()

    async def test_id_is_delivered_to_another_process(
        self, engine: Engine, start: StartProcess
    ) -> None:
        """A server submits, and a dedicated worker runs the handler."""
        worker = await start()
        await engine.submit("a")
        await worker.expect("started a")
        worker.tell("release a")
        await worker.expect("ended a")

    async def test_id_of_a_killed_process_is_delivered_again(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess
    ) -> None:
        """Within the lease, and 2 seconds for the takeover."""
        worker = await start()
        await engine.submit("a")
        await worker.expect("started a")
        async with serving(engine, probe):
            await worker.end()
            killed = asyncio.get_running_loop().time()
            assert await expect(probe, "started", "a") - killed <= self.lease + self.takeover
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_running_handler_keeps_its_id(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess
    ) -> None:
        """The lease is renewed while the handler runs, also while its process stops."""
        lease = max(self.lease, 1.0)  # a busy machine may delay the renewal of a shorter one
        worker = await start(grace=BOUND, lease=lease)
        await engine.submit("a")
        await worker.expect("started a")
        async with serving(engine, probe, lease=lease):
            await asyncio.sleep(1.5 * lease)
            worker.tell("leave")
            await asyncio.sleep(1.5 * lease)
            worker.tell("release a")
            await worker.expect("ended a")
            await worker.expect("left")
            await engine.submit("last", delay=0.3)
            await expect(probe, "started", "last")
            probe.release("last")
        assert not probe.counts["started", "a"]

    @pytest.mark.parametrize("ends", [False, True])
    async def test_id_of_a_suspended_process_is_delivered_again(
        self, ends: bool, engine: Engine, probe: HandlerProbe, start: StartProcess, target: str
    ) -> None:
        """The process continues later. If its handler then returns, that is not acknowledged.

        Otherwise the id would be lost if the process that has taken it over is killed.
        """
        frozen, other = await start(), await start(concurrency=1)
        await engine.submit("a")
        holder = await self._holder(frozen, other)
        other = frozen if holder is other else other
        self.freeze(holder, target)
        await other.expect("started a")
        if ends:
            holder.tell("release a")
        holder.signal(signal.SIGCONT)
        if ends:
            # "cancelled" if the engine is faster than the command.
            assert await holder.next_event() in {"ended a", "cancelled a"}
            holder.tell("leave")
            await holder.expect("left")
        else:
            await holder.expect("cancelled a")
        await holder.end()
        await other.end()
        async with serving(engine, probe):
            await expect(probe, "started", "a")
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_unsure_process_takes_nothing_over(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess
    ) -> None:
        """Until `takeover_delay` returns 0; new ids are delivered to it meanwhile."""
        worker = await start()
        await engine.submit("a")
        await worker.expect("started a")
        unsure = True
        async with serving(engine, probe, takeover_delay=lambda: self.lease if unsure else 0.0):
            await worker.end()
            await engine.submit("b")
            await expect(probe, "started", "b")
            await asyncio.sleep(1.5 * self.lease)
            assert not probe.counts["started", "a"]
            unsure = False
            await expect(probe, "started", "a")
            probe.release("a")
            probe.release("b")
            await expect(probe, "ended", "a", "b")

    async def test_handler_of_another_process_is_cancelled(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess
    ) -> None:
        """Its id is not delivered again, also if that process is then killed."""
        worker = await start()
        await engine.submit("a")
        await worker.expect("started a")
        async with serving(engine, probe):
            await engine.cancel("a")
            await worker.expect("cancelled a")
            await worker.end()
            await asyncio.sleep(self.lease + 1)
        assert not probe.counts["started", "a"]

    async def test_id_that_waits_is_cancelled_by_another_process(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess, target: str
    ) -> None:
        """The process that cancels need not be the one that has submitted."""
        await engine.submit("a", queue="heavy")
        async with load_factory(self.factory)(target) as other:
            await other.cancel("a")
        async with serving(engine, probe, "heavy"):
            await engine.submit("last", queue="heavy")
            await expect(probe, "started", "last")
            probe.release("last")
            await expect(probe, "ended", "last")
        assert not probe.counts["started", "a"]

    async def test_process_that_stops_hands_over_at_once(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess
    ) -> None:
        """To a process that serves already, and without waiting for a lease."""
        worker = await start(lease=LONG_LEASE, grace=0.1)
        await engine.submit("a")
        await worker.expect("started a")
        async with serving(engine, probe, lease=LONG_LEASE):
            worker.tell("leave")
            stopped = asyncio.get_running_loop().time()
            await worker.expect("cancelled a")
            assert await expect(probe, "started", "a") - stopped < 3
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_ids_are_divided_between_processes(
        self, engine: Engine, start: StartProcess
    ) -> None:
        """A process with free slots is not left idle by one that is full."""
        workers = [await start(concurrency=2), await start(concurrency=2)]
        for id in "abcd":
            await engine.submit(id)
        async with asyncio.timeout(BOUND):
            started = [await each.next_event() for each in workers for _ in range(2)]
        assert sorted(started) == [f"started {id}" for id in "abcd"]

    async def _holder(self, *workers: EngineProcess) -> EngineProcess:
        """Return the process that has started the handler of "a"."""
        waiting = {asyncio.create_task(each.expect("started a")): each for each in workers}
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        await asyncio.wait(waiting)
        (holder,) = done
        await holder
        return waiting[holder]


class BrokerEngineContract(SharedEngineContract):
    """The behaviour of an engine while its broker is unavailable.

    A subclass provides the fixture `broker`: a running broker for this test alone.
    """

    @pytest.fixture
    async def target(self, broker: EngineBroker) -> str:
        return broker.url

    async def test_ids_survive_a_crash_of_the_broker(
        self, engine: Engine, probe: HandlerProbe, broker: EngineBroker
    ) -> None:
        """Queued, delayed, and running ones; the latter may be delivered twice."""
        await engine.submit("queued", queue="later")
        await engine.submit("delayed", queue="later", delay=1.0)
        async with serving(engine, probe):
            await engine.submit("running")
            await expect(probe, "started", "running")
            await _kill(broker)
            await broker.start()
            await self._until_available(engine)
            async with serving(engine, probe, "later"):
                await expect(probe, "started", "queued", "delayed")
            probe.release("running")
            await expect(probe, "ended", "running")

    @pytest.mark.slow
    async def test_handler_keeps_its_id_during_a_restart_of_the_broker(
        self, engine: Engine, probe: HandlerProbe, broker: EngineBroker, start: StartProcess
    ) -> None:
        """For less than a lease: a restart of the broker must not repeat each running job."""
        worker = await start(lease=6.0)
        await engine.submit("a")
        await worker.expect("started a")
        await _kill(broker)
        await broker.start()
        await self._until_available(engine)
        async with serving(engine, probe, lease=6.0):
            await asyncio.sleep(9.0)
            # The worker takes new ids as well, although a handler from before still runs.
            await engine.submit("later")
            worker.tell("release a")
            await worker.expect("ended a")
        assert not probe.counts["started", "a"]

    async def test_unavailable_broker_is_reported(
        self, engine: Engine, probe: HandlerProbe, broker: EngineBroker
    ) -> None:
        """And used again as soon as it is back, by the same engine."""
        async with serving(engine, probe):
            await engine.submit("before")
            await expect(probe, "started", "before")
            await _kill(broker)
            for call in engine.submit("lost"), engine.cancel("before"):
                with pytest.raises(StoreUnavailable):
                    async with asyncio.timeout(BOUND):
                        await call
            await broker.start()
            await self._until_available(engine)
            await expect(probe, "started", "available")
            probe.release("available")
            await engine.submit("after")
            await expect(probe, "started", "after")
            probe.release("after")
            await expect(probe, "ended", "after")
            probe.release("before")

    async def test_suspended_broker_loses_nothing(
        self, engine: Engine, probe: HandlerProbe, broker: EngineBroker
    ) -> None:
        """For longer than a lease. A submission fails meanwhile, or takes effect afterwards."""
        async with serving(engine, probe):
            await engine.submit("running")
            await expect(probe, "started", "running")
            broker.pause()
            try:
                await asyncio.sleep(1.5 * self.lease)
            finally:
                broker.resume()
            await self._until_available(engine)
            await engine.submit("after")
            await expect(probe, "started", "after")
            for id in "after", "available", "running":
                if id in probe.running:
                    probe.release(id)
            await expect(probe, "ended", "after")

    async def _until_available(self, engine: Engine) -> None:
        """Submit the id "available" until that succeeds."""
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    return await engine.submit("available")
                except StoreUnavailable:
                    await asyncio.sleep(0.05)


async def _kill(broker: EngineBroker) -> None:
    if (killing := broker.kill()) is not None:
        await killing
