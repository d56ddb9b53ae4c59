"""Tools made from plain functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, get_type_hints, is_typeddict, overload

import msgspec

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError
from genmcp.protocol.implementation import Icon
from genmcp.protocol.tools import ToolAnnotations
from genmcp.tool import Call, Tool

__all__ = ["tool", "tool_of"]

P = ParamSpec("P")
R = TypeVar("R")

_MARK = "__genmcp_tool__"


class FunctionTool(Tool[Any]):
    """A tool whose arguments are a function's parameters."""

    def __init__(self, function: Callable[..., Any], attributes: Mapping[str, Any]) -> None:
        hints = _hints(function)
        parameters = inspect.signature(function).parameters
        self._function = function
        self._channel = next((name for name in parameters if hints.get(name) is Channel), None)
        fields = [
            _field(function, p, hints) for p in parameters.values() if p.name != self._channel
        ]
        self._fields = tuple(field[0] for field in fields)
        self.name = function.__name__
        self.description = inspect.getdoc(function)
        self.input_schema = msgspec.defstruct(
            f"{function.__name__}_arguments", fields, kw_only=True
        )
        returned = hints.get("return")
        if _is_object_type(returned):
            self.output_schema = returned
        for key, value in attributes.items():
            setattr(self, key, value)
        if inspect.iscoroutinefunction(function):
            self.call = self._call_async  # type: ignore[method-assign]

    def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self._function(**self._arguments(request, channel))

    async def _call_async(self, request: Call[Any], channel: Channel) -> Any:
        return await self._function(**self._arguments(request, channel))

    def _arguments(self, request: Call[Any], channel: Channel) -> dict[str, Any]:
        given = {name: getattr(request.arguments, name) for name in self._fields}
        if self._channel is not None:
            given[self._channel] = channel
        return given


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *,
    name: str = ...,
    title: str = ...,
    description: str = ...,
    annotations: ToolAnnotations = ...,
    icons: Sequence[Icon] = ...,
    meta: Mapping[str, Any] = ...,
    output_schema: Mapping[str, Any] | type = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(function: Any = None, /, **attributes: Any) -> Any:
    """Make a tool of a function, and return the function unharmed.

        @tool
        async def forecast(city: str, days: int = 3, *, channel: Channel) -> str:
            \"\"\"Tells the weather of the next days.\"\"\"

    Its name, docstring and type hints become the tool's name, description and input schema; a
    parameter annotated `Channel` gets the channel. A return type that is a struct, dataclass,
    TypedDict or pydantic model becomes the output schema. *attributes* are those of `Tool`.

    Raises:
        ConfigurationError: a parameter cannot be passed by name, or its type is not JSON.
    """
    if function is None:
        return lambda decorated: tool_marked(decorated, attributes)
    return tool_marked(function, attributes)


def tool_marked(function: Any, attributes: Mapping[str, Any]) -> Any:
    """Attach the tool to its *function*."""
    setattr(function, _MARK, FunctionTool(function, attributes))
    return function


def tool_of(function: Any) -> Tool[Any]:
    """Return the tool that `@tool` made of *function*.

    Raises:
        ConfigurationError: it is not under `@tool`.
    """
    made = getattr(function, _MARK, None)
    if not isinstance(made, Tool):
        raise ConfigurationError(
            f"{function!r} is not a tool: give a Tool class, an instance, or a function under @tool"
        )
    return made


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(f"@tool {function.__name__}: {error}") from error


def _is_object_type(hint: Any) -> bool:
    return isinstance(hint, type) and (
        issubclass(hint, msgspec.Struct)
        or is_dataclass(hint)
        or is_typeddict(hint)
        or hasattr(hint, "__pydantic_validator__")
    )


def _field(
    function: Callable[..., Any], parameter: inspect.Parameter, hints: Mapping[str, Any]
) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigurationError(
            f"@tool {function.__name__}: parameter {parameter} cannot be passed by name"
        )
    hint = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return parameter.name, hint
    default = parameter.default
    if isinstance(default, list | dict | set):
        return parameter.name, hint, msgspec.field(default_factory=partial(deepcopy, default))
    return parameter.name, hint, default
