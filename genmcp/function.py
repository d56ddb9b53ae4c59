"""Tools made from plain functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import (
    Any,
    Final,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    get_origin,
    is_typeddict,
    overload,
)

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import CONTENT
from genmcp.decorator import Decorated, Decorator, Made, Stepped
from genmcp.hook import Visible
from genmcp.policy import OnLost, TaskUse
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope
from genmcp.protocol.tools import ToolAnnotations
from genmcp.schema.arguments import Extra
from genmcp.schema.schema import Formats
from genmcp.tool import Call, Tool, ToolRoute

__all__ = ["tool", "tool_of"]

P = ParamSpec("P")
R = TypeVar("R")


class Attributes(TypedDict, total=False):
    """What a function's name, docstring and hints may not give; the last two are functions too."""

    name: str
    title: str
    description: str
    annotations: ToolAnnotations | Mapping[str, Any]
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    output_schema: Mapping[str, Any] | type
    formats: Formats
    extra_arguments: Extra
    on_disconnect: Literal["finish", "cancel"]
    task: TaskUse
    requires_tasks: bool
    patience: float
    hold: float | Literal["auto"] | None
    ttl: float
    once: bool
    on_lost: OnLost | None
    cache_ttl: float
    cache_scope: CacheScope
    visible: Visible
    on_cancel: Callable[[Channel], Any]


@overload
def tool(function: Callable[P, R], /) -> Stepped[P, R]: ...
@overload
def tool(
    **attributes: Unpack[Attributes],
) -> Callable[[Callable[P, R]], Stepped[P, R]]: ...
def tool(function: Any = None, /, **attributes: Any) -> Any:
    """Make a tool of a function, and return the function unharmed.

        @tool
        async def forecast(city: str, days: int = 3, *, channel: Channel) -> str:
            \"\"\"Tells the weather of the next days.\"\"\"

    Its name, docstring and type hints become the tool's name, description and input schema; a
    parameter annotated `Channel` gets the channel. A return type that is a struct, dataclass,
    TypedDict or pydantic model becomes the output schema. *attributes* are those of `Tool`.

    A call that has to wait returns a wait, as a method would, and continues in a step, which gets
    the value that came, and the arguments it names:

        @tool
        async def book(room: str) -> Continue:
            return elicit(f"Book {room}?", Wish).then(sure)

        @book.step
        async def sure(wish: Wish, room: str) -> str: ...

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


class FunctionTool(Made, Tool[Any]):
    """A tool whose arguments are a function's parameters."""

    def __init__(self, decorated: Decorated) -> None:
        self.input_schema = decorated.signature.arguments
        if _is_data(decorated.signature.returned):
            self.output_schema = decorated.signature.returned
        super().__init__(decorated)

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
