"""Tools made from plain functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, get_origin, is_typeddict, overload

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import CONTENT
from genmcp.errors import ConfigurationError
from genmcp.hook import Visible
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope
from genmcp.protocol.tools import ToolAnnotations
from genmcp.signature import Signature, check_bound, name_of
from genmcp.tool import Call, Tool, ToolRoute

__all__ = ["tool", "tool_of"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__genmcp_tool__"


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
    if function is None:
        return partial(_marked, attributes)
    return _marked(attributes, function)


def tool_of(function: Any) -> Tool[Any]:
    """Return the tool that `@tool` made of *function*.

    Raises:
        ConfigurationError: it is not under `@tool`, or is a method without its instance.
    """
    made = getattr(function, _MARK, None)
    if not isinstance(made, FunctionTool):
        raise ConfigurationError(
            f"{function!r} is not a tool: give a Tool class, an instance, or a function under @tool"
        )
    if made.function is not function:  # a method of an instance, or what another decorator made
        made = _made(function, made.attributes)
    check_bound(function)
    return made


class FunctionTool(Tool[Any]):
    """A tool whose arguments are a function's parameters."""

    def __init__(self, function: Callable[..., Any], attributes: Mapping[str, Any]) -> None:
        self.function = function
        self.attributes = attributes
        self.__name__ = name_of(function)
        if unknown := attributes.keys() - Attributes.__annotations__.keys():
            raise ConfigurationError(
                f"{self.__name__}: @tool takes no {', '.join(sorted(unknown))}"
            )
        self._signature = Signature.of(function, decorator="@tool")
        self.name = function.__name__
        self.description = inspect.getdoc(function) or None
        self.input_schema = self._signature.arguments
        if _is_data(self._signature.returned):
            self.output_schema = self._signature.returned
        for key, value in attributes.items():
            setattr(self, key, value)

    def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self.function(**self._signature.given(request.arguments, channel))


class AsyncFunctionTool(FunctionTool):
    """The same of an `async def`, which needs no thread."""

    async def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return await self.function(**self._signature.given(request.arguments, channel))


def _marked(attributes: Mapping[str, Any], function: Any) -> Any:
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@tool is for functions, not for {function!r}")
    setattr(function, _MARK, _made(function, attributes))
    return function


def _made(function: Callable[..., Any], attributes: Mapping[str, Any]) -> FunctionTool:
    kind = AsyncFunctionTool if inspect.iscoroutinefunction(function) else FunctionTool
    made = kind(function, attributes)
    ToolRoute.of(made)  # so that what is wrong is told where it stands
    return made


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
