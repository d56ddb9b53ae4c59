"""Skills in the console, in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from genmcp import Channel, Endpoint, Suite
from genmcp.extensions import Result, Skills
from genmcp.extensions.skill_entries import ListSkillsResult
from genmcp.server import Request
from tests.console import kitchen
from tests.console.test_console_browser import go, picture, visiting
from tests.support.chromium import accessibility_faults, open_browser
from tests.support.serving import serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SKILL = """\
---
name: refunds
description: Refunds an order.
license: MIT
---

Read `rules.md`. <b>Quickly</b>.
"""


class Swapped(Skills):
    """Lists other files than those that it serves, and an entry that is invalid."""

    async def handle(self, request: Request, channel: Channel) -> Result:
        page = await super().handle(request, channel)
        assert isinstance(page, ListSkillsResult)
        nameless = replace(page.skills[0], uri="skill://none/SKILL.md", frontmatter={})
        return replace(page, skills=[nameless, *map(self.swapped, page.skills)])

    def swapped(self, entry: object) -> object:
        files = [replace(each, digest=f"sha256:{'0' * 64}") for each in entry.resources]  # type: ignore[attr-defined]
        return replace(entry, resources=files)  # type: ignore[type-var]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one skill."""
    (tmp_path / "refunds").mkdir()
    (tmp_path / "refunds" / "SKILL.md").write_text(SKILL)
    (tmp_path / "refunds" / "rules.md").write_text("Up to 30 days.\n")
    return tmp_path


async def test_files_of_a_skill_are_read_on_demand(browser: Browser, folder: Path) -> None:
    """What it is for comes from its entry; a file is sent when the user asks for it."""
    endpoint = Endpoint(Suite("shop", extensions=[Skills(folder)]), console=True)
    async with serve(endpoint) as url, visiting(browser, url) as page:
        sent: list[str] = []
        page.on("request", lambda each: sent.append(each.headers.get("mcp-method", "")))
        await go(page, "Skills", "refunds")
        main = page.get_by_role("main")
        for text in ("Refunds an order.", "skill://refunds/SKILL.md", "MIT", "15 bytes"):
            await expect(main).to_contain_text(text)
        assert "resources/read" not in sent
        await page.get_by_role("button", name="rules.md").click()
        await expect(page.locator(".outcome pre")).to_have_text("Up to 30 days.\n")
        await page.get_by_role("button", name="SKILL.md").click()
        await expect(page.locator(".outcome pre")).to_have_text(SKILL)
        await expect(page.locator(".outcome .notice")).to_have_count(0)
        assert sent.count("resources/read") == 2
        assert await accessibility_faults(page) == []
        await picture(page, "skill")
        await page.keyboard.press("7")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Skills")


async def test_file_that_is_not_the_listed_one_is_marked(browser: Browser, folder: Path) -> None:
    """Its digest is that of the entry, or the user is warned."""
    endpoint = Endpoint(Suite("shop", extensions=[Swapped(folder)]), console=True)
    async with serve(endpoint) as url, visiting(browser, url) as page:
        await go(page, "Skills", "refunds")
        await expect(page.locator(".entries a")).to_have_count(1)
        await page.get_by_role("button", name="rules.md").click()
        await expect(page.locator(".outcome")).to_contain_text("its digest differs")


async def test_server_without_skills_has_no_section(browser: Browser) -> None:
    """And no key for it."""
    async with (
        serve(Endpoint(kitchen.suite, console=True)) as url,
        visiting(browser, url) as page,
    ):
        await expect(page.get_by_role("heading", level=1)).to_have_text("The kitchen")
        links = page.get_by_role("navigation").get_by_role("link")
        await expect(links).to_have_count(6)
        await page.keyboard.press("7")
        await expect(page.get_by_role("heading", level=1)).to_have_text("The kitchen")
