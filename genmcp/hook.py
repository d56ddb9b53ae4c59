"""Hooks and steps: the functions of a component that genmcp calls.

A hook serves a request; a step is a function in which a call continues after a wait. Both may be
`def` or `async def`. An `async def` runs on the event loop; a `def` may block and runs in a thread.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from genmcp.binding import GetOwner, bound_values, no_owner
from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Failed
from genmcp.dependencies import injected, signature_of
from genmcp.errors import ConfigurationError, ContractError
from genmcp.question.question import Accepted, Cancelled, Declined
from genmcp.tasks.values import codec_of

Visible = Callable[[Access | None], bool]
"""Whether a component exists for the access of a client, None being an anonymous client."""


class Hook(msgspec.Struct, frozen=True):
    """A hook of a component. An `async def` runs on the event loop, a `def` in a thread."""

    function: Callable[..., Any]
    is_async: bool

    @classmethod
    def of(cls, provider: object, name: str, kind: type) -> "Hook | None":
        """Return the hook *name* of *provider*, or None if *provider* inherits it from *kind*.

        Raises:
            ConfigurationError: the hook is a generator function.
        """
        if not overrides(provider, name, kind):
            return None
        function = getattr(provider, name)
        check_call(f"{type(provider).__name__}.{name}", function)
        function = injected(function, Channel)
        return cls(function, inspect.iscoroutinefunction(function))

    async def __call__(self, channel: Channel, *arguments: Any) -> Any:
        """Call the function, in a thread of *channel* if it may block."""
        if self.is_async:
            return await self.function(*arguments)
        value = await channel.in_thread(self.function, *arguments)
        return await value if inspect.isawaitable(value) else value


def overrides(provider: object, name: str, kind: type) -> bool:
    """Return whether *provider* overrides the hook *name* of its base class *kind*."""
    function = getattr(provider, name, None)
    base = getattr(kind, name, None)
    return function is not None and (
        base is None or getattr(function, "__func__", None) is not base
    )


# Words that are easily taken for an option or a hook, and the names that a class may have meant.
# Without the error, the attribute would be ignored: a tool with a `scope` would be open to all.
_OPTION_WORDS: Mapping[str, Collection[str]] = {
    "patience": ["promote_after"],
    "hold": ["max_hold"],
    "ttl": ["result_ttl", "cache_ttl"],
    "once": ["single_use"],
    "on_lost": ["on_worker_lost"],
    "scope": ["scopes"],
}
_HOOK_WORDS: Mapping[str, Collection[str]] = {
    "validate_request": ["validate"],
    "hearing": ["watch_resources"],
    "announcer": ["changes"],
}


def check_words(cls: type) -> None:
    """Check that *cls* sets no attribute that looks like an option or hook and has no effect.

    Raises:
        ConfigurationError: it does; the message has the right name.
    """
    for word, value in vars(cls).items():
        is_hook = callable(value) or hasattr(type(value), "__get__")
        names = (_HOOK_WORDS if is_hook else _OPTION_WORDS).get(word, ())
        meant = [name for name in names if hasattr(cls, name)]
        if meant:
            kind = "a hook" if is_hook else "an option"
            raise ConfigurationError(
                f"{cls.__name__}.{word} is not {kind}, and would be ignored; did you mean "
                f"{' or '.join(meant)}? Give an attribute of your own another name"
            )


def check_call(owner: str, call: Callable[..., Any]) -> None:
    """Check that *call* is not a generator function.

    Raises:
        ConfigurationError: *call* is a generator function.
    """
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigurationError(
            f"{owner} yields; return one result, and report progress with channel.progress"
        )


def check_hooks(cls: type, names: Collection[str]) -> None:
    """Check that the hooks *names* that *cls* defines take the parameters of its base class.

    Raises:
        ConfigurationError: a hook does not, or takes the channel first.
    """
    for name in names:
        hook = vars(cls).get(name)
        base = next((vars(each)[name] for each in cls.__mro__[1:] if name in vars(each)), None)
        if not inspect.isfunction(hook) or not inspect.isfunction(base):
            continue
        signature, wanted = signature_of(hook), [*inspect.signature(base).parameters]
        try:
            signature.bind(*[None] * len(wanted))
            second = [*signature.parameters][1:2] if len(wanted) > 2 else []
            fits = not any(_is_channel(hint_of(hook, each)) for each in second)
        except TypeError:
            fits = False
        if not fits:
            hint = "; the arguments are request.arguments" if "request" in wanted else ""
            raise ConfigurationError(
                f"{cls.__name__}.{name} must take ({', '.join(wanted)}), not "
                f"({', '.join(signature.parameters)}){hint}"
            )


def _is_channel(hint: Any) -> bool:
    return hint is Channel or get_origin(hint) is Channel


def visibility(provider: Any, kind: type) -> Visible | None:
    """Return the hook `visible` of *provider*, or None if *provider* inherits it from *kind*.

    Raises:
        ConfigurationError: the hook is not a `def`.
    """
    if not overrides(provider, "visible", kind):
        return None
    visible: Visible = provider.visible
    if not callable(visible) or inspect.iscoroutinefunction(visible):
        owner = getattr(provider, "__name__", type(provider).__name__)
        raise ConfigurationError(
            f"{owner}.visible must be a def: it is asked for each entry of a list"
        )
    return visible


# The Python types of JSON scalars. A value of a subclass, such as an Enum, is no JSON scalar.
_SCALARS = frozenset({str, int, float, bool, type(None)})


class UnknownTag(ContractError):
    """A call cannot be resumed: `continue_` lacks a case for its tag, or its method is missing."""


Reader = Callable[[Any], Any]
"""Converts the value of a wait to the type that a method annotates.

It raises TypeError if the type is not supported, and ValueError if the value does not fit.
"""


class StepValue(msgspec.Struct, frozen=True):
    """The parameter of a method that receives the value of a wait.

    Attributes:
        outcome: whether the parameter receives the outcome (`Done` or `Failed`) instead.
        read: converts the value to the annotated type.
    """

    outcome: bool
    read: Reader

    @classmethod
    def of(cls, function: Callable[..., Any], place: int) -> "StepValue":
        """Return the parameter at the position *place* of *function*."""
        name = list(inspect.signature(function).parameters)[place]
        hint = hint_of(function, name)
        return cls(name == "outcome" or Failed in get_args(hint), _reader_of(hint))

    def convert(self, method: str, found: Any, owner: GetOwner = no_owner) -> Any:
        """Return *found*, the value or outcome of a wait, converted to the annotated type.

        The value of a job is JSON: without the conversion, a method that annotates a `date` or a
        model would get a `str` or a `dict`. Only an awaitable returns Python objects, which are not
        converted. Bound values in it belong to *owner*.

        Raises:
            ContractError: *found* does not match the type.
        """
        try:
            with bound_values(owner):
                return self.read(found)
        except ValueError as error:
            raise ContractError(f"{method} cannot take the value of the wait: {error}") from error
        except TypeError:  # a type that msgspec does not support, or a Protocol
            return found


def _reader_of(hint: Any) -> Reader:
    """Return the reader for a parameter with the annotation *hint*; None: it cannot be read."""
    parts = get_args(hint)
    if Failed in parts:  # Done[T] | Failed
        done = next((get_args(each) for each in parts if get_origin(each) is Done), ())
        read = _reader_of(next(iter(done), None))
        return lambda found: Done(read(found.value)) if isinstance(found, Done) else found
    if parts and Failed in get_args(parts[-1]):  # a list or dict of outcomes, from `gather`
        return partial(_read_all, _reader_of(parts[-1]))
    if hint in (None, Any, dict, list):
        return lambda found: found
    try:
        codec = codec_of("", hint)
    except ConfigurationError:
        return lambda found: found
    read = partial(msgspec.convert, type=hint) if codec is None else codec.decode
    return partial(_read_json, hint, read)


def _read_all(read: Reader, found: Any) -> Any:
    if isinstance(found, dict):
        return {key: read(each) for key, each in found.items()}
    return [read(each) for each in found] if isinstance(found, list) else found


def _read_json(hint: Any, read: Reader, found: Any) -> Any:
    container = isinstance(found, dict | list)
    if not container and type(found) not in _SCALARS:
        return found
    # A bool is an int here as in Python; msgspec would reject it.
    if not container and isinstance(hint, type) and isinstance(found, hint):
        return found
    return read(found)


class FunctionStep(msgspec.Struct, frozen=True, eq=False):
    """A step of a function under `@tool` or `@prompt`, called like a method given to `then`.

    Attributes:
        function: the function of the step. Its first parameter gets the value of the wait.
        call: calls it with its dependencies; takes the channel first.
        names: its parameters that are arguments of the decorated function.
        channels: its parameters that get the channel.
        bound: the instance if the decorated function is a method.
    """

    function: Callable[..., Any]
    call: Callable[..., Any]
    names: Collection[str]
    channels: Collection[str]
    value: StepValue
    bound: tuple[Any, ...] = ()

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.function

    def __call__(self, request: Any, value: Any, channel: Channel) -> Any:
        """Call the function with the *value*, and with arguments of the *request*."""
        given = {name: getattr(request.arguments, name) for name in self.names}
        given.update(dict.fromkeys(self.channels, channel))
        return self.call(channel, *self.bound, value, **given)


class HasSteps:
    """A component made of a function, with the steps in which its calls continue.

    Attributes:
        function_steps: the steps by name.
        bound: the instance if the function is a method.
    """

    function_steps: Mapping[str, FunctionStep] = {}
    bound: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Return the step *name*. Called only for names that are not attributes."""
        step = self.function_steps.get(name)
        if step is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return replace(step, bound=self.bound)


# Cached for resumed calls, and bounded: functions may be made at run time.
@lru_cache(maxsize=1024)
def step_value(function: Callable[..., Any], place: int) -> StepValue | str:
    """Return the parameter at position *place* of *function*, which gets the value of a wait.

    Returns:
        The parameter; or a str, the reason why *function* cannot be called with a channel as well.
    """
    try:
        signature_of(function).bind(*[None] * (place + 2))
    except (TypeError, ValueError) as error:
        return str(error)
    return StepValue.of(function, place)


def is_step(method: Any) -> bool:
    """Return whether *method*, a function of a class, may be passed to `then`.

    After `self` such a method takes three parameters: the request, the value of the wait, and the
    channel, which is called `channel` or annotated `Channel`.
    """
    if not inspect.isfunction(method):
        return False
    parameters = list(signature_of(method).parameters.values())
    return len(parameters) == 4 and (
        parameters[3].name == "channel" or parameters[3].annotation in (Channel, "Channel")
    )


def function_of(method: Any) -> Any:
    """Return the function behind a bound method or a step; return any other object unchanged."""
    return getattr(method, "__func__", method)


def answer_of(continuation: Continuation, value: Any) -> tuple[Any, str]:
    """Return the value that a method for `then` gets, and a text if the user declined a question.

    The value of an accepted question is the content of its answer. If one of several questions
    was declined, the value is the answers unchanged. The text states that a question was declined
    or cancelled; it is empty if all were accepted.
    """
    if not continuation.asked:
        return value, ""
    answers = {"": value} if continuation.alone else value
    for each in answers.values():
        if isinstance(each, Declined | Cancelled):
            did = "declined" if isinstance(each, Declined) else "cancelled the question"
            return value, f"The user {did}."
    contents = {
        key: each.content if isinstance(each, Accepted) else each for key, each in answers.items()
    }
    return contents[""] if continuation.alone else contents, ""


def hint_of(function: Any, name: str) -> Any:
    """Return the annotation of the parameter *name* of *function*; None if it cannot be read."""
    try:
        # Only this annotation is evaluated: the others may use names that exist only for type
        # checkers.
        one = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
        return get_type_hints(one, getattr(function, "__globals__", {}))[name]
    except (AttributeError, KeyError, NameError, SyntaxError, TypeError):
        return None
