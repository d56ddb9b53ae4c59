"""The client with real servers: ours, and third-party ones."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Accepted, Channel, Endpoint, Resource, Suite, Tool, ToolRequest, tool
from genmcp.client.client import Client
from genmcp.client.errors import (
    ConnectError,
    NotFound,
    ServerError,
    SessionEnded,
    Unauthorized,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.targets import Target
from genmcp.protocol.params import LoggingMessageNotificationParams
from tests.client.peer_servers import fastmcp, sdk
from tests.support.asgi import MODERN
from tests.support.serving import serve
from tests.support.speaking import VERSIONS

NEGOTIATED = [(None, MODERN), ("2025-11-25", "2025-11-25"), ("2025-03-26", "2025-03-26")]
# Resources that the peers themselves leave open.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:The logging capability"
    ),
]


class Sure(ClientHandler):
    """Confirms, and records log messages."""

    def __init__(self) -> None:
        self.logged: asyncio.Queue[Any] = asyncio.Queue()

    async def handle_log(self, message: LoggingMessageNotificationParams) -> None:
        self.logged.put_nowait(message.data)

    async def handle_elicitation_create(self, *_: Any) -> Any:
        return Accepted({"sure": True})


@asynccontextmanager
async def connected(
    target: Target, revision: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    async with asyncio.timeout(30):
        given = ClientOptions(revision=revision, **options)
        handler = Sure()
        async with Client(target, handler=handler, options=given) as client:
            yield client
            if given.log_level is not None:
                assert "It rains." in str(await handler.logged.get())


async def use(client: Client) -> None:
    """Everything both peers offer."""
    assert client.server_info is not None
    assert (client.server_info.name, client.instructions) == ("peer", "Be kind.")
    assert {each.name for each in await client.tools()} == {
        "add",
        "climb",
        "fail",
        "tell",
        "ask",
    }
    assert (await client.call("add", {"a": 1, "b": 2})).structured == {"result": 3.0}
    said: list[Any] = []
    await client.call("climb", progress=lambda *report: said.append(report))
    assert said == [(step, 3, f"step {step}") for step in (1, 2, 3)]
    assert (await client.call("fail")).is_error
    assert [each.uri for each in await client.resources()] == ["note://today"]
    assert [each.text for each in (await client.read("note://today")).contents] == ["Rain."]
    assert [each.uri_template for each in await client.templates()] == ["note://{day}/{hour}"]
    (held,) = (await client.read("note://monday/9")).contents
    assert held.text == "Sun at 9 on monday."
    with pytest.raises(ServerError):
        await client.read("note://nowhere")
    assert [each.name for each in await client.prompts()] == ["greet"]
    (message,) = (await client.prompt("greet", {"name": "Ann"})).messages
    assert message.content.text == "Say hello to Ann."  # type: ignore[union-attr]
    await client.ping()
    assert (await client.call("tell")).text == "told"
    if client.revision == "2025-11-25":  # on 2026-07-28 neither of them asks
        assert (await client.call("ask")).text == "accept: True"


@pytest.mark.parametrize(("told", "spoken"), NEGOTIATED)
@pytest.mark.parametrize(
    "app", [lambda: sdk().streamable_http_app(), lambda: fastmcp().http_app()], ids=["sdk", "fast"]
)
async def test_client_uses_servers_of_others_over_http(
    app: Callable[[], Any], told: str | None, spoken: str
) -> None:
    """The official SDK's and FastMCP's, on both eras."""
    async with serve(app()) as url, connected(f"{url}/mcp", told, log_level="info") as client:
        assert client.revision == spoken
        await use(client)


@pytest.mark.parametrize(
    "app",
    [lambda: sdk().sse_app(), lambda: fastmcp().http_app(transport="sse")],
    ids=["sdk", "fast"],
)
async def test_client_uses_a_server_of_2024_over_http(app: Callable[[], Any]) -> None:
    """Where the endpoint takes no POST, HTTP+SSE of 2024-11-05 is tried."""
    async with serve(app()) as url, connected(f"{url}/sse") as client:
        await use(client)


@pytest.mark.parametrize(("told", "spoken"), NEGOTIATED)
@pytest.mark.parametrize("peer", ["sdk", "fastmcp"])
async def test_client_uses_servers_of_others_over_stdio(
    peer: str, told: str | None, spoken: str
) -> None:
    """The same over the standard streams of a process."""
    command = Command(sys.executable, ["-m", "tests.client.peer_servers", peer])
    async with connected(command, told) as client:
        assert client.revision == spoken
        await use(client)


@tool
async def add(a: float, b: float) -> float:
    """Adds."""
    return a + b


def suite() -> Suite:
    note = Resource("note://today", "Rain.", name="today")
    return Suite(name="ours", version="1", tools=[add], resources=[note])


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_uses_ours_over_http(revision: str) -> None:
    """Our own server, on every revision, over a socket."""
    async with serve(Endpoint(suite())) as url, connected(url, revision) as client:
        assert client.revision == revision
        results = [client.call("add", {"a": n, "b": 1}) for n in range(20)]
        assert [result.text for result in await asyncio.gather(*results)] == [
            str(float(n + 1)) for n in range(20)
        ]


async def test_client_begins_a_session_anew() -> None:
    """A session the server does not know any more is begun again, and the calls sent again."""
    endpoints = [Endpoint(suite()), Endpoint(suite())]  # each has a secret of its own
    begun = 0

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await endpoints[0](scope, receive, counting(send))

    def counting(send: Any) -> Any:
        async def counted(message: Any) -> None:
            nonlocal begun
            begun += any(name == b"mcp-session-id" for name, _ in message.get("headers", ()))
            await send(message)

        return counted

    async with serve(host) as url, connected(url, "2025-11-25") as client:
        await client.tools()
        assert begun == 1
        endpoints.reverse()
        calls = [client.call("add", {"a": n, "b": 1}) for n in range(3)]
        assert [result.text for result in await asyncio.gather(*calls)] == ["1.0", "2.0", "3.0"]
        assert begun == 2


async def test_subscription_ends_with_the_session_that_kept_it() -> None:
    """A subscriber learns that the next session has no subscriptions."""
    endpoints = [Endpoint(suite()), Endpoint(suite())]

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await endpoints[0](scope, receive, send)

    async with serve(host) as url, connected(url, "2025-11-25") as client:
        async with client.subscribe("note://today") as changes, client.listen(tools=True):
            endpoints.reverse()
            await client.tools()
            with pytest.raises(SessionEnded):
                await anext(changes)
        async with client.subscribe("note://today") as changes:
            assert changes.honored.resource_subscriptions == ["note://today"]


async def test_client_says_that_nobody_listens(free_port: int) -> None:
    """A refused connection is an error of its own."""
    with pytest.raises(ConnectError, match="is the server running"):
        async with connected(f"http://127.0.0.1:{free_port}/mcp"):
            pass


@pytest.mark.parametrize(("status", "error"), [(401, Unauthorized), (404, NotFound)])
async def test_client_says_why_a_server_does_not_answer(
    status: int, error: type[Exception]
) -> None:
    """401 and 404 are errors of their own."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})

    async with serve(refuse) as url:
        with pytest.raises(error):
            async with connected(url):
                pass


async def test_client_sends_the_headers_it_is_given() -> None:
    """Headers of the options go with every request."""
    seen: list[bytes | None] = []
    endpoint = Endpoint(suite())

    async def host(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization"))
        await endpoint(scope, receive, send)

    headers = {"authorization": "Bearer 1"}
    async with serve(host) as url, Client(url, headers=headers) as client:
        await client.tools()
    assert seen
    assert set(seen) == {b"Bearer 1"}


class Where(Tool):
    """Returns the place."""

    name = "where"
    input_schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "x-mcp-header": "City"}},
    }

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return str(request.arguments["city"])


async def test_client_calls_a_tool_whose_arguments_are_mirrored() -> None:
    """A tool that was not listed yet is looked up, so that its headers go along."""
    suite = Suite(name="s", version="1", tools=[Where])
    async with serve(Endpoint(suite)) as url, connected(url) as client:
        assert (await client.call("where", {"city": "Zürich"})).data == "Zürich"


async def test_client_looks_again_when_a_tool_has_other_headers_now() -> None:
    """A call that is refused for its headers has not run: it is sent again with the right ones."""

    class Plain(Where):
        input_schema = {"type": "object"}

    suite = Suite(name="s", version="1", tools=[Plain])
    async with serve(Endpoint(suite)) as url, connected(url) as client:
        assert len(await client.tools()) == 1
        suite.remove("where")
        suite.add(Where)
        assert (await client.call("where", {"city": "Rome"})).data == "Rome"
