"""Discovery: components in folders and modules, exclusions, and changes."""

import importlib
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from genmcp import discovery
from genmcp.errors import ConfigurationError
from genmcp.protocol.content import TextContent
from genmcp.testing import connect

ADD = """
from genmcp.tools import Tool

class Add(Tool):
    '''Adds.'''

    name = "add"

    async def call(self, request, channel):
        return str(request.arguments["a"] + request.arguments["b"])
"""

GREET = """
from genmcp.decorator import tool

@tool
def greet(name: str) -> str:
    return f"Hello {name}"
"""

REVIEW = """
from genmcp.prompts.template import PromptTemplate

review = PromptTemplate(name="review", messages="Review {code}")
"""

MANUAL = """
from genmcp.resources.resource import Resource

manual = Resource("docs://manual", "Read me.", name="manual")
"""

PAGE = """
from genmcp.decorator import resource

@resource("pages://{number}")
def page(number: int) -> str:
    return "-" * number
"""


@pytest.fixture(autouse=True)
def _imports_are_undone() -> Iterator[None]:
    """Leave the path and the modules as they were."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        del sys.modules[name]


def write(folder: Path, **files: str) -> Path:
    """Write files; `__` in a name is a folder."""
    for name, text in files.items():
        file = folder / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return folder


def names(found: discovery.Discovery) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in found.components]


def faults(found: discovery.Discovery) -> list[str]:
    return [f"{Path(each.source).stem}: {each.error}" for each in found.broken]


async def test_suite_is_made_of_a_folder(tmp_path: Path) -> None:
    """Components below its folders are served, at any depth, without registration."""
    write(
        tmp_path,
        tools__math__add=ADD,
        tools__greet=GREET,
        resources__manual=MANUAL,
        resources__page=PAGE,
        prompts__review=REVIEW,
    )

    async with connect(discovery.suite(str(tmp_path), name="found", version="1")) as client:
        assert [each.uri for each in await client.resources()] == ["docs://manual"]
        assert (await client.read("pages://3")).contents[0].text == "---"
        assert [each.name for each in await client.prompts()] == ["review"]
        assert {tool.name for tool in await client.tools()} == {"add", "greet"}
        assert (await client.call("add", {"a": 1, "b": 2})).content == [TextContent("3")]
        assert (await client.call("greet", {"name": "Ann"})).content == [TextContent("Hello Ann")]


def test_discovery_finds_each_kind_in_its_folder(tmp_path: Path) -> None:
    """A scan distinguishes them, in the order of the files' names."""
    write(
        tmp_path,
        tools__b=GREET,
        tools__a__z=ADD,
        prompts__review=REVIEW,
        resources__manual=MANUAL,
        other__c=ADD,
        tools__readme="",
    )
    (tmp_path / "tools" / "notes.txt").write_text("not Python")

    found = discovery.scan(tmp_path)

    assert names(found) == [
        ("tools", "add"),
        ("tools", "greet"),
        ("resources", "docs://manual"),
        ("prompts", "review"),
    ]
    assert [each.value for each in found.components] == [
        *found.tools,
        *found.resources,
        *found.prompts,
    ]
    assert found.broken == []


def test_discovery_logs_each_component(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line has its kind, its name, and its file."""
    write(tmp_path, tools__add=ADD, prompts__review=REVIEW)

    with caplog.at_level(logging.INFO, "genmcp"):
        discovery.scan(tmp_path)

    assert caplog.messages == [
        f"tool add from {tmp_path / 'tools' / 'add.py'}",
        f"prompt review from {tmp_path / 'prompts' / 'review.py'}",
    ]


def test_files_with_one_name_are_two_modules(tmp_path: Path) -> None:
    """Two files may have one name; `sys.path` is unchanged."""
    write(tmp_path, tools__a__same=ADD, tools__b__same=GREET)
    path, before = list(sys.path), set(sys.modules)

    found = discovery.scan(tmp_path)

    modules = [sys.modules[name] for name in sys.modules.keys() - before if ".same" in name]
    assert path == sys.path
    assert set(names(found)) == {("tools", "add"), ("tools", "greet")}
    assert len(modules) == 2
    assert {Path(str(module.__file__)).parent.name for module in modules} == {"a", "b"}


def test_discovery_ignores_imported_names(tmp_path: Path) -> None:
    """Imported classes, functions and instances are not components, also under another name."""
    write(
        tmp_path,
        lending=f"""
            {dedent(ADD)}
            {dedent(GREET)}
            ready = Add()
            ready.name = "ready"
            __all__ = []
        """.replace("\n            ", "\n"),
        starred="""
            from genmcp.prompts.template import PromptTemplate
            starred = PromptTemplate(name="starred", messages="")
        """,
        components__tools__borrows="""
            import lending
            from lending import Add, greet
            from lending import ready as mine
            from starred import *

            again = mine
            alias = Add

            class Own(Add):
                name = "own"

            configured = Own()
            configured.name = "configured"
            twice = configured
            _hidden = Own()

            class _Hidden(Add):
                name = "hidden"
        """,
    )
    sys.path.insert(0, str(tmp_path))

    found = discovery.scan(tmp_path / "components")

    assert faults(found) == []
    assert names(found) == [("tools", "configured")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class Base(Tool): ...\nclass A(Base):\n name = 'a'\n call = call", ["a"]),
        ("class Base(Tool):\n def __init__(self, x): ...", []),
        (
            (
                "class Base(Tool):\n name = 'x'\n call = call\n"
                " def __init__(self, n): self.name = n\n"
                "class A(Base):\n def __init__(self): super().__init__('a')"
            ),
            ["a"],
        ),
        (
            (
                "class A(Tool):\n name = 'a'\n call = call\n def __init__(self, n): self.name = n\n"
                "one, two = A('one'), A('two')"
            ),
            ["one", "two"],
        ),
        ("class A(Tool):\n call = call\n def __init__(self): self.name = 'a'", ["a"]),
        (
            (
                "import abc\nclass A(Tool, abc.ABC):\n name = 'a'\n @abc.abstractmethod\n"
                " def more(self): ...\nclass B(A):\n call = call\n more = None"
            ),
            ["a"],
        ),
        (
            (
                "class Shop:\n @tool\n def sell(self, what: str) -> str: return what\n"
                "sell = Shop().sell"
            ),
            ["sell"],
        ),
        ("def plain(): ...\nclass Plain: ...\nvalue = 5\nbuiltin = len", []),
    ],
)
def test_class_without_a_name_is_not_a_component(
    source: str, expected: list[str], tmp_path: Path
) -> None:
    """A class without a name, or a base class, is not a component."""
    head = "from genmcp.tools import Tool\nfrom genmcp.decorator import tool\n"
    write(tmp_path, tools__file=f"{head}async def call(self, request, channel): ...\n{source}\n")

    found = discovery.scan(tmp_path)

    assert faults(found) == []
    assert expected == [each.name for each in found.components]


BROKEN = {
    "syntax": "def (:",
    "raises": "raise RuntimeError('no')",
    "exits": "import sys; sys.exit(3)",
    "relative": "from . import other",
    "wrong": "from genmcp.tools import Tool\nclass Odd(Tool):\n    name = 'two words'",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_discovery_skips_a_broken_file_with_its_traceback(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others load, and nothing of it stays behind."""
    write(tmp_path, tools__a=source, tools__b=ADD)
    before = set(sys.modules)

    found = discovery.scan(tmp_path)

    assert names(found) == [("tools", "add")]
    (broken,) = found.broken
    assert str(tmp_path / "tools" / "a.py") == broken.source
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert broken.error is (record.exc_info or (None, None))[1]
    assert broken.source in record.getMessage()
    assert not [name for name in sys.modules.keys() - before if name.endswith("_a")]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("class Odd(Tool):\n name = 'odd'", "odd: Odd has no call"),
        (
            "class Odd(Tool):\n name = 'odd'\n call = call\n def __init__(self, x): ...",
            "odd: Odd takes arguments; define an instance of it in the file: ",
        ),
        ("odd = Tool()", "odd: Tool has no name"),
        (
            (
                "from genmcp.prompts.prompt import Prompt\n"
                "class Odd(Prompt):\n name = 'odd'\n get = call"
            ),
            "odd: prompt 'odd' belongs below prompts/",
        ),
        ("class Odd(Tool):\n name = 'add'\n call = call", "odd: tool 'add' is in {add} already"),
    ],
)
def test_invalid_component_is_left_out(source: str, error: str, tmp_path: Path) -> None:
    """It is reported, and the other components of the file are found."""
    head = "from genmcp.tools import Tool\nasync def call(self, request, channel): ...\n"
    tail = "\nclass Fine(Tool):\n name = 'fine'\n call = call\n"
    write(tmp_path, tools__odd=head + source + tail, tools__add=ADD)

    found = discovery.scan(tmp_path)

    assert names(found) == [("tools", "add"), ("tools", "fine")]
    (fault,) = faults(found)
    assert fault.startswith(error.format(add=tmp_path / "tools" / "add.py"))


def test_private_files_are_left_out(tmp_path: Path) -> None:
    """Names that begin with `_` or `.`, and the cache of bytecode."""
    write(tmp_path, tools___private="raise RuntimeError", tools___more__add=ADD)
    write(tmp_path / "tools" / "__pycache__", x="raise RuntimeError")
    write(tmp_path / "tools" / ".hidden", x="raise RuntimeError")
    (tmp_path / "tools" / "__init__.py").write_text("raise RuntimeError")

    assert (names(discovery.scan(tmp_path)), faults(discovery.scan(tmp_path))) == ([], [])


def test_discovery_rejects_a_folder_without_components(tmp_path: Path) -> None:
    """A wrong path is reported at once, in full."""
    with pytest.raises(
        ConfigurationError, match=re.escape(f"the folder {tmp_path}/x does not exist")
    ):
        discovery.scan(tmp_path / "x")
    with pytest.raises(
        ConfigurationError, match=re.escape(f"{tmp_path} has none of tools, resources, prompts")
    ):
        discovery.suite(tmp_path, name="found", version="1")


def test_path_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path, as everywhere."""
    write(tmp_path, here__tools__add=ADD)
    monkeypatch.chdir(tmp_path)

    found = discovery.scan("here")

    assert (tmp_path / "here", [("tools", "add")]) == (found.location, names(found))


def test_components_of_a_package_are_found(tmp_path: Path) -> None:
    """Its modules are imported as usual, so that they may import each other; kinds may mix."""
    write(
        tmp_path,
        found_package__tools__adding=ADD,
        found_package__mixed=f"from .tools.adding import Add\n{REVIEW}\n{MANUAL}",
        found_package___private="raise RuntimeError",
        found_package__wrong="from . import nothing",
    )
    (tmp_path / "found_package" / "__init__.py").write_text(GREET)
    sys.path.insert(0, str(tmp_path))
    package = importlib.import_module("found_package")

    found = discovery.scan(package)

    assert names(found) == [
        ("tools", "greet"),
        ("prompts", "review"),
        ("resources", "docs://manual"),
        ("tools", "add"),
    ]
    assert isinstance(found.tools[1], sys.modules["found_package.tools.adding"].Add)
    assert len(found.broken) == 1


def test_components_of_a_module_are_found(tmp_path: Path) -> None:
    """A module is one file; a module without a file has no imports to inspect."""
    write(tmp_path, found_module=ADD + GREET)
    sys.path.insert(0, str(tmp_path))
    made = ModuleType("made")
    exec(ADD, vars(made))

    assert names(discovery.scan(importlib.import_module("found_module"))) == [
        ("tools", "add"),
        ("tools", "greet"),
    ]
    assert names(discovery.scan(made)) == [("tools", "add")]


@pytest.mark.parametrize("names_of_files", [("a", "b"), ("b", "a")])
def test_files_of_a_folder_import_each_other(
    names_of_files: tuple[str, str], tmp_path: Path
) -> None:
    """A component that is imported is found once, whichever file is imported first."""
    shares, borrows = names_of_files
    files = {
        f"tools__{shares}": ADD + "shared = Add()\nshared.name = 'shared'",
        f"tools__{borrows}": f"from .{shares} import Add, shared\nclass Sum(Add): name = 'sum'",
    }
    write(tmp_path, **files)

    found = discovery.scan(tmp_path)

    assert faults(found) == []
    assert sorted(names(found)) == [("tools", "shared"), ("tools", "sum")]


def test_discovery_reports_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A file with any fault is skipped alone."""
    write(tmp_path, tools__add=ADD)
    (tmp_path / "tools" / "dir.py").mkdir()

    found = discovery.scan(tmp_path)

    assert names(found) == [("tools", "add")]
    (fault,) = faults(found)
    assert fault.startswith("dir: ")
