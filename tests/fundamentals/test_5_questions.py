"""The fifth chapter: a tool asks its user, and its client's model."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Struct

from genmcp import (
    Accepted,
    Cancelled,
    Channel,
    Client,
    ClientHandler,
    ClientOptions,
    Continue,
    Declined,
    Suite,
    elicit,
    tool,
)


class Evening(Struct):
    """When the table should be ready."""

    hour: int


class Guest(ClientHandler):
    """Answers each form with *answer*."""

    def __init__(self, answer: Accepted | Declined | Cancelled) -> None:
        self.answer = answer

    async def handle_elicitation_create(
        self, message: str, schema: Mapping[str, Any]
    ) -> Accepted | Declined | Cancelled:
        return self.answer


@tool
async def reserve(guests: int) -> Continue:
    """Reserves a table."""
    return elicit(f"When should the table for {guests} be ready?", Evening).then(reserved, not_now)


@reserve.step
async def reserved(evening: Evening, guests: int) -> str:
    return f"A table for {guests}, at {evening.hour}."


@reserve.step
async def not_now(answer: Declined | Cancelled) -> str:
    return f"Not reserved: {type(answer).__name__}."


suite = Suite(name="tutorial", version="1.0", tools=[reserve])


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25", "2025-06-18"])
async def test_user_fills_in_a_form(revision: str) -> None:
    """The same tool works in every revision that has forms."""
    guest = Guest(Accepted({"hour": 19}))
    options = ClientOptions(revision=revision)

    async with Client(suite, handler=guest, options=options) as client:
        result = await client.call("reserve", {"guests": 4})

    assert result.text == "A table for 4, at 19."


@pytest.mark.parametrize("answer", [Declined(), Cancelled()])
async def test_user_declines_or_cancels(answer: Declined | Cancelled) -> None:
    """The second step of `then` gets the answer of a user who declines."""
    async with Client(suite, handler=Guest(answer)) as client:
        result = await client.call("reserve", {"guests": 4})

    assert result.text == f"Not reserved: {type(answer).__name__}."


async def test_client_without_forms_is_not_asked() -> None:
    """The error names the capability that the client does not declare."""
    async with Client(suite) as client:
        with pytest.raises(Exception, match="elicitation"):
            await client.call("reserve", {"guests": 4})


async def test_question_is_asked_until_the_answer_fits() -> None:
    """A step may return its own question again. What it counts is kept with the call."""

    @tool
    async def book(guests: int) -> Continue:
        return elicit("When?", Evening).then(chosen)

    @book.step
    async def chosen(evening: Evening, guests: int, channel: Channel) -> Continue | str:
        attempt = channel.assigns.get("attempt", 1)
        if attempt < 3:
            channel.assigns["attempt"] = attempt + 1
            return elicit(f"{evening.hour} is taken. When else?", Evening).then(chosen)
        return f"A table for {guests}, at attempt {attempt}."

    guest = Guest(Accepted({"hour": 19}))
    async with Client(Suite("tutorial", tools=[book]), handler=guest) as client:
        result = await client.call("book", {"guests": 4})

    assert result.text == "A table for 4, at attempt 3."
