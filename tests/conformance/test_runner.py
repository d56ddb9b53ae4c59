"""`scripts/conformance`, with a stand-in for the official suite."""

import sys
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parents[2] / "scripts" / "conformance"

SUITE = """
import json, pathlib, sys
if sys.argv[1] == "list":
    print("  - sep-2640-client [2025-11-25]\\n  - initialize [2025-11-25]")
else:
    out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]) / "initialize-2026-Z"
    out.mkdir()
    (out / "checks.json").write_text(json.dumps([{"id": "a", "status": "SUCCESS"}]))
"""


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


def test_runner_names_the_scenarios_that_are_not_run(
    runner: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "0 failed" alone would hide that most client scenarios need features the client lacks."""
    suite = tmp_path / "suite.py"
    suite.write_text(SUITE)
    selections = ["2025-11-25"]
    options = Namespace(url=None, client=True, scenario=None, selections=selections, replicas=0)

    status = runner.run(options, [sys.executable, str(suite)])

    skipped, passed, summary, counts = capsys.readouterr().out.splitlines()
    assert status == 0
    assert skipped.startswith(
        "SKIP 2025-11-25 client sep-2640-client: not run, the skills extension"
    )
    assert passed == "PASS 2025-11-25 client initialize: 1 passed"
    assert summary.startswith("1 client runs skipped (1: the skills extension")
    assert counts == "1 passed, 0 failed"
