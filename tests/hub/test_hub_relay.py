"""Questions of one call, on their way to the caller."""

import asyncio
from typing import Any, ClassVar

import pytest

from genmcp import Accepted, CapabilityMissing, Continue, Done, Failed, McpError, WorkerLost
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.core.client.events import SendMessage
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.hub.relay import ForwardedCall, question_limit
from genmcp.protocol.tools import CallToolResult
from genmcp.question.sampling import RootsQuestion
from tests.hub.far import NEW, NOBODY, OLD, TIME, Far, Piped, said


async def test_simultaneous_questions_are_forwarded_together() -> None:
    """A later question is forwarded later, and not answered before."""
    late = asyncio.Event()
    answers: dict[str, Any] = {}

    async def work(relay: ForwardedCall) -> CallToolResult:
        async def ask(name: str) -> None:
            answers[name] = await relay.ask(RootsQuestion())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("a"))
            tasks.create_task(ask("b"))
            await late.wait()
            tasks.create_task(ask("c"))
        return CallToolResult(content=[])

    relay = ForwardedCall(NOBODY, work, question_limit())
    first = await relay.step()
    late.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(first, Continue)
    relay.answer(Done({key: key for key in first.questions}))
    second = await relay.step()

    assert isinstance(second, Continue)
    assert (len(first.questions), len(second.questions)) == (2, 1)
    assert "c" not in answers
    relay.answer(Done(dict.fromkeys(second.questions, "c")))
    assert await relay.step() == CallToolResult(content=[])
    assert set(answers.values()) == {*first.questions, "c"}


async def test_answer_to_a_withdrawn_question_is_ignored() -> None:
    """It arrives too late."""
    go = asyncio.Event()

    async def work(relay: ForwardedCall) -> CallToolResult:
        asking = asyncio.ensure_future(relay.ask(RootsQuestion()))
        await go.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        return CallToolResult(content=[])

    relay = ForwardedCall(NOBODY, work, question_limit())
    step = await relay.step()
    assert isinstance(step, Continue)
    go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    relay.answer(Done(dict.fromkeys(step.questions)))

    assert await relay.step() == CallToolResult(content=[])


@pytest.mark.parametrize(
    ("failure", "error"),
    [(WorkerLost(), McpError), (CapabilityMissing({"roots": {}}), InvalidParams)],
)
async def test_missing_answer_is_an_error_for_the_server(
    failure: WorkerLost | CapabilityMissing, error: type[McpError]
) -> None:
    """The error that a client of its own would send."""

    async def work(relay: ForwardedCall) -> CallToolResult:
        await relay.ask(RootsQuestion())
        return CallToolResult(content=[])

    relay = ForwardedCall(NOBODY, work, question_limit())
    await relay.step()
    relay.answer(Failed(failure))

    with pytest.raises(error, match=str(failure)):
        await relay.step()


async def test_dangerous_url_is_rejected() -> None:
    """It is rejected with -32602 before it is forwarded; https is forwarded.

    Security Best Practices, "URL Scheme Validation".
    """
    answers: list[Any] = []

    async def slow(far: Far, message: SendMessage) -> Any:
        for id, url in enumerate(("javascript:alert(1)", "https://a.example/")):
            params = {"mode": "url", "message": "Go", "url": url, "elicitationId": "1"}
            far.questions.put_nowait(
                {"id": f"q{id}", "method": "elicitation/create", "params": params}
            )
            answers.append(await far.replies.get())
        return said("done")

    class Opening(ClientHandler):
        """Opens every URL, and records it."""

        opened: ClassVar[list[str]] = []

        async def handle_url_elicitation(self, message: str, url: str) -> Any:
            self.opened.append(url)
            return Accepted()

    options = ClientOptions(revision="2025-11-25")
    far = Piped(slow=slow, initialize=welcomed)
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        server = hub.server()
        await hub.add(ServerConfig("far", target=far))
        async with Client(server, handler=Opening()) as client:
            assert (await client.call("far/slow")).text == "done"

    assert Opening.opened == ["https://a.example/"]
    assert answers[0]["error"]["code"] == -32602
    assert "javascript" in answers[0]["error"]["message"]
    assert answers[1]["result"] == {"action": "accept"}


async def welcomed(far: Far, message: SendMessage) -> Any:
    """Connect with 2025-11-25, the first revision with URL questions."""
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "far", "version": "1"},
    }


async def test_revision_of_a_server_config() -> None:
    """It counts for one server, the options of the hub for the others."""
    far, near = Far(), Far()
    async with asyncio.timeout(TIME), Hub() as hub:
        await hub.add(ServerConfig("far", target=far, revision=OLD))
        await hub.add(ServerConfig("near", target=near))
        spoken = [(await each.current()).client.revision for each in hub._members]
    assert spoken == [OLD, NEW]
    with pytest.raises(ConfigurationError, match="ServerConfig 'far': revision '1999'"):
        ServerConfig("far", target=far, revision="1999")
