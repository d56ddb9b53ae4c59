"""What a client knows of a server's tools: which headers a call has, what a result may be."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from genmcp.client.errors import ProtocolFault
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.schema.document import Document
from genmcp.schema.headers import ANNOTATION, header_rules
from genmcp.schema.limits import FOREIGN_LIMITS
from genmcp.schema.schema import Schema
from genmcp.wire.mirror import HeaderRule, mirrored

__all__ = ["Offers"]

logger = logging.getLogger("genmcp")

Headers = tuple[tuple[bytes, bytes], ...]


class _Offer:
    """One tool, as it was listed.

    refused: why it cannot be called. output: its output schema as JSON, since what was listed
    belongs to who asked for the list; made into a Schema when the first result is checked.
    """

    __slots__ = ("_schema", "output", "refused", "rules")

    def __init__(self, rules: tuple[HeaderRule, ...], refused: str, output: bytes | None) -> None:
        self.rules = rules
        self.refused = refused
        self.output = output
        self._schema: Schema | UnsetType | None = None if output is None else UNSET

    def schema(self, name: str) -> Schema | None:
        """Return its output schema, if it has one that can be used."""
        if self._schema is UNSET:
            try:
                document = msgspec.json.decode(self.output or b"")
                # A format the server does not check either is no reason to lose its result.
                self._schema = Schema(document, formats=False, origin="outputSchema")
            except ConfigurationError as error:
                logger.warning("results of the tool %r cannot be checked: %s", name, error)
                self._schema = None
        return self._schema


class Offers:
    """The tools a server has listed last, by name.

    *mirrors* says whether arguments are repeated in headers: over HTTP, from 2026-07-28 on. Only
    then does an annotation that breaks its rules make a tool unusable (Streamable HTTP,
    "Schema Extension").
    """

    def __init__(self, where: str, *, mirrors: bool) -> None:
        self.mirrors = mirrors
        self._where = where
        self._known: Mapping[str, _Offer] = {}

    def knows(self, name: str) -> bool:
        """Whether the tool is listed."""
        return name in self._known

    def learn(self, tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
        """Take note of *tools*, all there are, and return those of them that can be called."""
        known: dict[str, _Offer] = {}
        usable: list[ToolDefinition] = []
        for tool in tools:
            offer = known[tool.name] = self._offer(tool)
            if not offer.refused:
                usable.append(tool)
        self._known = known
        return usable

    def headers(self, name: str, arguments: Any) -> Headers:
        """Return the headers that repeat *arguments* of a call.

        Raises:
            ProtocolFault: the tool was left out, for its annotations.
        """
        if (offer := self._known.get(name)) is None:
            return ()
        if offer.refused:
            raise ProtocolFault(f"the tool {name!r} cannot be called: {offer.refused}", self._where)
        return mirrored(offer.rules, arguments) if offer.rules else ()

    def check(self, name: str, result: CallToolResult) -> None:
        """Check a result against the tool's output schema, if it has one that can be used.

        2026-07-28, server/tools, "Output Schema": a server's structured results conform to it,
        and a client should check that.

        Raises:
            ProtocolFault: it has no structured content, or one that does not fit.
        """
        offer = self._known.get(name)
        if offer is None or result.is_error or (schema := offer.schema(name)) is None:
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

    def _offer(self, tool: ToolDefinition) -> _Offer:
        """Return what is to be known of *tool*: what it was, unless that has changed."""
        rules: tuple[HeaderRule, ...] = ()
        refused = ""
        if self.mirrors:
            try:
                rules = _rules_of(tool)
            except ConfigurationError as error:
                refused = str(error)
                logger.warning("%s: the tool %r is left out: %s", self._where, tool.name, error)
        output = None if tool.output_schema is None else msgspec.json.encode(tool.output_schema)
        known = self._known.get(tool.name)
        if known is None or (known.rules, known.refused, known.output) != (rules, refused, output):
            return _Offer(rules, refused, output)
        return known


def _rules_of(tool: ToolDefinition) -> tuple[HeaderRule, ...]:
    # Nearly no schema is annotated, and one that is not needs no understanding.
    if ANNOTATION.encode() not in msgspec.json.encode(tool.input_schema):
        return ()
    return header_rules(Document(tool.input_schema, "inputSchema", FOREIGN_LIMITS))
