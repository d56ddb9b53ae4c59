"""Functions that run as jobs: found again by name, in whatever process works on them."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, update_wrapper
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypedDict, TypeVar, overload

import msgspec
from msgspec.structs import replace
from typing_extensions import Unpack

from genmcp.core.json_value import check_json
from genmcp.core.waiting import Job
from genmcp.errors import ConfigurationError, ContractError
from genmcp.tasks.run import Run

__all__ = ["Job", "JobFunction", "find", "job"]

P = ParamSpec("P")
R = TypeVar("R")
# Covariant: pyright infers `CoroutineType` for an `async def`, a subtype of `Coroutine`.
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

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
