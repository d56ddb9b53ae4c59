"""Tools: functions that a model calls.

A tool is a class with hooks; each may be `def` or `async def`:

    class Add(Tool[AddArguments]):
        \"\"\"Adds two numbers.\"\"\"

        name = "add"

        async def call(self, request: ToolRequest[AddArguments], channel: Channel) -> float:
            return request.arguments.a + request.arguments.b

A `def call` runs in a pool of threads, so that it may block; a `def validate` runs at once.

A call that waits for something that may take long, or for its client, returns that, and names the
method in which it continues: `elicit("Sure?").then(self.sure)`.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Generic, Literal, is_typeddict

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar

from genmcp._core.request import OnLost, Policy, Request, TaskUse, ToolRequest
from genmcp._core.waiting import Continue
from genmcp._schema.arguments import Arguments, Extra, arguments_of
from genmcp._schema.of_type import schema_of
from genmcp._schema.schema import Formats, Schema
from genmcp.channel import Channel
from genmcp.component import (
    DescribedComponent,
    annotations_of,
    attributes_of,
    can_continue,
    check_metadata,
    check_tool_name,
    class_attributes,
    definition_of,
    instance_attributes,
    type_argument,
)
from genmcp.component_route import ComponentRoute
from genmcp.content import json_of, to_result
from genmcp.errors import (
    ArgumentFaults,
    ConfigurationError,
    ContractError,
    InvalidParams,
    ToolError,
)
from genmcp.faults import InvalidArguments
from genmcp.hook import Hook, check_call, overrides
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult, ToolAnnotations, ToolDefinition
from genmcp.protocol.value import CacheScope

A = TypeVar("A", default=dict[str, Any])


class Tool(DescribedComponent, Generic[A]):
    """A tool. Subclass it, name it, and write `call`.

    It is configured by attributes of the class or of an instance (one class may be registered
    twice, under two names), or by properties. An attribute of the instance takes precedence.

    name: the name of the tool; letters, digits, `_`, `-` and `.`, at most 128.
    title, description, icons, meta: as in `tools/list`; the default of description is the docstring
        of the class.
    annotations: hints to the client, or a mapping of them (`{"readOnlyHint": True}`).
    input_schema: a JSON Schema of type object, or a type (struct, dataclass, TypedDict,
        pydantic model): `Tool[T]` is short for it. Arguments are passed as that type, otherwise as
        a dict. None accepts any object.
    output_schema: a JSON Schema, or a type; the value that `call` returns is then structured
        content, and is validated before it is sent.
    formats: whether `format` in the input schema is checked, or custom checkers by name. Results
        are not checked for it. Default True.
    extra_arguments: whether to "forbid" (default) or "ignore" arguments that the type of the input
        does not define. A pydantic model that configures `extra`, and a JSON Schema, decide it
        themselves.
    on_disconnect: how a call of an earlier revision is handled if its client disconnects: "finish"
        (default) stores the response for a client that resumes the stream, "cancel" cancels the
        call. From 2026-07-28 on a disconnect always cancels, except for tasks.
    task: when a call becomes a task, which its client polls: "auto" (default), once it waits for a
        `Job` or has run for `promote_after` seconds; "always", before it runs; "never". Calls of
        clients without the tasks extension (2026-07-28, `io.modelcontextprotocol/tasks`) are held
        instead.
    requires_tasks: reject the calls of clients without that extension.
    max_hold: seconds after which such a client gets an `isError` result with the id of the call,
        while the work continues; None: never. "auto" (default): 50 for a tool that can wait (it has
        `continue_`, or a method for `then`), if the suite offers the tool that fetches the result
        (`Suite(result_tool=)`); otherwise never. If the call waits for an answer of the client
        then, the time starts again.
    result_ttl: seconds for which the result of a task is kept; default 86400.
    single_use: whether an answer to a question resumes a call only once. Otherwise a client may
        send the same answer again, and the call is resumed again.
    on_worker_lost: whether to "rerun" or "fail" a job whose worker has died; None: "rerun" if the
        annotations declare the tool idempotent or read-only.
    cache_ttl, cache_scope: seconds for which a client may cache the list of tools, and whether the
        cache may be shared (2026-07-28, server/utilities, "Caching").

    Raises:
        ConfigurationError: an attribute is invalid. Raised when the class is defined if possible,
            otherwise, or if the name or `call` is missing, when the tool is registered.
    """

    __genmcp_hook__ = "call"

    name: str
    description: str | None = None
    annotations: ToolAnnotations | Mapping[str, Any] | None = None
    input_schema: Mapping[str, Any] | type | None = None
    output_schema: Mapping[str, Any] | type | None = None
    formats: Formats = True
    extra_arguments: Extra = "forbid"
    on_disconnect: Literal["finish", "cancel"] = "finish"
    task: TaskUse = "auto"
    requires_tasks: bool = False
    promote_after: float = 10.0
    max_hold: float | Literal["auto"] | None = "auto"
    result_ttl: float = 86400.0
    single_use: bool = False
    on_worker_lost: OnLost | None = None
    cache_scope: CacheScope = "public"

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the input schema to the type in `Tool[...]`, and check the attributes."""
        argument = type_argument(cls, Tool)
        if argument is not None:
            _check_one_input(cls, argument)
            if "input_schema" not in cls.__dict__:
                cls.input_schema = argument
        super().__init_subclass__(**options)
        values = class_attributes(cls, _ATTRIBUTES)
        _check(cls.__name__, values)
        _schemas(cls.__name__, values.get("input_schema"), values.get("output_schema"))

    def validate(self, request: ToolRequest[A], channel: Channel) -> Any:
        """Return the request that `call` gets: *request*, or `request.replace(arguments)`.

        It runs after the check of the schema and before `call`. It must have no effects: it runs
        again when the call continues with another request or in another process.

        Raises:
            InvalidParams: the call is rejected, as if the schema had rejected it.
        """
        return request

    def call(self, request: ToolRequest[A], channel: Channel) -> Any:
        """Do the work and return its result, as `genmcp.content` lists them; or a wait.

        A wait names the method in which the call continues: `elicit("Sure?").then(self.sure)`. The
        general form is `Continue(tag, on)`, which continues in `continue_`.

        Raises:
            ToolError: the work failed in a way the model should read.
        """
        raise NotImplementedError

    def on_cancel(self, channel: Channel[ToolRequest[A]]) -> Any:
        """Handle the cancellation of the call by its client, also while it waits.

        Its result is dropped. If it waited for a job, `channel.run_id` is the id of that job, the
        same that the job has as `run.id`; the job is being stopped, and may continue for a moment.
        """


class ToolRoute(ComponentRoute, frozen=True, kw_only=True):
    """The route of a tool."""

    provider: Tool[Any]
    definition: ToolDefinition
    arguments: Arguments
    output: Schema | None
    validates: bool
    is_async: bool
    cancels: Hook | None

    @classmethod
    def of(cls, tool: Tool[Any]) -> "ToolRoute":
        """Return the route of *tool*.

        Raises:
            ConfigurationError: an attribute is invalid or missing.
        """
        owner, values = instance_attributes(tool, _ATTRIBUTES)
        _check(owner, values)
        if not overrides(tool, "call", Tool):
            raise ConfigurationError(f"{owner} has no call")
        check_call(owner, tool.call)
        arguments, output = _schemas(
            owner,
            tool.input_schema,
            tool.output_schema,
            formats=tool.formats,
            extra=tool.extra_arguments,
        )
        definition = definition_of(
            ToolDefinition,
            owner,
            values,
            input_schema=arguments.schema,
            output_schema=None if output is None else output.document,
            annotations=annotations_of(owner, tool.annotations, ToolAnnotations),
        )
        policy = Policy.of(owner, tool, definition.annotations)
        # A tool that has no step in which to continue is expected to return soon: its call is held
        # until it does.
        if policy.auto_hold and not can_continue(tool):
            policy = replace(policy, auto_hold=False)
        return cls(
            owner=owner,
            place=f"tool {tool.name!r}",
            key=definition.name,
            definition=definition,
            arguments=arguments,
            output=output,
            validates=overrides(tool, "validate", Tool),
            is_async=inspect.iscoroutinefunction(tool.call),
            cancels=Hook.of(tool, "on_cancel", Tool),
            policy=policy,
            eager=policy.eager,
            headers=arguments.headers,
            on_disconnect=tool.on_disconnect,
            **cls.members_of(tool),
        )

    async def handle(self, request: Request, channel: Channel) -> CallToolResult | Continue:
        """Run the tool's hooks for *request*."""
        if self.validates or channel.request is not request:
            request = await self.begin(request, channel)
        else:
            # The transport, telemetry and middleware keep the request as it was received.
            channel.request = request = replace(request, arguments=self._decode(request))
        if self.is_async:
            value = await self.provider.call(request, channel)  # type: ignore[arg-type]
        else:
            value = await channel.in_thread(self.provider.call, request, channel)
            if inspect.isawaitable(value):
                value = await value
        # The most frequent results come first, without the general conversion.
        if type(value) is str and self.output is None:
            return CallToolResult(content=[TextContent(value)])
        if type(value) is Continue:
            return self.waiting("call", value)
        return self.result_of("call", value, request)

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return *request* with its arguments, decoded and validated."""
        arguments = self._decode(request)
        if self.validates:
            return await self._validated(request, arguments, channel)
        return replace(request, arguments=arguments)

    def declined(self, text: str) -> str:
        """Return *text*, unless the tool has an output schema."""
        if self.output is not None:
            raise ToolError(text)
        return text

    def result_of(self, hook: str, value: Any, request: Request) -> CallToolResult:
        """Return the result for *value*, checked against the output schema."""
        try:
            result = to_result(value, structured=self.output is not None)
        except ContractError as error:
            raise self.broken(hook, value, str(error)) from error
        if self.output is not None and not result.is_error:
            if result.structured_content is msgspec.UNSET:
                raise self.broken(hook, value, "output_schema needs structured content: an object")
            text = json_of(result.structured_content)
            # The value is checked in the form that is sent: a date, for example, is a text there.
            faults = self.output.check(msgspec.json.decode(text), text)
            if faults:
                raise self.broken(
                    hook, value, f"it does not fit output_schema: {'; '.join(faults)}"
                )
        return result

    async def cancelled(self, channel: Channel) -> None:
        """Call `on_cancel` for the call of *channel*."""
        # The arguments may not be there: a task is cancelled in any process, from its record.
        if self.cancels is not None:
            await self.set_arguments(channel)
            await self.cancels(channel, channel)

    def _decode(self, request: Request) -> Any:
        try:
            return self.arguments.decode(request.params.arguments)  # type: ignore[attr-defined]
        except ArgumentFaults as error:
            raise InvalidArguments(self.definition.name, error.faults) from None

    async def _validated(self, request: Request, arguments: Any, channel: Channel) -> Request:
        try:
            given: Any = replace(request, arguments=arguments)
            validated = self.provider.validate(given, channel)
            if inspect.isawaitable(validated):
                validated = await validated
        except InvalidParams as error:
            # SEP-1303: the model should read what `validate` rejects, too.
            raise InvalidArguments(self.definition.name, [error.message], error.data) from error
        if not isinstance(validated, ToolRequest):
            raise self.broken("validate", validated, "return request, or request.replace(...)")
        return validated


_ATTRIBUTES = attributes_of(Tool)


def _check(owner: str, values: Mapping[str, Any]) -> None:
    check_metadata(owner, values)
    if values.get("name") is not None:
        check_tool_name(owner, values["name"])


def _schemas(
    owner: str, given: Any, returned: Any, *, formats: Formats = True, extra: Extra = "forbid"
) -> tuple[Arguments, Schema | None]:
    try:
        arguments = arguments_of(given, formats=formats, extra=extra)
        if returned is None:
            return arguments, None
        is_schema = isinstance(returned, Mapping)
        document = returned if is_schema else schema_of(returned, origin="output_schema")
        # Formats of results are not checked: a `datetime` without a time zone is a valid value of
        # its type but not a `date-time`, and is sent, as other servers do.
        return arguments, Schema(document, formats=False, origin="output_schema")
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _check_one_input(cls: type, argument: Any) -> None:
    """Reject a `Tool[T]` that would not get its arguments as a T."""
    given = cls.__dict__.get("input_schema", argument)
    as_dict = isinstance(given, Mapping) and is_typeddict(argument)
    if given is not argument and not as_dict and not hasattr(type(given), "__get__"):
        raise ConfigurationError(
            f"{cls.__name__}: its arguments are described twice, by Tool[...] and by "
            f"input_schema; leave one of them out"
        )
