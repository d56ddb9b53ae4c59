"""The common part of `@tool` and `@prompt`: components made of functions, and their steps."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from genmcp.continuing import FunctionStep, HasSteps, Taken, check_goes_on, hint_of
from genmcp.errors import ConfigurationError
from genmcp.signature import Signature, check_bound, is_channel, name_of

__all__ = ["Decorated", "Decorator", "Made", "Stepped"]

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class Stepped(Protocol[P, R_co]):
    """A function under `@tool` or `@prompt`, as type checkers see it.

    It is called as without the decorator.
    """

    __name__: str
    __qualname__: str
    __module__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Stepped[P, R_co]": ...
    @overload
    def __get__(
        self: "Stepped[Concatenate[S, Q], R]", instance: S, owner: type, /
    ) -> "Stepped[Q, R]": ...

    def step(self, function: F, /) -> F:
        """Register *function* as a step in which a call continues: `elicit(...).then(function)`.

            @book.step
            async def sure(wish: Wish, room: str, channel: Channel) -> str: ...

        Its first parameter is the value of the wait. The others are arguments of the decorated
        function, by their names, or annotated `Channel`. The name identifies the step.

        Raises:
            ConfigurationError: a parameter is neither, the function cannot be called with the value
                first and the others by name, or the name is taken.
        """


class Decorated(msgspec.Struct, frozen=True):
    """A function under a decorator.

    attributes: the options given to the decorator. steps: the functions in which it continues.
    """

    function: Callable[..., Any]
    signature: Signature
    attributes: Mapping[str, Any]
    steps: dict[str, FunctionStep]


class Made(HasSteps):
    """A component made of a function by a decorator. Its arguments are those of the function."""

    def __init__(self, decorated: Decorated) -> None:
        function = decorated.function
        self.decorated = decorated
        self.function_steps = decorated.steps
        if inspect.ismethod(function):
            self.bound = (function.__self__,)
        self._function = function
        self._given = decorated.signature.given
        self.__name__ = name_of(function)
        self.name = function.__name__
        self.description = inspect.getdoc(function) or None
        for key, value in decorated.attributes.items():
            setattr(self, key, value)


M = TypeVar("M", bound=Made)


class Decorator(msgspec.Struct, Generic[M], frozen=True):
    """A decorator of functions.

    name: of the decorator and of the kind of component. attributes: the names of its options.
    of_def, of_async: the classes of components made of a `def` and of an `async def`. check: raises
    a ConfigurationError for a component with invalid options. others: what else may be registered
    as this kind, for errors.
    """

    name: str
    attributes: frozenset[str]
    of_def: type[M]
    of_async: type[M]
    check: Callable[[M], object]
    others: str

    def decorate(self, function: Any, attributes: Mapping[str, Any]) -> Any:
        """Attach a component to *function* and return it; without one, return a decorator.

        Raises:
            ConfigurationError: it is not a function, or its signature or the options are invalid.
        """
        if function is None:
            return partial(self._marked, attributes=attributes)
        return self._marked(function, attributes)

    def made_of(self, function: Any) -> M:
        """Return the component of *function*.

        Raises:
            ConfigurationError: it is not decorated, or is a method without its instance.
        """
        made = getattr(function, self._mark, None)
        if not isinstance(made, self.of_def | self.of_async):
            raise ConfigurationError(
                f"{function!r} is not a {self.name}: give {self.others}, or a function under "
                f"@{self.name}"
            )
        decorated = made.decorated
        if decorated.function is not function:  # a method of an instance, or another decorator's
            made = self._make(function, decorated.attributes, decorated.steps)
        check_bound(function)
        owner = name_of(function)
        check_goes_on(owner, function, goes_on=bool(decorated.steps), of_function=True)
        return made

    @property
    def _mark(self) -> str:
        return f"__genmcp_{self.name}__"

    def _marked(self, function: Any, attributes: Mapping[str, Any]) -> Any:
        if not inspect.isfunction(function):
            raise ConfigurationError(f"@{self.name} is for functions, not for {function!r}")
        made = self._make(function, attributes, {})
        setattr(function, self._mark, made)
        function.__dict__["step"] = partial(_add_step, made)
        return function

    def _make(
        self,
        function: Callable[..., Any],
        attributes: Mapping[str, Any],
        steps: dict[str, FunctionStep],
    ) -> M:
        owner = name_of(function)
        if unknown := attributes.keys() - self.attributes:
            raise ConfigurationError(f"{owner}: @{self.name} takes no {', '.join(sorted(unknown))}")
        closed = attributes.get("extra_arguments", "forbid") == "forbid"
        signature = Signature.of(function, decorator=f"@{self.name}", closed=closed)
        kind = self.of_async if inspect.iscoroutinefunction(function) else self.of_def
        made = kind(Decorated(function, signature, attributes, steps))
        self.check(made)  # here, so that the traceback shows the decorated function
        return made


def _add_step(made: Made, function: F) -> F:
    owner, steps = made.__name__, made.decorated.steps
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@{owner}.step is for functions, not for {function!r}")
    name = function.__name__
    if name in steps or hasattr(made, name):
        raise ConfigurationError(
            f"@{owner}.step: a step cannot be called {name}: it is found by its name, and there is "
            f"another {name}"
        )
    kinds = {key: each.kind for key, each in inspect.signature(function).parameters.items()}
    parameters = list(kinds)
    arguments = made.decorated.signature.arguments.__struct_fields__
    place = int(parameters[:1] == ["self"])
    channels = [each for each in parameters if is_channel(hint_of(function, each))]
    first, others = parameters[place : place + 1], parameters[place + 1 :]
    unknown = [each for each in others if each not in channels and each not in arguments]
    unnamed = [each for each in others if kinds[each] is inspect.Parameter.POSITIONAL_ONLY]
    wrong = ""
    if not first:
        wrong = "it has no parameter for the value"
    elif first[0] in channels:
        wrong = f"its first parameter, {first[0]}, is the Channel"
    elif kinds[first[0]] in _BY_NAME:
        wrong = f"its first parameter, {first[0]}, is keyword-only"
    elif unknown:
        wrong = f"{unknown[0]} is neither"
    elif unnamed:
        wrong = f"{unnamed[0]} is positional-only"
    if wrong:
        raise ConfigurationError(
            f"@{owner}.step: {name} must take the value of the wait first, and then, by name, "
            f"arguments of {owner} or parameters annotated Channel; {wrong}"
        )
    names = [each for each in others if each not in channels]
    steps[name] = FunctionStep(function, names, channels, Taken.by(function, place))
    return function
