"""The arguments of a prompt: how they are listed, read from texts, and completed.

In the protocol each is a text (2026-07-28, server/prompts). If a type describes them, the text for
a number, a boolean, a list or an object is parsed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import Fault
from genmcp.protocol.prompts import PromptArgument
from genmcp.schema.arguments import arguments_of

__all__ = ["PromptArguments", "prompt_arguments"]

_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BITS: Final = {"1": True, "0": False}
_KINDS: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}

_json = msgspec.json.Decoder().decode


class PromptArguments(msgspec.Struct, frozen=True):
    """The arguments of a prompt.

    listed: their entries in the listing. decode: converts the received texts to the arguments of
    the hooks, or raises ArgumentFaults. options: the values, as texts, of the arguments that are a
    choice of fixed ones.
    """

    listed: Sequence[PromptArgument]
    decode: Callable[[Mapping[str, str]], Any]
    options: Mapping[str, Sequence[str]]


def prompt_arguments(source: Any) -> PromptArguments:
    """Return the arguments described by *source*: a list of PromptArgument, a type, or None.

    With a list they are decoded to a dict of texts, with a type to that type. None lists none.

    Raises:
        ConfigurationError: *source* does not describe arguments.
    """
    if source is None or isinstance(source, list | tuple):
        return _of_list(source or ())
    return _of_type(source)


def _of_list(listed: Sequence[Any]) -> PromptArguments:
    for argument in listed:
        if not isinstance(argument, PromptArgument):
            raise ConfigurationError(f"arguments: {argument!r} is not a PromptArgument")
    names = [argument.name for argument in listed]
    for name in names:
        if not isinstance(name, str) or not name.strip() or names.count(name) > 1:
            raise ConfigurationError(f"arguments: each needs a name of its own, not {name!r}")
    required = [argument.name for argument in listed if argument.required]

    def decode(given: Mapping[str, str]) -> dict[str, str]:
        _check_required(required, given)
        return dict(given)

    return PromptArguments(listed, decode, {})


def _of_type(source: Any) -> PromptArguments:
    # Unknown arguments are ignored: a host sends those of its form, which are not misspelt.
    typed = arguments_of(source, extra="ignore", origin="arguments")
    required = typed.schema.get("required", [])
    properties: Mapping[str, Any] = typed.schema.get("properties", {})
    values = {name: _Values(typed.schema, schema) for name, schema in properties.items()}

    def decode(given: Mapping[str, str]) -> Any:
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
    return PromptArguments(listed, decode, options)


def _check_required(required: Sequence[str], given: Mapping[str, Any]) -> None:
    if missing := [name for name in required if name not in given]:
        raise ArgumentFaults([Fault((name,), "missing, and required") for name in missing])


def _title(name: str, schema: Mapping[str, Any]) -> str | None:
    """Return the title that was set; pydantic derives one from each name, which is ignored."""
    title = schema.get("title")
    return None if title == name.replace("_", " ").title() else title


class _Values:
    """The values one argument may have, by its schema within *root*."""

    def __init__(self, root: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self.kinds: set[str] = set()
        self.takes_text = False
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
        self.texts = {value for value in choice if isinstance(value, str)}
        self.options = () if self.takes_text else tuple(dict.fromkeys(_texts(choice)))

    def read(self, text: str) -> Any:
        """Return the value for *text*, the text itself if it has none, UNSET if it is empty.

        A form that was left empty sends an empty text, which is neither a number nor a choice.
        """
        if self.takes_text or text in self.texts:
            return text
        word = text.strip().lower()
        if not word:
            return msgspec.UNSET
        if self.kinds == {
            "string"
        }:  # a choice of texts, to which this does not belong: the check reports that
            return text
        if "boolean" in self.kinds:
            words = _WORDS if self.kinds & {"integer", "number"} else {**_WORDS, **_BITS}
            if word in words:
                return words[word]
        try:
            return _json(text)
        except (msgspec.DecodeError, RecursionError):
            return text


def _branches(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of *schema*, each without a reference."""
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
