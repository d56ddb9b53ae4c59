"""The log record of a request."""

import logging
import re
import subprocess
import sys
from typing import Any

import pytest

from genmcp import (
    Continue,
    Endpoint,
    InvalidParams,
    Mux,
    Resource,
    Run,
    Suite,
    Tool,
    ToolError,
    job,
    tool,
)
from genmcp.telemetry.log import LoggingTelemetry
from tests.support.asgi import TASKS, Client, until


@tool
async def echo(text: str) -> str:
    """Returns its argument, or fails."""
    if text == "tool error":
        raise ToolError("out of stock")
    if text == "params":
        raise InvalidParams("no such part")
    return text


@job(name="logging.work")
async def work(run: Run) -> None: ...


class Works(Tool):
    """Waits for a job, and fails as requested."""

    name = "works"

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("worked", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return await echo(**channel.request.arguments)


def serving(telemetry: LoggingTelemetry | None = None) -> Endpoint:
    resource = Resource("docs://a", name="a", content="text")
    suite = Suite(name="test", version="1", tools=[echo, Works], resources=[resource])
    return Endpoint(
        Mux(suite, telemetry=telemetry or LoggingTelemetry()),
        principal=lambda scope: scope.get("who"),
    )


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "genmcp.requests")


async def test_logging_telemetry_writes_one_record_a_request(caplog: Any) -> None:
    """The record has the request's fields as attributes, and a readable message."""
    client = Client(serving(), who="ada")

    await client.send(client.call("echo", {"text": "hi"}))

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("genmcp.requests", logging.INFO)
    assert (
        record.mcp_method,
        record.mcp_name,
        record.mcp_outcome,
    ) == ("tools/call", "echo", "ended")
    assert (
        record.mcp_code,
        record.mcp_session,
        record.mcp_revision,
    ) == (None, None, "2026-07-28")
    assert record.mcp_principal is True
    assert 0 < record.mcp_duration < 5
    assert record.getMessage().startswith("tools/call echo ended ")
    assert "ada" not in str(vars(record))


async def test_record_has_the_key_of_a_session(caplog: Any) -> None:
    """The id gives access to the session; the record has its key."""
    client = await Client.begin(serving(), "2025-11-25")

    await client.send(client.request("resources/read", {"uri": "docs://a"}))

    (record,) = caplog.records
    assert record.mcp_session
    assert client.session
    assert record.mcp_session not in client.session
    assert (record.mcp_revision, record.mcp_name) == ("2025-11-25", "docs://a")
    assert record.mcp_principal is False


@pytest.mark.parametrize(
    ("text", "outcome", "code", "level"),
    [
        ("tool error", "tool_error", None, logging.WARNING),
        ("params", "error", -32602, logging.WARNING),
    ],
)
async def test_record_of_a_failure_is_a_warning(
    text: str, outcome: str, code: int | None, level: int, caplog: Any
) -> None:
    """The level is WARNING; the text for the client is not repeated."""
    client = Client(serving())

    await client.send(client.call("echo", {"text": text}))

    (record,) = caplog.records
    assert (outcome, code, level) == (record.mcp_outcome, record.mcp_code, record.levelno)
    assert "stock" not in str(vars(record))


async def test_logging_telemetry_logs_rejections_in_one_line(caplog: Any) -> None:
    """Text of a client cannot break a line of the log, nor make it long."""
    client = Client(serving())
    client.session = "x"

    await client.send(client.call("nothing"))
    await client.send(body=[b"{"], headers={"mcp-method": "a\u0085b" + "c" * 500})

    first, second = caplog.records
    assert first.getMessage() == "tools/call rejected -32602"
    assert (
        second.mcp_outcome,
        second.mcp_code,
        second.mcp_duration,
    ) == ("rejected", -32700, None)
    assert second.getMessage().startswith("a\\x85bccc")
    assert len(second.getMessage()) < 250


async def test_logging_telemetry_logs_names_in_one_line(caplog: Any) -> None:
    """A client may subscribe to any URI, which must not forge a second record."""
    client = await Client.begin(serving(), "2025-11-25")

    await client.send(client.request("resources/subscribe", {"uri": "docs://b\ntools/call ended"}))

    (record,) = caplog.records
    assert record.getMessage().startswith("resources/subscribe docs://b\\ntools/call ended ")


async def test_logging_telemetry_writes_to_the_logger_it_is_given(caplog: Any) -> None:
    """Nothing is written if that logger ignores the level."""
    logger = logging.getLogger("tests.access")
    logger.setLevel(logging.WARNING)
    client = Client(serving(LoggingTelemetry(logger)))

    await client.send(client.call("echo", {"text": "hi"}))
    await client.send(client.call("echo", {"text": "tool error"}))

    assert [(record.name, record.mcp_outcome) for record in caplog.records] == [
        ("tests.access", "tool_error")
    ]


@pytest.mark.parametrize(
    ("text", "outcome", "level"),
    [("hi", "resumed", logging.INFO), ("tool error", "tool_error", logging.WARNING)],
)
async def test_logging_telemetry_logs_resumed_calls(
    text: str, outcome: str, level: int, caplog: Any
) -> None:
    """Beside that of its request, which ended with the handle."""
    app = serving()
    client = Client(app, who="ada", capabilities=TASKS)

    await client.send(client.call("works", {"text": text}))
    await until(lambda: len(caplog.records) == 2, pause=0.005)
    await app.mux.aclose()

    assert {"ended", outcome} == {record.mcp_outcome for record in caplog.records}
    (record,) = (each for each in caplog.records if each.mcp_outcome == outcome)
    assert (level, "works", True) == (record.levelno, record.mcp_name, record.mcp_principal)
    assert 0 < record.mcp_duration < 5


PLAIN = """
import asyncio, logging, sys, uvicorn
from genmcp import Mux, Suite, tool
from genmcp.telemetry import LoggingTelemetry
from genmcp.testing import connect

@tool
async def echo() -> str:
    return "x"

mux = Mux(Suite(name="test", version="1", tools=[echo]), telemetry=LoggingTelemetry())
uvicorn.Config(mux)  # configures logging as a server under plain uvicorn has it
if "configured" in sys.argv:
    logging.basicConfig(level=logging.WARNING)

async def main():
    async with connect(mux) as client:
        await client.call("echo")
        await client.call("echo")

asyncio.run(main())
"""


@pytest.mark.parametrize("configured", [False, True])
def test_logging_telemetry_is_visible_under_plain_uvicorn(configured: bool) -> None:
    """uvicorn configures only its own loggers; where the application did, its level counts."""
    command = [sys.executable, "-c", PLAIN, *(["configured"] if configured else [])]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (0 if configured else 2) == done.stderr.count("tools/call echo ended")


UNCONFIGURED = """
import logging, sys, uvicorn
import genmcp

uvicorn.Config(lambda: None)
logger = logging.getLogger("genmcp")
logger.warning("before")
if sys.argv[1] == "root":
    logging.basicConfig(format="root %(message)s")
elif sys.argv[1] == "child":
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("child %(message)s"))
    logger = logging.getLogger("genmcp.child")
    logger.addHandler(handler)
logger.warning("after")
"""
TIMED = r"\d{4}-\d\d-\d\d [\d:,]+ WARNING "


@pytest.mark.parametrize(
    ("configured", "second"), [("", TIMED), ("root", "root "), ("child", "child ")]
)
def test_records_have_time_and_level_if_logging_is_unconfigured(
    configured: str, second: str
) -> None:
    """Under plain uvicorn. An application that configures logging later gets each line once."""
    command = [sys.executable, "-c", UNCONFIGURED, configured]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert re.fullmatch(f"{TIMED}before\n{second}after\n", done.stderr), done.stderr
