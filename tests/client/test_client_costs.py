"""The way of a call through the client is short."""

import sys
from pathlib import Path
from typing import Any

import pytest

import genmcp
from genmcp import Client, Suite, tool
from genmcp.client.transports.memory import MemoryTransport

PACKAGE = str(Path(genmcp.__file__).parent)


@tool(name="add")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_call_has_few_frames_in_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the method that a user calls to the request of the HTTP client: a traceback reads."""
    transport = MemoryTransport(Suite(name="s", version="1", tools=[add]))
    send, stacks = transport.requester._send, []

    async def recorded(*arguments: Any) -> Any:
        frame, stack = sys._getframe(1), []
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            stack.append((frame.f_code.co_name, frame.f_code.co_filename))
            frame = frame.f_back  # type: ignore[assignment]
        stacks.append(stack)
        return await send(*arguments)

    monkeypatch.setattr(transport.requester, "_send", recorded)
    async with Client(transport) as client:
        await client.call("add", {"a": 1, "b": 2})
        assert (await client.call("add", {"a": 1, "b": 2})).data == 3

    names, files = zip(*stacks[-1], strict=True)
    assert names[-1] == "call"
    assert len(names) <= 8, names
    assert len(set(files)) <= 4, set(files)
