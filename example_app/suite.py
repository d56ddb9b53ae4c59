"""The MCP server: its tools, resource template, prompt and instructions.

Explained by step 1 of the tutorial.
"""

from example_app.chart import chart
from example_app.prompts import CustomerLetter
from example_app.resources import RepairSheets, part, stock
from example_app.tools.delivery import BookDelivery
from example_app.tools.minimums import ReviewMinimums
from example_app.tools.orders import PlanOrders
from example_app.tools.parts import WithdrawPart
from example_app.tools.repairs import close_repair, list_repairs, open_repair, repair_sheet
from genmcp import Suite

__all__ = ["create_suite"]


def create_suite(book_delivery: type[BookDelivery] = BookDelivery) -> Suite:
    """Return the server. With logins, *book_delivery* needs a scope of its own (`login`)."""
    return Suite(
        name="workshop",
        version="1.0.0",
        tools=[
            WithdrawPart,
            book_delivery,
            PlanOrders,
            ReviewMinimums,
            list_repairs,
            repair_sheet,
            open_repair,
            close_repair,
        ],
        resources=[RepairSheets, stock, part],
        prompts=[CustomerLetter],
        extensions=[chart],  # with search_parts, whose results it shows
        title="Bicycle workshop",
        instructions=(
            "The parts store of a bicycle workshop. Find parts with search_parts. A part is taken "
            "for a repair: open one first if there is none. Prices and costs are in euro cents."
        ),
    )
