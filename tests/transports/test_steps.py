"""Coroutines that are driven by hand."""

import asyncio

from genmcp._transports.timers import drive


async def test_steps_closed_while_it_waits_closes_the_work() -> None:
    """A closing loop closes its pending coroutines; the work releases its resources."""
    closed: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            closed.append(True)

    begun = work()
    rest = drive(begun, begun.send(None))
    rest.send(None)
    rest.close()

    assert closed == [True]
