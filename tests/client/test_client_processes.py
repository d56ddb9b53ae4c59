"""The client of servers that are processes, and not of the kind that is expected."""

import asyncio
import logging
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from genmcp import Accepted, Client, ClientHandler, Command
from genmcp.client.errors import ProcessExited, RequestTimeout
from genmcp.client.options import ClientOptions

pytestmark = pytest.mark.slow

FRAME = """
import json, sys

def say(**members):
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)

def initialize_result(id, version="2025-06-18"):
    server = {"name": "old", "version": "1"}
    capabilities = {"tools": {}}
    say(id=id, result={
        "protocolVersion": version, "capabilities": capabilities, "serverInfo": server
    })

def text(id, said):
    say(id=id, result={"content": [{"type": "text", "text": said}]})

messages = map(json.loads, sys.stdin)
"""
#: As those of the Rust SDK do.
PICKY = """
with open(sys.argv[1], "a") as starts:
    starts.write("started\\n")
first = next(messages)
if first["method"] != "initialize":
    sys.exit("expected initialize, not " + first["method"])
initialize_result(first["id"])
for message in messages:
    if message["method"] == "tools/call":
        text(message["id"], "here")
"""
#: Asks whenever it is called, and returns the answer.
CURIOUS = """
answers = []
for message in messages:
    match message:
        case {"method": "initialize", "id": id}:
            initialize_result(id)
        case {"method": "server/discover", "id": id}:
            say(id=id, error={"code": -32601, "message": "no"})
        case {"method": "tools/call", "id": id, "params": {"name": "ask"}}:
            form = {"type": "object", "properties": {}}
            params = {"message": "Sure?", "requestedSchema": form}
            say(id=f"q{id}", method="elicitation/create", params=params)
        case {"method": "tools/call", "id": id, "params": {"name": "answers"}}:
            text(id, " ".join(answers))
        case {"error": error}:
            answers.append(error["message"])
"""
#: Declares logging, but rejects a level.
STUBBORN = """
for message in messages:
    match message:
        case {"method": "initialize", "id": id}:
            server = {"name": "old", "version": "1"}
            say(id=id, result={
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": server,
            })
        case {"method": "tools/call", "id": id}:
            text(id, "here")
        case {"method": method, "id": id}:
            say(id=id, error={"code": -32601, "message": f"no {method}"})
"""
#: Continues with a cancelled call, and responds to it.
TENACIOUS = """
for message in messages:
    match message:
        case {"method": "initialize", "id": id}:
            initialize_result(id)
        case {"method": "server/discover", "id": id}:
            say(id=id, error={"code": -32601, "message": "no"})
        case {"method": "tools/call", "id": id, "params": {"name": "quick"}}:
            text(id, "here")
        case {"method": "tools/call", "id": id, "params": {"_meta": {"progressToken": token}}}:
            slow = id
            progress = {"progressToken": token, "progress": 1}
            say(method="notifications/progress", params=progress)
        case {"method": "notifications/cancelled"}:
            say(method="notifications/progress", params=progress)
            text(slow, "done all the same")
"""
BROKEN = "print('no database', file=sys.stderr)\nsys.exit(3)"


def command(source: str, *args: str) -> Command:
    return Command(sys.executable, ["-c", FRAME + textwrap.dedent(source), *args])


class Thinking(ClientHandler):
    """Never answers the first question, and records its cancellation."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.ended = 0

    def terminate(self, reason: BaseException | None) -> None:
        self.ended += 1

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Accepted:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return Accepted({})


async def test_client_restarts_a_server_that_exits_on_the_probe(
    tmp_path: Path,
) -> None:
    """It is started once more, and initialized."""
    starts, handler = tmp_path / "starts", Thinking()
    picky = command(PICKY, str(starts))

    async with asyncio.timeout(20), Client(picky, handler=handler) as client:
        assert client.revision == "2025-06-18"
        assert (await client.call("t")).text == "here"
    assert len(starts.read_text().splitlines()) == 2
    assert handler.ended == 1


async def test_client_says_once_why_a_server_ends(caplog: pytest.LogCaptureFixture) -> None:
    """One error has its last output and the remedy, and the log has nothing more."""
    with pytest.raises(ProcessExited, match=r"status 3; .*: no database \(.*revision") as ended:
        async with (
            asyncio.timeout(20),
            Client(command("print('no database', file=sys.stderr)\nsys.exit(3)")),
        ):
            pass

    assert (ended.value.status, ended.value.last_line) == (3, "no database")
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


async def test_client_of_one_revision_does_not_start_a_server_again(tmp_path: Path) -> None:
    """There is no other handshake."""
    starts = tmp_path / "starts"
    with pytest.raises(ProcessExited, match=r"expected initialize, not server/discover$"):
        async with Client(
            command(PICKY, str(starts)), options=ClientOptions(revision="2026-07-28")
        ):
            pass

    assert len(starts.read_text().splitlines()) == 1


async def test_client_warns_once_of_what_is_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A server that prints is reported by its first line; the others are at DEBUG."""
    source = CURIOUS.replace("answers = []", "for _ in range(1000): print('Hello.')\nanswers = []")
    async with asyncio.timeout(20), Client(command(source)) as client:
        await client.call("answers")

    [first] = [each.getMessage() for each in caplog.records if each.levelno > logging.INFO]
    assert "The body is not JSON" in first


async def test_client_keeps_what_a_server_writes_to_stderr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log by default: logger genmcp.server, at INFO."""
    caplog.set_level(logging.INFO, "genmcp.server")
    source = CURIOUS + "\nprint('That was all.', file=sys.stderr)"
    async with asyncio.timeout(20), Client(command(source)) as client:
        await client.call("answers")

    [said] = [each.getMessage() for each in caplog.records if each.name == "genmcp.server"]
    assert said.endswith(": That was all.")


async def test_client_leaves_the_question_of_a_call_that_is_given_up() -> None:
    """The hook is cancelled, the server is notified, and later calls have their full timeouts."""
    handler = Thinking()
    async with asyncio.timeout(20), Client(command(CURIOUS), handler=handler) as client:
        with pytest.raises(RequestTimeout):
            await client.call("ask", timeout=0.1)
        await handler.stopped.wait()
        with pytest.raises(RequestTimeout, match=r"was silent for 0\.1 s"):
            await client.call("nothing", timeout=None, idle_timeout=0.1)
        assert (
            await client.call("answers")
        ).text == "The request that this belongs to was cancelled"


async def test_client_cancels_many_calls_of_a_stuck_server_cleanly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request that was never written need not be cancelled, and closing logs no warning."""
    stuck = "first = next(messages)\ninitialize_result(first['id'])\nimport time\ntime.sleep(60)"
    options = ClientOptions(revision="2025-06-18")
    async with asyncio.timeout(20), Client(command(stuck), options=options) as client:
        before = asyncio.all_tasks()
        big = {"x": "y" * 200_000}
        many = [client.call("t", big, timeout=0.1) for _ in range(50)]
        failed = await asyncio.gather(*many, return_exceptions=True)
        left = asyncio.all_tasks() - before

    assert {RequestTimeout} == {type(each) for each in failed}
    assert len(left) <= 2  # those whose request was written, if not read
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


async def test_client_does_without_a_level_of_log_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that declares logging and then refuses a level is used all the same."""
    async with Client(command(STUBBORN), options=ClientOptions(log_level="info")) as client:
        result = await client.call("anything")

    assert result.content[0].text == "here"  # type: ignore[union-attr]
    assert "no logging/setLevel" in caplog.text


async def test_client_ignores_messages_that_cross_a_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Progress and a response for a call that was just cancelled cause no warning."""
    begun = asyncio.Event()

    def progress(done: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with Client(command(TENACIOUS)) as client:
        call = asyncio.create_task(client.call("slow", progress=progress))
        await begun.wait()
        call.cancel()
        await asyncio.wait((call,))
        await client.call("quick")
        assert client.abandoned_calls == 0

    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
