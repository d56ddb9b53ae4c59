"""A clock that only advances when a test advances it."""


class Clock:
    """A callable that returns *now*, in seconds. *now* may be assigned to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Advance the clock. A coroutine, so that it can replace a sleep."""
        self.now += seconds
