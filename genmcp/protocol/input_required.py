"""A request that needs answers first: 2026-07-28, basic/patterns, "Multi Round-Trip Requests"."""

from collections.abc import Mapping
from typing import ClassVar

from genmcp.protocol.elicitation import ElicitRequest
from genmcp.protocol.result import Result
from genmcp.protocol.roots import ListRootsRequest
from genmcp.protocol.sampling import CreateMessageRequest

__all__ = ["InputRequest", "InputRequiredResult"]

InputRequest = CreateMessageRequest | ListRootsRequest | ElicitRequest


class InputRequiredResult(Result):
    """Not the result yet: the client answers each request, and sends its own again."""

    result_type: ClassVar[str] = "input_required"

    input_requests: Mapping[str, InputRequest] | None = None
    request_state: str | None = None
