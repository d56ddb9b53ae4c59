"""The command `scripts/prove`: run every proof on this checkout, and write what was found.

    scripts/prove                      # all parts: hours
    scripts/prove suites attack        # these parts; the sections of the others stay as they are
    scripts/prove chaos --rounds 3     # each fault 3 times
    scripts/prove --list

Each part is a few commands that anybody can repeat. Its section of benchmarks/RESULTS.md has what
they print, with the commit and the date. A part whose programs are not installed is not run, and
its section says so.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.processes import ROOT
from benchmarks.report import machine

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
HEAD = """# Results

`scripts/prove` writes this page. `scripts/prove PART` repeats one part, and keeps the others.

"""
STORES = ("sqlite", "redis", "postgres")
ENGINES = ("celery", "procrastinate", "docket", "temporal")
PACKAGES = ("uvicorn", "starlette", "httpx", "msgspec", "jsonschema", "mcp")
PYTEST = "python -m pytest -q -p no:cacheprovider"
# What is kept of the output of a command: lines that match.
CLOSING = re.compile(r"^(=+ )?\d+ (passed|failed|error).*|^(FAILED|ERROR) .*")
CHECKS = re.compile(r"^\d+ passed, \d+ failed$|^skipped.*|^FAIL .*")
PARTS_OF_TEST = re.compile(rf"^test: .* took \d+ s$|^TOTAL .*|{CLOSING.pattern}|{CHECKS.pattern}")
TABLE = re.compile(r"^\|")
ALL = re.compile("")


@dataclass(frozen=True)
class Command:
    """A command of a part, run in the root of the project: `python` is that of the project.

    keep: the lines of its output that the page shows.
    needs: programs without which it is not run.
    env: variables of its environment.
    """

    line: str
    keep: re.Pattern[str] = ALL
    needs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the command as it is typed."""
        return " ".join([*(f"{name}={value}" for name, value in self.env.items()), self.line])

    def run(self) -> tuple[bool, list[str]]:
        """Return whether it succeeded, and the lines to show."""
        if missing := [each for each in self.needs if shutil.which(each) is None]:
            return False, [f"not run: {', '.join(missing)} not found on PATH"]
        words = shlex.split(self.line)
        if words[0] == "python":
            words[0] = sys.executable
        lines = []
        with subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                if self.keep.search(line.rstrip()):
                    lines.append(line.rstrip())
        succeeded = process.returncode == 0
        return succeeded, lines if succeeded else [*lines, f"\nexit status {process.returncode}"]


def parts(rounds: int) -> Mapping[str, tuple[str, list[Command]]]:
    """Return each part by its name: what must hold, and the commands that show it.

    Args:
        rounds: how often each fault is repeated, and each load of the speed, that at most 3 times.
    """
    many = str(rounds)
    chaos = {"CHAOS_RUNS": many, "CHAOS_ROUNDS": many}
    return {
        "size": (
            "Each folder and each class of options is within its budget.",
            [Command("python -m benchmarks.size")],
        ),
        "suites": (
            "The official suite, every revision, server and client: no check fails.",
            [Command("scripts/conformance", CHECKS, ["npm"])],
        ),
        "replicas": (
            "The official suite against three processes, each request at the next of them.",
            [
                Command(f"scripts/conformance --replicas 3 --store {store}", CHECKS, ["npm"])
                for store in STORES
            ],
        ),
        "peers": (
            "Servers, clients and logins of others, both ways, and a hub between them.",
            [Command(f'{PYTEST} -n0 tests -m "peers or e2e"', CLOSING, ["npm"])],
        ),
        "chaos": (
            f"Every fault {rounds} times on each store: nothing acknowledged is lost.",
            [
                Command(f"{PYTEST} -n0 -m chaos tests/chaos/test_{name}.py", CLOSING, env=chaos)
                for name in ("chaos", "faults", "stores", "aimed", "clocks", "full_disk")
            ],
        ),
        "engines": (
            f"200 jobs on each engine, {rounds} times, with kills of genmcp, worker and broker.",
            [
                Command(
                    f'{PYTEST} -n0 -m chaos "tests/chaos/test_engines.py'
                    f'::test_jobs_survive_kills[{engine}]"',
                    CLOSING,
                    env={"CHAOS_JOBS": "200"},
                )
                for engine in ENGINES
                for _ in range(rounds)
            ],
        ),
        "attack": (
            "One client takes what it can: no other is rejected, and memory stays below 200 MiB.",
            [
                Command("python -m benchmarks.attack"),
                Command("python -m benchmarks.attack --long-jobs"),
                Command("python -m benchmarks.floods"),
            ],
        ),
        "fuzz": (
            "90,000 hostile schemas, 180,000 hostile requests: an error each, and no held loop.",
            [Command(f"{PYTEST} -n0 tests/fuzz -m fuzz --fuzz-cases 180000", CLOSING)],
        ),
        "speed": (
            "CPU, rate and p99 beside a floor of raw ASGI, and beside other implementations.",
            [Command(f"python -m benchmarks --peers --rounds {min(rounds, 3)}", ALL, ["wrk"])],
        ),
        "stores": (
            "Latency, takeover, rates and idle CPU of a server and two workers over each store.",
            [Command(f"python -m benchmarks.distributed {' '.join(STORES)}", TABLE)],
        ),
        "listeners": (
            "10,000 listeners over three processes hear of a change within a second.",
            [Command(f"python -m benchmarks.listeners --store {store}") for store in STORES[1:]],
        ),
        "soak": (
            "A million mixed calls leave no memory, task or file behind.",
            [Command("python -m benchmarks.soak")],
        ),
        "tests": (
            "Three whole runs of the tests in a row, without a failure.",
            [Command("scripts/test --all", PARTS_OF_TEST, ["npm"]) for _ in range(3)],
        ),
    }


def section(name: str, asked: str, commands: Sequence[Command]) -> tuple[bool, str]:
    """Run a part; return whether it holds, and its section of the page."""
    began, succeeded, blocks = time.monotonic(), True, []
    for command in commands:
        print(f"\n$ {command}", flush=True)
        fine, lines = command.run()
        succeeded = succeeded and fine
        # A table is shown as one, other output as text.
        shown = "\n".join(lines)
        if not any(line.startswith("|") for line in lines):
            shown = f"```text\n{shown}\n```"
        blocks.append(f"```sh\n{command}\n```\n\n{shown}")
    took = round(time.monotonic() - began)
    outcome = "holds" if succeeded else "**does not hold**"
    when = f"{outcome}: {datetime.now(UTC).date()}, commit {commit()}, {took} s."
    return succeeded, "\n\n".join([f"## {name}", asked, when, *blocks])


def commit() -> str:
    """Return the commit of this checkout, and whether its files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    own = ":!benchmarks/RESULTS.md"  # which each part changes
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", own)
    return git("rev-parse", "--short=8", "HEAD") + (" with changes" if changed else "")


def sections(page: str) -> dict[str, str]:
    """Return the sections of *page* by name."""
    found = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    return {each.split("\n", 1)[0].removeprefix("## "): each.strip() for each in found}


def main() -> None:
    """Run the chosen parts; write the page after each; exit with status 1 if one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all parts")
    parser.add_argument("--rounds", type=int, default=10, help="how often each fault is repeated")
    parser.add_argument("--list", action="store_true", help="print the parts, and run nothing")
    options = parser.parse_args()
    known = parts(options.rounds)
    if unknown := set(options.parts) - known.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.list:
        print("\n".join(f"{name:10} {asked}" for name, (asked, _) in known.items()))
        return
    setting = f"Last run on {machine()}, Python {sys.version.split()[0]}, " + ", ".join(
        f"{name} {version(name)}" for name in PACKAGES
    )
    failed = []
    for name in options.parts or known:
        found = sections(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        holds, found[name] = section(name, *known[name])
        if not holds:
            failed.append(name)
        text = "\n\n".join(found[each] for each in known if each in found)
        RESULTS.write_text(f"{HEAD}{setting}.\n\n{text}\n", encoding="utf-8")
    sys.exit(f"does not hold: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
