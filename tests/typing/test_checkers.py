"""mypy and pyright infer the types of the public API, and report wrong uses of it.

The modules of this folder contain both: `assert_type` for inferred types, and an ignore comment
with the codes of both checkers for wrong uses. The code in the documentation has no errors.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.test_documentation import MODULES

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(page for page in Path(__file__).parent.glob("*.py") if page != Path(__file__))
COMMENT = re.compile(r"  # type: ignore\[(.*?)\]  # pyright: ignore\[(.*?)\]$", re.MULTILINE)
TIMEOUT = 55  # seconds; without a cache mypy takes about 3

Report = tuple[str, int, str]  # file name, line, code


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy(folder: Path) -> set[Report]:
    """Return the errors that mypy reports in *folder*, with the settings of this project."""
    cache = f"--cache-dir={folder / 'cache'}"
    lines = run("mypy", "--output=json", cache, *map(str, folder.glob("*.py")))
    errors = [each for each in map(json.loads, lines.splitlines()) if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["line"], each["code"]) for each in errors}


def pyright(folder: Path) -> set[Report]:
    """Return the errors that pyright reports in *folder*, with its default rules."""
    (folder / "pyrightconfig.json").write_text('{"pythonVersion": "3.11"}', encoding="utf-8")
    # In its text format it would look for a newer release of itself on PyPI.
    output = run(
        "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)
    )
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"])
        for each in json.loads(output)["generalDiagnostics"]
    }


def expected(pages: Iterable[Path], checker: int) -> set[Report]:
    """Return the errors that the comments of *pages* announce for mypy (0) or pyright (1)."""
    return {
        (page.name, number, code)
        for page in pages
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        for codes in COMMENT.findall(line)
        for code in codes[checker].split(", ")
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the modules, without ignore comments, and the code of the documentation."""
    pages = {page.stem: COMMENT.sub("", page.read_text("utf-8")) for page in PAGES}
    assert not pages.keys() & MODULES.keys()
    for name, code in (pages | MODULES).items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    return tmp_path


def test_mypy_reports_exactly_the_wrong_uses(folder: Path) -> None:
    """Every inferred type is as asserted, and each wrong use is an error."""
    assert expected(PAGES, 0) == mypy(folder)


def test_pyright_reports_exactly_the_wrong_uses(folder: Path) -> None:
    """Editors run pyright: they must not underline code from the documentation."""
    assert expected(PAGES, 1) == pyright(folder)
