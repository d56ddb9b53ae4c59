"""Questions of a call in one process, answered in another process with the same store.

2025-11-25: the answer comes in a POST of its own, which a load balancer may send to any process.
"""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.asking import ROOTS
from tests.support.processes import HttpSession, server_process
from tests.support.serving import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[list[tuple[str, Process]]]:
    """Return the URLs of two processes with one store."""
    async with AsyncExitStack() as stack, asyncio.timeout(4 * PATIENCE):
        arguments = "tests.continuations.served", str(tmp_path / "shared.db")
        yield [await stack.enter_async_context(server_process(*arguments)) for _ in range(2)]


async def test_answer_to_another_process_reaches_the_call(
    served: list[tuple[str, Process]],
) -> None:
    """The call continues in its own process; the other process only responds with 202."""
    (one, holder), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session = await HttpSession.begin(http, one, roots={})
        for url, id in ((one, 1), (one, 2)):
            async with session.call(url, "ask", id) as stream:
                question = await anext(stream)
                status = await session.send(two, id=question["id"], result=ROOTS)
                result = (await anext(stream))["result"]
                assert [each async for each in stream] == []

            assert (question["method"], status) == ("roots/list", 202)
            text = f"file:///home {holder.pid} {holder.pid}"
            assert [{"type": "text", "text": text}] == result["content"]


async def test_answer_of_another_session_is_refused_by_every_process(
    served: list[tuple[str, Process]],
) -> None:
    """The id of the question contains the sealed principal."""
    (one, _), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session, other = [await HttpSession.begin(http, url, roots={}) for url in (one, two)]
        async with session.call(one, "ask") as stream:
            question = await anext(stream)
            refused = [await other.send(url, id=question["id"], result={}) for url in (one, two)]
            await session.send(two, id=question["id"], error={"code": -1, "message": "not here"})
            result = (await anext(stream))["result"]

    assert refused == [400, 400]
    assert "not here" in result["content"][0]["text"]


async def test_cancellation_at_another_process_ends_the_call(
    served: list[tuple[str, Process]],
) -> None:
    """The question is withdrawn, the stream ends without a response; a late answer is dropped."""
    (one, _), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session = await HttpSession.begin(http, one, roots={})
        async with session.call(one, "ask") as stream:
            question = await anext(stream)
            await session.send(two, method="notifications/cancelled", params={"requestId": 7})
            (notification,) = [each async for each in stream]
        late = await session.send(two, id=question["id"], result=ROOTS)

    assert notification["method"] == "notifications/cancelled"
    assert question["id"] == notification["params"]["requestId"]
    assert late == 202
