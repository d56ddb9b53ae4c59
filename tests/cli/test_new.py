"""The project that `genmcp new` writes: its test passes, and it is served."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from genmcp import Client
from genmcp.cli.new import project_files, write_project
from genmcp.cli.output import CommandError
from genmcp.errors import ConfigurationError

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]
TIMEOUT = 40  # seconds for a process


def environment() -> dict[str, str]:
    """The present environment, in which the project is not installed."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(params=[False, True], ids=["plain", "pydantic"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "my-parts"
    write_project(folder, pydantic=request.param)
    return folder


def test_new_project_passes_its_test(project: Path) -> None:
    """By the configuration that it has itself, and without a warning."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "Warning" not in done.stderr


async def test_new_project_is_served_by_uvicorn(project: Path) -> None:
    """A real process, with the command of its Dockerfile but for the address."""
    found = re.search(r'^CMD \["(uvicorn)", "(server:app)"', dockerfile(project), re.MULTILINE)
    assert found
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", found[1], found[2], "--port", "0"),
        cwd=project,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            while not (url := re.search(rb"http://\S+", await process.stderr.readline())):
                pass
            async with Client(f"{url[0].decode()}/mcp") as client:
                result = await client.call("quote", {"part": "M8x30", "count": 2})
                assert result.structured == {"part": "M8x30", "total": 0.42}
                assert client.server_info is not None
                assert client.server_info.name == "my-parts"
    finally:
        process.terminate()
        await process.communicate()


def test_new_project_has_no_lint(project: Path, run: Run) -> None:
    """Its tool is an example."""
    command = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "genmcp"])
    served = f"{command} serve {project / 'server.py'} --stdio"

    assert run("tools", served)[1].startswith("quote part=string [count=integer]\n")
    assert run("lint", served) == (0, "", "genmcp: 1 tools, 0 violations\n")


def test_new_project_is_formatted(project: Path) -> None:
    """ruff would change nothing."""
    for command in (["format", "--check"], ["check", "--select", "E,F,I,UP"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(project)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_new_project_is_a_distribution(project: Path) -> None:
    """The metadata, and the module that the Dockerfile installs."""
    found = tomllib.loads((project / "pyproject.toml").read_text())

    assert found["project"]["name"] == "my-parts"
    assert found["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == ["server.py"]
    assert "COPY . .\n" in dockerfile(project)


def dockerfile(project: Path) -> str:
    return (project / "Dockerfile").read_text()


def test_new_project_refuses_a_folder_in_use(tmp_path: Path) -> None:
    """Nothing is written into it; an empty folder is used."""
    used, file, empty = tmp_path / "used", tmp_path / "file", tmp_path / "empty"
    for folder in (used, empty):
        folder.mkdir()
    (used / "notes.txt").write_text("mine")
    file.write_text("mine")

    with pytest.raises(ConfigurationError, match="used is not empty"):
        write_project(used)
    with pytest.raises(ConfigurationError, match="file is a file"):
        write_project(file)
    assert [each.name for each in used.iterdir()] == ["notes.txt"]
    assert {each.name for each in write_project(empty)} == {*project_files("empty")}
    with pytest.raises(CommandError, match="cannot write"):
        write_project(file / "inside")


@pytest.mark.parametrize("name", ["", "-x", "a b", 'a"b', "a\nb", "é", "x."])
def test_new_project_refuses_a_name(name: str) -> None:
    """It is the name of a distribution, and part of several files."""
    with pytest.raises(ConfigurationError, match="is not a name"):
        project_files(name)


def test_new_command_names_its_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next command, of a published genmcp; a folder in use is an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("genmcp.cli.new._source", lambda: None)

    status, said, _ = run("new", "parts")

    assert status == 0
    lines = said.splitlines()
    assert lines[:-1] == [f"wrote {Path('parts') / name}" for name in project_files("parts")]
    assert lines[-1] == "next: cd parts && pip install -e '.[test]' && pytest"
    assert "RUN pip install --no-cache-dir .\n" in dockerfile(tmp_path / "parts")
    assert run("new", "parts")[::2] == (2, "genmcp: parts is not empty: choose another name\n")


@pytest.mark.parametrize(
    ("installed", "source"),
    [
        (None, None),
        ('{"url": "file:///src/a b", "dir_info": {"editable": true}}', "file:///src/a b"),
        (
            '{"url": "https://a.example/x", "vcs_info": {"vcs": "git", "commit_id": "1f"}}',
            "git+https://a.example/x@1f",
        ),
    ],
)
def test_new_project_of_an_unpublished_genmcp_builds_it(
    installed: str | None,
    source: str | None,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From where it was installed, into a folder in which pip finds it, in the image too."""
    monkeypatch.chdir(tmp_path)
    distribution = SimpleNamespace(read_text=lambda _: installed)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: distribution)

    last = run("new", "parts")[1].splitlines()[-1]

    if source is None:
        assert "wheels" not in last + dockerfile(tmp_path / "parts")
        return
    build = f"pip wheel --no-deps --wheel-dir wheels {shlex.quote(source)}"
    assert f"{build} && pip install --find-links wheels -e '.[test]' && pytest" in last
    assert "RUN pip install --no-cache-dir --find-links wheels .\n" in dockerfile(
        tmp_path / "parts"
    )
    assert f"```sh\n{build}\n" in (tmp_path / "parts" / "README.md").read_text()


@pytest.mark.peers
@pytest.mark.timeout(400)
def test_new_project_works_in_a_fresh_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed commands are run as they are; genmcp need not be published."""
    monkeypatch.chdir(tmp_path)
    commands = run("new", "my-parts")[1].splitlines()[-1].removeprefix("next: ")
    subprocess.run([sys.executable, "-m", "venv", "venv"], check=True)
    path = f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["sh", "-c", commands],
        env={**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr
