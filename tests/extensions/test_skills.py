"""Skills of a folder, from the server to the client: entries, files, changes, refusals."""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp import Client, ConfigurationError, Endpoint, ServerError, Suite, SyncClient
from genmcp.client.errors import ProtocolError
from genmcp.client.options import ClientOptions
from genmcp.extensions import Extension, Method, RequestParams, Result, Skill, SkillRejected, Skills
from genmcp.extensions.skill_entries import METHODS, SKILLS, SkillEntry
from genmcp.protocol.resources import ReadResourceResult
from genmcp.resources import ResourceRepo
from genmcp.server import Request
from genmcp.testing import connect

FRONT = "---\nname: {0}\ndescription: About {0}.\nmetadata:\n  version: '1.0'\n---\n\n# {0}\n"


def write_skill(folder: Path, name: str, **files: bytes) -> Path:
    """Write a skill with these files, whose names have `__` in place of a slash."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(FRONT.format(place.name))
    for path, content in files.items():
        file = place / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two skills, of which one is below a prefix and has a third one in it."""
    root = tmp_path / "skills"
    write_skill(root, "bolts", **{"sizes__metric.md": b"M3\r\nM4\n", "thread.bin": b"\x00\xff"})
    write_skill(root, "team/returns", **{"rules.md": "Änderungen\n".encode()})
    write_skill(root, "team/returns/labels")
    (root / "README.md").write_text("No file of a skill.")
    (root / "bolts" / ".git").mkdir()
    (root / "bolts" / ".git" / "config").write_text("secret")
    return root


def suite_of(folder: Path) -> Suite:
    return Suite("shop", extensions=[Skills(folder)])


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_skills_are_listed_loaded_and_read(folder: Path, revision: str) -> None:
    """Each file is what its entry says; a nested skill is listed, and part of the one around it."""
    options = ClientOptions(revision=revision)
    declared = Extension(SKILLS, methods=METHODS)
    target = Endpoint(suite_of(folder))
    async with Client(target, extensions=[declared], options=options) as client:
        assert (client.capabilities.extensions or {})[SKILLS] == {"directoryRead": True}
        bolts, returns, labels = await client.skills()
        text = await bolts.load()
        sizes, thread = await bolts.read("sizes/metric.md"), await bolts.read("thread.bin")
        rules = await returns.read("rules.md")
        nested = await returns.read("labels/SKILL.md")
        again = await client.skill(labels.uri)
        assert await again.load() == nested.decode()
        refreshed = await bolts.refresh()

    assert [bolts.uri, returns.uri, labels.uri] == [
        "skill://bolts/SKILL.md",
        "skill://team/returns/SKILL.md",
        "skill://team/returns/labels/SKILL.md",
    ]
    assert bolts.files is not None
    assert list(bolts.files) == ["SKILL.md", "sizes/metric.md", "thread.bin"]
    assert [bolts.name, bolts.description] == ["bolts", "About bolts."]
    assert bolts.entry.frontmatter["metadata"] == {"version": "1.0"}
    assert text == FRONT.format("bolts")
    assert [sizes, thread, rules] == [b"M3\r\nM4\n", b"\x00\xff", "Änderungen\n".encode()]
    assert refreshed is False
    digest = f"sha256:{sha256(thread).hexdigest()}"
    assert [bolts.files["thread.bin"].digest, bolts.files["thread.bin"].size] == [digest, 2]


async def test_skills_are_resources(folder: Path) -> None:
    """SEP-2640, "Resource Metadata": a client without the extension sees them as resources."""
    async with connect(suite_of(folder)) as client:
        resources = await client.resources()
        (content,) = (await client.read("skill://bolts/SKILL.md")).contents
        found = await client.request("resources/directory/read", {"uri": "skill://team/returns"})
        for uri in ("skill://bolts/sizes", "skill://team"):
            assert await client.request("resources/directory/read", {"uri": uri})

    assert [(each.name, each.description, each.mime_type) for each in resources] == [
        ("bolts", "About bolts.", "text/markdown"),
        ("returns", "About returns.", "text/markdown"),
        ("labels", "About labels.", "text/markdown"),
    ]
    assert content.mime_type == "text/markdown"
    assert [(each["name"], each["mimeType"]) for each in found["resources"]] == [
        ("returns", "text/markdown"),
        ("labels", "inode/directory"),
        ("rules.md", "text/markdown"),
    ]


async def test_skill_folder_is_read_in_pages(tmp_path: Path) -> None:
    """A folder of many files; what a client gets of it does not become part of the skill."""
    files = {f"data__{number:03}.txt": b"%d" % number for number in range(450)}
    write_skill(tmp_path, "many", **files)
    async with connect(suite_of(tmp_path)) as client:
        (many,) = await client.skills()
        listed = await many.folder("data")
        top = await many.folder()

    assert [each.name for each in listed] == sorted(path[6:] for path in files)
    assert [each.name for each in top] == ["many", "data"]


async def test_skills_come_in_pages(tmp_path: Path) -> None:
    """More skills than one page has."""
    for number in range(120):
        write_skill(tmp_path, f"skill-{number}")
    async with connect(suite_of(tmp_path)) as client:
        skills = await client.skills()

    assert len({skill.uri for skill in skills}) == 120


async def test_folder_may_be_one_skill(tmp_path: Path) -> None:
    """Its name begins the URIs, and is that of the folder."""
    place = write_skill(tmp_path, "bolts", **{"a.md": b"a"})
    async with connect(suite_of(place)) as client:
        (skill,) = await client.skills()
        assert await skill.load()
        assert await skill.read("a.md") == b"a"
        assert [each.name for each in await skill.folder()] == ["bolts", "a.md"]

    assert skill.uri == "skill://bolts/SKILL.md"


@pytest.mark.parametrize(
    "uri",
    [
        "skill://README.md",
        "skill://bolts/.git/config",
        "skill://bolts/../README.md",
        "skill://bolts/%2e%2e/README.md",
        "skill://bolts/..%2fREADME.md",
        "skill://bolts//SKILL.md",
        "skill://bolts/SKILL.md/",
        "skill://bolts",
        "skill:///etc/passwd",
        "skill://%2fetc/passwd",
        "skill://bolts/SKILL.md%00",
    ],
)
async def test_skills_serve_no_other_files(folder: Path, uri: str) -> None:
    """SEP-2640, "Error Handling": -32602, for files, entries and folders alike."""
    async with connect(suite_of(folder)) as client:
        for method in ("resources/read", "skills/get", "resources/directory/read"):
            if (method, uri) == ("resources/directory/read", "skill://bolts"):
                continue
            with pytest.raises(ServerError) as caught:
                await client.request(method, {"uri": uri})
            assert caught.value.code == -32602


async def test_changes_of_skills_are_announced(folder: Path) -> None:
    """A changed file is found by the next request; a client that holds the entry rejects it."""
    suite = suite_of(folder)
    async with connect(suite) as client:
        bolts = (await client.skills())[0]
        stream = client.listen("skill://bolts/thread.bin", resources=True)
        async with stream:
            (folder / "bolts" / "thread.bin").write_bytes(b"new")
            with pytest.raises(SkillRejected, match=r"3 bytes, and 2 by its entry"):
                await bolts.read("thread.bin")
            heard = {(await anext(stream)).method, (await anext(stream)).method}
        assert await bolts.refresh() is True
        assert await bolts.read("thread.bin") == b"new"
        write_skill(folder, "nuts")
        assert [skill.name for skill in await client.skills()] == [
            *("bolts", "nuts", "returns", "labels")
        ]

    assert heard == {"notifications/resources/list_changed", "notifications/resources/updated"}


async def test_skill_that_becomes_invalid_is_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And so are the skills in it. The other ones stay, and the log says why."""
    suite = suite_of(folder)
    async with connect(suite) as client:
        assert len(await client.skills()) == 3
        (folder / "team" / "returns" / "SKILL.md").write_text("no front matter")
        assert [skill.name for skill in await client.skills()] == ["bolts"]
        with pytest.raises(ServerError):
            await client.read("skill://team/returns/rules.md")

    assert "team/returns is left out: there is no front matter" in caplog.text


def link(place: Path) -> None:
    (place / "link.md").symlink_to(place.parent.parent / "outside.md")


def link_within(place: Path) -> None:
    (place / "link.md").symlink_to(place / "SKILL.md")


def link_to_folder(place: Path) -> None:
    (place / "linked").symlink_to(place.parent)


def pipe(place: Path) -> None:
    os.mkfifo(place / "pipe")


def too_many(place: Path) -> None:
    for number in range(512):
        (place / f"{number}").touch()


def too_large(place: Path) -> None:
    with (place / "large").open("wb") as file:
        file.truncate(16 * 1024 * 1024)


def too_deep(place: Path) -> None:
    place.joinpath(*["d"] * 20).mkdir(parents=True)


def backslash(place: Path) -> None:
    (place / "a\\b").touch()


def other_name(place: Path) -> None:
    (place / "SKILL.md").write_text(FRONT.format("other"))


def no_description(place: Path) -> None:
    (place / "SKILL.md").write_text("---\nname: bolts\n---\n")


def bad_name(place: Path) -> None:
    (place / "SKILL.md").write_text(FRONT.format("Bolts"))


def linked_skill(place: Path) -> None:
    (place / "inner").mkdir()
    (place / "inner" / "SKILL.md").symlink_to(place / "SKILL.md")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (link, "link or a special file"),
        (link_within, "link or a special file"),
        (link_to_folder, "link or a special file"),
        (linked_skill, "link or a special file"),
        (pipe, "link or a special file"),
        (too_many, "more than 512 files"),
        (too_large, "more than 16777216 bytes"),
        (too_deep, "too deep"),
        (backslash, "in no URI"),
        (other_name, "must have its name"),
        (no_description, "description"),
        (bad_name, "lower-case letters"),
    ],
)
def test_skill_is_refused_at_the_start(tmp_path: Path, harm: Any, reason: str) -> None:
    """The error names the skill and the reason: its author reads it."""
    (tmp_path / "outside.md").write_text("secret")
    harm(write_skill(tmp_path / "skills", "bolts"))

    with pytest.raises(ConfigurationError, match=f"bolts is refused: .*{reason}"):
        Skills(tmp_path / "skills")


def test_skills_need_a_folder(tmp_path: Path) -> None:
    """A wrong path, or a file."""
    with pytest.raises(ConfigurationError, match="must be a folder"):
        Skills(tmp_path / "no")


class HugeFolder:
    """A folder with 100,000 more files than it has; counts those that are looked at."""

    looked = 0
    scandir = os.scandir

    def __init__(self, path: Any) -> None:
        self._found = HugeFolder.scandir(path)

    def __enter__(self) -> Any:
        entries = [*self._found]
        (file,) = [entry for entry in entries if entry.name == "z.txt"]
        for entry in [*entries, *(HugeFile(number, file) for number in range(100_000))]:
            HugeFolder.looked += 1
            yield entry

    def __exit__(self, *_: object) -> None:
        self._found.close()


class HugeFile:
    """One of the files, with a name of its own."""

    def __init__(self, number: int, file: Any) -> None:
        self.name, self.is_dir, self.stat = f"{number}.txt", file.is_dir, file.stat


@pytest.mark.parametrize(
    ("folder", "reason", "most"),
    [("bolts", "more than 512 files", 520), ("plain", "more than 20000 folders", 20_010)],
)
def test_folder_of_a_hundred_thousand_files_is_bounded(
    folder: str, reason: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a skill the 513th file ends the look; outside of skills, the 20,001st."""
    place = tmp_path / folder
    if folder == "bolts":
        write_skill(tmp_path, "bolts")
    else:
        place.mkdir()
    (place / "z.txt").touch()
    HugeFolder.looked = 0
    monkeypatch.setattr(os, "scandir", HugeFolder)

    with pytest.raises(ConfigurationError, match=reason):
        Skills(place)
    assert HugeFolder.looked < most


class Raw(Result, kw_only=True):
    """A result with the members that a test gives."""

    skills: Any = msgspec.UNSET
    skill: Any = msgspec.UNSET
    resources: Any = msgspec.UNSET
    next_cursor: Any = msgspec.UNSET


class Hostile(Extension):
    """Skills as a test gives them: the results by method, and the texts of files by URI."""

    name = SKILLS
    methods = tuple(
        Method(name, RequestParams, Raw)
        for name in ("skills/list", "skills/get", "resources/directory/read")
    )

    def __init__(self, texts: Mapping[str, Any], **results: Any) -> None:
        super().__init__()
        self.read: list[str] = []
        outer = self

        class Files(ResourceRepo):
            prefix = "skill:"

            def read(self, key: str, channel: Any, /) -> Any:
                outer.read.append(key)
                return texts.get(key)

        self.results = results
        self.resources = (Files(),)

    async def handle(self, request: Request, channel: Any) -> Result:
        found = self.results[request.method.rpartition("/")[2]]
        return Raw(**found)


URI = "skill://bolts/SKILL.md"
TEXT = FRONT.format("bolts")
MATTER = {"name": "bolts", "description": "About bolts.", "metadata": {"version": "1.0"}}


def file(uri: str, text: str | bytes = TEXT, **changes: Any) -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    digest = f"sha256:{sha256(data).hexdigest()}"
    return {"uri": uri, "digest": digest, "size": len(data), **changes}


def entry(*more: Any, **changes: Any) -> dict[str, Any]:
    return {"uri": URI, "frontmatter": MATTER, "resources": [file(URI), *more], **changes}


async def loaded(hostile: Hostile) -> str:
    async with connect(Suite("s", extensions=[hostile])) as client:
        (skill,) = await client.skills()
        return await skill.load()


async def test_skill_is_not_read_before_it_is_loaded() -> None:
    """SEP-2640, "Lazy Retrieval"."""
    hostile = Hostile({URI: TEXT}, list={"skills": [entry()]}, get={"skill": entry()})
    async with connect(Suite("s", extensions=[hostile])) as client:
        (skill,) = await client.skills()
        await client.skill(URI)
        await skill.refresh()
        assert hostile.read == []
        assert await skill.load() == TEXT

    assert hostile.read == [URI]


@pytest.mark.parametrize(
    ("given", "text", "reason"),
    [
        (entry(resources=[file(URI, size=1)]), TEXT, "bytes, and 1 by its entry"),
        (entry(resources=[file(URI, "x" * len(TEXT))]), TEXT, "digest"),
        (entry(), TEXT + " ", "by its entry"),
        (entry(frontmatter={**MATTER, "license": "MIT"}), TEXT, "license of the front matter"),
        (entry(frontmatter={**MATTER, "metadata": {"version": 1.0}}), TEXT, "metadata"),
        (entry(frontmatter={**MATTER, "description": "Other."}), TEXT, "description"),
        (entry(resources=[file(URI, "none")]), "none", "no front matter"),
        (entry(resources=[file(URI, b"\xff")]), b"\xff", "no front matter"),
        (entry(resources="dynamic"), "---\nname: bolts\n---\n", "description"),
    ],
)
async def test_skill_that_is_not_its_entry_is_rejected(given: Any, text: Any, reason: str) -> None:
    """SEP-2640, "Integrity and Verification": by size, digest and front matter."""
    with pytest.raises(SkillRejected, match=reason):
        await loaded(Hostile({URI: text}, list={"skills": [given]}))


@pytest.mark.parametrize(
    "given",
    [
        entry(file("skill://bolts/../other/a")),
        entry(file("skill://bolts/%2E%2e/a")),
        entry(file("skill://bolts/a%2f..%2fb")),
        entry(file("skill://bolts/a\\b")),
        entry(file("skill://bolts//a")),
        entry(file("skill://bolts/a?b")),
        entry(file("skill://bolts/a\nb")),
        entry(file("skill://other/a")),
        entry(file("skill://bolts-2/a")),
        entry(file("file:///etc/passwd")),
        entry(file("/etc/passwd")),
        entry(file("../a")),
        entry(file("skill://bolts/a", digest="sha256:1")),
        entry(file("skill://bolts/a", digest="md5:" + "0" * 64)),
        entry(file("skill://bolts/a", size=-1)),
        entry(file(URI)),
        entry(resources=[]),
        entry(resources=[file("skill://bolts/a")]),
        entry(uri="skill://bolts/skill.md"),
        entry(uri="skill://other/SKILL.md"),
        *(
            entry(uri=f"{folder}/SKILL.md", resources=[file(f"{folder}/SKILL.md")])
            for folder in (
                "skill://../bolts",
                "skill://a\nb/bolts",
                "skill://a%2fb/bolts",
                "://bolts",
            )
        ),
        entry(uri="/bolts/SKILL.md"),
        entry(frontmatter={"name": "bolts"}),
        entry(frontmatter={"name": "../bolts", "description": "x"}),
        entry(frontmatter={"name": 1, "description": "x"}),
        entry(frontmatter={"name": "bolts", "description": " "}),
    ],
)
async def test_skill_with_a_hostile_entry_is_left_out(
    given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Paths out of its folder, among others: a host may write the files to a disk."""
    hostile = Hostile({URI: TEXT}, list={"skills": [given]}, get={"skill": given})
    async with connect(Suite("s", extensions=[hostile])) as client:
        assert await client.skills() == []
        with pytest.raises(SkillRejected):
            await client.skill(URI)

    assert "is left out" in caplog.text
    assert hostile.read == []


@pytest.mark.parametrize(
    "result",
    [
        {"skills": [{"uri": URI}]},
        {"skills": [entry(resources="static")]},
        {"skills": [entry(resources=None)]},
        {"skills": [entry(frontmatter=[])]},
        {"skills": "none"},
        {},
        {"skills": [entry()], "next_cursor": "again"},
    ],
)
async def test_list_of_skills_that_is_invalid_is_an_error(result: Any) -> None:
    """And a list that does not end."""
    async with connect(Suite("s", extensions=[Hostile({}, list=result)])) as client:
        with pytest.raises(ProtocolError):
            await client.skills()


async def test_skill_has_no_files_but_those_of_its_entry() -> None:
    """SEP-2640, "The Acting Window and the Held Entry": an unlisted file is a failure."""
    new = "skill://bolts/new.md"
    listed = {"resources": [{"uri": new, "name": "n"}, {"uri": "skill://other/a", "name": "o"}]}
    hostile = Hostile({URI: TEXT, new: "new"}, list={"skills": [entry()]}, read=listed)
    async with connect(Suite("s", extensions=[hostile])) as client:
        (skill,) = await client.skills()
        assert [each.uri for each in await skill.folder()] == [new]
        for path in ("new.md", "../other/SKILL.md", "", "."):
            with pytest.raises(SkillRejected, match="none of its files"):
                await skill.read(path)

    assert hostile.read == []


async def test_dynamic_skill_is_bounded() -> None:
    """SEP-2640, "Limits": a client stops at 16 MiB, and does not leave the folder either."""
    large = "skill://bolts/large"
    texts = {URI: TEXT, large: b"\xff" * (9 * 1024 * 1024)}
    hostile = Hostile(texts, list={"skills": [entry(resources="dynamic")]})
    async with connect(Suite("s", extensions=[hostile])) as client:
        (skill,) = await client.skills()
        assert skill.files is None
        assert await skill.load() == TEXT
        assert len(await skill.read("large")) == 9 * 1024 * 1024
        with pytest.raises(SkillRejected, match="16777216 bytes"):
            await skill.read("large")
        with pytest.raises(SkillRejected, match="none of its files"):
            await skill.read("../other/a")


async def test_skill_may_be_answered_with_another_file() -> None:
    """A server that answers with the contents of another URI, of several, or without base64."""
    answers: list[dict[str, Any]] = [
        {"contents": [{"uri": "skill://other/SKILL.md", "text": TEXT}]},
        {"contents": [{"uri": URI, "text": TEXT}, {"uri": URI, "text": TEXT}]},
        {"contents": []},
        {"contents": [{"uri": URI, "blob": "?"}]},
    ]

    class Target:
        """A client whose server gives these answers."""

        capabilities: Any = None

        async def request(self, method: str, params: Any = None) -> Any:
            raise AssertionError(method)

        async def read(self, uri: str) -> ReadResourceResult:
            given = {**answers.pop(), "ttlMs": 0, "cacheScope": "private"}
            return msgspec.convert(given, ReadResourceResult)

    skill = Skill(Target(), "s", msgspec.convert(entry(), SkillEntry))
    while answers:
        with pytest.raises(SkillRejected, match="something else"):
            await skill.load()


def test_skills_are_loaded_without_asyncio(folder: Path) -> None:
    """The same methods and properties, which block."""
    with SyncClient(suite_of(folder)) as client:
        bolts = client.skills()[0]
        again = client.skill(bolts.uri)
        assert bolts.load() == again.load() == FRONT.format("bolts")
        assert bolts.read("thread.bin") == b"\x00\xff"
        assert [each.name for each in bolts.folder("sizes")] == ["metric.md"]
        assert bolts.refresh() is False

    assert [bolts.name, bolts.description] == ["bolts", "About bolts."]
    assert [bolts.entry, list(bolts.files or ())] == [again.entry, list(again.files or ())]
    assert "skill://bolts/SKILL.md" in repr(bolts)


async def test_server_without_skills_has_none() -> None:
    """A host asks each of its servers: that one has no skills is no error."""
    async with connect(Suite("s")) as client:
        assert await client.skills() == []
