"""The timer of a loop, which serves all its deadlines."""

import asyncio

import pytest

from genmcp._transports.timers import TICK, TimerTable, run_at_once


class Item:
    """Records when it expires."""

    def __init__(self, seconds: float, order: list[float]) -> None:
        self.seconds = seconds
        self.order = order
        self.expired = asyncio.Event()

    def expire(self) -> None:
        self.order.append(self.seconds)
        self.expired.set()


async def test_no_deadline_expires_early_whatever_the_durations() -> None:
    """One timer serves all; a deadline that is added later may be the first."""
    loop = asyncio.get_running_loop()
    table = TimerTable.of(loop)
    order: list[float] = []
    items = [Item(seconds, order) for seconds in (0.03, 0.0, 0.02, 0.01)]
    began = loop.time()
    for item in items:
        table.add(item, item.seconds)
    for item in sorted(items, key=lambda item: item.seconds):
        await item.expired.wait()
        assert loop.time() - began >= item.seconds

    assert sorted(order) == [0.0, 0.01, 0.02, 0.03]


async def test_timer_exists_only_while_something_waits() -> None:
    """Nothing keeps an idle loop awake."""
    table = TimerTable.of(asyncio.get_running_loop())
    order: list[float] = []
    soon, later = Item(0.0, order), Item(60.0, order)
    table.add(later, 60.0)
    table.add(soon, 0.0)
    await soon.expired.wait()
    assert table._timer is not None

    table.discard(later, 60.0)

    assert table._timer is None
    table.discard(later, 60.0)  # again, and one that was never added
    table.discard(soon, 7.0)


async def test_error_at_one_deadline_leaves_the_others() -> None:
    """The loop's exception handler gets it."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    table = TimerTable.of(loop)

    class Fails:
        def expire(self) -> None:
            raise ValueError("a defect")

    good = Item(0.0, [])
    table.add(Fails(), 0.0)
    table.add(good, 0.0)
    async with asyncio.timeout(10):
        await good.expired.wait()

    assert [str(error) for error in errors] == ["a defect"]


async def test_item_may_discard_another_that_is_due() -> None:
    """An item that was discarded does not expire, even in the same tick."""
    table = TimerTable.of(asyncio.get_running_loop())
    order: list[float] = []
    last = Item(0.0, order)

    class Discards:
        def expire(self) -> None:
            table.discard(victim, 0.0)

    victim = Item(0.0, order)
    table.add(Discards(), 0.0)
    table.add(victim, 0.0)
    table.add(last, 0.0)
    await last.expired.wait()

    assert not victim.expired.is_set()


def test_table_of_a_closed_loop_is_dropped() -> None:
    """A process may run many loops, one after the other."""

    async def table() -> TimerTable:
        return TimerTable.of(asyncio.get_running_loop())

    first, second = asyncio.run(table()), asyncio.run(table())

    assert first is not second
    from genmcp._transports import timers

    assert first not in timers._of_loops.values()


@pytest.mark.parametrize("seconds", [TICK, 60.0])
async def test_everything_of_one_duration_can_expire_at_once(seconds: float) -> None:
    """A shutdown opens all pending calls."""
    table = TimerTable.of(asyncio.get_running_loop())
    order: list[float] = []
    one, other = Item(seconds, order), Item(0.5, order)
    table.add(one, seconds)
    table.add(other, 0.5)
    table.expire_all(seconds)

    assert one.expired.is_set()
    assert not other.expired.is_set()
    table.discard(other, 0.5)


async def test_run_at_once_rejects_work_that_waits() -> None:
    """A defect of the package is an error, and no coroutine is left behind."""
    with pytest.raises(RuntimeError, match="waits"):
        run_at_once(asyncio.sleep(1))
