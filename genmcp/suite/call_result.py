"""The tool by which clients without tasks get the results of calls that were held over."""

import msgspec

from genmcp.channel import Channel
from genmcp.policy import RESULT_TOOL
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.tool import Call, Tool

__all__ = ["GetCallResult"]


class Asked(msgspec.Struct):
    """*id* is what the client was told when it could not wait any longer."""

    id: str


class GetCallResult(Tool[Asked]):
    """Gets the result of an earlier call that went on because it took long, by the call's id."""

    name = RESULT_TOOL
    title = "Get the result of a call"
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    task = "never"

    async def call(self, request: Call[Asked], channel: Channel) -> CallToolResult:
        """Return that result, or that there is none yet."""
        return await channel.outcome_of(request.arguments.id)
