"""The calls that run as tasks in this process, until their hooks have ended."""

from collections.abc import Callable, Iterator


class RunningTasks:
    """The calls that run as tasks in this process, each with a callback that cancels its hook.

    They are known by the id of the task and its fencing token, because the next call with the same
    idempotency key has the same id, and may begin while the cancelled one still ends.

    Owned by a `TaskRunner`. A process that cancels a task sends a message to the process that runs
    it. The store may fail between the two writes, and that process may die: `TaskRunner.check`
    therefore stops the calls whose records have ended.
    """

    def __init__(self) -> None:
        self._callbacks: dict[tuple[str, int], Callable[[], object]] = {}

    def __len__(self) -> int:
        return len(self._callbacks)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._callbacks)

    def add(self, id: str, fencing_token: int, stop: Callable[[], object]) -> None:
        """Register the task *id*, which runs in this process; *stop* cancels its hook."""
        self._callbacks[id, fencing_token] = stop

    def discard(self, id: str, fencing_token: int) -> None:
        """Forget the task *id*, which has ended."""
        self._callbacks.pop((id, fencing_token), None)

    def stop(self, id: str, fencing_token: int) -> None:
        """Cancel the hook of the task *id*, if it runs here."""
        if (stop := self._callbacks.get((id, fencing_token))) is not None:
            stop()
