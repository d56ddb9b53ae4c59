"""The life of one call, from the first step of its hook until nothing of it runs here any more.

`TRANSITIONS` is the only place that decides the next phase of a call after an event, such as a
promotion to a task, a cancellation, a disconnect or the shutdown, and `CallState.advance` is the
only one that changes the state. The runtime reports an event with its data, and performs the
actions that it gets, in their order, in one loop (`_mux/performing.py`). Each pair of a phase and
an event is one of:

- a transition, with the actions to perform in this order;
- *late*: an ordinary race, such as a disconnect after the handle was sent. Nothing happens;
- *impossible*: in neither of the tables. It is a defect of genmcp, and raises
  LocalIllegalTransition, which ends this one call with an internal error that has a reference.

Three decisions are made elsewhere. Whether the response is JSON or an event stream, and whether a
disconnect cancels the calls: `core/exchange.py`. Which process may change the record of a task:
`core/task.py`. A hook that runs and a call that waits in this process are one phase, RUNNING,
because all events have the same effect on both.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import product
from typing import Final

import msgspec

from genmcp.core.continuation import Continuation
from genmcp.errors import LocalIllegalTransition, McpError
from genmcp.protocol.value import Result


class CallPhase(IntEnum):
    """Where a call stands."""

    RUNNING = 0
    """A hook runs, or the call waits in this process. Its client waits for the result."""
    ASKING = 1
    """The client was sent a question on the open connection (2025-11-25 and before)."""
    STORING = 2
    """The call reads or writes its own record."""
    PROMOTING = 3
    """The record of a task is being written, while the hook runs on."""
    TASK = 4
    """The call is a task whose hook runs here. Its result goes to the record."""
    CANCELLED_TASK = 5
    """The task was cancelled. Its hook is being cancelled, and its output is discarded."""
    FOLLOWING = 6
    """Any process may resume the call from the store. Its client waits for the result here."""
    RELAYING = 7
    """As FOLLOWING, and the client was sent a question of the stored call."""
    READING = 8
    """As FOLLOWING, and the record is being read, so that the client can get its handle."""
    HANDED_OVER = 9
    """The client has the handle of the stored call, which this process stops to follow."""
    CANCELLED = 10
    """The client has cancelled the call, and gets no response. The hook is being cancelled."""
    LEFT = 11
    """The client has disconnected. The hook is being cancelled."""
    STOPPING = 12
    """The server is shutting down. The hook is being cancelled."""
    OVER = 13
    """The hook has ended, and no more of the call runs in this process."""


class CallEvent(msgspec.Struct, frozen=True):
    """An event in the life of a call. Its fields are those of `CallState` that it sets."""


class RouteResolved(CallEvent, frozen=True):
    """The route of the request, and with it the policy for a long call, is known only now."""


class Suspend(CallEvent, frozen=True):
    """A hook has returned `Continue` with an awaitable of this process."""

    continuation: Continuation
    run: None = None


class AskClient(CallEvent, frozen=True):
    """A question is sent to the client on the open connection."""

    continuation: Continuation


class ClientAnswered(CallEvent, frozen=True):
    """The question of `AskClient` was answered, or failed."""


class AccessRecord(CallEvent, frozen=True):
    """The call begins to write its record *task*, for a job that it waits for.

    Or, with None, to access that of the task which it *follows*: the one of its idempotency key, or
    of the question it answers. Known before the record is written, since a client that leaves
    meanwhile does not end that task.
    """

    task: str | None
    follows: str | None = None


class Follow(CallEvent, frozen=True):
    """The call is stored, and this process waits for its result, to send it to the client."""

    follows: str
    task: str | None


class Promote(CallEvent, frozen=True):
    """`Tool.promote_after` or `Tool.max_hold` has passed, or the tool always runs as a task.

    *unconfirmed* is the id of the record, if one is written now.
    """

    unconfirmed: str


class Written(CallEvent, frozen=True):
    """The record of the task was written; *handle* is the response."""

    task: str
    fencing_token: int
    handle: Result
    unconfirmed: None = None


class Found(CallEvent, frozen=True):
    """The record of the stored call was read; *handle* is the response."""

    handle: Result


class StoreFailed(CallEvent, frozen=True):
    """The store failed; the record *unconfirmed*, if there is one, may have been written."""

    unconfirmed: str | None


class Refused(CallEvent, frozen=True):
    """The record was not written or read, and a repetition would fail, too."""


class Cancel(CallEvent, frozen=True):
    """The client has sent a cancellation of its request."""


class CancelTask(CallEvent, frozen=True):
    """The task was cancelled (`tasks/cancel`)."""


class Leave(CallEvent, frozen=True):
    """The client has disconnected, and that cancels the call."""


class StopServer(CallEvent, frozen=True):
    """The server is shutting down; or a pipe was closed whose client has the handle of the call."""


class Returned(CallEvent, frozen=True):
    """The hook has ended with a result, or with the error that it has raised."""

    result: Result | McpError | None


class StepStored(CallEvent, frozen=True):
    """The hook has ended with another wait, which is stored in the record of the task."""


class Interrupted(CallEvent, frozen=True):
    """The hook has ended with a CancelledError."""


class WorkCancelled(CallEvent, frozen=True):
    """The record of the stored call was cancelled; *run* is the id of the job it waited for."""

    run: str | None
    runs_elsewhere: bool


class RecordDeleted(CallEvent, frozen=True):
    """The deletion of the record that a promotion may have written has begun."""

    unconfirmed: None = None


class CallAction(IntEnum):
    """An action of the runtime.

    `RunningCall` performs those on the response, the hook and the stream, its `Promotion` those on
    the timer, the handle and the record of a promotion, and `Tasks` the others.
    """

    RESPOND = 0
    """Send the result to the client."""
    REJECT = 1
    """Respond that the server is shutting down; if the call is stored, with how to get its result.
    """
    NO_RESPONSE = 2
    """End the request without a response."""
    CANCEL_HOOK = 3
    """Cancel the hook."""
    WRITE_RECORD = 4
    """Start to write the record of the task, to report `Written`, `StoreFailed` or `Refused`."""
    READ_RECORD = 5
    """Start to read the followed task, to report `Found`, `StoreFailed` or `Refused`."""
    REGISTER_TASK = 6
    """Send further messages of the call to its record, and let `tasks/cancel` reach its hook."""
    SEND_HANDLE = 7
    """Respond with the handle of the task; to a client without tasks, with how to get its result.

    From now on the client may disconnect, and its cancellation is ignored.
    """
    DELETE_RECORD = 8
    """Delete the record of a promotion, if one may have been written: no client has its handle."""
    NOTE_FOLLOWED = 9
    """Store with the events of the response which task the call waits for."""
    WRITE_STEP = 10
    """Write the step that the call has reached to the record of the task."""
    UPDATE_STEP = 11
    """As WRITE_STEP, if the call has reached another step since the record was begun."""
    START_TIMER = 12
    """Start the promotion timer, unless the call has not waited yet."""
    RESTART_TIMER = 13
    """Restart the promotion timer."""
    RETRY_SOON = 14
    """Report `Promote` again in a moment."""
    RETRY_LATER = 15
    """Report `Promote` again; after each failure the delay is doubled, up to a limit."""
    WRITE_RESULT = 16
    """Write the result to the record of the task."""
    LEAVE_RECORD = 17
    """Abandon the record: another process resumes the task, or marks it as lost."""
    UNREGISTER_TASK = 18
    """Undo REGISTER_TASK, once the pending messages are written."""
    CANCEL_WORK = 19
    """Cancel the stored call that is followed, with its job; report `WorkCancelled`."""
    NOTIFY_TOOL = 20
    """Call `on_cancel` of the tool, unless a hook *runs_elsewhere*."""


class Transition(msgspec.Struct, frozen=True):
    """The next phase, and the actions to perform. sets: whether the data of the event are kept."""

    phase: CallPhase
    actions: tuple[CallAction, ...] = ()
    sets: bool = True


_P = CallPhase
_A = CallAction

Pair = tuple[CallPhase, type[CallEvent]]

_UNPROMOTED: Final = (_P.RUNNING, _P.ASKING, _P.STORING, _P.FOLLOWING, _P.RELAYING)
_ACCESSING: Final = (_P.PROMOTING, _P.READING)
"""A promotion writes or reads a record."""
_WAITED_FOR: Final = (*_UNPROMOTED, *_ACCESSING)
"""The client waits for the result."""
_ENDING: Final = (_P.CANCELLED, _P.LEFT, _P.STOPPING)
"""The hook is being cancelled, and has not ended."""
_ABANDONED: Final = (_A.CANCEL_WORK, _A.NOTIFY_TOOL, _A.DELETE_RECORD)
_ACCESS_ENDS: Final = (Written, Found, StoreFailed, Refused)


def _all(
    phases: Iterable[CallPhase],
    events: Iterable[type[CallEvent]],
    to: CallPhase | None = None,
    *actions: CallAction,
    sets: bool = True,
) -> dict[Pair, Transition]:
    """Return one transition for each pair; without *to*, each leads to its own phase."""
    pairs = product(phases, events)
    return {pair: Transition(pair[0] if to is None else to, actions, sets) for pair in pairs}


TRANSITIONS: Final[Mapping[Pair, Transition]] = {
    (_P.RUNNING, RouteResolved): Transition(_P.RUNNING, (_A.START_TIMER,)),
    # The steps of the hook. In PROMOTING, the step is written after the record: see `Written`.
    **_all((_P.RUNNING, _P.PROMOTING), (Suspend,)),
    # In CANCELLED_TASK, a hook ignores its cancellation: the store rejects the write.
    **_all((_P.TASK, _P.CANCELLED_TASK), (Suspend,), None, _A.WRITE_STEP),
    (_P.RUNNING, AskClient): Transition(_P.ASKING),
    (_P.ASKING, ClientAnswered): Transition(_P.RUNNING),
    (_P.FOLLOWING, AskClient): Transition(_P.RELAYING),
    (_P.RELAYING, ClientAnswered): Transition(_P.FOLLOWING),
    (_P.RUNNING, AccessRecord): Transition(_P.STORING),
    **_all((_P.RUNNING, _P.STORING), (Follow,), _P.FOLLOWING, _A.NOTE_FOLLOWED),
    # A hook that ignores its cancellation takes further steps: a job that it begins is cancelled.
    **_all(_ENDING, (Suspend, AskClient, AccessRecord, Follow)),
    # Promotion. The order is: write the record, then send the handle. The other order would let a
    # client poll a task that does not exist yet, or never will if the process dies in between. If
    # the call ends or is cancelled during the write, no client has the handle of the record, which
    # is deleted.
    (_P.RUNNING, Promote): Transition(_P.PROMOTING, (_A.WRITE_RECORD,)),
    (_P.PROMOTING, Written): Transition(
        _P.TASK, (_A.REGISTER_TASK, _A.SEND_HANDLE, _A.UPDATE_STEP)
    ),
    (_P.PROMOTING, StoreFailed): Transition(_P.RUNNING, (_A.RETRY_LATER,)),
    (_P.PROMOTING, Refused): Transition(_P.RUNNING),
    # The time in which the call waits for its client does not count.
    **_all((_P.ASKING, _P.RELAYING), (Promote,), None, _A.RESTART_TIMER, sets=False),
    # The call is about to create or to find its record, and must not get a second one.
    **_all((_P.STORING,), (Promote,), None, _A.RETRY_SOON, sets=False),
    # A stored call has a record: its client gets the handle of that.
    (_P.FOLLOWING, Promote): Transition(_P.READING, (_A.READ_RECORD,), sets=False),
    (_P.READING, Found): Transition(_P.HANDED_OVER, (_A.SEND_HANDLE, _A.CANCEL_HOOK)),
    (_P.READING, StoreFailed): Transition(_P.FOLLOWING, (_A.RETRY_LATER,)),
    (_P.READING, Refused): Transition(_P.FOLLOWING),
    # If a write ends after the call, its record is deleted. If it ends while the hook is being
    # cancelled, the record is deleted at the end of the hook.
    **_all((_P.OVER,), _ACCESS_ENDS, None, _A.DELETE_RECORD, sets=False),
    # Cancellation. Each event cancels the hook again, since a hook may ignore the first
    # cancellation. `Cancel` beats `Leave`, and `Leave` beats `StopServer`, in whichever order they
    # come: after `Cancel` there is no response (2025-11-25, cancellation); after `Leave` a result
    # that the hook returns is sent, since the client may still read; after `StopServer` an error is
    # sent, too.
    **_all((*_WAITED_FOR, *_ENDING), (Cancel,), _P.CANCELLED, _A.CANCEL_HOOK),
    **_all((*_WAITED_FOR, _P.LEFT, _P.STOPPING), (Leave,), _P.LEFT, _A.CANCEL_HOOK),
    **_all((*_WAITED_FOR, _P.STOPPING), (StopServer,), _P.STOPPING, _A.CANCEL_HOOK),
    **_all((_P.CANCELLED,), (Leave, StopServer), None, _A.CANCEL_HOOK),
    **_all((_P.LEFT, _P.HANDED_OVER), (StopServer,), None, _A.CANCEL_HOOK),
    # Once the client has a handle, only `tasks/cancel` and the shutdown cancel the hook: the
    # response is sent, and the connection may be gone. After the shutdown another process resumes
    # the task, if its wait does not depend on this process.
    **_all((_P.TASK, _P.CANCELLED_TASK), (CancelTask,), _P.CANCELLED_TASK, _A.CANCEL_HOOK),
    **_all((_P.TASK, _P.CANCELLED_TASK), (StopServer,), None, _A.CANCEL_HOOK),
    # The end of the hook. The response comes first: the tool's `on_cancel` may take long, and so
    # may the store.
    **_all(_UNPROMOTED, (Returned,), _P.OVER, _A.RESPOND, _A.DELETE_RECORD),
    # The host has cancelled the call, or the hook has cancelled itself. In both cases the
    # CancelledError propagates to the host, and no response is sent here.
    **_all(_UNPROMOTED, (Interrupted,), _P.OVER, _A.DELETE_RECORD),
    # The access to the store is not interrupted: its outcome would be unknown, and a record might
    # remain. Its end is reported in phase OVER, which deletes the record.
    **_all(_ACCESSING, (Returned,), _P.OVER, _A.RESPOND),
    **_all(_ACCESSING, (Interrupted,), _P.OVER),
    **_all((_P.CANCELLED,), (Returned, Interrupted), _P.OVER, _A.NO_RESPONSE, *_ABANDONED),
    # A client that has closed its side of a pipe may still read.
    (_P.LEFT, Returned): Transition(_P.OVER, (_A.RESPOND, *_ABANDONED)),
    (_P.LEFT, Interrupted): Transition(_P.OVER, (_A.NO_RESPONSE, *_ABANDONED)),
    (_P.STOPPING, Returned): Transition(_P.OVER, (_A.RESPOND, _A.DELETE_RECORD)),
    (_P.STOPPING, Interrupted): Transition(_P.OVER, (_A.REJECT, _A.DELETE_RECORD)),
    **_all((_P.HANDED_OVER,), (Returned, Interrupted), _P.OVER, _A.DELETE_RECORD),
    (_P.TASK, Returned): Transition(_P.OVER, (_A.WRITE_RESULT, _A.UNREGISTER_TASK)),
    (_P.TASK, StepStored): Transition(_P.OVER, (_A.UNREGISTER_TASK,)),
    (_P.TASK, Interrupted): Transition(_P.OVER, (_A.LEAVE_RECORD, _A.UNREGISTER_TASK)),
    **_all(
        *((_P.CANCELLED_TASK,), (Returned, StepStored, Interrupted), _P.OVER),
        *(_A.UNREGISTER_TASK, _A.NOTIFY_TOOL),
    ),
    # What the actions at the end of the hook report.
    **_all((_P.OVER,), (WorkCancelled, RecordDeleted)),
}

_IS_TASK: Final = (_P.TASK, _P.CANCELLED_TASK)
_HAS_RESPONSE: Final = (*_IS_TASK, _P.HANDED_OVER, _P.OVER)


def _pairs(phases: Iterable[CallPhase], *events: type[CallEvent]) -> Iterable[Pair]:
    return product(phases, events)


LATE: Final[frozenset[Pair]] = frozenset(
    {
        # A hook ignores its cancellation, or its call is a task now.
        *_pairs((*_ENDING, *_IS_TASK), RouteResolved, ClientAnswered),
        *_pairs(_IS_TASK, AskClient, AccessRecord, Follow),
        *_pairs((_P.HANDED_OVER,), Suspend, AskClient, ClientAnswered, AccessRecord, Follow),
        # A timer expires, or an access ends, after another event has changed the phase.
        *_pairs((*_ACCESSING, *_ENDING, *_HAS_RESPONSE), Promote),
        *_pairs(_ENDING, *_ACCESS_ENDS),
        # The client cancels or disconnects after it got the response, or after the call has ended.
        *_pairs(_HAS_RESPONSE, Cancel, Leave),
        *_pairs((_P.OVER,), CancelTask, StopServer),
    }
)


class CallState(msgspec.Struct, eq=False):
    """One call: its phase, and the data to continue it. Changed by `advance` alone.

    Args:
        continuation: set once a hook has returned `Continue`.
        task: the id of its record in the store, if it has one.
        fencing_token: for changes of the record.
        run: the id of the job that the call waits for, or continues after.
        follows: the task that the call awaits here. Unless it is *task*, it is that of an
            idempotency key, which continues without this call.
        unconfirmed: the id of a record that a promotion may have written, before its handle was
            sent. Cleared when the record is known to be written, and when it is deleted.
        handle: the response that was sent instead of the result.
        result: the result or error of the call, if its response was held.
        runs_elsewhere: whether a hook of the cancelled call runs without its request. The tool is
            notified there, after the end of that hook.
    """

    phase: CallPhase = CallPhase.RUNNING
    continuation: Continuation | None = None
    task: str | None = None
    fencing_token: int = 0
    run: str | None = None
    follows: str | None = None
    unconfirmed: str | None = None
    handle: Result | None = None
    result: Result | McpError | None = None
    runs_elsewhere: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.phase.name}>"

    def advance(self, event: CallEvent) -> tuple[CallAction, ...]:
        """Move to the next phase, with the data of *event*; return the actions to perform.

        Nothing changes, and there are no actions, if *event* came late.

        Raises:
            LocalIllegalTransition: *event* is impossible in this phase.
        """
        kind = type(event)
        transition = TRANSITIONS.get((self.phase, kind))
        if transition is not None:
            self.phase = transition.phase
            if transition.sets:
                for name in kind.__struct_fields__:
                    setattr(self, name, getattr(event, name))
            return transition.actions
        if (self.phase, kind) in LATE:
            return ()
        raise LocalIllegalTransition(kind.__name__, self.phase.name)

    # These depend on the phase: read them before `advance` reports the end of the hook.

    @property
    def promoted(self) -> bool:
        """Whether the client of this process has a handle, and the result goes to the record."""
        return self.handle is not None and self.phase in (CallPhase.TASK, CallPhase.CANCELLED_TASK)

    @property
    def undecided(self) -> bool:
        """Whether a pending write or read of the store decides if the client gets a handle."""
        return self.phase in _ACCESSING
