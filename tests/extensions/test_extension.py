"""Extensions of users: typed methods, notifications, declarations, and what they add to results."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from genmcp import (
    Client,
    ClientHandler,
    ConfigurationError,
    Endpoint,
    InvalidParams,
    Middleware,
    ServerError,
    Suite,
    tool,
)
from genmcp.channel import Channel
from genmcp.client.errors import ProtocolError
from genmcp.client.options import ClientOptions
from genmcp.core.request import Request
from genmcp.extensions import (
    Extended,
    Extension,
    Method,
    NotificationParams,
    PaginatedRequestParams,
    PaginatedResult,
    RequestParams,
    Result,
)
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.tools import CallToolResult
from genmcp.server import Server
from genmcp.testing import connect

NAME = "com.example/stock"
LEVELS = {"bolt": 7, "nut": 0, "gear": 2}


class LevelParams(RequestParams):
    part_name: str


class LevelResult(Result):
    in_stock: int


class PartsParams(PaginatedRequestParams):
    starting: str = ""


class PartsResult(PaginatedResult):
    parts: list[str]


class LowParams(NotificationParams):
    part_name: str


LEVEL = Method("stock/level", LevelParams, LevelResult)
PARTS = Method("stock/parts", PartsParams, PartsResult)
LOW = Method("notifications/stock/low", LowParams, sender="server")


class Stock(Extension):
    name = NAME
    methods: Sequence[Method] = (LEVEL, PARTS, LOW)

    async def handle(self, request: Request, channel: Channel) -> Result:
        match request.params:
            case LevelParams(part_name=part):
                if part not in LEVELS:
                    raise InvalidParams(f"no part {part}")
                if not LEVELS[part]:
                    await channel.notify("notifications/stock/low", LowParams(part_name=part))
                return LevelResult(in_stock=LEVELS[part])
            case PartsParams(starting=start, cursor=cursor):
                parts = sorted(name for name in LEVELS if name.startswith(start))
                at = int(cursor or 0)
                following = str(at + 1) if at + 1 < len(parts) else None
                options: Any = {"ttl_ms": 0, "cache_scope": "private", "next_cursor": following}
                return PartsResult(parts=parts[at : at + 1], **options)
            case other:
                raise AssertionError(other)


class Told(ClientHandler):
    """Collects the notifications that no other hook takes."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def handle_notification(self, method: str, params: Any) -> None:
        self.told.append((method, params))


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


SUITE = Suite("parts", tools=[add], extensions=[Stock()])


def client_of(server: Server, *extensions: Extension, revision: str | None = None) -> Client:
    return Client(Endpoint(server), extensions=extensions, options=ClientOptions(revision=revision))


@pytest.mark.parametrize("revision", REVISIONS)
async def test_extension_methods_are_typed_on_both_sides(revision: str) -> None:
    """SEP-2133: `extensions` of the capabilities is a member of every revision."""
    async with client_of(SUITE, Stock(), revision=revision) as client:
        assert (client.capabilities.extensions or {}).get(NAME) == {}
        level = await client.request("stock/level", LevelParams(part_name="bolt"))
        plain = await client.request("stock/level", {"partName": "gear"})
        assert (await client.call("add", {"a": 1, "b": 2})).text == "3"
        assert [each.name for each in await client.tools()] == ["add"]

    assert [level, plain.in_stock] == [LevelResult(in_stock=7, meta=level.meta), 2]


async def test_extension_result_of_another_client_is_json() -> None:
    """A client that does not know the extension may send its methods nevertheless."""
    async with connect(SUITE) as client:
        result = await client.request("stock/level", {"partName": "bolt"})

    assert result["inStock"] == 7


async def test_extension_errors_reach_the_client() -> None:
    """Its own errors, params of another shape, and methods that it does not have."""
    async with client_of(SUITE, Stock()) as client:
        codes = []
        requests: Sequence[tuple[str, Mapping[str, Any]]] = [
            ("stock/level", {"partName": "no"}),
            ("stock/level", {"part": 1}),
            ("stock/else", {}),
            ("notifications/stock/low", {"partName": "bolt"}),
        ]
        for method, params in requests:
            with pytest.raises(ServerError) as caught:
                await client.request(method, params)
            codes.append(caught.value.code)

    assert codes == [-32602, -32602, -32601, -32601]


async def test_extension_pages_have_sealed_cursors() -> None:
    """A cursor of another list, or a forged one, is rejected before the extension sees it."""
    async with client_of(SUITE, Stock()) as client:
        first = await client.request("stock/parts", PartsParams())
        second = await client.request("stock/parts", PartsParams(cursor=first.next_cursor))
        with pytest.raises(ServerError, match="Invalid cursor"):
            await client.request("stock/parts", PartsParams(cursor="1"))

    assert [first.parts, second.parts] == [["bolt"], ["gear"]]


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_extension_notifications_are_typed(revision: str) -> None:
    """They arrive with the response to the request that they belong to."""
    handler = Told()
    options = ClientOptions(revision=revision)
    async with Client(Endpoint(SUITE), handler=handler, extensions=[Stock()], options=options) as c:
        await c.request("stock/level", LevelParams(part_name="nut"))

    assert handler.told == [("notifications/stock/low", LowParams(part_name="nut"))]


class Low(Stock):
    """Notifies with params of another shape than the client expects."""

    methods: Sequence[Method] = (
        LEVEL,
        Method("notifications/stock/low", NotificationParams, sender="server"),
    )

    async def handle(self, request: Request, channel: Channel) -> Result:
        await channel.notify("notifications/stock/low", NotificationParams())
        return Result()


async def test_extension_of_another_shape_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A faulty server costs its client one call; a faulty notification is dropped and logged."""
    handler = Told()
    async with Client(
        Endpoint(Suite("s", extensions=[Low()])), handler=handler, extensions=[Stock()]
    ) as c:
        with pytest.raises(ProtocolError, match="inStock"):
            await c.request("stock/level", LevelParams(part_name="nut"))

    assert handler.told == []
    assert "notifications/stock/low is dropped" in caplog.text


class Needed(Stock):
    """Rejects clients that did not declare it, and returns the settings of others."""

    required = True
    settings: Mapping[str, Any] = {"unit": "piece"}

    async def handle(self, request: Request, channel: Channel) -> Result:
        return LevelResult(in_stock=self.require(channel)["most"])


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_extension_that_is_required_must_be_declared(revision: str) -> None:
    """-32021 names the extension; a client that declares it gets the result."""
    suite = Suite("s", extensions=[Needed()])
    declared = Extension(NAME, settings={"most": 5}, methods=[LEVEL])
    params = LevelParams(part_name="bolt")

    async with client_of(suite, revision=revision) as client:
        assert client.capabilities.extensions == {NAME: {"unit": "piece"}}
        with pytest.raises(ServerError) as caught:
            await client.request("stock/level", params)
    async with client_of(suite, declared, revision=revision) as client:
        result = await client.request("stock/level", params)

    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"extensions": {NAME: {}}}}
    assert result.in_stock == 5


async def test_extension_may_be_required_by_one_hook() -> None:
    """`require` in a tool, for an extension whose methods need no declaration."""
    stock = Stock()

    @tool
    async def order(channel: Channel) -> str:
        """Orders."""
        stock.require(channel)
        return "ordered"

    suite = Suite("s", tools=[order], extensions=[stock])
    async with client_of(suite) as client:
        with pytest.raises(ServerError) as caught:
            await client.call("order")
    async with client_of(suite, stock) as client:
        assert (await client.call("order")).data == "ordered"

    assert caught.value.code == -32021


class Marked(Extension):
    """Adds a member of `_meta` to each result for a client that declares it."""

    name = "com.example/marked"

    def extend(self, request: Request, result: Result, channel: Channel) -> Result:
        if self.declared_by(channel.client) is None:
            return result
        return msgspec.structs.replace(
            result, meta={**(result.meta or {}), self.name: request.method}
        )


@tool
async def asks(channel: Channel) -> str:
    """Has a component of an extension."""
    return "an answer"


class Bringing(Extension):
    """Has a tool."""

    name = "com.example/bringing"
    tools = (asks,)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_extension_adds_to_results_and_lists(wrapped: bool) -> None:
    """Only for clients that declared it, and the components for all."""
    marked = Marked()
    server: Server = Suite(
        "s", tools=[add], extensions=[Bringing(), *([] if wrapped else [marked])]
    )
    if wrapped:
        server = Extended(server, marked)
    async with client_of(server, marked) as client:
        result = await client.call("add", {"a": 1, "b": 2})
        assert [each.name for each in await client.tools()] == ["add", "asks"]
        listed = await client.request("tools/list")
    async with client_of(server) as client:
        plain = await client.call("add", {"a": 1, "b": 2})

    assert (result.meta or {})[marked.name] == "tools/call"
    assert listed.meta[marked.name] == "tools/list"
    assert marked.name not in (plain.meta or {})


class Wrong(Extension):
    """Returns what is no result."""

    name = "com.example/wrong"
    methods = (LEVEL,)

    async def handle(self, request: Request, channel: Channel) -> Any:
        return None

    def extend(self, request: Request, result: Result, channel: Channel) -> Any:
        return None if isinstance(result, CallToolResult) else result


async def test_extension_must_return_results(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the reference of the log entry, which names the extension."""
    async with connect(Suite("s", tools=[add], extensions=[Wrong()])) as client:
        with pytest.raises(ServerError, match="Internal error"):
            await client.request("stock/level", {"partName": "bolt"})
        with pytest.raises(ServerError, match="Internal error"):
            await client.call("add", {"a": 1, "b": 2})

    assert "handle must return a Result" in caplog.text
    assert "extend must return a CallToolResult" in caplog.text


class Seen(Middleware):
    """Records the methods that it forwards."""

    def __init__(self, inner: Server) -> None:
        super().__init__(inner)
        self.methods_seen: list[str] = []

    async def handle(self, request: Request, channel: Channel) -> Any:
        self.methods_seen.append(request.method)
        return await super().handle(request, channel)


async def test_extension_methods_pass_through_middleware() -> None:
    """A middleware that guards or measures requests must not be bypassed."""
    seen = Seen(SUITE)
    async with client_of(Seen(Extended(seen, Marked())), Stock()) as client:
        level = await client.request("stock/level", LevelParams(part_name="bolt"))
        parts = await client.request("stock/parts", PartsParams())

    assert [level.in_stock, parts.parts] == [7, ["bolt"]]
    assert seen.methods_seen == ["stock/level"]


class Own(Middleware):
    """A method without types, added by hand, as docs/how-to/custom-server.md describes."""

    @property
    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(tools=self.inner.capabilities.tools)

    @property
    def methods(self) -> Any:
        return {*self.inner.methods, "shop/echo", "roots/list", "sampling/createMessage"}

    async def handle(self, request: Request, channel: Channel) -> Any:
        if request.method == "shop/echo":
            given = msgspec.json.decode(request.raw)["given"]
            return Result(meta={"com.example/given": given})
        return await super().handle(request, channel)


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_server_method_of_its_own_reaches_its_handler(revision: str) -> None:
    """A method that no revision has; those of another revision or side stay unknown."""
    async with connect(Own(SUITE), revision=revision) as client:
        result = await client.request("shop/echo", {"given": [1, 2]})
        with pytest.raises(ServerError) as caught:
            await client.request("shop/other", {})

    assert result["_meta"]["com.example/given"] == [1, 2]
    assert caught.value.code == -32601


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "named by a prefix"),
        ({"name": "stock"}, "named by a prefix"),
        ({"name": "/stock"}, "named by a prefix"),
        ({"name": "com.example/"}, "named by a prefix"),
        ({"name": "com..example/stock"}, "named by a prefix"),
        ({"name": "com.example/stock\n"}, "named by a prefix"),
        ({"name": "com.éxample/stock"}, "named by a prefix"),
        ({"name": "io.modelcontextprotocol/tasks"}, "served for any tool"),
        ({"name": NAME, "settings": [1]}, "settings must be an object"),
        ({"name": NAME, "settings": {"a": object()}}, "settings must be an object"),
        ({"name": NAME, "methods": ["stock/level"]}, "no method of an extension"),
        (
            {"name": NAME, "methods": [Method("tools/call", RequestParams, Result)]},
            "no method of an extension",
        ),
        (
            {"name": NAME, "methods": [Method("stock/a", RequestParams, Result, routed=True)]},
            "no method of an extension",
        ),
    ],
)
def test_extension_that_is_invalid_is_rejected(given: Any, text: str) -> None:
    """A name that clashes with the protocol, and settings that are no JSON, at construction."""
    with pytest.raises(ConfigurationError, match=text):
        Extension(**given)


@pytest.mark.parametrize(
    ("extensions", "text"),
    [
        ([Stock(), Extension(NAME)], f"two extensions have {NAME}"),
        ([Stock(), Extension("com.example/b", methods=[LEVEL])], "two extensions have stock/level"),
        (["com.example/stock"], "is not an Extension"),
        (Stock(), "must be a list"),
        ([Stock], "is not an Extension"),
    ],
)
def test_extensions_that_clash_are_rejected(extensions: Any, text: str) -> None:
    """By a suite and by a client, when it is made."""
    with pytest.raises(ConfigurationError, match=text):
        Suite("s", extensions=extensions)
    with pytest.raises(ConfigurationError, match=text):
        Client("http://localhost:1/mcp", extensions=extensions)


def test_extension_components_need_a_suite() -> None:
    """A server of one's own routes its components itself."""
    with pytest.raises(ConfigurationError, match="give it to a Suite"):
        Extended(SUITE, Bringing())


async def test_extension_without_a_handler_fails_its_call() -> None:
    """The value that a client declares is no server; the error is in the log."""
    async with connect(Suite("s", extensions=[Extension(NAME, methods=[LEVEL])])) as client:
        with pytest.raises(ServerError, match="Internal error"):
            await client.request("stock/level", {"partName": "bolt"})
