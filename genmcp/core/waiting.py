"""The waits of calls: as a hook returns them, and as the record of a task stores them."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, TypeAlias, overload

import msgspec
from typing_extensions import TypeVar

from genmcp._options import Bound, Pause, Seconds
from genmcp.core.backoff import backoff
from genmcp.core.outcome import Done, Failed, pack
from genmcp.errors import ContractError

T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", default=Any, covariant=True)
A = TypeVar("A")
B = TypeVar("B")

_DEFAULT_QUEUE = "default"
_LONGEST_BACKOFF = 3600.0  # seconds
_LONGEST = 64  # characters of the key of a question
_MOST_PARTS = 100  # each is a task of its own, written before any of them runs

Method: TypeAlias = (
    Callable[[Any, T, Any], object]
    | Callable[[Any, Done[T] | Failed, Any], object]
    | Callable[[Any, Any, T, Any], object]
    | Callable[Concatenate[T, ...], object]
    | Callable[Concatenate[Done[T] | Failed, ...], object]
)
"""Takes the request, the value of a wait (or its outcome), and the channel.

A method given by its class, `Book.sure`, takes the instance first. A step of a function
under `@tool` takes the value first, and others by their names.
"""


class Wait(Generic[T_co]):
    """Something that a call can wait for: a job, a reference to one, a question.

    T_co is the type of the value that the method given to `then` gets.
    """

    __slots__ = ()

    asks: ClassVar[bool] = False

    def then(
        self, method: Method[T_co], otherwise: Callable[..., object] | None = None
    ) -> "Continue":
        """Return the `Continue` with which a hook waits for this and continues in *method*.

            return elicit("Book it?", Wish).then(self.book)

        Another process may run the method: it is found by its name in the tool.

        Args:
            method: a method of the tool, prompt or resource of the hook: `self.book`. It takes
                `(request, value, channel)`, and returns any result of a hook. The value is the
                result of a job or awaitable, or the content that the user filled in. A parameter
                that is called `outcome`, or annotated `Outcome`, gets the outcome instead, also
                that of a failure. A resource gets the key that `read` got in place of the request.
            otherwise: the method for a question that was declined or cancelled; it gets the
                `Declined` or `Cancelled`. Of several questions, one of which was declined or
                cancelled, it gets a dict of all answers: `Accepted`, `Declined` or `Cancelled`.
                Default: the call ends with a text that states so.

        A wait that failed, such as a job that raised, ends the call with an `isError` result that
        has the text of the failure, unless *method* takes the outcome.

        Raises:
            ContractError: (a TypeError) one of the two is not a named function, or the name of
                *method* is too long for the key of a question. Whether it is a method of the tool
                is checked when the hook returns.
        """
        for each in (method, otherwise or method):
            _check_name(each, self, key=self.asks and each is method)
        step = Continue(method.__name__, self)
        step.method, step.otherwise = method, otherwise
        return step

    def close(self) -> None:
        """Release the resources of a wait that will not be awaited."""

    if not TYPE_CHECKING:  # for a type checker a wait is not awaitable

        def __await__(self):
            # Code that runs while it waits would be lost with its process.
            self.close()
            raise ContractError(f"{type(self).__name__} cannot be awaited: {returned(self)}")


class Job(Wait[T_co], msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work for a worker: the name of a function under `@job`, and its arguments as JSON.

    delay: seconds before it is due. expires: seconds after that by which it must have ended, over
    all attempts and the time in its queue. timeout: seconds that one attempt may take (default:
    unlimited). retries: how often a failed job is tried again (default 0); backoff: seconds before
    the first retry (default 1), doubled for each further one. limit: the maximum number of jobs
    with this name and *limit_key* that run at once; 0: unlimited.
    """

    name: str
    arguments: Mapping[str, Any]
    queue: str = _DEFAULT_QUEUE
    delay: Pause = 0.0
    expires: Seconds | None = None
    timeout: Seconds | None = None
    retries: Bound = 0
    backoff: Pause = 1.0
    limit: Bound = 0
    limit_key: str = ""

    def in_queue(self, queue: str) -> "Job[T_co]":
        """Return this job in *queue*, unless it has a queue of its own."""
        if self.queue != _DEFAULT_QUEUE:
            return self
        return msgspec.structs.replace(self, queue=queue)

    def pause(self, failures: int, chance: float) -> float:
        """Return the seconds to wait before the attempt after *failures* failures.

        *chance* is a random number from 0 to 1: 0 gives the whole pause, 1 a pause shorter by
        a quarter, so that jobs which failed together are not retried together.
        """
        whole = backoff(failures + 1, self.backoff, max(self.backoff, _LONGEST_BACKOFF))
        return whole * (1.0 - 0.25 * chance)


_MAKERS: Mapping[str, str] = {
    "elicitation/create": "elicit(...)",
    "sampling/createMessage": "sample(...)",
    "roots/list": "roots()",
}


def returned(wait: Wait[Any]) -> str:
    """Return how a hook returns *wait*, for an error."""
    made = _MAKERS.get(getattr(wait, "method", ""), "wait_for(...)")
    if isinstance(wait, Job):
        made = f"{wait.name.rpartition(':')[2]}.job(...)"
    return (
        f"return {made}.then(self.method) from the hook: the method, or a step of a function under "
        f"@tool, gets the value"
    )


class ExternalCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The submission of an external job: the name of its function there, and JSON arguments."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class ExternalJob(Wait[Any], msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of another queue: the *scheme* of its `ExternalQueue`, and its name there.

    call: its submission, if the task that waits for it is to submit it: `ExternalQueue.job`.
    expires: seconds after which the wait for it fails.
    """

    scheme: str
    ref: str
    call: ExternalCall | None = None
    expires: Seconds | None = None

    def options(self, *, expires: float) -> "ExternalJob":
        """Return this job with a limit on the wait for it, including the time in its queue.

            return celery.job("reports.build", month).options(expires=3600).then(self.built)

        After that the job is cancelled, as with its call, and the wait fails with WaitTimedOut.

        Raises:
            ContractError: *expires* is no positive number of seconds.
        """
        if isinstance(expires, bool) or not isinstance(expires, int | float) or not expires > 0:
            raise ContractError(f"expires is a positive number of seconds, not {expires!r}")
        return msgspec.structs.replace(self, expires=float(expires))


GroupMode: TypeAlias = Literal["all", "outcomes"]
JobsOrMapping: TypeAlias = Wait[Any] | Mapping[str, Wait[Any]]


class JobGroup(Wait[T_co]):
    """Several jobs that run at the same time, and that a call waits for together: `gather`.

    parts: the jobs. keys: their keys if they were given as a mapping, otherwise empty. mode: "all"
    needs every value, "outcomes" every outcome.
    """

    __slots__ = ("keys", "mode", "parts")

    def __init__(self, jobs: Sequence[JobsOrMapping], mode: GroupMode) -> None:
        only = jobs[0] if len(jobs) == 1 else None
        named: Mapping[str, Any] = only if isinstance(only, Mapping) else {}
        self.keys = tuple(named)
        self.parts: tuple[Any, ...] = tuple(named.values()) if named else tuple(jobs)
        self.mode = mode
        if not self.parts or only == {}:
            raise ContractError("gather() needs at least one job")
        if len(self.parts) > _MOST_PARTS:
            raise ContractError(
                f"gather() takes at most {_MOST_PARTS} jobs, not {len(self.parts)}: let each job "
                f"do several of them"
            )
        for key in self.keys:
            if not isinstance(key, str):
                raise ContractError(f"gather(): the keys of the jobs are texts, not {key!r}")
        for each in self.parts:
            if not isinstance(each, Job | ExternalJob):
                raise ContractError(
                    f"gather() takes jobs and external jobs, or one dict of them, not "
                    f"{type(each).__name__}"
                )


@overload
def gather(jobs: Mapping[str, Wait[Any]], /, *, return_outcomes: bool = False) -> Wait[Any]: ...
@overload
def gather(
    job1: Wait[A], job2: Wait[B], /, *, return_outcomes: Literal[False] = False
) -> Wait[tuple[A, B]]: ...
@overload
def gather(*jobs: Wait[T], return_outcomes: Literal[False] = False) -> Wait[list[T]]: ...
@overload
def gather(*jobs: Wait[T], return_outcomes: Literal[True]) -> Wait[list[Done[T] | Failed]]: ...
def gather(*jobs: JobsOrMapping, return_outcomes: bool = False) -> Wait[Any]:
    """Return a wait for several jobs, which run at the same time.

        return gather(thumbnail.job(url), transcribe.job(url)).then(self.done)
        return gather({"thumb": thumbnail.job(url), "text": transcribe.job(url)}).then(self.done)

    The value is a list of their values in the order of the jobs, or a dict under the same keys.

    Args:
        *jobs: jobs or external jobs, or one dict of them. At most 100.
        return_outcomes: False (the default): the first job that fails makes the wait fail with its
            error, and the other jobs are cancelled. True: the value contains `Done(value)` or
            `Failed(error)` for each job, and the wait does not fail.

    Raises:
        ContractError: (a TypeError) there is no job, there are too many, or one of *jobs* is
            something else.
    """
    return JobGroup(jobs, "outcomes" if return_outcomes else "all")


WaitsFor: TypeAlias = Awaitable[Any] | futures.Future[Any] | Wait[Any] | Mapping[str, Wait[Any]]


class _Other(Wait[T_co]):
    """A wait for something that has no `then` of its own."""

    __slots__ = ("on",)

    def __init__(self, on: WaitsFor | None) -> None:
        self.on = on

    def close(self) -> None:
        _close(self.on)


def _close(on: object) -> None:
    if isinstance(on, Coroutine):  # unstarted: Python would warn that it was not awaited
        on.close()


@overload
def wait_for(on: "Awaitable[T] | futures.Future[T]") -> Wait[T]: ...
@overload
def wait_for(on: "Mapping[str, Wait[Any]]") -> Wait[dict[str, Any]]: ...
def wait_for(on: WaitsFor) -> Wait[Any]:
    """Return a wait for an awaitable, or for several questions, which have no `then` of their own.

        return wait_for(search(words)).then(self.found)
        return wait_for({"who": elicit("Who?", Contact), "sure": elicit("Sure?")}).then(self.book)

    Args:
        on: a coroutine, an asyncio.Task, a future of asyncio or concurrent.futures; or several
            questions by key. Their answers come as a dict under the same keys: the contents if the
            user accepted all of them, otherwise `Accepted`, `Declined` or `Cancelled` of each.
    """
    return _Other(on)


class Continue:
    """A hook's request to suspend the call. `continue_(tag, outcome, channel)` resumes it.

    on: a coroutine, an asyncio.Task, a future of asyncio or concurrent.futures; a `Job`; an
    `ExternalJob`; several of them under `gather`; a question to the client, or a dict
    of them. A coroutine is cancelled with the call; a Task or future belongs to its creator and
    keeps running.

    `then` of a wait makes one that continues in a method instead: method, otherwise.

    Raises:
        ContractError: (a TypeError) the tag is not a `str`, or *on* cannot be awaited.
    """

    __slots__ = ("_on", "alone", "method", "otherwise", "questions", "tag")

    def __init__(self, tag: str, on: WaitsFor) -> None:
        if not isinstance(tag, str):
            raise ContractError(f"Continue: the tag must be a text, not {tag!r}")
        waits: WaitsFor | None = on.on if isinstance(on, _Other) else on
        self.tag = tag
        self.method: Callable[..., object] | None = None
        self.otherwise: Callable[..., object] | None = None
        self.questions: Mapping[str, Any] = {}
        self.alone = _asks(waits)
        self._on = waits
        if self.alone or isinstance(waits, Mapping):
            self.questions = questions_of(tag, waits)
        elif not isinstance(waits, Wait | futures.Future) and not inspect.isawaitable(waits):
            raise ContractError(
                f"Continue({tag!r}, ...) cannot wait for {type(waits).__name__}: give a coroutine, "
                f"a Task or future, a Job, an ExternalJob, or a question"
            )

    def __repr__(self) -> str:
        return f"<Continue {self.tag!r} on {self._on!r}>"

    def take(self) -> WaitsFor | None:
        """Return the awaited object and drop the reference, so that it can be freed early."""
        on, self._on = self._on, None
        return on

    @property
    def work(self) -> "StoredWork | None":
        """The awaited work that is kept in the store; None for any other wait."""
        return self._on if isinstance(self._on, Job | ExternalJob | JobGroup) else None

    def use_queue(self, queue: str) -> None:
        """Put the awaited jobs into *queue*, except those that have a queue of their own."""
        if isinstance(self._on, Job):
            self._on = self._on.in_queue(queue)
        elif isinstance(self._on, JobGroup):
            parts = self._on.parts
            self._on.parts = tuple(
                each.in_queue(queue) if isinstance(each, Job) else each for each in parts
            )

    def close(self) -> None:
        """Release the awaited object. A coroutine that has not started is closed."""
        _close(self.take())


StoredWork: TypeAlias = Job | ExternalJob | JobGroup[Any]
"""Work that other processes may do or follow: the call that waits for it is a task."""


def questions_of(tag: str, on: WaitsFor | None) -> dict[str, Any]:
    """Return the questions of `Continue(tag, on)` by key. The key of a single one is *tag*.

    Raises:
        ContractError: *on* is empty, a key is not a `str` of 1 to 64 characters, or the value of a
            key is not a question.
    """
    questions = dict(on) if isinstance(on, Mapping) else {tag: on}
    if not questions:
        raise ContractError(f"Continue({tag!r}, ...) has no questions: the mapping is empty")
    for key, question in questions.items():
        if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST:
            raise ContractError(
                f"Continue({tag!r}, ...): the key of a question must be a str of 1 to {_LONGEST} "
                f"characters, not {key!r}"
            )
        if not _asks(question):
            known = isinstance(question, Job | ExternalJob | JobGroup)
            hint = ": wait for several jobs with gather({...})" if known else ""
            raise ContractError(
                f"Continue({tag!r}, ...): the value of key {key!r} must be a question, not "
                f"{type(question).__name__}{hint}"
            )
    return questions


def _asks(on: object) -> bool:
    return isinstance(on, Wait) and on.asks


def _check_name(method: object, wait: Wait[Any], *, key: bool) -> None:
    """Check that *method* has a name; *key*: one that also serves as the key of a question."""
    name = getattr(method, "__name__", None)
    if not callable(method) or not isinstance(name, str) or not name.isidentifier():
        fault = f"of the tool, by whose name another process finds it; {method!r} has no such name"
    elif key and len(name) > _LONGEST:
        fault = (
            f"whose name has at most {_LONGEST} characters, because the name is the key of the "
            f"question; {name} has {len(name)}"
        )
    else:
        return
    wait.close()
    raise ContractError(f"then() takes a method {fault}")


End: TypeAlias = Literal["completed", "failed", "cancelled"]
Status: TypeAlias = Literal["working", "input_required"] | End
OnLost: TypeAlias = Literal["rerun", "fail"]


class Running(msgspec.Struct, frozen=True, tag="running"):
    """The hook `call` itself runs in the process *node*."""

    node: str


class Awaiting(msgspec.Struct, frozen=True, tag="awaiting"):
    """The call waits for an awaitable of the process *node*; any process can then continue it."""

    node: str


class Working(msgspec.Struct, frozen=True, tag="working", omit_defaults=True):
    """The call waits for a job.

    attempt: how often the job was started. failures: how often it has failed. saved: the state, as
    JSON, that the job has saved for its next attempt, or None. The next job of the call starts
    without this state. deadline: Unix time after which no attempt begins, and running ones end.
    waited: the seconds for which the next attempt has waited for a slot of a limit.
    """

    job: Job
    attempt: int = 0
    failures: int = 0
    saved: bytes | None = None
    deadline: float | None = None
    waited: float = 0.0


class Following(msgspec.Struct, frozen=True, tag="following", omit_defaults=True):
    """The call waits for a job of an external queue, until the Unix time *deadline*."""

    ref: ExternalJob
    deadline: float | None = None


class PartOf(msgspec.Struct, frozen=True, array_like=True):
    """The wait that a job is a part of: the task, its step, the index of the part, and the number
    of parts."""

    task: str
    step: int
    index: int
    count: int


class Gathering(msgspec.Struct, frozen=True, tag="gathering", omit_defaults=True):
    """The call waits for several jobs, each of which is a task of its own with a `PartOf`.

    mode, keys: as for `JobGroup`. parts: the jobs, until their tasks have been created. ended:
    whether each part that has ended has succeeded, by its index, in the order in which they ended.
    """

    mode: GroupMode
    count: int
    parts: tuple[Working | Following, ...] = ()
    keys: tuple[str, ...] = ()
    ended: Mapping[int, bool] = {}

    @classmethod
    def of(cls, group: JobGroup[Any]) -> "Gathering":
        """Return the wait for *group*, none of whose jobs was started."""
        parts = tuple(
            Working(each) if isinstance(each, Job) else Following(each) for each in group.parts
        )
        return cls(group.mode, len(parts), parts, group.keys)

    @property
    def started(self) -> bool:
        """Whether the tasks of all parts have been created."""
        return not self.parts

    @property
    def due(self) -> bool:
        """Whether the task itself has a step to run: each part has a delivery of its own."""
        return not self.started or self.complete

    @property
    def complete(self) -> bool:
        """Whether the outcome of the wait is decided."""
        ended = self.ended.values()
        return len(ended) == self.count or (self.mode == "all" and False in ended)


class Asking(msgspec.Struct, frozen=True, tag="asking", omit_defaults=True):
    """The call waits for its client; questions and answers are JSON under the same keys."""

    questions: Mapping[str, bytes]
    answers: Mapping[str, bytes] = {}

    @property
    def missing(self) -> Mapping[str, bytes]:
        """The questions that have no answer yet."""
        # Answers may come one by one, from several requests of the client (SEP-2663).
        return {key: each for key, each in self.questions.items() if key not in self.answers}

    @property
    def outcome(self) -> bytes:
        """The outcome of the wait once all are answered: the answers, packed."""
        return pack(Done({key: msgspec.Raw(self.answers[key]) for key in self.questions}))


Work: TypeAlias = Running | Awaiting | Working | Following | Gathering | Asking


def scheduled(work: Work, now: float) -> tuple[Work, float]:
    """Return *work* as a task begins to wait for it at *now*, and the time when it is due."""
    if isinstance(work, Following) and work.ref.expires is not None:
        ref = msgspec.structs.replace(work.ref, expires=None)  # `settle` knows its two names only
        return Following(ref, now + work.ref.expires), now
    if not isinstance(work, Working):
        return work, now
    due = now + work.job.delay
    if work.job.expires is None:
        return work, due
    return msgspec.structs.replace(work, deadline=due + work.job.expires), due


class Suspended(msgspec.Struct, frozen=True):
    """The result of a hook that waits again, for *work*."""

    step: int
    continuation: bytes
    work: Work


class Finished(msgspec.Struct, frozen=True):
    """The result of a hook that has ended the call: *result* or *error*, as JSON.

    An error is an object of `code`, `message` and perhaps `data`. *raised*: the hook has raised it.
    *frees_key*: a call with the same idempotency key runs again.
    """

    result: bytes | None = None
    error: bytes | None = None
    raised: bool = False
    frees_key: bool = False
