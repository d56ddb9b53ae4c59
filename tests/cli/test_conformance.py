"""`genmcp conformance`: what the suite says, told in lines; the suite itself is made up here."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp.cli.conformance import SUITE

SHOP = "tests.cli.shop:suite"
Run = Callable[..., tuple[int, str, str]]

# It notes how it was called, asks the server for its tools, and says of each scenario what the
# official one would.
NPX = f"""#!{sys.executable}
import json, os, pathlib, sys, urllib.request
given = sys.argv[sys.argv.index("conformance") + 1:]
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
print("npm warn deprecated", file=sys.stderr)
if given[0] == "list":
    sys.exit(print("  - ping [2026-07-28]"))
option = dict(zip(given[1::2], given[2::2]))
if option.get("--spec-version") == "1999-01-01":
    print("Unknown spec version: 1999-01-01\\nValid versions: 2026-07-28")
    sys.exit(1)
if "--url" in option:
    try:
        urllib.request.urlopen(option["--url"])
    except urllib.error.HTTPError:
        pass
def check(status, id, why=""):
    return {{"id": id, "status": status, "description": id, "errorMessage": why}}
SCENARIOS = {{
    "ping": [check("SUCCESS", "ping"), check("INFO", "info")],
    "tools-call-image": [check("FAILURE", "image", "Failed: Unknown tool: test_image_content")],
    "tools-list": [check("FAILURE", "list", "Tool 1: missing\\ndescription")],
    "caching": [check("WARNING", "ttl", "should be set"), check("SUCCESS", "kept")],
    "lost": None,
}}
names = [option["--scenario"]] if "--scenario" in option else []
if given[0] == "client":  # as of some scenarios, of which the list shows none
    SCENARIOS["initialize"] = []
    SCENARIOS["fallen"] = [check("SUCCESS", "begun")]
    SCENARIOS["none"] = [check("SKIPPED", "no")]
    names = names or ["initialize", "none"]
side = "server-" if given[0] == "server" else ""
names = names or SCENARIOS
for name in names:
    print("Running scenario", name)
    folder = pathlib.Path(option["-o"], f"{{side}}{{name}}-2026-07-28T09-30-00-000Z")
    folder.mkdir()
    if SCENARIOS[name] is not None:
        (folder / "checks.json").write_text(json.dumps(SCENARIOS[name]))
    if name == "initialize":
        (folder / "stderr.txt").write_text("Traceback\\nImportError: no shop\\n")
    print(f"Results saved to {{folder}}")
    if name == "fallen":
        sys.exit("CLIENT EXITED WITH ERROR (code 3)")
if "--expected-failures" in option:
    print("\\x1b[32mBaseline check passed: all failures are expected.\\x1b[0m")
    sys.exit(0)
sys.exit(any(c["status"] == "FAILURE" for n in names for c in SCENARIOS[n] or ()))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put the made-up suite in the place of the real one, and give how it was called."""
    npx = tmp_path / "npx"
    npx.write_text(NPX)
    npx.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_conformance_tells_what_failed_and_why(run: Run, calls: Any) -> None:
    """A line a scenario, with the checks that failed; what only lacks a fixture is told apart."""
    status, said, noise = run("conformance", SHOP, "--spec-version", "2026-07-28")

    assert (1, "") == (status, noise)
    lines = said.splitlines()
    assert [
        "PASS ping: 1 passed",
        "LACK tools-call-image: 0 passed, 1 failed",
        "     image: Failed: Unknown tool: test_image_content",
        "FAIL tools-list: 0 passed, 1 failed",
        "     list: Tool 1: missing description",
        "PASS caching: 1 passed, 1 warnings",
        "     ttl: should be set",
        "FAIL lost: 0 passed, 1 failed",
    ] == lines[:8]
    assert "2 passed, 3 failed (1 for want of a tool, prompt or resource" in lines[-1]
    assert lines[-1].endswith("1 warnings")
    (call,) = calls()
    assert f"--package {SUITE} -- conformance server --url http://127.0.0.1:" in call
    assert "--spec-version 2026-07-28 --suite all" in call


def test_conformance_runs_each_scenario_that_is_named(run: Run, calls: Any) -> None:
    """One after the other; it fails if one does."""
    status, said, _ = run(
        "conformance", SHOP, "--scenario", "tools-list", "--scenario", "ping", "--suite", "core"
    )

    assert 1 == status
    assert ["FAIL", "PASS", "1 passed, 1 failed"] == [
        said.splitlines()[0][:4],
        said.splitlines()[2][:4],
        said.splitlines()[3],
    ]
    assert ["tools-list", "ping"] == [each.split("--scenario ")[1].split()[0] for each in calls()]
    assert 0 == run("conformance", SHOP, "--scenario", "caching")[0]


def test_conformance_passes_on_what_the_suite_takes(run: Run, calls: Any, tmp_path: Path) -> None:
    """Its list, clients, failures that are expected, and with --verbose all that it prints."""
    assert (0, "  - ping [2026-07-28]\n") == run("conformance", "--list")[:2]
    assert 0 == run("conformance", "--list", "--client", "x", "--spec-version", "2026-07-28")[0]
    status, said, noise = run(
        "conformance", "--client", "my client", "--scenario", "ping", "--verbose"
    )
    assert (0, "PASS ping: 1 passed\n1 passed, 0 failed\n") == (status, said)
    assert "Running scenario ping" in noise
    known = tmp_path / "known.yml"
    known.touch()
    both = ("--scenario", "ping", "--scenario", "caching")
    status, said, _ = run("conformance", SHOP, "--expected-failures", str(known), *both)
    assert 0 == status
    assert 2 == said.count("\nBaseline check passed: all failures are expected.\n")
    assert "Running" not in said

    listed, clients, client, ping, caching = calls()
    assert listed.endswith("conformance list --server")
    assert clients.endswith("conformance list --client --spec-version 2026-07-28")
    assert "conformance client --command my client --scenario ping" in client
    assert f"--expected-failures {known} --scenario ping" in ping
    assert f"--expected-failures {known} --scenario caching" in caching


def test_conformance_passes_nothing_that_was_not_checked(run: Run, calls: Any) -> None:
    """A client that fails at once fails, with the last it said."""
    lines = run("conformance", "--client", "my client")[1].splitlines()

    assert "FAIL initialize: 0 passed, 1 failed" == lines[0]
    assert "no-check: the suite has checked nothing; the last the client said" in lines[1]
    assert lines[1].endswith(": ImportError: no shop")
    assert ["SKIP none: 0 passed", "0 passed, 1 failed"] == lines[2:]


def test_conformance_says_why_the_suite_is_not_content(run: Run, calls: Any) -> None:
    """Where no check has failed: what else the suite has printed."""
    status, said, noise = run("conformance", "--client", "my client", "--scenario", "fallen")

    assert (1, "PASS fallen: 1 passed\n1 passed, 0 failed\n") == (status, said)
    assert "CLIENT EXITED WITH ERROR (code 3)" in noise


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "name a server, or a client with --client COMMAND"),
        ((SHOP, "--client", "x"), 2, f"name a server or a client: --client is given, and '{SHOP}'"),
        (("--client", "python x 'y"), 2, '--client: "python x \'y" is no command: No closing quot'),
        ((SHOP, "--expected-failures", "no"), 2, "--expected-failures: there is no file 'no'"),
        (("shop",), 2, "'shop' is neither a URL"),
        (("tests.cli.shop:no",), 2, "there is no 'no'"),
        ((SHOP, "--spec-version", "1999-01-01"), 2, "has run nothing: Unknown spec version: 1999"),
        (("http://127.0.0.1:1/mcp",), 1, "cannot reach http://127.0.0.1:1/mcp: Connection refused"),
        (("http://127.0.0.1:x/mcp",), 1, "cannot reach"),
    ],
)
def test_conformance_says_why_nothing_is_run(
    arguments: tuple[str, ...], status: int, said: str, run: Run, calls: Any
) -> None:
    """Once, and not for each scenario."""
    found, shown, noise = run("conformance", *arguments)

    assert (status, "") == (found, shown)
    assert said in noise
    assert 1 == len(noise.splitlines())


def test_conformance_needs_npx(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, it says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, noise = run("conformance", SHOP)

    assert 2 == status
    assert "install that" in noise
