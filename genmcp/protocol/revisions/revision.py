"""One revision of the protocol: its facts, its methods, and how its values are translated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from genmcp.protocol.methods import Method
from genmcp.protocol.revisions.translation import Change, Composed, Step, Translation

__all__ = ["Revision"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Revision:
    """A dated version of the protocol. The facts are what its changelog says of the wire."""

    version: str
    #: Each request stands for itself; before, there is a handshake and perhaps a session, and
    #: the server sends requests.
    modern: bool
    #: Several messages may come in one JSON array.
    batches: bool
    #: An event stream begins with an event that has an id and no data (SEP-1699), after which
    #: the server may close the connection and the client comes back.
    priming_event: bool
    #: The code of the error that says there is no such resource.
    resource_not_found: int
    #: What may be sent, by either side.
    methods: Mapping[str, Method] = field(repr=False)
    downward: Translation = field(repr=False)
    upward: Translation = field(repr=False)

    def down(self, value: Any) -> Any:
        """Return *value*, one of 2026-07-28, as this revision says it.

        What it cannot say is left out, or becomes what it can say. The same object comes back
        where nothing differs.

        Raises:
            MissingCapability: it is a question that no client of this revision can be asked.
        """
        return self.downward[type(value)](value)

    def up(self, value: Any) -> Any:
        """Return *value*, one of this revision, as 2026-07-28 says it.

        The same object comes back where nothing differs.
        """
        return self.upward[type(value)](value)

    def older(
        self,
        version: str,
        *,
        down: Mapping[type, Change],
        up: Mapping[type, Change],
        **differences: Any,
    ) -> "Revision":
        """Return the revision before this one, given the *differences* of its facts."""
        return replace(
            self,
            version=version,
            downward=Composed(self.downward, Step(down)),
            upward=Composed(Step(up), self.upward),
            **differences,
        )
