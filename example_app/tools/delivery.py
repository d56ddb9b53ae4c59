"""A tool with a JSON Schema, whose arguments are a dict, and with all three hooks of a call:
`validate` reads the note, `call` books it or asks the user, `continue_` gets the answer.

Explained by the page on continuations.
"""

import csv
import re
from collections import Counter
from typing import Any

from example_app.tools.assigned import user_of, workshop_of
from example_app.workshop import Refusal
from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    InvalidParams,
    Outcome,
    Tool,
    ToolAnnotations,
    ToolError,
    ToolRequest,
    elicit,
)

__all__ = ["BookDelivery"]

COLUMNS = ["number", "quantity"]
LARGE = 1000  # pieces


class BookDelivery(Tool):
    """Books a delivery note of a supplier, completely or not at all."""

    name = "book_delivery"
    title = "Book a delivery"
    annotations = ToolAnnotations(destructive_hint=False, open_world_hint=False)
    input_schema = {
        "type": "object",
        "properties": {
            "supplier": {"type": "string", "minLength": 1, "description": "Who delivers"},
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

    def call(self, request: ToolRequest[dict[str, Any]], channel: Channel) -> str | Continue:
        """Book the delivery, or ask the user before if it is unusually large."""
        pieces = sum(request.arguments["quantities"].values())
        if pieces <= LARGE:
            return self.book(request.arguments, channel)
        asked = elicit(f"Book {pieces} pieces from {request.arguments['supplier']}?")
        return Continue("confirm", asked)

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        """Book a large delivery, or not: the answer of the user is the outcome.

        The process that asked may be another one. `validate` has read the note again.
        """
        match tag, outcome:
            case "confirm", Done(Accepted()):
                return self.book(channel.request.arguments, channel)
            case "confirm", Done():
                return "Nothing was booked: the user did not agree."
            case _:
                outcome.result()  # raises the error of the question, which ends the call
                raise AssertionError(tag)

    def book(self, arguments: dict[str, Any], channel: Channel) -> str:
        """Book the delivery, and return the new stock."""
        supplier, quantities = arguments["supplier"], arguments["quantities"]
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
