"""The tools that the official suite expects, as its documentation describes them."""

import asyncio
import struct
import zlib
from typing import Any

from genmcp import Audio, Channel, Image, Tool, ToolError, ToolRequest, embedded_resource, result
from genmcp.errors import MissingCapability

TEXT = "This is a simple text response for testing."

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def png() -> bytes:
    """Return an image of one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\x00\xff\x00\x00")
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    )


def _wav() -> bytes:
    """Return two silent samples."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", 2) + b"\x80\x80"
    return b"RIFF" + struct.pack("<I", len(body)) + body


class SimpleText(Tool):
    """Returns a simple text."""

    name = "test_simple_text"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return TEXT


class ImageContent(Tool):
    """Returns a picture."""

    name = "test_image_content"

    async def call(self, request: ToolRequest, channel: Channel) -> Image:
        return Image(png())


class AudioContent(Tool):
    """Returns a sound."""

    name = "test_audio_content"

    async def call(self, request: ToolRequest, channel: Channel) -> Audio:
        return Audio(_wav())


class EmbeddedResource(Tool):
    """Returns a resource with its contents."""

    name = "test_embedded_resource"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        text = "This is an embedded resource content."
        return embedded_resource("test://embedded-resource", text, "text/plain")


class MultipleContentTypes(Tool):
    """Returns text, a picture and a resource."""

    name = "test_multiple_content_types"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        data = '{"test":"data","value":123}'
        return result(
            "Multiple content types test:",
            Image(png()),
            embedded_resource("test://mixed-content-resource", data, "application/json"),
        )


class ErrorHandling(Tool):
    """Always fails."""

    name = "test_error_handling"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        raise ToolError("This tool intentionally returns an error for testing")


class WithProgress(Tool):
    """Reports progress three times."""

    name = "test_tool_with_progress"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        for done in (0, 50, 100):
            await channel.progress(done, 100)
            await asyncio.sleep(0.05)
        return "Progress was reported."


class WithLogging(Tool):
    """Sends three log messages."""

    name = "test_tool_with_logging"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        for text in (
            "Tool execution started",
            "Tool processing data",
            "Tool execution completed",
        ):
            await channel.log("info", text)
            await asyncio.sleep(0.05)
        return "Messages were logged."


class Reconnection(Tool):
    """Gives up its connection in the middle of the call."""

    name = "test_reconnection"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        channel.release(retry=100)
        await asyncio.sleep(0.2)
        return "The call went on without its connection."


class JsonSchema(Tool):
    """Has a schema with everything 2020-12 knows."""

    name = "json_schema_2020_12_tool"
    input_schema = SCHEMA

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return request.arguments


class Mirrored(Tool):
    """Has an argument that a header mirrors."""

    name = "test_x_mcp_header"
    input_schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "default": "<none>", "x-mcp-header": "Region"}},
    }

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return f"region: {request.arguments['region']}"


class MissingSampling(Tool):
    """Needs a client that samples."""

    name = "test_missing_capability"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        if channel.client.capabilities.sampling is None:
            raise MissingCapability({"sampling": {}})
        return "The client samples."


class StreamingElicitation(Tool):
    """Sends notifications, and never a request, on its stream."""

    name = "test_streaming_elicitation"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        channel.start_stream()
        await channel.progress(1, 1)
        return "Nothing was asked on the stream."


class Logging(Tool):
    """Logs messages if the request has set a level."""

    name = "test_logging_tool"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        await channel.log("info", "The tool is at work.")
        return "Done."


TOOLS: list[type[Tool]] = [
    SimpleText,
    ImageContent,
    AudioContent,
    EmbeddedResource,
    MultipleContentTypes,
    ErrorHandling,
    WithProgress,
    WithLogging,
    Reconnection,
    JsonSchema,
    Mirrored,
    MissingSampling,
    StreamingElicitation,
    Logging,
]
