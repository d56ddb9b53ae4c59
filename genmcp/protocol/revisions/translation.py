"""How values of one revision become values of its neighbour, and so of any other.

A revision's module says only what changes: of each type that differs, a function. What holds
such a value (a result its content, a list its items) is found here from the annotations, once
for each type, when it is first met. What does not change is not copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, TypeAlias, get_args

from msgspec.structs import fields, replace

from genmcp.protocol.value import Value

__all__ = ["Change", "Composed", "Step", "Translation", "said_as", "same", "without"]

Change: TypeAlias = Callable[[Any], Any]
Translation: TypeAlias = Mapping[type, Change]


def same(value: Any) -> Any:
    """Return *value*: nothing changes."""
    return value


def without(*members: str) -> Change:
    """Return the change that leaves out *members*, which are None when absent."""
    nothing = dict.fromkeys(members)
    # Two of them come in a tuple, one would not.
    read, absent = attrgetter(members[0], *members), (None, *nothing.values())

    def leave_out(value: Any) -> Any:
        return value if read(value) == absent else replace(value, **nothing)

    return leave_out


def said_as(type_: type[Value], **also: Any) -> Change:
    """Return the change to *type_*: its members are those of the value, and *also* these."""
    taken = tuple(name for name in type_.__struct_fields__ if name not in also)

    def say(value: Any) -> Any:
        return type_(**{name: getattr(value, name) for name in taken}, **also)

    return say


class Step(dict[type, Change]):
    """The translation between two neighbours: of every type, how its values change.

    *changes* are those the revision's module names. The change of a base is made before that
    of the type itself, and the changes of what a value holds before its own.
    """

    def __init__(self, changes: Mapping[type, Change]) -> None:
        super().__init__()
        self._changes = changes

    def __missing__(self, type_: type) -> Change:
        if issubclass(type_, Value):
            change = self._of_value(type_)
        elif issubclass(type_, Sequence) and not issubclass(type_, str | bytes):
            change = self._items
        else:
            change = same
        self[type_] = change
        return change

    def _of_value(self, type_: type[Value]) -> Change:
        own = [self._changes[base] for base in reversed(type_.__mro__) if base in self._changes]
        holders = tuple(
            (member.name, member.default)
            for member in fields(type_)
            if any(self[held] is not same for held in _values_in(member.type))
        )
        return _in_turn([self._members(holders), *own] if holders else own)

    def _members(self, holders: Sequence[tuple[str, Any]]) -> Change:
        names, defaults = zip(*holders, strict=True)
        # Two of them come in a tuple, one would not.
        read, usual = attrgetter(names[0], *names), (defaults[0], *defaults)

        def change(value: Any) -> Any:
            if read(value) == usual:  # what nearly everybody has, and it does not change
                return value
            new = {}
            for name in names:
                held = getattr(value, name)
                changed = self[type(held)](held)
                if changed is not held:
                    new[name] = changed
            return replace(value, **new) if new else value

        return change

    def _items(self, items: Sequence[Any]) -> Sequence[Any]:
        changed = [self[type(item)](item) for item in items]
        return items if all(map(is_, changed, items)) else changed


class Composed(dict[type, Change]):
    """The translation that makes *first*, then *second*."""

    def __init__(self, first: Translation, second: Translation) -> None:
        super().__init__()
        self._first = first
        self._second = second

    def __missing__(self, type_: type) -> Change:
        first, second = self._first[type_], self._second
        usual = second[type_]

        def both(value: Any) -> Any:
            between = first(value)
            return usual(between) if between is value else second[type(between)](between)

        change = self[type_] = usual if first is same else both
        return change


def _in_turn(changes: Sequence[Change]) -> Change:
    if not changes:
        return same
    if len(changes) == 1:
        return changes[0]

    def all_of_them(value: Any) -> Any:
        for change in changes:
            value = change(value)
        return value

    return all_of_them


def _values_in(annotation: Any) -> Iterator[type[Value]]:
    if isinstance(annotation, type) and issubclass(annotation, Value):
        yield annotation
    for argument in get_args(annotation):
        yield from _values_in(argument)
