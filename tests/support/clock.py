"""A clock that stands still until a test moves it."""


class Clock:
    """A callable clock. *now* is in seconds and may be assigned to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Move the clock. A coroutine, so that it can stand in for a wait on a real clock."""
        self.now += seconds
