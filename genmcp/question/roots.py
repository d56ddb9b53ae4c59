"""Asking the client for its roots: 2026-07-28, client/roots (deprecated there)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from genmcp.errors import ArgumentFaults
from genmcp.faults import Mismatch
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.roots import ListRootsRequest, ListRootsRequestParams, ListRootsResult, Root
from genmcp.question.answers import read_as
from genmcp.question.question import Question
from genmcp.schema.words import came, fault

__all__ = ["RootsQuestion", "roots"]


def roots() -> Question[list[Root]]:
    """Ask in which folders and files the client lets the server work.

    The outcome is `Done` with a list of `Root`; each has a `file://` URI. They are guidance and no
    access control: what a path leads to is for the tool to check.
    """
    return RootsQuestion()


class RootsQuestion(Question[list[Root]], frozen=True, tag="roots"):
    """A question for the roots."""

    method: ClassVar[str] = "roots/list"

    @property
    def request(self) -> ListRootsRequest:
        """The request the client gets; with params, which some clients want to see."""
        return ListRootsRequest(ListRootsRequestParams())

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return `roots`, if the client has none."""
        return {"roots": {}} if capabilities.roots is None else {}

    def read(self, answer: Any) -> list[Root]:
        """Return the roots."""
        found: Sequence[Root] = read_as(ListRootsResult, answer).roots
        faults = [
            fault(("roots", index, "uri"), Mismatch("a URI with file://", came(root.uri)))
            for index, root in enumerate(found)
            if not root.uri.startswith("file://")
        ]
        if faults:
            raise ArgumentFaults(faults)
        return list(found)
