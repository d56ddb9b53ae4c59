"""Extensions of servers behind a hub or registry reach its clients, merged as tools are."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Channel,
    Client,
    Endpoint,
    Hub,
    InvalidParams,
    Registry,
    Server,
    ServerConfig,
    ServerError,
    Suite,
)
from genmcp.client.options import ClientOptions
from genmcp.extensions import (
    Extension,
    Method,
    PaginatedRequestParams,
    PaginatedResult,
    RequestParams,
    Result,
    Skills,
)
from genmcp.extensions.skill_entries import SKILLS
from genmcp.protocol.capabilities import TASKS
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
    methods = (
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
        for name, suite in suites.items():
            await hub.add(ServerConfig(name, target=suite))
        yield hub.server()


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
