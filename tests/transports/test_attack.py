"""One anonymous client takes all it can get from a real server, and the others are served."""

import shutil
import sys

import pytest

from benchmarks.attack import attacked
from benchmarks.floods import FLOODS, WRITE_TIMEOUT, Flood, addresses, flooded
from benchmarks.processes import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("taskset") is None,
        reason="needs other loopback addresses, /proc and taskset",
    ),
]


async def test_attack_of_one_client_leaves_the_others_served() -> None:
    """A client that opens all it can over 64 connections leaves others served, and memory bounded.

    `python -m benchmarks.attack` does the same for any length of time, with figures.
    """
    with served("benchmarks.attacked:app") as server:
        faults, figures = await attacked(server, 3.0)

    assert faults == [], figures


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-h11"])
@pytest.mark.parametrize("flood", FLOODS, ids=[each.name for each in FLOODS])
async def test_flood_of_unread_responses_leaves_the_others_served(flood: Flood, kind: str) -> None:
    """Nor does one from 120 addresses, which `python -m benchmarks.floods` compares with others."""
    env = {"ATTACKED_WRITE_TIMEOUT": str(WRITE_TIMEOUT)}
    with served("benchmarks.attacked:app", server=kind, env=env) as server:
        faults, figures = await flooded(server, flood, addresses(120))

    assert faults == [], figures
