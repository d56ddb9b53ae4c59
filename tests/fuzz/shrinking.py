"""Reduces a failing case, in a bounded number of attempts."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case

ATTEMPTS = 500


async def shrunken(case: Case, fails: Callable[[Case], Awaitable[bool]]) -> Case:
    """Return the smallest case found that still *fails*."""
    attempts = 0
    found = True
    while found:
        found = False
        for smaller in _smaller(case):
            attempts += 1
            if attempts > ATTEMPTS:
                return case
            if await fails(smaller):
                case, found = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    plain = Case()
    for name in ("ending", "leaves", "fails", "peer", "path", "method"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    if len(case.parts) > 1:
        yield replace(case, parts=(case.body,))
    for number in range(len(case.headers)):
        yield replace(case, headers=(*case.headers[:number], *case.headers[number + 1 :]))
    body = case.body
    size = len(body) // 2
    while size:
        for at in range(0, len(body), size):
            yield replace(case, parts=(body[:at] + body[at + size :],))
        size //= 2
