"""What a server is, for a client that asks: 2026-07-28, server/discover."""

from collections.abc import Sequence

from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.result import CacheableResult

__all__ = ["DiscoverResult"]


class DiscoverResult(CacheableResult):
    """The revisions a server speaks, newest first, and what it can do."""

    supported_versions: Sequence[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
