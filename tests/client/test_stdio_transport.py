"""The stdio transport, over real processes."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from genmcp.client.errors import ClientClosed, ConnectError, ProcessExited, RequestTimeout
from genmcp.client.options import Command, StdioOptions
from genmcp.client.transports.stdio import StdioTransport
from tests.client.sinks import Recorder, notification, request

QUICK = StdioOptions(exit_timeout=0.3, term_timeout=0.3)
ECHO = """
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def python(source: str, *args: str) -> Command:
    return Command(
        sys.executable, ["-c", "import os, signal, sys, time\n" + textwrap.dedent(source), *args]
    )


@asynccontextmanager
async def running(
    source: str, options: StdioOptions = QUICK, max_message: int = 1 << 26
) -> AsyncIterator[tuple[StdioTransport, Recorder]]:
    recorder = Recorder()
    transport = StdioTransport(python(source), options, max_message=max_message)
    await transport.open(recorder)
    try:
        async with asyncio.timeout(20):
            yield transport, recorder
    finally:
        await transport.close()


async def gone(pid: int) -> None:
    """Wait for the end of a process that is nobody's child here."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)


async def test_stdio_carries_messages_both_ways() -> None:
    """What is sent arrives on a line of its own, and so does what comes back."""
    async with running(ECHO) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(2))
        await recorder.until(messages=2)

    assert [1, 2] == [each["id"] for each in recorder.said]
    assert [None, None] == recorder.abouts


async def test_stdio_large_messages_both_ways_do_not_deadlock() -> None:
    """A server that writes as much as it is sent, at once, holds nobody up."""
    async with running(ECHO) as (transport, recorder):
        text = "x" * 3_000_000
        await asyncio.gather(*(transport.send(request(id, text=text)) for id in range(8)))
        await recorder.until(messages=8)

    assert {3_000_000} == {len(each["params"]["text"]) for each in recorder.said}


async def test_stdio_line_past_max_message_is_lost_and_the_next_one_is_not() -> None:
    """Of a line that is too long its size and beginning are told, and the connection lives on."""
    source = """
        print('{"jsonrpc":"2.0","id":7,"result":"' + "x" * 5000 + '"}', flush=True)
    """
    async with running(source + textwrap.indent(ECHO, "    "), max_message=1000) as (
        transport,
        recorder,
    ):
        await recorder.until(lost=1)
        await transport.send(request(1))
        await recorder.until(messages=1)

    [(size, head)] = recorder.lost
    assert 5000 < size < 5100
    assert head.startswith(b'{"jsonrpc":"2.0","id":7,')
    assert [1] == [each["id"] for each in recorder.said]


async def test_stdio_garbage_is_passed_on_as_it_came() -> None:
    """What is no message, cut off or no UTF-8, is for the sink to judge; nothing hangs."""
    source = r"""
        sys.stdout.buffer.write(b'\n\r\nhello\n{"jsonrpc":\n\xff\xfe\n{"cut')
    """
    async with running(source) as (_, recorder):
        await recorder.until(messages=4, failures=1)

    assert [b"hello", b'{"jsonrpc":', b"\xff\xfe", b'{"cut'] == recorder.messages


async def test_stdio_flood_is_taken() -> None:
    """A server that floods holds up neither its own messages nor those sent to it."""
    source = """
        for number in range(50_000):
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/message"}\\n')
        sys.stdout.flush()
    """
    async with running(source + textwrap.indent(ECHO, "    ")) as (transport, recorder):
        await transport.send(request(1))
        await recorder.until(messages=50_001)

    assert 1 == recorder.said[-1]["id"]


async def test_stdio_end_of_the_process_is_told_with_status_and_last_line() -> None:
    """The error says how it ended and what it said last; later messages get the same error."""
    source = """
        sys.stderr.write("starting\\nno such database: studio\\n")
        sys.exit(3)
    """
    async with running(source) as (transport, recorder):
        await recorder.until(failures=1)
        with pytest.raises(ProcessExited) as later:
            await transport.send(request(1))

    assert isinstance(recorder.failure, ProcessExited)
    assert (3, "no such database: studio") == (recorder.failure.status, recorder.failure.last_line)
    assert later.value is recorder.failure
    assert "with exit status 3; the last it said: no such database" in str(later.value)


async def test_stdio_killed_process_is_told_with_its_signal() -> None:
    """A process that is killed has no exit status but the signal."""
    async with running(ECHO) as (transport, recorder):
        assert transport.pid is not None
        os.kill(transport.pid, signal.SIGKILL)
        await recorder.until(failures=1)

    assert isinstance(recorder.failure, ProcessExited)
    assert -signal.SIGKILL == recorder.failure.status
    assert "by SIGKILL" in str(recorder.failure)


async def test_stdio_server_that_closes_its_output_is_ended() -> None:
    """Without its output a server is of no use: it is ended, and that is told."""
    async with running("os.close(1)\ntime.sleep(60)") as (transport, recorder):
        await recorder.until(failures=1)
        with pytest.raises(ProcessExited):
            await transport.send(request(1))

    assert isinstance(recorder.failure, ProcessExited)
    assert -signal.SIGTERM == recorder.failure.status


async def test_stdio_server_that_stops_reading_ends_with_its_input() -> None:
    """A message to a server that has closed its input fails, and does not wait."""
    source = """
        os.close(0)
        print('{"ready":true}', flush=True)
        time.sleep(60)
    """
    async with running(source) as (transport, recorder):
        await recorder.until(messages=1)
        with pytest.raises(ProcessExited):
            for id in range(100):
                await transport.send(request(id))


async def test_stdio_sending_to_a_server_that_does_not_read_can_be_given_up() -> None:
    """A send that waits for a server which does not read can be cancelled, and closing ends it."""
    source = "print('{}', flush=True)\ntime.sleep(60)"
    async with running(source) as (transport, recorder):
        await recorder.until(messages=1)
        await transport.send(request(1, text="x" * 5_000_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await transport.send(request(2))
        waiting = asyncio.ensure_future(transport.send(request(3)))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(ClientClosed):
            await waiting

    assert [] == recorder.failures


async def test_stdio_request_that_is_cancelled_before_it_is_written_is_never_written() -> None:
    """A server that reads again is not told of what nobody wants any more, nor that it is so."""
    source = """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print('{"pid":%d}' % os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
    """
    async with running(source + textwrap.indent(ECHO, "    ")) as (transport, recorder):
        await recorder.until(messages=1)
        await transport.send(request(1, text="x" * 5_000_000))
        left, wanted = (asyncio.ensure_future(transport.send(request(id))) for id in (2, 3))
        await asyncio.sleep(0)
        left.cancel()
        async with asyncio.timeout(5):
            await transport.send(replace(notification("notifications/cancelled"), withdraws=2))
        os.kill(recorder.said[0]["pid"], signal.SIGUSR1)
        await wanted
        await recorder.until(messages=3)

    assert [1, 3] == [each["id"] for each in recorder.said[1:]]


async def test_stdio_notification_does_not_wait_for_ever_for_a_server_that_does_not_read() -> None:
    """It fails after a while, or at once if too many wait already."""
    source = "print('{}', flush=True)\ntime.sleep(60)"
    async with running(source, StdioOptions(write_timeout=0.01, exit_timeout=0)) as (
        transport,
        recorder,
    ):
        await recorder.until(messages=1)
        await transport.send(request(1, text="x" * 5_000_000))
        with pytest.raises(RequestTimeout, match="notifications/x"):
            await transport.send(notification("notifications/x"))

        many = [transport.send(notification("notifications/x")) for _ in range(1001)]
        failed = await asyncio.gather(*many, return_exceptions=True)

    assert {RequestTimeout, ConnectError} == {type(each) for each in failed}


async def test_stdio_server_that_has_ended_can_be_started_again() -> None:
    """Opening the transport once more starts the command once more; a closed one stays closed."""
    async with running("print('{}', flush=True)") as (transport, recorder):
        await recorder.until(messages=1, failures=1)
        await transport.open(recorder)
        await recorder.until(messages=2, failures=2)
        await transport.close()
        with pytest.raises(ClientClosed):
            await transport.open(recorder)


@pytest.mark.parametrize(
    ("source", "least"),
    [
        ("sys.stdin.read()", 0.0),
        ("print('{}', flush=True)\ntime.sleep(60)", 0.3),
        (
            """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print('{}', flush=True)
            time.sleep(60)
            """,
            0.6,
        ),
    ],
    ids=["stdin", "SIGTERM", "SIGKILL"],
)
async def test_stdio_close_ends_the_process_as_gently_as_it_lets_it(
    source: str, least: float
) -> None:
    """Closing closes stdin, then sends SIGTERM, then SIGKILL; no process and no zombie is left."""
    async with running(source) as (transport, recorder):
        if least:
            await recorder.until(messages=1)
        pid = transport.pid
        assert pid is not None
        began = time.monotonic()
        await transport.close()
        took = time.monotonic() - began
        await transport.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert least <= took < least + 2
    assert [] == recorder.failures


async def test_stdio_close_ends_what_the_process_has_started() -> None:
    """A grandchild that holds the streams open neither delays the end nor outlives it."""
    source = """
        child = os.fork()
        if child == 0:
            time.sleep(60)
        print('{"child":%d}' % child, flush=True)
    """
    async with running(source) as (_, recorder):
        await recorder.until(messages=1, failures=1)

    assert isinstance(recorder.failure, ProcessExited)
    await gone(recorder.said[0]["child"])


async def test_stdio_cancelled_close_kills() -> None:
    """A close that is cancelled leaves no process."""
    async with running("print('{}', flush=True)\ntime.sleep(60)", StdioOptions()) as (
        transport,
        recorder,
    ):
        await recorder.until(messages=1)
        assert transport.pid is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await transport.close()
        await gone(transport.pid)


async def test_stdio_close_gives_up_a_process_it_may_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that belongs to somebody else by now, as with sudo, does not hold up the end."""
    sent: list[int] = []

    def refused(group: int, number: int) -> None:
        sent.append(number)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refused)
    options = StdioOptions(exit_timeout=0.1, term_timeout=0.1, kill_timeout=0.1)
    async with running("print('{}', flush=True)\ntime.sleep(60)", options) as (transport, recorder):
        await recorder.until(messages=1)
        async with asyncio.timeout(5):
            await transport.close()

    assert [signal.SIGTERM, signal.SIGKILL] == sent[:2]
    assert 1 == sent.count(signal.SIGTERM)
    assert [] == recorder.failures


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("by", ["itself", "a launcher"])
async def test_stdio_killed_parent_leaves_no_orphan(by: str) -> None:
    """A server that ends by nothing dies with the client's process, even if that is killed.

    So it does where the command is not the server, but starts it: `npx`, `uv run`.
    """
    source = f"LAUNCHED = {by != 'itself'}\n" + textwrap.dedent("""
        import asyncio
        from genmcp.client.transports.stdio import StdioTransport
        from genmcp.client.options import Command
        from tests.client.sinks import Recorder

        SERVER = "import time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n" \\
            "import os; print('{\\"pid\\":%d}' % os.getpid(), flush=True); time.sleep(60)"
        LAUNCHER = Command("sh", ["-c", '"$0" -c "$1"; true', sys.executable, SERVER])

        async def main():
            command = LAUNCHER if LAUNCHED else Command(sys.executable, ["-c", SERVER])
            transport = StdioTransport(command)
            recorder = Recorder()
            await transport.open(recorder)
            await recorder.until(messages=1)
            print(recorder.said[0]["pid"], flush=True)
            time.sleep(60)

        asyncio.run(main())
    """)
    command = python(source)
    parent = await asyncio.create_subprocess_exec(
        command.command,
        *command.args,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        server = int(await parent.stdout.readline())
        os.kill(server, 0)
        parent.kill()
        await parent.wait()
    await gone(server)


async def test_stdio_stderr_is_told_line_by_line() -> None:
    """What a server writes to stderr goes to the function given for it, and nowhere else."""
    lines: list[str] = []

    def failing(line: str) -> None:
        lines.append(line)
        raise ValueError(line)

    source = r"""
        sys.stderr.buffer.write(b'one\ntwo \xff\n' + b'x' * 100_000 + b'\nend')
    """
    options = StdioOptions(stderr=failing, exit_timeout=0.3)
    async with running(source, options) as (_, recorder):
        await recorder.until(failures=1)

    assert ["one", "two �", "x" * 256, "end"] == lines
    assert [] == recorder.messages


async def test_stdio_stderr_may_be_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked to, the transport repeats on its own stderr what the server writes there."""
    source = 'sys.stderr.write("careful\\n")'
    async with running(source, StdioOptions(stderr="pass")) as (_, recorder):
        await recorder.until(failures=1)

    assert "careful\n" == capsys.readouterr().err


async def test_stdio_environment_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gets a few harmless variables and those it is given, never a token of ours."""
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("TERM", "() { :; }")
    command = Command("server", env={"MODE": "test"})

    assert {"MODE": "test", "PATH": os.environ["PATH"]}.items() <= command.environment().items()
    assert not {"SECRET_TOKEN", "TERM"} & command.environment().keys()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command("no-such-program-anywhere"), "No such file"),
        (Command(sys.executable, cwd="/no/such/folder"), "/no/such/folder"),
        (Command("nul\0l"), "null byte"),
    ],
)
async def test_stdio_command_that_cannot_be_started_is_unreachable(
    command: Command, reason: str
) -> None:
    """The error says which command it was and why."""
    transport = StdioTransport(command)

    with pytest.raises(ConnectError, match=reason) as error:
        await transport.open(Recorder())
    with pytest.raises(ClientClosed):
        await transport.send(request(1))
    await transport.close()

    assert not error.value.sent


async def test_stdio_closed_transport_stays_closed() -> None:
    """What is closed is neither opened again nor sent through."""
    transport = StdioTransport(python(ECHO))
    await transport.close()

    with pytest.raises(ClientClosed):
        await transport.open(Recorder())
    assert transport.pid is None


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: Command(""), "command"),
        (lambda: Command("npx", "-y server"), "args"),
        (lambda: StdioOptions(exit_timeout=-1), "exit_timeout"),
        (lambda: StdioOptions(term_timeout=float("nan")), "term_timeout"),
        (lambda: StdioOptions(stderr="out"), "stderr"),  # type: ignore[arg-type]
    ],
)
def test_stdio_wrong_option_is_named(wrong: Callable[[], object], name: str) -> None:
    """A wrong option fails at construction, and says which one it is."""
    with pytest.raises(ValueError, match=name):
        wrong()


def test_stdio_runs_on_uvloop() -> None:
    """Messages, the end of the process and closing are the same on the other event loop."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> Recorder:
        async with running(ECHO) as (transport, recorder):
            await asyncio.gather(
                *(transport.send(request(id, text="x" * 1_000_000)) for id in range(4))
            )
            await recorder.until(messages=4)
        async with running("sys.exit(3)") as (_, ended):
            await ended.until(failures=1)
        assert [] == recorder.failures
        return ended

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(main())

    assert isinstance(ended.failure, ProcessExited)
    assert 3 == ended.failure.status
