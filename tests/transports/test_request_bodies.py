"""Bodies that are too large, too slow, too deep, or cut."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool
from genmcp.resources import ResourceRepo
from tests.support.asgi import PATIENCE, Client, until
from tests.support.serving import serve


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


def endpoint(**limits: float) -> Endpoint:
    suite = Suite(name="test", version="1", tools=[echo])
    return Endpoint(Mux(suite, limits=Limits(**limits)))  # type: ignore[arg-type]


@pytest.mark.parametrize("length", ["101", "9" * 18, "9" * 5000])
async def test_body_whose_length_is_told_is_refused_unread(length: str) -> None:
    """413, with the limit and its name, before a byte of it is taken in."""
    client = Client(endpoint(max_body_bytes=100))
    connection = client.open(body=[b"{}"], headers={"content-length": length})
    async with connection:
        await connection.over()

    assert (connection.status, connection.json["error"]["code"]) == (413, -32600)
    assert "100 bytes (limit: max_body_bytes)" in connection.json["error"]["message"]
    assert connection._body == [b"{}"]


async def test_body_in_chunks_is_refused_as_soon_as_it_is_too_large() -> None:
    """413 as well; the rest is not read."""
    client = Client(endpoint(max_body_bytes=100))
    connection = client.open(body=[b" " * 60] * 10)
    async with connection:
        await connection.over()

    assert connection.status == 413
    assert len(connection._body) == 8


async def test_body_in_chunks_is_put_together() -> None:
    """Chunks may cut a message anywhere; the limit itself is allowed."""
    client = Client(endpoint())
    body = json.dumps(client.call("echo", {"text": "hé"}), ensure_ascii=False).encode()
    client.app = endpoint(max_body_bytes=len(body))
    message = client.call("echo")

    answer = await client.send(message, body=[body[i : i + 1] for i in range(len(body))])

    assert answer.json["result"]["content"][0]["text"] == "hé"


async def test_body_that_nests_too_deep_is_refused_with_its_id() -> None:
    """400, before anything recursive meets it."""
    client = Client(endpoint(max_depth=5))
    deep = b'{"jsonrpc":"2.0","id":4,"method":"x","params":{"a":[[[[[1]]]]]}}'

    answer = await client.send(body=[deep])

    assert (
        answer.status,
        answer.json["error"]["code"],
        answer.json.get("id"),
    ) == (400, -32600, 4)


async def test_body_that_is_cut_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A disconnect during the body is not an error; no response is written."""
    client = Client(endpoint())
    connection = client.open(body=[])
    async with connection:
        connection.disconnect()
        await connection.over()

    assert (connection.status, caplog.records) == (499, [])


@pytest.mark.parametrize("parts", [[], [b'{"jsonrpc":']])
async def test_body_that_does_not_come_is_408(parts: list[bytes]) -> None:
    """On a real server: `body_timeout` bounds the whole of it, from the first byte on."""
    async with serve(endpoint(body_timeout=0.1)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n" + b"".join(parts)
        )
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n")
            await reader.read()
        writer.close()
        await writer.wait_closed()

    assert b"HTTP/1.1 408 " in head


async def test_body_that_is_too_large_is_answered_on_a_real_server() -> None:
    """The client reads its 413, with and without a Content-Length, and the server continues."""
    client = Client(endpoint(max_body_bytes=1000))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    async with serve(client.app) as url, httpx.AsyncClient() as http:
        headers = {"content-type": "application/json"}
        told = await http.post(url, content=b" " * 100_000, headers=headers)
        streamed = await http.post(url, content=chunks(), headers=headers)
        fine = await http.post(
            url,
            json=client.call("echo", {"text": "x"}),
            headers={
                "mcp-protocol-version": client.version,
                "mcp-method": "tools/call",
                "mcp-name": "echo",
            },
        )

    assert [told.status_code, streamed.status_code, fine.status_code] == [413, 413, 200]


async def test_body_that_is_cut_on_a_real_server_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No error is logged, by any logger."""
    async with serve(endpoint()) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{"
            )
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_body_that_is_cancelled_by_the_host_is_not_late() -> None:
    """A host that cancels while a body comes in is not answered with 408."""
    client = Client(endpoint(body_timeout=60))
    async with client.open(body=[]) as connection:
        await asyncio.sleep(0)
        connection.task.cancel()
        await connection.over()

    assert connection.task.cancelled()


async def test_body_that_is_late_leaves_no_cancellation_behind() -> None:
    """In memory: 408, and the host's task is as it was."""
    counts: list[int] = []
    served = endpoint(body_timeout=0.01)

    async def host(scope: object, receive: object, send: object) -> None:
        await served(scope, receive, send)  # type: ignore[arg-type]
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())

    client = Client(host)
    async with client.open(body=[]) as connection:
        await connection.over()

    assert (connection.status, counts) == (408, [0])


@pytest.mark.parametrize("version", ["2026-07-28", "2025-03-26"])
async def test_bodies_with_many_arrays_are_rejected(version: str) -> None:
    """1.3 million empty arrays take 4 MB, and a decoder and a schema far more than that."""
    client = await Client.begin(endpoint(), version)
    body = json.dumps(client.call("echo", {"x": 0})).encode()
    hostile = body.replace(b'{"x": 0}', b'{"x": [' + b"[]," * 1_300_000 + b"0]}")
    assert len(hostile) > 3_900_000

    answer = await client.send(client.call("echo"), body=[hostile])

    assert answer.status == 413
    assert "100000 objects and arrays" in answer.json["error"]["message"]


async def test_bodies_of_many_pings_are_rejected() -> None:
    """Members beyond the maximum are not decoded, so that they delay no client."""
    client = await Client.begin(endpoint(), "2025-03-26")
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

    answer = await client.send([], body=[b"[" + b",".join([ping] * 90_000) + b"]"])

    assert (answer.status, answer.json["error"]["code"]) == (413, -32600)
    assert "100 messages" in answer.json["error"]["message"]


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("method", ["resources/read", "completion/complete"])
async def test_bodies_with_a_long_uri_are_rejected(version: str, method: str) -> None:
    """A URI of 4 MB took a template 0.3 s, and a directory 1.0 s."""

    class Notes(ResourceRepo):
        name = "note"
        template = "note://{+path}"

        async def read(self, key: dict[str, str], channel: Channel) -> str | None:
            return key["path"]

        async def complete(
            self, argument: str, value: str, context: Mapping[str, str], channel: Channel
        ) -> Sequence[str]:
            return []

    suite = Suite(name="test", version="1", resources=[Notes()])
    uri = "note://" + "x" * 3_000_000
    params: dict[str, Any] = {"uri": uri}
    if method == "completion/complete":
        params = {
            "ref": {"type": "ref/resource", "uri": uri},
            "argument": {"name": "path", "value": ""},
        }
    client = await Client.begin(Endpoint(suite), version)

    answer = await client.send(client.request(method, params))

    assert answer.json["error"]["code"] == -32602
    assert "2048 bytes" in answer.json["error"]["message"]


async def test_bodies_of_one_client_have_a_share() -> None:
    """Large bodies count from their first byte until their call is over; others have their own."""

    @tool
    async def hold(text: str) -> None:
        await asyncio.Event().wait()

    mux = Mux(
        Suite(name="test", version="1", tools=[hold, echo]),
        limits=Limits(max_body_bytes=100_000, max_total_body_bytes=400_000),
    )
    app = Endpoint(mux)
    one, other = (Client(app, client=(f"192.0.2.{number}", 1)) for number in (1, 2))
    text = {"text": "x" * 60_000}
    async with one.open(one.call("hold", text)):
        await until(lambda: len(mux.waiting_calls) == 1)
        refused = await one.send(one.call("echo", text))
        small = await one.send(one.call("echo", {"text": "x"}))
        answered = await other.send(other.call("echo", text))

    assert [refused.status, small.status, answered.status] == [429, 200, 200]
    assert "(limit: client_share, of max_total_body_bytes)" in refused.json["error"]["message"]
    assert len(mux.body_bytes) == 0
    assert (await one.send(one.call("echo", text))).status == 200


async def test_bodies_that_arrive_in_parts_are_counted() -> None:
    """Each part counts when it arrives; a client that is refused, or leaves, holds nothing."""
    mux = Mux(
        Suite(name="test", version="1", tools=[echo]),
        limits=Limits(max_total_body_bytes=50_000),
    )
    client = Client(Endpoint(mux))
    refused = await client.send(body=[b" " * 20_000] * 4)
    connection = client.open(body=[b" " * 20_000] * 2)
    connection._body.append(b"")
    app, receive = connection._app, connection._receive

    async def receives() -> dict[str, Any]:
        message = await receive()
        if not message["more_body"]:  # the client leaves before the last part
            assert len(mux.body_bytes) == 40_000
            return {"type": "http.disconnect"}
        return message

    connection._app = lambda scope, _, send: app(scope, receives, send)
    async with connection:
        await connection.over()

    assert refused.status == 503
    assert connection.status == 499
    assert len(mux.body_bytes) == 0
