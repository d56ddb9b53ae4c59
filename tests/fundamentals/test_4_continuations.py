"""The fourth chapter: a tool waits for something, and continues when it is done."""

import asyncio

from msgspec import Struct

from genmcp import Channel, Client, Continue, Outcome, Suite, Tool, ToolRequest, tool, wait_for


class Order(Struct):
    part: str


async def test_tool_continues_in_a_method() -> None:
    """`then` names the method that gets the value. It also gets the request of the first hook."""

    async def price_of(part: str) -> int:
        await asyncio.sleep(0)
        return len(part)

    class Price(Tool[Order]):
        """Looks up a price."""

        name = "price"

        async def call(self, request: ToolRequest[Order], channel: Channel) -> Continue:
            return wait_for(price_of(request.arguments.part)).then(self.priced)

        async def priced(self, request: ToolRequest[Order], price: int, channel: Channel) -> str:
            return f"{request.arguments.part} costs {price}."

    async with Client(Suite(name="tutorial", version="1.0", tools=[Price()])) as client:
        result = await client.call("price", {"part": "M6x20"})

    assert result.text == "M6x20 costs 5."


async def test_function_continues_in_a_step() -> None:
    """A step gets the value first, and then the arguments of the function that it names."""

    @tool
    async def double(number: int) -> Continue:
        """Doubles a number, slowly."""
        return wait_for(asyncio.sleep(0, number * 2)).then(doubled)

    @double.step
    async def doubled(value: int, number: int) -> str:
        return f"{number} doubled is {value}."

    async with Client(Suite(name="tutorial", version="1.0", tools=[double])) as client:
        result = await client.call("double", {"number": 21})

    assert result.text == "21 doubled is 42."


async def test_state_between_steps_is_in_assigns() -> None:
    """The values must be JSON, because a later step may run in another process."""

    @tool
    async def count(channel: Channel) -> Continue:
        """Counts its steps."""
        channel.assigns["steps"] = 1
        return wait_for(asyncio.sleep(0)).then(counted)

    @count.step
    async def counted(_: None, channel: Channel) -> Continue | str:
        channel.assigns["steps"] += 1
        if channel.assigns["steps"] < 3:
            return wait_for(asyncio.sleep(0)).then(counted)
        return f"{channel.assigns['steps']} steps"

    async with Client(Suite(name="tutorial", version="1.0", tools=[count])) as client:
        result = await client.call("count")

    assert result.text == "3 steps"


async def test_failed_wait_is_a_failed_call() -> None:
    """The text of the exception is only logged, unless it is a ToolError."""

    async def broken() -> None:
        raise KeyError("the password of the database")

    @tool
    async def report() -> Continue:
        """Writes a report."""
        return wait_for(broken()).then(written)

    @report.step
    async def written(_: None) -> str:
        return "never reached"

    async with Client(Suite(name="tutorial", version="1.0", tools=[report])) as client:
        result = await client.call("report")

    assert result.is_error
    assert "password" not in result.text


async def test_general_form_takes_every_outcome() -> None:
    """`continue_` gets the tag of the Continue, and Done or Failed."""

    class Countdown(Tool):
        """Counts down."""

        name = "countdown"

        async def call(self, request: ToolRequest, channel: Channel) -> Continue:
            return Continue("2", asyncio.sleep(0))

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Continue | str:
            outcome.result()  # raises the error of a wait that failed
            return Continue("1", asyncio.sleep(0)) if tag == "2" else "Lift-off."

    async with Client(Suite(name="tutorial", version="1.0", tools=[Countdown()])) as client:
        result = await client.call("countdown")

    assert result.text == "Lift-off."
