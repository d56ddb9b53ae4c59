"""Tools as functions, with the workshop as a dependency.

Explained by steps 1 and 4 of the tutorial.
"""

from typing import Annotated

from msgspec import Meta

from example_app.tools.assigned import workshop_of
from example_app.workshop import Refusal, Repair, RepairSheet, Workshop
from genmcp import Depends, ToolAnnotations, ToolError, tool

__all__ = ["close_repair", "list_repairs", "open_repair", "repair_sheet"]

Number = Annotated[int, Meta(description="The number of the repair")]
# No argument of the tool: a client neither sees nor passes it.
OpenWorkshop = Annotated[Workshop, Depends(workshop_of)]


@tool(
    title="List repairs",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
def list_repairs(
    workshop: OpenWorkshop,
    include_closed: Annotated[bool, "Whether to list closed repairs as well"] = False,
) -> list[Repair]:
    """Lists the open repairs, the newest first."""
    return workshop.repairs(closed=include_closed)


@tool(
    title="Repair sheet",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
def repair_sheet(repair: Number, workshop: OpenWorkshop) -> RepairSheet:
    """Shows a repair: its checklist, and the parts it took."""
    try:
        return workshop.sheet(repair)
    except Refusal as refusal:
        raise ToolError(str(refusal)) from refusal


@tool(
    title="Open a repair",
    annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False),
)
def open_repair(
    bicycle: Annotated[str, Meta(min_length=1, description="What is to be repaired")],
    customer: Annotated[str, Meta(min_length=1, description="Who brought the bicycle")],
    workshop: OpenWorkshop,
    checklist: Annotated[list[str], Meta(description="What is to do")] = [],  # noqa: B006
) -> RepairSheet:
    """Opens a repair, for which parts can then be withdrawn."""
    return workshop.open_repair(bicycle, customer, checklist)


@tool(
    title="Close a repair",
    annotations=ToolAnnotations(
        destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
)
def close_repair(repair: Number, workshop: OpenWorkshop) -> RepairSheet:
    """Closes a repair: it takes no more parts."""
    try:
        return workshop.close_repair(repair)
    except Refusal as refusal:
        raise ToolError(str(refusal)) from refusal
