"""`genmcp new`: writes a project with a tool, a test and a Dockerfile.

The files are templates in the folder `project`, with the endings `.txt`.
"""

import re
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path
from shlex import quote
from string import Template
from typing import Final

import click
import msgspec

from genmcp.cli.output import CommandError, private_output
from genmcp.cli.parsing import example
from genmcp.errors import ConfigurationError
from genmcp.version import __version__

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_FILES: Final = (
    *("pyproject.toml", "server.py", "test_server.py", "Dockerfile", "README.md"),
    *(".gitignore", ".dockerignore"),
)
_INSTALL: Final = "pip install -e '.[test]'"


@click.command("new", epilog=example("new my-server"))
@click.argument("name")
@click.option("--pydantic", is_flag=True, help="declare arguments and results by pydantic")
def new(name: str, pydantic: bool) -> None:
    """Write a project with a tool, a test and a Dockerfile into the new folder NAME."""
    folder = Path(name)
    written = write_project(folder, pydantic=pydantic)
    with private_output() as output:
        for path in written:
            output.write_line(f"wrote {path}")
        commands = ["cd " + quote(name), *_install_commands(), "pytest"]
        output.write_line(f"next: {' && '.join(commands)}")


def _install_commands() -> list[str]:
    """Return the commands that install a project.

    A genmcp that did not come from an index, such as a checkout, is built into the folder `wheels`
    of the project first: a fresh environment, and the image, find it there.
    """
    source = _source()
    if source is None:
        return [_INSTALL]
    build = f"pip wheel --no-deps --wheel-dir wheels {quote(source)}"
    return [build, _INSTALL.replace("install", "install --find-links wheels")]


def _source() -> str | None:
    """Return what genmcp was installed from (PEP 610), as pip takes it; None for an index."""
    try:
        text = metadata.distribution("genmcp").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    found = msgspec.json.decode(text)
    if vcs := found.get("vcs_info"):
        return f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}"
    return str(found["url"])


def project_files(name: str, *, pydantic: bool = False) -> Mapping[str, str]:
    """Return the files of a project by their paths.

    Args:
        name: the name of the project and of its server.
        pydantic: whether the tool has pydantic models. Default False.

    Raises:
        ConfigurationError: *name* is not the name of a Python distribution.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a name: letters, digits, '-', '_' and '.', with a letter or digit at "
            f"both ends"
        )
    commands = _install_commands()
    values = {
        "name": name,
        "image": name.lower(),
        "genmcp": f"genmcp{'[pydantic]' if pydantic else ''}>={__version__}",
        "install": "\n".join(commands),
        "options": "--find-links wheels " if len(commands) > 1 else "",
    }
    templates = resources.files("genmcp.cli") / "project"
    files = {}
    for path in _FILES:
        template = "server_pydantic.py" if pydantic and path == "server.py" else path.lstrip(".")
        text = (templates / f"{template}.txt").read_text("utf-8")
        files[path] = Template(text).substitute(values)
    return files


def write_project(folder: Path, *, pydantic: bool = False) -> list[Path]:
    """Write a project named after *folder* into it, and return the paths of its files.

    Args:
        folder: a folder that is empty or does not exist.
        pydantic: whether the tool has pydantic models. Default False.

    Raises:
        ConfigurationError: the folder is not empty, or its name is not one of a project.
        CommandError: a file cannot be written.
    """
    files = project_files(folder.absolute().name, pydantic=pydantic)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            kind = "is not empty" if folder.is_dir() else "is a file"
            raise ConfigurationError(f"{folder} {kind}: choose another name")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}") from None
    return [folder / path for path in files]
