"""Revision 2025-06-18, where it differs from 2025-11-25: no icons, and simpler input requests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import json, structs

from genmcp.errors import MissingCapability
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    SamplingCapability,
)
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)
from genmcp.protocol.content import ResourceDefinition, TextContent
from genmcp.protocol.methods import table
from genmcp.protocol.prompts import PromptDefinition
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.revisions import v2025_11_25
from genmcp.protocol.revisions.revision import Conversion, without
from genmcp.protocol.tools import ToolDefinition


def _without_options(capabilities: ClientCapabilities) -> ClientCapabilities:
    """Drop the options of sampling and elicitation; elicitation had forms only."""
    sampling, elicitation = capabilities.sampling, capabilities.elicitation
    return structs.replace(
        capabilities,
        sampling=sampling and SamplingCapability(),
        elicitation=ElicitationCapability() if elicitation and elicitation.takes_forms else None,
    )


def _use_as_text(use: ToolUseContent) -> TextContent:
    return TextContent(f"[call of the tool {use.name}: {json.encode(use.input).decode()}]")


def _result_as_text(result: ToolResultContent) -> TextContent:
    return TextContent(_text(result.content))


def _text(blocks: Any) -> str:
    """Return the text of *blocks*. Other blocks are replaced by their type in brackets."""
    return "\n".join(
        block.text if isinstance(block, TextContent) else f"[{block.__struct_config__.tag}]"
        for block in blocks
    )


def _one_block_per_message(params: CreateMessageRequestParams) -> CreateMessageRequestParams:
    """Drop the tools of *params*, and make one message of each block of content.

    Sampling had no tools, and a message had one block, before SEP-1577.
    """
    return structs.replace(
        params,
        messages=[each for message in params.messages for each in _split(message)],
        tools=None,
        tool_choice=None,
    )


def _split(message: SamplingMessage) -> Iterator[SamplingMessage]:
    if isinstance(message.content, Sequence):
        for block in message.content:
            yield SamplingMessage(message.role, block)
    else:
        yield message


def _one_block(result: CreateMessageResult) -> CreateMessageResult:
    """Join the blocks of *result* into one; a message had one block before SEP-1577."""
    content = result.content
    if not isinstance(content, Sequence):
        return result
    block = content[0] if len(content) == 1 else TextContent(_text(content))
    return structs.replace(result, content=block)


def _form_only(params: ElicitRequestParams) -> ElicitRequestParams:
    """Drop `mode`, and reduce the form to the schemas of this revision.

    Elicitation had forms only, and no `mode`, before SEP-1036.

    Raises:
        MissingCapability: *params* have a URL, or a form with multiple choices.
    """
    if params.requested_schema is None:
        raise MissingCapability({"elicitation": {"url": {}}})
    # `$schema` and choices with titles came with the revision after this one.
    schema = params.requested_schema
    properties = {name: _plain(each) for name, each in schema.get("properties", {}).items()}
    kept = {name: value for name, value in schema.items() if name != "$schema"}
    return ElicitRequestParams(params.message, kept | {"properties": properties})


def _plain(property_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a property with titles in `enumNames`, and a default only if boolean.

    Later revisions have `oneOf` for titles and multiple choices (SEP-1330), and defaults for
    other types (SEP-1034).

    Raises:
        MissingCapability: the property is a multiple choice.
    """
    if property_.get("type") == "array":
        raise MissingCapability(
            {"elicitation": {}},
            "Clients of revision 2025-06-18 do not support multiple choices",
        )
    plain = dict(property_)
    if "oneOf" in plain:
        options = plain.pop("oneOf")
        plain["enum"] = [option["const"] for option in options]
        plain["enumNames"] = [option["title"] for option in options]
    if plain.get("type") != "boolean":
        plain.pop("default", None)
    return plain


_DOWN: Final[dict[type, Conversion]] = {
    Implementation: without("icons", "description", "website_url"),
    ToolDefinition: without("icons"),
    ResourceDefinition: without("icons"),
    ResourceTemplateDefinition: without("icons"),
    PromptDefinition: without("icons"),
    ClientCapabilities: _without_options,
    ToolUseContent: _use_as_text,
    ToolResultContent: _result_as_text,
    SamplingMessage: without("meta"),
    CreateMessageRequestParams: _one_block_per_message,
    CreateMessageResult: _one_block,
    ElicitRequestParams: _form_only,
}

_NEWER: Final = v2025_11_25.REVISION
_ELICIT: Final = _NEWER.methods["elicitation/create"]

REVISION: Final = _NEWER.older(
    "2025-06-18",
    priming_event=False,
    methods=table((*_NEWER.methods.values(), replace(_ELICIT, params=ElicitRequestParams))),
    down=_DOWN,
    up={},
)
