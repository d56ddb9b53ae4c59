"""One page of a list of all members: where it begins, what is left out, where the next begins."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from genmcp.errors import InvalidParams, McpError

logger = logging.getLogger("genmcp.composite")

P = TypeVar("P")

Fetch = Callable[[str, str | None], Awaitable[tuple[P, int, str | None] | None]]
"""Returns a page of a member, from a cursor of its own: the page, the number of its items, and the
cursor of the next one. None: the member has no such list."""


async def pages_of(
    names: Collection[str],
    cursor: str | None,
    fetch: Fetch[P],
    *,
    method: str,
    page_size: int,
    timeout: float,
) -> tuple[dict[str, P], str | None, Exception | None]:
    """Return the pages of the members *names* by their names, in this order, from *cursor* on.

    They end after a page with a next one, and with *page_size* items or more. A member that fails,
    or takes longer than *timeout* seconds, is left out with a warning. Also returns the cursor of
    the next page, None if there is none, and the error of the first member that was left out.

    Raises:
        InvalidParams: *cursor* is unknown to its member, or that member was removed. The client has
            to list from the beginning. Otherwise the list would look complete without the member's
            other items.
    """
    # A cursor is the name of a member, which has no line feed, a line feed, and the member's own
    # cursor.
    begin, _, rest = (cursor or "").partition("\n")
    if cursor is not None and begin not in names:
        raise InvalidParams("The cursor belongs to a server that was removed")
    pages: dict[str, P] = {}
    failure: Exception | None = None
    total = 0
    for name in itertools.dropwhile(lambda name: cursor is not None and name != begin, names):
        if total >= page_size:
            return pages, f"{name}\n", failure
        own = (rest or None) if name == begin else None
        try:
            async with asyncio.timeout(timeout):
                fetched = await fetch(name, own)
        except Exception as error:
            if own is not None and isinstance(error, InvalidParams):
                raise
            failure = failure or error
            late = isinstance(error, TimeoutError)
            why = f"it took longer than {timeout:g} s (list_timeout)" if late else error
            trace = not (late or isinstance(error, McpError))
            logger.warning("server %s left out of %s: %s", name, method, why, exc_info=trace)
            continue
        if fetched is not None:
            pages[name], count, following = fetched
            total += count
            if following is not None:
                return pages, f"{name}\n{following}", failure
    return pages, None, failure
