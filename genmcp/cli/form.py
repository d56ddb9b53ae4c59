"""One field of a form that a server has sent: how it is asked for, and what is typed is read."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from genmcp.cli.bare import line
from genmcp.cli.values import choices_of, kinds_of, parts_of, value_of
from genmcp.errors import ConfigurationError
from genmcp.schema.limits import FOREIGN_LIMITS
from genmcp.schema.schema import Schema

__all__ = ["Field"]

_FORMATS: Final = {
    "email": "an e-mail address",
    "uri": "a URI",
    "date": "a date, such as 2026-07-28",
    "date-time": "a date and time, such as 2026-07-28T09:30:00Z",
}
_BOUNDS: Final = (
    ("minLength", "maxLength", " characters"),
    ("minimum", "maximum", ""),
    ("minItems", "maxItems", " of them"),
)


class Field:
    """The field *key* of a form, as its *schema* describes it."""

    def __init__(self, key: str, schema: Mapping[str, Any], *, required: bool) -> None:
        self.key = key
        self.required = required and "default" not in schema
        self.default = schema.get("default")
        self._schema = schema
        self._kinds = kinds_of(schema, {})
        self._several = "array" in self._kinds
        self._choices = choices_of(schema.get("items", {}) if self._several else schema)
        self._checker: Schema | None = None
        with suppress(ConfigurationError):  # a schema that only the server understands
            self._checker = Schema(schema, origin=key, limits=FOREIGN_LIMITS)

    @property
    def question(self) -> str:
        """What the user is asked: its name, what it may be, and what it is otherwise."""
        name = line(str(self._schema.get("title") or self.key))
        about = [*self._wanted()]
        if not self.required and "default" not in self._schema:
            about.append("optional")
        question = f"  {name} ({'; '.join(about)})" if about else f"  {name}"
        if "default" in self._schema:
            question += f" [{line(_typed(self.default))}]"
        if description := self._schema.get("description"):
            question = f"  {line(str(description))}\n{question}"
        return f"{question}: "

    def read(self, typed: str) -> Any:
        """Return the value that the user has *typed*.

        Raises:
            ConfigurationError: it is not what is wanted.
        """
        if not self._several:
            value = self._one(self._schema, typed)
        elif typed.lstrip().startswith("["):
            value = value_of(self.key, self._schema, typed)
        else:
            items = self._schema.get("items", {})
            value = [self._one(items, each) for each in parts_of(typed)]
        for fault in self._checker.check(value) if self._checker else ():
            raise ConfigurationError(fault.removeprefix("(root): "))
        return value

    def _one(self, schema: Mapping[str, Any], typed: str) -> Any:
        if self._choices:
            word = typed.strip()
            for value, title in self._choices:
                if word in (str(value), title) or word.lower() == title.lower():
                    return value
            names = ", ".join(_shown(*each) for each in self._choices)
            raise ConfigurationError(f"{word!r} is none of {names}")
        kinds = kinds_of(schema, {})
        return value_of(self.key, schema, typed if "string" in kinds else typed.strip())

    def _wanted(self) -> Iterator[str]:
        """Give what the field may be, in words."""
        schema = self._schema
        if self._choices:
            choices = ", ".join(line(_shown(*each)) for each in self._choices)
            yield f"{choices}; several with commas" if self._several else choices
        elif "boolean" in self._kinds:
            yield "y/n"
        elif "string" not in self._kinds and {"integer", "number"} & {*self._kinds}:
            yield "a whole number" if "integer" in self._kinds else "a number"
        if (form := str(schema.get("format", ""))) in _FORMATS:
            yield _FORMATS[form]
        for least, most, of in _BOUNDS:
            if least in schema and most in schema:
                yield f"{schema[least]} to {schema[most]}{of}"
            elif least in schema:
                yield f"at least {schema[least]}{of}"
            elif most in schema:
                yield f"at most {schema[most]}{of}"
        if "pattern" in schema:
            yield f"matching {line(str(schema['pattern']))}"


def _shown(value: Any, title: str) -> str:
    return title if str(value) == title else f"{value} ({title})"


def _typed(value: Any) -> str:
    """Return *value* as one would type it."""
    if isinstance(value, bool):
        return "y" if value else "n"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
