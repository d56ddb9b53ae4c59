"""The first chapter: tools. Read from the top; each test shows one feature."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from genmcp import Channel, InvalidParams, Suite, Tool, ToolError, ToolRequest, result, tool
from genmcp.protocol.content import TextContent
from genmcp.testing import connect


async def test_tool_is_a_function() -> None:
    """Its name, docstring and type hints are listed for the client's model."""

    @tool
    def greet(name: str) -> str:
        """Greets a person."""
        return f"Hello, {name}."

    suite = Suite(name="tutorial", version="1.0", tools=[greet])

    async with connect(suite) as client:
        answer = await client.call("greet", {"name": "Ada"})

    assert answer.content == [TextContent("Hello, Ada.")]


async def test_function_may_be_async() -> None:
    """An `async def` runs on the server's event loop; a `def` in a thread, so that it may block."""

    @tool
    async def greet(name: str = "you") -> str:
        return f"Hello, {name}."

    async with connect(Suite(name="tutorial", version="1.0", tools=[greet])) as client:
        answer = await client.call("greet")

    assert answer.content == [TextContent("Hello, you.")]


async def test_tool_is_a_class() -> None:
    """The type argument is the type of the arguments: they are validated and decoded into it."""

    class Sum(Struct):
        a: float
        b: float

    class Add(Tool[Sum]):
        """Adds two numbers."""

        name = "add"

        async def call(self, request: ToolRequest[Sum], channel: Channel) -> str:
            return str(request.arguments.a + request.arguments.b)

    async with connect(Suite(name="tutorial", version="1.0", tools=[Add])) as client:
        answer = await client.call("add", {"a": 1, "b": 2})

    assert answer.content == [TextContent("3.0")]


async def test_tool_has_a_json_schema() -> None:
    """The arguments are a dict then, with the defaults of the schema filled in."""

    class Search(Tool):
        """Searches."""

        name = "search"
        input_schema = {
            "type": "object",
            "properties": {"word": {"type": "string"}, "limit": {"type": "integer", "default": 3}},
            "required": ["word"],
        }

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            return f"{request.arguments['limit']} times {request.arguments['word']}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[Search])) as client:
        answer = await client.call("search", {"word": "bolt"})

    assert answer.content == [TextContent("3 times bolt")]


async def test_invalid_arguments_are_explained_to_the_model() -> None:
    """They never reach the tool. The model reads each fault, and can call again."""

    @tool
    def book(seats: Annotated[int, Meta(ge=1, description="How many.")], name: str) -> str:
        return f"{seats} for {name}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[book])) as client:
        answer = await client.call("book", {"seats": 0})

    (text,) = answer.content
    assert answer.is_error
    assert isinstance(text, TextContent)
    assert text.text.startswith("Invalid arguments for tool book:")
    assert '(root): missing required property "name"' in text.text


async def test_tool_validates_further() -> None:
    """`validate` runs before `call`: it rejects the request, or returns it, changed or not."""

    class Span(Struct):
        first: int
        last: int

    class Pages(Tool[Span]):
        """Reads pages."""

        name = "pages"

        def validate(self, request: ToolRequest[Span], channel: Channel) -> ToolRequest[Span]:
            span = request.arguments
            if span.first > span.last:
                raise InvalidParams("first must not be after last")
            return request.replace(Span(span.first, min(span.last, 100)))

        async def call(self, request: ToolRequest[Span], channel: Channel) -> str:
            return f"pages {request.arguments.first} to {request.arguments.last}"

    async with connect(Suite(name="tutorial", version="1.0", tools=[Pages])) as client:
        answer = await client.call("pages", {"first": 90, "last": 999})

    assert answer.content == [TextContent("pages 90 to 100")]


async def test_error_of_a_tool_is_a_result() -> None:
    """The text of a ToolError is for the model. The text of any other exception is only logged."""

    @tool
    async def divide(a: int, b: int) -> str:
        if a > 100:
            raise ToolError("That is too much for me.")
        return str(a // b)

    async with connect(Suite(name="tutorial", version="1.0", tools=[divide])) as client:
        shown = await client.call("divide", {"a": 101, "b": 1})
        broken = await client.call("divide", {"a": 1, "b": 0})

    assert (shown.is_error, shown.content) == (True, [TextContent("That is too much for me.")])
    assert broken.is_error
    assert "ZeroDivisionError" not in str(broken.content)


async def test_tool_returns_structured_content() -> None:
    """The return type is the output schema. The JSON is sent as text, too."""

    class Order(Struct):
        id: int
        paid: bool

    @tool
    async def order(id: int) -> Order:
        return Order(id, paid=True)

    async with connect(Suite(name="tutorial", version="1.0", tools=[order])) as client:
        answer = await client.call("order", {"id": 7})
        (listed,) = await client.tools()

    assert answer.structured_content == {"id": 7, "paid": True}
    assert answer.content == [TextContent('{"id":7,"paid":true}')]
    assert listed.output_schema is not None


async def test_result_has_several_parts() -> None:
    """`result` combines texts, images and data, or makes an error."""

    @tool
    async def stock(part: str) -> Any:
        if part != "bolt":
            return result(error=f"There is no {part}.")
        return result("Plenty of bolts.", data={"count": 400}, as_text=False)

    async with connect(Suite(name="tutorial", version="1.0", tools=[stock])) as client:
        found = await client.call("stock", {"part": "bolt"})
        missing = await client.call("stock", {"part": "nut"})

    assert (
        found.content,
        found.structured_content,
    ) == ([TextContent("Plenty of bolts.")], {"count": 400})
    assert (missing.is_error, missing.content) == (True, [TextContent("There is no nut.")])


async def test_class_is_registered_twice() -> None:
    """The attributes of an instance are its configuration, its name included."""

    class Count(Tool):
        """Counts."""

        def __init__(self, thing: str, count: int) -> None:
            self.name = f"count_{thing}"
            self.count = count

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            return str(self.count)

    suite = Suite(name="tutorial", version="1.0", tools=[Count("nuts", 3), Count("bolts", 400)])

    async with connect(suite) as client:
        answer = await client.call("count_bolts")

    assert answer.content == [TextContent("400")]
