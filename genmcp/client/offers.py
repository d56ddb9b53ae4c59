"""What a client knows of a server's tools: which headers a call has, what a result may be."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from genmcp.client.errors import ProtocolFault
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.schema.document import Document
from genmcp.schema.headers import ANNOTATION, header_rules
from genmcp.schema.limits import DEFAULT_LIMITS
from genmcp.schema.schema import Schema
from genmcp.wire.mirror import HeaderRule, mirrored

__all__ = ["Offers"]

logger = logging.getLogger("genmcp")

Headers = tuple[tuple[bytes, bytes], ...]


class Offers:
    """The tools a server has listed, by name, the newest definition of each.

    *mirrors* says whether arguments are repeated in headers: over HTTP, from 2026-07-28 on. Only
    then does an annotation that breaks its rules make a tool unusable (Streamable HTTP,
    "Schema Extension").
    """

    def __init__(self, where: str, *, mirrors: bool) -> None:
        self.mirrors = mirrors
        self._where = where
        self._rules: dict[str, tuple[HeaderRule, ...]] = {}
        self._outputs: dict[str, Mapping[str, Any]] = {}
        self._schemas: dict[str, Schema | None] = {}
        self._refused: dict[str, str] = {}

    def knows(self, name: str) -> bool:
        """Whether the tool has been listed."""
        return name in self._rules or name in self._refused

    def learn(self, tools: Iterable[ToolDefinition]) -> Sequence[ToolDefinition]:
        """Take note of *tools*, and return those of them that can be called."""
        return [tool for tool in tools if self._learn(tool)]

    def headers(self, name: str, arguments: Any) -> Headers:
        """Return the headers that repeat *arguments* of a call.

        Raises:
            ProtocolFault: the tool was left out, for its annotations.
        """
        if name in self._refused:
            raise ProtocolFault(
                f"the tool {name!r} cannot be called: {self._refused[name]}", self._where
            )
        rules = self._rules.get(name)
        return mirrored(rules, arguments) if rules else ()

    def check(self, name: str, result: CallToolResult) -> None:
        """Check a result against the tool's output schema, if it has one that can be used.

        2026-07-28, server/tools, "Output Schema": a server's structured results conform to it,
        and a client should check that.

        Raises:
            ProtocolFault: it has no structured content, or one that does not fit.
        """
        if result.is_error or (schema := self._schema(name)) is None:
            return
        if result.structured_content is UNSET:
            raise self._fault(name, ["there is no structured content"])
        if faults := schema.check(result.structured_content):
            raise self._fault(name, faults)

    def _fault(self, name: str, faults: Sequence[str]) -> ProtocolFault:
        return ProtocolFault(
            f"the result of the tool {name!r} does not fit its outputSchema: {'; '.join(faults)}",
            self._where,
        )

    def _schema(self, name: str) -> Schema | None:
        if name in self._schemas:
            return self._schemas[name]
        schema = None
        if (document := self._outputs.get(name)) is not None:
            try:
                # A format the server does not check either is no reason to lose its result.
                schema = Schema(document, formats=False, origin="outputSchema")
            except ConfigurationError as error:
                logger.warning("results of the tool %r cannot be checked: %s", name, error)
        self._schemas[name] = schema
        return schema

    def _learn(self, tool: ToolDefinition) -> bool:
        name = tool.name
        self._refused.pop(name, None)
        if self._outputs.get(name) != tool.output_schema:
            self._schemas.pop(name, None)
        if tool.output_schema is None:
            self._outputs.pop(name, None)
        else:
            self._outputs[name] = tool.output_schema
        try:
            self._rules[name] = self._rules_of(tool) if self.mirrors else ()
        except ConfigurationError as error:
            self._rules.pop(name, None)
            self._refused[name] = str(error)
            logger.warning("%s: the tool %r is left out: %s", self._where, name, error)
            return False
        return True

    def _rules_of(self, tool: ToolDefinition) -> tuple[HeaderRule, ...]:
        # Nearly no schema is annotated, and one that is not needs no understanding.
        if ANNOTATION.encode() not in msgspec.json.encode(tool.input_schema):
            return ()
        return header_rules(Document(tool.input_schema, "inputSchema", DEFAULT_LIMITS))
