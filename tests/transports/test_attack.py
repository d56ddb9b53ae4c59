"""One anonymous client takes all it can get from a real server, and the others are served."""

import shutil
import sys

import pytest

from benchmarks.attack import attacked
from benchmarks.processes import served


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("taskset") is None,
    reason="needs a second loopback address, /proc and taskset",
)
async def test_attack_of_one_client_leaves_the_others_served() -> None:
    """Whatever one client opens over 64 connections, others are served, and memory is bounded.

    `python -m benchmarks.attack` does the same for any length of time, with figures.
    """
    with served("benchmarks.attacked:app") as server:
        faults, figures = await attacked(server, 3.0)

    assert faults == [], figures
