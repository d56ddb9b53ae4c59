"""The life of one call, from the first step of its hook until nothing of it runs here any more.

`TRANSITIONS` is the only place that decides the next phase of a call after an event, such as a
promotion to a task, a cancellation, a disconnect or the shutdown. The runtime reports the events to
`CallState.advance`, and performs the actions that it returns (`_transports/running_call.py`,
`_transports/promotion.py`, `_mux/continuations.py`). Each pair of a phase and an event is one of:

- a transition, with the actions to perform in this order;
- *late*: an ordinary race, such as a disconnect after the handle was sent. Nothing happens;
- *impossible*: in neither of the tables. It is a defect of genmcp, and raises
  LocalIllegalTransition, which ends this one call with an internal error that has a reference.

Three decisions are made elsewhere. Whether the response is JSON or an event stream, and whether a
disconnect cancels the calls: `_core/exchange.py`. Which process may change the record of a task:
`_core/task.py`. A hook that runs and a call that waits in this process are one phase, RUNNING,
because all events have the same effect on both.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import product
from typing import Final

import msgspec

from genmcp._core.continuation import Continuation
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


class CallEvent(IntEnum):
    """An event in the life of a call."""

    SUSPEND = 0
    """A hook has returned `Continue` with an awaitable of this process."""
    ASK = 1
    """A question is sent to the client on the open connection."""
    ANSWERED = 2
    """The question of ASK was answered, or failed."""
    STORE = 3
    """The call begins to read or write its own record."""
    FOLLOW = 4
    """The call is stored, and this process waits for its result, to send it to the client."""
    PROMOTE = 5
    """`Tool.promote_after` or `Tool.max_hold` has passed, or the tool always runs as a task."""
    WRITTEN = 6
    """The record of the task was written."""
    FOUND = 7
    """The record of the stored call was read."""
    FAILED = 8
    """The store failed; the record may have been written."""
    REFUSED = 9
    """The record was not written or read, and a repetition would fail, too."""
    CANCEL = 10
    """The client has sent a cancellation of its request."""
    TASK_CANCEL = 11
    """The task was cancelled (`tasks/cancel`)."""
    LEAVE = 12
    """The client has disconnected, and that cancels the call."""
    SHUTDOWN = 13
    """The server is shutting down; or a pipe was closed whose client has the handle of the call."""
    RETURNED = 14
    """The hook has ended with a result, or with the error that it has raised."""
    STORED = 15
    """The hook has ended with another wait, which is stored in the record of the task."""
    INTERRUPTED = 16
    """The hook has ended with a CancelledError."""


class CallAction(IntEnum):
    """An action of the runtime.

    `RunningCall` performs CANCEL_HOOK and, at the end of the hook, RESPOND, REJECT, CANCEL_WORK and
    NOTIFY_TOOL. Its `Promotion` performs the actions on the record, the handle and the timer,
    `Tasks.ended` WRITE_OUTCOME and LEAVE_RECORD, and `Continuations` WRITE_STEP.
    """

    RESPOND = 0
    """Send the result to the client."""
    REJECT = 1
    """Respond that the server is shutting down; if the call is stored, with how to get its result.
    """
    CANCEL_HOOK = 2
    """Cancel the hook."""
    WRITE_RECORD = 3
    """Write the record of the task, then report WRITTEN, FAILED or REFUSED."""
    READ_RECORD = 4
    """Read the record of the followed task, then report FOUND, FAILED or REFUSED."""
    SEND_HANDLE = 5
    """Respond with the handle of the task; to a client without tasks, with how to get its result.

    From now on the client may disconnect, and its cancellation is ignored.
    """
    DELETE_RECORD = 6
    """Delete the record of the task, if one may have been written: no client has its handle."""
    WRITE_STEP = 7
    """Write the current step of the call to the record of the task."""
    RESTART_TIMER = 8
    """Restart the promotion timer."""
    RETRY_SOON = 9
    """Report PROMOTE again in a moment."""
    RETRY_LATER = 10
    """Report PROMOTE again; after each failure the delay is doubled, up to a limit."""
    WRITE_OUTCOME = 11
    """Write the result to the record of the task."""
    LEAVE_RECORD = 12
    """Abandon the record (`Tasks.ended`): another process resumes the task, or marks it as lost."""
    CANCEL_WORK = 13
    """Cancel the stored call that is followed, with its job."""
    NOTIFY_TOOL = 14
    """Call `on_cancel` of the tool."""


class Transition(msgspec.Struct, frozen=True):
    """The next phase, and the actions to perform."""

    phase: CallPhase
    actions: tuple[CallAction, ...] = ()


_P = CallPhase
_E = CallEvent
_A = CallAction

Pair = tuple[CallPhase, CallEvent]

_UNPROMOTED: Final = (_P.RUNNING, _P.ASKING, _P.STORING, _P.FOLLOWING, _P.RELAYING, _P.READING)
_WAITED_FOR: Final = (*_UNPROMOTED, _P.PROMOTING)
"""The client waits for the result."""
_ENDING: Final = (_P.CANCELLED, _P.LEFT, _P.STOPPING)
"""The hook is being cancelled, and has not ended."""
_ENDS: Final = (_E.RETURNED, _E.INTERRUPTED)
_ABANDONED: Final = (_A.CANCEL_WORK, _A.NOTIFY_TOOL, _A.DELETE_RECORD)


def _all(
    phases: Iterable[CallPhase], events: Iterable[CallEvent], to: Transition
) -> dict[Pair, Transition]:
    return dict.fromkeys(product(phases, events), to)


TRANSITIONS: Final[Mapping[Pair, Transition]] = {
    # The steps of the hook.
    (_P.RUNNING, _E.SUSPEND): Transition(_P.RUNNING),
    # The step is written after the record of the promotion: see WRITTEN.
    (_P.PROMOTING, _E.SUSPEND): Transition(_P.PROMOTING),
    (_P.TASK, _E.SUSPEND): Transition(_P.TASK, (_A.WRITE_STEP,)),
    # A hook that ignores its cancellation: the store rejects the write, since the task has ended.
    (_P.CANCELLED_TASK, _E.SUSPEND): Transition(_P.CANCELLED_TASK, (_A.WRITE_STEP,)),
    (_P.RUNNING, _E.ASK): Transition(_P.ASKING),
    (_P.ASKING, _E.ANSWERED): Transition(_P.RUNNING),
    (_P.FOLLOWING, _E.ASK): Transition(_P.RELAYING),
    (_P.RELAYING, _E.ANSWERED): Transition(_P.FOLLOWING),
    (_P.RUNNING, _E.STORE): Transition(_P.STORING),
    (_P.RUNNING, _E.FOLLOW): Transition(_P.FOLLOWING),
    (_P.STORING, _E.FOLLOW): Transition(_P.FOLLOWING),
    # Promotion. The order is: write the record, then send the handle. The other order would let a
    # client poll a task that does not exist yet, or never will if the process dies in between. If
    # the call ends or is cancelled during the write, no client has the handle of the record, which
    # is deleted.
    (_P.RUNNING, _E.PROMOTE): Transition(_P.PROMOTING, (_A.WRITE_RECORD,)),
    (_P.PROMOTING, _E.WRITTEN): Transition(_P.TASK, (_A.SEND_HANDLE, _A.WRITE_STEP)),
    (_P.PROMOTING, _E.FAILED): Transition(_P.RUNNING, (_A.RETRY_LATER,)),
    (_P.PROMOTING, _E.REFUSED): Transition(_P.RUNNING),
    # The time in which the call waits for its client does not count.
    (_P.ASKING, _E.PROMOTE): Transition(_P.ASKING, (_A.RESTART_TIMER,)),
    (_P.RELAYING, _E.PROMOTE): Transition(_P.RELAYING, (_A.RESTART_TIMER,)),
    # The call is about to create or to find its record, and must not get a second one.
    (_P.STORING, _E.PROMOTE): Transition(_P.STORING, (_A.RETRY_SOON,)),
    # A stored call has a record: its client gets the handle of that.
    (_P.FOLLOWING, _E.PROMOTE): Transition(_P.READING, (_A.READ_RECORD,)),
    (_P.READING, _E.FOUND): Transition(_P.HANDED_OVER, (_A.SEND_HANDLE, _A.CANCEL_HOOK)),
    (_P.READING, _E.FAILED): Transition(_P.FOLLOWING, (_A.RETRY_LATER,)),
    (_P.READING, _E.REFUSED): Transition(_P.FOLLOWING),
    # If a write ends after the call, its record is deleted. If it ends while the hook is being
    # cancelled, the record is deleted at the end of the hook.
    (_P.OVER, _E.WRITTEN): Transition(_P.OVER, (_A.DELETE_RECORD,)),
    (_P.OVER, _E.FAILED): Transition(_P.OVER, (_A.DELETE_RECORD,)),
    # Cancellation. Each event cancels the hook again, since a hook may ignore the first
    # cancellation. CANCEL beats LEAVE, and LEAVE beats SHUTDOWN, in whichever order they come:
    # after CANCEL there is no response (2025-11-25, cancellation); after LEAVE a result that the
    # hook returns is sent, since the client may still read; after SHUTDOWN an error is sent, too.
    **_all((*_WAITED_FOR, *_ENDING), (_E.CANCEL,), Transition(_P.CANCELLED, (_A.CANCEL_HOOK,))),
    **_all(
        (*_WAITED_FOR, _P.LEFT, _P.STOPPING), (_E.LEAVE,), Transition(_P.LEFT, (_A.CANCEL_HOOK,))
    ),
    **_all((*_WAITED_FOR, _P.STOPPING), (_E.SHUTDOWN,), Transition(_P.STOPPING, (_A.CANCEL_HOOK,))),
    (_P.CANCELLED, _E.LEAVE): Transition(_P.CANCELLED, (_A.CANCEL_HOOK,)),
    (_P.CANCELLED, _E.SHUTDOWN): Transition(_P.CANCELLED, (_A.CANCEL_HOOK,)),
    (_P.LEFT, _E.SHUTDOWN): Transition(_P.LEFT, (_A.CANCEL_HOOK,)),
    (_P.HANDED_OVER, _E.SHUTDOWN): Transition(_P.HANDED_OVER, (_A.CANCEL_HOOK,)),
    # Once the client has a handle, only `tasks/cancel` and the shutdown cancel the hook: the
    # response is sent, and the connection may be gone. After the shutdown another process resumes
    # the task, if its wait does not depend on this process.
    **_all(
        (_P.TASK, _P.CANCELLED_TASK),
        (_E.TASK_CANCEL,),
        Transition(_P.CANCELLED_TASK, (_A.CANCEL_HOOK,)),
    ),
    (_P.TASK, _E.SHUTDOWN): Transition(_P.TASK, (_A.CANCEL_HOOK,)),
    (_P.CANCELLED_TASK, _E.SHUTDOWN): Transition(_P.CANCELLED_TASK, (_A.CANCEL_HOOK,)),
    # The end of the hook.
    **_all(_UNPROMOTED, (_E.RETURNED,), Transition(_P.OVER, (_A.RESPOND, _A.DELETE_RECORD))),
    # The host has cancelled the call, or the hook has cancelled itself. In both cases the
    # CancelledError propagates to the host, and no response is sent here.
    **_all(_UNPROMOTED, (_E.INTERRUPTED,), Transition(_P.OVER, (_A.DELETE_RECORD,))),
    # The write of the record is not interrupted: its outcome would be unknown, and a record might
    # remain. At its end WRITTEN or FAILED is reported in phase OVER, which deletes the record.
    (_P.PROMOTING, _E.RETURNED): Transition(_P.OVER, (_A.RESPOND,)),
    (_P.PROMOTING, _E.INTERRUPTED): Transition(_P.OVER),
    **_all((_P.CANCELLED,), _ENDS, Transition(_P.OVER, _ABANDONED)),
    # A client that has closed its side of a pipe may still read.
    (_P.LEFT, _E.RETURNED): Transition(_P.OVER, (_A.RESPOND, *_ABANDONED)),
    (_P.LEFT, _E.INTERRUPTED): Transition(_P.OVER, _ABANDONED),
    (_P.STOPPING, _E.RETURNED): Transition(_P.OVER, (_A.RESPOND, _A.DELETE_RECORD)),
    (_P.STOPPING, _E.INTERRUPTED): Transition(_P.OVER, (_A.REJECT, _A.DELETE_RECORD)),
    **_all((_P.HANDED_OVER,), _ENDS, Transition(_P.OVER, (_A.DELETE_RECORD,))),
    (_P.TASK, _E.RETURNED): Transition(_P.OVER, (_A.WRITE_OUTCOME,)),
    (_P.TASK, _E.STORED): Transition(_P.OVER),
    (_P.TASK, _E.INTERRUPTED): Transition(_P.OVER, (_A.LEAVE_RECORD,)),
    **_all((_P.CANCELLED_TASK,), (*_ENDS, _E.STORED), Transition(_P.OVER, (_A.NOTIFY_TOOL,))),
}

_HOOK: Final = (_E.SUSPEND, _E.ASK, _E.ANSWERED, _E.STORE, _E.FOLLOW)
_STORE_ENDS: Final = (_E.WRITTEN, _E.FOUND, _E.FAILED, _E.REFUSED)

LATE: Final[frozenset[Pair]] = frozenset(
    {
        # A hook that ignores its cancellation takes further steps.
        *product((*_ENDING, _P.HANDED_OVER), _HOOK),
        *product((_P.TASK, _P.CANCELLED_TASK), _HOOK[1:]),
        # A timer expires, or a write or read ends, after another event has changed the phase.
        *product(
            (_P.PROMOTING, _P.READING, _P.TASK, _P.CANCELLED_TASK, _P.HANDED_OVER), (_E.PROMOTE,)
        ),
        *product((*_ENDING, _P.OVER), (_E.PROMOTE, *_STORE_ENDS)),
        # The client cancels or disconnects after it got the response, or after the call has ended.
        *product((_P.TASK, _P.CANCELLED_TASK, _P.HANDED_OVER, _P.OVER), (_E.CANCEL, _E.LEAVE)),
        *product((_P.OVER,), (_E.TASK_CANCEL, _E.SHUTDOWN)),
    }
).difference(TRANSITIONS)


class CallState(msgspec.Struct, eq=False):
    """One call: its phase, and the data to continue it. Owned by the channel of the call.

    Args:
        continuation: set once a hook has returned `Continue`.
        task: the id of its record in the store, if it has one.
        fencing_token: for changes of the record.
        run: the id of the job that the call waits for, or continues after.
        follows: the task that the call awaits here. Unless it is *task*, it is that of an
            idempotency key, which goes on without this call.
        unconfirmed: the id of a record that a promotion may have written, before its handle was
            sent. Cleared when the handle is sent, and when the record is deleted.
        handle: the response that was sent instead of the result.
        outcome: the result or error of the call, if its response was held.
    """

    phase: CallPhase = CallPhase.RUNNING
    continuation: Continuation | None = None
    task: str | None = None
    fencing_token: int = 0
    run: str | None = None
    follows: str | None = None
    unconfirmed: str | None = None
    handle: Result | None = None
    outcome: Result | McpError | None = None

    def __repr__(self) -> str:
        return f"<CallState {self.phase.name}>"

    def advance(self, event: CallEvent) -> tuple[CallAction, ...]:
        """Move to the next phase; return the actions to perform, none if *event* came late.

        Raises:
            LocalIllegalTransition: *event* is impossible in this phase.
        """
        transition = TRANSITIONS.get((self.phase, event))
        if transition is not None:
            self.phase = transition.phase
            return transition.actions
        if (self.phase, event) in LATE:
            return ()
        raise LocalIllegalTransition(event.name, self.phase.name)

    # These depend on the phase: read them before `advance` reports the end of the hook.

    @property
    def promoted(self) -> bool:
        """Whether the client of this process has a handle, and the result goes to the record."""
        return self.handle is not None and self.phase in (CallPhase.TASK, CallPhase.CANCELLED_TASK)

    @property
    def undecided(self) -> bool:
        """Whether a pending write or read of the store decides if the client gets a handle."""
        return self.phase in (CallPhase.PROMOTING, CallPhase.READING)

    @property
    def discards_output(self) -> bool:
        """Whether the output of the call is discarded."""
        return self.phase in (CallPhase.CANCELLED_TASK, CallPhase.OVER)
