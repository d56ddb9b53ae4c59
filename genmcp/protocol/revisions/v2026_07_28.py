"""Revision 2026-07-28, which the entities of `genmcp.protocol` follow."""

from typing import Final

from genmcp.protocol.methods import METHODS
from genmcp.protocol.revisions.revision import AdjacentTranslation, Revision

REVISION: Final = Revision(
    version="2026-07-28",
    modern=True,
    batches=False,
    priming_event=False,
    resource_not_found=-32602,
    methods=METHODS,
    downward=AdjacentTranslation({}),
    upward=AdjacentTranslation({}),
)
