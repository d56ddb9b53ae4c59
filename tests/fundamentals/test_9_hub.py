"""The ninth chapter: a hub, one client of many servers, which can be served as one."""

from genmcp import Client, Hub, ServerConfig, Suite, tool


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def greet(name: str) -> str:
    """Greets."""
    return f"Hello, {name}."


numbers = Suite(name="numbers", version="1.0", tools=[add])
words = Suite(name="words", version="1.0", tools=[greet])


async def test_hub_calls_the_tools_of_its_servers() -> None:
    """The name of the server is the prefix. A server may also be a URL or a command."""
    async with Hub() as hub:
        await hub.add(ServerConfig("numbers", target=numbers))
        await hub.add(ServerConfig("words", target=words))
        names = [tool.name for tool in hub.tools()]
        result = await hub.call("words/greet", {"name": "Ada"})

    assert (names, result.text) == (["numbers/add", "words/greet"], "Hello, Ada.")


async def test_hub_is_served_as_one_server() -> None:
    """`hub.server()` is mounted like any other server."""
    async with Hub() as hub:
        await hub.add(ServerConfig("numbers", target=numbers))
        async with Client(hub.server()) as client:
            names = [tool.name for tool in await client.tools()]
            result = await client.call(names[0], {"a": 40, "b": 2})

    assert result.text == "42"


async def test_server_leaves_the_hub() -> None:
    """Its tools are no longer listed."""
    async with Hub() as hub:
        await hub.add(ServerConfig("numbers", target=numbers))
        await hub.remove("numbers")
        names = [tool.name for tool in hub.tools()]

    assert names == []
