"""The second chapter: the channel, which connects a hook with its client."""

from genmcp import Channel, Endpoint, Mux, Suite, tool
from genmcp.protocol.content import TextContent
from genmcp.testing import connect


async def test_tool_reports_progress() -> None:
    """A parameter annotated `Channel` gets the channel, whatever its name."""

    @tool
    async def copy(files: int, channel: Channel) -> str:
        for number in range(files):
            await channel.progress(number + 1, files, f"file {number + 1}")
        return "done"

    async with connect(Suite(name="tutorial", version="1.0", tools=[copy])) as client:
        await client.call("copy", {"files": 2})

    assert [(said.progress, said.total, said.message) for said in client.progress] == [
        (1, 2, "file 1"),
        (2, 2, "file 2"),
    ]


async def test_tool_in_a_thread_reports_progress() -> None:
    """A `def` cannot await: `in_loop` runs a coroutine on the event loop, and waits for it."""

    @tool
    def copy(channel: Channel) -> str:
        channel.in_loop(channel.progress(1, 2))
        return "done"

    async with connect(Suite(name="tutorial", version="1.0", tools=[copy])) as client:
        await client.call("copy")

    assert [said.progress for said in client.progress] == [1]


async def test_tool_sends_log_messages() -> None:
    """A client gets the messages of the level that it has set, and of higher levels."""

    @tool
    async def work(channel: Channel) -> str:
        await channel.log("debug", "one of many")
        await channel.log("warning", {"disk": "nearly full"})
        return "done"

    suite = Suite(name="tutorial", version="1.0", tools=[work])
    async with connect(suite, log_level="info") as client:
        await client.call("work")

    assert [(said.level, said.data) for said in client.logs] == [
        ("warning", {"disk": "nearly full"})
    ]


async def test_tool_reads_the_state_of_the_application() -> None:
    """Assigns are values of the mux, and the named keys of the host's `request.state`."""

    @tool
    async def whoami(channel: Channel) -> str:
        return f"{channel.assigns['user']} at {channel.assigns['shop']}"

    mux = Mux(Suite(name="tutorial", version="1.0", tools=[whoami]), assigns={"shop": "Main St"})
    endpoint = Endpoint(mux, copy_assigns=["user"])

    async with connect(endpoint, state={"user": "ann", "password": "not copied"}) as client:
        answer = await client.call("whoami")

    assert answer.content == [TextContent("ann at Main St")]
