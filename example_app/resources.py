"""Resources: the stock, each part and the sheet of each repair, read from the database.

`announce` notifies their subscribers when the data has changed.
Explained by step 3 of the tutorial, and by the page on subscriptions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from example_app.tools.assigned import workshop_of
from example_app.workshop import Part, Refusal, RepairSheet
from genmcp import Channel, Suite, resource
from genmcp.completion import prefix_matches
from genmcp.protocol import ResourceDefinition
from genmcp.resources import ResourceRepo

__all__ = ["STOCK", "RepairSheets", "announce", "part", "sheet_uri", "stock"]

STOCK = "workshop://stock"


@resource(STOCK, title="Stock", mime_type="application/json")
def stock(channel: Channel) -> dict[str, int]:
    """How many of each part are left, by number."""
    return workshop_of(channel).stock()


def part_numbers(
    argument: str, value: str, context: Mapping[str, str], channel: Channel
) -> Sequence[str]:
    return prefix_matches(workshop_of(channel).stock(), value)


@resource(
    "workshop://parts/{number}",
    title="Part",
    mime_type="application/json",
    complete=part_numbers,
)
def part(number: str, channel: Channel) -> Part | None:
    """A part: its shelf, its price in cents, and how many are left."""
    try:
        return workshop_of(channel).part(number)
    except Refusal:
        return None  # the client gets an error: there is no such resource


class RepairSheets(ResourceRepo):
    """The sheet of a repair: its checklist, its parts and their cost."""

    name = "repair"
    title = "Repair sheet"
    template = "workshop://repairs/{id}"
    mime_type = "application/json"

    def list(self, cursor: Any, channel: Channel, /) -> Sequence[ResourceDefinition]:
        return [
            ResourceDefinition(
                sheet_uri(repair.id),
                f"repair-{repair.id}",
                title=f"{repair.bicycle}, {repair.customer}",
                mime_type=self.mime_type,
            )
            for repair in workshop_of(channel).repairs(closed=True)
        ]

    def read(self, key: dict[str, str], channel: Channel, /) -> RepairSheet | None:
        """Return the sheet, None for an unknown repair: the client gets an error."""
        try:
            return workshop_of(channel).sheet(int(key["id"]))
        except (ValueError, Refusal):
            return None

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Sequence[str]:
        repairs = workshop_of(channel).repairs(closed=True)
        return prefix_matches((str(repair.id) for repair in repairs), value)


def sheet_uri(repair: int | str) -> str:
    """Return the URI of the sheet of a repair."""
    return f"workshop://repairs/{repair}"


def announce(suite: Suite, kind: Literal["part", "repair", "new repair"], number: str) -> None:
    """Notify the subscribers of the resources that have changed, in every process."""
    match kind:
        case "part":
            suite.resource_updated(f"workshop://parts/{number}")
            suite.resource_updated(STOCK)
        case "repair":
            suite.resource_updated(sheet_uri(number))
        case "new repair":
            suite.changes.resources_list_changed()
