"""A folder as a repository: its files are served, and no others."""

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError, InvalidParams, ResourceNotFound
from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition
from genmcp.protocol.resources import ReadResourceResult
from genmcp.resources import directory as files
from genmcp.resources.directory import Directory
from genmcp.resources.resource import Resource, ResourceRoute
from tests.resources.asking import channel, page_of, read, resources, uris

SECRET = "a secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in another one, which has a secret; both have hidden files and links."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "secret.txt").write_text(SECRET)
    root = tmp_path / "root"
    (root / "guides" / "deep").mkdir(parents=True)
    (root / "guides" / "deep" / "end.md").write_text("# End")
    (root / "guides" / "a b.txt").write_text("spaced")
    (root / "intro.md").write_text("# Intro é")
    (root / "logo.png").write_bytes(b"\x89PNG\xff")
    (root / "zero").write_bytes(b"a\0b")
    (root / ".env").write_text(SECRET)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(SECRET)
    (root / "inside").symlink_to(root / "intro.md")
    (root / "folder").symlink_to(root / "guides")
    (root / "out").symlink_to(tmp_path / "secret.txt")
    (root / "outer").symlink_to(tmp_path)
    (root / "up").symlink_to("..")
    (root / "beside").symlink_to(tmp_path / "rootless")
    (root / "shown").symlink_to(".env")
    (root / "loop").symlink_to("loop")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    return root


async def text(provider: Directory, uri: str) -> str | None:
    (contents,) = (await read(provider, uri)).contents
    return contents.text


async def listed(directory: Directory, size: int = 1000) -> list[list[str]]:
    return await uris(resources(directory), size)


async def test_directory_reads_text_and_bytes(root: Path) -> None:
    """UTF-8 is text, all else a blob; the type follows from the suffix, or from the content."""
    docs = Directory(root, prefix="docs://")

    async def only(path: str) -> ResourceContents:
        (contents,) = (await read(docs, f"docs://{path}")).contents
        return contents

    assert await only("intro.md") == ResourceContents(
        "docs://intro.md", text="# Intro é", mime_type="text/markdown"
    )
    assert await only("logo.png") == ResourceContents(
        "docs://logo.png", blob="iVBOR/8=", mime_type="image/png"
    )
    assert (await only("zero")).mime_type == "application/octet-stream"
    assert (await only("guides/a%20b.txt")).text == "spaced"
    assert (await only("guides/deep/%65nd.md")).text == "# End"


async def test_directory_follows_links_within(root: Path) -> None:
    """Links to files and folders of the same folder are followed."""
    assert await text(Directory(root), "file:///inside") == "# Intro é"
    assert await text(Directory(root), "file:///folder/deep/end.md") == "# End"
    link = root.parent / "link"
    link.symlink_to(root)
    assert await text(Directory(link), "file:///guides/deep/end.md") == "# End"


async def test_directory_lists_its_files(root: Path) -> None:
    """By name, folder by folder; links to files that can be read, and to no folders."""
    expected = ["guides/a%20b.txt", "guides/deep/end.md", "inside", "intro.md", "logo.png", "zero"]

    assert [expected] == await listed(Directory(root, prefix=""))
    hidden = await listed(Directory(root, prefix="", hidden=True))
    assert [[".env", ".git/config", *expected[:-1], "shown", "zero"]] == hidden
    for size in (1, 2, 4):
        pages = await listed(Directory(root, prefix=""), size)
        assert expected == [uri for page in pages for uri in page]
        assert max(map(len, pages)) == size


async def test_directory_is_listed_in_pages(tmp_path: Path) -> None:
    """Each page continues after the last file of the page before, at any depth."""
    expected = []
    for folder in ("a", "a/b", "c"):
        (tmp_path / folder).mkdir()
        for number in range(70):
            (tmp_path / folder / f"{number:02}").touch()
            expected.append(f"{folder}/{number:02}")

    pages = await listed(Directory(tmp_path, prefix=""))

    assert [len(page) for page in pages] == [100, 100, 10]
    assert [uri for page in pages for uri in page] == sorted(expected, key=lambda x: x.split("/"))


async def test_directory_lists_type_and_size_of_a_file(root: Path) -> None:
    """And its name; annotations of the repository are there as well."""
    docs = Directory(root, prefix="docs://", annotations={"priority": 0.5})
    page = await page_of(resources(docs), 1000)
    found = {each.name: each for each in page.resources}

    assert found["intro.md"] == ResourceDefinition(
        "docs://intro.md",
        "intro.md",
        mime_type="text/markdown",
        size=10,
        annotations=Annotations(priority=0.5),
    )
    assert found["zero"].mime_type is None


async def test_directory_is_listed_as_a_template(root: Path) -> None:
    """By the folder's name, unless it has another."""

    class Docs(Directory):
        """The handbook."""

        root = "never there"
        prefix = "docs://"
        mime_type = "text/markdown"

    route = ResourceRoute.of(Docs(root))
    assert route.template is not None
    assert (
        route.template.uri_template,
        route.template.name,
        route.template.description,
        route.template.mime_type,
    ) == ("docs://{+path}", "root", "The handbook.", "text/markdown")
    assert Directory(root, name="docs").name == "docs"
    assert repr(Docs(root)) == f"<Docs {root} as docs://>"


async def test_directory_rejects_too_large_files(root: Path) -> None:
    """The error names the limit; a file of exactly that size is read."""
    docs = Directory(root, max_bytes=5)

    assert await text(docs, "file:///guides/deep/end.md") == "# End"
    with pytest.raises(InvalidParams, match="more than 5 bytes") as caught:
        await read(docs, "file:///folder/../intro.md".replace("folder/../", ""))
    assert caught.value.data == {"uri": "file:///intro.md", "limit": 5}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "guides",
        "guides/",
        "/intro.md",
        "./intro.md",
        "guides//a%20b.txt",
        "guides/../intro.md",
        "missing",
        "intro.md/",
        "intro.md/x",
        "intro.md?x",
        "intro.md#x",
        "intro.md%00",
        ".env",
        ".git/config",
        "%2eenv",
        "shown",
        "out",
        "outer/secret.txt",
        "up/secret.txt",
        "up/root/intro.md/../../secret.txt",
        "beside/secret.txt",
        "loop",
        "loop/x",
        "broken",
        "pipe",
        "x" * 300,
        "x/" * 3000,
        "..%2fsecret.txt",
        "..%5csecret.txt",
        "%c0%ae%c0%ae/secret.txt",
        "%ff",
        "é",
    ],
)
async def test_other_paths_are_not_found(root: Path, path: str) -> None:
    """Not a file, hidden, a link that leads out, or an invalid path: the resource is not found."""
    with pytest.raises(ResourceNotFound):
        await read(Directory(root), f"file:///{path}")


def hostile(root: Path, count: int) -> Sequence[str]:
    """URIs that try to leave the folder, the same ones every time."""
    chance = random.Random(6570)
    steps = [
        "..",
        ".",
        "",
        "%2e%2e",
        "%2E.",
        "%252e%252e",
        "..%00",
        "%00",
        "\0",
        "..;",
        "~",
        "....",
    ]
    steps += [
        "%c0%ae%c0%ae",
        "%e0%80%ae%e0%80%ae",
        "..%c0%af..",
        "%uff0e%uff0e",
        "\uff0e\uff0e",
        "%%32%65",
    ]
    steps += ["..\\..", "..%5c..", "..%2f..", "..%252f..", "C:", "c:\\", "\\\\host\\share", "%0a"]
    steps += [
        "up",
        "outer",
        "beside",
        "folder",
        "guides",
        "root",
        "rootless",
        "out",
        "shown",
        "loop",
    ]
    ends = ["secret.txt", "etc/passwd", ".env", ".git/config", "secret.txt%00.md", "secret.txt#.md"]
    ends += [str(root.parent / "secret.txt"), quote(str(root.parent / "secret.txt"), safe="")]
    marks = ["/", "//", "%2f", "%252F", "\\", "%5C", "/./", "%c0%af", "%e2%88%95"]
    found: dict[str, None] = {}  # in order
    while len(found) < count:
        way = [chance.choice(steps) for _ in range(chance.randrange(7))]
        mark = chance.choice(marks)
        found["file:///" + mark.join([*way, chance.choice(ends)])] = None
    return [*found]


async def test_hostile_uris_read_nothing_outside(root: Path) -> None:
    """None reads outside, and none raises anything but ResourceNotFound."""
    docs = Directory(root)
    opened = 0
    for uri in hostile(root, 10_000):
        names = docs.parse_uri(uri)
        opened += names is not None
        value = None if names is None else docs.read(names, channel(uri))
        assert value is None, uri

    assert opened > 100


def test_hostile_uris_escape_from_a_naive_folder(root: Path) -> None:
    """The same URIs read the secret from a folder that joins and opens paths."""
    contents = set()
    for uri in hostile(root, 2_000):
        path = Path(os.path.join(root, uri.removeprefix("file:///")))  # noqa: PTH118
        if "\0" not in str(path) and path.is_file():
            contents.add(path.read_text())

    assert SECRET in contents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text("./%25ecCaAfF\\0\0~:", max_size=30))
def test_any_path_is_found_or_not_found(root: Path, path: str) -> None:
    """Any path of a client is not found, without another exception."""
    docs = Directory(root)
    names = docs.parse_uri(f"file:///{path}")

    assert names is None or docs.read(names, channel()) is None


async def test_link_that_replaces_a_folder_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that becomes a link after the check is not followed."""
    docs = Directory(root)
    real = Directory._real

    def swapped(self: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        found = real(self, names)
        (root / "guides").rename(root / "gone")
        (root / "guides").symlink_to(root.parent / "rootless")
        return found

    (root / "guides" / "secret.txt").write_text("inside")
    monkeypatch.setattr(Directory, "_real", swapped)

    with pytest.raises(ResourceNotFound):
        await read(docs, "file:///guides/secret.txt")


async def test_whole_path_is_opened_without_dir_fd(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems without `dir_fd` open the whole path."""
    monkeypatch.setattr(files, "_AT", False)

    assert await text(Directory(root), "file:///guides/deep/end.md") == "# End"
    with pytest.raises(ResourceNotFound):
        await read(Directory(root), "file:///out")


async def test_disk_is_read_in_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk access runs in a thread."""
    here = threading.get_ident()
    threads = []
    real = Directory._real

    def seen(self: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        threads.append(threading.get_ident())
        return real(self, names)

    monkeypatch.setattr(Directory, "_real", seen)
    await text(Directory(root), "file:///intro.md")
    await listed(Directory(root))

    assert len(threads) > 5
    assert here not in threads


async def test_page_reads_no_more_than_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand files, a page reads the status of its own."""
    for number in range(1_000):
        (tmp_path / f"{number:04}").touch()
    read = []
    status = Directory._status

    def seen(self: Directory, names: tuple[str, ...]) -> os.stat_result | None:
        read.append(names)
        return status(self, names)

    monkeypatch.setattr(Directory, "_status", seen)
    docs = Directory(tmp_path, prefix="")

    page, cursor = docs.list(None, channel())
    assert [page[0].uri, page[-1].uri, len(read)] == ["0000", "0099", 100]
    page, _ = docs.list(cursor, channel())
    assert [page[0].uri, page[-1].uri, len(read)] == ["0100", "0199", 200]


async def test_list_has_files_that_were_added(tmp_path: Path) -> None:
    """Every list reads the folder again."""
    docs = Directory(tmp_path, prefix="")
    assert await listed(docs) == [[]]
    (tmp_path / "a").touch()
    assert await listed(docs) == [["a"]]


async def test_list_continues_where_a_file_was_removed(tmp_path: Path) -> None:
    """A cursor is a position in the order, not a file."""
    for number in range(150):
        (tmp_path / f"{number:03}").touch()
    docs = Directory(tmp_path, prefix="")
    _, cursor = docs.list(None, channel())
    (tmp_path / "099").unlink()

    page, _ = docs.list(cursor, channel())

    assert [page[0].uri, page[-1].uri] == ["100", "149"]


@pytest.mark.parametrize("cursor", ["../x", "", 5, "a//b", "%ff", ".env"])
async def test_invalid_cursor_is_rejected(root: Path, cursor: Any) -> None:
    """An invalid path is -32602."""
    with pytest.raises(InvalidParams, match=f"Invalid cursor: {cursor}"):
        Directory(root).list(cursor, channel())


async def test_unreadable_folders_and_names_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable folder is empty; a name that is not text is not listed."""
    (root / os.fsdecode(b"\xff")).touch()
    scan = os.scandir

    def denied(path: Any) -> Any:
        if path == root / "guides":
            raise PermissionError(13, "denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)

    assert await listed(Directory(root, prefix="")) == [["inside", "intro.md", "logo.png", "zero"]]


async def test_failure_of_the_machine_is_raised(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, for example, is raised unchanged."""

    def failing(*arguments: Any, **more: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", failing)

    with pytest.raises(OSError, match="Too many open files"):
        await read(Directory(root), "file:///intro.md")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"root": None}, "Directory.root must be a folder, not None"),
        ({"root": "/nowhere/at/all"}, "Directory.root must be a folder, not '/nowhere/at/all'"),
        ({"max_bytes": 0}, "Directory.max_bytes must be 1 or more, not 0"),
        ({"max_bytes": "5"}, "Directory.max_bytes must be 1 or more, not '5'"),
        ({"nmae": "x"}, "Directory takes no nmae"),
    ],
)
def test_invalid_option_is_rejected(root: Path, options: dict[str, Any], error: str) -> None:
    """A wrong option is rejected with its name."""
    with pytest.raises(ConfigurationError, match=error):
        Directory(**{"root": root, **options})


async def test_earlier_resource_takes_precedence(root: Path) -> None:
    """A resource declared before it takes its place in reads and listings."""
    held = resources(Resource("docs://intro.md", "own"), Directory(root, prefix="docs://"))
    line: Channel = channel("docs://intro.md")
    route = held.find("docs://intro.md")
    assert route is not None

    result = await route.handle(line.request, line)
    assert isinstance(result, ReadResourceResult)
    (contents,) = result.contents
    assert contents.text == "own"
    (page,) = await uris(held, 1000)
    assert page.count("docs://intro.md") == 1
