"""What a server has, in lines for people."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from genmcp.cli.bare import line
from genmcp.cli.values import alternatives, choices_of, kinds_of, properties_of
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.prompts import PromptDefinition
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.tools import ToolDefinition

__all__ = ["of_prompt", "of_resource", "of_tool", "wrapped"]

INDENT: Final = "    "
# Levels of nested lists that are shown; items of a list may refer back to the list.
_MAX_LIST_DEPTH: Final = 4


def of_tool(tool: ToolDefinition) -> Iterator[str]:
    """Give the lines of *tool*: how it is called, what it does, what its arguments are."""
    schema = tool.input_schema
    fields, required = properties_of(schema), schema.get("required")
    required = required if isinstance(required, list) else ()
    words = [f"{key}={_kind(field, schema)}" for key, field in fields.items()]
    keys = [
        line(word) if key in required else f"[{line(word)}]"
        for key, word in zip(fields, words, strict=True)
    ]
    yield " ".join([tool.name, *keys])
    yield from _about(tool.description)
    for key, field in fields.items():
        for each in alternatives(field, schema):
            if about := each.get("description"):
                yield f"{INDENT}{key}: {line(str(about))}"
                break


def of_prompt(prompt: PromptDefinition) -> Iterator[str]:
    """Give the lines of *prompt*."""
    arguments = prompt.arguments or ()
    keys = [each.name if each.required else f"[{each.name}]" for each in arguments]
    yield " ".join([prompt.name, *keys])
    yield from _about(prompt.description)
    for each in arguments:
        if each.description:
            yield f"{INDENT}{each.name}: {line(each.description)}"


def of_resource(resource: ResourceDefinition | ResourceTemplateDefinition) -> Iterator[str]:
    """Give the lines of a *resource*, or of a template of resources."""
    where = resource.uri if isinstance(resource, ResourceDefinition) else resource.uri_template
    about = [resource.title or resource.name, *filter(None, [resource.mime_type])]
    yield f"{where}  {line(', '.join(about))}"
    yield from _about(resource.description)


def wrapped(text: str, width: int) -> str:
    """Return the line *text* in lines of *width*, the further ones further in."""
    margin = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        text,
        width=max(width, 20),
        subsequent_indent=margin or 2 * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _about(description: str | None) -> Iterator[str]:
    """Give the first paragraph of a *description*."""
    if first := line((description or "").strip().partition("\n\n")[0]):
        yield f"{INDENT}{first}"


def _kind(field: Any, whole: Mapping[str, Any], depth: int = 0) -> str:
    """Return what values of *field* are: their type, or all of them."""
    for each in alternatives(field, whole):
        if choices := choices_of(each):
            return "|".join(line(str(value)) for value, _ in choices)
    kinds = kinds_of(field, whole)
    kinds.pop("null", None)  # which is what leaving it out is for
    if "array" in kinds and len(kinds) == 1 and depth < _MAX_LIST_DEPTH:
        return f"{_kind(kinds['array'].get('items'), whole, depth + 1)},..."
    return "|".join(map(line, kinds)) or "any"
