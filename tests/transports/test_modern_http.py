"""POSTs of 2026-07-28: shapes, headers, statuses, errors."""

import asyncio
import threading
from typing import Annotated, Any

import msgspec
import pytest

from genmcp import Channel, InvalidParams, McpError, Tool, ToolError, ToolRequest, tool
from genmcp.errors import MissingCapability, Overloaded
from tests.support.asgi import MODERN, PATIENCE, Client, serving

JSON_ONLY = {"accept": "application/json"}


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@tool
async def report(channel: Channel, steps: int = 2) -> str:
    """Reports progress."""
    for step in range(steps):
        await channel.progress(step, steps)
    return "done"


class Region(msgspec.Struct):
    region: Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})] = "none"
    seats: Annotated[int, msgspec.Meta(extra_json_schema={"x-mcp-header": "Seats"})] = 0


class Book(Tool[Region]):
    """Books."""

    name = "book"

    def __init__(self) -> None:
        self.ran = 0

    async def call(self, request: ToolRequest[Region], channel: Channel) -> str:
        self.ran += 1
        return f"{request.arguments.region} {request.arguments.seats}"


def error_of(connection: Any) -> tuple[int, int, Any]:
    """Return status, code and id of an error."""
    assert connection.headers["content-type"] == "application/json"
    return connection.status, connection.json["error"]["code"], connection.json.get("id")


async def test_modern_result_first_is_one_json_body() -> None:
    """A call without messages before its result is answered with JSON."""
    client = Client(serving(echo))

    answer = await client.send(client.call("echo", {"text": "hello"}, id="a"))

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["id"] == "a"
    assert answer.json["result"]["content"] == [{"type": "text", "text": "hello"}]
    assert answer.json["result"]["resultType"] == "complete"


async def test_modern_notification_first_is_an_event_stream() -> None:
    """A call that reports before its result is a stream, progress first, result last."""
    client = Client(serving(report))

    answer = await client.send(client.call("report", progressToken="t"))

    assert (answer.status, answer.is_stream) == (200, True)
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == (
        "no-cache",
        "no",
    )
    assert [m["method"] for m in answer.messages[:2]] == ["notifications/progress"] * 2
    assert answer.messages[2]["result"]["content"][0]["text"] == "done"
    assert answer.ids == []  # 2026-07-28, "Receiving Messages": nothing is resumable


async def test_modern_progress_without_a_token_is_not_sent() -> None:
    """Who did not ask for progress gets none, and one JSON body."""
    client = Client(serving(report))

    answer = await client.send(client.call("report"))

    assert not answer.is_stream


async def test_modern_client_that_takes_json_only_gets_json() -> None:
    """A message for a client without event streams is dropped, and the tool gets the status."""

    @tool
    async def tell(channel: Channel) -> str:
        return f"sent: {await channel.progress(1)}"

    client = Client(serving(tell))

    answer = await client.send(client.call("tell", progressToken=1), headers=JSON_ONLY)

    assert answer.headers["content-type"] == "application/json"
    assert answer.json["result"]["content"][0]["text"] == "sent: SendStatus.UNWANTED"


async def test_modern_stream_may_be_started_before_anything_is_said() -> None:
    """start_stream opens the stream at once; the only message on it is the result."""
    go = asyncio.Event()

    @tool
    async def slow(channel: Channel) -> str:
        channel.start_stream()
        channel.start_stream()
        await go.wait()
        return "done"

    client = Client(serving(slow))
    async with client.open(client.call("slow")) as connection:
        await connection.started()
        assert connection.is_stream

        go.set()
        await connection.over()

    (message,) = connection.messages
    assert message["id"] == 1


async def test_modern_stream_may_be_started_from_a_thread() -> None:
    """A `def` hook runs in a thread; its messages reach the client."""
    opened = threading.Event()

    @tool
    def slow(channel: Channel) -> str:
        channel.start_stream()
        assert opened.wait(PATIENCE)  # the loop is free, and delivers it at once
        assert channel.in_loop(channel.progress(1))
        with pytest.raises(RuntimeError, match=r"channel\.in_loop"):
            asyncio.run(channel.progress(2))
        return "done"

    client = Client(serving(slow, heartbeat=60))
    async with client.open(client.call("slow", progressToken=1)) as connection:
        await connection.started()
        opened.set()
        await connection.over()

    assert [m.get("params", {}).get("progress") for m in connection.messages] == [1, None]


async def test_modern_slow_call_becomes_a_stream_with_comments() -> None:
    """However long a call takes, its response shows that it is alive."""
    go = asyncio.Event()

    @tool
    async def slow() -> str:
        await go.wait()
        return "done"

    client = Client(serving(slow, heartbeat=0.05))
    async with client.open(client.call("slow")) as connection:
        assert (await connection.event()).comment == ""
        assert (await connection.event()).comment == ""
        go.set()
        await connection.over()

    assert connection.is_stream
    assert len(connection.messages) == 1


async def test_modern_silence_leaves_a_json_client_alone() -> None:
    """Where no stream can be had, nothing breaks the silence."""
    go = asyncio.Event()
    waits = asyncio.Event()

    class Timed(Tool):
        name = "slow"

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            waits.set()
            await go.wait()
            return "done"

    client = Client(serving(Timed, heartbeat=0.01))
    async with client.open(client.call("slow"), headers=JSON_ONLY) as connection:
        await waits.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
        await connection.over()

    assert not connection.is_stream
    assert connection.json["result"]["content"][0]["text"] == "done"


async def test_modern_error_behind_progress_is_an_event() -> None:
    """An error after progress is an event on the stream: the status 200 was sent."""

    @tool
    async def fail(channel: Channel) -> str:
        await channel.progress(1)
        raise InvalidParams("no such town")

    client = Client(serving(fail))

    answer = await client.send(client.call("fail", progressToken=1))

    assert answer.status == 200
    assert answer.messages[1]["error"] == {"code": -32602, "message": "no such town"}


async def test_modern_log_messages_go_to_who_asks_for_them() -> None:
    """2026-07-28: log messages only where the request's `_meta` names a level."""

    @tool
    async def work(channel: Channel) -> str:
        await channel.log("debug", "quiet")
        await channel.log("warning", {"a": 1}, "worker")
        return "done"

    client = Client(serving(work))

    silent = await client.send(client.call("work"))
    told = await client.send(
        client.call("work", None, **{"io.modelcontextprotocol/logLevel": "info"})
    )

    assert not silent.is_stream
    (log, _) = told.messages
    assert log["params"] == {"level": "warning", "data": {"a": 1}, "logger": "worker"}


async def test_modern_discover_tells_versions_and_capabilities() -> None:
    """server/discover has every version, newest first, and the capabilities."""
    client = Client(serving(echo))

    answer = await client.send(client.request("server/discover"))

    result = answer.json["result"]
    assert result["supportedVersions"][0] == MODERN
    assert len(result["supportedVersions"]) == 5
    assert "tools" in result["capabilities"]
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "test"


async def test_modern_tools_are_listed() -> None:
    """tools/list carries the tools and how long the list may be kept."""
    client = Client(serving(echo, Book))

    result = (await client.send(client.request("tools/list"))).json["result"]

    assert [each["name"] for each in result["tools"]] == ["echo", "book"]
    assert (result["ttlMs"], result["cacheScope"]) == (0, "public")


@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/list",
        "prompts/get",
        "sampling/createMessage",
        "notifications/initialized",
        "no/such",
    ],
)
async def test_modern_unknown_methods_are_404(method: str) -> None:
    """-32601 with 404: methods of other revisions, not offered ones, and unknown ones."""
    client = Client(serving(echo))
    params = {"name": "x"} if method == "prompts/get" else None

    answer = await client.send(client.request(method, params, id="mine"))

    assert error_of(answer) == (404, -32601, "mine")
    assert method in answer.json["error"]["message"]
    assert answer.json["error"]["data"] == {"method": method}


async def test_modern_unknown_method_is_cut_in_the_response() -> None:
    """A name of a megabyte is not sent back twice."""
    client = Client(serving(echo))

    answer = await client.send(client.request("no/such" * 150_000))

    assert answer.status == 404
    assert len(answer.body) < 1000


async def test_modern_unknown_tool_is_an_error_that_names_it() -> None:
    """-32602, with the name of the tool."""
    client = Client(serving(echo))

    answer = await client.send(client.call("sing"))

    assert error_of(answer) == (200, -32602, 1)
    assert answer.json["error"]["data"] == {"name": "sing"}


async def test_modern_missing_arguments_are_an_empty_object() -> None:
    """A call without `arguments` is one with none of them."""
    client = Client(serving(report))

    answer = await client.send(client.request("tools/call", {"name": "report"}))

    assert answer.json["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("name", ["report", "book"])
async def test_modern_null_arguments_are_absent_ones(name: str) -> None:
    """Many clients write the members that they do not use. With headers of arguments, too."""
    client = Client(serving(report, Book))

    answer = await client.send(client.request("tools/call", {"name": name, "arguments": None}))
    absent = await client.send(client.request("tools/call", {"name": name}))

    assert not answer.json["result"].get("isError")
    assert answer.json == absent.json


async def test_modern_null_params_are_absent_ones() -> None:
    """A request lacks its `_meta` in both cases, which the error names."""
    client = Client(serving(echo))
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}

    absent = await client.send(request, headers=headers)
    null = await client.send({**request, "params": None}, headers=headers)

    assert (null.status, null.json) == (absent.status, absent.json)
    assert "_meta lacks" in null.json["error"]["message"]


async def test_modern_arguments_that_are_no_object_are_400() -> None:
    """-32602 with 400."""
    client = Client(serving(echo))

    answer = await client.send(client.request("tools/call", {"name": "echo", "arguments": [1]}))

    assert error_of(answer) == (400, -32602, 1)


async def test_modern_invalid_arguments_are_a_result_the_model_reads() -> None:
    """As SEP-1303 has it: a result with isError and the faults."""
    client = Client(serving(echo))

    answer = await client.send(client.call("echo", {"text": 1}))

    assert answer.json["result"]["isError"] is True
    assert "/text" in answer.json["result"]["content"][0]["text"]


@pytest.mark.parametrize("missing", ["protocolVersion", "clientCapabilities"])
async def test_modern_required_meta_is_required(missing: str) -> None:
    """-32602 with 400, which names the member."""
    client = Client(serving(echo))
    message = client.call("echo", {"text": "x"})
    del message["params"]["_meta"][f"io.modelcontextprotocol/{missing}"]

    answer = await client.send(message)

    assert error_of(answer) == (400, -32602, 1)
    assert missing in answer.json["error"]["message"]


async def test_modern_client_info_is_optional() -> None:
    """Who does not introduce itself is served."""
    client = Client(serving(echo))
    message = client.call("echo", {"text": "x"})
    del message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]

    assert (await client.send(message)).status == 200


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("mcp-method", None),
        ("mcp-method", "tools/list"),
        ("mcp-method", "TOOLS/CALL"),
        ("mcp-name", None),
        ("mcp-name", "sing"),
        ("mcp-name", "=?base64?!!!?="),
        ("mcp-protocol-version", None),
        ("mcp-protocol-version", "1999-01-01"),
    ],
)
async def test_modern_headers_must_say_what_the_body_says(header: str, value: str | None) -> None:
    """-32020 with 400, the request's own id, and the name of the header."""
    client = Client(serving(echo))

    answer = await client.send(client.call("echo", {"text": "x"}), headers={header: value})

    assert error_of(answer) == (400, -32020, 1)
    assert header in answer.json["error"]["message"].lower()


async def test_modern_name_may_come_in_base64() -> None:
    """An encoded Mcp-Name is decoded before it is compared."""
    client = Client(serving(echo))

    answer = await client.send(
        client.call("echo", {"text": "x"}), headers={"mcp-name": "=?base64?ZWNobw==?="}
    )

    assert answer.status == 200


async def test_modern_version_that_is_not_served_is_told_which_are() -> None:
    """-32022 with 400, when header and `_meta` agree on it."""
    client = Client(serving(echo))
    message = client.call("echo", {"text": "x"})
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01"

    answer = await client.send(message, headers={"mcp-protocol-version": "2099-01-01"})

    assert error_of(answer) == (400, -32022, 1)
    assert answer.json["error"]["data"]["requested"] == "2099-01-01"
    assert MODERN in answer.json["error"]["data"]["supported"]


async def test_modern_capability_that_is_missing_is_400() -> None:
    """-32021 with 400, and the missing capability."""

    @tool
    async def ask() -> str:
        raise MissingCapability({"sampling": {}})

    client = Client(serving(ask))

    answer = await client.send(client.call("ask"))

    assert error_of(answer) == (400, -32021, 1)
    assert answer.json["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}


async def test_modern_error_brings_its_own_headers() -> None:
    """A limit's response has a retry delay: in the header as well."""

    @tool
    async def busy() -> str:
        raise Overloaded("busy", retry_after=7)

    client = Client(serving(busy))

    answer = await client.send(client.call("busy"))

    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert answer.json["error"]["data"] == {"retryAfter": 7}


@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        ({}, {"region": "eu"}),
        ({"mcp-param-region": "us"}, {"region": "eu"}),
        ({"mcp-param-region": "eu"}, {}),
        ({"mcp-param-region": "=?base64?ZXU?="}, {"region": "eu"}),
        ({"mcp-param-region": "eü"}, {"region": "eü"}),
        ({"mcp-param-seats": "two"}, {"seats": 2}),
    ],
)
async def test_modern_mirrored_arguments_must_agree(
    headers: dict[str, str], arguments: dict[str, Any]
) -> None:
    """-32020 with 400, and the tool does not run."""
    book = Book()
    client = Client(serving(book))

    answer = await client.send(client.call("book", arguments), headers=headers)

    assert error_of(answer) == (400, -32020, 1)
    assert book.ran == 0


async def test_modern_mirrored_arguments_that_agree_are_served() -> None:
    """Integers are compared as numbers, texts may be encoded."""
    client = Client(serving(Book))

    answer = await client.send(
        client.call("book", {"region": "eü", "seats": 42}),
        headers={"mcp-param-region": "=?base64?ZcO8?=", "mcp-param-seats": "42.0"},
    )

    assert answer.json["result"]["content"][0]["text"] == "eü 42"


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/anything"])
async def test_modern_notifications_are_accepted(method: str) -> None:
    """202 with no body: none of them means anything over HTTP."""
    client = Client(serving(echo))

    answer = await client.send(client.notification(method, requestId=1))

    assert (answer.status, answer.body) == (202, b"")


async def test_modern_responses_are_refused() -> None:
    """2026-07-28, "Sending Messages", point 4: a client must not send them."""
    client = Client(serving(echo))

    answer = await client.send({"jsonrpc": "2.0", "id": 1, "result": {}})

    assert error_of(answer) == (400, -32600, None)


async def test_modern_batches_are_refused() -> None:
    """Batches exist in 2025-03-26 only."""
    client = Client(serving(echo))

    answer = await client.send([client.call("echo", {"text": "x"})])

    assert error_of(answer) == (400, -32600, None)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_modern_revision_has_only_post(method: str) -> None:
    """GET and DELETE are 405."""
    client = Client(serving(echo))

    answer = await client.send(method=method)

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE"])
async def test_other_http_methods_are_405(method: str) -> None:
    """The error for an unknown method names the known ones."""
    client = Client(serving(echo))

    answer = await client.send(method=method)

    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST, DELETE, OPTIONS")


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b'{"jsonrpc":"2.0","id":7,"method":', -32700, None),
        (b'"text"', -32600, None),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', -32600, 7),
        (b'{"id":"seven","method":"ping"}', -32600, "seven"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
        (b'{"jsonrpc":"2.0"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":' + b"[" * 99 + b"]" * 99 + b"}",
         -32600, 7),
        (b"\xff\xfe{}", -32700, None),
    ],
)  # fmt: skip
async def test_faulty_bodies_are_400_with_the_id_they_carry(
    body: bytes, code: int, id: Any
) -> None:
    """A malformed message is rejected with the request's own id wherever it can be read."""
    client = Client(serving(echo))

    answer = await client.send(body=[body])

    assert (400, code, id) == error_of(answer)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": None}, 415),
        ({"accept": "text/html"}, 406),
        ({"accept": "text/event-stream"}, 406),
        ({"origin": "https://evil.example"}, 403),
    ],
)
async def test_heads_that_are_refused_say_why(headers: dict[str, Any], status: int) -> None:
    """A refused head gets its status, and an error without an id."""
    client = Client(serving(echo))

    answer = await client.send(client.call("echo", {"text": "x"}), headers=headers)

    assert (status, -32600, None) == error_of(answer)


async def test_modern_session_id_is_ignored() -> None:
    """2026-07-28, "Earlier Streamable HTTP Revisions": a session id means nothing."""
    client = Client(serving(echo))

    answer = await client.send(
        client.call("echo", {"text": "x"}), headers={"mcp-session-id": "forged"}
    )

    assert answer.status == 200
    assert "mcp-session-id" not in answer.headers


async def test_modern_any_failure_of_a_hook_costs_one_call() -> None:
    """A reference in the response, the rest in the log; the server continues."""

    class Odd(Tool):
        name = "odd"

        def validate(self, request: ToolRequest, channel: Channel) -> Any:
            if request.arguments.get("validate"):
                raise KeyError("secret")
            return request

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            if request.arguments.get("tool"):
                raise ToolError("out of paper")
            if request.arguments.get("mcp"):
                raise McpError("odd", {"why": 1}, code=-32000, status=418)
            return object()

    client = Client(serving(Odd))

    broken = await client.send(client.call("odd", {"validate": True}))
    wrong = await client.send(client.call("odd"))
    told = await client.send(client.call("odd", {"tool": True}))
    chosen = await client.send(client.call("odd", {"mcp": True}))

    assert broken.json["result"]["isError"] is True
    assert "secret" not in broken.body.decode()
    assert error_of(wrong) == (500, -32603, 1)
    assert told.json["result"]["content"][0]["text"] == "out of paper"
    assert error_of(chosen) == (418, -32000, 1)
