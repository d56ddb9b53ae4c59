"""Faulty servers: each call ends in time, with an error or with the right result.

The faults are chosen at random from a seed, which a failed test names.
"""

import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp.client.client import Client
from genmcp.client.errors import (
    ClientError,
    HttpStatusError,
    OutcomeUnknown,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
)
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.targets import Target
from tests.client.fuzzed_http import RESPONSES, http_peer
from tests.client.fuzzed_peer import (
    ENDING,
    FATAL,
    HARMLESS,
    MARK,
    MAX_MESSAGE,
    OTHER,
    answer,
    opening,
)
from tests.client.scripted import Asked, served
from tests.support.client_bounds import bounds

pytestmark = pytest.mark.fuzz

TIME = 0.4  # seconds a call may take that has no answer
PATIENCE = 10.0  # seconds a call may take that must succeed, also on a busy machine
SLACK = 3.0  # seconds this machine may be busy with something else
PEER = str(Path(__file__).with_name("fuzzed_peer.py"))


@pytest.fixture(autouse=True)
async def _nothing_crashes(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Fail a test if a callback raised an exception or an error was logged."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    with bounds(max_message=MAX_MESSAGE):
        yield
    assert raised == []
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@asynccontextmanager
async def connected(target: Target, *, opening: float = 10, **more: Any) -> AsyncIterator[Client]:
    """Connect within *opening* seconds; on a busy machine a process starts slowly."""
    options = ClientOptions(open_timeout=opening, **more)
    async with asyncio.timeout(20), Client(target, timeout=TIME, options=options) as client:
        yield client


def process(seed: int, fault: str = "none") -> Command:
    return Command(sys.executable, ["-I", "-S", PEER, str(seed), fault])


async def called(
    client: Client, n: int, fault: str, *, timeout: float = TIME
) -> ClientError | None:
    """Call a tool and return its error. Check the result, and that either comes in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        result = await client.call("t", {"n": n, "fault": fault}, timeout=timeout)
    except ClientError as error:
        assert str(error)
        return error
    finally:
        assert loop.time() - began < timeout + SLACK
    assert result.text == f"{n}{MARK}"
    return None


async def succeeds(client: Client, fault: str = "none") -> None:
    """Call a tool; fail unless its answer arrives."""
    assert await called(client, 1, fault, timeout=PATIENCE) is None, fault


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_fault_of_a_process_fails_only_its_call(revision: str) -> None:
    async with connected(process(1), revision=revision) as client:
        for fault in HARMLESS * 3:
            await succeeds(client, fault)
        errors = await asyncio.gather(*(called(client, 2, fault) for fault in FATAL * 2))
        for fault, error in zip(FATAL * 2, errors, strict=True):
            assert error is not None, fault
            if fault in ("late", "silent", "wrong_id"):
                assert isinstance(error, RequestTimeout), fault
            if fault in ("long", "shape"):
                assert isinstance(error, ProtocolError), fault
        await succeeds(client)
        assert isinstance(await called(client, 4, "exit"), OutcomeUnknown)
        assert isinstance(await called(client, 5, "none"), ProcessExited)


async def test_call_to_a_process_that_does_not_read_times_out() -> None:
    with bounds(exit_timeout=0.1):
        async with connected(process(1)) as client:
            assert isinstance(await called(client, 1, "deaf"), RequestTimeout)
            for n in range(3):
                assert isinstance(await called(client, n, "none" * 100_000), RequestTimeout)


async def fuzz(
    target: Target, rng: random.Random, faults: list[str], ending: list[str], **more: Any
) -> None:
    """Make faulty calls, some concurrently. Unless one ends the peer, it works afterwards."""
    chosen = rng.choices([*faults, "none", *ending], k=8)
    options: dict[str, Any] = {"revision": rng.choice([None, "2026-07-28", "2025-11-25"])}
    async with connected(target, **options, **more) as client:
        await asyncio.gather(*(called(client, n, fault) for n, fault in enumerate(chosen)))
        error = await called(client, 99, "none", timeout=PATIENCE)
        assert error is None or not set(ending).isdisjoint(chosen), (chosen, error)


@pytest.mark.parametrize("seed", range(3))
async def test_random_faults_of_a_process_are_errors_in_time(seed: int) -> None:
    faults = [*HARMLESS, *FATAL, *OTHER]
    rngs = [random.Random(f"{seed} {each}") for each in range(4)]
    async with asyncio.TaskGroup() as group:
        for rng in rngs:
            group.create_task(fuzz(process(rng.randrange(10**9)), rng, faults, ENDING))


async def opened_or_not(target: Target, **more: Any) -> None:
    """Connect, which fails in time or returns a client whose call succeeds or fails."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with connected(target, opening=TIME, **more) as client:
            await called(client, 1, "none")
    except ClientError as error:
        assert str(error)
    assert loop.time() - began < 4 * TIME + SLACK


async def test_faults_while_connecting_to_a_process() -> None:
    """The client connects, or fails in time."""
    with bounds(probe_timeout=TIME / 2):
        rng = random.Random(1)
        faults = [*HARMLESS, *FATAL, *OTHER, *ENDING]
        turns = asyncio.Semaphore(8)

        async def one(fault: str) -> None:
            async with turns:
                await opened_or_not(process(rng.randrange(10**9), fault))

        async with asyncio.TaskGroup() as group:
            for fault in faults * 2:
                group.create_task(one(fault))


REQUESTERS = ["ours", "httpx"]
#: Over HTTP an error without an id belongs to its response's request, and so does a message
#: that is too long.
HARMLESS_OVER_HTTP = [each for each in HARMLESS if each != "garbage"]
EVERYTHING = [*HARMLESS, *FATAL, *OTHER, *ENDING, *RESPONSES]


@asynccontextmanager
async def requester(name: str) -> AsyncIterator[dict[str, Any]]:
    """Return options for the client's own pool, or for httpx."""
    if name == "ours":
        yield {}
        return
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        yield {"http_client": client}


@pytest.mark.parametrize("name", REQUESTERS)
@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_fault_of_an_http_server_fails_only_its_call(revision: str, name: str) -> None:
    async with (
        requester(name) as options,
        http_peer(random.Random(1)) as url,
        connected(url, revision=revision, **options) as client,
    ):
        for fault in HARMLESS_OVER_HTTP * 3:
            await succeeds(client, fault)
        fatal = [*FATAL * 2, *OTHER, *ENDING, *RESPONSES]
        errors = await asyncio.gather(*(called(client, 2, fault) for fault in fatal))
        for fault, error in zip(fatal, errors, strict=True):
            assert error is not None, fault
        await succeeds(client)


@pytest.mark.parametrize("name", REQUESTERS)
@pytest.mark.parametrize("seed", range(3))
async def test_random_faults_of_an_http_server_are_errors_in_time(seed: int, name: str) -> None:
    rng = random.Random(f"http {seed}")
    async with requester(name) as options, http_peer(rng) as url:
        for _ in range(2):
            await fuzz(url, rng, EVERYTHING, [], **options)


@pytest.mark.parametrize("name", REQUESTERS)
async def test_faults_while_connecting_over_http(name: str) -> None:
    """The client connects, or fails in time."""
    turns = asyncio.Semaphore(16)

    async with requester(name) as options, asyncio.TaskGroup() as group:

        async def one(fault: str) -> None:
            async with turns, http_peer(random.Random(fault), fault) as url:
                await opened_or_not(url, **options)

        for fault in EVERYTHING:
            group.create_task(one(fault))


async def test_endless_stream_without_endpoint_is_not_sse() -> None:
    """An event stream without an `endpoint` event is not HTTP+SSE of 2024-11-05."""

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.stream("event: endpoint\ndata: http://[\n\n")
        else:
            await asked.reply(405)

    async with served(script) as url:
        with pytest.raises(HttpStatusError, match="405"):
            async with connected(url):
                pass


async def test_unaccepted_initialized_does_not_block_a_new_session() -> None:
    """The server never responds to `notifications/initialized` of the second session."""
    with bounds(initialized_timeout=0.1):
        begun = 0

        async def script(asked: Asked) -> None:
            nonlocal begun
            message = json.loads(asked.body or "{}")
            match asked.rpc:
                case "initialize":
                    begun += 1
                    await asked.reply(200, json.loads(opening(message)), mcp_session_id=str(begun))
                case "notifications/initialized" if begun == 2:
                    while (await asked.receive())["type"] != "http.disconnect":
                        pass
                case "tools/call" if begun == 2:
                    await asked.reply(200, json.loads(answer(message["id"], f"1{MARK}")))
                case "tools/call":
                    await asked.reply(404)
                case _:
                    await asked.reply(202 if asked.method == "POST" else 405)

        async with (
            served(script) as url,
            connected(url, revision="2025-11-25") as client,
        ):
            await succeeds(client)
            assert begun == 2
