"""The two endpoints of 2024-11-05."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import (
    Channel,
    ClientLogHandler,
    ConfigurationError,
    Endpoint,
    Limits,
    Mux,
    Security,
    Suite,
    Tool,
    ToolRequest,
    tool,
)
from genmcp.errors import StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Op
from tests.support.asgi import LEGACIES, MODERN, Client, Connection
from tests.support.serving import serve

OLD = "2024-11-05"


@tool
async def echo(text: str, channel: Channel) -> str:
    """Returns its argument."""
    await channel.log("info", f"saying {text}")
    channel.start_stream()
    channel.release()
    return f"{text} to {channel.client.info.name if channel.client.info else None}"


@tool
def in_thread() -> str:
    """Works in a thread."""
    return "done"


class Wait(Tool):
    """Waits until it is released."""

    name = "wait"

    def __init__(self, on_disconnect: Any = "finish") -> None:
        self.on_disconnect = on_disconnect
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        return "done"


def serving(*tools: Any, store: Any = None, **options: Any) -> Endpoint:
    limits = options.pop("limits", None)
    suite = Suite(name="test", version="1", tools=[echo, in_thread, *tools])
    mux = Mux(suite, store=store, limits=limits, secret="a secret that is long enough")
    return Endpoint(mux, **options)


def app_of(endpoint: Endpoint) -> Starlette:
    return Starlette(routes=[endpoint.sse_route("/sse")])


class Pair(Client):
    """A client of the pair: its requests are answered on its stream."""

    stream: Connection

    async def tell(self, message: Any) -> Any:
        """Send a request, and return the next message of the stream."""
        answer = await self.send(message)
        assert (answer.status, answer.body) == (202, b"")
        return await self.stream.message()


@asynccontextmanager
async def connected(app: Any, *, introduced: bool = True, **scope: Any) -> AsyncIterator[Pair]:
    """Open a stream at /sse, and shake hands."""
    pair = Pair(app, OLD, path="/sse", **scope)
    async with pair.open(method="GET", headers={"mcp-protocol-version": None}) as pair.stream:
        event = await pair.stream.event()
        assert event.name == "endpoint"
        path, _, query = event.data.partition("?")
        pair.scope |= {"path": path, "query_string": query.encode()}
        if introduced:
            await pair.tell(pair.initialize())
        yield pair


async def test_pair_answers_on_the_stream() -> None:
    """A POST is accepted; notifications and the answer are events, in order."""
    async with connected(app_of(serving())) as pair:
        said = await pair.tell(pair.call("echo", {"text": "hi"}, id=7))
        answer = await pair.stream.message()
        threaded = await pair.tell(pair.call("in_thread", id=8))

    assert said["params"]["data"] == "saying hi"
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "hi to test")
    assert threaded["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize(
    ("wanted", "agreed"),
    [(OLD, OLD), ("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"), (MODERN, LEGACIES[0])],
)
async def test_pair_negotiates_the_revision(wanted: str, agreed: str) -> None:
    """Titles and output schemas are not lost to a client that fell back to this transport."""

    class Titled(Tool):
        """Has features that 2024-11-05 lacks."""

        name = "titled"
        title = "A title"
        output_schema = {"type": "object"}

        async def call(self, request: ToolRequest, channel: Channel) -> dict[str, int]:
            return {"one": 1}

    async with connected(app_of(serving(Titled)), introduced=False) as pair:
        answer = await pair.tell(pair.initialize(protocolVersion=wanted))
        pair.version = agreed
        silent = await pair.send(pair.notification("notifications/initialized"))
        listed = await pair.tell(pair.request("tools/list", id=2))
        called = await pair.tell(pair.call("titled", id=3))

    assert agreed == answer["result"]["protocolVersion"]
    assert (silent.status, silent.body) == (202, b"")
    newer = agreed != OLD
    assert newer is ("title" in listed["result"]["tools"][-1])
    assert newer is ("outputSchema" in listed["result"]["tools"][-1])
    assert newer is ("structuredContent" in called["result"])


async def test_pair_is_off_unless_it_is_asked_for() -> None:
    """The endpoint itself opens no such stream."""
    answer = await Client(serving(), OLD).send(method="GET")

    assert answer.status == 405


def test_pair_route_begins_with_a_slash() -> None:
    """A path that cannot be matched is refused."""
    with pytest.raises(ConfigurationError, match="path of an endpoint begins with a slash"):
        serving().sse_route("sse")


@pytest.mark.parametrize("root", ["", "/api"])
async def test_pair_serves_the_official_client(root: str) -> None:
    """Over a real connection, under a mount as well: the URL it is given leads back."""
    endpoint = serving()
    routes: list[Any] = [endpoint.sse_route("/sse")]
    app = Starlette(routes=[Mount(root, routes=routes)] if root else routes)

    async with (
        serve(app) as url,
        sse_client(f"{url}{root}/sse") as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("echo", {"text": "hi"})

    assert result.content[0].text.startswith("hi to ")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/api", "/api/sse", "/api/sse"),
        ("/api", "/sse", "/api/sse"),
        ("/s", "/sse", "/s/sse"),
        ("", "//evil.example/sse", "/evil.example/sse"),
        ("", "/a b/sse", "/a%20b/sse"),
    ],
)
async def test_pair_names_a_path_of_this_host(root: str, path: str, expected: str) -> None:
    """With its mount path once, and never with another host."""
    pair = serving().sse_route("/sse").app
    client = Client(pair, OLD, root_path=root, path=path)

    async with client.open(method="GET") as stream:
        event = await stream.event()

    assert expected == event.data.partition("?")[0]


async def test_pair_sends_rejections_on_the_stream() -> None:
    """An unknown tool, an unknown method, and a `clientInfo` that is too large."""
    async with connected(app_of(serving())) as pair:
        unknown = await pair.tell(pair.call("nothing"))
        method = await pair.tell(pair.request("no/such", id=2))
        pair.asked[3] = "initialize"
        big = pair.initialize(clientInfo={"name": "x" * 5000, "version": "1"})
        large = await pair.tell(big)

    codes = [said["error"]["code"] for said in (unknown, method, large)]
    assert codes == [-32602, -32601, -32602]
    assert method["error"]["data"] == {"method": "no/such"}


async def test_pair_wants_to_be_introduced_first() -> None:
    """Before initialize, nothing else is answered."""
    async with connected(app_of(serving()), introduced=False) as pair:
        answer = await pair.tell(pair.call("echo", {"text": "hi"}))

    assert (
        answer["error"]["code"],
        answer["error"]["message"],
    ) == (-32600, "Send initialize first")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"body": [b"{"]}, 400),
        ({"body": [b"[]"]}, 400),
        ({"body": [b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]']}, 400),
        ({"body": [b'{"jsonrpc":"2.0","id":1,"result":{}}']}, 400),
        ({"body": [b"{}"], "headers": {"content-type": "text/plain"}}, 415),
        ({"body": [b" " * 2000]}, 413),
        ({"method": "DELETE"}, 405),
    ],
)
async def test_pair_rejects_bodies_that_are_not_messages(options: Any, status: int) -> None:
    """A request without a stream for its response gets an HTTP error."""
    async with connected(app_of(serving(limits=Limits(max_body_bytes=1000)))) as pair:
        answer = await pair.send(**options)

    assert status == answer.status


async def test_pair_refuses_sessions_that_are_not_open() -> None:
    """An invented session, none, that of another principal, and one without its stream."""
    app = app_of(serving(principal=lambda scope: scope.get("who")))
    async with connected(app, who="ada") as pair:
        query = pair.scope["query_string"]
        for given, who in ((b"session=made-up", "ada"), (b"", "ada"), (query, "eve")):
            pair.scope |= {"query_string": given, "who": who}
            assert (await pair.send(pair.call("in_thread"))).status == 404
        pair.scope |= {"query_string": query, "who": "ada"}

    assert (await pair.send(pair.call("in_thread"))).status == 404


async def test_pair_checks_who_comes_in() -> None:
    """Origin is judged on both endpoints; an allowed page may ask first."""
    security = Security(allowed_origins=["https://good.example"])
    app = app_of(serving(security=security))
    bad, good = {"origin": "https://evil.example"}, {"origin": "https://good.example"}

    async with connected(app) as pair:
        assert (await pair.send(method="GET", headers=bad)).status == 403
        assert (await pair.send(pair.call("in_thread"), headers=bad)).status == 403
        preflight = await pair.send(method="OPTIONS", headers=good)

    assert preflight.headers["access-control-allow-origin"] == "https://good.example"
    assert preflight.status == 204


async def test_pair_takes_a_place_among_the_streams() -> None:
    """Streams are as many as the limit allows, and a place is free again at the end of one."""
    app = app_of(serving(limits=Limits(max_streams=1)))

    async with connected(app) as pair:
        assert (await pair.send(method="GET")).status == 503
    async with connected(app):
        pass


async def test_pair_bounds_calls() -> None:
    """A call too many is answered with an error."""
    wait = Wait()
    async with connected(app_of(serving(wait, limits=Limits(max_waiting_calls=1)))) as pair:
        async with pair.open(pair.call("wait", id="first")) as first:
            await asyncio.wait_for(wait.begun.wait(), 5)
            refused = await pair.tell(pair.call("in_thread", id="second"))
            wait.go.set()
            await first.over()
        answer = await pair.stream.message()

    assert (refused["id"], refused["error"]["code"]) == ("second", -32603)
    assert answer["id"] == "first"


async def test_pair_answers_at_once_and_works_on() -> None:
    """The POST is accepted before the work is done; other calls are served meanwhile."""
    wait = Wait()
    async with connected(app_of(serving(wait))) as pair:
        async with pair.open(pair.call("wait", id="slow")) as slow:
            await slow.started()
            assert (slow.status, slow.complete) == (202, True)
            quick = await pair.tell(pair.call("in_thread", id="quick"))
            wait.go.set()
            await slow.over()
        answer = await pair.stream.message()

    assert (quick["id"], answer["id"]) == ("quick", "slow")


async def test_pair_cancels_a_call_of_its_client() -> None:
    """A cancelled call is not answered."""
    wait = Wait()
    async with connected(app_of(serving(wait))) as pair:
        async with pair.open(pair.call("wait", id="slow")) as slow:
            await asyncio.wait_for(wait.begun.wait(), 5)
            await pair.send(pair.notification("notifications/cancelled", requestId="slow"))
            await slow.over()
        after = await pair.tell(pair.call("in_thread", id="after"))

    assert wait.ended.is_set()
    assert after["id"] == "after"


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
async def test_pair_cancels_calls_at_a_disconnect_if_the_tool_does(on_disconnect: Any) -> None:
    """A tool continues unless `on_disconnect` is "cancel", as on every earlier revision."""
    wait = Wait(on_disconnect)
    async with connected(app_of(serving(wait))) as pair:
        call = pair.open(pair.call("wait"))
        await call.__aenter__()
        await asyncio.wait_for(wait.begun.wait(), 5)

    assert (on_disconnect == "cancel") is (await ends(wait))
    wait.go.set()
    await call.__aexit__()


async def ends(wait: Wait) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return wait.ended.is_set()


async def test_pair_ends_when_the_server_does() -> None:
    """The stream ends, calls are cancelled past the grace, and nothing is left running."""
    wait = Wait()
    endpoint = serving(wait, grace=0)
    async with connected(app_of(endpoint)) as pair, pair.open(pair.call("wait")) as call:
        await asyncio.wait_for(wait.begun.wait(), 5)
        await endpoint.aclose()
        await call.over()
        await pair.stream.over()

    assert wait.ended.is_set()


async def test_pair_works_across_processes_that_share_a_store() -> None:
    """The stream is here, the POST reaches another one."""
    store = MemoryStore()
    here, there = (app_of(serving(store=store)) for _ in range(2))

    async with connected(here) as pair:
        pair.app = there
        await pair.tell(pair.call("echo", {"text": "hi"}))
        answer = await pair.stream.message()

    assert answer["result"]["content"][0]["text"] == "hi to test"


async def test_pair_forwards_log_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ClientLogHandler finds the client here too, at the level its session set."""
    monkeypatch.setattr(ClientLogHandler, "created", False)
    logger = logging.getLogger("tests.pair")
    logger.setLevel(logging.INFO)
    handler = ClientLogHandler()
    logger.addHandler(handler)

    @tool
    async def log() -> str:
        """Logs."""
        logger.info("minor")
        logger.error("major")
        return "done"

    try:
        async with connected(app_of(serving(log))) as pair:
            await pair.tell(pair.request("logging/setLevel", {"level": "error"}))
            said = await pair.tell(pair.call("log"))
            answer = await pair.stream.message()
    finally:
        logger.removeHandler(handler)

    assert said["params"]["data"] == {"message": "major"}
    assert "result" in answer


async def test_pair_limits_the_rate_of_log_messages() -> None:
    """`logs_per_second` bounds a call here too; changes of lists are announced."""

    @tool
    async def chat(channel: Channel) -> str:
        """Logs twice."""
        channel.changes.resource_updated("note://today")
        for word in ("one", "two"):
            await channel.log("info", word)
        return "done"

    async with connected(app_of(serving(chat, limits=Limits(logs_per_second=100)))) as pair:
        began = asyncio.get_running_loop().time()
        said = [await pair.tell(pair.call("chat")), await pair.stream.message()]

    assert [each["params"]["data"] for each in said] == ["one", "two"]
    assert asyncio.get_running_loop().time() - began >= 0.01


async def test_pair_survives_a_store_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A message that cannot be encoded is logged; the next response is sent."""

    class Failing(MemoryStore):
        fails = False

        async def apply(self, *ops: Op) -> None:
            if self.fails and isinstance(ops[0], Append):
                self.fails = False
                raise StoreUnavailable("gone")
            await super().apply(*ops)

    store = Failing()
    async with connected(app_of(serving(store=store))) as pair:
        store.fails = True
        lost = await pair.send(pair.call("in_thread", id="lost"))
        answer = await pair.tell(pair.call("in_thread", id="next"))

    assert lost.status == 202
    assert answer["id"] == "next"
    assert "cannot be put on the stream" in caplog.text


async def test_ended_streams_take_no_place_of_ended_sessions() -> None:
    """A client that reconnects often can still end its sessions with DELETE."""
    endpoint = serving(limits=Limits(max_revoked_sessions_per_client=2))
    client = await Client.begin(endpoint, "2025-11-25", client=("10.0.0.1", 5000))
    for _ in range(5):
        async with connected(app_of(endpoint), client=("10.0.0.1", 5000)):
            pass

    assert (await client.send(client.request("ping"))).status == 200
    assert (await client.send(method="DELETE")).status == 204


async def test_session_of_an_ended_stream_is_gone_in_every_process() -> None:
    """The URL of the stream works for no POST, in whichever process the stream was."""
    store = MemoryStore()
    here, there = (app_of(serving(store=store)) for _ in range(2))
    async with connected(here) as pair:
        pass
    pair.app = there

    for message in (
        pair.call("in_thread"),
        pair.initialize(),
        pair.notification("notifications/x"),
    ):
        assert (await pair.send(message)).status == 404


async def test_started_process_knows_sessions_ended_before(tmp_path: Path) -> None:
    """A POST is judged by the ends that other processes stored, from the first one on."""
    path = tmp_path / "store.db"
    stores = [SQLiteStore(path), SQLiteStore(path)]
    here, there = (serving(store=store) for store in stores)
    async with connected(app_of(here)) as pair:
        client = Client(here, OLD)
        client.session = pair.scope["query_string"].decode().partition("=")[2]
        assert (await client.send(method="DELETE")).status == 204
        pair.app = app_of(there)
        assert (await pair.send(pair.call("in_thread"))).status == 404

    for endpoint, store in zip((here, there), stores, strict=True):
        await endpoint.aclose()
        await endpoint.mux.aclose()
        await store.aclose()
