"""A tool with a JSON Schema, whose arguments are a dict."""

import csv
import re
from collections import Counter
from typing import Any

from example_app.tools.assigned import user_of, workshop_of
from example_app.workshop import Refusal
from genmcp import Channel, InvalidParams, Tool, ToolAnnotations, ToolError, ToolRequest

__all__ = ["BookDelivery"]

COLUMNS = ["number", "quantity"]


class BookDelivery(Tool):
    """Books a delivery note of a supplier, completely or not at all."""

    name = "book_delivery"
    title = "Book a delivery"
    annotations = ToolAnnotations(destructive_hint=False, open_world_hint=False)
    input_schema = {
        "type": "object",
        "properties": {
            "supplier": {"type": "string", "minLength": 1},
            "csv": {
                "type": "string",
                "description": "The note as CSV; its first line is: number,quantity",
                "maxLength": 100_000,
            },
        },
        "required": ["supplier", "csv"],
        "additionalProperties": False,
    }

    def validate(
        self, request: ToolRequest[dict[str, Any]], channel: Channel
    ) -> ToolRequest[dict[str, Any]]:
        """Parse the note, so that `call` gets quantities by part number."""
        quantities = read_note(request.arguments["csv"])
        return request.replace({**request.arguments, "quantities": quantities})

    def call(self, request: ToolRequest[dict[str, Any]], channel: Channel) -> str:
        supplier, quantities = request.arguments["supplier"], request.arguments["quantities"]
        try:
            parts = workshop_of(channel).receive(supplier, quantities, user_of(channel))
        except Refusal as refusal:
            raise ToolError(str(refusal)) from refusal
        lines = [f"{part.number}: {part.stock} on shelf {part.shelf}" for part in parts]
        return "\n".join([f"Booked {sum(quantities.values())} pieces from {supplier}.", *lines])


QUANTITY = re.compile(r"0*[1-9][0-9]{0,5}", re.ASCII)  # of one part: 1 to 999999


def read_note(text: str) -> dict[str, int]:
    """Return the quantities of a delivery note, by part number.

    Raises:
        InvalidParams: the note is malformed; the message names the line.
    """
    rows = csv.reader(text.strip().splitlines())
    if next(rows, None) != COLUMNS:
        raise InvalidParams("csv, line 1: must be number,quantity")
    quantities: Counter[str] = Counter()
    for row in rows:
        match row:
            case [number, quantity] if QUANTITY.fullmatch(quantity.strip()):
                quantities[number.strip()] += int(quantity)
            case _:
                raise InvalidParams(
                    f"csv, line {rows.line_num}: must be a part number and how many of it came, "
                    f"not {','.join(row)!r}"
                )
    if not quantities:
        raise InvalidParams("csv: lists no parts")
    return dict(quantities)
