"""Coroutines that are driven by hand."""

import asyncio

from genmcp.transports.timers import drive


async def test_steps_closed_while_it_waits_closes_the_work() -> None:
    """A loop that ends closes what is left on it; the work lets go of what it holds."""
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

    assert [True] == closed
