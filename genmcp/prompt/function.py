"""Prompts made from plain functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.decorator import Decorated, Decorator, Made, Stepped
from genmcp.hook import Visible
from genmcp.prompt.prompt import Prompt, PromptRoute
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope
from genmcp.tool import Call

__all__ = ["prompt", "prompt_of"]

P = ParamSpec("P")
R = TypeVar("R")


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
def prompt(function: Callable[P, R], /) -> Stepped[P, R]: ...
@overload
def prompt(
    **attributes: Unpack[Attributes],
) -> Callable[[Callable[P, R]], Stepped[P, R]]: ...
def prompt(function: Any = None, /, **attributes: Any) -> Any:
    """Make a prompt of a function, and return the function unharmed.

        @prompt
        async def review(code: str, language: Literal["python", "rust"] = "python") -> str:
            \"\"\"Asks for a review.\"\"\"
            return f"Review this {language} code:\\n{code}"

    Its name, docstring and type hints become the prompt's name, description and arguments; a
    parameter annotated `Channel` gets the channel. *attributes* are those of `Prompt`. One that has
    to wait continues in a step, `@review.step`, as a function under `@tool` does.

    A method may be decorated too; what is registered is then the method of an instance.

    Raises:
        ConfigurationError: it is not a function, a parameter cannot be passed by name, a type is
            not JSON, or an attribute is wrong.
    """
    return _PROMPT.decorate(function, attributes)


def prompt_of(function: Any) -> Prompt[Any]:
    """Return the prompt that `@prompt` made of *function*.

    Raises:
        ConfigurationError: it is not under `@prompt`, or is a method without its instance.
    """
    return _PROMPT.made_of(function)


class FunctionPrompt(Made, Prompt[Any]):
    """A prompt whose arguments are a function's parameters."""

    def __init__(self, decorated: Decorated) -> None:
        self.arguments = decorated.signature.arguments
        super().__init__(decorated)

    def get(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self._function(**self._given(request.arguments, channel))


class AsyncFunctionPrompt(FunctionPrompt):
    """The same of an `async def`, which needs no thread."""

    async def get(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return await self._function(**self._given(request.arguments, channel))


_PROMPT: Final = Decorator(
    name="prompt",
    attributes=frozenset(Attributes.__annotations__),
    of_def=FunctionPrompt,
    of_async=AsyncFunctionPrompt,
    check=PromptRoute.of,
    others="a Prompt class, an instance, a PromptTemplate, a PromptRepo",
)
