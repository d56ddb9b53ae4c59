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

    def clear(self) -> None:
        """Let the next `wait` sleep. Only for the follower itself."""
        self._event.clear()

    async def wait(self) -> None:
        """Sleep until `wake` was called after the last `clear`."""
        await self._event.wait()

    def wake(self) -> bool:
        """End the sleep, from any thread. Return False if the follower's event loop was closed."""
        if self._loop.is_closed():
            return False
        if not self._event.is_set():
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if self._loop is running:
                # The same as below, without the write to the loop's pipe.
                self._event.set()
            else:
                with suppress(RuntimeError):  # the loop is closed meanwhile
                    self._loop.call_soon_threadsafe(self._event.set)
        return True
