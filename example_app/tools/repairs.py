"""Tools as functions."""

from typing import Annotated

from msgspec import Meta

from example_app.tools.assigned import workshop_of
from example_app.workshop import Refusal, Repair, RepairSheet
from genmcp import Channel, ToolAnnotations, ToolError, tool

__all__ = ["close_repair", "list_repairs", "open_repair", "repair_sheet"]

Number = Annotated[int, Meta(description="The number of the repair")]


@tool(
    title="List repairs",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
def list_repairs(
    channel: Channel,
    include_closed: Annotated[bool, "Whether to list closed repairs as well"] = False,
) -> list[Repair]:
    """Lists the open repairs, the newest first."""
    return workshop_of(channel).repairs(closed=include_closed)


@tool(
    title="Repair sheet",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
def repair_sheet(repair: Number, channel: Channel) -> RepairSheet:
    """Shows a repair: its checklist, and the parts it took."""
    try:
        return workshop_of(channel).sheet(repair)
    except Refusal as refusal:
        raise ToolError(str(refusal)) from refusal


@tool(
    title="Open a repair",
    annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False),
)
def open_repair(
    bicycle: Annotated[str, Meta(min_length=1, description="What is to be repaired")],
    customer: Annotated[str, Meta(min_length=1, description="Who brought the bicycle")],
    channel: Channel,
    checklist: Annotated[list[str], Meta(description="What is to do")] = [],  # noqa: B006
) -> RepairSheet:
    """Opens a repair, for which parts can then be withdrawn."""
    return workshop_of(channel).open_repair(bicycle, customer, checklist)


@tool(
    title="Close a repair",
    annotations=ToolAnnotations(
        destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
)
def close_repair(repair: Number, channel: Channel) -> RepairSheet:
    """Closes a repair: it takes no more parts."""
    try:
        return workshop_of(channel).close_repair(repair)
    except Refusal as refusal:
        raise ToolError(str(refusal)) from refusal
