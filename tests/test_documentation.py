"""Everything the README and the docs show runs."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mcp import Client

from genmcp import Endpoint
from genmcp.server import Server
from tests.serving import serve

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)

MODULES = {name: code for page in PAGES for name, code in BLOCK.findall(page.read_text("utf-8"))}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each block as the module its first line names, importable by the others."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def applications(module: ModuleType) -> list[Any]:
    """What a block defines that can be served."""
    served = [
        getattr(module, name) for name in ("app", "as_route", "bare") if hasattr(module, name)
    ]
    suites = [value for value in vars(module).values() if isinstance(value, Server)]
    return served or [Endpoint(suite) for suite in suites]


@pytest.mark.parametrize("name", sorted(MODULES))
async def test_documentation_is_served_to_a_client(name: str, modules: Path) -> None:
    """A real client lists the tools of what a page shows, whatever way it is mounted."""
    module = importlib.import_module(name)
    served = applications(module)
    assert served

    for app in served:
        async with serve(app) as url, Client(f"{url}/mcp") as client:
            assert (await client.list_tools()).tools


@pytest.mark.parametrize(
    ("name", "tool", "arguments", "expected"),
    [
        ("server", "greet", {"name": "Ada"}, "Hello, Ada."),
        ("slow", "transcribe", {"minutes": 2}, "2 minutes of silence."),
        ("search", "search", {"day": "2026-11-21"}, "at most 10 orders of 2026-11-21"),
        ("importing", "import_lines", {"text": "a\nb"}, "2 lines for nobody"),
        ("chart", "chart", {"year": 1999}, "no sales of 1999"),
        ("with_starlette", "reorder_part", {"part": "M6x20"}, '{"order":1,"count":1}'),
        (
            "with_fastapi",
            "reorder_part",
            {"part": "M7"},
            "There is no part M7. Search for it first.",
        ),
    ],
)
async def test_documentation_does_what_it_says(
    name: str, tool: str, arguments: dict[str, Any], expected: str, modules: Path
) -> None:
    """The tools the pages show answer as the pages say."""
    app = applications(importlib.import_module(name))[0]

    async with serve(app) as url, Client(f"{url}/mcp") as client:
        result = await client.call_tool(tool, arguments)

    assert expected in result.content[0].text  # type: ignore[union-attr]


async def test_documentation_of_faults_is_what_a_model_reads(modules: Path) -> None:
    """The README's faults are those of its first tool, to the letter."""
    app = importlib.import_module("server").app

    async with serve(app) as url, Client(f"{url}/mcp") as client:
        result = await client.call_tool("greet", {"excited": "yes"})

    text = result.content[0].text  # type: ignore[union-attr]
    assert text in (ROOT / "README.md").read_text("utf-8")


def test_documentation_links_lead_somewhere() -> None:
    """Every relative link of a page is a file."""
    for page in PAGES:
        for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
