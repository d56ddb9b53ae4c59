"""The supported revisions, newest first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from genmcp.protocol.revisions import (
    v2024_11_05,
    v2025_03_26,
    v2025_06_18,
    v2025_11_25,
    v2026_07_28,
)
from genmcp.protocol.revisions.revision import Revision

#: Each revision by its version, newest first.
REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType(
    {
        module.REVISION.version: module.REVISION
        for module in (v2026_07_28, v2025_11_25, v2025_06_18, v2025_03_26, v2024_11_05)
    }
)

#: Every method of the specification, in any revision.
METHOD_NAMES: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)

#: Revisions in which requests are independent of each other.
MODERN: Final = tuple(each for each in REVISIONS.values() if each.modern)
#: Revisions that begin with a handshake (`initialize`).
LEGACY: Final = tuple(each for each in REVISIONS.values() if not each.modern)

LATEST: Final = v2026_07_28.REVISION

#: The codes of an error that means "no such resource" in any revision.
RESOURCE_NOT_FOUND: Final = frozenset(each.resource_not_found for each in REVISIONS.values())


def protocol_version() -> str:
    """Return the newest revision of MCP that genmcp speaks, as a date."""
    return LATEST.version
