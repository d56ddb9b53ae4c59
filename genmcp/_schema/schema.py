"""A JSON Schema, compiled when it is made and then applied to values, fast.

jsonschema-rs decides whether a value fits; only the values that it rejects are explained
(`genmcp._schema.explain`).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs import RegexOptions, Registry, ValidationError, Validator
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from genmcp._schema.cost import COMPARED, cost_of
from genmcp._schema.document import DIALECTS, Document
from genmcp._schema.explain import Explainer
from genmcp._schema.limits import DEFAULT_LIMITS, SchemaLimits, ValueLimits, excess
from genmcp._schema.metered import Meter
from genmcp._schema.words import accepted_values, join_pointer, join_words, mismatch, to_json
from genmcp.errors import ConfigurationError
from genmcp.faults import Fault

Formats = bool | Mapping[str, Callable[[str], bool]]
"""Whether `format` is asserted. A mapping adds formats, or replaces standard ones, by name; a
checker rejects a text by returning False or by raising ValueError."""

_VALIDATORS: Final[dict[str, type[Validator]]] = dict(
    zip(
        DIALECTS,
        (
            jsonschema_rs.Draft202012Validator,
            jsonschema_rs.Draft201909Validator,
            jsonschema_rs.Draft7Validator,
        ),
        strict=True,
    )
)

# A JSON text of fewer bytes cannot exceed any reasonable limits, so the limits are not checked.
_SMALL: Final = 64
# Subschemas that are applied to all parts of a value: in 25 ms at most, and 10 ms usually.
_MAX_APPLIED: Final = 1_200_000
# Values that may each be checked by a callback, which takes some microseconds.
_MAX_CALLBACKS: Final = 50_000
# Integers that `uniqueItems` compares with each other, since they are equal as floats: 10 ms.
_MAX_ALIKE: Final = 200


class Schema:
    """A compiled JSON Schema: 2020-12, or by its `$schema` 2019-09 or draft-07.

    Args:
        document: the schema.
        formats: whether `format` is asserted, or additional formats; default True.
        origin: the name of the option that *document* is from, which begins error messages.
        limits: bounds on the schema; see `SchemaLimits`.

    Attributes:
        document: the schema as it was given, for listing.
        parts: the same as a `Document`.
        fits: returns whether a value fits. It does not check the limits; a value whose JSON has at
            most `small` bytes is within them.
        fill: fills the defaults of properties into a value that fits, and returns it.

    Raises:
        ConfigurationError: the schema is not valid for its dialect, has an unsupported dialect,
            refers to anything outside itself, contains a `pattern` that cannot be matched in
            linear time, or exceeds its limits (2026-07-28, basic, "JSON Schema Usage").
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        formats: Formats = True,
        origin: str = "input_schema",
        limits: SchemaLimits = DEFAULT_LIMITS,
    ) -> None:
        self.document = document
        self._formats = formats
        self.parts = Document(document, origin, limits)
        self._meter = meter = Meter(self.parts, limits)
        self._limits = _value_limits(self.parts, meter, cost_of(self.parts, limits))
        self.small = min(_SMALL, self._limits.values)
        try:
            self._validator = self._compile(self.parts.plain)
        except ValidationError as error:
            raise self._refusal(error) from None
        except ValueError as error:  # too deep nesting, or an unsupported number
            raise self.parts.refuse("", f"it cannot be compiled: {error}") from None
        self.fits = self._validator.is_valid
        if meter.keywords:
            self.fits = partial(meter.fits, self._validator.is_valid)
        self.fill = _filler_of(self.parts)

    def check(self, instance: Any, raw: Raw | bytes | None = None) -> Sequence[str]:
        """Return the faults of *instance*: none, or up to 20 and a line that counts the rest.

        Each begins with a JSON Pointer, or `(root)`. *raw* is the JSON text of *instance*; with it
        most values are found to be within the limits without a look at each part.
        """
        words = None
        if raw is None or len(raw) > self.small:
            words = excess(instance, raw, self._limits)
        if not words:
            if self.fits(instance):
                return ()
            words = self._meter.fault
        return (Fault((), words),) if words else self._explainer.explain(instance)

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.parts, self._compile, self._meter, self._validator)

    def _compile(self, schema: dict[str, Any], registry: Registry | None = None) -> Validator:
        formats = self._formats
        return _VALIDATORS[self.parts.dialect](
            schema,
            formats={name: _without_errors(checker) for name, checker in formats.items()}
            if isinstance(formats, Mapping)
            else None,
            validate_formats=formats is not False,
            pattern_options=RegexOptions(),
            keywords=self._meter.keywords,
            registry=registry,
            offline=True,
        )

    def _refusal(self, error: ValidationError) -> ConfigurationError:
        """Return the error for a schema that its dialect's meta-schema or the compiler rejects."""
        match error.kind:
            case Kind.AnyOf(branches):
                kinds = (found.kind for branch in branches for found in branch)
                accepts = dict.fromkeys(
                    each for kind in kinds for each in accepted_values(kind.name, kind.value)
                )
                words = f"expected {join_words([*accepts], 'or')}; got {to_json(error.instance)}"
            case Kind.Referencing():
                words = error.message
            case kind:
                words = mismatch(kind.name, kind.value, error.instance)
        return self.parts.refuse(join_pointer("", *error.instance_path), words)


def _value_limits(document: Document, meter: Meter, cost: int) -> ValueLimits:
    """Return the limits of the values that a schema with that *cost* is applied to."""
    most = ValueLimits()
    callbacks = _MAX_CALLBACKS if meter.keywords else most.values
    return ValueLimits(
        values=min(_MAX_APPLIED // cost, callbacks),
        names=min(meter.max_names, most.names),
        # Each of several comparisons of the same items takes as long.
        alike=_MAX_ALIKE // (1 + cost // (2 * COMPARED)) if document.uses("uniqueItems") else None,
    )


def _without_errors(checker: Callable[[str], bool]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return bool(checker(text))
        except ValueError:
            return False

    return check


def _filler_of(document: Document) -> Callable[[Any], Any]:
    """Return the function that fills in the defaults of *document*.

    Defaults are those of `properties`, at every level and through references. Existing values are
    never replaced, and a default is not filled in further.
    """
    if not document.uses("default"):
        return lambda value: value
    plans: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}

    def fill(value: Any, pointer: str = "") -> Any:
        if value.__class__ is not dict:
            return value
        if pointer not in plans:
            plans[pointer] = _defaults_of(document, pointer)
        defaults, below = plans[pointer]
        filled = {
            name: fill(each, below[name]) if name in below else each for name, each in value.items()
        }
        for name, default in defaults.items():
            if name not in filled:
                filled[name] = deepcopy(default)
        return filled

    return fill


def _defaults_of(document: Document, pointer: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the defaults of the properties of an object, and the pointers of their schemas."""
    defaults: dict[str, Any] = {}
    below: dict[str, str] = {}
    for place, schema in document.referenced(pointer).items():
        for name in schema.get("properties", ()):
            first = join_pointer(place, "properties", name)
            places = document.referenced(first)
            # Properties that only refer to the same schema share its plan: a plan for each would be
            # quadratic if all of them refer to the schema that contains them.
            below[name] = next((key for key, each in places.items() if "properties" in each), first)
            for each in places.values():
                if "default" in each:
                    defaults.setdefault(name, each["default"])
    return defaults, below
