"""The times at which expiring entries are due."""

from math import inf

from genmcp.stores.clocks import Deadlines


class Held:
    """Something with a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline


def test_deadlines_come_up_in_order_when_they_are_due() -> None:
    """Each once; entries without expiry never."""
    held = {"late": Held(20), "ever": Held(inf), "soon": Held(10)}
    deadlines = Deadlines(held)
    for name, it in held.items():
        deadlines.add(name, it.deadline)

    assert deadlines.due(9) == []
    assert deadlines.due(19) == ["soon"]
    assert deadlines.due(100) == ["late"]
    assert deadlines.due(inf) == []


def test_deadlines_know_the_next_that_still_counts() -> None:
    """Removed and postponed entries are skipped."""
    held = {"gone": Held(1), "put off": Held(2)}
    deadlines = Deadlines(held)
    for name, it in held.items():
        deadlines.add(name, it.deadline)
    del held["gone"]
    held["put off"].deadline = 30
    deadlines.add("put off", 30)

    assert deadlines.next() == 30
    held.clear()
    assert inf == deadlines.next()


def test_deadlines_that_change_often_weigh_no_more() -> None:
    """The heap is bounded by the number of entries, not of their changes."""
    held = {"it": Held(0)}
    deadlines = Deadlines(held)
    for deadline in range(1000):
        held["it"].deadline = deadline
        deadlines.add("it", deadline)

    assert deadlines.next() == 999
    assert len(deadlines.due(inf)) < 70
