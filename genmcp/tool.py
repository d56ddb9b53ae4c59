"""Tools: what a model may call.

A tool is a class with hooks; each may be `def` or `async def`:

    class Add(Tool[AddArguments]):
        \"\"\"Adds two numbers.\"\"\"

        name = "add"

        async def call(self, request: Call[AddArguments], channel: Channel) -> float:
            return request.arguments.a + request.arguments.b

A `def` hook runs in a pool of threads (`validate` does not), so that it may block.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, get_args, get_origin

import msgspec
from typing_extensions import TypeVar

from genmcp.channel import Channel
from genmcp.content import to_result
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, ContractError, InvalidArguments
from genmcp.protocol.content import TextContent
from genmcp.protocol.implementation import Icon
from genmcp.protocol.meta import RequestId
from genmcp.protocol.tools import CallToolResult, ToolAnnotations, ToolDefinition
from genmcp.schema.arguments import Arguments, arguments_of
from genmcp.schema.of_type import schema_of
from genmcp.schema.schema import Formats, Schema
from genmcp.schema.words import ArgumentFaults
from genmcp.server import Route

__all__ = ["Call", "Tool", "ToolRoute"]

A = TypeVar("A", default=dict[str, Any])

# 2026-07-28, server/tools, "Tool Names".
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Call(msgspec.Struct, Generic[A], frozen=True):
    """One call of a tool: its *arguments*, as the tool's own type, and the *request* it is in."""

    arguments: A
    request: Request

    @property
    def id(self) -> RequestId:
        """The JSON-RPC id of the request."""
        return self.request.id

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        return self.request.meta

    def replace(self, arguments: A) -> "Call[A]":
        """Return the same call with other *arguments*, for `validate` to return."""
        return Call(arguments, self.request)


class Tool(Generic[A]):
    """A tool. Subclass it, name it, and write `call`.

    A class is made without arguments where it is registered; an instance carries its own
    configuration in its attributes, so one class may be registered twice under two names.

    name: what it is called by; letters, digits, `_`, `-` and `.`, at most 128.
    title, description, annotations, icons, meta: what its listing says of it; the description
        is the docstring unless it is given.
    input_schema: a JSON Schema of type object, or a type (struct, dataclass, TypedDict,
        pydantic model): `Tool[T]` is short for it. Arguments arrive as that type, as a dict
        otherwise. None takes any object.
    output_schema: a JSON Schema, or a type; what `call` returns is then structured content,
        and checked before it leaves.
    formats: whether `format` of a dict schema is checked; or checkers of your own by name.
    on_disconnect: what becomes of a call of an earlier revision whose client leaves: it is
        finished, and the answer waits for the client to come back, or it is cancelled. From
        2026-07-28 on a disconnect always cancels.

    Raises:
        ConfigurationError: when the class is made, if one of these is wrong.
    """

    name: str
    title: str | None = None
    description: str | None = None
    annotations: ToolAnnotations | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None
    input_schema: Mapping[str, Any] | type | None = None
    output_schema: Mapping[str, Any] | type | None = None
    formats: Formats = True
    on_disconnect: Literal["finish", "cancel"] = "finish"

    def __init_subclass__(cls, **options: Any) -> None:
        """Check what the class says of itself."""
        super().__init_subclass__(**options)
        argument_type = _argument_type(cls)
        if argument_type is not None and "input_schema" not in cls.__dict__:
            cls.input_schema = argument_type
        if "name" in cls.__dict__ and isinstance(cls.__dict__["name"], str):
            _check(cls)

    def validate(self, request: Call[A], channel: Channel) -> Any:
        """Return the call as `call` should see it.

        Runs after the schema's own checks and before `call`; keep it free of effects, it may
        run again for the same call.

        Raises:
            InvalidParams: the call is refused; the message is shown to the client.
        """
        return request

    def call(self, request: Call[A], channel: Channel) -> Any:
        """Do the work and return its result: whatever `genmcp.content` knows.

        Raises:
            ToolError: the work failed in a way the model should read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no call")


class ToolRoute(Route, frozen=True, kw_only=True):
    """A tool made ready once, so that a call costs only what its message needs."""

    tool: Tool[Any]
    definition: ToolDefinition
    arguments: Arguments
    output: Schema | None
    validates: bool
    is_async: bool

    @classmethod
    def of(cls, tool: Tool[Any]) -> "ToolRoute":
        """Return the route of *tool*.

        Raises:
            ConfigurationError: what the tool says of itself is wrong.
        """
        arguments, output = _check(tool)
        kind = type(tool)
        if kind.call is Tool.call:
            raise ConfigurationError(f"{kind.__name__} has no call")
        return cls(
            tool=tool,
            definition=_definition(tool, arguments, output),
            arguments=arguments,
            output=output,
            validates=kind.validate is not Tool.validate,
            is_async=inspect.iscoroutinefunction(tool.call),
            headers=arguments.headers,
            on_disconnect=tool.on_disconnect,
        )

    async def handle(self, request: Request, channel: Channel) -> CallToolResult:
        """Run the tool's hooks for *request*."""
        try:
            arguments = self.arguments.decode(request.params.arguments)  # type: ignore[attr-defined]
        except ArgumentFaults as error:
            raise InvalidArguments(self.definition.name, error.faults) from None
        call = Call(arguments, request)
        if self.validates:
            call = await self._validated(call, channel)
        if self.is_async:
            value = await self.tool.call(call, channel)
        else:
            value = await channel.in_thread(self.tool.call, call, channel)
            if inspect.isawaitable(value):
                value = await value
        if type(value) is str and self.output is None:
            return CallToolResult(content=[TextContent(value)])
        return self._checked(value)

    async def _validated(self, call: Call[Any], channel: Channel) -> Call[Any]:
        validated = self.tool.validate(call, channel)
        if inspect.isawaitable(validated):
            validated = await validated
        if not isinstance(validated, Call):
            raise self._broken("validate", validated, "the call")
        return validated

    def _checked(self, value: Any) -> CallToolResult:
        try:
            result = to_result(value, structured=self.output is not None)
        except ContractError as error:
            raise self._broken("call", value, "a result") from error
        if self.output is not None and not result.is_error:
            if result.structured_content is msgspec.UNSET:
                raise self._broken("call", value, "structured content, as it has an output_schema")
            faults = self.output.check(result.structured_content)
            if faults:
                raise self._broken("call", value, f"what output_schema says: {'; '.join(faults)}")
        return result

    def _broken(self, hook: str, value: Any, expected: str) -> ContractError:
        where = f"{type(self.tool).__name__}.{hook} (tool {self.definition.name!r})"
        return ContractError(f"{where} returned {type(value).__name__}, not {expected}")


def _argument_type(cls: type) -> Any:
    """Return T if *cls* is declared as `Tool[T]`, else None."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, Tool):
            (argument,) = get_args(base)
            if isinstance(argument, type) and get_origin(argument) is None:
                return None if argument is dict else argument
    return None


def _check(tool: Any) -> tuple[Arguments, Schema | None]:
    """Check what a tool, class or instance, says of itself, and return its schemas."""
    owner = tool if isinstance(tool, type) else type(tool)
    name = getattr(tool, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{owner.__name__}.name must be 1 to 128 letters, digits, '_', '-' or '.', not {name!r}"
        )
    for key, kinds in _MEMBERS.items():
        value = getattr(tool, key)
        if value is not None and not isinstance(value, kinds):
            raise ConfigurationError(
                f"{owner.__name__}.{key} is a {type(value).__name__}: {value!r}"
            )
        if isinstance(value, str) and not value.strip():
            raise ConfigurationError(f"{owner.__name__}.{key} is blank")
    if tool.on_disconnect not in ("finish", "cancel"):
        raise ConfigurationError(
            f"{owner.__name__}.on_disconnect must be 'finish' or 'cancel', "
            f"not {tool.on_disconnect!r}"
        )
    try:
        arguments = arguments_of(tool.input_schema, formats=tool.formats)
        output = None if tool.output_schema is None else _output(tool.output_schema)
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner.__name__}: {error}") from error
    return arguments, output


def _output(source: Mapping[str, Any] | type) -> Schema:
    document = source if isinstance(source, Mapping) else schema_of(source)
    return Schema(document, origin="output_schema")


_MEMBERS: Mapping[str, Any] = {
    "title": str,
    "description": str,
    "annotations": ToolAnnotations,
    "icons": Sequence,
    "meta": Mapping,
}


def _definition(tool: Tool[Any], arguments: Arguments, output: Schema | None) -> ToolDefinition:
    description = tool.description
    if description is None:
        own = type(tool).__doc__
        description = inspect.cleandoc(own) if own and own is not Tool.__doc__ else None
    return ToolDefinition(
        name=tool.name,
        input_schema=arguments.schema,
        title=tool.title,
        description=description,
        output_schema=None if output is None else output.document,
        icons=tool.icons,
        annotations=tool.annotations,
        meta=tool.meta,
    )
