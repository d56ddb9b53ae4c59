"""The contract of an `Engine` within one process.

`tests.tasks.engine_processes` extends it to several processes, and to crashes of the
broker behind the engine.
"""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest

from tests.tasks.engine_worker import Engine, HandlerProbe

BOUND: float = 15.0
"""Seconds after which an expected event counts as missing."""

SHORT_LEASE: float = 0.3
"""Seconds of a lease over all stores but one: the tests wait for the end of many leases."""

LONG_LEASE: float = 60.0
"""A lease that does not end during a test: what happens did not need its end."""


async def expect(probe: HandlerProbe, event: str, *ids: str) -> float:
    """Wait until *event* of each of *ids* was reported, in any order; return the loop's time."""
    missing = set(ids)
    try:
        async with asyncio.timeout(BOUND):
            while missing:
                seen, id = await probe.events.get()
                if seen == event:
                    missing.discard(id)
    except TimeoutError:
        raise AssertionError(f"not {event}: {missing}; events: {probe.counts}") from None
    return asyncio.get_running_loop().time()


def serving(
    engine: Engine, probe: HandlerProbe, *queues: str, **options: Any
) -> AbstractAsyncContextManager[None]:
    """Serve *queues* (default: "default") with the lease of *probe*, unless *options* differ."""
    defaults: dict[str, Any] = {"concurrency": 4, "lease": probe.lease}
    return engine.serve(probe, queues=queues or ("default",), **{**defaults, **options})


class EngineContract:
    """The behaviour of an engine within one process.

    A subclass provides the fixture `engine`: an engine without ids.
    """

    lease: ClassVar[float] = 2.0
    """Seconds of a lease in the tests that wait for its end."""

    takeover: ClassVar[float] = 2.0
    """Seconds after the end of a lease within which the id is delivered again."""

    @pytest.fixture
    def probe(self) -> HandlerProbe:
        return HandlerProbe(lease=self.lease)

    async def test_id_is_delivered(self, engine: Engine, probe: HandlerProbe) -> None:
        """Whether it was submitted before or after the start of `serve`."""
        await engine.submit("a")
        async with serving(engine, probe):
            await engine.submit("b")
            await expect(probe, "started", "a", "b")
            probe.release("a")
            await expect(probe, "ended", "a")
            probe.release("b")
            await expect(probe, "ended", "b")

    async def test_queued_id_is_not_queued_twice(self, engine: Engine) -> None:
        """A client repeats a request after it has lost the response."""
        probe = HandlerProbe(lease=self.lease, holds=False)
        await asyncio.gather(*(engine.submit("a") for _ in range(3)))
        await engine.submit("a", delay=0.1)
        async with serving(engine, probe, concurrency=1):
            await expect(probe, "ended", "a")
            await engine.submit("last", delay=0.3)
            await expect(probe, "ended", "last")
        assert probe.counts["started", "a"] == 1

    async def test_id_submitted_while_it_runs_is_not_lost(
        self, engine: Engine, probe: HandlerProbe
    ) -> None:
        """An engine may ignore the second submission, but not the failure of the first."""
        await engine.submit("a")
        async with serving(engine, probe):
            await expect(probe, "started", "a")
            await engine.submit("a")
            probe.fail("a")
            await expect(probe, "started", "a")
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_id_is_accepted_again_after_its_end(
        self, engine: Engine, probe: HandlerProbe
    ) -> None:
        """The submission repeats: the id may not be acknowledged yet when its handler has ended."""
        probe.holds = False
        await engine.submit("a")
        async with serving(engine, probe):
            await expect(probe, "ended", "a")
            async with asyncio.timeout(BOUND):
                while probe.counts["ended", "a"] < 2:
                    await engine.submit("a")
                    await asyncio.sleep(0.05)

    async def test_delayed_id_comes_later(self, engine: Engine, probe: HandlerProbe) -> None:
        """A delay of one id does not delay another one."""
        probe.holds = False
        async with serving(engine, probe):
            submitted = asyncio.get_running_loop().time()
            await engine.submit("later", delay=1.0)
            await engine.submit("now")
            await expect(probe, "ended", "now")
            assert not probe.counts["started", "later"]
            assert await expect(probe, "ended", "later") - submitted >= 0.95

    async def test_failed_handler_is_repeated(self, engine: Engine, probe: HandlerProbe) -> None:
        """Not at once: it failed because the store did, and each repetition would load that."""
        await engine.submit("a")
        async with serving(engine, probe):
            await expect(probe, "started", "a")
            probe.fail("a")
            failed = asyncio.get_running_loop().time()
            assert await expect(probe, "started", "a") - failed <= self.lease + self.takeover
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_concurrency_is_shared_by_the_queues(
        self, engine: Engine, probe: HandlerProbe
    ) -> None:
        """At most `concurrency` handlers run, from whichever queue, and each queue is served."""
        ids = [f"{queue}{each}" for queue in "xy" for each in range(3)]
        for id in ids:
            await engine.submit(id, queue=id[0])
        async with serving(engine, probe, "x", "y", concurrency=2):
            for _ in ids:
                while not probe.running:
                    await probe.events.get()
                probe.release(probe.running[0])
                async with asyncio.timeout(BOUND):
                    while (await probe.events.get())[0] != "ended":
                        pass
        assert probe.peak <= 2
        assert all(probe.counts["ended", id] for id in ids)

    async def test_unserved_queue_keeps_its_ids(self, engine: Engine, probe: HandlerProbe) -> None:
        """A later worker gets the ids that were submitted before it started."""
        probe.holds = False
        async with serving(engine, probe):
            await engine.submit("a", queue="unserved")
            await engine.submit("b")
            await expect(probe, "ended", "b")
        assert not probe.counts["started", "a"]
        async with serving(engine, probe, "unserved"):
            await expect(probe, "ended", "a")

    async def test_servings_of_one_process_have_slots_of_their_own(
        self, engine: Engine, probe: HandlerProbe
    ) -> None:
        """A worker serves jobs and continuations at once; jobs that wait delay no continuation."""
        other = HandlerProbe(lease=self.lease)
        async with serving(engine, probe, "x", concurrency=1), serving(engine, other, "y"):
            await engine.submit("x1", queue="x")
            await expect(probe, "started", "x1")
            await engine.submit("x2", queue="x")
            await engine.submit("y1", queue="y")
            await expect(other, "started", "y1")
            assert probe.running == ["x1"]
            assert other.running == ["y1"]
            other.release("y1")
            probe.release("x1")
            await expect(probe, "started", "x2")
            probe.release("x2")
            await expect(probe, "ended", "x2")

    async def test_queued_id_is_cancelled(self, engine: Engine, probe: HandlerProbe) -> None:
        """It can be submitted again: its retry has another id, but no engine may rely on that."""
        probe.holds = False
        await engine.submit("unknown")
        await engine.cancel("nothing of this name")
        for id, delay in ("a", 0.0), ("b", 0.2):
            await engine.submit(id, delay=delay)
            await engine.cancel(id)
        async with serving(engine, probe):
            await expect(probe, "ended", "unknown")
            await engine.submit("last", delay=0.5)
            await expect(probe, "ended", "last")
            assert not probe.counts["started", "a"]
            assert not probe.counts["started", "b"]
            await engine.submit("a")
            await expect(probe, "ended", "a")

    async def test_running_handler_is_cancelled(self, engine: Engine, probe: HandlerProbe) -> None:
        """A cancelled id is not delivered again."""
        await engine.submit("a")
        async with serving(engine, probe):
            await expect(probe, "started", "a")
            await engine.cancel("a")
            await expect(probe, "cancelled", "a")
            await engine.submit("last", delay=0.3)
            await expect(probe, "started", "last")
            probe.release("last")
            await expect(probe, "ended", "last")
        assert probe.counts["started", "a"] == 1

    async def test_exit_waits_for_handlers(self, engine: Engine, probe: HandlerProbe) -> None:
        """A handler that ends within the grace period is acknowledged."""
        await engine.submit("a")
        async with serving(engine, probe, lease=LONG_LEASE, grace=BOUND, concurrency=1):
            await expect(probe, "started", "a")
            await engine.submit("b")
            asyncio.get_running_loop().call_later(0.3, probe.release, "a")
        assert probe.counts == {("started", "a"): 1, ("ended", "a"): 1}
        async with serving(engine, probe):
            await expect(probe, "started", "b")
            probe.release("b")
            await expect(probe, "ended", "b")
        assert probe.counts["started", "a"] == 1

    async def test_exit_hands_over_at_once(self, engine: Engine, probe: HandlerProbe) -> None:
        """An id is delivered before its lease ends if the handler outlasts the grace period."""
        await engine.submit("a")
        async with serving(engine, probe, lease=LONG_LEASE, grace=0.1):
            await expect(probe, "started", "a")
        assert probe.counts["cancelled", "a"] == 1
        async with serving(engine, probe, lease=LONG_LEASE):
            await expect(probe, "started", "a")
            probe.release("a")
            await expect(probe, "ended", "a")

    async def test_owners_take_turns(self, engine: Engine, probe: HandlerProbe) -> None:
        """A client with many ids does not delay that of another."""
        probe.holds = False
        ids = [f"x{each}" for each in range(5)]
        for id in ids:
            await engine.submit(id, owner="x")
        await engine.submit("y", owner="y")
        async with serving(engine, probe, concurrency=1):
            await expect(probe, "ended", *ids, "y")
        order = [id for event, id in probe.counts if event == "started"]
        assert order.index("y") <= 1

    async def test_share_of_an_owner_is_limited(self, engine: Engine, probe: HandlerProbe) -> None:
        """One client cannot take all slots; ids without an owner have no limit."""
        for id, owner in ("x1", "x"), ("x2", "x"), ("y1", "y"), ("none", ""):
            await engine.submit(id, owner=owner)
        async with serving(engine, probe, concurrency=8, max_per_owner=1):
            first = {"x1", "y1", "none"}
            await expect(probe, "started", *first)
            assert set(probe.running) == first
            for id in first:
                probe.release(id)
            async with asyncio.timeout(BOUND):
                while not probe.counts["started", "x2"]:
                    await probe.events.get()
            probe.release("x2")
            await expect(probe, "ended", "x2")

    async def test_backlog_is_counted(self, engine: Engine, probe: HandlerProbe) -> None:
        """Ids that wait and that are held; a delayed one may count as waiting."""
        await engine.submit("a")
        await engine.submit("b")
        await engine.submit("later", delay=60)
        async with serving(engine, probe, concurrency=1, lease=LONG_LEASE):
            while not probe.running:
                await probe.events.get()
            counted = await engine.backlog("default")
            assert counted is not None
            # The age is that of the one that is due.
            assert counted.waiting in (1, 2)
            assert counted.held == 1
            assert 0 <= counted.age < BOUND
        await engine.cancel("later")

    async def test_idle_engine_does_not_spin(self, engine: Engine, probe: HandlerProbe) -> None:
        """Also while a delayed id waits, a handler runs, and all slots are taken."""
        async with serving(engine, probe, concurrency=1), serving(engine, probe, "other"):
            await engine.submit("a")
            await expect(probe, "started", "a")
            await engine.submit("b")
            await engine.submit("c", queue="other", delay=60)
            await asyncio.sleep(0.5)
            before = time.process_time(), time.monotonic()
            await asyncio.sleep(1.5)
            used = time.process_time() - before[0]
            assert used / (time.monotonic() - before[1]) < 0.15
            await engine.cancel("c")
            probe.release("a")
            await expect(probe, "started", "b")
            probe.release("b")
            await expect(probe, "ended", "b")
