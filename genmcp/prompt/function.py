"""Prompts made from plain functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError
from genmcp.hook import Visible
from genmcp.prompt.prompt import Prompt, PromptRoute
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope
from genmcp.signature import Signature, check_bound, name_of
from genmcp.tool import Call

__all__ = ["prompt", "prompt_of"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__genmcp_prompt__"


class Attributes(TypedDict, total=False):
    """What a function's name, docstring and hints may not give; some are functions too."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    completions: Mapping[str, Sequence[str]]
    complete: Callable[[str, str, Mapping[str, str], Channel], Any]
    cache_ttl: float
    cache_scope: CacheScope
    visible: Visible


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(**attributes: Unpack[Attributes]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **attributes: Any) -> Any:
    """Make a prompt of a function, and return the function unharmed.

        @prompt
        async def review(code: str, language: Literal["python", "rust"] = "python") -> str:
            \"\"\"Asks for a review.\"\"\"
            return f"Review this {language} code:\\n{code}"

    Its name, docstring and type hints become the prompt's name, description and arguments; a
    parameter annotated `Channel` gets the channel. *attributes* are those of `Prompt`.

    A method may be decorated too; what is registered is then the method of an instance.

    Raises:
        ConfigurationError: it is not a function, a parameter cannot be passed by name, a type is
            not JSON, or an attribute is wrong.
    """
    if function is None:
        return partial(_marked, attributes)
    return _marked(attributes, function)


def prompt_of(function: Any) -> Prompt[Any]:
    """Return the prompt that `@prompt` made of *function*.

    Raises:
        ConfigurationError: it is not under `@prompt`, or is a method without its instance.
    """
    made = getattr(function, _MARK, None)
    if not isinstance(made, FunctionPrompt):
        raise ConfigurationError(
            f"{function!r} is not a prompt: give a Prompt class, an instance, a PromptTemplate, a "
            f"PromptRepo, or a function under @prompt"
        )
    if made.function is not function:  # a method of an instance, or what another decorator made
        made = _made(function, made.attributes)
    check_bound(function)
    return made


class FunctionPrompt(Prompt[Any]):
    """A prompt whose arguments are a function's parameters."""

    def __init__(self, function: Callable[..., Any], attributes: Mapping[str, Any]) -> None:
        self.function = function
        self.attributes = attributes
        self.__name__ = name_of(function)
        if unknown := attributes.keys() - Attributes.__annotations__.keys():
            raise ConfigurationError(
                f"{self.__name__}: @prompt takes no {', '.join(sorted(unknown))}"
            )
        self._signature = Signature.of(function, decorator="@prompt")
        self.name = function.__name__
        self.description = inspect.getdoc(function) or None
        self.arguments = self._signature.arguments
        for key, value in attributes.items():
            setattr(self, key, value)

    def get(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self.function(**self._signature.given(request.arguments, channel))


class AsyncFunctionPrompt(FunctionPrompt):
    """The same of an `async def`, which needs no thread."""

    async def get(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return await self.function(**self._signature.given(request.arguments, channel))


def _marked(attributes: Mapping[str, Any], function: Any) -> Any:
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@prompt is for functions, not for {function!r}")
    setattr(function, _MARK, _made(function, attributes))
    return function


def _made(function: Callable[..., Any], attributes: Mapping[str, Any]) -> FunctionPrompt:
    kind = AsyncFunctionPrompt if inspect.iscoroutinefunction(function) else FunctionPrompt
    made = kind(function, attributes)
    PromptRoute.of(made)  # so that what is wrong is told where it stands
    return made
