"""A tool in a module whose annotations are texts."""

from __future__ import annotations

from genmcp import Channel, tool


@tool
async def ask(a: int, whatever: Channel) -> str:
    """Says who asks."""
    return f"{a} {whatever.client.revision}"
