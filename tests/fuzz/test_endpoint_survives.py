"""The endpoint responds to any input, and leaks nothing."""

from collections import Counter

import pytest

from tests.fuzz import hostile
from tests.fuzz.case import Case
from tests.fuzz.conftest import Plan
from tests.fuzz.driver import STATUSES, Log, World, Wrong, collect, listening
from tests.fuzz.generation import case as made
from tests.fuzz.generation import hostile_case
from tests.fuzz.shrinking import shrunken

pytestmark = pytest.mark.fuzz

PIECE = 1000
"""How many cases share an endpoint: what one leaves there, the next ones meet."""


async def test_endpoint_survives_every_request(plan: Plan) -> None:
    """Each case gets one response, valid in its revision, unless its client has disconnected."""
    seen: Counter[int] = Counter()
    with listening() as log:
        if plan.only is not None:
            world = await World.make(log)
            await world.run(Case.parse(plan.only, world.names))
            return
        for first in range(plan.first, plan.first + plan.cases, PIECE):
            world = await World.make(log)
            for number in range(first, min(first + PIECE, plan.first + plan.cases)):
                fault = await _fault(world, made(plan.seed, number, world.known), seen)
                if fault:
                    pytest.fail(await _report(plan.seed, number, fault, log), pytrace=False)
            await world.endpoint.aclose()
            await world.mux.aclose()
            collect(log)
    if plan.cases >= 10_000:
        # So many cases reach every status, unless the generator has lost some kind of case.
        assert STATUSES.keys() <= seen.keys(), seen


async def test_endpoint_survives_excessive_requests(plan: Plan) -> None:
    """Batches, URIs, `_meta` and params of notifications with any content."""
    seen: Counter[int] = Counter()
    with listening() as log:
        for first in range(plan.first, plan.first + plan.cases // 5, PIECE):
            world = await World.make(log, hostile.suite)
            for number in range(first, min(first + PIECE, plan.first + plan.cases // 5)):
                made = hostile_case(plan.seed, number, world.known)
                if fault := await _fault(world, made, seen):
                    pytest.fail(f"{fault}\n  case {number}: {made.text(world.names)[:3000]}")
            await world.endpoint.aclose()
            await world.mux.aclose()
            collect(log)
    if plan.cases >= 10_000:
        assert {200, 202, 400, 413} <= seen.keys(), seen


async def _fault(world: World, case: Case, seen: Counter[int]) -> str:
    """Run *case* and return its faults."""
    try:
        seen[(await world.run(case)).status] += 1
    except Wrong as wrong:
        return str(wrong)
    return ""


async def _report(seed: int, number: int, fault: str, log: Log) -> str:
    """Report the faults of a case, reduced to a minimum, and the command that repeats it."""
    log.take()
    world = await World.make(log)

    async def fails(smaller: Case) -> bool:
        found = await _fault(world, smaller, Counter())
        return bool(found) and found[:20] == fault[:20]

    small = await shrunken(made(seed, number, world.known), fails)
    return (
        f"{fault}\n  pytest tests/fuzz --fuzz-seed {seed} --fuzz-first {number} --fuzz-cases 1\n"
        f"  pytest tests/fuzz --fuzz-case {small.text(world.names)!r}"
    )
