"""The record of a task whose job runs on an engine, or that submits work to one."""

from functools import partial
from typing import Any

import pytest

from genmcp.core.job_transitions import (
    expire_job,
    record_submission,
    submission_pause,
    submit_again,
    untaken,
)
from genmcp.core.outcome import Done, Failed, pack, unpack
from genmcp.core.task import Task, lose_engine_node
from genmcp.core.waiting import ExternalCall, ExternalJob, Following, Job, Work, Working, scheduled
from genmcp.errors import ContractError, IllegalTransition, WaitTimedOut, WorkerLost

JOB = Working(Job(name="m:work", arguments={}))
DONE = pack(Done(7))


def made(work: Work = JOB, **fields: Any) -> Task:
    return Task(id="a", tool="t", node="n", created=1.0, updated=1.0, work=work, **fields)


def held(**fields: Any) -> Task:
    """A task whose job runs in a process of an engine."""
    return made(**fields).claim(2.0, max_crashes=3, engine_node="engine-1")


def test_outcome_on_an_engine_waits_for_a_delivery() -> None:
    """The call continues in a process of the server."""
    settled = held().settle(DONE, 3.0)

    assert (settled.held_delivery, settled.engine_node, settled.delivery_id) == (None, None, 1)
    assert settled.settle(DONE, 4.0) is settled
    assert settled.needs_delivery


def test_release_on_an_engine_is_a_new_delivery() -> None:
    """An engine does not deliver an id again; the next attempt is no crash."""
    released = held().release(3.0)

    assert (released.held_delivery, released.delivery_id, released.due) == (None, 1, 3.0)
    assert released.claim(4.0, max_crashes=3, engine_node="engine-2").crashes == 0


def test_death_of_a_process_of_an_engine_is_a_crash() -> None:
    """The job is submitted again, and writes of the dead process are rejected."""
    task = held()
    lost = lose_engine_node(task, 9.0, max_crashes=3)

    assert (lost.crashes, lost.engine_node, lost.held_delivery, lost.delivery_id) == (
        1,
        None,
        None,
        1,
    )
    with pytest.raises(IllegalTransition):
        lost.check_token(task.fencing_token)


@pytest.mark.parametrize("fields", [{"on_lost": "fail"}, {"crashes": 3}])
def test_job_of_a_dead_process_may_be_lost(fields: dict[str, Any]) -> None:
    """If it must not run again, or has killed too many processes."""
    lost = lose_engine_node(held(**fields), 9.0, max_crashes=3)

    assert lost.outcome is not None
    assert unpack(lost.outcome) == Failed(WorkerLost())


def test_only_a_process_of_an_engine_is_lost_this_way() -> None:
    with pytest.raises(IllegalTransition):
        lose_engine_node(made(), 9.0, max_crashes=3)


def test_submissions_are_repeated_less_and_less_often() -> None:
    """With one id; the next delivery begins anew. Of two processes only one repeats it."""
    task, pauses = made(), []
    for number in range(8):
        pauses.append(submission_pause(task, 30.0))
        task = submit_again(task, 100.0, number)

    assert pauses == [0.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert submission_pause(made(submissions=5000), 30.0) == 600.0
    assert task.queued_id == made().queued_id
    assert task.resubmit(200.0, 0.0).submissions == 0
    with pytest.raises(IllegalTransition):
        submit_again(task, 100.0, 7)


def test_wait_for_external_work_may_expire() -> None:
    """Some seconds after the call began to wait; `settle` finds it without that limit."""
    ref = ExternalJob("celery", "7")
    work, due = scheduled(Following(ref.options(expires=60)), 100.0)
    assert (work, due) == (Following(ref, deadline=160.0), 100.0)
    assert scheduled(Following(ref), 100.0) == (Following(ref), 100.0)

    expired = expire_job(made(work), 160.0)
    assert expired.outcome is not None
    assert unpack(expired.outcome) == Failed(WaitTimedOut())
    for wrong in (0, -1.0, "60", True, float("nan")):
        with pytest.raises(ContractError, match="expires is a positive number of seconds, not"):
            ref.options(expires=wrong)  # type: ignore[arg-type]


def test_job_that_no_worker_takes_says_so() -> None:
    """Since it was due, however often it was submitted, until a worker takes it."""
    task = submit_again(made(due=7.0), 100.0, 0)
    text = "Waiting for a worker: submitted 2 times, not taken since 1970-01-01 00:00:07+00:00"

    assert untaken(task) == text
    taken = task.claim(101.0, max_crashes=3, engine_node="engine-1")
    for other in (made(), taken, made(Following(ExternalJob("celery", "7")), submissions=1)):
        assert untaken(other) is None


def test_submitted_work_is_recorded_by_its_name() -> None:
    """What was needed for its submission is dropped."""
    waits = made(Following(ExternalJob("celery", "7", ExternalCall("build", (1,)))))
    record = partial(record_submission, now=3.0, ref=ExternalJob("celery", "7"))

    assert record(waits).work == Following(ExternalJob("celery", "7"))
    limited = made(Following(ExternalJob("celery", "7"), deadline=9.0))
    assert record(limited).work == limited.work
    for other in (made(), waits.settle(DONE, 2.0)):
        with pytest.raises(IllegalTransition):
            record(other)
    assert Task.unpack(waits.pack()) == waits
