"""Questions to the client's user: 2026-07-28, client/elicitation."""

from collections.abc import Mapping
from typing import Any, Literal

from genmcp.protocol.value import Value

__all__ = ["ElicitRequest", "ElicitRequestParams", "ElicitResult", "ElicitedValue"]


class ElicitRequestParams(Value):
    """Asks the user to fill in a form, or to go to a URL.

    The schema's ElicitRequestFormParams, with *requested_schema*, and ElicitRequestURLParams,
    with *url*. The requested schema is an object schema of primitive properties.

    Raises:
        ValueError: the mode and what is asked do not belong together.
    """

    message: str
    requested_schema: Mapping[str, Any] | None = None
    url: str | None = None
    mode: Literal["form", "url"] | None = None

    def __post_init__(self) -> None:
        by_url = self.mode == "url"
        if (self.url is None) == by_url or (self.requested_schema is not None) == by_url:
            raise ValueError("a form has a `requestedSchema`; mode `url` has a `url` instead")


class ElicitRequest(Value, tag_field="method", tag="elicitation/create"):
    """Asks the user."""

    params: ElicitRequestParams


# The specification has no null among these; clients send it for a field left empty.
ElicitedValue = str | int | float | bool | list[str] | None


class ElicitResult(Value):
    """What the user did: *content* is there when a form was accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, ElicitedValue] | None = None
