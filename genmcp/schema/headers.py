"""Arguments that clients repeat in HTTP headers: the `x-mcp-header` annotations of a schema.

2026-07-28, Streamable HTTP, "Custom Headers from Tool Parameters".
"""

import re
from typing import Final, Literal, cast

from genmcp.schema.document import Document
from genmcp.wire.mirror import HeaderRule

__all__ = ["ANNOTATION", "header_rules"]

ANNOTATION: Final = "x-mcp-header"

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES: Final = ("integer", "string", "boolean")


def header_rules(document: Document) -> tuple[HeaderRule, ...]:
    """The rules of all annotations in *document*.

    Raises ConfigurationError, with the pointer, for an annotation that breaks one of the
    constraints of "Schema Extension".
    """
    rules: dict[bytes, HeaderRule] = {}
    for pointer, schema in document.schemas.items():
        if schema.__class__ is not dict or ANNOTATION not in schema:
            continue
        rule = _rule(document, pointer)
        if rule.name in rules:
            raise document.refuse(
                pointer,
                f"{ANNOTATION} {schema[ANNOTATION]!r} is there twice; names must differ in more "
                f"than their case",
            )
        rules[rule.name] = rule
    return tuple(rules.values())


def _rule(document: Document, pointer: str) -> HeaderRule:
    schema = document.schemas[pointer]
    name = schema[ANNOTATION]
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise document.refuse(
            pointer,
            f"{ANNOTATION} {name!r} is not a header name: one or more letters, digits and "
            f"!#$%&'*+-.^_`|~",
        )
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if not steps or any(step != "properties" for step in steps[::2]) or len(steps) % 2:
        raise document.refuse(
            pointer,
            f"{ANNOTATION} may only be on a property that is reached from the root through "
            f"`properties` alone, not through arrays, compositions, conditions or `$ref`",
        )
    kind = schema.get("type")
    if kind not in _TYPES:
        raise document.refuse(
            pointer, f"{ANNOTATION} needs the type integer, string or boolean here, not {kind!r}"
        )
    return HeaderRule(
        f"mcp-param-{name}".lower().encode(),
        tuple(steps[1::2]),
        cast(Literal["integer", "string", "boolean"], kind),
    )
