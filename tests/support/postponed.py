"""A tool in a module with postponed annotations."""

from __future__ import annotations

from genmcp import Channel, tool


@tool
async def ask(a: int, whatever: Channel) -> str:
    """Returns the name of the caller."""
    return f"{a} {whatever.client.revision}"
