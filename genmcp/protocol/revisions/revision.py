"""One revision of the protocol: its properties, its methods, and the translation of its values.

A revision's module lists only the differences from the next newer revision: one function for each
type that differs. Types that contain a value of such a type, as a result contains content, are
found here from their annotations, when a type is first translated. Values without a difference are
not copied.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any, TypeAlias, get_args

from msgspec.structs import fields, replace

from genmcp.protocol.methods import Method
from genmcp.protocol.value import Value

#: Returns a value of another revision; the same object where nothing differs.
Conversion: TypeAlias = Callable[[Any], Any]
#: The conversion of each type.
Translation: TypeAlias = Mapping[type, Conversion]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Revision:
    """A dated version of the protocol. Its fields are the differences that its changelog lists."""

    version: str
    #: Requests are independent of each other. Earlier revisions have a handshake and optional
    #: sessions, and their servers send requests to the client.
    modern: bool
    #: Several messages may be sent as one JSON array.
    batches: bool
    #: An event stream begins with an event that has an id and no data (SEP-1699). Afterwards
    #: the server may close the connection and the client reconnects.
    priming_event: bool
    #: The error code for an unknown resource.
    resource_not_found: int
    #: All methods, of both senders.
    methods: Mapping[str, Method] = field(repr=False)
    downward: Translation = field(repr=False)
    upward: Translation = field(repr=False)

    def down(self, value: Any) -> Any:
        """Translate *value* from 2026-07-28 to this revision.

        Members that this revision does not have are dropped or replaced by an equivalent.

        Raises:
            MissingCapability: *value* is a question that no client of this revision supports.
        """
        return self.downward[type(value)](value)

    def up(self, value: Any) -> Any:
        """Translate *value* from this revision to 2026-07-28."""
        return self.upward[type(value)](value)

    def older(
        self,
        version: str,
        *,
        down: Mapping[type, Conversion],
        up: Mapping[type, Conversion],
        **differences: Any,
    ) -> "Revision":
        """Return the revision before this one, given the *differences* of its facts."""
        return dataclasses.replace(
            self,
            version=version,
            downward=ComposedTranslation(self.downward, AdjacentTranslation(down)),
            upward=ComposedTranslation(AdjacentTranslation(up), self.upward),
            **differences,
        )


def identity(value: Any) -> Any:
    """Return *value*, the conversion of a type that does not differ."""
    return value


def without(*members: str) -> Conversion:
    """Return the conversion that drops *members*, which are None when absent."""
    nothing = dict.fromkeys(members)
    # attrgetter returns a tuple only for two or more names, so the first one is read twice.
    read, absent = attrgetter(members[0], *members), (None, *nothing.values())

    def drop(value: Any) -> Any:
        return value if read(value) == absent else replace(value, **nothing)

    return drop


def convert_to(type_: type[Value], **extra: Any) -> Conversion:
    """Return the conversion to *type_*, with the members of the value and *extra* ones."""
    names = tuple(name for name in type_.__struct_fields__ if name not in extra)

    def convert(value: Any) -> Any:
        return type_(**{name: getattr(value, name) for name in names}, **extra)

    return convert


class AdjacentTranslation(dict[type, Conversion]):
    """The translation between two adjacent revisions, computed for each type on first use.

    *conversions* are the differences that the revision's module lists. A type is converted from
    the inside out: first its members, then its base classes, then the type itself.
    """

    def __init__(self, conversions: Mapping[type, Conversion]) -> None:
        super().__init__()
        self._conversions = conversions

    def __missing__(self, type_: type) -> Conversion:
        if issubclass(type_, Value):
            conversion = self._of_value(type_)
        elif issubclass(type_, Sequence) and not issubclass(type_, str | bytes):
            conversion = self._items
        else:
            conversion = identity
        self[type_] = conversion
        return conversion

    def _of_value(self, type_: type[Value]) -> Conversion:
        own = [
            self._conversions[base] for base in reversed(type_.__mro__) if base in self._conversions
        ]
        holders = tuple(
            (member.name, member.default)
            for member in fields(type_)
            if any(self[value] is not identity for value in _value_types(member.type))
        )
        return _chain([self._members(holders), *own] if holders else own)

    def _members(self, holders: Sequence[tuple[str, Any]]) -> Conversion:
        names, defaults = zip(*holders, strict=True)
        # The first name is read twice, as in `without`, so that attrgetter returns a tuple.
        read, usual = attrgetter(names[0], *names), (defaults[0], *defaults)

        def convert(value: Any) -> Any:
            # The fast path: most values have the defaults, which never differ.
            if read(value) == usual:
                return value
            new = {}
            for name in names:
                member = getattr(value, name)
                converted = self[type(member)](member)
                if converted is not member:
                    new[name] = converted
            return replace(value, **new) if new else value

        return convert

    def _items(self, items: Sequence[Any]) -> Sequence[Any]:
        converted = [self[type(item)](item) for item in items]
        return items if all(map(is_, converted, items)) else converted


class ComposedTranslation(dict[type, Conversion]):
    """The translation that applies *first*, then *second*; computed for each type on first use."""

    def __init__(self, first: Translation, second: Translation) -> None:
        super().__init__()
        self._first = first
        self._second = second

    def __missing__(self, type_: type) -> Conversion:
        first, second = self._first[type_], self._second
        usual = second[type_]

        # The second conversion is looked up for the result, since the first one may return a value
        # of another type.
        def both(value: Any) -> Any:
            between = first(value)
            return usual(between) if between is value else second[type(between)](between)

        conversion = self[type_] = usual if first is identity else both
        return conversion


def _chain(conversions: Sequence[Conversion]) -> Conversion:
    if not conversions:
        return identity
    if len(conversions) == 1:
        return conversions[0]

    def convert(value: Any) -> Any:
        for conversion in conversions:
            value = conversion(value)
        return value

    return convert


def _value_types(annotation: Any) -> Iterator[type[Value]]:
    if isinstance(annotation, type) and issubclass(annotation, Value):
        yield annotation
    for argument in get_args(annotation):
        yield from _value_types(argument)
