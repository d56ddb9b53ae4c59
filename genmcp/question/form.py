"""Forms: the schema that the client gets, and the validation of the content that it returns.

The user reads the faults of the content. They name a property by its title, as the form does.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import msgspec

from genmcp._schema.of_type import decoder_of, schema_of
from genmcp._schema.schema import Schema
from genmcp._schema.words import describe_value, join_pointer
from genmcp.content import json_of
from genmcp.errors import ArgumentFaults, ConfigurationError, ContractError
from genmcp.faults import Fault, Mismatch
from genmcp.question.of_type import faults_of, form_schema

# The number of cached forms. A tool may make a new schema for each call, so there is a limit.
_MAX_CACHED = 256

# A float up to this limit that is a whole number is converted to an int; 1e300 remains a float.
# Every JSON implementation represents integers up to this limit exactly.
_EXACT = 2**53


class Form:
    """A form: its schema, and the validation of its content. Cached for each type and schema.

    Args:
        document: the `requestedSchema` that the client gets.
        origin: the beginning of error messages.
        decode: converts the JSON of the content to the type of the form. Default: the content is
            a dict, with the defaults of the schema.
        nulls: the properties that *decode* requires to be null if they were left empty.

    Raises:
        ConfigurationError: *document* is not a restricted schema.
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
        # Leave out `required`: `_missing` reports a missing property by its label.
        self._schema = Schema(
            {key: value for key, value in document.items() if key != "required"}, origin=origin
        )
        self._defaults = {
            name: each["default"] for name, each in self._properties.items() if "default" in each
        }
        if decode is not None:
            self._defaults = {}  # the type fills in its own defaults
        elif faults := self._schema.check(self._defaults):
            raise _refusal(f"{origin}: default", faults)

    def read(self, content: Any) -> Any:
        """Return the validated content of the form.

        A property is empty if it is null, or an empty text that the schema does not allow. Unknown
        properties are ignored.

        Raises:
            ArgumentFaults: the content does not fit the schema or the type.
            Exception: any exception that the code of the type raises.
        """
        if content is not None and not isinstance(content, Mapping):
            raise ArgumentFaults(
                (Fault(("content",), Mismatch("an object", describe_value(content))),)
            )
        filled = self._fill(content or {})
        if faults := [*self._missing(filled), *self._label_faults(self._schema.check(filled))]:
            raise ArgumentFaults(faults)
        if self._decode is None:
            return filled
        try:
            return self._decode(msgspec.json.encode({**self._nulls, **filled}))
        except ArgumentFaults as error:
            raise ArgumentFaults(self._label_faults(error.faults)) from None

    def _fill(self, content: Mapping[str, Any]) -> dict[str, Any]:
        filled = {}
        for name, schema in self._properties.items():
            value = content.get(name)
            if value is not None and not self._is_blank(name, value):
                filled[name] = _whole(value) if schema["type"] == "integer" else value
            # Copy the default: the hook may change the content that it gets.
            elif name in self._defaults:
                filled[name] = deepcopy(self._defaults[name])
        return filled

    def _is_blank(self, name: str, value: Any) -> bool:
        """Return whether *value* is the "" that clients send for an empty number or choice."""
        # If the schema of the property allows an empty text, "" is a value.
        return value == "" and not self._schema.fits({name: ""})

    def _missing(self, filled: Mapping[str, Any]) -> list[str]:
        return [
            f"{self._label(name)}: please fill it in"
            for name in self._properties
            if name in self.document.get("required", ()) and name not in filled
        ]

    def _label(self, name: str) -> str:
        return str(self._properties[name].get("title", name))

    def _label_faults(self, faults: Sequence[str]) -> list[str]:
        """Return *faults* with the labels of the properties in place of JSON Pointers."""
        labels = {join_pointer("", name): self._label(name) for name in self._properties}
        return [self._relabel(line, labels) for line in faults]

    def _relabel(self, line: str, labels: Mapping[str, str]) -> str:
        for place, label in labels.items():
            if line.startswith((f"{place}: ", f"{place}/")):
                return f"{label}: {line[len(place) :].partition(': ')[2]}"
        return line.replace("(root): ", "the form: ", 1)


def form_of_schema(schema: Mapping[str, Any]) -> Form:
    """Return the form with this *schema*. Equal schemas share a cached form.

    Raises:
        ConfigurationError: *schema* is not a restricted schema.
    """
    try:
        return _form_of_schema(json_of(schema))
    except ContractError as error:
        raise ConfigurationError(f"elicit: the schema cannot be written as JSON: {error}") from None


@lru_cache(_MAX_CACHED)
def _form_of_schema(schema: bytes) -> Form:
    return Form(msgspec.json.decode(schema), origin="elicit")


def form_of_type(kind: Any) -> Form:
    """Return the form for a type.

    Raises:
        ConfigurationError: *kind* is not a class, or has a property that a form cannot have.
    """
    if not isinstance(kind, type):
        raise ConfigurationError(f"elicit: the form must be a class or a schema, not {kind!r}")
    return _form_of_type(kind)


@lru_cache(_MAX_CACHED)
def _form_of_type(kind: type) -> Form:
    schema = schema_of(kind)
    origin = f"elicit: {kind.__qualname__}"
    if "properties" not in schema:
        raise ConfigurationError(
            f"{origin} cannot be a form: it is not an object with named properties"
        )
    document, nulls = form_schema(kind, schema)
    decode = decoder_of(kind, Schema(schema, origin=origin))
    return Form(document, origin=origin, decode=decode, nulls=nulls)


def _refusal(origin: str, faults: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{origin}: at {'; at '.join(faults)}. A form has texts, numbers, booleans and "
        f"choices among texts, one level deep (2026-07-28, client/elicitation)"
    )


def _whole(value: Any) -> Any:
    """Return *value* as an int if it is a whole float: 30.0 is an integer in JSON Schema."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value
