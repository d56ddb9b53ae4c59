"""Components: the base of tools, prompts and resources, and their attributes."""

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, ForwardRef, TypedDict, TypeVar, get_args, get_origin

import msgspec

from genmcp._core.outcome import Outcome
from genmcp._core.waiting import Continue
from genmcp.channel import Channel
from genmcp.content import json_of
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import (
    HasSteps,
    function_of,
    hint_of,
    is_step,
)
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.tools import ToolAnnotations
from genmcp.protocol.value import CacheScope


class ServerComponent:
    """The base of tools, prompts, resources and their repositories.

    cache_ttl, cache_scope: seconds for which clients may cache its list entries and contents, and
    whether the cache may be shared (2026-07-28, server/utilities, "Caching").
    """

    cache_ttl: float = 0
    cache_scope: CacheScope = "private"

    # The name of the hook that serves a request: each kind of component sets it in its class. Its
    # name cannot be that of an attribute of a user's class.
    __genmcp_hook__ = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that a call can continue if the first hook is annotated to return Continue."""
        super().__init_subclass__(**options)
        hook = cls.__genmcp_hook__
        check_continues(f"{cls.__name__}.{hook}", getattr(cls, hook, None), cls)

    def continue_(self, tag: str, outcome: Outcome, channel: Channel[Any]) -> Any:
        """Continue a request that waited under *tag*, and return a result or another wait.

        It is the general form of `then`. It may run in another process than the first hook: the
        arguments, or the key of a resource, are in `channel.request.arguments`, the name or URI is
        in `channel.request.params`, and the values that hooks have set are in `channel.assigns`.

        Args:
            tag: the tag of the `Continue`.
            outcome: `Done(value)` or `Failed(error)`.

        Raises:
            ToolError: the work of a tool failed in a way the model should read.
            PromptNotFound, ResourceNotFound: the component does not exist; None is an error here.
        """
        raise NotImplementedError

    def visible(self, principal: str | None) -> bool:
        """Return whether it exists for *principal*, None being an unauthenticated client.

        It is called when the component is listed, requested or completed, and must not block.
        """
        return True


def can_continue(provider: ServerComponent | type[ServerComponent]) -> bool:
    """Return whether a call of *provider* can continue after a wait.

    It needs `continue_`, a step of a function, or a method for `then` that is not a hook.
    """
    if function_of(provider.continue_) is not ServerComponent.continue_:
        return True
    if isinstance(provider, HasSteps):
        return bool(provider.function_steps)
    cls = provider if isinstance(provider, type) else type(provider)
    kind = next(base for base in cls.__mro__ if "__genmcp_hook__" in vars(base))
    own = {key: each for base in cls.__mro__ for key, each in vars(base).items()}
    return any(is_step(each) for key, each in own.items() if not hasattr(kind, key))


def check_continues(
    owner: str, hook: Any, provider: ServerComponent | type[ServerComponent]
) -> None:
    """Check that a call can continue after a *hook* that is annotated to return Continue.

    If the annotation is unreadable, the check is left to the first call that returns a Continue.

    Raises:
        ConfigurationError: it cannot.
    """
    if _names_continue(hint_of(inspect.unwrap(hook), "return")) and not can_continue(provider):
        raise ConfigurationError(
            f"{owner} is annotated to return Continue, but {missing_step(owner, provider)}"
        )


def missing_step(owner: str, provider: ServerComponent | type[ServerComponent]) -> str:
    """Return the part of an error that names the hook or step *provider* lacks, and the remedy."""
    if isinstance(provider, HasSteps):
        return (
            f"it has no step in which to continue: decorate a function with @{owner}.step and pass "
            f"it to .then() of the wait"
        )
    return "it has no continue_: write one, or pass a method to .then() of the wait"


def _names_continue(hint: Any) -> bool:
    return hint is Continue or any(map(_names_continue, get_args(hint)))


class DescribedComponent(ServerComponent):
    """A component with metadata. The docstring of a class is its description by default."""

    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the docstring as the description, unless the class sets one."""
        described = inspect.cleandoc(cls.__doc__ or "")
        if described and "description" not in cls.__dict__:
            cls.description = described
        super().__init_subclass__(**options)


V = TypeVar("V")


class Metadata(TypedDict, total=False):
    """The options of all kinds of components that describe it."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon]
    meta: Mapping[str, Any]


# 2026-07-28, server/tools, "Tool Names".
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

_MEMBERS: Mapping[str, tuple[Any, str]] = {
    "name": (str, "a text"),
    "title": (str, "a text"),
    "description": (str, "a text"),
    "mime_type": (str, "a text"),
    "icons": (list | tuple, "a list of Icon"),
    "meta": (Mapping, "a mapping"),
    "formats": (bool | Mapping, "True, False or a mapping of checkers"),
    "instructions": (str, "a text"),
    "website_url": (str, "a text"),
}

_CHOICES: Mapping[str, tuple[str, str]] = {
    "on_disconnect": ("finish", "cancel"),
    "cache_scope": ("public", "private"),
    "extra_arguments": ("forbid", "ignore"),
}


def check_metadata(
    owner: str, values: Mapping[str, Any], *, annotations: type = ToolAnnotations
) -> None:
    """Check the attributes of *owner*, *values*; None is ignored.

    *annotations* is the type of its annotations.

    Raises:
        ConfigurationError: one is invalid; the message names *owner* and the attribute.
    """
    for key, (kinds, words) in _MEMBERS.items():
        value = values.get(key)
        if value is None:
            continue
        if not isinstance(value, kinds):
            raise ConfigurationError(f"{owner}.{key} must be {words}, not {value!r}")
        if isinstance(value, str) and not value.strip():
            raise ConfigurationError(f"{owner}.{key} is blank")
    ttl = values.get("cache_ttl", 0)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl < inf:
        raise ConfigurationError(f"{owner}.cache_ttl must be a number of seconds, not {ttl!r}")
    for key, (first, second) in _CHOICES.items():
        if values.get(key, first) not in (first, second):
            raise ConfigurationError(
                f"{owner}.{key} must be {first!r} or {second!r}, not {values[key]!r}"
            )
    for icon in values.get("icons") or ():
        if not isinstance(icon, Icon):
            raise ConfigurationError(f"{owner}.icons must be a list of Icon, not of {icon!r}")
    annotations_of(owner, values.get("annotations"), annotations)


def check_tool_name(owner: str, name: str) -> None:
    """Check the *name* of a tool.

    Raises:
        ConfigurationError: the specification does not permit it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{owner}.name must be 1 to 128 letters, digits, '_', '-' or '.', not {name!r}"
        )


def annotations_of(owner: str, given: Any, kind: type[V]) -> V | None:
    """Return the annotations *given* as a *kind*, or as a mapping with the names of the protocol.

    Raises:
        ConfigurationError: an annotation is unknown, or of another type.
    """
    if given is None or isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{owner}.annotations must be {kind.__name__} or a mapping of them, not {given!r}"
        )
    known = [field.encode_name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise ConfigurationError(
                f"{owner}.annotations: {key!r} is not one of {', '.join(known)}"
            )
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{owner}.annotations: {error}") from None


def definition_of(kind: type[V], owner: str, values: Mapping[str, Any], **members: Any) -> V:
    """Return the definition of *kind* with *members*, and others by name from *values*.

    It is encoded to JSON and decoded: invalid values are rejected here, and a later change of a
    dict that was passed has no effect.

    Raises:
        ConfigurationError: a value cannot be listed.
    """
    fields: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]
    # Fields of the definition have the names of the attributes.
    given = {key: values[key] for key in fields if key in values} | members
    try:
        return msgspec.json.decode(json_of(kind(**given)), type=kind)
    except (ContractError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{owner} cannot be listed: {error}") from None


def attributes_of(kind: type) -> Sequence[str]:
    """Return the names of the attributes that *kind*, a base class of components, declares."""
    return [key for base in kind.__mro__ for key in inspect.get_annotations(base)]


def class_attributes(cls: type, keys: Collection[str]) -> dict[str, Any]:
    """Return the attributes of these *keys* that *cls* itself sets.

    Those with a `__get__`, such as a property or a slot, have a value only for an instance.
    """
    own = {key: cls.__dict__[key] for key in keys if key in cls.__dict__}
    # A property of the class has no value to check until there is an instance.
    return {key: value for key, value in own.items() if not hasattr(type(value), "__get__")}


def instance_attributes(provider: object, keys: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of *provider* in errors, and its attributes of these *keys*.

    Raises:
        ConfigurationError: it has no name.
    """
    owner: str = getattr(provider, "__name__", type(provider).__name__)
    values = {key: getattr(provider, key, None) for key in keys}
    if values["name"] is None:
        raise ConfigurationError(f"{owner} has no name")
    return owner, values


def instance_of(given: object, kind: type[V]) -> V | None:
    """Return *given*, or an instance if it is a class; None if it is not of *kind*.

    Raises:
        ConfigurationError: the class takes arguments.
    """
    if isinstance(given, kind):
        return given
    if not (isinstance(given, type) and issubclass(given, kind)):
        return None
    try:
        return given()
    except TypeError as error:
        raise ConfigurationError(
            f"{given.__name__} takes arguments; give an instance of it: {error}"
        ) from error


def type_argument(cls: type, root: type, value: Any = Any) -> Any:
    """Return T if *cls* is declared as a `root[T]`; None if not, or if T is a plain dict.

    A plain dict has texts as keys, and any value or a *value* as values.

    Raises:
        ConfigurationError: T is a string.
    """
    argument = _argument(cls, root)
    if argument is None or argument is Any or isinstance(argument, TypeVar):
        return None
    if isinstance(argument, str | ForwardRef):
        raise ConfigurationError(
            f"{cls.__name__}: give {root.__name__}[...] the type itself, not its name"
        )
    kind, members = get_origin(argument) or argument, get_args(argument)
    is_dict = kind in (dict, Mapping) and members in ((), (str, Any), (str, value))
    return None if is_dict else argument


def _argument(cls: type, root: type) -> Any:
    """Return the T of *cls* from its own bases: a type, a TypeVar if it is open, or None.

    A class in between may be generic: `class Search(Tool[A], Generic[A])`, then `Search[Books]`.
    """
    # `__orig_bases__` is read from the class itself: a subclass without brackets inherits the
    # attribute from a class with other arguments.
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin = get_origin(base)
        if origin is root:
            return get_args(base)[0]
        if isinstance(origin, type) and issubclass(origin, root):
            argument = _argument(origin, root)
            bound = dict(zip(origin.__parameters__, get_args(base), strict=True))  # type: ignore[attr-defined]
            if isinstance(argument, TypeVar):
                return bound[argument]
            if get_origin(argument) and argument.__parameters__:
                return argument[tuple(bound[each] for each in argument.__parameters__)]
    return None
