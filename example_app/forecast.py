"""How many of a part are enough: many futures are tried, made of weeks of its past year."""

import random
from collections.abc import Sequence

__all__ = ["enough"]


def enough(
    number: str, past: Sequence[int], *, weeks: int, certainty: float, simulations: int
) -> int:
    """Return how many of the part *number* last *weeks* weeks, in *certainty* of all futures.

    *past* is how many each week took. It is the same for the same past.
    """
    chance = random.Random(number)
    totals = sorted(sum(chance.choices(past, k=weeks)) for _ in range(simulations))
    return totals[int(certainty * len(totals))]
