"""Arguments that clients send as texts: those of prompts, and the variables of URI templates.

The text of a number, a boolean, a list or an object is parsed as JSON if the type of the argument
is one of these.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp._schema.arguments import arguments_of
from genmcp.errors import ArgumentFaults, ConfigurationError, InvalidParams
from genmcp.faults import Fault, error_data
from genmcp.protocol.prompts import PromptArgument


class TextArguments(msgspec.Struct, frozen=True):
    """The arguments of a prompt, or the variables of a URI template.

    Attributes:
        listed: the definitions of the arguments, as listed.
        decode: converts the received texts to the arguments of hooks, or raises ArgumentFaults.
            Lists of texts are accepted, too: the values of exploded variables.
        options: the texts of all possible values, for arguments with fixed values.
    """

    listed: Sequence[PromptArgument]
    decode: Callable[[Mapping[str, Any]], Any]
    options: Mapping[str, Sequence[str]]

    def read(self, given: Mapping[str, Any], rejected: str, **named: str) -> Any:
        """Return the arguments of hooks for *given*, the received texts.

        Raises:
            InvalidParams: they are invalid (2026-07-28, server/prompts, "Error Handling"): the
                message is *rejected* and the faults, the data has the members *named*.
        """
        try:
            return self.decode(given)
        except ArgumentFaults as error:
            text = "\n".join([f"{rejected}:", *(f"- {each}" for each in error.faults)])
            raise InvalidParams(text, error_data(error.faults, **named)) from None


_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


_BITS: Final = {"1": True, "0": False}


_KINDS: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


_json = msgspec.json.Decoder().decode


def text_arguments(source: Any) -> TextArguments:
    """Return the arguments described by *source*: a list of PromptArgument, a type, or None.

    A list decodes to a dict of texts, a type to an instance of it. None means no arguments.

    Raises:
        ConfigurationError: *source* does not describe arguments.
    """
    if source is None or isinstance(source, list | tuple):
        return _of_list(source or ())
    return _of_type(source)


def _of_list(listed: Sequence[Any]) -> TextArguments:
    for argument in listed:
        if not isinstance(argument, PromptArgument):
            raise ConfigurationError(f"arguments: {argument!r} is not a PromptArgument")
    # Reject a duplicate name: a client would show one field for both arguments.
    names = [argument.name for argument in listed]
    for name in names:
        if not isinstance(name, str) or not name.strip() or names.count(name) > 1:
            raise ConfigurationError(f"arguments: each needs a name of its own, not {name!r}")
    required = [argument.name for argument in listed if argument.required]

    def decode(given: Mapping[str, str]) -> dict[str, str]:
        _check_required(required, given)
        return dict(given)

    return TextArguments(listed, decode, {})


def _of_type(source: Any) -> TextArguments:
    # Unknown arguments are ignored: a client may send further fields of its form. They are not
    # typing errors, since no model writes them.
    typed = arguments_of(source, extra="ignore", origin="arguments")
    if typed.bound:
        raise ConfigurationError("arguments: a Handle is an argument of tools and jobs only")
    required = typed.schema.get("required", [])
    properties: Mapping[str, Any] = typed.schema.get("properties", {})
    values = {name: _Values(typed.schema, schema) for name, schema in properties.items()}

    def decode(given: Mapping[str, Any]) -> Any:
        read: dict[str, Any] = {}
        for name, text in given.items():
            value = values[name].read(text) if name in values else text
            if value is not msgspec.UNSET:
                read[name] = value
        _check_required(required, read)
        return typed.decode(msgspec.json.encode(read))

    listed = [
        PromptArgument(
            name=name,
            title=_title(name, schema),
            description=schema.get("description"),
            required=name in required or None,
        )
        for name, schema in properties.items()
    ]
    options = {name: value.options for name, value in values.items() if value.options}
    return TextArguments(listed, decode, options)


def _check_required(required: Sequence[str], given: Mapping[str, Any]) -> None:
    if missing := [name for name in required if name not in given]:
        raise ArgumentFaults([Fault((name,), "missing, and required") for name in missing])


def _title(name: str, schema: Mapping[str, Any]) -> str | None:
    """Return the title in *schema*, or None if it is the one that pydantic derives from *name*."""
    title = schema.get("title")
    return None if title == name.replace("_", " ").title() else title


class _Values:
    """The values that an argument may have. *schema* describes it; *root* has the definitions."""

    def __init__(self, root: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self.kinds: set[str] = set()
        self.takes_text = False
        self.items: _Values | None = None
        choice: list[Any] = []
        for branch in _branches(root, schema):
            if (values := _fixed(branch)) is not None:
                choice += values
                self.kinds.update(_KINDS.get(type(value), "null") for value in values)
            else:
                kind = branch.get("type", "string")
                kinds = {kind} if isinstance(kind, str) else {*kind}
                self.takes_text |= "string" in kinds
                self.kinds |= kinds
                choice += [True, False] if "boolean" in kinds else []
                if isinstance(items := branch.get("items"), Mapping):
                    self.items = _Values(root, items)
        self.texts = {value for value in choice if isinstance(value, str)}
        self.options = () if self.takes_text else tuple(dict.fromkeys(_texts(choice)))

    def read(self, text: Any) -> Any:
        """Convert *text* to the type of the argument; return *text* itself if that fails.

        Returns UNSET for an empty text, which a form sends for an empty number or choice field.
        The texts of an exploded variable are a list, whose items are converted.
        """
        if not isinstance(text, str):
            read = self.items.read if self.items is not None and isinstance(text, list) else None
            return [read(each) for each in text if each] if read else text
        if self.takes_text or text in self.texts:
            return text
        word = text.strip().lower()
        if not word:
            return msgspec.UNSET
        # A text that is not among the choices is kept: its validation error names the choices.
        if self.kinds == {"string"}:
            return text
        if "boolean" in self.kinds:
            # "1" means true only if the argument cannot be a number.
            words = _WORDS if self.kinds & {"integer", "number"} else {**_WORDS, **_BITS}
            if word in words:
                return words[word]
        # A text that is not JSON is kept: its validation error names the expected type.
        try:
            return _json(text)
        except (msgspec.DecodeError, RecursionError):
            return text


def _branches(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of *schema* (`anyOf`, `oneOf`), with references resolved."""
    # msgspec or pydantic made the schema, so that all references are local.
    while "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = target
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives is None:
        yield schema
    else:
        for each in alternatives:
            yield from _branches(root, each)


def _fixed(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield msgspec.json.encode(value).decode()
