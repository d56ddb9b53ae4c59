"""The signature of a function under a decorator: its arguments and its result as types.

The parameters describe the arguments that a client sends; those annotated `Channel` get the channel
instead. msgspec reads the arguments; if it cannot read the type of a parameter, or pydantic's
constraints are among the annotations, pydantic reads all of them.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import make_dataclass
from functools import partial
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from genmcp._schema.of_pydantic import is_pydantic, is_pydantic_note
from genmcp._schema.of_type import schema_of
from genmcp.binding import described
from genmcp.channel import Channel
from genmcp.content import CONTENT
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.dependencies import dependencies_of, signature_of, with_context
from genmcp.errors import ConfigurationError
from genmcp.hook import check_call


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function, and its result.

    Attributes:
        arguments: a struct, or a pydantic dataclass, with a field for each parameter that a client
            passes.
        names: the names of these parameters.
        channels: the names of the parameters that get the channel.
        output: the type of the result if it is data; None for texts and content.
    """

    arguments: type
    names: Sequence[str]
    channels: Sequence[str]
    output: Any

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        decorator: str,
        closed: bool = True,
        texts: Mapping[str, str] = {},
    ) -> "Signature":
        """Return the signature of *function*.

        Args:
            function: the function.
            decorator: its decorator, for errors.
            closed: whether the type of the arguments rejects unknown arguments, as Python does.
            texts: descriptions of parameters, for those without one in their annotation.

        Raises:
            ConfigurationError: the function is a generator, a parameter cannot be passed by name,
                or the type of a parameter has no JSON form.
        """
        owner, hints, passed, channels = _parameters(function, decorator)
        fields = [_field(owner, each, hints.get(each.name, Any)) for each in passed]
        fields = [
            (name, _described(hint, texts[name]) if name in texts else hint, default)
            for name, hint, default in fields
        ]
        if any(map(_needs_pydantic, fields)):
            arguments = _pydantic_arguments(owner, fields)
        else:
            arguments = msgspec.defstruct(
                function.__name__,
                [_struct_field(owner, *each) for each in fields],
                kw_only=True,
                forbid_unknown_fields=closed,
                module=function.__module__,
            )
        names = [each.name for each in passed]
        return cls(arguments, names, channels, _output_of(hints.get("return")))

    def given(self, arguments: Any, channel: Channel) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        given = {name: getattr(arguments, name) for name in self.names}
        for name in self.channels:
            given[name] = channel
        return given

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the hook that calls *function* with the arguments of a request.

        The hook is an `async def` if *function* is.
        """
        # A function without dependencies is called without a further call in between.
        injected = with_context(function, Channel) if dependencies_of(function) else None

        def call(request: Request, channel: Channel) -> Any:
            given = self.given(request.arguments, channel)
            return function(**given) if injected is None else injected(channel, **given)

        async def call_async(request: Request, channel: Channel) -> Any:
            given = self.given(request.arguments, channel)
            return await (function(**given) if injected is None else injected(channel, **given))

        return call_async if inspect.iscoroutinefunction(function) else call


class SchemaSignature(Signature, frozen=True):
    """The parameters of a function whose arguments a JSON Schema describes.

    Attributes:
        arguments: the schema.
        rest: whether the function has `**` parameters, which get all other arguments.
        reserved: the names of parameters that are not arguments, whatever a client sends.
    """

    arguments: Any
    rest: bool
    reserved: Sequence[str]

    @classmethod
    def of_schema(cls, function: Callable[..., Any], schema: Any) -> "SchemaSignature":
        """Return the signature of *function*, whose parameters get the properties of *schema*.

        Raises:
            ConfigurationError: *schema* is not a mapping, the function is a generator, or a
                parameter and a property do not fit each other.
        """
        owner, hints, passed, channels = _parameters(function, "@tool")
        if not isinstance(schema, Mapping):
            raise ConfigurationError(
                f"{owner}: input_schema is a JSON Schema, not {schema!r}; types are read from the "
                f"hints of the parameters, without input_schema"
            )
        rest = [each for each in passed if each.kind is each.VAR_KEYWORD]
        named = [each for each in passed if each not in rest]
        properties = schema.get("properties") or {}
        for each in named:
            _field(owner, each, Any)
            if each.name not in properties and each.default is each.empty and not rest:
                raise ConfigurationError(
                    f"{owner}: parameter {each.name} is no property of input_schema"
                )
        names = [each.name for each in named]
        if unknown := [] if rest else [each for each in properties if each not in names]:
            raise ConfigurationError(
                f"{owner}: input_schema has the property {unknown[0]!r}: add a parameter of that "
                f"name, or **arguments for all others"
            )
        return cls(
            schema,
            names,
            channels,
            _output_of(hints.get("return")),
            bool(rest),
            [*channels, *dependencies_of(function)],
        )

    def given(self, arguments: Any, channel: Channel) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        names = arguments.keys() - self.reserved if self.rest else self.names
        given = {name: arguments[name] for name in names if name in arguments}
        return given | dict.fromkeys(self.channels, channel)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of *function* in errors."""
    return function.__qualname__.rpartition("<locals>.")[2]


_ARGS: Final = re.compile(r"^Arg(?:ument)?s:[ ]*\n((?:[ ]+[^\n]*(?:\n|\Z)|\n)+)", re.MULTILINE)
_ARG: Final = re.compile(r"\*{0,2}(\w+)(?: *\([^\n]*?\))?:\s+(.+)", re.DOTALL)


def docstring_of(function: Callable[..., Any]) -> tuple[str, Mapping[str, str]]:
    """Return the docstring of *function* without its section `Args:`, and the texts of that.

    The section is in Google style. One that names anything but the parameters of the function stays
    in the docstring, and has no texts.
    """
    text = inspect.getdoc(function) or ""
    section = _ARGS.search(text)
    if section is None:
        return text, {}
    entries = re.split(r"\n+(?=\S)", dedent(section[1]).strip())
    found = [_ARG.fullmatch(each) for each in entries]
    texts = {each[1]: " ".join(each[2].split()) for each in found if each}
    if (
        len(texts) < len(entries)
        or not texts.keys() <= inspect.signature(function).parameters.keys()
    ):
        return text, {}
    parts = text[: section.start()].strip(), text[section.end() :].strip()
    return "\n\n".join(filter(None, parts)), texts


def is_channel(hint: Any) -> bool:
    """Return whether a parameter with the annotation *hint* gets the channel."""
    return any(each is Channel or get_origin(each) is Channel for each in (hint, *get_args(hint)))


def _parameters(
    function: Callable[..., Any], decorator: str
) -> tuple[str, Mapping[str, Any], Sequence[inspect.Parameter], Sequence[str]]:
    """Return the name and the hints of *function*, its parameters for arguments, and for channels.

    Raises:
        ConfigurationError: the function is a generator, or its hints cannot be read.
    """
    owner = name_of(function)
    check_call(owner, function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{owner}: its type hints cannot be read: {error}. {decorator} needs them at run time, "
            f"by names of the module"
        ) from error
    parameters = signature_of(function).parameters
    channels = [name for name in parameters if is_channel(hints.get(name))]
    passed = [each for name, each in parameters.items() if name not in channels]
    return owner, hints, passed, channels


_Field = tuple[str, Any, Any]
"""The name, the annotation and the default of a parameter."""


def _field(owner: str, parameter: inspect.Parameter, hint: Any) -> _Field:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigurationError(
            f"{owner}: parameter {parameter}: each argument needs a name it can be passed by"
        )
    if parameter.name == "channel" and hint is Any:
        raise ConfigurationError(f"{owner}: annotate channel as Channel, or call it something else")
    if _is_annotated(hint):
        kind, *notes = get_args(hint)
        # A text is a description.
        read = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
        for note in read:
            if not (isinstance(note, msgspec.Meta) or is_pydantic_note(note)):
                raise ConfigurationError(
                    f"{owner}: parameter {parameter.name}: {note!r} would be ignored; constraints "
                    f"and descriptions are given with msgspec.Meta or pydantic.Field, or a "
                    f"description as a text"
                )
        hint = Annotated[(kind, *read)]
    return parameter.name, hint, parameter.default


def _described(hint: Any, text: str) -> Any:
    """Return *hint* with the description *text*, unless it has one."""
    kind, *notes = get_args(hint) if _is_annotated(hint) else (hint,)
    # Of several descriptions the last one counts.
    return Annotated[(kind, msgspec.Meta(description=text), *notes)]


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _needs_pydantic(field: _Field) -> bool:
    _, hint, default = field
    return is_pydantic_note(default) or is_pydantic(hint)


def _struct_field(owner: str, name: str, hint: Any, default: Any) -> Any:
    """Return a field as `msgspec.defstruct` takes it."""
    try:
        msgspec.json.schema(hint, schema_hook=described)
    except TypeError as error:
        raise ConfigurationError(
            f"{owner}: parameter {name}: {hint} is not read from JSON here; use a struct, a "
            f"dataclass, a TypedDict or a pydantic model ({error})"
        ) from error
    if default is inspect.Parameter.empty:
        return name, hint
    if isinstance(default, str | bytes | int | float | None):
        return name, hint, default
    # A mutable default needs a factory, so that each call gets a copy. msgspec does not list the
    # default of a factory, so the schema states it.
    listed = Annotated[hint, msgspec.Meta(extra_json_schema={"default": default})]
    return name, listed, msgspec.field(default_factory=partial(deepcopy, default))


def _pydantic_arguments(owner: str, fields: Sequence[_Field]) -> type:
    """Return a pydantic dataclass with *fields*."""
    import pydantic

    made: list[tuple[str, Any]] = []
    for name, hint, default in fields:
        kind, *notes = get_args(hint) if _is_annotated(hint) else (hint,)
        notes = [_pydantic_note(each) for each in notes]
        try:
            pydantic.TypeAdapter(kind)
        except pydantic.errors.PydanticUserError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"{owner}: parameter {name} cannot stand beside types or constraints of pydantic "
                f"in one function, as a struct of msgspec cannot: {reason}"
            ) from error
        # Defaults are given by annotation, so that the fields keep the order of the parameters.
        if is_pydantic_note(default):
            notes.append(default)
        elif default is not inspect.Parameter.empty:
            notes.append(pydantic.Field(default=default))
        made.append((name, Annotated[(kind, *notes)] if notes else kind))
    made_type = make_dataclass(owner.rpartition(".")[2], made, kw_only=True)
    # Strict, as msgspec is: "3" is no int. Models in the fields have their own configurations.
    config = pydantic.ConfigDict(strict=True)
    return cast(type, pydantic.dataclasses.dataclass(made_type, config=config))


_SHARED: Final = (
    *("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length"),
    *("title", "description", "examples"),
)
"""The constraints that `msgspec.Meta` and `pydantic.Field` have in common."""


def _pydantic_note(note: Any) -> Any:
    """Return the pydantic form of a constraint that may be given with `msgspec.Meta`."""
    import pydantic

    if not isinstance(note, msgspec.Meta):
        return note
    given = {name: value for name in _SHARED if (value := getattr(note, name)) is not None}
    return pydantic.Field(**given, json_schema_extra=note.extra_json_schema)


def _output_of(hint: Any) -> Any:
    """Return the type of the data that a function with the result *hint* returns.

    `Order | Continue` has the data `Order`. None if the result is a text or content, or if nothing
    is known of it.
    """
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        members = [each for each in get_args(hint) if (get_origin(each) or each) is not Continue]
        hint = Union[tuple(members)] if members else None  # noqa: UP007 - made at run time
    if hint in (None, NoneType, Any, object, Continue) or _has_content(hint):
        return None
    try:
        schema = schema_of(hint, output=True)
    except ConfigurationError:
        return None  # such as an awaitable
    return None if _is_text(schema) else hint


def _has_content(hint: Any) -> bool:
    """Return whether *hint* is, or contains, a type of content, such as a list of images."""
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, (*CONTENT, bytes, bytearray, memoryview)):
        return True
    return any(map(_has_content, get_args(hint)))


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a value of *schema* may be a string, which is sent as a text block."""
    kinds = schema.get("type", ())
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) or any(
        map(_is_text, schema.get("anyOf", ()))
    )
