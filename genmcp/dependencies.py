"""Dependencies: values that hooks, steps and jobs need, such as a database session.

    async def open_session() -> AsyncIterator[Session]:
        async with Session(engine) as session:
            yield session

    @tool
    async def find(name: str, session: Annotated[Session, Depends(open_session)]) -> Part: ...

A dependency is created for each call of the function that names it, and closed when that function
ends. The parameter is no argument of a client: no schema contains it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache, partial, wraps
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from genmcp.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


class Dependency(msgspec.Struct, frozen=True):
    """The mark of a parameter that gets the value of *function*. Created by `Depends`."""

    function: Callable[..., Any]


def Depends(function: Callable[..., Any]) -> Any:  # noqa: N802 - it reads as a type
    """Mark a parameter that gets the value of *function*, instead of an argument.

        session: Annotated[Session, Depends(open_session)]
        session: Session = Depends(open_session)

    Use the second form in hooks of classes and in jobs: type checkers then know that callers need
    not pass it.

    *function* is a `def` or an `async def`, a class, or an instance with `__call__`. If it yields
    once, the code after the `yield` runs when the function that depends on it has ended, with its
    exception if it raised one; the call fails even if that exception is caught there. It may have
    parameters that are annotated `Channel` (`Run` in a job), and dependencies of its own. Within a
    call each function is called once, however many parameters depend on it.

    A parameter that is marked by FastAPI's `Depends` is a dependency, too, unless its function
    takes something of an HTTP request.

    In an `async def` hook, a `def` dependency runs in a thread. In a `def` hook, which runs in a
    thread itself, dependencies run in the same thread; they must not be `async def`.

    Raises:
        ConfigurationError: *function* cannot be called.
    """
    return _dependency(function)


def _dependency(function: Any) -> Dependency:
    if not callable(function):
        raise ConfigurationError(f"Depends takes a function, not {function!r}")
    return Dependency(function)


_replaced: dict[Callable[..., Any], Callable[..., Any]] = {}


@contextmanager
def replace_dependency(
    function: Callable[..., Any], replacement: Callable[..., Any]
) -> Iterator[None]:
    """Use *replacement* for the dependency *function* within the block, in this whole process."""
    before = _replaced.get(function)
    _replaced[function] = replacement
    try:
        yield
    finally:
        if before is None:
            del _replaced[function]
        else:
            _replaced[function] = before


def injected(function: F, context: type) -> F:
    """Return *function* with its dependencies filled in; *function* itself if it has none.

    Args:
        function: a hook or a job. One of its arguments is an instance of *context*.
        context: the type that dependencies may take as an argument: `Channel` or `Run`.

    Raises:
        ConfigurationError: a dependency has a parameter that cannot be filled in; or it is async,
            and *function* is not.
    """
    if not dependencies_of(function):
        return function
    call = with_context(function, context)
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def hook(*args: Any, **kwargs: Any) -> Any:
            return await call(_instance(context, args), *args, **kwargs)

    else:

        @wraps(function)
        def hook(*args: Any, **kwargs: Any) -> Any:
            return call(_instance(context, args), *args, **kwargs)

    return cast(F, hook)


def with_context(function: Callable[..., Any], context: type) -> Callable[..., Any]:
    """Return a function that takes an instance of *context* and then the arguments of *function*.

    It fills in the dependencies of *function*, and is an `async def` if *function* is.

    Raises:
        ConfigurationError: as for `injected`.
    """
    wanted = dependencies_of(function)
    in_loop = inspect.iscoroutinefunction(function)
    for each in wanted.values():
        _check(function, each.function, context, in_loop=in_loop)

    async def call(given: Any, /, *args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as stack:
            try:
                values = _CallScope(context, given, stack, in_loop=in_loop)
                for name, each in wanted.items():
                    if name not in kwargs:  # a direct call may pass it
                        kwargs[name] = await values.get(each.function)
                value = function(*args, **kwargs)
                return await value if in_loop else value
            except BaseException as error:
                failure = error
                raise
        raise failure  # a dependency has caught it, but the call has no result

    def call_in_thread(given: Any, /, *args: Any, **kwargs: Any) -> Any:
        # There is nothing to wait for in a thread, so that the coroutine runs to its end at once.
        try:
            call(given, *args, **kwargs).send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError(f"{function!r} has waited in a thread")

    return call if in_loop else call_in_thread


def _instance(kind: type, arguments: tuple[Any, ...]) -> Any:
    return next((each for each in arguments if isinstance(each, kind)), None)


def dependencies_of(function: Callable[..., Any]) -> Mapping[str, Dependency]:
    """Return the parameters of *function* that are dependencies."""
    return _dependencies_of(getattr(function, "__func__", function))


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of *function* without its dependencies."""
    signature = inspect.signature(function)
    hidden = dependencies_of(function)
    parameters = signature.parameters.items()
    return signature.replace(parameters=[each for name, each in parameters if name not in hidden])


@cache
def _dependencies_of(function: Callable[..., Any]) -> Mapping[str, Dependency]:
    found: dict[str, Dependency] = {}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return found
    hints = hints_of(function)
    for name, parameter in parameters.items():
        for each in (parameter.default, *_notes_of(hints.get(name))):
            if (dependency := _dependency_of(each)) is not None:
                found[name] = dependency
    return found


def _dependency_of(mark: Any) -> Dependency | None:
    """Return the dependency that *mark* stands for; FastAPI's `Depends` is one as well."""
    if isinstance(mark, Dependency):
        return mark
    if _is_of_fastapi(mark) and callable(getattr(mark, "dependency", None)):
        return _dependency(mark.dependency)
    return None


def _is_of_fastapi(mark: Any) -> bool:
    """Return whether *mark* is one of FastAPI's, such as `Depends` or `Header`."""
    return any(each.__module__ == "fastapi.params" for each in type(mark).__mro__)


def _notes_of(hint: Any) -> Sequence[Any]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of *function*; none if one of them cannot be read."""
    try:
        return get_type_hints(_code_of(function), include_extras=True)
    except (AttributeError, NameError, SyntaxError, TypeError):
        return {}  # names that exist only for type checkers


def _check(owner: Any, function: Any, context: type, *, in_loop: bool) -> None:
    """Check that *function*, a dependency of *owner*, can be called there."""
    name, of = (getattr(each, "__qualname__", repr(each)) for each in (function, owner))
    own = dependencies_of(function)
    hints = hints_of(function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(f"{of}: its dependency {name} has no signature") from None
    for each in parameters.values():
        hint = hints.get(each.name)
        if each.name in own:
            _check(function, own[each.name].function, context, in_loop=in_loop)
        elif (each.default is each.empty and _type_of(hint) is not context) or any(
            # FastAPI would replace the default, such as the truthy object `Header(False)`.
            map(_is_of_fastapi, (each.default, *_notes_of(hint)))
        ):
            raise ConfigurationError(
                f"{of}: its dependency {name} has a parameter {each.name} that nobody passes: "
                f"annotate it {context.__name__}, make it a dependency, or give it a default; "
                f"there is no HTTP request here: let the host set a value in request.state, copy "
                f"it by Endpoint(copy_assigns=[...]), and read it from channel.assigns"
            )
    if not in_loop and _is_async(function):
        raise ConfigurationError(
            f"{of}: its dependency {name} is async: make {of} an async def as well"
        )


def _code_of(function: Any) -> Any:
    """Return the function that runs when *function* is called: its annotations and kind count."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        return cast(Any, function).__init__
    return function if inspect.isroutine(function) else type(function).__call__


def _is_async(function: Any) -> bool:
    function = _code_of(function)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _type_of(hint: Any) -> Any:
    return get_origin(hint) or hint


class _CallScope:
    """The dependencies of one call, each created at its first use and closed by *stack*."""

    def __init__(self, context: type, given: Any, stack: AsyncExitStack, *, in_loop: bool) -> None:
        self._context = context
        self._given = given
        self._stack = stack
        self._in_loop = in_loop
        self._in_thread = _to_thread if given is None else given.in_thread
        self._made: dict[Any, Any] = {}

    async def get(self, function: Any) -> Any:
        """Return the value of *function*. On the event loop, a `def` runs in a thread."""
        if function not in self._made:
            used = _used(function)
            arguments = self._own_arguments(used)
            for name, each in dependencies_of(used).items():
                arguments[name] = await self.get(each.function)
            self._made[function] = await self._enter(used, arguments)
        return self._made[function]

    async def _enter(self, function: Any, arguments: Mapping[str, Any]) -> Any:
        if not self._in_loop and _is_async(function):
            raise ConfigurationError(f"{function!r} is async, and replaces a def in a thread")
        code = _code_of(function)
        if inspect.isasyncgenfunction(code):
            context = asynccontextmanager(function)(**arguments)
            return await self._stack.enter_async_context(context)
        if inspect.iscoroutinefunction(code):
            return await function(**arguments)
        if inspect.isgeneratorfunction(code):
            blocking = contextmanager(function)(**arguments)
            if self._in_loop:
                return await self._stack.enter_async_context(_in_threads(blocking, self._in_thread))
            return self._stack.enter_context(blocking)
        if self._in_loop:
            return await self._in_thread(partial(function, **arguments))
        return function(**arguments)

    def _own_arguments(self, function: Any) -> dict[str, Any]:
        """Return the channel or run for the parameters of *function* that are annotated so."""
        hints = hints_of(function)
        return {
            name: self._given
            for name, hint in hints.items()
            if name != "return" and _type_of(hint) is self._context
        }


def _used(function: Any) -> Any:
    return _replaced.get(function, function)


async def _to_thread(function: Any, *arguments: Any, closing: bool = False) -> Any:
    """Run *function* for a direct call of a hook or job, which has no channel and no run."""
    return await asyncio.to_thread(function, *arguments)


@asynccontextmanager
async def _in_threads(context: Any, in_thread: Any) -> AsyncIterator[Any]:
    """Enter and exit *context*, which may block, in threads."""
    closing = partial(in_thread, context.__exit__, closing=True)
    opening = asyncio.ensure_future(in_thread(context.__enter__))
    try:
        yield await _settled(opening)
    except BaseException as error:
        if opening.exception() is not None:
            raise  # it did not open
        exiting = asyncio.ensure_future(closing(type(error), error, error.__traceback__))
        if not await _settled(exiting):
            raise
    else:
        await _settled(asyncio.ensure_future(closing(None, None, None)))


async def _settled(work: "asyncio.Future[Any]") -> Any:
    """Return the result of *work* in a thread, which cannot be stopped.

    A cancellation is raised when the thread has ended: what it has opened must be closed, and what
    it still uses must not be.
    """
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return work.result()
