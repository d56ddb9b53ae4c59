"""Functions that run as jobs: found again by name, in whatever process works on them."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import partial, update_wrapper
from math import isfinite
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

import msgspec
from msgspec.structs import replace
from typing_extensions import Unpack

from genmcp.core.outcome import check_json
from genmcp.core.task import Task, add_progress
from genmcp.core.waiting import Job
from genmcp.errors import ConfigurationError, ContractError, IllegalTransition, StoreError

__all__ = [
    "Job",
    "JobFunction",
    "JobProgress",
    "ProgressWriter",
    "Reports",
    "Run",
    "SavedState",
    "find",
    "job",
    "progressed",
]

logger = logging.getLogger("genmcp")

P = ParamSpec("P")
R = TypeVar("R")
# Covariant: pyright infers `CoroutineType` for an `async def`, a subtype of `Coroutine`.
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Reports(Protocol):
    """What takes the progress of an attempt."""

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Have it written, soon."""

    async def fenced(self, write: Callable[[], Awaitable[object]]) -> None:
        """Await a *write* that is fenced by the turn; a rejected one ends the work."""


class SavedState(msgspec.Struct, eq=False):
    """The state that a job has saved, as JSON. Owned by one attempt.

    write: stores a new one. limit: its maximum size in bytes.
    """

    json: bytes | None
    write: Callable[[bytes], Awaitable[object]]
    limit: int

    def encoded(self, state: Any) -> bytes:
        """Return *state* as JSON.

        Raises:
            ContractError: it is not JSON, or too large.
        """
        check_json("run.save: state", state)
        try:
            encoded = msgspec.json.encode(state)
        except ValueError as error:  # half of a surrogate pair
            raise ContractError(f"run.save: the state cannot be stored: {error}") from error
        if len(encoded) > self.limit:
            raise ContractError(
                f"run.save: the state has {len(encoded)} bytes as JSON, and may have {self.limit} "
                f"(JobOptions.max_saved_bytes): save what finds the data, and store it elsewhere"
            )
        return encoded


class Run(msgspec.Struct, frozen=True, eq=False):
    """What a job has of the attempt that is made at it.

    id: of the job, the same for each attempt: a key by which what it does elsewhere can be done
    once. attempt: which one this is, counted from 1. assigns: of the call that waits for it. saved:
    the state that was saved last, by this attempt or an earlier one.

    A `def` job is in a thread and cannot await; it says `run.in_loop(run.progress(1, 3))`, and
    `run.in_loop(run.save(state))`.
    """

    id: str
    attempt: int
    assigns: Mapping[str, Any]
    _reports: Reports
    _loop: asyncio.AbstractEventLoop
    _state: SavedState

    async def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report how far the work is, and let others run.

        Any number of reports costs little: ten a second are kept, the last one always.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            TypeError, ValueError: one of the two is no number.
        """
        self._reports.report(done, total, message)
        await asyncio.sleep(0)

    @property
    def saved(self) -> Any:
        """The state that this job saved last, as JSON gives it back; None if it saved none.

        Each read decodes it: changing the value that was returned changes nothing else.
        """
        state = self._state.json
        return None if state is None else msgspec.json.decode(state)

    async def save(self, state: Any) -> None:
        """Store *state* with the task, in place of what was saved before.

        If the job runs again (after a crash or a shutdown of its worker, or as a retry), its next
        attempt finds the state in `saved`. When this returns, the state is stored; it waits while
        the store cannot be reached. Each state is one write: save after each piece of work that
        should not be done again, such as a page or a batch, not in a tight loop. Another job of the
        same call starts without a state.

        Args:
            state: any JSON value, of at most `JobOptions.max_saved_bytes` (65536) bytes. A tuple
                becomes a list.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            ContractError: (a TypeError) it is not JSON, or too large; nothing is stored, and the
                state that was saved before is kept.
            StoreError: the store is full, or the client's share of it is used up.
        """
        encoded = self._state.encoded(state)
        await self._reports.fenced(partial(self._state.write, encoded))
        self._state.json = encoded
        await asyncio.sleep(0)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the worker's event loop and wait for it, from a `def` job's thread.

        Raises:
            RuntimeError: this is the event loop's own thread (`await` it), or the loop has ended.
        """
        if _running() is self._loop:
            work.close()
            raise RuntimeError("in_loop is for a `def` job: await it instead")
        if not self._loop.is_closed():
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
            while not self._loop.is_closed():
                if wait([done], timeout=0.5).done:
                    return done.result()
        work.close()  # Python would warn that it was never awaited
        raise RuntimeError("the worker's event loop has ended")


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_PACE: Final = 0.1  # seconds between two writes
_RESPITE: Final = 1.0  # ... after one that failed


class JobProgress(msgspec.Struct, frozen=True):
    """How far work is; None says nothing new."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None

    def then(self, newer: "JobProgress") -> "JobProgress":
        """Return both as one."""
        return JobProgress(
            self.progress if newer.progress is None else newer.progress,
            self.total if newer.total is None else newer.total,
            self.message if newer.message is None else newer.message,
        )


def progressed(progress: JobProgress, task: Task, now: float) -> Task:
    """Return *task* with the *progress* of its work."""
    done, total, message = progress.progress, progress.total, progress.message
    return add_progress(task, now, done, total, message)


Write: TypeAlias = Callable[[JobProgress], Awaitable[object]]


def _nothing() -> None:
    pass


class ProgressWriter:
    """Writes the newest progress, at most ten times a second; the work never waits for it.

    A write may be `refused`: what the work is for is over, or somebody else's. Then *stop* is
    called, once.
    """

    def __init__(self, write: Write, stop: Callable[[], object] = _nothing) -> None:
        self._write = write
        self._stop = stop
        self.refused = False
        self._open = True
        self._failing = False
        self._newest: JobProgress | None = None
        self._writing: asyncio.Task[None] | None = None

    def report(
        self, progress: float | None, total: float | None = None, message: str | None = None
    ) -> None:
        """Have it written. What is not finite is left out.

        Raises:
            asyncio.CancelledError: nothing is written any more.
            TypeError, ValueError: it is no number.
        """
        self._check_open()
        newest = JobProgress(_number(progress), _number(total), message and str(message))
        self._newest = newest if self._newest is None else self._newest.then(newest)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_newest())

    async def fenced(self, write: Callable[[], Awaitable[object]]) -> None:
        """Await a *write* that is fenced by the turn; a rejected one ends the work.

        Raises:
            asyncio.CancelledError: it was rejected, or the work was over before.
        """
        self._check_open()
        try:
            await write()
        except IllegalTransition as rejected:
            # Without `stop`: the exception ends the work already, and a second cancellation would
            # interrupt what it does for its end.
            self._open, self.refused = False, True
            raise asyncio.CancelledError("another attempt has taken over") from rejected

    def _check_open(self) -> None:
        if not self._open:
            raise asyncio.CancelledError("the work is over, or somebody else's")

    async def close(self) -> JobProgress:
        """Write nothing any more, and return what was not written yet."""
        self._open = False
        self._stop = _nothing  # it leads to the work, whose exception leads here: a cycle
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        return self._newest or JobProgress()

    async def _write_newest(self) -> None:
        while (newest := self._newest) is not None:
            pace = _PACE
            try:
                await self._write(newest)
            except IllegalTransition:
                self._open = False
                self.refused = True
                self._stop()
                return
            except StoreError as error:
                if not self._failing:  # log once: it is retried until the store accepts it
                    logger.warning("progress was not written: %s", error)
                self._failing, pace = True, _RESPITE
            else:
                self._failing = False
                if self._newest is newest:
                    self._newest = None
            await asyncio.sleep(pace)
        self._writing = None


def _number(value: float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if isfinite(number) else None


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_SCRIPT: Final = "__main__:"
_functions: dict[str, "JobFunction[Any, Any]"] = {}


class Options(TypedDict, total=False):
    """How a function's jobs are worked on, as in `Job`; `name` is what it is found by."""

    name: str
    queue: str
    timeout: float
    retries: int
    backoff: float
    max_backoff: float
    jitter: float


class JobFunction(Generic[P, R_co]):
    """A function under `@job`. Called, it is that function; `job` makes work for an engine of it.

    name: what it is found by. is_async: whether it runs in the event loop, not in a thread.
    """

    def __init__(
        self, function: Callable[Concatenate[Run, P], R_co], **options: Unpack[Options]
    ) -> None:
        self.home = f"{function.__module__}:{function.__qualname__}"
        self.is_async = inspect.iscoroutinefunction(function)
        self._function = function
        self._template = _template(self.home, options)
        self._signature = _signature(self.name, function)
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __call__(self, run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, here and now."""
        return self._function(run, *args, **kwargs)

    @property
    def name(self) -> str:
        """What it is found by."""
        return self._template.name

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check that the function accepts *arguments*, which may come from another release.

        Raises:
            TypeError: it does not; the message says which.
        """
        self._signature.bind(**arguments)

    @overload
    def job(
        self: "JobFunction[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]: ...
    @overload
    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]: ...
    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any]:
        """Return the work of calling it with these arguments, which are JSON.

        Raises:
            TypeError: it does not take these arguments, or one is not JSON; says which, and where
                in it, such as `url.items[2].at`.
        """
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        for name, value in arguments.items():
            check_json(name, value)
            try:
                msgspec.msgpack.encode(value)
            except (OverflowError, ValueError) as error:  # 2**64, half of a surrogate pair
                raise ContractError(f"{name} cannot be kept: {error}") from error
        return replace(self._template, arguments=arguments)


@overload
def job(function: Callable[Concatenate[Run, P], R], /) -> JobFunction[P, R]: ...
@overload
def job(
    **options: Unpack[Options],
) -> Callable[[Callable[Concatenate[Run, P], R]], JobFunction[P, R]]: ...
def job(function: Any = None, /, **options: Unpack[Options]) -> Any:
    """Register a function as a job: work that an engine delivers to a worker, here or elsewhere.

        @job(timeout=3600, retries=2)
        async def transcribe(run: Run, url: str) -> str: ...

        return transcribe.job(url=url).then(self.done)

    The first parameter is the `Run`; the others, and the return value, are JSON. A `def` function
    runs in a thread. A worker finds the function by `name`, by default `module:qualname`, and
    therefore has to import the module: give a name to a function of a script, whose module is
    `__main__`. The other options are described in `Job`.

    Raises:
        ConfigurationError: another function has that name, or it is a function of a script and has
            none; a parameter cannot be passed by name, or an option is wrong.
    """
    if function is None:
        return partial(_registered, options)
    return _registered(options, function)


def find(name: str) -> JobFunction[Any, Any] | None:
    """Return the function that jobs call *name*, None if no module imported here has it."""
    return _functions.get(name)


def _registered(options: Options, function: Any) -> JobFunction[Any, Any]:
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@job is for functions, not for {function!r}")
    made: JobFunction[Any, Any] = JobFunction(function, **options)
    if made.name.startswith(_SCRIPT):
        raise ConfigurationError(
            f"@job: {made.name} is a function of a script, whose module has no name by which a "
            f"worker could import it: give it one, @job(name=...), or move it to a module"
        )
    known = _functions.get(made.name)
    if known is not None and known.home != made.home:  # the same once more is a reload
        raise ConfigurationError(
            f"@job: {known.home} and {made.home} are both called {made.name!r}; give one another "
            f"name"
        )
    _functions[made.name] = made
    return made


def _template(name: str, options: Options) -> Job:
    if unknown := options.keys() - Options.__annotations__.keys():
        raise ConfigurationError(f"{name}: @job takes no {', '.join(sorted(unknown))}")
    template = replace(Job(name=name, arguments={}), **options)
    try:
        # What a worker could not read is refused here.
        msgspec.convert(msgspec.to_builtins(template), Job)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name}: @job: {error}") from None
    if template.timeout is not None and template.timeout <= 0:
        raise ConfigurationError(f"{name}: timeout must be positive, not {template.timeout!r}")
    for option in ("retries", "backoff", "max_backoff"):
        if getattr(template, option) < 0:
            raise ConfigurationError(f"{name}: {option} must not be negative")
    if template.backoff > template.max_backoff:
        raise ConfigurationError(
            f"{name}: backoff={template.backoff!r} is longer than "
            f"max_backoff={template.max_backoff!r}"
        )
    if not 0 <= template.jitter <= 1:
        raise ConfigurationError(f"{name}: jitter must be from 0 to 1, not {template.jitter!r}")
    return template


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{name} yields; a job returns what it gives")
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise ConfigurationError(f"{name} needs a first parameter, which gets the Run")
    run = parameters.pop(0)
    if run.name in ("self", "cls"):
        raise ConfigurationError(f"{name} is a method, which no other process can find")
    for parameter in parameters:
        if parameter.kind not in _NAMED:
            raise ConfigurationError(
                f"{name}: parameter {parameter}: each argument needs a name it can be passed by"
            )
    return signature.replace(parameters=parameters)
