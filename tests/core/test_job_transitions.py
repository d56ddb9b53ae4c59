"""The steps of tasks that wait for jobs: deadlines, repetitions, and parts of a wait."""

import pytest

from genmcp.core.job_transitions import expire_job, retry_task
from genmcp.core.outcome import Failed, unpack
from genmcp.core.task import FailedStep, Task
from genmcp.core.waiting import (
    Continue,
    ExternalJob,
    Job,
    Work,
    Working,
)
from genmcp.errors import IllegalTransition, JobExpired

JOB = Job(name="m:work", arguments={"url": "x"}, delay=5.0, expires=60.0)


def made(work: Work, failed: FailedStep | None = None) -> Task:
    return Task(
        id="a", tool="t", node="n1", created=1.0, updated=1.0, due=1.0, work=work, failed=failed
    )


def test_job_expires_at_its_deadline_only() -> None:
    """The outcome is JobExpired; a job without a deadline cannot expire."""
    expired = expire_job(made(Working(JOB, deadline=10.0)), 10.0)

    assert expired.outcome is not None
    outcome = unpack(expired.outcome)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, JobExpired)
    with pytest.raises(IllegalTransition, match="expire"):
        expire_job(made(Working(JOB)), 10.0)


def test_failed_task_is_repeated_by_a_new_one() -> None:
    """From its step on, with the delay and the deadline of the job; a task that has not failed
    cannot be repeated."""
    failed = made(Working(JOB), FailedStep(3, b"continuation", JOB))

    again = retry_task(failed, "b", "n2", 100.0)

    assert again.work == Working(JOB, deadline=165.0)
    assert (again.id, again.retries, again.step, again.due) == ("b", "a", 3, 105.0)
    with pytest.raises(IllegalTransition, match="retry"):
        retry_task(made(Working(JOB)), "b", "n2", 100.0)


def test_queue_of_a_tool_applies_to_jobs_only() -> None:
    """An external job has a queue of its own, which genmcp does not know."""
    external = ExternalJob("celery", "7")
    waits = Continue("tag", external)

    waits.use_queue("heavy")

    assert waits.work == external
