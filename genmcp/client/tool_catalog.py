"""Reading of the schemas that a server sends; large ones are read in a thread."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from genmcp.client.errors import ProtocolError
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.schema.document import Document
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp.schema.schema import Schema
from genmcp.wire.jsonrpc import printable
from genmcp.wire.param_headers import ANNOTATION, HeaderRule, header_rules, param_headers

__all__ = ["ToolCatalog", "ToolHeaders", "headers_of", "reading"]

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


Headers = tuple[tuple[bytes, bytes], ...]

_NO_HEADERS: Final = ToolHeaders()


class _KnownTool:
    """One tool, as it was listed.

    headers: which arguments are repeated in headers, or why the tool cannot be called. output: its
    output schema as JSON, since the definition that was listed belongs to the caller, who may
    change it; compiled to a Schema when the first result is checked.
    """

    __slots__ = ("_schema", "headers", "output")

    def __init__(self, headers: ToolHeaders, output: bytes | None) -> None:
        self.headers = headers
        self.output = output
        self._schema: Schema | UnsetType | None = None if output is None else UNSET

    async def schema(self, name: str, limits: SchemaLimits) -> Schema | None:
        """Return its output schema; None if it has none, or none that compiles within *limits*."""
        if self._schema is UNSET:
            text = self.output or b""
            try:
                self._schema = await reading([text], partial(_compiled, text, limits))
            except ConfigurationError as error:
                logger.warning(
                    "results of the tool %r cannot be checked: %s", printable(name), error
                )
                self._schema = None
        return self._schema


class ToolCatalog:
    """The tools a server has listed last, by name.

    mirrors: whether arguments are repeated in headers: over HTTP, from 2026-07-28 on. Only then
    does an invalid annotation make a tool unusable (Streamable HTTP, "Schema Extension"). limits:
    bounds on the schemas of the tools, and on results that are checked.
    """

    def __init__(self, where: str, *, mirrors: bool, limits: SchemaLimits = FOREIGN_LIMITS) -> None:
        self.mirrors = mirrors
        self._limits = limits
        self._where = where
        self._known: Mapping[str, _KnownTool] = {}

    def knows(self, name: str) -> bool:
        """Whether the tool is listed."""
        return name in self._known

    async def learn(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Take note of *tools*, all there are, and return those of them that can be called."""
        headers = await headers_of(tools, self._limits) if self.mirrors else {}
        known: dict[str, _KnownTool] = {}
        usable: list[ToolDefinition] = []
        for tool in tools:
            offer = self._offer(tool, headers.get(tool.name, _NO_HEADERS))
            known[tool.name] = offer
            if not offer.headers.refused:
                usable.append(tool)
        self._known = known
        return usable

    def headers(self, name: str, arguments: Any) -> Headers:
        """Return the headers that repeat *arguments* of a call.

        Raises:
            ProtocolError: the tool was left out, for its annotations.
        """
        if (offer := self._known.get(name)) is None:
            return ()
        rules, refused = offer.headers
        if refused:
            raise ProtocolError(
                f"the tool {printable(name)!r} cannot be called: {refused}", self._where
            )
        return param_headers(rules, arguments) if rules else ()

    async def check(self, name: str, result: CallToolResult) -> None:
        """Check a result against the tool's output schema, if it has one that can be used.

        2026-07-28, server/tools, "Output Schema": a server's structured results conform to it,
        and a client should check that.

        Raises:
            ProtocolError: it has no structured content, or one that does not fit.
        """
        offer = self._known.get(name)
        if offer is None or offer.output is None or result.is_error:
            return
        if (schema := await offer.schema(name, self._limits)) is None:
            return
        if result.structured_content is UNSET:
            raise self._fault(name, ["there is no structured content"])
        if faults := schema.check(result.structured_content):
            raise self._fault(name, faults)

    def _fault(self, name: str, faults: Sequence[str]) -> ProtocolError:
        return ProtocolError(
            f"the result of the tool {name!r} does not fit its outputSchema: {'; '.join(faults)}",
            self._where,
        )

    def _offer(self, tool: ToolDefinition, headers: ToolHeaders) -> _KnownTool:
        """Return what is to be known of *tool*: what it was, unless that has changed."""
        if headers.refused:
            logger.warning(
                "%s: the tool %r is left out: %s",
                self._where,
                printable(tool.name),
                headers.refused,
            )
        output = None if tool.output_schema is None else msgspec.json.encode(tool.output_schema)
        known = self._known.get(tool.name)
        if known is None or (known.headers, known.output) != (headers, output):
            return _KnownTool(headers, output)
        return known


def _compiled(text: bytes, limits: SchemaLimits) -> Schema:
    # Formats are not checked: servers need not either, and the result would be lost.
    document = msgspec.json.decode(text)
    return Schema(document, formats=False, origin="outputSchema", limits=limits)
