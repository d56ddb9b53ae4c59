"""What the official conformance suite says of a server or a client, as it says it."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from genmcp.cli.bare import line

__all__ = ["Verdicts"]

_SAVED: Final = re.compile(r"^Results saved to (.+)$")
_FOLDER: Final = re.compile(r"(?:server-)?(.+)-20\d\d-\d\d-\d\dT[\dZ-]+")
_BASELINE: Final = re.compile(r"(unexpected|expected failures|stale|baseline)", re.IGNORECASE)
_NPM: Final = re.compile(r"npm (warn|notice)", re.IGNORECASE)
_COLOR: Final = re.compile(r"\x1b\[[\d;]*m")
_LONGEST: Final = 300

_FIXTURE: Final = re.compile(r"\btest_\w+|\btest://|^Not testable|\bjson_schema_2020_12_tool\b")
"""What the messages of checks hold that need a tool, prompt or resource made for the suite."""


class Verdicts:
    """Reads what the suite prints, and tells of each scenario in lines of its own.

    folder: where the suite keeps its results. say: writes a line.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.scenarios = 0
        self.passed = 0
        self.failed = 0
        self.lacking = 0
        self.warned = 0
        self.other: list[str] = []
        self._folder = folder
        self._say = say
        self._compares = False

    def begin(self) -> None:
        """Expect another run of the suite."""
        self.other.clear()
        self._compares = False

    def take(self, printed: str) -> None:
        """Take a line that the suite has printed."""
        text = _COLOR.sub("", printed).rstrip()
        if saved := _SAVED.match(text):
            self._judge(Path(saved[1]))
        elif self._compares or (self.scenarios and _BASELINE.match(text)):
            self._compares = True  # with the failures that were expected, to its end
            if text:
                self._say(text)
        elif text and not _NPM.match(text):
            self.other.append(text)

    def summary(self) -> str:
        """Return how it all went, in a line."""
        text = f"{self.passed} passed, {self.failed} failed"
        if self.lacking:
            text += (
                f" ({self.lacking} for want of a tool, prompt or resource with a name of the "
                "suite's: LACK)"
            )
        return f"{text}, {self.warned} warnings" if self.warned else text

    def _judge(self, folder: Path) -> None:
        name = _FOLDER.fullmatch(str(folder.relative_to(self._folder)))
        checks = _checks_of(folder) or [_nothing(folder)]
        failed = [each for each in checks if each["status"] == "FAILURE"]
        warned = [each for each in checks if each["status"] == "WARNING"]
        lacking = sum(bool(_FIXTURE.search(_why(each))) for each in failed)
        passed = sum(each["status"] == "SUCCESS" for each in checks)
        self.scenarios += 1
        self.passed += passed
        self.failed += len(failed)
        self.lacking += lacking
        self.warned += len(warned)
        fine = "PASS" if passed or warned else "SKIP"
        word = "FAIL" if len(failed) > lacking else "LACK" if failed else fine
        counts = {"failed": len(failed), "warnings": len(warned)}
        rest = "".join(f", {count} {what}" for what, count in counts.items() if count)
        self._say(f"{word} {name[1] if name else folder.name}: {passed} passed{rest}")
        for each in failed + warned:
            self._say(f"     {each['id']}: {_why(each)[:_LONGEST]}")


def _checks_of(folder: Path) -> list[dict[str, Any]]:
    try:
        checks: list[dict[str, Any]] = json.loads((folder / "checks.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        return [{"id": "no-verdict", "status": "FAILURE", "errorMessage": str(error)}]
    return checks


def _nothing(folder: Path) -> dict[str, Any]:
    """Return that nothing was checked, with the last that the client under test has said."""
    why = "the suite has checked nothing"
    with suppress(OSError):
        said = (folder / "stderr.txt").read_text("utf-8", "replace").split("\n")
        last = next((each for each in reversed(said) if each.strip()), None)
        why = f"{why}; the last the client said: {last}" if last else why
    return {"id": "no-check", "status": "FAILURE", "errorMessage": why}


def _why(check: dict[str, Any]) -> str:
    return line(str(check.get("errorMessage") or check.get("description", "")))
