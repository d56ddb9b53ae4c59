"""A tool with progress and a structured result.

Explained by step 5 of the tutorial.
"""

from typing import Annotated

from msgspec import Meta, Struct

from example_app.tools.assigned import workshop_of
from example_app.workshop import Category, Part, enough
from genmcp import Channel, Tool, ToolAnnotations, ToolRequest

__all__ = ["PlanOrders"]


class PlanArguments(Struct, forbid_unknown_fields=True):
    weeks: Annotated[int, Meta(ge=1, le=26, description="How long the stock should last")] = 6
    certainty: Annotated[
        float, Meta(gt=0, lt=1, description="How likely each part should last that long")
    ] = 0.95
    category: Annotated[Category | None, Meta(description="Only parts of this category")] = None
    simulations: Annotated[
        int, Meta(ge=100, le=100_000, description="How many futures to try for each part")
    ] = 5000


class OrderLine(Struct):
    number: str
    name: str
    quantity: int
    cost: int


class OrderPlan(Struct):
    """The orders, most expensive first; costs are in cents."""

    lines: list[OrderLine]
    cost: int


class PlanOrders(Tool[PlanArguments]):
    """Plans the orders that are needed for the stock to last for a number of weeks.

    Simulates the demand for each part from the weeks of its past year. Takes a few seconds by
    default, and longer with more weeks and simulations.
    """

    name = "plan_orders"
    title = "Plan orders"
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    output_schema = OrderPlan

    async def call(self, request: ToolRequest[PlanArguments], channel: Channel) -> OrderPlan:
        wanted = request.arguments
        workshop = workshop_of(channel)
        parts = await channel.in_thread(workshop.parts, "", wanted.category)
        lines = []
        for done, part in enumerate(parts):
            await channel.progress(done, len(parts), part.name)
            # One part at a time, so that a cancelled call ends between two of them.
            past = await channel.in_thread(workshop.demand, part.number)
            needed = await channel.in_thread(needed_of, part, past, wanted)
            if needed > part.stock:
                quantity = needed - part.stock
                lines.append(OrderLine(part.number, part.name, quantity, quantity * part.price))
        await channel.progress(len(parts), len(parts), "Done")
        lines.sort(key=lambda line: -line.cost)
        return OrderPlan(lines, sum(line.cost for line in lines))


def needed_of(part: Part, past: list[int], wanted: PlanArguments) -> int:
    """Return the stock of *part* that *wanted* requires."""
    return enough(
        part.number,
        past,
        weeks=wanted.weeks,
        certainty=wanted.certainty,
        simulations=wanted.simulations,
    )
