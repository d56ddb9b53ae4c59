"""The transitions of a task that waits for a job: retries, deferrals, deadlines, saved state."""

from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Task
from genmcp.core.waiting import ExternalJob, Following, Working, scheduled
from genmcp.errors import IllegalTransition, JobExpired, WaitTimedOut

UNSERVED: Final = "Waiting for a worker"
"""The status message of a task whose queue is not served by any process."""

_LONGEST_PAUSE: Final = 600.0  # seconds between two submissions of one job to an engine
_DOUBLINGS: Final = 16  # of the pause: more would only make a larger number


def retry_job(task: Task, now: float, chance: float = 0.0) -> Task:
    """Return *task* waiting for the next attempt at its job; *chance* is as for `Job.pause`.

    Raises:
        IllegalTransition: it has no job, all attempts were made, or the next one would begin after
            its deadline.
    """
    work = task.work
    if not isinstance(work, Working) or task.settled or work.failures >= work.job.retries:
        raise IllegalTransition("retry", task.status)
    delay = work.job.pause(work.failures, chance)
    if work.deadline is not None and now + delay >= work.deadline:
        raise IllegalTransition("retry", "past its deadline")
    failed = replace(work, failures=work.failures + 1, waited=0.0)
    return replace(task.resubmit(now, delay), work=failed)


def submit_again(task: Task, now: float, submissions: int) -> Task:
    """Return *task*, whose job an engine may have lost, to be submitted again with the same id.

    Raises:
        IllegalTransition: it was submitted again already, more often than *submissions*.
    """
    if task.submissions != submissions:
        raise IllegalTransition("submit", f"submitted {task.submissions} times")
    return replace(task, updated=now, submissions=task.submissions + 1)


def submission_pause(task: Task, pause: float) -> float:
    """Return the seconds after which an engine is considered to have lost the job of *task*.

    They are counted from when the job was due, or was submitted again. The job may also wait in a
    long queue of the engine, which repetitions make longer: after the first one, *pause* doubles
    with each.
    """
    if not task.submissions:
        return 0.0
    doublings = min(task.submissions - 1, _DOUBLINGS)
    return min(pause * (1 << doublings), _LONGEST_PAUSE)


def untaken(task: Task) -> str | None:
    """Return a text for a job that was submitted to an engine again, and that no worker has taken.

    None: it is not known to wait for a worker of an engine.
    """
    if not task.submissions or task.job is None or task.held_delivery is not None:
        return None
    since = datetime.fromtimestamp(task.due, UTC).isoformat(" ", "seconds")
    return f"{UNSERVED}: submitted {task.submissions + 1} times, not taken since {since}"


def park_job(task: Task, now: float, delay: float) -> Task:
    """Return *task* waiting for a slot of a limit, for which it looks again after *delay* seconds.

    This does not count as an attempt.
    """
    work = task.work
    assert isinstance(work, Working)
    waiting = replace(work, attempt=work.attempt - 1, waited=work.waited + delay)
    return replace(task.resubmit(now, delay), work=waiting)


def expire_job(task: Task, now: float) -> Task:
    """Return *task* whose job has failed because its deadline has passed. Any process continues it.

    Raises:
        IllegalTransition: it has no job with a deadline.
    """
    work = task.work
    if not isinstance(work, Working | Following) or task.settled or work.deadline is None:
        raise IllegalTransition("expire", task.status)
    return task.settle(expired_outcome(work), now).take_over(now)


def expired_outcome(work: Working | Following) -> bytes:
    """Return the packed outcome of a job that has passed its deadline."""
    began = isinstance(work, Following) or work.failures
    return pack(Failed(WaitTimedOut() if began else JobExpired()))


def record_submission(task: Task, now: float, ref: ExternalJob) -> Task:
    """Return *task*, whose external job was submitted and is *ref* there.

    Raises:
        IllegalTransition: it waits for no external job any more.
    """
    if not isinstance(task.work, Following) or task.settled:
        raise IllegalTransition("submit", "settled" if task.settled else task.status)
    return replace(task, updated=now, work=replace(task.work, ref=ref))


def retry_task(task: Task, id: str, node: str, now: float) -> Task:
    """Return a new task *id* that repeats the job of *task*, and continues its call after that.

    *task* stays as it is: its client may have read it, and its status is final (SEP-2663).

    Raises:
        IllegalTransition: *task* has not failed after a job.
    """
    failed = task.failed
    if failed is None:
        raise IllegalTransition("retry", task.status)
    work, due = scheduled(Working(failed.job), now)
    return Task(
        id=id,
        owner=task.owner,
        address=task.address,
        tool=task.tool,
        node=node,
        created=now,
        updated=now,
        due=due,
        ttl=task.ttl,
        poll=task.poll,
        on_lost=task.on_lost,
        step=failed.step,
        continuation=failed.continuation,
        work=work,
        trace=task.trace,
        retries=task.id,
    )


def defer(task: Task, now: float, delay: float) -> Task:
    """Return *task* waiting for a process that has the code for its step.

    During a rolling deploy a worker may lack the tool or the job. This does not count as an
    attempt.
    """
    seconds = task.deferred_seconds + delay
    deferred = replace(task.resubmit(now, delay), deferred_seconds=seconds)
    if isinstance(task.work, Working) and not task.settled:
        return replace(deferred, work=replace(task.work, attempt=task.work.attempt - 1))
    return deferred


def save_state(task: Task, state: bytes, now: float) -> Task:
    """Return *task* with the *state*, as JSON, that an attempt at its job has saved.

    `changes` is not incremented: followers do not see the state, and a job that saves often would
    push their messages out of the log.

    Raises:
        IllegalTransition: its job does not run.
    """
    if task.job is None or not isinstance(task.work, Working):
        raise IllegalTransition("save", "settled" if task.settled else task.status)
    return replace(task, updated=now, work=replace(task.work, saved=state))
