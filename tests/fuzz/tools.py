"""The server under fuzzing: tools of every kind, which accept any arguments."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec

from genmcp import Channel, McpError, Suite, Tool, ToolError, ToolRequest, tool
from genmcp.errors import ContractError


class Deliberate(Exception):
    """Raised by the tool `crash` only."""


class DeliberateContract(ContractError, Deliberate):
    """A ContractError of `crash`, which makes the whole request fail."""


class Item(msgspec.Struct):
    """Part of an argument."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments as a type."""

    items: list[Item]
    kind: Literal["a", "b"] = "a"
    weight: float = 1.0
    notes: dict[str, str] = {}


class Typed(Tool[Order]):
    """Takes a struct and returns its fields."""

    name = "typed"
    output_schema = {"type": "object", "properties": {"count": {"type": "integer"}}}

    async def call(self, request: ToolRequest[Order], channel: Channel) -> Any:
        return {"count": len(request.arguments.items)}


class Mirrored(Tool):
    """Has arguments that headers mirror."""

    name = "mirrored"
    input_schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "deep": {
                "type": "object",
                "properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry"}},
            },
        },
    }

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return request.arguments


class Strict(Tool):
    """Has a large schema."""

    name = "strict"
    input_schema = {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email"},
            "code": {"type": "string", "pattern": "^[a-z]+[0-9]*$", "maxLength": 20},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "step": {"type": "number", "multipleOf": 0.1, "exclusiveMinimum": 0},
            "tree": {"$ref": "#/$defs/tree"},
        },
        "required": ["code"],
        "additionalProperties": False,
        "$defs": {
            "tree": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}},
        },
    }

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return "fine"


class Anything(Tool):
    """Returns its arguments."""

    name = "anything"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return request.arguments


class Leaving(Tool):
    """Is cancelled when its client disconnects, on every revision."""

    name = "leaving"
    on_disconnect = "cancel"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        channel.start_stream()
        for _ in range(10):
            await asyncio.sleep(0)
        return "left"


class Crash(Tool):
    """Fails in every way there is."""

    name = "crash"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        match request.arguments.get("how"):
            case "contract":
                raise DeliberateContract("x")
            case "said":
                raise ToolError("said so")
            case "error":
                raise McpError("no", {"why": [1]}, code=-32602)
        await asyncio.sleep(0)
        raise Deliberate("secret")


@tool
async def speaks(channel: Channel, times: int = 3) -> str:
    """Sends a log message on the way."""
    for number in range(min(times, 20)):
        await channel.progress(number, total=times, message="…")
        await channel.log("error", {"number": number}, "speaks")
    return "said"


@tool
async def slow(channel: Channel, polls: bool = False) -> str:
    """Takes longer than a heartbeat."""
    await channel.progress(1)
    if polls:
        channel.release(1)
    await asyncio.sleep(0.004)
    return "at last"


@tool
def threaded(text: str) -> str:
    """Runs in a thread."""
    return text.upper()


suite = Suite(
    name="fuzz",
    version="1",
    tools=[Typed, Mirrored, Strict, Anything, Leaving, Crash, speaks, slow, threaded],
)
