"""mypy and pyright infer the types of the public API, and report wrong uses of it.

The pages of this folder hold both: `assert_type` where a type is inferred, and an ignore comment
with the codes of both checkers where one is wrong.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

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


def mypy(folder: Path, *options: str) -> set[Report]:
    """Return the errors that mypy reports in *folder*."""
    cache = f"--cache-dir={folder / 'cache'}"
    lines = run("mypy", "--output=json", cache, *options, *map(str, folder.glob("*.py")))
    errors = [each for each in map(json.loads, lines.splitlines()) if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["line"], each["code"]) for each in errors}


def pyright(folder: Path) -> set[Report]:
    """Return the errors that pyright reports in *folder*, with its default rules."""
    # In its other format it would ask PyPI for a newer release of itself.
    output = run(
        "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)
    )
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"])
        for each in json.loads(output)["generalDiagnostics"]
    }


def expected(pages: Iterable[Path], checker: int) -> set[Report]:
    """Return the errors that the comments of *pages* name for mypy (0) or pyright (1)."""
    return {
        (page.name, number, code)
        for page in pages
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        for codes in COMMENT.findall(line)
        for code in codes[checker].split(", ")
    }


@pytest.fixture
def stripped(tmp_path: Path) -> Path:
    """A folder with the pages, without their ignore comments."""
    for page in PAGES:
        text = COMMENT.sub("", page.read_text("utf-8"))
        (tmp_path / page.name).write_text(text, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"pythonVersion": "3.11"}', encoding="utf-8")
    return tmp_path


def test_mypy_reports_exactly_the_wrong_uses(stripped: Path) -> None:
    """Every inferred type is as asserted, and each wrong use is an error of its line."""
    assert expected(PAGES, 0) == mypy(stripped, "--strict")


def test_pyright_reports_exactly_the_wrong_uses(stripped: Path) -> None:
    """pyright, which editors run, agrees with mypy."""
    assert expected(PAGES, 1) == pyright(stripped)
