"""`suite.run()`: a program that serves itself, as those of FastMCP and the official SDK do."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genmcp import Client, Command, ConfigurationError, Suite, tool
from genmcp.catalogue import SearchTools
from tests.support.asgi import PATIENCE

ROOT = Path(__file__).parent.parent.parent
SHOP = """
import os, sys
from genmcp import Suite, tool
from genmcp.catalogue import SearchTools

print("imported")

@tool
def add(a: int, b: int) -> int:
    print("added")
    return a + b

suite = Suite("shop", tools=[add])
if __name__ == "__main__":
    assert "genmcp.cli.serve" not in sys.modules
    {run}
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Command]:
    """Write a program that ends with a statement, and return its command."""

    def written(statement: str) -> Command:
        (tmp_path / "shop.py").write_text(SHOP.format(run=statement))
        env = {"PYTHONPATH": str(ROOT)}
        return Command(sys.executable, [str(tmp_path / "shop.py")], env)

    return written


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["suite.run()", 'SearchTools(suite).run("stdio")'])
async def test_program_serves_the_client_that_starts_it(
    statement: str, program: Callable[[str], Command]
) -> None:
    """What it prints goes to standard error, before it serves and meanwhile."""
    async with Client(program(statement)) as client:
        result = await client.call("add", {"a": 1, "b": 2})

    assert result.data == 3


@pytest.mark.slow
async def test_program_serves_over_http(program: Callable[[str], Command]) -> None:
    """It logs its URL, and ends with a signal."""
    command = program('suite.run(transport="http", port=0)')
    process = await asyncio.create_subprocess_exec(
        command.command, *command.args, env=command.env, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE * 2):
            found = None
            while found is None:
                line = await process.stderr.readline()
                assert line, "it has ended"
                found = re.search(rb"serving shop at (http://127\.0\.0\.1:\d+/mcp)", line)
        async with Client(found[1].decode()) as client:
            result = await client.call("add", {"a": 1, "b": 2})
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), PATIENCE)

    assert (result.data, process.returncode) == (3, 0)


@tool
def look() -> str:
    """Looks."""
    return "seen"


def test_transport_must_exist() -> None:
    """Both that exist are named."""
    with pytest.raises(ConfigurationError, match='"stdio" or "http", not \'sse\''):
        Suite("shop", tools=[look]).run("sse")  # type: ignore[arg-type]


def test_program_that_cannot_listen_fails() -> None:
    """With the status of a failure; the reason is in the log."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        SearchTools(Suite("shop", tools=[look])).run("http", port=taken.getsockname()[1])

    assert ended.value.code == 1
