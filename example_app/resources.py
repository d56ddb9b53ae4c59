"""A resource template: the sheet of each repair, read from the database."""

from collections.abc import Mapping, Sequence
from typing import Any

from example_app.tools.assigned import workshop_of
from example_app.workshop import Refusal, RepairSheet
from genmcp import Channel, ResourceDefinition, ResourceRepo, prefix_matches

__all__ = ["RepairSheets", "sheet_uri"]


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


def sheet_uri(repair: int) -> str:
    """Return the URI of the sheet of a repair."""
    return f"workshop://repairs/{repair}"
