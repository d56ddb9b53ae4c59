"""The transitions of a task that waits for several jobs (`gather`).

Each job is a task of its own, a *part*, with a `PartOf` as its parent and an id that is derived
from the parent's. No client can name it: a "." cannot occur in the id of a client's task. The
record of the parent only counts which parts have ended, so that it stays small: outcomes stay in
the records of the parts until the parent's own step reads all of them.

The parent has two steps of its own, each delivered like any other: the first creates the parts, the
second collects their outcomes and cancels what still runs. Between them it waits without a
delivery. The part that completes the wait submits the second step. A part ends only after it has
been counted: if its process dies in between, its delivery is repeated and it is counted again,
which changes nothing.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from genmcp.core.outcome import Failed, pack, pack_all
from genmcp.core.task import Task, add_progress
from genmcp.core.waiting import Gathering, PartOf, Working, scheduled
from genmcp.errors import WorkerLost


def part_id(parent: str, step: int, index: int) -> str:
    """Return the id of a part of the task *parent*, whose step *step* waits for several jobs."""
    return f"{parent}.{step}.{index}"


def part_ids(task: Task) -> Sequence[str]:
    """Return the ids of the parts of *task*; empty if it does not wait for several jobs."""
    count = task.work.count if isinstance(task.work, Gathering) else 0
    return [part_id(task.id, task.step, index) for index in range(count)]


def new_parts(task: Task, node: str, now: float) -> Sequence[Task]:
    """Return the parts of *task* as new tasks, created by the process *node*."""
    assert isinstance(task.work, Gathering)
    # The outcome of a part must outlive the wait for the one that begins last.
    ttl = None if task.ttl is None else task.ttl + _longest_delay(task.work)
    return [
        Task(
            id=id,
            owner=task.owner,
            address=task.address,
            tool=task.tool,
            node=node,
            created=now,
            updated=now,
            due=due,
            ttl=ttl,
            on_lost=task.on_lost,
            trace=task.trace,
            work=waits_for,
            private=True,
            parent=PartOf(task.id, task.step, index, task.work.count),
        )
        for index, (id, work) in enumerate(zip(part_ids(task), task.work.parts, strict=True))
        for waits_for, due in [scheduled(work, now)]
    ]


def start_parts(task: Task, now: float) -> Task:
    """Return *task* after all of its parts were created, and released by its worker."""
    work = task.work
    assert isinstance(work, Gathering)
    # Due with the last part, because the record is retained from then on: see `record_ttl`.
    due, started = now + _longest_delay(work), replace(work, parts=())
    waiting = task._next("start", now, due=due, work=started, held_delivery=None, crashes=0)
    # Parts that ended meanwhile could not submit the second step.
    return waiting.resubmit(now, 0.0) if work.complete else waiting


def _longest_delay(work: Gathering) -> float:
    jobs = [each.job for each in work.parts if isinstance(each, Working)]
    return max([0.0, *(each.delay for each in jobs)])


def waits_for_part(task: Task, part: PartOf) -> bool:
    """Return whether *task* still waits for *part*."""
    work = task.work
    return (
        isinstance(work, Gathering)
        and task.step == part.step
        and not task.settled
        and not work.complete
        and part.index not in work.ended
    )


def end_part(task: Task, part: PartOf, succeeded: bool, now: float) -> Task:
    """Return *task* with *part* counted as ended; *task* itself if it does not wait for it.

    If the wait is complete then, the task is due for its second step.
    """
    work = task.work
    if not isinstance(work, Gathering) or not waits_for_part(task, part):
        return task
    work = replace(work, ended={**work.ended, part.index: succeeded})
    done, total = float(len(work.ended)), float(work.count)
    task = replace(add_progress(task, now, done, total, None), work=work)
    return task.resubmit(now, 0.0) if work.started and work.complete else task


def outcome_parts(work: Gathering) -> Sequence[int]:
    """Return the indices of the parts whose outcomes the outcome of a complete wait consists of."""
    failed = [index for index, succeeded in work.ended.items() if not succeeded]
    return failed[:1] if failed and work.mode == "all" else range(work.count)


def collect(work: Gathering, outcomes: Sequence[bytes | None]) -> bytes:
    """Return the packed outcome of a complete wait.

    *outcomes* are those of `outcome_parts`. None: the record of the part does not exist any more.
    """
    packed = [pack(Failed(WorkerLost())) if each is None else each for each in outcomes]
    if work.mode == "outcomes":
        return pack_all(packed, work.keys, values=False)
    succeeded = [work.ended[index] for index in outcome_parts(work)]
    failed = [each for each, good in zip(packed, succeeded, strict=True) if not good]
    lost = [each for each, known in zip(packed, outcomes, strict=True) if known is None]
    if failed or lost:
        return [*failed, *lost][0]
    return pack_all(packed, work.keys, values=True)
