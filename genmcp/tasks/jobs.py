"""Functions that run as jobs: `@job`, and the `Run` through which a job reports progress."""

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import wait
from copy import copy
from datetime import UTC, datetime
from functools import partial, update_wrapper
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    overload,
)

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar as DefaultTypeVar
from typing_extensions import Unpack

from genmcp._options import check_bounds
from genmcp.binding import GetOwner, bound_values, no_owner
from genmcp.core.waiting import Job
from genmcp.dependencies import hints_of, injected, signature_of
from genmcp.errors import ConfigurationError, ContractError
from genmcp.tasks.progress import ProgressWriter
from genmcp.tasks.values import Codec, codec_of, to_json

__all__ = ["Job", "JobFunction", "Run", "SavedState", "find_job", "job"]

P = ParamSpec("P")
R = TypeVar("R")
# Covariant: pyright infers `CoroutineType` for an `async def`, a subtype of `Coroutine`.
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = DefaultTypeVar("S", default=Any)

_TYPE_OF_PARAMETER: Final = "annotate the parameter of the job with its type"
_TYPE_OF_STATE: Final = "annotate the first parameter of the job with its type, as run: Run[State]"


class SavedState(msgspec.Struct, eq=False):
    """The state that a job has saved, as JSON. Owned by one attempt.

    write: stores a new state. limit: the maximum size of a state in bytes. codec: that of the type
    of the state, if the job declares one.
    """

    json: bytes | None
    write: Callable[[bytes], Awaitable[object]]
    limit: int
    codec: Codec | None = None

    def decode(self) -> Any:
        """Return the state, None if there is none."""
        state = None if self.json is None else msgspec.json.decode(self.json)
        return state if self.codec is None or state is None else self.codec.decode(state)

    def encode(self, state: Any) -> bytes:
        """Return *state* as JSON.

        Raises:
            ContractError: it is not JSON, or too large.
        """
        plain = to_json("run.save: state", state, self.codec, _TYPE_OF_STATE)
        try:
            encoded = msgspec.json.encode(plain)
        except ValueError as error:  # the text contains a lone surrogate
            raise ContractError(f"run.save: the state cannot be stored: {error}") from error
        if len(encoded) > self.limit:
            raise ContractError(
                f"run.save: the state has {len(encoded)} bytes as JSON, but the maximum is "
                f"{self.limit} (JobOptions.max_saved_bytes): save a reference to the data, and "
                f"store the data elsewhere"
            )
        return encoded


class Run(msgspec.Struct, Generic[S], frozen=True, eq=False):
    """One attempt at a job, as its function sees it: the first argument of the function.

    S is the type of the state that the job saves, such as `run: Run[Progress]`; default: any JSON.

    A `def` job runs in a thread, where it cannot await. It calls `run.in_loop(run.progress(1, 3))`
    and `run.in_loop(run.save(state))`.

    Args:
        id: the id of the job, the same for each attempt. Use it as an idempotency key for requests
            to other systems.
        attempt: the number of this attempt, counted from 1.
        assigns: the assigns of the call that waits for the job.
        failures: how many earlier attempts have failed. Attempts that ended with a crash or a
            shutdown of their worker do not count.
        retries: how many failures are followed by another attempt: `@job(retries=)`.
        owner: returns the client of the call as an owner of values, which `genmcp.handles` needs.
    """

    id: str
    attempt: int
    assigns: Mapping[str, Any]
    _progress: ProgressWriter
    _loop: asyncio.AbstractEventLoop
    _state: SavedState
    failures: int = 0
    retries: int = 0
    _ends: float | None = None
    owner: GetOwner = no_owner
    _in_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread

    @property
    def time_left(self) -> float | None:
        """The seconds until the time limit of this attempt, at least 0; None: unlimited.

        That is `timeout`, or what is left of `expires` if that is less. It may be read in the
        thread of a `def` job, which no time limit can interrupt.
        """
        return None if self._ends is None else max(0.0, self._ends - self._loop.time())

    async def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress, and let other tasks run.

        Reports are cheap: only the latest report is written, every 0.1 seconds. The last report of
        an attempt is always written.

        Args:
            done: the amount of work that is done; it should increase.
            total: the total amount, if known.
            message: a text for the user.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            TypeError, ValueError: *done* or *total* is not a number.
        """
        self._progress.write_soon(done, total, message)
        await asyncio.sleep(0)

    @property
    def saved(self) -> S | None:
        """The state that this job has saved last, in this attempt or an earlier one, or None.

        Each read decodes it again: changing the returned value has no effect on later reads.
        """
        with bound_values(self.owner):
            state: S | None = self._state.decode()
        return state

    async def save(self, state: S) -> None:
        """Store *state* with the task, in place of the state that was saved before.

        If the job runs again (after a crash or a shutdown of its worker, or as a retry), its next
        attempt finds the state in `saved`. When this returns, the state is stored; it waits while
        the store cannot be reached. Each call is one write. Save after each piece of work that
        should not be repeated, such as a page or a batch, and not in a tight loop. Another job of
        the same call starts without a state.

        Args:
            state: an object of the type that the annotation `run: Run[Progress]` names, such as a
                struct, a dataclass or a pydantic model; without it any JSON value, of which a tuple
                becomes a list. At most `JobOptions.max_saved_bytes` (65536) bytes as JSON.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            ContractError: (a TypeError) *state* has another type, or is too large. Nothing is
                stored, and the state that was saved before is retained.
            StoreError: the store is full, or the client's share of it is used up.
        """
        encoded = self._state.encode(state)
        await self._progress.fenced(partial(self._state.write, encoded))
        self._state.json = encoded
        await asyncio.sleep(0)

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, closing: bool = False
    ) -> Any:
        """Run a blocking *function* in a thread of the worker, as `Channel.in_thread` does.

        The threads of jobs have no queue that can be full: *closing* has no effect.
        """
        return await self._in_thread(function, *arguments)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the worker's event loop and wait for it, from the thread of a `def` job.

        Raises:
            RuntimeError: this is the thread of the event loop (use `await`), or the loop is closed.
        """
        if _running_loop() is self._loop:
            work.close()
            raise RuntimeError("run.in_loop is for `def` jobs; use await in an `async def` job")
        if not self._loop.is_closed():
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
            # A closed loop never completes the future. The wait therefore checks for that.
            while not self._loop.is_closed():
                if wait([done], timeout=0.5).done:
                    return done.result()
        work.close()  # Python would warn that it was never awaited
        raise RuntimeError("the worker's event loop was closed")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Options that belong to the function: no record contains them.
_OF_FUNCTION: Final = ("retry_on", "do_not_retry", "limit_key")
_SCRIPT: Final = "__main__:"
_functions: dict[str, "JobFunction[Any, Any]"] = {}


_NO_RUN: Any = object()


class JobKeywords(TypedDict, total=False):
    """The options of `@job`, as described there."""

    name: str
    queue: str
    delay: float
    expires: float
    timeout: float
    retries: int
    backoff: float
    limit: int
    limit_key: str | Callable[..., object]
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    do_not_retry: type[BaseException] | tuple[type[BaseException], ...]


class JobFunction(Generic[P, R_co]):
    """A function with `@job`. Calling it calls the function; `job` returns a job for a worker.

    Attributes:
        home: its module and qualified name.
        is_async: whether it runs in the event loop, rather than in a thread.
        state_codec, result_codec: convert the state that it saves, and its result; None for JSON.
    """

    def __init__(
        self, function: Callable[Concatenate[Run, P], R_co], **options: Unpack[JobKeywords]
    ) -> None:
        self.home = f"{function.__module__}:{function.__qualname__}"
        self.is_async = inspect.iscoroutinefunction(function)
        self._call = injected(function, Run)
        self._retry_on = _error_types(self.home, "retry_on", options, BaseException)
        self._do_not_retry = _error_types(self.home, "do_not_retry", options, ())
        self._template = _template(self.home, options)
        self._signature = _signature(self.name, function)
        hints, (run, *_) = hints_of(function), signature_of(function).parameters
        self.state_codec = codec_of(f"{self.name}: Run", next(iter(get_args(hints.get(run))), None))
        self.result_codec = codec_of(f"{self.name}: the result", hints.get("return"))
        self._codecs = {
            name: codec
            for name in self._signature.parameters
            if (codec := codec_of(f"{self.name}: parameter {name}", hints.get(name))) is not None
        }
        self._limit_key = options.get("limit_key")
        key = self._limit_key
        if isinstance(key, str) and key not in self._signature.parameters:
            raise ConfigurationError(f"{self.name}: limit_key: there is no parameter {key!r}")
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __call__(self, run: Run = _NO_RUN, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, in this process."""
        if run is _NO_RUN or isinstance(run, str | int | float | dict | list):  # an argument
            name = self.home.rpartition(":")[2]
            raise ContractError(
                f"{name} is a job: return {name}.job(...).then(self.method) from the hook"
            )
        return self._call(run, *args, **kwargs)

    @property
    def name(self) -> str:
        """The name under which workers find the function."""
        return self._template.name

    def options(
        self,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        expires: float | None = None,
        queue: str | None = None,
    ) -> "JobFunction[P, R_co]":
        """Return this function with other options for the jobs that it makes.

            return remind.options(at=tomorrow).job(text).then(self.reminded)

        Args:
            delay: seconds before the job is due, from when the call begins to wait.
            at: the time when it is due, a `datetime` with a time zone, in place of *delay*. A past
                time is now.
            expires: as for `@job`.
            queue: as for `@job`.

        Raises:
            ConfigurationError: an option is wrong.
        """
        if at is not None:
            if not isinstance(at, datetime) or at.tzinfo is None:
                raise ConfigurationError(
                    f"{self.name}: at must be a datetime with a time zone, not {at!r}"
                )
            delay = max(0.0, (at - datetime.now(UTC)).total_seconds())
        given = {"delay": delay, "expires": expires, "queue": queue}
        changes: dict[str, Any] = {key: each for key, each in given.items() if each is not None}
        made = copy(self)
        made._template = _checked(self.name, replace(self._template, **changes))
        return made

    def retries_on(self, error: BaseException) -> bool:
        """Return whether a job that raised *error* is tried again, if it has retries left."""
        return isinstance(error, self._retry_on) and not isinstance(error, self._do_not_retry)

    def arguments_of(
        self, stored: Mapping[str, Any], owner: GetOwner = no_owner
    ) -> Mapping[str, Any]:
        """Return the arguments for the function, of *stored*, which another release may have made.

        Bound values among them belong to *owner*.

        Raises:
            TypeError, ValueError: the function does not accept them.
        """
        self._signature.bind(**stored)
        arguments = dict(stored)
        if typed := self._codecs.keys() & stored.keys():
            with bound_values(owner):
                for name in typed:
                    arguments[name] = self._codecs[name].decode(stored[name])
        return arguments

    @overload
    def job(
        self: "JobFunction[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]: ...
    @overload
    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]: ...
    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any]:
        """Return a job that calls the function with these arguments.

        They are stored as JSON. A parameter that is annotated with another type, such as a struct,
        a dataclass or a pydantic model, gets an equal object of that type.

        Raises:
            TypeError: the function does not accept these arguments, or one has no JSON form; the
                message gives the place in it, such as `url.items[2].at`.
        """
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        stored = {}
        for name, value in arguments.items():
            stored[name] = to_json(name, value, self._codecs.get(name), _TYPE_OF_PARAMETER)
            try:
                msgspec.msgpack.encode(stored[name])
            except (OverflowError, ValueError) as error:  # 2**64, one half of a surrogate pair
                raise ContractError(f"{name} cannot be stored: {error}") from error
        if self._limit_key is None:
            return replace(self._template, arguments=stored)
        return replace(self._template, arguments=stored, limit_key=self._key(arguments))

    def _key(self, arguments: dict[str, Any]) -> str:
        bound = inspect.BoundArguments(self._signature, OrderedDict(arguments))
        bound.apply_defaults()
        key: Any = self._limit_key
        key = bound.arguments[key] if isinstance(key, str) else key(**bound.arguments)
        if isinstance(key, str | int):
            return str(key)
        raise TypeError(f"{self.name}: limit_key must be a text or an integer, not {key!r}")


@overload
def job(function: Callable[Concatenate[Run, P], R], /) -> JobFunction[P, R]: ...
@overload
def job(
    **options: Unpack[JobKeywords],
) -> Callable[[Callable[Concatenate[Run, P], R]], JobFunction[P, R]]: ...
def job(function: Any = None, /, **options: Unpack[JobKeywords]) -> Any:
    """Register a function as a job: work for a worker, in this process or another.

        @job(timeout=3600, retries=2)
        async def transcribe(run: Run, url: str) -> str: ...

        return transcribe.job(url=url).then(self.done)

    The first parameter is the `Run`. The others, and the return value, are stored as JSON: they are
    JSON values, or annotated with types that have a JSON form (structs, dataclasses, pydantic
    models, dates and so on). A `def` function runs in a thread.

    Args:
        function: the function.
        name: the name under which a worker finds it. Default: `module:qualname`, for which the
            worker has to import the module. Required for a function of a script (the module
            `__main__`).
        queue: the queue for its jobs. Default: "default".
        delay: seconds before the job is due. Default 0.
        expires: seconds, from when it is due, within which the job must have ended, with all of its
            attempts and the time in its queue. A job that was not started by then fails with
            `JobExpired`. Default: unlimited.
        timeout: seconds that one attempt may take. Default: unlimited. To return what it has before
            that, a function reads `run.time_left`.
        retries: how often a failed job runs again. Default 0.
        backoff: seconds before the first retry; doubled for each further one, up to an hour, and
            shortened by up to a quarter at random, so that jobs which failed together are not
            retried together. Default 1.
        limit: the maximum number of jobs of this function that run at once, in all processes that
            share the store; or, with *limit_key*, of those with the same key. Further jobs wait, in
            no order, and take no slot of a worker meanwhile. Default: unlimited; 1 if there is a
            *limit_key*.
        limit_key: the name of a parameter, or a function that is called with all arguments by their
            names; its value, a text or an integer, is the key.
        retry_on: the exception types after which the job is tried again; an exceeded *timeout* is a
            `TimeoutError`. Default: all.
        do_not_retry: exception types after which it is not tried again. Default: none.

    Raises:
        ConfigurationError: another function has that name; it is a function of a script without a
            name; a parameter cannot be passed by name; a type has no JSON form; or an option is
            wrong.
    """
    if function is None:
        return partial(_register, options)
    return _register(options, function)


find_job: Final[Callable[[str], JobFunction[Any, Any] | None]] = _functions.get
"""Return the function with a job name, None if no imported module has it."""


def _register(options: JobKeywords, function: Any) -> JobFunction[Any, Any]:
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@job is for functions, not for {function!r}")
    made: JobFunction[Any, Any] = JobFunction(function, **options)
    if made.name.startswith(_SCRIPT):
        raise ConfigurationError(
            f"@job: {made.name} is a function of a script, whose module has no name by which a "
            f"worker could import it: add a name, @job(name=...), or move it to a module"
        )
    known = _functions.get(made.name)
    if known is not None and known.home != made.home:  # the same function again is a reload
        raise ConfigurationError(
            f"@job: {known.home} and {made.home} both have the name {made.name!r}; give one of "
            f"them another name"
        )
    _functions[made.name] = made
    return made


def _template(name: str, options: JobKeywords) -> Job:
    """Return the job without arguments, after checking the options."""
    if unknown := options.keys() - JobKeywords.__annotations__.keys():
        raise ConfigurationError(f"{name}: @job has no option {', '.join(sorted(unknown))}")
    own: dict[str, Any] = {key: each for key, each in options.items() if key not in _OF_FUNCTION}
    if "limit_key" in options:
        own.setdefault("limit", 1)
    if own.get("limit") == 0:  # in the record of a job, that is no limit
        raise ConfigurationError(f"{name}: limit must be at least 1, not 0")
    return _checked(name, replace(Job(name=name, arguments={}), **own))


def _checked(name: str, template: Job) -> Job:
    """Return *template*, after checking its options."""
    check_bounds(template, f"{name}: ")
    try:
        # A worker decodes the job with these types: wrong ones must fail here and not there.
        msgspec.convert(msgspec.to_builtins(template), Job)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name}: @job: {error}") from None
    return template


def _error_types(
    name: str, option: str, options: JobKeywords, default: Any
) -> type[BaseException] | tuple[type[BaseException], ...]:
    given: Any = options.get(option, default)
    types = given if isinstance(given, tuple) else (given,)
    if all(isinstance(each, type) and issubclass(each, BaseException) for each in types):
        return cast("tuple[type[BaseException], ...]", types)
    raise ConfigurationError(f"{name}: {option} must be exception types, not {given!r}")


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without the `Run`, after checking that all arguments have names."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{name} is a generator; a job returns its result")
    signature = signature_of(function)
    parameters = [*signature.parameters.values()]
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise ConfigurationError(f"{name} needs a first parameter for the Run")
    run = parameters.pop(0)
    if run.name in ("self", "cls"):
        raise ConfigurationError(f"{name} is a method, which other processes cannot find")
    hint = hints_of(function).get(run.name, Run)
    if hint is not Any and not hasattr(hint, "progress"):
        raise ConfigurationError(
            f"{name} needs a first parameter for the Run: write {function.__name__}(run: Run, "
            f"{run}, ...)"
        )
    for parameter in parameters:
        if parameter.kind not in _NAMED:
            raise ConfigurationError(f"{name}: parameter {parameter}: arguments are passed by name")
    return signature.replace(parameters=parameters)
