"""scripts/release: what it refuses, what it builds, and what its wheel and sdist contain."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from email.parser import BytesParser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
VERSION = "1.2.3"
CHANGELOG = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-11-28\n\n- A change.\n"
# Of this repository alone, whatever the settings of the machine are.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{role}_NAME": "genmcp" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "genmcp@genmcp.example" for role in ("AUTHOR", "COMMITTER")},
}


def git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=tree,
        env={**os.environ, **GIT},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def write(tree: Path, name: str, text: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text, encoding="utf-8")


def release(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script of *tree*; it has no network."""
    return subprocess.run(
        [sys.executable, "scripts/release", *arguments],
        cwd=tree,
        env={**os.environ, **GIT, "PIP_NO_INDEX": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def commit(tree: Path) -> None:
    git(tree, "init", "--quiet", "--initial-branch", "main")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "The tree")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with what the script reads before it builds."""
    write(tmp_path, "scripts/release", (ROOT / "scripts" / "release").read_text("utf-8"))
    write(tmp_path, "genmcp/version.py", f'__version__ = "{VERSION}"\n')
    write(tmp_path, "pyproject.toml", (ROOT / "pyproject.toml").read_text("utf-8"))
    write(tmp_path, "SECURITY.md", "Report to authors@genmcp.example.\n")
    write(tmp_path, "CHANGELOG.md", CHANGELOG)
    commit(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("genmcp/new.py", "", "changes that are not committed:\n?? genmcp/new.py"),
        ("CHANGELOG.md", "# Changelog\n", f"no line `## [{VERSION}] - YYYY-MM-DD`"),
        (
            "CHANGELOG.md",
            CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- Another change.\n"),
            "changes under [Unreleased]",
        ),
        ("genmcp/version.py", '__version__ = "1.2.2"\n', f"has 1.2.2, not {VERSION}"),
    ],
)
def test_release_of_an_unprepared_tree_is_refused(
    tree: Path, name: str, text: str, reason: str
) -> None:
    """Each reason is named, and nothing is built."""
    write(tree, name, text)
    if "not committed" not in reason:
        commit(tree)

    done = release(tree, VERSION)

    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tree / "dist").exists()


def test_release_of_a_tagged_version_is_refused(tree: Path) -> None:
    """An index takes a version once."""
    git(tree, "tag", f"v{VERSION}")

    assert f"the tag v{VERSION} exists" in release(tree, VERSION).stderr


def test_release_without_an_address_is_not_published(tree: Path) -> None:
    """The addresses of the project are examples until it has a place of its own."""
    done = release(tree, VERSION, "--publish")

    assert done.returncode == 1
    assert "SECURITY.md has addresses that end in .example" in done.stderr
    assert not (tree / "dist").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_release_builds_and_checks_the_package(tmp_path: Path) -> None:
    """Both pass twine, check-wheel-contents and pyroma, and the links work on an index."""
    for name in git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path, "genmcp/version.py", f'__version__ = "{VERSION}"\n')
    write(tmp_path, "CHANGELOG.md", CHANGELOG)
    commit(tmp_path)

    done = release(tmp_path, VERSION)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was published" in done.stdout
    assert git(tmp_path, "tag") == ""
    assert git(tmp_path, "status", "--porcelain") == ""
    with ZipFile(tmp_path / "dist" / f"genmcp-{VERSION}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"genmcp-{VERSION}.dist-info/METADATA")
    assert {"genmcp/py.typed", "genmcp/__init__.pyi", "genmcp/console/page/index.html"} <= {*names}
    assert {name.split("/")[0] for name in names} == {"genmcp", f"genmcp-{VERSION}.dist-info"}
    described = BytesParser().parsebytes(metadata).get_payload()
    targets = re.findall(r"\]\(([^)]*)\)", str(described))
    assert targets
    assert [each for each in targets if not re.match("https?://|#", each)] == []
    assert f"https://genmcp.example/genmcp/blob/v{VERSION}/docs/" in str(described)
    with tarfile.open(tmp_path / "dist" / f"genmcp-{VERSION}.tar.gz") as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"CHANGELOG.md", "SECURITY.md", "tests/test_release.py", "scripts/test"} <= inside
