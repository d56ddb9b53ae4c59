"""A server with an example of everything that the console shows."""

import asyncio
import base64
from contextlib import suppress
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from genmcp import (
    Audio,
    CallToolResult,
    Channel,
    Continue,
    Image,
    Resource,
    Suite,
    ToolAnnotations,
    elicit,
    elicit_url,
    embedded_resource,
    prompt,
    resource_link,
    result,
    tool,
    user,
)
from genmcp.protocol import PromptMessage
from genmcp.resources import ResourceRepo

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SILENCE = (
    b"RIFF$\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00@\x1f\x00\x00"
    b"\x01\x00\x08\x00data\x00\x00\x00\x00"
)
MARKUP = "<img src=x onerror=\"document.title='broken into'\">"

_working: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
counter = {"value": 0}


class Address(BaseModel):
    street: str
    city: str = "Bonn"


class Line(BaseModel):
    article: str
    count: int = Field(default=1, ge=1, le=9)


class ByCard(BaseModel):
    kind: Literal["card"]
    number: str


class ByInvoice(BaseModel):
    kind: Literal["invoice"]
    days: int = 14


@tool(annotations=ToolAnnotations(read_only_hint=True))
async def order(
    customer: Annotated[str, Field(min_length=2, description="Who orders.")],
    lines: list[Line],
    ship_to: Address | None = None,
    payment: ByCard | ByInvoice = ByInvoice(kind="invoice"),  # noqa: B008 - never changed
    when: date | None = None,
    size: Literal["small", "large"] = "small",
    gift: bool = False,
    weight: Annotated[float, Field(gt=0)] = 1.5,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Orders articles."""
    given = locals()
    plain: dict[str, Any] = to_jsonable_python(given)
    return plain


@tool
async def show() -> CallToolResult:
    """Shows content of each type."""
    return result(
        MARKUP,
        Image(PIXEL),
        Audio(SILENCE),
        resource_link("counter://value", "The counter"),
        embedded_resource("note://1", "An embedded note"),
        data={"list": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], "deep": {"deeper": [1, [2, None]]}},
    )


@tool
async def fail() -> CallToolResult:
    """Fails."""
    return result(error="There is no more paper.")


@tool
async def work(channel: Channel) -> str:
    """Reports progress until the test lets it end."""
    await channel.progress(1, 4, "warming up")
    await channel.log("warning", "It is cold.")
    go_on = asyncio.Event()
    waiting = (asyncio.get_running_loop(), go_on)
    _working.append(waiting)
    try:
        await go_on.wait()
    finally:
        with suppress(ValueError):  # it was released
            _working.remove(waiting)
    return "warm"


def release() -> None:
    """Let the calls of `work` end; called in another thread."""
    while _working:
        loop, go_on = _working.pop()
        loop.call_soon_threadsafe(go_on.set)


class Answer(msgspec.Struct):
    name: str
    sure: bool = True


@tool
async def ask(greeting: str = "Hello") -> Continue:
    """Asks for a name."""
    return elicit("Who are you?", Answer).then(answered)


@ask.step
async def answered(answer: Answer, greeting: str) -> str:
    return f"{greeting}, {answer.name}"


@tool
async def visit() -> Continue:
    """Asks to visit a page."""
    return elicit_url("Please pay.", "https://pay.example.com/bill/7").then(visited)


@visit.step
async def visited(answer: Any) -> str:
    return "visited"


@tool
async def count(channel: Channel) -> int:
    """Counts, and reports that the counter has changed."""
    counter["value"] += 1
    channel.changes.resource_updated("counter://value")
    return counter["value"]


@tool
async def stock() -> list[dict[str, Any]]:
    """Returns rows with long words and numbers."""
    return [
        {
            "ingredient": "Oberammergauer Schinkenwurst, luftgetrocknet",
            "grams": 12_345_678_901,
            "price": 1_234.56,
            "shelf": f"Vorratskammer {shelf}",
            "remark": "Consume within a fortnight after the refrigerator was opened.",
        }
        for shelf in range(30)
    ]


class Counter(Resource):
    """How often it was counted."""

    uri = "counter://value"
    name = "counter"

    async def read(self, key: Any, channel: Channel) -> dict[str, int]:
        return dict(counter)


class City(ResourceRepo):
    """A city."""

    prefix = "city://"
    template = "city://{country}/{name}"
    name = "city"

    async def read(self, key: dict[str, str], channel: Channel) -> str:
        return f"{key['name']} in {key['country']}"

    async def complete(self, argument: str, value: str, context: Any, channel: Channel) -> Any:
        return [each for each in ("Bonn", "Berlin", "Rome") if each.startswith(value)]


@prompt
async def review(code: str, language: Literal["python", "rust"] = "python") -> list[PromptMessage]:
    """Asks for a review."""
    return [user(f"Review this {language}: {code}")]


suite = Suite(
    name="kitchen",
    version="1.2",
    title="The kitchen",
    instructions="Cook with care.",
    tools=[order, show, fail, work, ask, visit, count, stock],
    resources=[Counter, City],
    prompts=[review],
)
