"""The tools that a server has listed: headers of their calls, and checks of their results."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from genmcp._schema.document import Document
from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.client.errors import ProtocolError
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.wire.jsonrpc import printable
from genmcp.wire.param_headers import ANNOTATION, HeaderRule, header_rules, param_headers

logger = logging.getLogger("genmcp.client")

R = TypeVar("R")

# Bytes of JSON that are read in the event loop. The most expensive schemas of that size take a
# millisecond, unless they have patterns; a schema at its limits takes some 50 ms.
_MAX_IN_LOOP: Final = 4_096
_MARK: Final = ANNOTATION.encode()


async def read_schemas(texts: Sequence[bytes], read: Callable[[], R]) -> R:
    """Return the result of *read*, called in a thread if the schemas in *texts* are expensive."""
    # "pattern" and "patternProperties": a short pattern may take long to compile.
    if sum(map(len, texts)) <= _MAX_IN_LOOP and not any(b"attern" in each for each in texts):
        return read()
    return await asyncio.to_thread(read)


class ToolHeaders(NamedTuple):
    """The header rules of a tool, or the reason why its annotations are invalid."""

    rules: tuple[HeaderRule, ...] = ()
    fault: str = ""


_NO_HEADERS: Final = ToolHeaders()


class _KnownTool(NamedTuple):
    """A listed tool: the headers of its calls, and its output schema as JSON.

    As JSON, since the listed definition belongs to the caller, who may change it.
    """

    headers: ToolHeaders
    output: bytes | None


class ToolCatalog:
    """The tools of the last list, by name. Owned by a `Connection`.

    Args:
        server_name: the server, for errors and logs.
        mirrors: whether headers repeat arguments of calls: over HTTP since 2026-07-28. Only then
            does an invalid annotation make a tool unusable (Streamable HTTP, "Schema Extension").

    `listed`: whether the tools were listed, or listing them was tried.
    """

    def __init__(self, server_name: str, *, mirrors: bool) -> None:
        self.mirrors = mirrors
        self.listed = False
        self._server_name = server_name
        self._known: Mapping[str, _KnownTool] = {}
        # By their JSON, when a first result is checked; None: it exceeds `FOREIGN_LIMITS`.
        self._schemas: dict[bytes, Schema | None] = {}

    async def update(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Replace the catalog by *tools*; return those that can be called."""
        headers = await read_tool_headers(tools) if self.mirrors else {}
        known: dict[str, _KnownTool] = {}
        usable: list[ToolDefinition] = []
        for tool in tools:
            found, output = headers.get(tool.name, _NO_HEADERS), tool.output_schema
            encoded = None if output is None else msgspec.json.encode(output)
            known[tool.name] = _KnownTool(found, encoded)
            if found.fault:
                name = printable(tool.name)
                logger.warning(
                    "%s: the tool %r is left out: %s", self._server_name, name, found.fault
                )
            else:
                usable.append(tool)
        outputs = {each.output for each in known.values()}
        self._schemas = {text: self._schemas[text] for text in self._schemas if text in outputs}
        self._known = known
        self.listed = True
        return usable

    def headers(self, name: str, arguments: Any) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers that repeat *arguments* of a call.

        Raises:
            ProtocolError: the annotations of the tool are invalid.
        """
        if (tool := self._known.get(name)) is None:
            return ()
        rules, fault = tool.headers
        if fault:
            raise ProtocolError(
                f"the tool {printable(name)!r} cannot be called: {fault}", self._server_name
            )
        return param_headers(rules, arguments) if rules else ()

    async def check(self, name: str, result: CallToolResult) -> None:
        """Check a result against the tool's output schema, if there is a usable one.

        2026-07-28, server/tools, "Output Schema": structured results of a server conform to it, and
        a client should check that.

        Raises:
            ProtocolError: the structured content is missing or does not match.
        """
        tool = self._known.get(name)
        if tool is None or tool.output is None or result.is_error:
            return
        if tool.output not in self._schemas:
            self._schemas[tool.output] = await _compiled(name, tool.output)
        if (schema := self._schemas[tool.output]) is None:
            return
        if result.structured_content is UNSET:
            raise self._mismatch(name, ["there is no structured content"])
        if faults := schema.check(result.structured_content):
            raise self._mismatch(name, faults)

    def _mismatch(self, name: str, faults: Sequence[str]) -> ProtocolError:
        return ProtocolError(
            f"the result of the tool {name!r} does not fit its outputSchema: {'; '.join(faults)}",
            self._server_name,
        )


async def read_tool_headers(tools: Sequence[ToolDefinition]) -> Mapping[str, ToolHeaders]:
    """Return the headers of the annotated tools, by name; most schemas have no annotation."""
    annotated = [
        (tool, text) for tool in tools if _MARK in (text := msgspec.json.encode(tool.input_schema))
    ]
    if not annotated:
        return {}
    return await read_schemas(
        [text for _, text in annotated],
        lambda: {tool.name: _headers(tool) for tool, _ in annotated},
    )


def _headers(tool: ToolDefinition) -> ToolHeaders:
    try:
        document = Document(tool.input_schema, "inputSchema", FOREIGN_LIMITS)
        return ToolHeaders(header_rules(document.schemas, document.refuse))
    except ConfigurationError as error:
        return ToolHeaders(fault=str(error))
    except Exception as error:  # a defect here must cost one tool, not all tools of all servers
        logger.exception("the schema of the tool %r cannot be read", printable(tool.name))
        return ToolHeaders(fault=f"its schema cannot be read: {type(error).__name__}")


async def _compiled(name: str, text: bytes) -> Schema | None:
    """Return the output schema of the tool *name*; None if it exceeds `FOREIGN_LIMITS`."""

    def read() -> Schema:
        # Formats are not checked: servers need not either, and the result would be lost.
        document = msgspec.json.decode(text)
        return Schema(document, formats=False, origin="outputSchema", limits=FOREIGN_LIMITS)

    try:
        return await read_schemas([text], read)
    except ConfigurationError as error:
        logger.warning("results of the tool %r cannot be checked: %s", printable(name), error)
        return None
