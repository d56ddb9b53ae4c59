"""The record of a task: the allowed steps in each state, and the result of each."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp.core.job_transitions import defer, retry_job, save_state
from genmcp.core.outcome import Done, Failed, pack, unpack
from genmcp.core.task import LOST, Task, add_answers, add_progress, lose_process, run_id
from genmcp.core.waiting import (
    Asking,
    Awaiting,
    ExternalJob,
    Finished,
    Following,
    Job,
    PartOf,
    Running,
    Suspended,
    Work,
    Working,
)
from genmcp.errors import IllegalTransition, UnknownFormat, WorkerLost

JOB = Job(name="m:work", arguments={"url": "x"}, queue="gpu", retries=2, backoff=3.0)
DONE = pack(Done(7))


def made(work: Work, **fields: Any) -> Task:
    return Task(
        id="a:b", tool="t", node="n1", created=1.0, updated=1.0, due=1.0, work=work, **fields
    )


def outcome(task: Task) -> Any:
    assert task.outcome is not None
    return unpack(task.outcome)


@pytest.mark.parametrize(
    "work",
    [
        Running("n1"),
        Awaiting("n1"),
        Working(JOB, attempt=2, failures=1, saved=b"[1]"),
        Following(ExternalJob("celery", "7")),
        Asking({"q": b"{}"}, {"q": b"1"}),
    ],
)
def test_task_survives_packing(work: Work) -> None:
    """Unpacking returns an equal task, for each kind of wait."""
    task = made(work, owner="me", continuation=b"\x00", outcome=DONE, held_delivery=3)

    assert task == Task.unpack(task.pack())


@pytest.mark.parametrize("packed", [b"\x80", b"", b"\x02\x80"])
def test_task_of_another_release_is_rejected(packed: bytes) -> None:
    """The error states that another release wrote the record, and how to proceed."""
    with pytest.raises(UnknownFormat, match="a task in the store"):
        Task.unpack(packed)


@pytest.mark.parametrize(
    "step",
    [
        lambda task: task.check_token(0),
        lambda task: task.claim(2.0, max_crashes=3),
        lambda task: task.release(2.0),
        lambda task: retry_job(task, 2.0),
        lambda task: task.resubmit(2.0, 1.0),
        lambda task: add_progress(task, 2.0, 1.0, None, None),
        lambda task: task.settle(DONE, 2.0),
        lambda task: task.take_over(2.0),
        lambda task: task.suspend(Suspended(1, b"c", Asking({})), 2.0),
        lambda task: task.finish(Finished(b"{}"), 2.0),
        lambda task: task.cancel(2.0),
        lambda task: lose_process(task, 2.0),
    ],
)
def test_finished_task_rejects_every_step(step: Callable[[Task], Task]) -> None:
    """After the end neither a result nor a cancellation is accepted."""
    over = made(Working(JOB)).cancel(2.0)

    assert over.ended
    with pytest.raises(IllegalTransition):
        step(over)


def test_task_rejects_an_earlier_fencing_token() -> None:
    """The last claim counts; a process with an earlier token gets an error."""
    task = made(Working(JOB)).claim(2.0, max_crashes=3)

    assert task is task.check_token(1)
    with pytest.raises(IllegalTransition):
        task.check_token(0)


def test_claim_begins_an_attempt() -> None:
    """The worker holds the delivery, and the attempt is counted."""
    task = made(Working(JOB), delivery_id=4).claim(2.0, max_crashes=3)

    assert task.work == Working(JOB, attempt=1)
    assert (task.held_delivery, task.fencing_token, task.crashes) == (4, 1, 0)


def test_claim_of_a_released_task_is_no_crash() -> None:
    """A worker releases its task when it shuts down."""
    task = made(Working(JOB)).claim(2.0, max_crashes=3).release(3.0).claim(4.0, max_crashes=3)

    assert (task.crashes, task.work) == (0, Working(JOB, attempt=2))


def test_claim_of_a_held_task_counts_a_crash() -> None:
    """A job that kills each of its workers fails after `JobOptions.max_crashes` of them."""
    task = made(Working(JOB)).claim(2.0, max_crashes=2)
    for crashed in (1, 2):
        task = task.claim(2.0, max_crashes=2)
        assert (crashed, False) == (task.crashes, task.settled)

    assert outcome(task.claim(2.0, max_crashes=2)) == Failed(WorkerLost())


def test_claim_of_a_held_task_fails_it_with_on_lost_fail() -> None:
    """With on_lost "fail" the first worker that dies ends the job."""
    task = made(Working(JOB), on_lost="fail").claim(2.0, max_crashes=3)

    assert not task.settled
    assert outcome(task.claim(3.0, max_crashes=3)) == Failed(WorkerLost())


def test_claim_of_a_settled_task_is_lost_after_crashes() -> None:
    """A step that kills each of its workers ends the task as lost."""
    task = made(Working(JOB)).claim(2.0, max_crashes=1).settle(DONE, 2.0)

    again = task.claim(3.0, max_crashes=1)

    assert (again.crashes, again.outcome) == (1, DONE)
    assert (
        again.claim(4.0, max_crashes=1).status,
        again.claim(4.0, max_crashes=1).error,
    ) == ("failed", LOST)


def test_claim_of_a_settled_part_is_never_lost() -> None:
    """The task that waits for several jobs would never count it, and wait for ever."""
    part = made(Working(JOB), parent=PartOf("t1", 1, 0, 2)).settle(DONE, 2.0)

    for _ in range(3):
        part = part.claim(3.0, max_crashes=1)

    assert not part.ended
    assert outcome(part) == Done(7)


def test_claim_of_an_external_job_counts_no_crashes() -> None:
    """Following a job of another queue has no effect on it and can be repeated."""
    task = made(Following(ExternalJob("celery", "7")))
    for _ in range(9):
        task = task.claim(2.0, max_crashes=1)

    assert not task.settled


def test_backoff_doubles_up_to_its_bound() -> None:
    """After any number of failures; chance can only shorten it."""
    job = replace(JOB, backoff=600.0)
    assert [job.pause(n, 0.0) for n in (0, 1, 2, 3, 5000)] == [
        600.0,
        1200.0,
        2400.0,
        3600.0,
        3600.0,
    ]
    assert [job.pause(n, 1.0) for n in (0, 5000)] == [450.0, 2700.0]
    assert retry_job(made(Working(job)).claim(1.0, max_crashes=3), 100.0, 1.0).due == 550.0
    assert replace(JOB, backoff=7200.0).pause(3, 0.0) == 7200.0


def test_retry_waits_twice_as_long_each_time() -> None:
    """The delay doubles, each delivery has a new id, and past the last retry none is scheduled."""
    first = retry_job(made(Working(JOB)).claim(10.0, max_crashes=3), 10.0)
    second = retry_job(first.claim(20.0, max_crashes=3), 20.0)

    assert (first.due, first.queued_id) == (13.0, "a:b:1")
    assert (second.due, second.queued_id, second.crashes) == (26.0, "a:b:2", 0)
    with pytest.raises(IllegalTransition):
        retry_job(second, 30.0)


def test_progress_keeps_members_that_are_not_reported() -> None:
    """A message remains until another is reported, and so do the numbers."""
    task = add_progress(made(Running("n1")), 2.0, 1.0, 4.0, "reading")

    later = add_progress(task, 3.0, 2.0, None, None)

    assert (later.progress, later.total, later.message) == (2.0, 4.0, "reading")
    assert add_progress(later, 3.0, None, None, "reading!").message == "reading!"
    assert add_progress(later, 3.0, None, None, "reading!").progress == 2.0


def test_saved_state_survives_retries_and_redelivery() -> None:
    """It also survives a takeover and a delivery that was passed on. Followers see no change."""
    task = made(Working(JOB)).claim(2.0, max_crashes=3)
    saved = save_state(task, b"[1]", 3.0)

    assert (task.changes, 3.0) == (saved.changes, saved.updated)
    for later in (
        retry_job(saved, 4.0),
        saved.release(4.0).claim(5.0, max_crashes=3),
        saved.claim(4.0, max_crashes=3),
        defer(saved, 4.0, 1.0),
    ):
        assert isinstance(later.work, Working)
        assert later.work.saved == b"[1]"
    next_one = saved.settle(DONE, 4.0).suspend(Suspended(1, b"c", Working(JOB)), 5.0)
    assert next_one.work == Working(JOB)


def test_only_a_running_job_saves_state() -> None:
    """It is rejected if the wait is settled, or is for something else."""
    for task in (made(Running("n1")), made(Working(JOB)).settle(DONE, 2.0)):
        with pytest.raises(IllegalTransition):
            save_state(task, b"1", 3.0)
    with pytest.raises(IllegalTransition):
        save_state(made(Working(JOB)).cancel(2.0), b"1", 3.0)


def test_cancelled_step_is_known_until_its_tool_is_notified() -> None:
    """`on_cancel` runs after the step, which may be in a process that dies: see `Task.stopped`."""
    claimed = made(Working(JOB), step=2, continuation=b"c").claim(2.0, max_crashes=3)
    cancelled = claimed.settle(DONE, 3.0).cancel(4.0)

    assert (cancelled.continuation, run_id(cancelled)) == (b"c", "a:b.2")
    assert cancelled.notified(claimed.fencing_token + 1) is cancelled
    notified = cancelled.notified(claimed.fencing_token)
    assert (notified.continuation, notified.stopped) == (b"", None)
    assert notified.notified(claimed.fencing_token) is notified


def test_cancelled_wait_is_not_kept() -> None:
    """No step runs, so that the process that has cancelled it notifies the tool at once."""
    waiting = made(Working(JOB), continuation=b"c")
    working = waiting.claim(2.0, max_crashes=3)
    settled = waiting.settle(DONE, 3.0)

    for task in (waiting, working, settled):
        assert not task.runs_hook
        assert task.cancel(4.0).continuation == b""


def test_job_has_one_run_id_per_step() -> None:
    """One call may have several jobs; the id remains while the call continues after its job."""
    task = made(Working(JOB), step=2)

    assert [run_id(task), run_id(task.settle(DONE, 2.0))] == ["a:b.2"] * 2
    assert run_id(made(Running("n1"))) is None


def test_task_keeps_its_first_outcome() -> None:
    """Another one is rejected; the same one is not, since its writer may repeat the write."""
    task = made(Working(JOB)).settle(DONE, 2.0)

    assert task is task.settle(DONE, 3.0)
    with pytest.raises(IllegalTransition):
        task.settle(pack(Done(8)), 3.0)
    with pytest.raises(IllegalTransition):
        retry_job(task, 3.0)


def test_task_waits_again_after_a_step() -> None:
    """Each wait is a step with its own delivery, and keeps nothing of the wait before."""
    task = made(Working(JOB)).claim(2.0, max_crashes=3).settle(DONE, 2.0)

    parked = task.suspend(Suspended(1, b"c", Working(JOB)), 3.0)

    assert (
        parked.continuation,
        parked.step,
        parked.delivery_id,
        parked.held_delivery,
        parked.outcome,
    ) == (b"c", 1, 1, None, None)
    with pytest.raises(IllegalTransition):
        parked.suspend(Suspended(1, b"c", Working(JOB)), 3.0)


def test_awaiting_task_is_still_held_by_its_worker() -> None:
    """A step's awaitable runs in its worker, which a cancellation has to reach."""
    task = made(Working(JOB), delivery_id=4).claim(2.0, max_crashes=3).settle(DONE, 2.0)

    parked = task.suspend(Suspended(1, b"c", Awaiting("n2")), 3.0)

    assert (parked.held_delivery, parked.delivery_id, parked.bound_node) == (4, 5, "n2")


def test_questions_are_answered_one_by_one() -> None:
    """The last answer settles the task and rejects writes of its earlier holder."""
    task = made(Running("n1"))
    asked = task.suspend(Suspended(1, b"c", Asking({"a": b"{}", "b": b"{}"})), 2.0)

    half = add_answers(asked, {"a": b"1", "x": b"9"}, 3.0)
    whole = add_answers(half, {"a": b"9", "b": b'{"y":2}'}, 4.0)

    assert (half.status, half.fencing_token) == ("input_required", 0)
    assert isinstance(half.work, Asking)
    assert half.work.missing == {"b": b"{}"}
    assert (whole.status, whole.fencing_token, whole.delivery_id) == ("working", 1, 2)
    assert outcome(whole) == Done({"a": 1, "b": {"y": 2}})


def test_answers_without_a_question_are_ignored() -> None:
    """SEP-2663, "Task Update Requests"."""
    asked = made(Asking({"a": b"{}"}))
    settled = add_answers(asked, {"a": b"1"}, 2.0)

    for task in (asked, settled, made(Running("n1")), settled.cancel(2.0)):
        assert task is add_answers(task, {"b": b"1"}, 3.0)
    assert settled is add_answers(settled, {"a": b"2"}, 3.0)


def test_running_call_is_lost_with_its_process() -> None:
    """A hook cannot be resumed in the middle: its task fails."""
    task = lose_process(made(Running("n1")), 2.0)

    assert (task.status, task.error, task.bound_node) == ("failed", LOST, None)


def test_continuation_survives_its_process() -> None:
    """Its wait fails with WorkerLost, and any process resumes it with that."""
    task = lose_process(made(Awaiting("n1"), continuation=b"c"), 2.0)

    assert (
        outcome(task),
        task.fencing_token,
        task.delivery_id,
        task.bound_node,
    ) == (Failed(WorkerLost()), 1, 1, None)
    assert task.needs_delivery
    with pytest.raises(IllegalTransition):
        lose_process(task, 3.0)


def test_task_ends_with_a_result_or_an_error() -> None:
    """A result with `isError` is not a failure of the task."""
    task = made(Running("n1"))

    assert task.finish(Finished(result=b"{}"), 2.0).status == "completed"
    assert (
        task.finish(Finished(error=b"{}"), 2.0).status,
        task.finish(Finished(error=b"{}"), 2.0).error,
    ) == ("failed", b"{}")


@pytest.mark.parametrize(
    ("work", "delivered"),
    [
        (Running("n1"), False),
        (Awaiting("n1"), False),
        (Asking({"a": b"{}"}), False),
        (Working(JOB), True),
        (Following(ExternalJob("celery", "7")), True),
    ],
)
def test_task_is_delivered_if_a_worker_takes_its_step(work: Work, delivered: bool) -> None:
    """A job and an external job are delivered; a wait in a process or for a client is not."""
    assert delivered is made(work).needs_delivery


def test_task_has_a_job_until_it_is_settled() -> None:
    """After that only the next step is left, which is not work for the job's queue."""
    task = made(Working(JOB))

    assert task.job == JOB
    assert task.settle(DONE, 2.0).job is None
    assert made(Running("n1")).job is None


def test_resubmitted_task_has_a_new_delivery() -> None:
    """An engine may reject an id that it is delivering."""
    task = made(Following(ExternalJob("celery", "7"))).claim(2.0, max_crashes=3).resubmit(2.0, 5.0)

    assert (task.due, task.delivery_id, task.held_delivery) == (7.0, 1, None)


def test_step_that_is_passed_on_is_no_attempt() -> None:
    """A process that lacks its code passes it on, and the attempt is not counted."""
    claimed = made(Working(JOB)).claim(2.0, max_crashes=3)
    once = defer(claimed, 3.0, 0.5)
    twice = defer(once.claim(4.0, max_crashes=3), 5.0, 2.0)

    assert twice.work == Working(JOB, attempt=0)
    assert (
        twice.deferred_seconds,
        twice.due,
        twice.held_delivery,
        twice.crashes,
    ) == (2.5, 7.0, None, 0)
    assert twice.claim(8.0, max_crashes=3).settle(DONE, 9.0).deferred_seconds == 0.0


def test_continuation_that_is_passed_on_keeps_its_outcome() -> None:
    """The wait is over, and only the next step is left."""
    settled = made(Working(JOB, attempt=1)).settle(DONE, 2.0).claim(3.0, max_crashes=3)
    passed = defer(settled, 4.0, 1.0)

    assert (
        passed.outcome,
        passed.work,
        passed.deferred_seconds,
    ) == (DONE, Working(JOB, attempt=1), 1.0)
    assert passed.suspend(Suspended(1, b"c", Running("n1")), 5.0).deferred_seconds == 0.0
