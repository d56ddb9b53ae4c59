"""Components: the base of tools, prompts and resources, and their attributes."""

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, ForwardRef, TypedDict, TypeVar, get_args, get_origin

import msgspec

from genmcp.channel import Channel
from genmcp.content import json_of
from genmcp.core.access import Access, checked_scopes
from genmcp.core.outcome import Outcome
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import HasSteps, check_hooks, check_words, function_of, hint_of, is_step
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.tools import ToolAnnotations
from genmcp.protocol.value import CacheScope

_HOOKS = ("validate", "call", "get", "read", "continue_", "on_cancel", "visible")


class ServerComponent:
    """The base of tools, prompts, resources and their repositories.

    Attributes:
        cache_ttl: seconds for which clients may cache the component's list entries and contents
            (2026-07-28, server/utilities, "Caching"). Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private" for resources, "public" for tools and prompts.
        scopes: the scopes that an access token must have for the component, besides those of the
            endpoint. Without them, no hook runs, and the client gets HTTP 403 with all scopes of
            the operation, for which it may ask its user. The component remains in lists. Not
            checked over stdio. Default: none.
    """

    cache_ttl: float = 0
    cache_scope: CacheScope = "private"
    scopes: Collection[str] = ()

    # The name of the hook that serves a request: each kind of component sets it in its class. Its
    # name cannot be that of an attribute of a user's class.
    __genmcp_hook__ = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check its names, and that a hook annotated to return Continue has a step for it."""
        super().__init_subclass__(**options)
        check_words(cls)
        check_hooks(cls, _HOOKS)
        hook = cls.__genmcp_hook__
        check_continues(f"{cls.__name__}.{hook}", getattr(cls, hook, None), cls)

    def continue_(self, tag: str, outcome: Outcome, channel: Channel[Any]) -> Any:
        """Continue a request after a wait, and return a result or another wait.

        This is the general form of `then`. The hook may run in another process than the first
        hook: `channel.request.arguments` has the arguments, or the key of a resource;
        `channel.request.params` has the name or URI; `channel.assigns` has the values that hooks
        have set.

        Args:
            tag: the tag of the `Continue` that began the wait.
            outcome: `Done(value)` or `Failed(error)`.
            channel: the channel of the request.

        Raises:
            ToolError: the work of a tool failed. The model gets the text of the error.
            PromptNotFound, ResourceNotFound: the component does not exist. Unlike a first hook,
                this hook must not return None to state that.
        """
        raise NotImplementedError

    def visible(self, access: Access | None) -> bool:
        """Return whether the client with this *access* may see and use the component.

        Called when the component is listed, requested or completed, and when a call resumes; in the
        latter case *access* may have no claims. The hook must not block. *access* is None for an
        anonymous client and over stdio. A component that a client may use with a further scope
        stays visible: see `scopes`.
        """
        return True


def can_continue(provider: ServerComponent | type[ServerComponent]) -> bool:
    """Return whether a call of *provider* can continue after a wait.

    A call can continue if *provider* has `continue_`, a step of a decorated function, or a method
    for `then` that is not itself a hook.
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
    """Check that *provider* has a step to continue in if *hook* is annotated to return Continue.

    If the annotation cannot be read, the first call that returns a Continue is checked instead.

    Raises:
        ConfigurationError: *provider* has no such step.
    """
    if _names_continue(hint_of(inspect.unwrap(hook), "return")) and not can_continue(provider):
        raise ConfigurationError(
            f"{owner} is annotated to return Continue, but {missing_step(owner, provider)}"
        )


def missing_step(owner: str, provider: ServerComponent | type[ServerComponent]) -> str:
    """Return the text of an error: the hook or step that *provider* lacks, and how to add it."""
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
        """Set the description to the docstring of the class, unless the class sets one."""
        described = inspect.cleandoc(cls.__doc__ or "")
        if described and "description" not in cls.__dict__:
            cls.description = described
        super().__init_subclass__(**options)


V = TypeVar("V")


class Metadata(TypedDict, total=False):
    """The options that tools, prompts and resources have in common."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    scopes: Collection[str]


# The characters and the length that 2026-07-28 allows (server/tools, "Tool Names").
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
    """Check the attributes that describe a component. Attributes that are None are ignored.

    Args:
        owner: the name of the component's class in errors.
        values: the attributes by name.
        annotations: the type of the component's annotations.

    Raises:
        ConfigurationError: an attribute is invalid; the message names *owner* and the attribute.
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
    checked_scopes(f"{owner}.scopes", values.get("scopes", ()))
    for icon in values.get("icons") or ():
        if not isinstance(icon, Icon):
            raise ConfigurationError(f"{owner}.icons must be a list of Icon, not of {icon!r}")
    annotations_of(owner, values.get("annotations"), annotations)


def check_tool_name(owner: str, name: str) -> None:
    """Check the *name* of a tool.

    Raises:
        ConfigurationError: the specification does not permit *name*.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{owner}.name must be 1 to 128 letters, digits, '_', '-' or '.', not {name!r}"
        )


def annotations_of(owner: str, given: Any, kind: type[V]) -> V | None:
    """Return the annotations *given* as a struct of type *kind*; None if *given* is None.

    *given* is such a struct, or a mapping with the names of the protocol.

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
    """Return a definition of type *kind*: *members*, and the fields that *values* has by name.

    The definition is encoded to JSON and decoded again. Invalid values are thereby rejected here,
    and the definition has no dict in common with the attributes of the component.

    Raises:
        ConfigurationError: a value cannot be listed.
    """
    fields: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]
    # The fields of the definition have the same names as the attributes of the component.
    given = {key: values[key] for key in fields if key in values} | members
    try:
        return msgspec.json.decode(json_of(kind(**given)), type=kind)
    except (ContractError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{owner} cannot be listed: {error}") from None


def set_options(
    component: object, owner: str, options: Mapping[str, Any], known: Collection[str]
) -> None:
    """Set *options*, keyword arguments, as attributes of *component*.

    Raises:
        ConfigurationError: an option is not *known*; the message begins with *owner*.
    """
    if unknown := options.keys() - {*known}:
        raise ConfigurationError(f"{owner} takes no {', '.join(sorted(unknown))}")
    for key, value in options.items():
        setattr(component, key, value)


def attributes_of(kind: type) -> Sequence[str]:
    """Return the names of the attributes that *kind*, a base class of components, declares."""
    return [key for base in kind.__mro__ for key in inspect.get_annotations(base)]


def class_attributes(cls: type, keys: Collection[str]) -> dict[str, Any]:
    """Return those of the attributes *keys* that *cls* itself sets to a value.

    Descriptors, such as a property or a slot, are left out: only an instance has their value.
    """
    own = {key: cls.__dict__[key] for key in keys if key in cls.__dict__}
    # An object with `__get__` is a descriptor, which has no value to check without an instance.
    return {key: value for key, value in own.items() if not hasattr(type(value), "__get__")}


def instance_attributes(provider: object, keys: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of *provider* in errors, and those of its attributes that *keys* name.

    Raises:
        ConfigurationError: *provider* has no attribute `name`.
    """
    owner: str = getattr(provider, "__name__", type(provider).__name__)
    values = {key: getattr(provider, key, None) for key in keys}
    if values["name"] is None:
        raise ConfigurationError(f"{owner} has no name")
    return owner, values


def instance_of(given: object, kind: type[V]) -> V | None:
    """Return *given* if it is an instance of *kind*, or a new instance if it is a subclass.

    Returns None for any other object.

    Raises:
        ConfigurationError: *given* is a class that requires arguments.
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
    """Return T if *cls* is declared as a `root[T]`; None if it is not, or if T is a plain dict.

    A plain dict is `dict`, `dict[str, Any]` or `dict[str, value]`.

    Raises:
        ConfigurationError: t is a string.
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
    """Return the T that the bases of *cls* pass to *root*: a type, a TypeVar, or None without one.

    A class between *cls* and *root* may be generic itself: `class Search(Tool[A], Generic[A])`,
    whose subclass has the base `Search[Books]`.
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
