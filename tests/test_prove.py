"""`scripts/prove`: what its commands print is on the page, and what fails is said."""

from pathlib import Path

import pytest

from benchmarks import prove
from benchmarks.prove import CLOSING, Command, parts, section, sections


def test_output_of_a_part_is_on_its_section() -> None:
    """With the command, as anybody can repeat it, and a table as a table."""
    holds, text = section("size", "Each is within its budget.", [Command("echo '| a | 1 |'")])

    assert holds
    assert text.startswith("## size\n\nEach is within its budget.\n\nholds: ")
    assert text.endswith("```sh\necho '| a | 1 |'\n```\n\n| a | 1 |")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            Command("sh -c 'echo 1 failed in 3s; exit 4'", CLOSING),
            "1 failed in 3s\n\nexit status 4",
        ),
        (Command("echo fine", needs=["no-such-program"]), "not run: no-such-program not found"),
    ],
)
def test_part_that_fails_or_cannot_run_does_not_hold(command: Command, reason: str) -> None:
    """The section gives the reason."""
    holds, text = section("tests", "All pass.", [Command("echo fine"), command])

    assert not holds
    assert "**does not hold**" in text
    assert reason in text


def test_one_part_keeps_the_sections_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page can be written part by part."""
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nOld.\n\n## suites\n\n1 passed\n\n## gone\n\nA part that went.\n")
    monkeypatch.setattr(prove, "RESULTS", page)
    monkeypatch.setattr("sys.argv", ["prove", "size"])

    with pytest.raises(SystemExit) as ended:
        prove.main()

    assert ended.value.code == 0
    found = sections(page.read_text("utf-8"))
    assert [*found] == ["size", "suites"]
    assert "| stores/ | " in found["size"]
    assert found["suites"] == "## suites\n\n1 passed"


def test_every_script_of_a_part_exists() -> None:
    """Paths and modules that the commands name are files of the project."""
    root = Path(__file__).parent.parent
    for _, commands in parts(1).values():
        for command in commands:
            words = command.line.replace('"', "").split("::")[0].split()
            named = [word for word in words if word.startswith(("scripts/", "tests"))]
            named += [
                f"{word.replace('.', '/')}.py" for word in words if word.startswith("benchmarks.")
            ]
            assert [word for word in named if not (root / word).exists()] == []
