"""Tools made from plain functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from functools import partial
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import CONTENT
from genmcp.errors import ConfigurationError
from genmcp.protocol.implementation import Icon
from genmcp.protocol.tools import ToolAnnotations
from genmcp.tool import Call, Tool, ToolRoute, check_call

__all__ = ["tool", "tool_of"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__genmcp_tool__"


class Attributes(TypedDict, total=False):
    """Those attributes of `Tool` that a function's name, docstring and hints may not give."""

    name: str
    title: str
    description: str
    annotations: ToolAnnotations | Mapping[str, Any]
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    output_schema: Mapping[str, Any] | type
    on_disconnect: Literal["finish", "cancel"]


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
    if next(iter(inspect.signature(function).parameters), None) == "self":
        raise ConfigurationError(
            f"{made.__name__} is a method: give that of an instance, instance.{function.__name__}"
        )
    return made


class FunctionTool(Tool[Any]):
    """A tool whose arguments are a function's parameters."""

    def __init__(self, function: Callable[..., Any], attributes: Mapping[str, Any]) -> None:
        self.function = function
        self.attributes = attributes
        self.__name__ = function.__qualname__.rpartition("<locals>.")[2]
        check_call(self.__name__, function)
        if unknown := attributes.keys() - Attributes.__annotations__.keys():
            raise ConfigurationError(
                f"{self.__name__}: @tool takes no {', '.join(sorted(unknown))}"
            )
        hints = _hints(self.__name__, function)
        parameters = inspect.signature(function).parameters
        self._channels = [name for name in parameters if _is_channel(hints.get(name))]
        fields = [
            _field(self.__name__, parameter, hints.get(name, Any))
            for name, parameter in parameters.items()
            if name not in self._channels
        ]
        self.name = function.__name__
        self.description = inspect.getdoc(function) or None
        self.input_schema = msgspec.defstruct(
            function.__name__,
            fields,
            kw_only=True,
            forbid_unknown_fields=True,  # as a call of the function would
            module=function.__module__,
        )
        if _is_data(hints.get("return")):
            self.output_schema = hints["return"]
        for key, value in attributes.items():
            setattr(self, key, value)

    def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return self.function(**self._given(request, channel))

    def _given(self, request: Call[Any], channel: Channel) -> dict[str, Any]:
        given = msgspec.structs.asdict(request.arguments)
        for name in self._channels:
            given[name] = channel
        return given


class AsyncFunctionTool(FunctionTool):
    """The same of an `async def`, which needs no thread."""

    async def call(self, request: Call[Any], channel: Channel) -> Any:
        """Call the function with the arguments."""
        return await self.function(**self._given(request, channel))


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


def _hints(owner: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{owner}: its type hints cannot be read: {error}. @tool needs them at run time, "
            f"by names of the module"
        ) from error


def _is_channel(hint: Any) -> bool:
    return hint is Channel or Channel in get_args(hint)


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


def _described(owner: str, name: str, hint: Any) -> Any:
    """Return *hint* with its annotations as msgspec reads them; a text is a description."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        read = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
        if unread := [note for note in read if not isinstance(note, msgspec.Meta)]:
            raise ConfigurationError(
                f"{owner}: parameter {name}: {unread[0]!r} would be ignored; constraints and "
                f"descriptions are given with msgspec.Meta, or a description as a text"
            )
        hint = Annotated[(kind, *read)]
    try:
        msgspec.json.schema(hint)
    except TypeError as error:
        raise ConfigurationError(
            f"{owner}: parameter {name}: {hint} is not read from JSON here; use a struct, a "
            f"dataclass or a TypedDict ({error})"
        ) from error
    return hint


def _field(owner: str, parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigurationError(
            f"{owner}: parameter {parameter}: each argument needs a name it can be passed by"
        )
    hint = _described(owner, parameter.name, hint)
    if parameter.name == "channel" and hint is Any:
        raise ConfigurationError(f"{owner}: annotate channel as Channel, or call it something else")
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, hint
    if isinstance(default, str | bytes | int | float | None):
        return parameter.name, hint, default
    # Each call gets a copy of its own; the listing would not see the default in a factory.
    listed = Annotated[hint, msgspec.Meta(extra_json_schema={"default": default})]
    return parameter.name, listed, msgspec.field(default_factory=partial(deepcopy, default))
