"""Forms: what a user is asked to fill in, and how that is read and explained.

A fault names the property as the form does, by its title, for the user who is to read it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import msgspec

from genmcp.content import json_of
from genmcp.errors import ArgumentFaults, ConfigurationError, ContractError
from genmcp.faults import Fault, Mismatch
from genmcp.question.of_type import faults_of, form_schema
from genmcp.schema.of_type import decoder_of, schema_of
from genmcp.schema.schema import Schema
from genmcp.schema.words import describe_value, join_pointer

__all__ = ["Form", "form_of_schema", "form_of_type"]

_KEPT = 256  # forms, each made once: of types all there are, of schemas made per call the last

# Whole numbers that every JSON implementation has; beyond them 1e300 is one too.
_EXACT = 2**53


class Form:
    """A form. `document` is its `requestedSchema`.

    *decode* makes a value of a type of the JSON of what was filled in; *nulls* are the properties
    it needs, with null for what was left empty. Without it what was filled in is a dict, with the
    defaults of the schema.

    Raises:
        ConfigurationError: a form may not ask for this; *origin* begins the message.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        origin: str,
        decode: Callable[[bytes], Any] | None = None,
        nulls: Sequence[str] = (),
    ) -> None:
        if faults := faults_of(document):
            raise _refusal(origin, faults)
        self.document = document
        self._properties: Mapping[str, Mapping[str, Any]] = document["properties"]
        self._decode = decode
        self._nulls = dict.fromkeys(nulls)
        # What is left empty is told by the name of the property, and not of the whole.
        self._schema = Schema(
            {key: value for key, value in document.items() if key != "required"}, origin=origin
        )
        self._defaults = {
            name: each["default"] for name, each in self._properties.items() if "default" in each
        }
        if decode is not None:
            self._defaults = {}  # the type has its own
        elif faults := self._schema.check(self._defaults):
            raise _refusal(f"{origin}: default", faults)

    def read(self, content: Any) -> Any:
        """Return what was filled in.

        Null is a property left empty, and so is an empty text where none may be entered. What was
        not asked for is left out.

        Raises:
            ArgumentFaults: it is not what was asked for. What the code of a type raises of its own
                is raised as it is.
        """
        if content is not None and not isinstance(content, Mapping):
            raise ArgumentFaults(
                (Fault(("content",), Mismatch("an object", describe_value(content))),)
            )
        filled = self._filled(content or {})
        if faults := [*self._missing(filled), *self._said(self._schema.check(filled))]:
            raise ArgumentFaults(faults)
        if self._decode is None:
            return filled
        try:
            return self._decode(msgspec.json.encode({**self._nulls, **filled}))
        except ArgumentFaults as error:
            raise ArgumentFaults(self._said(error.faults)) from None

    def _filled(self, content: Mapping[str, Any]) -> dict[str, Any]:
        filled = {}
        for name, schema in self._properties.items():
            value = content.get(name)
            if value is not None and not self._is_blank(name, value):
                filled[name] = _whole(value) if schema["type"] == "integer" else value
            elif name in self._defaults:
                filled[name] = deepcopy(self._defaults[name])
        return filled

    def _is_blank(self, name: str, value: Any) -> bool:
        """Whether *value* is what some clients send for a number, date or choice left empty."""
        return value == "" and not self._schema.fits({name: ""})

    def _missing(self, filled: Mapping[str, Any]) -> list[str]:
        return [
            f"{self._label(name)}: please fill it in"
            for name in self._properties
            if name in self.document.get("required", ()) and name not in filled
        ]

    def _label(self, name: str) -> str:
        return str(self._properties[name].get("title", name))

    def _said(self, faults: Sequence[str]) -> list[str]:
        """Return *faults* with the name that the form has for each place."""
        labels = {join_pointer("", name): self._label(name) for name in self._properties}
        return [self._relabelled(line, labels) for line in faults]

    def _relabelled(self, line: str, labels: Mapping[str, str]) -> str:
        for place, label in labels.items():
            if line.startswith((f"{place}: ", f"{place}/")):
                return f"{label}: {line[len(place) :].partition(': ')[2]}"
        return line.replace("(root): ", "the form: ", 1)


def form_of_schema(schema: Mapping[str, Any]) -> Form:
    """Return the form that asks for what *schema* describes, made once for equal ones.

    Raises:
        ConfigurationError: a form may not ask for this.
    """
    try:
        return _form_of_schema(json_of(schema))
    except ContractError as error:
        raise ConfigurationError(f"elicit: the schema cannot be written as JSON: {error}") from None


@lru_cache(_KEPT)
def _form_of_schema(schema: bytes) -> Form:
    return Form(msgspec.json.decode(schema), origin="elicit")


def form_of_type(kind: Any) -> Form:
    """Return the form that asks for a *kind*, made once.

    Raises:
        ConfigurationError: it is no class, or none that a form may ask for.
    """
    if not isinstance(kind, type):
        raise ConfigurationError(f"elicit: a form is made of a class or a schema, not of {kind!r}")
    return _form_of_type(kind)


@lru_cache(_KEPT)
def _form_of_type(kind: type) -> Form:
    schema = schema_of(kind)
    origin = f"elicit: {kind.__qualname__}"
    if "properties" not in schema:
        raise ConfigurationError(f"{origin} is no form: it is not an object of named properties")
    document, nulls = form_schema(kind, schema)
    decode = decoder_of(kind, Schema(schema, origin=origin))
    return Form(document, origin=origin, decode=decode, nulls=nulls)


def _refusal(origin: str, faults: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{origin}: at {'; at '.join(faults)}. A form asks for texts, numbers, booleans and "
        f"choices among texts, one level deep (2026-07-28, client/elicitation)"
    )


def _whole(value: Any) -> Any:
    """Return 30 for 30.0, which is an integer to JSON Schema."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value
