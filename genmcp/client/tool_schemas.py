"""Reading of the schemas that a server sends; large ones are read in a thread."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import ToolDefinition
from genmcp.schema.document import Document
from genmcp.schema.limits import SchemaLimits
from genmcp.wire.jsonrpc import printable
from genmcp.wire.param_headers import ANNOTATION, HeaderRule, header_rules

__all__ = ["ToolHeaders", "headers_of", "reading"]

logger = logging.getLogger("genmcp.client")

R = TypeVar("R")

# Bytes of JSON that are read in the event loop. The most expensive schemas of that size take a
# millisecond, unless they have patterns; a schema at its limits takes some 50 ms.
_SMALL: Final = 4_096
_MARK: Final = ANNOTATION.encode()


async def reading(texts: Sequence[bytes], read: Callable[[], R]) -> R:
    """Return the result of *read*; it runs in a thread unless the schemas in *texts* are cheap."""
    if sum(map(len, texts)) <= _SMALL and not any(b"attern" in each for each in texts):
        return read()
    return await asyncio.to_thread(read)


class ToolHeaders(NamedTuple):
    """The rules of the headers that repeat arguments of a tool, or why they cannot be read."""

    rules: tuple[HeaderRule, ...] = ()
    refused: str = ""


_NONE: Final = ToolHeaders()


async def headers_of(
    tools: Sequence[ToolDefinition], limits: SchemaLimits
) -> Mapping[str, ToolHeaders]:
    """Return the headers of the annotated ones of *tools*, by name.

    A schema without annotations, which most are, is not read.
    """
    annotated = [
        (tool, text) for tool in tools if _MARK in (text := msgspec.json.encode(tool.input_schema))
    ]
    if not annotated:
        return {}
    return await reading(
        [text for _, text in annotated],
        lambda: {tool.name: _headers(tool, limits) for tool, _ in annotated},
    )


def _headers(tool: ToolDefinition, limits: SchemaLimits) -> ToolHeaders:
    try:
        document = Document(tool.input_schema, "inputSchema", limits)
        return ToolHeaders(header_rules(document.schemas, document.refuse))
    except ConfigurationError as error:
        return ToolHeaders(refused=str(error))
    except Exception as error:  # a defect here must cost one tool, not all tools of all servers
        logger.exception("the schema of the tool %r cannot be read", printable(tool.name))
        return ToolHeaders(refused=f"its schema cannot be read: {type(error).__name__}")
