"""What to say where a value fits none of several alternatives (`anyOf`, `oneOf`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from genmcp.faults import Mismatch
from genmcp.schema.words import came, fault, listed

__all__ = ["Found", "Path", "nearest"]

Path = tuple[str | int, ...]


class Found(NamedTuple):
    """One fault; `wants` names what would have fitted, where that is a type or a choice."""

    path: Path
    words: str
    value: Any = None
    wants: tuple[str, ...] = ()
    is_type: bool = False


def nearest(branches: Sequence[list[Found]], path: Path) -> list[Found]:
    """What keeps the value at *path* from fitting the alternative it is nearest to.

    *branches* are the faults against each alternative. One for another type, or for another value
    of a telling property, is not near. One without faults was not looked at any more.
    """
    none = f"fits none of {len(branches)} alternatives"
    if not branches or not all(branches):  # empty where the dialect does not check the keyword
        return [Found(path, none)]
    near = [*enumerate(branches, 1)]
    for is_far in (_is_of_another_type, _has_another_tag):
        near = [each for each in near if not is_far(each[1], path)] or near
    if len(near) == 1:
        return near[0][1]
    if together := _put_together([branch for _, branch in near]):
        return together
    number, branch = min(near, key=lambda each: len(each[1]))
    faults = "; ".join(fault(each.path, each.words) for each in branch[:3])
    return [Found(path, f"{none}; nearest is number {number}: {faults}")]


def _is_of_another_type(branch: list[Found], path: Path) -> bool:
    return any(each.is_type and each.path == path for each in branch)


def _has_another_tag(branch: list[Found], path: Path) -> bool:
    return any(
        each.wants and not each.is_type and each.path != path and each.path[:-1] == path
        for each in branch
    )


def _put_together(branches: list[list[Found]]) -> list[Found]:
    """One fault for all branches at each place where every one of them wants something else."""
    places = [{each.path: each for each in branch if each.wants} for branch in branches]
    together = []
    for path, first in places[0].items():
        if all(path in place for place in places):
            wants = tuple(dict.fromkeys(want for place in places for want in place[path].wants))
            words = Mismatch(listed(wants, "or"), came(first.value), separator=";")
            together.append(Found(path, words, first.value, wants))
    return together
