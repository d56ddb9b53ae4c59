"""Extensions of servers behind a hub or registry reach its clients, merged as tools are."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp import (
    Channel,
    Client,
    ClientHandler,
    Endpoint,
    Hub,
    InvalidParams,
    Registry,
    Server,
    ServerConfig,
    ServerError,
    Suite,
    tool,
)
from genmcp.client.options import ClientOptions
from genmcp.extensions import (
    Extension,
    Method,
    NotificationParams,
    PaginatedRequestParams,
    PaginatedResult,
    RequestParams,
    Result,
    Skills,
)
from genmcp.extensions.skill_entries import SKILLS
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.client_features import ListRootsRequestParams
from genmcp.protocol.params import LoggingMessageNotificationParams
from genmcp.server import Request

SKILL = "---\nname: {0}\ndescription: About {0}.\n---\nDo {1}.\n"


class PartsResult(PaginatedResult):
    parts: list[dict[str, str]]


class PartParams(RequestParams):
    uri: str


class Level(Result):
    level: int
    by: str


class Stock(Extension):
    """Parts of a member, two pages of them, and their levels."""

    name = "com.example/stock"
    methods: Sequence[Method] = (
        Method("stock/list", PaginatedRequestParams, PartsResult),
        Method("stock/level", PartParams, Level),
    )

    def __init__(self, member: str, **levels: int) -> None:
        super().__init__(settings={"by": member, "exact": member == "far"})
        self.member = member
        self.levels = {f"part://{name}": level for name, level in levels.items()}

    async def handle(self, request: Request, channel: Channel) -> Result:
        match request.params:
            case PaginatedRequestParams(cursor=cursor):
                uris = [*self.levels]
                at = int(cursor or 0)
                options: Any = {"ttl_ms": 0, "cache_scope": "private"}
                following = str(at + 1) if at + 1 < len(uris) else None
                parts = [{"uri": uri, "by": self.member} for uri in uris[at : at + 1]]
                return PartsResult(parts=parts, next_cursor=following, **options)
            case PartParams(uri=uri) if uri in self.levels:
                return Level(level=self.levels[uri], by=self.member)
        raise InvalidParams("no such part")


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(SKILL.format(name, text))
    (folder / name / "notes.md").write_text(f"Notes of {text}.\n")


@pytest.fixture
def suites(tmp_path: Path) -> Mapping[str, Suite]:
    """Two servers with skills and stock, some of it their own, and a plain one."""
    for member in ("near", "far"):
        write(tmp_path / member, "shared", member)
        write(tmp_path / member, f"only-{member}", member)
    near = [Skills(tmp_path / "near"), Stock("near", bolt=1, nut=2)]
    far = [Skills(tmp_path / "far"), Stock("far", nut=3, gear=4)]
    return {
        "near": Suite("near", extensions=near),
        "plain": Suite("plain"),
        "far": Suite("far", extensions=far),
    }


@asynccontextmanager
async def composite(kind: str, suites: Mapping[str, Server]) -> AsyncIterator[Server]:
    if kind == "registry":
        registry = Registry()
        for name, suite in suites.items():
            registry.add(suite, name=name)
        yield registry.server()
        return
    async with Hub() as hub:
        server = hub.server()
        for name, suite in suites.items():
            await hub.add(ServerConfig(name, target=suite))
        yield server


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_extensions_of_members_are_passed_on(
    kind: str, revision: str, suites: Mapping[str, Suite]
) -> None:
    """Declared, listed from all, and found by URI; of two with one URI, that of the first."""
    async with composite(kind, suites) as server:
        options = ClientOptions(revision=revision)
        async with Client(Endpoint(server), options=options) as client:
            declared = {**(client.capabilities.extensions or {})}
            declared.pop(TASKS, None)
            skills = {skill.name: skill for skill in await client.skills()}
            texts = [await skill.load() for skill in skills.values()]
            notes = await skills["only-far"].read("notes.md")
            folder = await skills["only-far"].folder()
            first = await client.request("stock/list")
            second = await client.request("stock/list", {"cursor": first["nextCursor"]})
            third = await client.request("stock/list", {"cursor": second["nextCursor"]})
            levels = [
                await client.request("stock/level", {"uri": f"part://{name}"})
                for name in ("bolt", "nut", "gear")
            ]

    assert declared == {
        SKILLS: {"directoryRead": True},
        "com.example/stock": {"by": "near", "exact": True},
    }
    assert list(skills) == ["only-near", "shared", "only-far"]
    assert texts == [
        SKILL.format(name, member)
        for name, member in [("only-near", "near"), ("shared", "near"), ("only-far", "far")]
    ]
    assert notes == b"Notes of far.\n"
    assert [each.name for each in folder] == ["only-far", "notes.md"]
    parts = [[each["uri"][7:] for each in page["parts"]] for page in (first, second, third)]
    assert parts == [["bolt"], ["nut"], ["gear"]]
    assert [(each["level"], each["by"]) for each in levels] == [
        *((1, "near"), (2, "near"), (4, "far"))
    ]


@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_errors_of_members_are_passed_on(kind: str, suites: Mapping[str, Suite]) -> None:
    """Of a method that no member has, params that none accepts, and cursors of no list."""
    requests: list[tuple[str, dict[str, Any]]] = [
        ("stock/else", {}),
        ("else/list", {}),
        ("stock/level", {"uri": "part://none"}),
        ("stock/level", {}),
        ("stock/list", {"cursor": "gone\n1"}),
        ("stock/list", {"cursor": 1}),
        ("skills/get", {"uri": "skill://none/SKILL.md"}),
    ]
    codes = []
    async with composite(kind, suites) as server, Client(server) as client:
        for method, params in requests:
            with pytest.raises(ServerError) as caught:
                await client.request(method, params)
            codes.append(caught.value.code)

    assert codes == [-32601, -32601, *[-32602] * 5]


@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_members_without_extensions_add_no_methods(kind: str) -> None:
    """The composite declares what it did, and knows no method that it did not."""
    async with composite(kind, {"plain": Suite("plain")}) as server, Client(server) as client:
        assert client.capabilities.extensions == {TASKS: {}}
        assert await client.skills() == []
        with pytest.raises(ServerError) as caught:
            await client.request("skills/list")

    assert caught.value.code == -32601


class Pretender(Extension):
    """Declares the extension of another member, and answers all that it is asked."""

    name = SKILLS
    methods = tuple(
        Method(name, RequestParams, Level)
        for name in ("skills/list", "skills/get", "resources/directory/read")
    )

    def __init__(self) -> None:
        super().__init__(settings={"directoryRead": False})
        self.asked: list[str] = []

    async def handle(self, request: Request, channel: Channel) -> Result:
        self.asked.append(request.method)
        return Level(level=0, by="pretender")


@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_member_cannot_take_over_an_extension(kind: str, suites: Mapping[str, Suite]) -> None:
    """It comes after the members that were added before it, and gets no method of another one."""
    pretender = Pretender()
    members = {**suites, "pretender": Suite("pretender", extensions=[pretender])}
    async with composite(kind, members) as server, Client(server) as client:
        assert (client.capabilities.extensions or {})[SKILLS] == {"directoryRead": True}
        names = [skill.name for skill in await client.skills()]
        loaded = await (await client.skill("skill://only-far/SKILL.md")).load()
        level = await client.request("stock/level", {"uri": "part://gear"})

    assert names == ["only-near", "shared", "only-far"]
    assert loaded == SKILL.format("only-far", "far")
    assert level["by"] == "far"
    assert pretender.asked == ["skills/list"]


@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_pages_of_extensions_are_bounded_as_those_of_tools(
    kind: str, suites: Mapping[str, Suite]
) -> None:
    """A page ends after the member with which it has enough; the next one begins at another."""
    async with composite(kind, suites) as server:
        server.page_size = 1  # type: ignore[attr-defined]
        async with Client(server) as client:
            first = await client.request("skills/list")
            second = await client.request("skills/list", {"cursor": first["nextCursor"]})

    pages = [[each["uri"] for each in page["skills"]] for page in (first, second)]
    assert [sorted(uris) for uris in pages] == [
        [f"skill://{name}/SKILL.md" for name in names]
        for names in (["only-near", "shared"], ["only-far", "shared"])
    ]
    assert "nextCursor" not in second


class Slow(Stock):
    """Never lists its parts."""

    async def handle(self, request: Request, channel: Channel) -> Result:
        await asyncio.Event().wait()
        raise AssertionError("it was cancelled")


async def test_slow_member_is_left_out_of_a_list(caplog: pytest.LogCaptureFixture) -> None:
    """The log says after which time, and how the limit is called."""
    slow = Suite("slow", extensions=[Slow("slow", nut=1)])
    near = Suite("near", extensions=[Stock("near", bolt=1)])
    registry = Registry([slow, near], list_timeout=0.05)
    async with Client(registry.server()) as client:
        page = await client.request("stock/list")

    assert [each["uri"] for each in page["parts"]] == ["part://bolt"]
    left_out = "server slow left out of stock/list: it took longer than 0.05 s (list_timeout)"
    assert left_out in caplog.text


class Administration(Extension):
    """Has methods beside those of the extension that it declares."""

    name = "com.example/stock"
    methods = tuple(
        Method(name, RequestParams, Level)
        for name in (
            *("stock/count", "com.example/stock/count", "admin/shutdown", "stocks/all", "stock"),
            *("tasks/list", "tasks/result", "resources/purge", "sampling/all"),
            *("resources/directory/read", "skills/list"),
        )
    )

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def handle(self, request: Request, channel: Channel) -> Result:
        self.asked.append(request.method)
        return Level(level=1, by="far")


async def test_hub_forwards_methods_of_declared_extensions_only() -> None:
    """Its credentials would open others of the server, and of the protocol, to any client."""
    far = Administration()
    counted, refused = [], []
    suites = {"far": Suite("far", extensions=[far])}
    async with composite("hub", suites) as server, Client(server) as client:
        for method in far.methods:
            try:
                counted.append((await client.request(method.name))["by"])
            except ServerError as error:
                refused.append((method.name, error.code))

    allowed = ["stock/count", "com.example/stock/count"]
    assert far.asked == allowed
    assert counted == ["far", "far"]
    assert refused == [(each.name, -32601) for each in far.methods[2:]]


@pytest.mark.parametrize("name", ["com.example/tasks", "tasks/tools", "com.example/resources"])
async def test_extension_named_as_the_protocol_has_no_methods(name: str) -> None:
    """A server cannot make a hub forward what belongs to the protocol by such a name."""
    far = Administration()
    far.name = name
    suites = {"far": Suite("far", extensions=[far])}
    async with composite("hub", suites) as server, Client(server) as client:
        for method in ("tasks/list", "resources/purge"):
            with pytest.raises(ServerError) as caught:
                await client.request(method)
            assert caught.value.code == -32601
    assert far.asked == []


class LowParams(NotificationParams):
    uri: str
    left: int


class Telling(Stock):
    """Sends a notification before each level, and adds `_meta` to each result and page."""

    methods: Sequence[Method] = (
        *Stock.methods,
        Method("notifications/stock/low", LowParams, sender="server"),
    )

    async def handle(self, request: Request, channel: Channel) -> Result:
        if isinstance(request.params, PartParams):
            await channel.log("warning", "low")
            await channel.notify("notifications/stock/low", LowParams(request.params.uri, left=1))
        result = await super().handle(request, channel)
        return replace(result, meta={"com.example/by": self.member, self.member: 1})

    def extend(self, request: Request, result: Result, channel: Channel) -> Result:
        return replace(result, meta={"com.example/by": self.member, self.member: 1})


class Buyer(ClientHandler):
    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []

    async def handle_log(self, message: LoggingMessageNotificationParams) -> None:
        self.got.append(("log", message.data))

    async def handle_notification(self, method: str, params: Any) -> None:
        self.got.append((method, params))


@tool
async def take(channel: Channel) -> str:
    """Takes one."""
    await channel.notify("notifications/stock/low", LowParams("part://nut", left=0))
    return "taken"


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_notifications_of_members_are_passed_on(kind: str, revision: str) -> None:
    """Those of a request, to its client alone, as of the type that this one declares."""
    suites = {"near": Suite("near", tools=[take], extensions=[Telling("near", bolt=1, nut=2)])}
    buyer, other = Buyer(), Buyer()
    options = ClientOptions(revision=revision, log_level="debug")
    stock = Extension("com.example/stock", methods=[Telling.methods[-1]])
    async with composite(kind, suites) as server:
        endpoint = Endpoint(server)
        async with (
            Client(endpoint, handler=other, options=options),
            Client(endpoint, handler=buyer, options=options, extensions=[stock]) as client,
        ):
            await client.request("stock/level", {"uri": "part://bolt"})
            assert (await client.call("near/take")).text == "taken"

    low = "notifications/stock/low"
    nut = (low, LowParams("part://nut", left=0))
    assert buyer.got == [("log", "low"), (low, LowParams("part://bolt", left=1)), nut]
    assert other.got == []


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_meta_of_members_is_passed_on(kind: str, revision: str) -> None:
    """At the top of results and of pages; of two members with one key, that of the first."""
    suites = {
        name: Suite(name, tools=[take], extensions=[Telling(name, **parts)])
        for name, parts in {"near": {"bolt": 1}, "far": {"gear": 2}}.items()
    }
    async with composite(kind, suites) as server:
        options = ClientOptions(revision=revision)
        async with Client(Endpoint(server), options=options) as client:
            level = await client.request("stock/level", {"uri": "part://gear"})
            page = await client.request("stock/list")
            call = await client.call("near/take")

    server_info = "io.modelcontextprotocol/serverInfo"
    found = [level["_meta"], page["_meta"], call.meta or {}]
    names = [each.pop(server_info, {}).get("name") for each in map(dict, found)]
    # A hub forwards the name of the member that has answered; a page is that of all.
    own = kind if revision == "2026-07-28" else None
    assert names == ([own] * 3 if kind == "registry" else ["far", own, own and "near"])
    plain = [{key: each[key] for key in each if key != server_info} for each in found]
    far, near = ({"com.example/by": name, name: 1} for name in ("far", "near"))
    assert plain == [far, {**far, **near}, near]


class Asking(Stock):
    """Asks a question of its own, which belongs to no component."""

    async def handle(self, request: Request, channel: Channel) -> Result:
        await channel.context.sink.ask(request, "roots/list", ListRootsRequestParams())
        raise AssertionError("no client answers")


async def test_method_of_a_member_may_ask_nothing() -> None:
    """There is no call that could be resumed with the answer: the client gets an error."""
    suite = Suite("near", extensions=[Asking("near", bolt=1)])
    async with Hub() as hub:
        server = hub.server()
        await hub.add(ServerConfig("near", target=suite, revision="2025-11-25"))
        async with Client(server, handler=Buyer()) as client:
            with pytest.raises(ServerError, match="asks a question"):
                await client.request("stock/level", {"uri": "part://bolt"})


class Needed(Stock):
    """Must be declared by clients."""

    required = True


async def test_member_may_require_a_declaration() -> None:
    """A registry checks the client of the composite; what it declares is what counts."""
    suites = {"near": Suite("near", extensions=[Needed("near", bolt=1)])}
    declared = Extension("com.example/stock", methods=[Stock.methods[1]])
    async with composite("registry", suites) as server:
        async with Client(server) as client:
            with pytest.raises(ServerError) as caught:
                await client.request("stock/level", {"uri": "part://bolt"})
        async with Client(server, extensions=[declared]) as client:
            level = await client.request("stock/level", {"uri": "part://bolt"})

    assert caught.value.code == -32021
    assert level.level == 1


class Broken(Stock):
    """Fails to list."""

    async def handle(self, request: Request, channel: Channel) -> Result:
        raise RuntimeError("out of order")


@pytest.mark.parametrize("kind", ["hub", "registry"])
async def test_member_that_fails_is_left_out_of_a_list(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As for tools: the list has the items of the others, and the log says which is missing."""
    suites = {
        "broken": Suite("broken", extensions=[Broken("broken")]),
        "near": Suite("near", extensions=[Stock("near", bolt=1)]),
    }
    async with composite(kind, suites) as server, Client(server) as client:
        page = await client.request("stock/list")
        with pytest.raises(ServerError):
            await client.request("stock/level", {"uri": "part://bolt"})

    assert [each["uri"] for each in page["parts"]] == ["part://bolt"]
    assert "broken" in caplog.text


#: A server over stdio, a line at a time. Its extension is hostile: it sends 5,000 notifications
#: with a result, among them those of the protocol itself, and `_meta` that is no object.
HOSTILE = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            capabilities = {"extensions": {"com.example/stock": {}}}
            info = {"name": "hostile", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
            send(id=message["id"], result={**result, "serverInfo": info})
        case "stock/level" | "stock/list":
            for method in ("cancelled", "progress", "tools/list_changed", "resources/updated"):
                params = {"requestId": 1, "progressToken": 1, "progress": 1, "uri": "a:b"}
                send(method=f"notifications/{method}", params=params)
            for number in range(5_000):
                send(method="notifications/stock/low", params={"number": number})
            result = {"parts": [{"uri": "part://bolt"}], "_meta": ["no object"], "resultType": 7}
            send(id=message["id"], result=result)
        case _ if "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "unknown"})
"""


async def test_hostile_extension_of_a_member_is_bounded(tmp_path: Path) -> None:
    """Its client gets the result, and nothing that would change the state of the connection."""
    path = tmp_path / "hostile.py"
    path.write_text(HOSTILE)
    buyer = Buyer()
    async with asyncio.timeout(60), Hub() as hub:
        server = hub.server()
        await hub.add(ServerConfig("hostile", sys.executable, [str(path)]))
        async with Client(server, handler=buyer) as client:
            level = await client.request("stock/level")
            page = await client.request("stock/list")
            again = await client.request("stock/level")

    assert level["parts"] == page["parts"] == again["parts"] == [{"uri": "part://bolt"}]
    assert {method for method, _ in buyer.got} <= {"notifications/stock/low"}
