"""FastMCP's skills, and methods of extensions of the official SDK: as clients and as servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.client import SkillsClientExtension
from fastmcp.skills.extension import SkillsExtension
from starlette.applications import Starlette

from genmcp import Client, Endpoint, Suite
from genmcp.extensions import SkillRejected, Skills
from tests.support.serving import serve

pytestmark = pytest.mark.peers

SKILL = "---\nname: bolts\ndescription: >-\n  About\n  bolts.\ntags: [a, b]\n---\n\n# Bolts\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one skill."""
    (tmp_path / "bolts" / "sizes").mkdir(parents=True)
    (tmp_path / "bolts" / "SKILL.md").write_text(SKILL)
    (tmp_path / "bolts" / "sizes" / "metric.md").write_bytes(b"M3\r\n")
    return tmp_path


@asynccontextmanager
async def fastmcp_server(folder: Path) -> AsyncIterator[str]:
    server: Any = fastmcp.FastMCP("peer")
    provider = SkillsDirectoryProvider(folder, experimental_skills=True)
    server.add_provider(provider)
    server.add_extension(SkillsExtension(providers=[provider]))
    async with serve(server.http_app()) as url:
        yield f"{url}/mcp"


async def test_skills_of_fastmcp_are_loaded(folder: Path) -> None:
    """Its entries and files agree with what this client checks."""
    async with fastmcp_server(folder) as url, Client(url) as client:
        (skill,) = await client.skills()
        assert await skill.load() == SKILL
        assert await skill.read("sizes/metric.md") == b"M3\r\n"
        (folder / "bolts" / "sizes" / "metric.md").write_bytes(b"M4\r\n")
        with pytest.raises(SkillRejected):
            await skill.read("sizes/metric.md")
        assert await skill.refresh()

    assert skill.entry.frontmatter == {
        "name": "bolts",
        "description": "About bolts.",
        "tags": ["a", "b"],
    }


async def test_fastmcp_lists_skills(folder: Path) -> None:
    """Its client accepts the entries, and reads the files."""
    app = Starlette(routes=[Endpoint(Suite("s", extensions=[Skills(folder)])).route("/mcp")])
    async with (
        serve(app) as url,
        fastmcp.Client(f"{url}/mcp", extensions=[SkillsClientExtension()]) as client,
    ):
        (skill,) = await client.list_skills()
        (content,) = await client.read_resource(skill.uri)
        got: Any = await client.get_skill(skill.uri)

    assert str(skill.uri) == "skill://bolts/SKILL.md"
    assert content.text == SKILL
    assert got == skill
