"""How a follower sleeps until something was appended, whichever thread that happens in."""

import asyncio
from contextlib import suppress

__all__ = ["Waiter"]


class Waiter:
    """The sleep of one follower, in the event loop that runs when it is made.

    Before a follower looks at its log it calls `clear`, so that what is appended while it looks
    ends the `wait` that comes next.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    @property
    def gone(self) -> bool:
        """Whether the loop was closed, so that nobody sleeps here any more."""
        return self._loop.is_closed()

    def clear(self) -> None:
        """Let the next `wait` sleep. Only for the follower itself."""
        self._event.clear()

    async def wait(self) -> None:
        """Sleep until `wake` was called after the last `clear`."""
        await self._event.wait()

    def wake(self) -> None:
        """End the sleep. From any event loop, and from a thread that has none."""
        if self._event.is_set():
            return
        if self._loop is _running():
            # The same as below, without the write to the loop's pipe.
            self._event.set()
            return
        with suppress(RuntimeError):  # the loop was closed, and the follower went with it
            self._loop.call_soon_threadsafe(self._event.set)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
