"""The documentation site in a browser: it fits, needs nothing else, and its search finds pages."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Error, Page, Request, expect

from tests.support.chromium import accessibility_faults, open_browser
from tests.support.site import SITE, served_site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

Scheme = Literal["light", "dark"]
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots" / "site"
SEARCH_TIMEOUT = 30_000  # milliseconds: the index is loaded, and built by a worker
EMPTY_INDEX = {"config": {"lang": [], "separator": " ", "pipeline": [], "fields": {}}, "docs": []}
# A page of each kind.
KINDS = {
    "home": "",
    "tutorial": "tutorial/7-jobs/",
    "class": "reference/client/",
    "settings": "reference/settings/",
    "errors": "reference/errors/",
    "commands": "reference/commands/",
    "guide": "how-to/nginx/",
    "concept": "concepts/continuations/",
    "diagram": "architecture/",
}
# Questions that users type, and the beginning of the title of the page that has the answer.
QUESTIONS = {
    "cancel a job": "Cancel a job",
    "behind nginx": "Behind nginx",
    "session not found": "Session not found",
    "structured output": "Structured output",
    "ask the user": "Ask the user",
    "run on two servers": "Run on two servers",
    "test a tool": "Test a tool",
    "login": "Require a login",
    "progress": "Report progress",
    "large result": "Large results",
    "from FastMCP": "From FastMCP",
    "database session": "Database session",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served_site() as url:
        yield url


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


async def opened(browser: Browser, width: int, scheme: Scheme) -> Page:
    return await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)


async def test_pages_fit_and_load_nothing_from_elsewhere(site: str, browser: Browser) -> None:
    """No page is wider than a telephone or a desktop; all that it loads is in the built site."""
    page = await opened(browser, 1440, "light")
    requests: list[Request] = []
    errors: list[Error] = []
    page.on("request", lambda each: requests.append(each))
    page.on("pageerror", lambda each: errors.append(each))
    # Its index is read anew by each page, and takes longer than all else; it has a test below.
    await page.route("**/search_index.json", lambda route: route.fulfill(json=EMPTY_INDEX))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    named = {path: name for name, path in KINDS.items()}
    folders = [path.parent.relative_to(SITE).as_posix() for path in SITE.rglob("index.html")]
    wider = {}
    for path in sorted("" if each == "." else f"{each}/" for each in folders):
        response = await page.goto(site + path)
        assert response is not None and response.ok
        if named.get(path) == "diagram":
            await expect(page.locator("div.mermaid").first).to_be_visible()
        for width in (1440, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            excess = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            wider[path, width] = excess
            if path in named:
                await page.screenshot(path=SCREENSHOTS / f"{named[path]}-{width}.png")

    assert {at: pixels for at, pixels in wider.items() if pixels > 0} == {}
    assert [each.url for each in requests if not each.url.startswith((site, "data:"))] == []
    assert errors == []


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("home", "light"), ("tutorial", "dark"), ("settings", "light"), ("guide", "dark")],
)
async def test_page_is_accessible(site: str, browser: Browser, kind: str, scheme: Scheme) -> None:
    """WCAG 2.2, levels A and AA. Diagrams are drawn by another library."""
    page = await opened(browser, 1440, scheme)
    await page.goto(site + KINDS[kind])

    assert await accessibility_faults(page) == []


async def test_search_finds_the_page_for_a_question(site: str, browser: Browser) -> None:
    """The right page is among the first three, for the questions that users type."""
    page = await opened(browser, 1440, "light")
    missed = {}
    for question, title in QUESTIONS.items():
        # The page types it itself, once its search is ready.
        await page.goto(f"{site}?q={quote(question)}")
        found = page.locator(".md-search-result__item h1")
        await expect(found.first).to_be_attached(timeout=SEARCH_TIMEOUT)
        titles = (await found.all_text_contents())[:3]
        if not any(each.startswith(title) for each in titles):
            missed[question] = titles

    assert missed == {}


def test_site_has_texts_for_language_models(site: str) -> None:
    """llms.txt lists the pages, each of which exists; llms-full.txt has all of their text."""
    listed = re.findall(r"^- \[.*\]\(http://[^/]*/(.*)\)$", (SITE / "llms.txt").read_text(), re.M)
    full = (SITE / "llms-full.txt").read_text("utf-8")

    assert len({*listed}) == len(listed)
    assert {"tutorial/1-first-tool/index.md", "reference/errors/index.md"} <= {*listed}
    assert [path for path in listed if not (SITE / path).is_file()] == []
    assert "A job that survives a kill" in full and "max_body_bytes" in full
