"""A JSON Schema, checked once when it is made and then applied to values, fast.

jsonschema-rs decides *whether* a value fits; *what* does not is found by asking it about the
parts (`genmcp.schema.explanation`), so that verdict and explanation cannot disagree.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs import RegexOptions, Registry, ValidationError, Validator
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from genmcp.errors import ConfigurationError
from genmcp.schema.bounds import bound_parts
from genmcp.schema.defaults import filler_of
from genmcp.schema.document import DIALECTS, Document
from genmcp.schema.explanation import Explainer
from genmcp.schema.limits import DEFAULT_LIMITS, SchemaLimits, excess
from genmcp.schema.matching import Matching
from genmcp.schema.pointers import joined
from genmcp.schema.words import expected, fault, listed, shown, wanted

__all__ = ["Formats", "Schema"]

Formats = bool | Mapping[str, Callable[[str], bool]]
"""True: the formats of JSON Schema are asserted; False: they are not; a mapping: they are, and
these by name besides or instead. A checker may say no with False or with ValueError."""

_CHECKERS: Final[dict[str, type[Validator]]] = dict(
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

# A text shorter than this is within any reasonable limits whatever it holds.
_SMALL: Final = 64


class Schema:
    """One compiled JSON Schema: 2020-12, or by its `$schema` 2019-09 or draft-07.

    `document` is the schema as it was given, for listing. *origin* is the name of the option it
    came from. *limits* bound the schema and the values; see `SchemaLimits`. `fits` says whether a
    value is what the schema describes; it is within the limits if its JSON is no longer than
    `small` bytes.

    Raises ConfigurationError where the schema is not valid for its dialect, has a dialect that is
    not supported, refers to anything outside itself, holds a `pattern` that cannot be run in
    linear time or is too large to be run fast, or is past its limits (2026-07-28, basic, "JSON
    Schema Usage").
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
        self.limits = limits
        self._formats = formats
        self.parts = Document(document, origin, limits)
        bounds = bound_parts(self.parts, limits, formats=formats is not False)
        self._limits = bounds.limits
        self._matching = Matching(bounds.patterns, limits.matched)
        self.small = min(_SMALL, 2 * limits.depth, limits.values, limits.text)
        try:
            self.fits = self._compiled(self.parts.plain).is_valid
        except ValidationError as error:
            raise self._refusal(error) from None
        except ValueError as error:  # nesting that is too deep, or an unsupported number
            raise self.parts.refuse("", f"it cannot be compiled: {error}") from None
        self.fill = filler_of(self.parts, 4 * limits.subschemas)

    def check(self, instance: Any, raw: Raw | bytes | None = None) -> Sequence[str]:
        """What of *instance* does not fit: nothing, or up to 20 lines and one that counts the rest.

        Each begins with a JSON Pointer, `(root)` for the whole. *raw* is the JSON text that
        *instance* came from; with it the limits are judged without looking at every value.
        """
        if raw is None or len(raw) > self.small:
            words = excess(instance, raw, self._limits) or self._matching.excess(instance, raw)
            if words:
                return (fault((), words),)
        if self.fits(instance):
            return ()
        return self._explainer.explain(instance)

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.parts, self._compiled)

    def _compiled(self, schema: dict[str, Any], registry: Registry | None = None) -> Validator:
        formats = self._formats
        return _CHECKERS[self.parts.dialect](
            schema,
            formats={name: _careful(checker) for name, checker in formats.items()}
            if isinstance(formats, Mapping)
            else None,
            validate_formats=formats is not False,
            pattern_options=RegexOptions(),
            registry=registry,
            offline=True,
        )

    def _refusal(self, error: ValidationError) -> ConfigurationError:
        """Why the dialect's own schema, or the compiler, does not take this schema."""
        match error.kind:
            case Kind.Format("regex"):
                words = (
                    f"the pattern {error.instance!r} is not one that can be run in linear time; "
                    f"look-around and back-references are not supported, nor are huge repetitions"
                )
            case Kind.AnyOf(branches):
                kinds = (found.kind for branch in branches for found in branch)
                wants = dict.fromkeys(
                    each for kind in kinds for each in wanted(kind.name, kind.value)
                )
                words = f"expected {listed([*wants], 'or')}; got {shown(error.instance)}"
            case Kind.Referencing():
                words = error.message
            case kind:
                words = expected(kind.name, kind.value, error.instance)
        return self.parts.refuse(joined("", *error.instance_path), words)


def _careful(checker: Callable[[str], bool]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return bool(checker(text))
        except ValueError:
            return False

    return check
