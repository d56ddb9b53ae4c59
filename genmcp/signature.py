"""The signature of a function: the arguments that a client sends, and the channel."""

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError
from genmcp.hook import check_call

__all__ = ["Signature", "is_channel", "name_of"]


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function.

    arguments: a struct with a field for each parameter. channels: those that get the channel
    instead. returned: the hint of its result, None without one.
    """

    arguments: type[msgspec.Struct]
    channels: Sequence[str]
    returned: Any

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, decorator: str, closed: bool = True
    ) -> "Signature":
        """Read *function*, which is under *decorator*.

        closed: whether other arguments are rejected, as a call of the function would.

        Raises:
            ConfigurationError: it yields, a parameter cannot be passed by name, or its type is
                not JSON.
        """
        owner = name_of(function)
        check_call(owner, function)
        hints = _hints(owner, function, decorator)
        parameters = inspect.signature(function).parameters
        channels = [name for name in parameters if is_channel(hints.get(name))]
        fields = [
            _field(owner, parameter, hints.get(name, Any))
            for name, parameter in parameters.items()
            if name not in channels
        ]
        arguments = msgspec.defstruct(
            function.__name__,
            fields,
            kw_only=True,
            forbid_unknown_fields=closed,
            module=function.__module__,
        )
        return cls(arguments, channels, hints.get("return"))

    def given(self, arguments: msgspec.Struct, channel: Channel) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        given = msgspec.structs.asdict(arguments)
        for name in self.channels:
            given[name] = channel
        return given


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of *function* in errors."""
    return function.__qualname__.rpartition("<locals>.")[2]


def _hints(owner: str, function: Callable[..., Any], decorator: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{owner}: its type hints cannot be read: {error}. {decorator} needs them at run time, "
            f"by names of the module"
        ) from error


def is_channel(hint: Any) -> bool:
    """Return whether a parameter with the annotation *hint* gets the channel."""
    return any(each is Channel or get_origin(each) is Channel for each in (hint, *get_args(hint)))


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
