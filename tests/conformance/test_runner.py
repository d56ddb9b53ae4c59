"""`scripts/conformance`, with a stand-in for the official suite."""

import json
import sys
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parents[2] / "scripts" / "conformance"

# The stand-in has two client scenarios; one of them skips its second check.
SUITE = """
import json, pathlib, sys
if sys.argv[1] == "list":
    print("  - skills [2025-11-25]\\n  - initialize [2025-11-25]")
else:
    out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]) / "initialize-2026-Z"
    out.mkdir()
    checks = [{"id": "a", "status": "SUCCESS"}, {"id": "b", "status": "SKIPPED"}]
    (out / "checks.json").write_text(json.dumps(checks))
"""
EXPECTED = {"client initialize": ["b"], "client skills": []}


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    loader = SourceFileLoader("conformance_runner", str(RUNNER))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    module.CACHE = tmp_path
    return module


def run(runner: Any, passed: int, skipped: dict[str, list[str]], **options: Any) -> int:
    """Run the client scenarios of the stand-in. The rest is taken from conformance.json."""
    suite, expected = runner.CACHE / "suite.py", runner.CACHE / "conformance.json"
    suite.write_text(SUITE)
    expected.write_text(json.dumps({"passed": {"client": passed}, "skipped": {"why": skipped}}))
    runner.EXPECTED = expected
    selected = {"url": None, "scenario": None, "selections": None, "replicas": 0} | options
    status: int = runner.run(Namespace(client=True, **selected), [sys.executable, str(suite)])
    return status


def test_runner_names_every_skip_with_its_reason(
    runner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "0 failed" and "PASS" alone would hide checks that did not run."""
    status = run(runner, 4, EXPECTED, selections=["2025-11-25"])

    assert status == 0
    assert capsys.readouterr().out.splitlines() == [
        "SKIP 2025-11-25 client skills: not run, why",
        "PARTLY 2025-11-25 client initialize: 1 passed, 1 skipped",
        "     b: skipped, why",
        "1 checks skipped (1: why)",
        "1 client runs skipped (1: why)",
        "1 passed, 0 failed",
    ]


@pytest.mark.parametrize(
    ("passed", "skipped", "difference"),
    [
        (4, {"client initialize": ["b", "c"]}, "client initialize, c is listed as skipped, and"),
        (4, {"client gone": ["b"]}, "client gone is listed, and the suite does not have it"),
        (5, {}, "4 checks of the client passed, 5 are recorded"),
    ],
)
def test_runner_fails_on_a_list_that_is_out_of_date(
    passed: int,
    skipped: dict[str, list[str]],
    difference: str,
    runner: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each revision has the two scenarios. The README shows the numbers of the list."""
    status = run(runner, passed, EXPECTED | skipped)

    *_, line, _, _, counts = capsys.readouterr().out.splitlines()
    assert status == 1
    assert line.startswith(f"FAIL conformance.json: {difference}")
    assert counts.endswith(" passed, 1 failed")


def test_runner_accepts_a_run_that_is_as_recorded(
    runner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`.ci/run` searches for the last line of the output."""
    assert run(runner, 4, EXPECTED) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed"


def test_runner_fails_on_a_skip_that_is_not_listed(
    runner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite skips checks of a feature that the server no longer offers."""
    status = run(runner, 4, {"client skills": []}, selections=["2025-11-25"])

    _, line, check, _, counts = capsys.readouterr().out.splitlines()
    assert status == 1
    assert line == "FAIL 2025-11-25 client initialize: 1 passed, 1 failed"
    assert check.startswith("     b: skipped, which conformance.json does not allow")
    assert counts == "1 passed, 1 failed"
