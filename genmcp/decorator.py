"""The decorators `@tool`, `@prompt` and `@resource`: components made of functions, and steps."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import Unpack

from genmcp._schema.arguments import Extra
from genmcp._schema.schema import Formats
from genmcp.channel import Channel
from genmcp.component import Metadata, ServerComponent, check_continues, set_options
from genmcp.core.request import TaskUse
from genmcp.core.waiting import OnLost
from genmcp.dependencies import signature_of, with_context
from genmcp.errors import ConfigurationError
from genmcp.hook import FunctionStep, HasSteps, StepValue, Visible, hint_of
from genmcp.prompts.prompt import Prompt, PromptRoute
from genmcp.protocol.tools import ToolAnnotations
from genmcp.protocol.value import CacheScope
from genmcp.resources.resource import Description, ReadableComponent, TemplateRoute
from genmcp.signature import SchemaSignature, Signature, docstring_of, is_channel, name_of
from genmcp.tools import Tool, ToolRoute

F = TypeVar("F", bound=Callable[..., Any])


P = ParamSpec("P")


Q = ParamSpec("Q")


R = TypeVar("R")


R_co = TypeVar("R_co", covariant=True)


S = TypeVar("S")


C = TypeVar("C", bound="FunctionComponent")


class Stepped(Protocol[P, R_co]):
    """The type of a function decorated with `@tool`, `@prompt` or `@resource`, for type checkers.

    Calling the decorated function calls the original one.
    """

    __name__: str
    __qualname__: str
    __module__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Stepped[P, R_co]": ...
    @overload
    def __get__(
        self: "Stepped[Concatenate[S, Q], R]", instance: S, owner: type, /
    ) -> "Stepped[Q, R]": ...

    def step(self, function: F, /) -> F:
        """Register *function* as a step in which a call continues: `elicit(...).then(function)`.

            @book.step
            async def sure(wish: Wish, room: str, channel: Channel) -> str: ...

        The first parameter of *function* gets the value of the wait. Every other parameter has the
        name of an argument of the decorated function and gets its value, or is annotated `Channel`.
        The name of *function* identifies the step in other processes.

        Raises:
            ConfigurationError: a parameter is neither an argument nor a channel, the parameters
                cannot be passed in that way, or the name is already used.
        """


class PromptOptions(Metadata, total=False):
    """The options of `@prompt`: attributes of `Prompt`, and its hooks `complete` and `visible`."""

    completions: Mapping[str, Sequence[str]]
    complete: Callable[[str, str, Mapping[str, str], Channel], Any]
    cache_ttl: float
    cache_scope: CacheScope
    visible: Visible


class ResourceOptions(Description, total=False):
    """The options of `@resource`: attributes of `ResourceRepo`, and three of its hooks."""

    list: Callable[[Any, Channel], Any]
    complete: Callable[[str, str, Mapping[str, str], Channel], Any]
    visible: Visible


class ToolOptions(Metadata, total=False):
    """The options of `@tool`: attributes of `Tool`, and its hooks `visible` and `on_cancel`."""

    input_schema: Mapping[str, Any]
    annotations: ToolAnnotations | Mapping[str, Any]
    output_schema: Mapping[str, Any] | type
    formats: Formats
    extra_arguments: Extra
    on_disconnect: Literal["finish", "cancel"]
    task: TaskUse
    requires_tasks: bool
    promote_after: float
    max_hold: float | Literal["auto"] | None
    result_ttl: float
    single_use: bool
    on_worker_lost: OnLost | None
    queue: str | None
    overflow: int | None
    idempotency_key: str | None
    cache_ttl: float
    cache_scope: CacheScope
    visible: Visible
    on_cancel: Callable[[Channel], Any]


@overload
def tool(function: Callable[P, R], /) -> Stepped[P, R]: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], Stepped[P, R]]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Attach a tool to a function, and return the function.

        @tool
        async def forecast(city: str, days: int = 3, *, channel: Channel) -> str:
            \"\"\"Tells the weather of the next days.\"\"\"

    The function's name, docstring and type hints become the tool's name, description and input
    schema; a parameter annotated `Channel` gets the channel. The return type becomes the output
    schema, unless it is text or content (docs/how-to/structured-output.md). *options* are the
    attributes of `Tool`.

    A call that has to wait returns a wait, and continues in a step: a second function, which gets
    the value of the wait, and those arguments of the call that its parameters name:

        @tool
        async def book(room: str) -> Continue:
            return elicit(f"Book {room}?", Wish).then(sure)

        @book.step
        async def sure(wish: Wish, room: str) -> str: ...

    With `input_schema`, a JSON Schema, the function gets the properties by name, as they were sent:

        tool(name="search", description="Searches.", input_schema=schema)(search)

    A method may be decorated too; the method of an instance is then registered. For a function that
    is a tool already, the result is a copy of it with a tool of its own, which has the steps of the
    first one, and those of its options that are not given: `tool(name="kb_search")(search)`.

    Raises:
        ConfigurationError: it is not a function, a parameter cannot be passed by name, a type is
            not JSON, or an option is invalid.
    """
    return _decorate(FunctionTool, function, options)


@overload
def prompt(function: Callable[P, R], /) -> Stepped[P, R]: ...


@overload
def prompt(
    **options: Unpack[PromptOptions],
) -> Callable[[Callable[P, R]], Stepped[P, R]]: ...


def prompt(function: Any = None, /, **options: Any) -> Any:
    """Attach a prompt to a function, and return the function.

        @prompt
        async def review(code: str, language: Literal["python", "rust"] = "python") -> str:
            \"\"\"Asks for a review.\"\"\"
            return f"Review this {language} code:\\n{code}"

    The function's name, docstring and type hints become the prompt's name, description and
    arguments; a parameter annotated `Channel` gets the channel. *options* are the attributes of
    `Prompt`. A prompt that has to wait continues in a step, `@review.step`, as with `@tool`.

    A method may be decorated too; the method of an instance is then registered.

    Raises:
        ConfigurationError: it is not a function, a parameter cannot be passed by name, a type is
            not JSON, or an option is invalid.
    """
    return _decorate(FunctionPrompt, function, options)


def resource(
    uri: str, /, **options: Unpack[ResourceOptions]
) -> Callable[[Callable[P, R]], Stepped[P, R]]:
    """Attach a resource to a function that returns its contents, and return the function.

        @resource("stock://{part}", mime_type="application/json")
        async def stock(part: int, channel: Channel) -> Stock | None:
            \"\"\"The stock of a part.\"\"\"

    A *uri* with variables is a URI template (RFC 6570), which is listed as such. Each variable is
    passed to the parameter of its name, converted to the type of that parameter; a client that
    sends another value gets an error that names the variable. A parameter annotated `Channel` gets
    the channel. The function returns the values that `Resource` accepts, or None if the resource
    does not exist. Its name and docstring are listed.

    A resource that has to wait continues in a step, `@stock.step`, as with `@tool`.

    Args:
        uri: the URI, or a template of URIs.
        options: attributes of `ResourceRepo`, and its hooks `list(cursor, channel)`, which returns
            the resources of a template; `complete(argument, value, context, channel)`, which
            completes a variable (an enum, a Literal or a bool is completed without it); `visible`.

    Raises:
        ConfigurationError: *uri* is not a URI or template, its variables are not the parameters of
            the function, a type is not JSON, or an option is invalid.
    """
    if not isinstance(uri, str):
        raise ConfigurationError(
            f'@resource needs a URI: write @resource("stock://{{part}}"), not @resource of {uri!r}'
        )
    return partial(_decorate, FunctionResource, options={"uri": uri, **options})


class FunctionComponent(HasSteps, ServerComponent):
    """A component made of a function by a decorator. Its arguments are those of the function.

    The attributes that this class adds are private, so that a step may have any public name.
    """

    function_steps: dict[str, FunctionStep]

    _decorator: ClassVar[str]
    _known: ClassVar[frozenset[str]]  # the names of the options
    _arguments: ClassVar[str]  # the attribute that describes the arguments
    _lists_arguments: ClassVar[bool] = True  # with a description for each
    _route: ClassVar[Any]
    _others: ClassVar[str]  # for errors: the other objects that may be registered as this kind

    def __init__(
        self, function: Any, options: Mapping[str, Any], steps: dict[str, FunctionStep]
    ) -> None:
        owner = name_of(function)
        closed = options.get("extra_arguments", "forbid") == "forbid"
        description: str | None = inspect.getdoc(function)
        texts: Mapping[str, str] = {}
        if options.get("input_schema") is not None:
            signature: Signature = SchemaSignature.of_schema(function, options["input_schema"])
        else:
            if self._lists_arguments:
                description, texts = docstring_of(function)
            signature = Signature.of(
                function, decorator=f"@{self._decorator}", closed=closed, texts=texts
            )
        self._function, self._options, self._signature = function, options, signature
        self.function_steps = steps
        if inspect.ismethod(function):
            self.bound = (function.__self__,)
        self.__name__ = owner
        self.name = function.__name__
        self.description = description or None
        # Set on the instance, where it takes precedence over the hook of the base class.
        setattr(self, self.__genmcp_hook__, signature.hook(function))
        setattr(self, self._arguments, signature.arguments)
        if "output_schema" in self._known and "output_schema" not in options:
            self.output_schema = signature.output
        set_options(self, f"{owner}: @{self._decorator}", options, self._known)
        # Checks the options now, so that the traceback shows the decorated function.
        self._route.of(self)


class FunctionTool(FunctionComponent, Tool[Any]):
    """A tool made of a function under `@tool`."""

    _decorator = "tool"
    _known = frozenset(ToolOptions.__annotations__)
    _arguments = "input_schema"
    _route = ToolRoute
    _others = "a Tool class, an instance"


class FunctionPrompt(FunctionComponent, Prompt[Any]):
    """A prompt made of a function under `@prompt`."""

    _decorator = "prompt"
    _known = frozenset(PromptOptions.__annotations__)
    _arguments = "arguments"
    _route = PromptRoute
    _others = "a Prompt class, an instance, a PromptTemplate, a PromptRepo"


class FunctionResource(FunctionComponent, ReadableComponent):
    """A resource, or all resources of a URI template, made of a function under `@resource`."""

    _decorator = "resource"
    _known = frozenset({"uri", *ResourceOptions.__annotations__})
    _arguments = "arguments"
    _lists_arguments = False
    _route = TemplateRoute
    _others = "a Resource, or a ResourceRepo or its class"

    uri: str
    arguments: type
    list: Any = None
    complete: Any = None


def function_component(kind: type[C], function: Any) -> C:
    """Return the component that the decorator of *kind* has attached to *function*.

    Raises:
        ConfigurationError: *function* is not decorated, or is a method without its instance.
    """
    made = getattr(function, f"__genmcp_{kind._decorator}__", None)
    if not isinstance(made, kind):
        raise ConfigurationError(
            f"{function!r} is not a {kind._decorator}: give {kind._others}, or a function under "
            f"@{kind._decorator}"
        )
    if made._function is not function:  # a method of an instance, or another decorator's
        # The dict of steps is shared, not copied: a step may be decorated after this component
        # was made.
        made = kind(function, made._options, made.function_steps)
    if next(iter(inspect.signature(function).parameters), None) == "self":
        raise ConfigurationError(
            f"{name_of(function)} is a method: give that of an instance, "
            f"instance.{function.__name__}"
        )
    check_continues(name_of(function), function, made)
    return made


def _decorate(kind: type[FunctionComponent], function: Any, options: Mapping[str, Any]) -> Any:
    """Attach a component to *function* and return *function*; for None, return a decorator."""
    if function is None:
        return partial(_decorate, kind, options=options)
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@{kind._decorator} is for functions, not for {function!r}")
    steps: dict[str, FunctionStep] = {}
    attribute = f"__genmcp_{kind._decorator}__"
    earlier = getattr(function, attribute, None)
    if earlier is not None and earlier._function is function:
        # Another component of one function: the first one stays as it is. It keeps the steps, and
        # the options, such as scopes, without which more clients could use it.
        function, steps = _copy_of(function), earlier.function_steps
        options = {**earlier._options, **options}
    made = kind(function, options, steps)
    setattr(function, attribute, made)
    function.__dict__["step"] = partial(_add_step, made)
    return function


def _copy_of(function: Any) -> Any:
    code, values = function.__code__, function.__globals__
    copied = FunctionType(code, values, None, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(copied, function)


def _add_step(made: FunctionComponent, function: F) -> F:
    owner, name = made.__name__, getattr(function, "__name__", "")
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@{owner}.step is for functions, not for {function!r}")
    # A step is looked up with `getattr` on the component: it must not have an attribute's name.
    if hasattr(made, name):
        raise ConfigurationError(
            f"@{owner}.step: a step cannot be called {name}: it is found by its name, and there is "
            f"another {name}"
        )
    signature = signature_of(function)
    parameters = list(signature.parameters)
    arguments = made._signature.names
    place = int(parameters[:1] == ["self"])
    channels = [each for each in parameters if is_channel(hint_of(function, each))]
    first, others = parameters[place : place + 1], parameters[place + 1 :]
    unknown = [each for each in others if each not in channels and each not in arguments]
    try:
        signature.bind(*[None] * (place + 1), **dict.fromkeys(others))
        wrong = f"{unknown[0]} is neither" if unknown else ""
    except TypeError as error:
        wrong = str(error)
    if first and first[0] in channels:
        wrong = f"its first parameter, {first[0]}, is the Channel"
    if wrong:
        raise ConfigurationError(
            f"@{owner}.step: {name} must take the value of the wait first, and then, by name, "
            f"arguments of {owner} or parameters annotated Channel; {wrong}"
        )
    names = [each for each in others if each not in channels]
    made.function_steps[name] = FunctionStep(
        function, with_context(function, Channel), names, channels, StepValue.of(function, place)
    )
    return function
