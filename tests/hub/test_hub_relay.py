"""Questions of one call, on their way to whoever has called."""

import asyncio
from typing import Any

import pytest

from genmcp import Continue, Done, Failed, Lost, McpError, Unable
from genmcp.errors import InvalidParams
from genmcp.hub.asked import Asked
from genmcp.hub.limits import HubLimits
from genmcp.hub.relay import Relay
from genmcp.protocol.tools import CallToolResult
from genmcp.question.roots import RootsQuestion
from tests.hub.far import NOBODY


async def test_relay_passes_on_together_what_is_asked_together() -> None:
    """What is asked later comes out later, and is not answered before."""
    late = asyncio.Event()
    answers: dict[str, Any] = {}

    async def work(relay: Relay) -> CallToolResult:
        async def ask(name: str) -> None:
            answers[name] = await relay.ask(RootsQuestion())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("a"))
            tasks.create_task(ask("b"))
            await late.wait()
            tasks.create_task(ask("c"))
        return CallToolResult(content=[])

    relay = Relay(NOBODY, work, Asked(HubLimits()))
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


async def test_relay_forgets_a_question_that_is_not_asked_any_more() -> None:
    """The answer comes too late, and harms nobody."""
    go = asyncio.Event()

    async def work(relay: Relay) -> CallToolResult:
        asking = asyncio.ensure_future(relay.ask(RootsQuestion()))
        await go.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        return CallToolResult(content=[])

    relay = Relay(NOBODY, work, Asked(HubLimits()))
    step = await relay.step()
    assert isinstance(step, Continue)
    go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    relay.answer(Done(dict.fromkeys(step.questions)))

    assert await relay.step() == CallToolResult(content=[])


@pytest.mark.parametrize(
    ("failure", "error"), [(Lost(), McpError), (Unable({"roots": {}}), InvalidParams)]
)
async def test_relay_tells_whoever_asked_that_there_is_no_answer(
    failure: Lost | Unable, error: type[McpError]
) -> None:
    """With the error that a client of its own would have answered."""

    async def work(relay: Relay) -> CallToolResult:
        await relay.ask(RootsQuestion())
        return CallToolResult(content=[])

    relay = Relay(NOBODY, work, Asked(HubLimits()))
    await relay.step()
    relay.answer(Failed(failure))

    with pytest.raises(error, match=str(failure)):
        await relay.step()
