"""For how long a task is kept, and what its client is told of that."""

from genmcp.core.task import Asking, InputRequired, Task

__all__ = ["kept", "promised"]


def kept(task: Task, life: float) -> float | None:
    """Return for how many seconds from its last change a store is to have *task*; None for ever.

    That is its `ttl` where the next step is its client's. What it waits for otherwise must not find
    it gone, however late it comes: then it is *life* at least, from when the task is due.
    """
    if isinstance(task.work, InputRequired):
        return task.work.ttl
    asks = isinstance(task.work, Asking) and task.outcome is None
    if task.ttl is None or task.end is not None or asks:
        return task.ttl
    return max(task.ttl, life) + max(0.0, task.due - task.updated)


def promised(task: Task, now: float) -> float | None:
    """Return for how many seconds from its creation its client is sure to find *task*; None: ever.

    What is asked, or has ended, is there for the task's `ttl`. What is worked on may end at any
    moment: it is there for that time from *now*, less the part of a second.
    """
    if task.ttl is None:
        return None
    passed = task.updated - task.created
    if task.status == "working":
        passed = float(int(max(passed, now - task.created)))
    return task.ttl + passed
