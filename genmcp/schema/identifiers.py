"""The identifiers within a schema, and the resolution of references.

JSON Schema 2020-12 core, 8.2: `$id` and `$anchor`. References are resolved within the schema only.
"""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urljoin

from genmcp.errors import ConfigurationError
from genmcp.schema.limits import SchemaLimits
from genmcp.schema.pointers import joined

__all__ = ["NAMING", "REFERENCES", "REFERRING", "Identifiers"]

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
REFERRING: Final = frozenset(REFERENCES)
NAMING: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", *REFERENCES}
)

Refuse = Callable[[str, str], ConfigurationError]
"""Returns the error for a fault at a pointer: takes the pointer and the reason."""

# Characters of a reference that an error shows.
_SHOWN: Final = 200


class Identifiers:
    """The identifiers of one schema, and the resolution of its references. Owned by the Document.

    `bases`: the base URI of each schema that has references, by its pointer.
    """

    def __init__(self, refuse: Refuse, limits: SchemaLimits) -> None:
        self.bases: dict[str, str] = {}
        self._refuse = refuse
        self._limits = limits
        self._left = limits.pointers
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}

    def note(self, pointer: str, schema: dict[str, Any], base: str) -> str:
        """Record the identifiers of *schema*, and return the base URI of its subschemas."""
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            where = joined(pointer, "$id")
            if identifier.startswith("#"):
                self._anchors[self._kept(base + identifier, where)] = pointer
            else:
                absolute = self._absolute(base, identifier, where)
                base = self._kept(absolute, where).removesuffix("#")
                self._resources[base] = pointer
        if not pointer:
            self._resources[base] = ""
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                anchor = f"{base}#{schema[keyword]}"
                self._anchors[self._kept(anchor, joined(pointer, keyword))] = pointer
        if not REFERRING.isdisjoint(schema):
            self.bases[pointer] = base
        return base

    def find(self, pointer: str, keyword: str, reference: str) -> tuple[str, str]:
        """Return the pointer that a reference resolves to, and the base URI there.

        Raises ConfigurationError for an invalid reference, or one outside this schema.
        """
        base, where = self.bases[pointer], joined(pointer, keyword)
        if reference.startswith("#"):
            resource, fragment = base, reference[1:]
        else:
            resource, _, fragment = self._absolute(base, reference, where).partition("#")
        if resource not in self._resources:
            raise self._refuse(
                where,
                f"{reference[:_SHOWN]!r} is not part of this schema, and nothing is ever fetched; "
                f"put what it names under $defs",
            )
        if not fragment or fragment.startswith("/"):
            return self._resources[resource] + unquote(fragment), resource
        anchor = f"{resource}#{fragment}"
        if anchor not in self._anchors:
            raise self._refuse(where, f"{reference[:_SHOWN]!r} leads nowhere: no such anchor")
        return self._anchors[anchor], resource

    def _kept(self, uri: str, pointer: str) -> str:
        """Count *uri*, which is about to be stored, towards the limits, and return it.

        References below it are resolved against it repeatedly, so its length and the total length
        of all URIs are bounded.
        """
        self._left -= len(uri)
        if len(uri) > self._limits.uri or self._left < 0:
            raise self._refuse(
                pointer, f"a URI of more than {self._limits.uri} characters (SchemaLimits.uri)"
            )
        return uri

    def _absolute(self, base: str, reference: str, pointer: str) -> str:
        try:
            return urljoin(base, reference)
        except ValueError as error:  # for example an unterminated IPv6 address
            raise self._refuse(
                pointer, f"{reference[:_SHOWN]!r} is not a URI reference: {error}"
            ) from None
