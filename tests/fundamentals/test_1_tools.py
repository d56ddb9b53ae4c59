"""The first chapter: tools. Read from the top; each test is one idea."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from genmcp import Call, Channel, InvalidParams, Suite, Tool, ToolError, result, tool
from genmcp.protocol.content import TextContent
from genmcp.testing import connect


async def test_a_tool_is_a_function() -> None:
    """Its name, docstring and type hints are all a client needs to know."""

    @tool
    def greet(name: str) -> str:
        """Greets somebody."""
        return f"Hello, {name}."

    suite = Suite(name="tutorial", version="1.0", tools=[greet])

    async with connect(suite) as client:
        answer = await client.call("greet", {"name": "Ada"})

    assert [TextContent("Hello, Ada.")] == answer.content


async def test_a_function_may_await() -> None:
    """An `async def` runs on the server's event loop; a `def` in a thread, so that it may block."""

    @tool
    async def greet(name: str = "you") -> str:
        return f"Hello, {name}."

    async with connect(Suite(name="tutorial", version="1.0", tools=[greet])) as client:
        answer = await client.call("greet")

    assert [TextContent("Hello, you.")] == answer.content


async def test_a_tool_is_a_class() -> None:
    """Its arguments are a type of yours, which checks what comes and is what `call` gets."""

    class Sum(Struct):
        a: float
        b: float

    class Add(Tool[Sum]):
        """Adds two numbers."""

        name = "add"

        async def call(self, request: Call[Sum], channel: Channel) -> str:
            return str(request.arguments.a + request.arguments.b)

    async with connect(Suite(name="tutorial", version="1.0", tools=[Add])) as client:
        answer = await client.call("add", {"a": 1, "b": 2})

    assert [TextContent("3.0")] == answer.content


async def test_a_tool_may_bring_its_own_schema() -> None:
    """Any JSON Schema will do: arguments are then a dict, with the schema's defaults filled in."""

    class Search(Tool):
        """Searches."""

        name = "search"
        input_schema = {
            "type": "object",
            "properties": {"word": {"type": "string"}, "limit": {"type": "integer", "default": 3}},
            "required": ["word"],
        }

        async def call(self, request: Call, channel: Channel) -> str:
            return f"{request.arguments['limit']} times {request.arguments['word']}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[Search])) as client:
        answer = await client.call("search", {"word": "bolt"})

    assert [TextContent("3 times bolt")] == answer.content


async def test_a_model_is_told_what_is_wrong_with_its_arguments() -> None:
    """Arguments that do not fit never reach the tool; the model reads why, and tries again."""

    @tool
    def book(seats: Annotated[int, Meta(ge=1, description="How many.")], name: str) -> str:
        return f"{seats} for {name}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[book])) as client:
        answer = await client.call("book", {"seats": 0})

    (said,) = answer.content
    assert answer.is_error
    assert isinstance(said, TextContent)
    assert said.text.startswith("Invalid arguments for tool book:")
    assert '(root): missing required property "name"' in said.text


async def test_a_tool_may_have_rules_of_its_own() -> None:
    """`validate` sees the call first: it refuses it, or passes it on, perhaps another one."""

    class Span(Struct):
        first: int
        last: int

    class Pages(Tool[Span]):
        """Reads pages."""

        name = "pages"

        def validate(self, request: Call[Span], channel: Channel) -> Call[Span]:
            span = request.arguments
            if span.first > span.last:
                raise InvalidParams("first must not be after last")
            return request.replace(Span(span.first, min(span.last, 100)))

        async def call(self, request: Call[Span], channel: Channel) -> str:
            return f"pages {request.arguments.first} to {request.arguments.last}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[Pages])) as client:
        answer = await client.call("pages", {"first": 90, "last": 999})

    assert [TextContent("pages 90 to 100")] == answer.content


async def test_a_tool_that_fails_says_so_to_the_model() -> None:
    """The text of a ToolError is for the model; that of any other exception is for your log."""

    @tool
    async def divide(a: int, b: int) -> str:
        if a > 100:
            raise ToolError("That is too much for me.")
        return str(a // b)

    async with connect(Suite(name="tutorial", version="1.0", tools=[divide])) as client:
        told = await client.call("divide", {"a": 101, "b": 1})
        broken = await client.call("divide", {"a": 1, "b": 0})

    assert (True, [TextContent("That is too much for me.")]) == (told.is_error, told.content)
    assert broken.is_error
    assert "ZeroDivisionError" not in str(broken.content)


async def test_a_tool_may_return_data() -> None:
    """An object is structured content; its JSON goes along as text. A return type is a promise."""

    class Order(Struct):
        id: int
        paid: bool

    @tool
    async def order(id: int) -> Order:
        return Order(id, paid=True)

    async with connect(Suite(name="tutorial", version="1.0", tools=[order])) as client:
        answer = await client.call("order", {"id": 7})
        (listed,) = await client.tools()

    assert {"id": 7, "paid": True} == answer.structured_content
    assert [TextContent('{"id":7,"paid":true}')] == answer.content
    assert listed.output_schema is not None


async def test_a_result_may_have_several_parts() -> None:
    """`result` puts texts, pictures and data together, or an error and what to say about it."""

    @tool
    async def stock(part: str) -> Any:
        if part != "bolt":
            return result(error=f"There is no {part}.")
        return result("Plenty of bolts.", data={"count": 400}, as_text=False)

    async with connect(Suite(name="tutorial", version="1.0", tools=[stock])) as client:
        found = await client.call("stock", {"part": "bolt"})
        missing = await client.call("stock", {"part": "nut"})

    assert ([TextContent("Plenty of bolts.")], {"count": 400}) == (
        found.content,
        found.structured_content,
    )
    assert (True, [TextContent("There is no nut.")]) == (missing.is_error, missing.content)


async def test_one_class_may_be_several_tools() -> None:
    """An instance carries its own configuration in its attributes, its name among them."""

    class Count(Tool):
        """Counts."""

        def __init__(self, thing: str, count: int) -> None:
            self.name = f"count_{thing}"
            self.count = count

        async def call(self, request: Call, channel: Channel) -> str:
            return str(self.count)

    suite = Suite(name="tutorial", version="1.0", tools=[Count("nuts", 3), Count("bolts", 400)])

    async with connect(suite) as client:
        answer = await client.call("count_bolts")

    assert [TextContent("400")] == answer.content
