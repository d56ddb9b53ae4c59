"""Tools: functions that a model calls.

A tool is a class with hooks; each may be `def` or `async def`:

    class Add(Tool[AddArguments]):
        \"\"\"Adds two numbers.\"\"\"

        name = "add"

        async def call(self, request: ToolRequest[AddArguments], channel: Channel) -> float:
            return request.arguments.a + request.arguments.b

A `def call` runs in a pool of threads, so that it may block. A `def validate` runs on the event
loop and must not block.

A call that has to wait, for a job or for an answer of the client, returns the wait and names the
method in which the call continues: `elicit("Sure?").then(self.sure)`.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Generic, Literal, is_typeddict

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar

from genmcp._schema.arguments import Arguments, Extra, arguments_of
from genmcp._schema.of_type import schema_of
from genmcp._schema.schema import Formats, Schema
from genmcp.binding import bound_values, faults_of
from genmcp.channel import Channel, owner_of
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
from genmcp.core.request import Policy, Request, TaskUse, ToolRequest
from genmcp.core.waiting import Continue, OnLost
from genmcp.dependencies import injected
from genmcp.errors import (
    ArgumentFaults,
    ConfigurationError,
    ContractError,
    InvalidArguments,
    InvalidParams,
    ToolError,
)
from genmcp.hook import Hook, check_call, overrides
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import (
    CallToolResult,
    ToolAnnotations,
    ToolDefinition,
    is_for_models,
)
from genmcp.protocol.value import CacheScope

A = TypeVar("A", default=dict[str, Any])


class Tool(DescribedComponent, Generic[A]):
    """A tool: a function that a model calls. Subclass it, set `name`, and write `call`.

    Set the attributes in the class, on an instance (so that one class may be registered twice,
    under two names), or as properties. An attribute of the instance takes precedence.

    Attributes:
        name: the name of the tool. Letters, digits, `_`, `-` and `.`, at most 128. Required.
        title: a name for people, as in `tools/list`. Default None.
        description: as in `tools/list`. Default: the docstring of the class.
        icons: as in `tools/list`. Default: no icons.
        meta: the `_meta` of the tool in `tools/list`. Default None.
        annotations: hints to the client, or a mapping of them (`{"readOnlyHint": True}`). Default
            None.
        input_schema: a JSON Schema of type object, or a type (struct, dataclass, TypedDict,
            pydantic model); `Tool[T]` sets it to T. Hooks get the arguments as an instance of the
            type, and as a dict with a JSON Schema. Default None: any object.
        output_schema: a JSON Schema, or a type. The value that `call` returns is then sent as
            structured content, and is validated before. Default None.
        formats: whether `format` in the input schema is checked, or a mapping of further checkers
            by the name of the format. `format` in results is never checked. Default True.
        extra_arguments: whether to "forbid" or "ignore" arguments that the type of the input does
            not define. It has no effect on a JSON Schema, or on a pydantic model that configures
            `extra`. Default "forbid".
        on_disconnect: the effect of a disconnect of the client on a call of a revision before
            2026-07-28. "finish" stores the response for a client that resumes the stream; "cancel"
            cancels the call. In 2026-07-28 a disconnect cancels every call that is not a task.
            Default "finish".
        task: when a call becomes a task, which its client polls. "auto": once the call waits for a
            `Job` or has run for `promote_after` seconds; "always": before it runs; "never". A call
            of a client without the tasks extension (2026-07-28, `io.modelcontextprotocol/tasks`) is
            held instead: its response is sent when it ends, or after `max_hold`. Default "auto".
        requires_tasks: whether to reject calls of clients without the tasks extension. Default
            False.
        promote_after: seconds after which a running call becomes a task. Default 10.
        max_hold: seconds that a call of a client without the tasks extension may take. The client
            then gets an `isError` result with the id of the call, while the work continues. An
            answer of the client to a question restarts this time. None: unlimited. Default "auto":
            50 if the tool can wait (it has `continue_`, or a method for `then`) and the suite
            offers the tool that fetches the result (`Suite(result_tool=)`), otherwise unlimited.
        result_ttl: seconds for which the result of a task is kept. Default 86400.
        single_use: whether an answer to a question resumes a call only once. Otherwise, a client
            that sends the same answer again resumes the call again. Default False.
        on_worker_lost: whether to "rerun" or "fail" a job whose worker has died. Default None:
            "rerun" if the annotations declare the tool idempotent or read-only, otherwise "fail".
        overflow: the number of characters of a result that are sent. Of a longer result the
            beginning is sent, and a link to the whole, which is kept in the store of the mux; see
            docs/how-to/large-results.md. It applies in a `Suite`. Default None: `Suite(overflow=)`.
        idempotency_key: the name of an argument. Calls of one client with the same value are one
            call, sent again, as those with the same `io.genmcp/idempotencyKey` in their `_meta`.
            Default None.
        queue: the queue of the jobs that its calls wait for, except those of `@job(queue=)`.
            Default: "default".
        cache_ttl: seconds for which a client may cache the list of tools (2026-07-28,
            server/utilities, "Caching"). Default 0.
        cache_scope: "public" if a cache may share the list between users, else "private". Default
            "public".
        scopes: the scopes of an access token that a call needs, see `ServerComponent`. Default:
            none.

    Raises:
        ConfigurationError: an attribute is invalid, or the name or `call` is missing. Raised when
            the class is defined, or when the tool is registered if an attribute is only known then.
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
    on_worker_lost: OnLost | None = None  # None: `Policy.of` decides, by the annotations
    queue: str | None = None
    overflow: int | None = None
    idempotency_key: str | None = None
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

        Called after the arguments were checked against the schema, and before `call`. The hook must
        have no side effects: it is called again when the call continues after a wait with another
        request or in another process.

        Raises:
            InvalidParams: the call is rejected, as if the schema had rejected it.
        """
        return request

    def call(self, request: ToolRequest[A], channel: Channel) -> Any:
        """Do the work. Return its result, or a wait after which the call continues.

        `genmcp.content` lists the values that are results. A wait names the method in which the
        call continues: `elicit("Sure?").then(self.sure)`. After the general form, `Continue(tag,
        on)`, the call continues in `continue_`.

        Raises:
            ToolError: the work failed. The model gets the text of the error.
        """
        raise NotImplementedError

    def on_cancel(self, channel: Channel[ToolRequest[A]]) -> Any:
        """Clean up after the client has cancelled a call, whether the call was running or waiting.

        The value that this hook returns is dropped. If the call waited for a job, `channel.run_id`
        is the id of that job (its `run.id`). The job is told to stop, but may run a moment longer.
        If a process dies meanwhile, this hook may be called twice.
        """


class ToolRoute(ComponentRoute, frozen=True, kw_only=True):
    """A tool as it is registered: its checked attributes, its schemas and its hooks.

    Attributes:
        provider: the tool.
        call: its `call`, with its dependencies filled in.
        definition: its entry in `tools/list`.
        arguments: the schema and the decoder of its arguments.
        output: its output schema, or None.
        validates: whether more is done with the arguments than to decode them: the tool overrides
            `validate`, or they may contain bound values.
        is_async: whether `call` is an `async def`.
        cancels: its `on_cancel`, or None if the tool does not override it.
        overflow: the number of characters of a result that an `OverflowRoute` sends; else None.
    """

    provider: Tool[Any]
    call: Callable[..., Any]
    definition: ToolDefinition
    arguments: Arguments
    output: Schema | None
    validates: bool
    is_async: bool
    cancels: Hook | None
    overflow: int | None = None

    @classmethod
    def of(cls, tool: Tool[Any]) -> "ToolRoute":
        """Check the attributes of *tool*, compile its schemas, and return its route.

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
        policy = replace(policy, apps_only=not is_for_models(definition))
        named, properties = policy.idempotency_key, arguments.schema.get("properties", {})
        if named is not None and properties and named not in properties:
            raise ConfigurationError(
                f"{owner}.idempotency_key: the input schema has no argument {named!r}"
            )
        # A tool without `continue_` or another step cannot wait, and is expected to return soon:
        # the response is held until `call` returns, without the time limit of `max_hold`.
        if policy.auto_hold and not can_continue(tool):
            policy = replace(policy, auto_hold=False)
        return cls(
            owner=owner,
            place=f"tool {tool.name!r}",
            key=definition.name,
            call=injected(tool.call, Channel),
            definition=definition,
            arguments=arguments,
            output=output,
            validates=overrides(tool, "validate", Tool) or arguments.bound,
            is_async=inspect.iscoroutinefunction(tool.call),
            cancels=Hook.of(tool, "on_cancel", Tool),
            policy=policy,
            eager=policy.eager,
            header_rules=arguments.headers,
            on_disconnect=tool.on_disconnect,
            **cls.members_of(tool),
        )

    async def handle(self, request: Request, channel: Channel) -> CallToolResult | Continue:
        """Decode and validate the arguments of *request*, run `call`, and return its result."""
        if self.validates or channel.request is not request:
            if self.arguments.bound:
                await self._check_bound(request, channel)
            request = await self.prepare_on(request, channel)
        else:
            # The decoded arguments are set on a copy: the transport, telemetry and middleware keep
            # the request as it was received.
            channel.request = request = replace(request, arguments=self._decode(request))
        if self.is_async:
            value = await self.call(request, channel)
        else:
            value = await channel.in_thread(self.call, request, channel)
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
        with bound_values(owner_of(channel)) if self.arguments.bound else nullcontext():
            arguments = self._decode(request)
        if self.validates:
            return await self._validated(request, arguments, channel)
        return replace(request, arguments=arguments)

    def declined(self, text: str) -> str:
        """Return *text* as the result of a call with a declined question.

        Raises:
            ToolError: the tool has an output schema, which a text does not fit.
        """
        if self.output is not None:
            raise ToolError(text)
        return text

    def result_of(self, hook: str, value: Any, request: Request) -> CallToolResult:
        """Convert *value*, which *hook* returned, to the result of the call.

        Raises:
            ContractError: a tool must not return *value*, or it does not fit the output schema.
        """
        try:
            result = to_result(value, structured=self.output is not None)
        except ContractError as error:
            raise self.broken(hook, value, str(error)) from error
        if self.output is not None and not result.is_error:
            if result.structured_content is msgspec.UNSET:
                raise self.broken(hook, value, "output_schema needs structured content: an object")
            data: Any = result.structured_content
            if self.overflow is not None and is_longer(data, self.overflow):
                return result  # what is sent of it is checked, once it is shortened
            text = json_of(data)
            # The check reads the JSON that is sent, in which a date, for example, is a string.
            faults = self.output.check(msgspec.json.decode(text), text)
            if faults:
                raise self.broken(
                    hook, value, f"it does not fit output_schema: {'; '.join(faults)}"
                )
        return result

    async def cancelled(self, channel: Channel) -> None:
        """Call `on_cancel` for the call of *channel*."""
        # The arguments may not be decoded yet: any process may cancel a task, and the task's record
        # contains only the JSON of the request.
        if self.cancels is not None:
            await self.set_arguments(channel)
            await self.cancels(channel, channel)

    def _decode(self, request: Request) -> Any:
        try:
            return self.arguments.decode(request.params.given)  # type: ignore[attr-defined]
        except ArgumentFaults as error:
            raise InvalidArguments(self.definition.name, error.faults) from None

    async def _check_bound(self, request: Request, channel: Channel) -> None:
        """Check that the bound values in the arguments of *request* exist and are its client's.

        Only before `call`: a call that continues may have deleted them.

        Raises:
            InvalidArguments: some do not.
        """
        with bound_values(owner_of(channel)) as found:
            self._decode(request)
        if faults := await faults_of(found, request.params.given):  # type: ignore[attr-defined]
            raise InvalidArguments(self.definition.name, faults)

    async def _validated(self, request: Request, arguments: Any, channel: Channel) -> Request:
        try:
            given: Any = replace(request, arguments=arguments)
            validated = self.provider.validate(given, channel)
            if inspect.isawaitable(validated):
                validated = await validated
        except InvalidParams as error:
            # SEP-1303: the model should read input validation errors, so that it can correct them.
            # The error becomes an `isError` result, as an error of the schema does.
            raise InvalidArguments(self.definition.name, [error.message], error.data) from error
        if not isinstance(validated, ToolRequest):
            raise self.broken("validate", validated, "return request, or request.replace(...)")
        return validated


_ATTRIBUTES = attributes_of(Tool)


def _check(owner: str, values: Mapping[str, Any]) -> None:
    check_metadata(owner, values)
    if values.get("name") is not None:
        check_tool_name(owner, values["name"])
    check_overflow(owner, values.get("overflow"))


def check_overflow(owner: str, value: object) -> None:
    """Check the option `overflow` of a tool or suite.

    Raises:
        ConfigurationError: it is neither None nor a number of characters.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigurationError(
            f"{owner}.overflow must be a number of characters, 1 or more, not {value!r}"
        )


def is_longer(data: Any, limit: int) -> bool:
    """Return whether *data*, a `Raw` of JSON, has more than *limit* characters."""
    view = memoryview(data)
    # A character has at most 4 bytes, so that a longer text is not decoded.
    return len(view) > limit and (len(view) > 4 * limit or len(str(view, "utf-8")) > limit)


def _schemas(
    owner: str, given: Any, returned: Any, *, formats: Formats = True, extra: Extra = "forbid"
) -> tuple[Arguments, Schema | None]:
    try:
        arguments = arguments_of(given, formats=formats, extra=extra)
        if returned is None:
            return arguments, None
        is_schema = isinstance(returned, Mapping)
        document = (
            returned if is_schema else schema_of(returned, origin="output_schema", output=True)
        )
        # `format` is not checked in results: a `datetime` without a time zone is valid in Python,
        # but is not a `date-time`. Other servers send such values too.
        return arguments, Schema(document, formats=False, origin="output_schema")
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _check_one_input(cls: type, argument: Any) -> None:
    """Reject a `Tool[T]` whose own `input_schema` would decode the arguments to another type."""
    given = cls.__dict__.get("input_schema", argument)
    as_dict = isinstance(given, Mapping) and is_typeddict(argument)
    if given is not argument and not as_dict and not hasattr(type(given), "__get__"):
        raise ConfigurationError(
            f"{cls.__name__}: its arguments are described twice, by Tool[...] and by "
            f"input_schema; leave one of them out"
        )
