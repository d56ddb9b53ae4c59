"""Tools made from plain functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, Literal, TypedDict, TypeVar, get_origin, is_typeddict, overload

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import CONTENT
from genmcp.decorator import Decorated, Decorator
from genmcp.hook import Visible
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope
from genmcp.protocol.tools import ToolAnnotations
from genmcp.tool import Call, Tool, ToolRoute

__all__ = ["tool", "tool_of"]

F = TypeVar("F", bound=Callable[..., Any])


class Attributes(TypedDict, total=False):
    """What a function's name, docstring and hints may not give; `visible` is a function too."""

    name: str
    title: str
    description: str
    annotations: ToolAnnotations | Mapping[str, Any]
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    output_schema: Mapping[str, Any] | type
    on_disconnect: Literal["finish", "cancel"]
    cache_ttl: float
    cache_scope: CacheScope
    visible: Visible


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**attributes: Unpack[Attributes]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **attributes: Any) -> Any:
    """Make a tool of a function, and return the function unharmed.

        @tool
        async def forecast(city: str, days: int = 3, *, channel: Channel) -> str:
            \"\"\"Tells the weather of the next days.\"\"\"

    Its name, docstring and type hints become the tool's name, description and input schema; a
    parameter annotated `Channel` gets the channel. A return type that is a struct, dataclass,
    TypedDict or pydantic model becomes the output schema. *attributes* are those of `Tool`.

    A method may be decorated too; what is registered is then the method of an instance.

    Raises:
        ConfigurationError: it is not a function, a parameter cannot be passed by name, a type is
            not JSON, or an attribute is wrong.
    """
    return _TOOL.decorate(function, attributes)


def tool_of(function: Any) -> Tool[Any]:
    """Return the tool that `@tool` made of *function*.

    Raises:
        ConfigurationError: it is not under `@tool`, or is a method without its instance.
    """
    return _TOOL.made_of(function)


class FunctionTool(Tool[Any]):
    """A tool whose arguments are a function's parameters."""

    def __init__(self, decorated: Decorated) -> None:
        self.decorated = decorated
        self._function = decorated.function
        self._given = decorated.signature.given
        self.input_schema = decorated.signature.arguments
        if _is_data(decorated.signature.returned):
            self.output_schema = decorated.signature.returned
        decorated.describe(self)

    def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self._function(**self._given(request.arguments, channel))


class AsyncFunctionTool(FunctionTool):
    """The same of an `async def`, which needs no thread."""

    async def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return await self._function(**self._given(request.arguments, channel))


_TOOL: Final = Decorator(
    name="tool",
    attributes=frozenset(Attributes.__annotations__),
    of_def=FunctionTool,
    of_async=AsyncFunctionTool,
    check=ToolRoute.of,
    others="a Tool class, an instance",
)


def _is_data(hint: Any) -> bool:
    """Whether what is of type *hint* is one object of data, and not content."""
    kind = get_origin(hint) or hint
    return (
        isinstance(kind, type)
        and not issubclass(kind, CONTENT)
        and (
            issubclass(kind, msgspec.Struct)
            or is_dataclass(kind)
            or is_typeddict(kind)
            or hasattr(kind, "__pydantic_validator__")
        )
    )
