"""The floor: a raw ASGI application that does only the work that a correct response requires.

It parses the same JSON-RPC body with msgspec, checks the routing headers, and sends the same bytes
as genmcp.
"""

import asyncio
import os
from typing import Any

import msgspec

JSON = [(b"content-type", b"application/json")]
EVENTS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
INFO = b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"benchmark","version":"1"}}'
HEAD = b'{"resultType":"complete",' + INFO


class Meta(msgspec.Struct):
    version: str | None = msgspec.field(
        name="io.modelcontextprotocol/protocolVersion", default=None
    )
    token: str | int | None = msgspec.field(name="progressToken", default=None)


class Params(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] = {}
    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)


class Request(msgspec.Struct):
    jsonrpc: str
    method: str
    id: int = 0
    params: Params = msgspec.field(default_factory=Params)


class Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Result(msgspec.Struct):
    content: list[Text]


released = asyncio.Event()
decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode


def tools(count: int) -> bytes:
    """Return the encoded result of tools/list."""
    schema = {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    }
    listed = [
        {"name": name, "inputSchema": schema, "description": "Returns its message."}
        for name in ["echo", *(f"echo_{number}" for number in range(1, count))]
    ]
    return HEAD + b',"tools":' + encode(listed) + b',"ttlMs":0,"cacheScope":"public"}'


TOOLS = tools(int(os.environ.get("TOOLS", "1")))


async def read(receive: Any) -> bytes:
    """Return the whole body."""
    message = await receive()
    body: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return body


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Serve tools/list, subscriptions, and the tools of the benchmark."""
    if scope["type"] != "http":
        return
    headers = dict(scope["headers"])
    request = decode(await read(receive))
    version = request.params.meta.version
    if version is not None and (
        headers.get(b"mcp-protocol-version") != version.encode()
        or headers.get(b"mcp-method") != request.method.encode()
        or headers.get(b"mcp-name", b"") != request.params.name.encode()
    ):
        raise ValueError("headers and body differ")
    legacy = version is None
    if request.method == "tools/list":
        result = TOOLS
    elif request.method == "initialize":
        result = b"{}"
    elif request.method == "subscriptions/listen":
        await listen(receive, send)
        return
    elif request.params.name == "progress":
        await progress(request, send)
        return
    else:
        result = await call(request.params, legacy=legacy)
    body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request.id, result)
    size = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON, size]})
    await send({"type": "http.response.body", "body": body})


async def call(params: Params, *, legacy: bool) -> bytes:
    """Return the result of a tool."""
    arguments = params.arguments
    if params.name == "sleep":
        await asyncio.sleep(arguments["seconds"])
        text = "slept"
    elif params.name == "wait":
        await released.wait()
        text = "released"
    elif params.name == "release":
        released.set()
        text = "released all"
    elif params.name == "count":
        text = str(len(arguments["numbers"]))
    else:
        text = arguments["message"]
    result = encode(Result([Text(text)]))
    return result if legacy else HEAD + b"," + result[1:]


async def listen(receive: Any, send: Any) -> None:
    """Acknowledge a subscription, and keep its stream open until the client disconnects."""
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
    note = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}}
    body = b"data: " + encode(note) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def progress(request: Request, send: Any) -> None:
    """Send the requested number of progress notifications, one event each."""
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
    for number in range(request.params.arguments["times"]):
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": request.params.meta.token, "progress": number},
        }
        body = b"event: message\ndata: " + encode(note) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)
    result = HEAD + b"," + encode(Result([Text("done")]))[1:]
    body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request.id, result)
    event = b"event: message\ndata: " + body + b"\n\n"
    await send({"type": "http.response.body", "body": event})
