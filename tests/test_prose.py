"""The lint of docstrings and comments, scripts/prose, which scripts/check runs."""

import subprocess
import sys
from pathlib import Path

PROSE = Path(__file__).parent.parent / "scripts" / "prose"


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROSE, "-v", str(path)], capture_output=True, text=True, check=False
    )


def test_prose_of_the_package_is_within_the_rates() -> None:
    """Each group of words is rare, and there are enough comments."""
    result = checked(PROSE.parent.parent / "genmcp")

    assert result.returncode == 0, result.stdout


def test_prose_reports_words_with_their_place(tmp_path: Path) -> None:
    """A rate over its bound is a failure; each occurrence has its file and line."""
    page = tmp_path / "page.py"
    page.write_text('"""Return what whoever called was told."""\n')

    result = checked(page)

    assert result.returncode == 1
    assert f"{page}:1: what: Return what whoever called was told." in result.stdout


def test_prose_skips_quotations(tmp_path: Path) -> None:
    """Code in backticks and quoted text do not count."""
    page = tmp_path / "page.py"
    page.write_text('"""Return `what` for "whoever"."""\n# A reason.\nVALUE = 1\n')

    assert checked(page).returncode == 0


def test_prose_reports_entries_with_a_capital(tmp_path: Path) -> None:
    """One style of entries: a lower-case letter, unless the entry begins with a name."""
    page = tmp_path / "page.py"
    page.write_text(
        '"""Wait.\n\nArgs:\n    timeout: Seconds to wait.\n    url: HTTP or HTTPS.\n'
        "    most: None: no limit.\n\nReturns:\n    text: A line.\n\n"
        'Raises:\n    OSError: It is late.\n"""\n# A reason.\nVALUE = 1\n'
    )

    result = checked(page)

    assert result.returncode == 1
    assert f"{page}:1: begins with a capital: timeout: Seconds to wait." in result.stdout
    assert "begins with a capital: OSError: It is late." in result.stdout
    assert result.stdout.count("capital") == 2
