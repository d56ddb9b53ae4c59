"""A server with one of everything, for the commands."""

from typing import Any

from genmcp import (
    About,
    CallToolResult,
    Channel,
    Image,
    PromptTemplate,
    ResourceDefinition,
    ResourceRepo,
    Suite,
    ToolError,
    tool,
)


@tool
async def add(a: int, b: int, channel: Channel, c: int = 0) -> int:
    """Adds up.

    Slowly.
    """
    await channel.progress(1, 2, "half")
    await channel.log("warning", "adding")
    return a + b + c


@tool
async def fail() -> None:
    raise ToolError("out of paper")


@tool
async def draw() -> Image:
    """Draws."""
    return Image(b"\x89PNG\r\n\x1a\n")


@tool
async def data() -> Any:
    """Gives an object without words."""
    return CallToolResult(content=[], structured_content={"a": 1})


class Greetings(ResourceRepo):
    """Greetings, by city."""

    name = "greeting"
    template = "greeting://{city}"

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition("greeting://Oslo", "Oslo")]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        if key["city"] == "bytes":
            return b"\x00\x01"
        return f"Hello {key['city']}"


suite = Suite(
    name="shop",
    version="2",
    tools=[add, fail, draw, data],
    resources=[Greetings()],
    prompts=[PromptTemplate(name="greet", messages="Greet {city}")],
    about=About(instructions="Buy something."),
)
