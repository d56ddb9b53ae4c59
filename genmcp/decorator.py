"""What is behind `@tool` and `@prompt`: something made of a function, and found by it again."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from genmcp.continuing import check_goes_on
from genmcp.errors import ConfigurationError
from genmcp.signature import Signature, check_bound, name_of

__all__ = ["Decorated", "Decorator"]


class Decorated(msgspec.Struct, frozen=True):
    """A function under a decorator: what it says, and the *attributes* that it may not say."""

    function: Callable[..., Any]
    signature: Signature
    attributes: Mapping[str, Any]

    def describe(self, made: Any) -> None:
        """Let what was *made* of the function say of itself what is said here."""
        made.__name__ = name_of(self.function)
        made.name = self.function.__name__
        made.description = inspect.getdoc(self.function) or None
        for key, value in self.attributes.items():
            setattr(made, key, value)


class Made(Protocol):
    """What a decorator makes of a function."""

    decorated: Decorated

    def __init__(self, decorated: Decorated) -> None: ...


M = TypeVar("M", bound=Made)


class Decorator(msgspec.Struct, Generic[M], frozen=True):
    """A decorator of functions.

    name: what it is called, and what it makes. attributes: the names of what it takes beside the
    function. of_def, of_async: the classes of what it makes of a `def` and of an `async def`.
    check: raises a ConfigurationError for what says something wrong of itself. others: what else
    is one, in words.
    """

    name: str
    attributes: frozenset[str]
    of_def: type[M]
    of_async: type[M]
    check: Callable[[M], object]
    others: str

    def decorate(self, function: Any, attributes: Mapping[str, Any]) -> Any:
        """Return *function*, of which something is made; without one, what does so to another.

        Raises:
            ConfigurationError: it is no function, or nothing can be made of it.
        """
        if function is None:
            return partial(self._marked, attributes=attributes)
        return self._marked(function, attributes)

    def made_of(self, function: Any) -> M:
        """Return what was made of *function*.

        Raises:
            ConfigurationError: nothing was, or it is a method without its instance.
        """
        made = getattr(function, self._mark, None)
        if not isinstance(made, self.of_def | self.of_async):
            raise ConfigurationError(
                f"{function!r} is not a {self.name}: give {self.others}, or a function under "
                f"@{self.name}"
            )
        decorated = made.decorated
        if decorated.function is not function:  # a method of an instance, or another decorator's
            made = self._make(function, decorated.attributes)
        check_bound(function)
        return made

    @property
    def _mark(self) -> str:
        return f"__genmcp_{self.name}__"

    def _marked(self, function: Any, attributes: Mapping[str, Any]) -> Any:
        if not inspect.isfunction(function):
            raise ConfigurationError(f"@{self.name} is for functions, not for {function!r}")
        setattr(function, self._mark, self._make(function, attributes))
        return function

    def _make(self, function: Callable[..., Any], attributes: Mapping[str, Any]) -> M:
        owner = name_of(function)
        if unknown := attributes.keys() - self.attributes:
            raise ConfigurationError(f"{owner}: @{self.name} takes no {', '.join(sorted(unknown))}")
        signature = Signature.of(function, decorator=f"@{self.name}")
        check_goes_on(owner, function, goes_on=False)
        kind = self.of_async if inspect.iscoroutinefunction(function) else self.of_def
        made = kind(Decorated(function, signature, attributes))
        self.check(made)  # so that what is wrong is told where it stands
        return made
