"""A server with one of everything, for the commands."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from genmcp import (
    Accepted,
    CallToolResult,
    Channel,
    Continue,
    Done,
    Image,
    Outcome,
    PromptTemplate,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    tool,
)
from genmcp.protocol import ResourceDefinition
from genmcp.resources import ResourceRepo


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


@tool
def plan(
    city: Annotated[str, msgspec.Meta(description="Where to go.")] = "Oslo",
    by: Literal["train", "boat"] = "train",
    stops: list[str] | None = None,
) -> dict[str, int]:
    """Plans a trip by land or by sea, and returns its duration.

    In days.
    """
    sys.stdout.write("planned\n")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    return {"days": 2}


class Book(Tool):
    """Books a trip."""

    name = "book"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        meals = {
            "type": "array",
            "items": {"type": "string", "enum": ["breakfast", "dinner"]},
        }
        name = {"type": "string", "title": "Your name", "minLength": 2}
        form = {"type": "object", "properties": {"name": name, "meals": meals}}
        return Continue("booked", elicit("Who travels?", {**form, "required": ["name"]}))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        match outcome:
            case Done(Accepted(said)):
                return f"{said['name']}: {', '.join(said.get('meals', ()))}"
        return "nobody"


class Greetings(ResourceRepo):
    """Greetings, by city."""

    name = "greeting"
    template = "greeting://{city}"

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition("greeting://Oslo", "Oslo")]

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Sequence[str]:
        return ["Oslo"]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        if key["city"] == "bytes":
            return b"\x00\x01"
        return f"Hello {key['city']}"


class Travel(PromptTemplate):
    """Completes cities: fewer of them can be reached by boat."""

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Sequence[str]:
        return ["Rouen"] if "by" in context else ["Rome", "Rouen"]


suite = Suite(
    name="shop",
    version="2",
    tools=[add, fail, draw, data, plan, Book],
    resources=[Greetings()],
    prompts=[
        PromptTemplate(name="greet", messages="Greet {city}"),
        Travel(name="travel", messages="To {city}{?by? by {by}}"),
    ],
    instructions="Buy something.",
)
