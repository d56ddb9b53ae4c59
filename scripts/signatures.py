"""An extension of griffe, which reads the code for the reference: signatures that it does not know.

It knows the constructors of dataclasses. Those of `msgspec.Struct` follow the same rules. Its own
extension for `**options: Unpack[...]` parses the docstring before it has the parameters, with a
warning for each.
"""

from collections.abc import Iterator
from typing import Any, Final

import griffe

_KINDS: Final = griffe.ParameterKind


class Signatures(griffe.Extension):
    """Gives structs an `__init__` with their fields, and functions their unpacked keywords."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called once a package is loaded, with all base classes of its own."""
        for each in _members(pkg):
            if isinstance(each, griffe.Class) and _is_struct(each):
                if "__init__" not in each.members:
                    fields = griffe.Parameters(griffe.Parameter("self"), *_fields(each))
                    init = griffe.Function("__init__", parameters=fields)
                    init.parent = each
                    each.set_member("__init__", init)
            elif isinstance(each, griffe.Function):
                each.parameters = griffe.Parameters(*_unpacked(each))


def _members(of: griffe.Object) -> Iterator[griffe.Object]:
    for member in of.members.values():
        if isinstance(member, griffe.Object):
            yield member
            yield from _members(member)


def _lineage(cls: griffe.Class) -> list[griffe.Class]:
    return [cls, *cls.mro()]


def _is_struct(cls: griffe.Class) -> bool:
    return any(str(base).endswith("Struct") for each in _lineage(cls) for base in each.bases)


def _is_field(attribute: griffe.Attribute) -> bool:
    hint = attribute.annotation
    return (
        "instance-attribute" in attribute.labels
        and hint is not None
        and "ClassVar" not in str(hint)
    )


def _fields(cls: griffe.Class) -> list[griffe.Parameter]:
    """Return the fields of *cls* and of its bases; those of a base come first."""
    found: dict[str, griffe.Parameter] = {}
    for each in reversed(_lineage(cls)):
        kw_only = str(each.keywords.get("kw_only")) == "True"
        for name, member in each.members.items():
            if isinstance(member, griffe.Attribute) and _is_field(member):
                found[name] = griffe.Parameter(
                    name,
                    annotation=member.annotation,
                    kind=_KINDS.keyword_only if kw_only else _KINDS.positional_or_keyword,
                    default=member.value,
                )
    return sorted(found.values(), key=lambda each: each.kind is _KINDS.keyword_only)


def _unpacked(function: griffe.Function) -> Iterator[griffe.Parameter]:
    """Return the parameters of *function*, with the items of a TypedDict in place of `Unpack`."""
    for each in function.parameters:
        hint = each.annotation
        if isinstance(hint, griffe.ExprSubscript) and str(hint.left) == "Unpack":
            assert isinstance(hint.slice, griffe.Expr)
            items = function.modules_collection[hint.slice.canonical_path]
            for name, item in items.all_members.items():
                if isinstance(item, griffe.Attribute):
                    yield griffe.Parameter(
                        name, annotation=item.annotation, kind=_KINDS.keyword_only, default="..."
                    )
        else:
            yield each
