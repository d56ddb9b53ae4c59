"""`genmcp new`: writes a project with a tool, a test and a Dockerfile."""

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from string import Template
from typing import Final

from genmcp.cli.output import OutputError, private_output
from genmcp.cli.parsing import argument, command, option
from genmcp.errors import ConfigurationError
from genmcp.version import __version__

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)

_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "An MCP server"
requires-python = ">=3.11"
dependencies = [$dependencies]

[project.optional-dependencies]
test = ["pytest", "pytest-asyncio"]

[tool.hatch.build.targets.wheel]
only-include = ["server.py"]

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
pythonpath = ["."]
"""

_SERVER: Final = '''\
"""The MCP server $name."""

from typing import Annotated, TypedDict

from genmcp import Endpoint, Suite, ToolAnnotations, ToolError, tool

PRICES = {"M6x20": 0.12, "M8x30": 0.21}


class Quote(TypedDict):
    part: str
    total: float


@tool(annotations=ToolAnnotations(read_only_hint=True))
def quote(
    part: Annotated[str, "The part number, such as M6x20."],
    count: Annotated[int, "How many to order."] = 1,
) -> Quote:
    """Returns the price of an order."""
    if part not in PRICES:
        raise ToolError(f"There is no part {part}. Known parts: {', '.join(PRICES)}")
    return {"part": part, "total": round(count * PRICES[part], 2)}


suite = Suite(name="$name", version="0.1.0", tools=[quote])
app = Endpoint(suite)
'''

_PYDANTIC_SERVER: Final = '''\
"""The MCP server $name."""

from typing import Annotated

from pydantic import BaseModel, Field

from genmcp import Endpoint, Suite, ToolAnnotations, ToolError, tool

PRICES = {"M6x20": 0.12, "M8x30": 0.21}


class Quote(BaseModel):
    part: str
    total: float


@tool(annotations=ToolAnnotations(read_only_hint=True))
def quote(
    part: Annotated[str, Field(description="The part number, such as M6x20.")],
    count: Annotated[int, Field(description="How many to order.", ge=1)] = 1,
) -> Quote:
    """Returns the price of an order."""
    if part not in PRICES:
        raise ToolError(f"There is no part {part}. Known parts: {', '.join(PRICES)}")
    return Quote(part=part, total=round(count * PRICES[part], 2))


suite = Suite(name="$name", version="0.1.0", tools=[quote])
app = Endpoint(suite)
'''

_TEST: Final = '''\
"""The tools, called by a client in memory."""

from server import suite

from genmcp.testing import connect


async def test_quote() -> None:
    async with connect(suite) as client:
        result = await client.call("quote", {"part": "M6x20", "count": 10})
        assert result.data == {"part": "M6x20", "total": 1.2}


async def test_quote_of_unknown_part() -> None:
    async with connect(suite) as client:
        result = await client.call("quote", {"part": "M7"})
        assert result.is_error
        assert "M6x20" in result.text
'''

_DOCKERFILE: Final = """\
FROM python:3.13-slim

WORKDIR /srv
COPY pyproject.toml server.py ./
RUN pip install --no-cache-dir .

RUN useradd --system server
USER server
EXPOSE 8000
CMD ["uvicorn", "server:app", "--host", "0.0.0.0", "--port", "8000"]
"""

_README: Final = """\
# $name

An MCP server with [genmcp](https://pypi.org/project/genmcp/), in `server.py`.

```sh
pip install -e '.[test]'
```

```sh
pytest                                             # runs the tests
genmcp serve server:suite --reload --console       # serves it at http://127.0.0.1:8000/mcp
```

Open the address in a browser to try the tools. `genmcp install server:suite claude` adds the
server to Claude Desktop, and `genmcp lint server:suite` reports tools that clients would reject.

The server has no login: set one up before others can reach it.

```sh
docker build -t $image .
docker run -p 127.0.0.1:8000:8000 $image
```
"""

_GITIGNORE: Final = """\
/.venv/
__pycache__/
.pytest_cache/
/dist/
*.egg-info/
*.db
"""


@command("new", "write a project with a tool, a test and a Dockerfile into a new folder")
@argument("name", "the folder, whose name is that of the project and of its server")
@option("--pydantic", is_flag=True, help="declare arguments and results by pydantic")
def new(name: str, pydantic: bool) -> None:
    """Write a project, and name its files and the next commands."""
    folder = Path(name)
    written = write_project(folder, pydantic=pydantic)
    with private_output() as output:
        for path in written:
            output.write_line(f"wrote {path}")
        output.write_line(f"next: cd {quote(name)} && pip install -e '.[test]' && pytest")


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
    extra = "[pydantic]" if pydantic else ""
    dependencies = ", ".join(
        f'"{each}"' for each in (f"genmcp{extra}>={__version__}", "uvicorn>=0.34")
    )
    templates = {
        "pyproject.toml": _PYPROJECT,
        "server.py": _PYDANTIC_SERVER if pydantic else _SERVER,
        "test_server.py": _TEST,
        "Dockerfile": _DOCKERFILE,
        "README.md": _README,
        ".gitignore": _GITIGNORE,
    }
    values = {"name": name, "image": name.lower(), "dependencies": dependencies}
    return {path: Template(text).substitute(values) for path, text in templates.items()}


def write_project(folder: Path, *, pydantic: bool = False) -> list[Path]:
    """Write a project named after *folder* into it, and return the paths of its files.

    Args:
        folder: a folder that is empty or does not exist.
        pydantic: whether the tool has pydantic models. Default False.

    Raises:
        ConfigurationError: the folder is not empty, or its name is not one of a project.
        OutputError: a file cannot be written.
    """
    files = project_files(folder.absolute().name, pydantic=pydantic)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            kind = "is not empty" if folder.is_dir() else "is a file"
            raise ConfigurationError(f"{folder} {kind}: choose another name")
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for path, text in files.items():
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(text)
            written.append(folder / path)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}") from None
    return written
