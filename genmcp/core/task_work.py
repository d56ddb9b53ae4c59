"""What a task waits for, and what a hook of it comes to."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from genmcp.core.outcome import Done, pack
from genmcp.core.waiting import Job, Ref

__all__ = [
    "Asking",
    "Awaiting",
    "End",
    "Finished",
    "Following",
    "InputRequired",
    "OnLost",
    "Running",
    "Status",
    "Suspended",
    "Work",
    "Working",
]

End: TypeAlias = Literal["completed", "failed", "cancelled"]
Status: TypeAlias = Literal["working", "input_required"] | End
OnLost: TypeAlias = Literal["rerun", "fail"]


class Running(msgspec.Struct, frozen=True, tag="running"):
    """The hook `call` itself runs in the process *node*."""

    node: str


class Awaiting(msgspec.Struct, frozen=True, tag="awaiting"):
    """What the call waits for runs in the process *node*; any other can continue it."""

    node: str


class Working(msgspec.Struct, frozen=True, tag="working", omit_defaults=True):
    """An engine delivers a job; it was begun *attempt* times and failed *failures* times.

    saved: the state with which its next attempt continues, as JSON; None if it saved none. It is
    part of the job's work, so that the next job of the call starts without one.
    """

    job: Job
    attempt: int = 0
    failures: int = 0
    saved: bytes | None = None


class Following(msgspec.Struct, frozen=True, tag="following"):
    """A job of another queue is followed."""

    ref: Ref


class Asking(msgspec.Struct, frozen=True, tag="asking", omit_defaults=True):
    """The client is asked; questions and answers are JSON under the same keys."""

    questions: Mapping[str, bytes]
    answers: Mapping[str, bytes] = {}

    @property
    def missing(self) -> Mapping[str, bytes]:
        """The questions that have no answer yet."""
        return {key: each for key, each in self.questions.items() if key not in self.answers}

    @property
    def outcome(self) -> bytes:
        """What the call goes on with when all are answered: its answers, packed."""
        return pack(Done({key: msgspec.Raw(self.answers[key]) for key in self.questions}))


class InputRequired(msgspec.Struct, frozen=True, tag="input_required"):
    """The client was asked, and continues the call by a request of its own, within *ttl* seconds.

    Only for a private task. *step* is the step of the call that asks, *result* the
    InputRequiredResult as JSON: copies of the call get the same question.
    """

    step: int
    result: bytes
    ttl: float


Work: TypeAlias = Running | Awaiting | Working | Following | Asking | InputRequired


class Suspended(msgspec.Struct, frozen=True):
    """What a hook came to: the call waits again, for *work*."""

    step: int
    continuation: bytes
    work: Work


class Finished(msgspec.Struct, frozen=True):
    """What a hook came to: the call is over, with one of *result* and *error*, as JSON.

    An error is an object of `code`, `message` and perhaps `data`. *raised*: the call failed and may
    be repeated: its idempotency key, if it has one, is free again.
    """

    result: bytes | None = None
    error: bytes | None = None
    raised: bool = False
