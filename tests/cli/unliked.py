"""A server that some hosts reject."""

from genmcp import Suite, tool


@tool(name="admin.users")
def users() -> list[str]:
    """Lists the users."""
    return ["ann"]


suite = Suite(name="unliked", version="1", tools=[users])
