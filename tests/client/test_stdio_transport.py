"""The stdio transport, over real processes."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp.client.errors import ClientClosed, ConnectError, ProcessExited, RequestTimeout
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.stdio import StdioTransport
from tests.client.sinks import Recorder, notification, request
from tests.support.client_bounds import bounds
from tests.support.held_loop import MAX_HELD, HeldLoop

pytestmark = pytest.mark.slow

QUICK = {"exit_timeout": 0.3, "term_timeout": 0.3}
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
    source: str, stderr: Any = None, given: Mapping[str, Any] = QUICK, **more: Any
) -> AsyncIterator[tuple[StdioTransport, Recorder]]:
    recorder = Recorder()
    transport = StdioTransport(python(source), stderr)
    with bounds(**{**given, **more}):
        await transport.open(recorder)
        try:
            async with asyncio.timeout(20):
                yield transport, recorder
        finally:
            await transport.close()


async def gone(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
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


async def test_each_message_is_a_line() -> None:
    async with running(ECHO) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(2))
        await recorder.until(messages=2)

    assert [each["id"] for each in recorder.decoded] == [1, 2]
    assert recorder.request_ids == [None, None]


async def test_large_messages_both_ways_do_not_deadlock() -> None:
    """The server writes as much as it reads, at the same time."""
    async with running(ECHO) as (transport, recorder):
        text = "x" * 3_000_000
        await asyncio.gather(*(transport.send(request(id, text=text)) for id in range(8)))
        await recorder.until(messages=8)

    assert {len(each["params"]["text"]) for each in recorder.decoded} == {3_000_000}


async def test_oversized_line_is_discarded() -> None:
    """Its size and beginning are reported, and the next line is received."""
    source = """
        print('{"jsonrpc":"2.0","id":7,"result":"' + "x" * 5000 + '"}', flush=True)
    """
    async with running(source + textwrap.indent(ECHO, "    "), max_message=1000) as (
        transport,
        recorder,
    ):
        await recorder.until(oversized=1)
        await transport.send(request(1))
        await recorder.until(messages=1)

    [(size, head)] = recorder.oversized
    assert 5000 < size < 5100
    assert head.startswith(b'{"jsonrpc":"2.0","id":7,')
    assert [each["id"] for each in recorder.decoded] == [1]


async def test_invalid_messages_are_passed_on() -> None:
    """The sink decides about invalid JSON and UTF-8."""
    source = r"""
        sys.stdout.buffer.write(b'\n\r\nhello\n{"jsonrpc":\n\xff\xfe\n{"cut')
    """
    async with running(source) as (_, recorder):
        await recorder.until(messages=4, failures=1)

    assert recorder.messages == [b"hello", b'{"jsonrpc":', b"\xff\xfe", b'{"cut']


async def test_flood_of_notifications_blocks_nothing() -> None:
    source = """
        for number in range(50_000):
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/message"}\\n')
        sys.stdout.flush()
    """
    async with running(source + textwrap.indent(ECHO, "    ")) as (transport, recorder):
        await transport.send(request(1))
        await recorder.until(messages=50_001)

    assert recorder.decoded[-1]["id"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_flood_of_short_lines_leaves_others_their_turns(stream: str) -> None:
    """However many a server writes at once, the client reads some, and other tasks run."""
    source = f"""
        import fcntl
        output = sys.{stream}.fileno()
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(output, b"0\\n" * 200_000)
        os.write(2, b"end\\n")
    """
    ended = asyncio.Event()

    def log(line: str) -> None:
        if line == "end":
            ended.set()

    async with (
        running(source + textwrap.indent(ECHO, "    "), log) as (transport, recorder),
        HeldLoop.watch() as loop,
    ):
        await transport.send(request(1))
        await recorder.until(messages=200_001 if stream == "stdout" else 1)
        await ended.wait()

    assert recorder.decoded[-1]["id"] == 1
    assert loop.longest < MAX_HELD


async def test_exit_is_reported_with_status_and_last_line() -> None:
    """Later messages get the same error."""
    source = """
        sys.stderr.write("starting\\nno such database: studio\\n")
        sys.exit(3)
    """
    async with running(source) as (transport, recorder):
        await recorder.until(failures=1)
        with pytest.raises(ProcessExited) as later:
            await transport.send(request(1))

    assert isinstance(recorder.failure, ProcessExited)
    assert (recorder.failure.status, recorder.failure.last_line) == (3, "no such database: studio")
    assert later.value is recorder.failure
    assert "with exit status 3; last line of stderr: no such database" in str(later.value)


async def test_killed_process_is_reported_with_its_signal() -> None:
    async with running(ECHO) as (transport, recorder):
        assert transport.pid is not None
        os.kill(transport.pid, signal.SIGKILL)
        await recorder.until(failures=1)

    assert isinstance(recorder.failure, ProcessExited)
    assert recorder.failure.status == -signal.SIGKILL
    assert "by signal 9" in str(recorder.failure)


async def test_server_that_closes_stdout_is_ended() -> None:
    """It cannot answer any more."""
    async with running("os.close(1)\ntime.sleep(60)") as (transport, recorder):
        await recorder.until(failures=1)
        with pytest.raises(ProcessExited):
            await transport.send(request(1))

    assert isinstance(recorder.failure, ProcessExited)
    assert recorder.failure.status == -signal.SIGTERM


async def test_server_that_closes_stdin_is_ended() -> None:
    """Sending fails instead of waiting."""
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


async def test_send_to_a_server_that_does_not_read_is_cancellable() -> None:
    """Closing the transport ends it as well."""
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

    assert recorder.failures == []


async def test_request_cancelled_before_writing_is_not_written() -> None:
    """Neither is the notification that cancels it."""
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
        os.kill(recorder.decoded[0]["pid"], signal.SIGUSR1)
        await wanted
        await recorder.until(messages=3)

    assert [each["id"] for each in recorder.decoded[1:]] == [1, 3]


async def test_notification_to_a_server_that_does_not_read_fails() -> None:
    """After `write_timeout`."""
    source = "print('{}', flush=True)\ntime.sleep(60)"
    async with running(source, write_timeout=0.01, exit_timeout=0) as (
        transport,
        recorder,
    ):
        await recorder.until(messages=1)
        await transport.send(request(1, text="x" * 5_000_000))
        with pytest.raises(RequestTimeout, match="notifications/x"):
            await transport.send(notification("notifications/x"))


async def test_exited_server_can_be_started_again() -> None:
    """Unless the transport was closed."""
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
async def test_close_escalates_to_sigterm_and_sigkill(source: str, least: float) -> None:
    """Stdin is closed first. Neither a process nor a zombie is left."""
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
    assert recorder.failures == []


async def test_descendants_end_with_the_process() -> None:
    """A grandchild with open streams does not delay the end."""
    source = """
        child = os.fork()
        if child == 0:
            time.sleep(60)
        print('{"child":%d}' % child, flush=True)
    """
    async with running(source) as (_, recorder):
        await recorder.until(messages=1, failures=1)

    assert isinstance(recorder.failure, ProcessExited)
    await gone(recorder.decoded[0]["child"])


async def test_cancelled_close_kills_the_process() -> None:
    async with running("print('{}', flush=True)\ntime.sleep(60)", given={}) as (
        transport,
        recorder,
    ):
        await recorder.until(messages=1)
        assert transport.pid is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await transport.close()
        await gone(transport.pid)


async def test_close_gives_up_a_process_it_cannot_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process of another user, as with sudo."""
    sent: list[int] = []

    def refused(group: int, number: int) -> None:
        sent.append(number)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refused)
    source = "print('{}', flush=True)\ntime.sleep(60)"
    async with running(source, exit_timeout=0.1, term_timeout=0.1, kill_timeout=0.1) as (
        transport,
        recorder,
    ):
        await recorder.until(messages=1)
        async with asyncio.timeout(5):
            await transport.close()

    assert sent[:2] == [signal.SIGTERM, signal.SIGKILL]
    assert sent.count(signal.SIGTERM) == 1
    assert recorder.failures == []


async def test_stderr_is_passed_to_the_function() -> None:
    lines: list[str] = []

    def failing(line: str) -> None:
        lines.append(line)
        raise ValueError(line)

    source = r"""
        sys.stderr.buffer.write(b'one\ntwo \xff\n' + b'x' * 100_000 + b'\nend')
    """
    async with running(source, failing) as (_, recorder):
        await recorder.until(failures=1)

    assert lines == ["one", "two �", "x" * 256, "end"]
    assert recorder.messages == []


async def test_stderr_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    source = 'sys.stderr.write("careful\\n")'
    async with running(source, "pass") as (_, recorder):
        await recorder.until(failures=1)

    assert capsys.readouterr().err == "careful\n"


async def test_environment_has_no_secrets_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_command_that_cannot_be_started_is_a_connect_error(
    command: Command, reason: str
) -> None:
    transport = StdioTransport(command)

    with pytest.raises(ConnectError, match=reason) as error:
        await transport.open(Recorder())
    with pytest.raises(ClientClosed):
        await transport.send(request(1))
    await transport.close()

    assert not error.value.sent


async def test_closed_stdio_transport_stays_closed() -> None:
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
        (lambda: ClientOptions(stderr="out"), "stderr"),  # type: ignore[arg-type]
    ],
)
def test_invalid_stdio_option_is_named(wrong: Callable[[], object], name: str) -> None:
    """It fails at construction."""
    with pytest.raises(ValueError, match=name):
        wrong()


def test_stdio_runs_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> Recorder:
        async with running(ECHO) as (transport, recorder):
            await asyncio.gather(
                *(transport.send(request(id, text="x" * 1_000_000)) for id in range(4))
            )
            await recorder.until(messages=4)
        async with running("sys.exit(3)") as (_, ended):
            await ended.until(failures=1)
        assert recorder.failures == []
        return ended

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(main())

    assert isinstance(ended.failure, ProcessExited)
    assert ended.failure.status == 3
