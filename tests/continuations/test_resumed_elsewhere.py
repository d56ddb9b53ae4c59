"""Streams of 2025-11-25 whose server was killed, resumed at another server with the same store.

2025-11-25, transports, "Resumability and Redelivery". Without this the client would wait for
ever, while the result of its call is in the store.
"""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.asgi import until
from tests.support.processes import HttpSession, server_process

pytestmark = pytest.mark.slow

NAME = {"action": "accept", "content": {"name": "Ann"}}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[list[tuple[str, Process]]]:
    """Return the URLs of two processes with one store."""
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        yield [
            await stack.enter_async_context(
                server_process("tests.continuations.recovering", str(tmp_path), stop=Process.kill)
            )
            for _ in range(2)
        ]


async def killed(
    http: httpx.AsyncClient, url: str, process: Process, tool: str, folder: Path
) -> HttpSession:
    """Call *tool*, and kill the server while the call waits; return the session."""
    session = await HttpSession.begin(http, url, elicitation={})
    async with session.call(url, tool) as messages:
        first = asyncio.ensure_future(anext(messages))
        if tool == "waits":
            await until(lambda: session.last, pause=0.02)
        else:
            await until(lambda: session.last and [*folder.glob("began.*")], pause=0.02)
        process.kill()
        with pytest.raises(httpx.TransportError):
            await first
    return session


async def test_resumed_call_gets_the_result_of_its_job(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """It may be resumed several times, before and after the end of the job."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        session = await killed(http, one, victim, "works", tmp_path)
        seen = session.last
        async with session.resume(two) as messages:
            (tmp_path / "go").touch()
            received = [each async for each in messages]
        async with session.resume(two) as messages:
            repeated = [each async for each in messages]

    answer = received[-1]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "worked")
    assert answer == repeated[-1]
    assert seen == session.last


async def test_resumed_call_asks_its_client(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """The question and the result are sent on the resumed stream."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        session = await killed(http, one, victim, "asks", tmp_path)
        (tmp_path / "go").touch()
        async with session.resume(two) as messages:
            question = await anext(messages)
            assert await session.send(two, id=question["id"], result=NAME) == 202
            *_, answer = [each async for each in messages]

    assert question["method"] == "elicitation/create"
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "worked for Ann")


async def test_resumed_call_that_was_lost_is_an_error(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """A call that is not a task cannot continue in another process: the client gets an error."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        session = await killed(http, one, victim, "waits", tmp_path)
        async with session.resume(two) as messages:
            *_, answer = [each async for each in messages]

    assert (answer["id"], answer["error"]["code"]) == (7, -32603)
    assert "lost" in answer["error"]["message"]
