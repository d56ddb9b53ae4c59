"""The second chapter: the channel, a hook's line to its client."""

from genmcp import Channel, Endpoint, Mux, Suite, tool
from genmcp.protocol.content import TextContent
from genmcp.testing import connect


async def test_a_tool_reports_how_far_it_is() -> None:
    """A parameter annotated Channel gets the channel, whatever it is called."""

    @tool
    async def copy(files: int, channel: Channel) -> str:
        for number in range(files):
            await channel.progress(number + 1, files, f"file {number + 1}")
        return "done"

    async with connect(Suite(name="tutorial", version="1.0", tools=[copy])) as client:
        await client.call("copy", {"files": 2})

    assert [(1, 2, "file 1"), (2, 2, "file 2")] == [
        (said.progress, said.total, said.message) for said in client.progress
    ]


async def test_a_tool_in_a_thread_reports_through_the_loop() -> None:
    """A `def` cannot await; `in_loop` does it for it."""

    @tool
    def copy(channel: Channel) -> str:
        channel.in_loop(channel.progress(1, 2))
        return "done"

    async with connect(Suite(name="tutorial", version="1.0", tools=[copy])) as client:
        await client.call("copy")

    assert [1] == [said.progress for said in client.progress]


async def test_a_tool_may_log() -> None:
    """A client gets the messages of the level it wants, and those above."""

    @tool
    async def work(channel: Channel) -> str:
        await channel.log("debug", "one of many")
        await channel.log("warning", {"disk": "nearly full"})
        return "done"

    suite = Suite(name="tutorial", version="1.0", tools=[work])
    async with connect(suite, log_level="info") as client:
        await client.call("work")

    assert [("warning", {"disk": "nearly full"})] == [
        (said.level, said.data) for said in client.logs
    ]


async def test_a_tool_finds_what_the_application_gives_it() -> None:
    """Assigns are the mux's own, and those keys of the host's request state you ask for."""

    @tool
    async def whoami(channel: Channel) -> str:
        return f"{channel.assigns['user']} at {channel.assigns['shop']}"

    mux = Mux(Suite(name="tutorial", version="1.0", tools=[whoami]), assigns={"shop": "Main St"})
    endpoint = Endpoint(mux, copy_assigns=["user"])

    async with connect(endpoint, state={"user": "ann", "password": "not copied"}) as client:
        answer = await client.call("whoami")

    assert [TextContent("ann at Main St")] == answer.content
