"""An app: the parts that a search has found as a chart, for hosts that show pages (SEP-1865).

Explained by the page on extensions.
"""

from pathlib import Path

from example_app.tools.assigned import workshop_of
from example_app.tools.parts import SearchParts
from example_app.workshop import Part, Refusal
from genmcp import Channel, ToolAnnotations, ToolError, tool
from genmcp.extensions import App

__all__ = ["chart"]


# The page calls this when the user clicks on a bar. No model sees it: it has search_parts.
@tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def look_up_part(number: str, channel: Channel) -> Part:
    """Returns a part as it is now."""
    try:
        return workshop_of(channel).part(number)
    except Refusal as refusal:
        raise ToolError(str(refusal)) from refusal


chart = App(
    "ui://workshop/stock",
    Path(__file__).with_name("chart.html"),
    tools=[SearchParts],
    app_tools=[look_up_part],
    prefers_border=True,
    title="Stock as a chart",
)
