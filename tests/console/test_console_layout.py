"""What the console shows of long lists, of calls that go on, and of the states of tasks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from genmcp import Endpoint, Suite, tool
from tests.console import kitchen
from tests.console.test_console_browser import (
    call,
    free_port,
    go,
    picture,
    start_review,
    visiting,
)
from tests.console.test_console_details import Ask
from tests.example_app.connecting import command, url_of
from tests.support.chromium import open_browser
from tests.support.serving import serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# Notes each moment at which list, page and activity show different states of the chosen task.
WATCH_STATES = """() => {
  window.different = [];
  const places = ['.entries a[aria-current] .badge', '.task .badge', '#activity .badge'];
  new MutationObserver(() => {
    const states = places.map((each) => document.querySelector(each)?.textContent);
    if (new Set(states).size > 1) window.different.push(states.join(', '));
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@tool
async def greet(name: str) -> list[str]:
    """Greets."""
    return [f"Hello, {name}"]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """The console of a server with one tool."""
    suite = Suite(name="one", version="1", tools=[greet])
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as visited:
        yield visited


async def test_states_of_a_task_agree_everywhere(browser: Browser) -> None:
    """Its list, its page and the activity have one state; a list alone follows the task as well."""
    tasks = Suite(name="tasks", version="1", tools=[Ask])
    async with serve(Endpoint(tasks, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "ask")
        await call(page)
        await expect(page.locator(".task .badge")).to_have_text("input required")
        await go(page, "Tasks")
        other = await page.context.new_page()
        await other.goto(f"{url}#/tasks")
        await expect(other.locator(".entries .badge")).to_have_text("input required")

        await page.locator(".entries a").click()
        question = page.get_by_role("region", name="Question of the server")
        await question.get_by_label("name").fill("Ann")
        await page.evaluate(WATCH_STATES)
        await question.get_by_role("button", name="Answer").click()
        await expect(page.locator(".task .badge")).to_have_text("completed")
        assert await page.locator(".entries .badge").text_content() == "completed"
        assert await page.evaluate("different") == []
        await expect(other.locator(".entries .badge")).to_have_text("completed")
        await other.locator(".entries a").click()
        await expect(other.locator(".outcome")).to_contain_text("Hello, Ann")
        await other.close()


async def test_tasks_are_followed_together(browser: Browser, tmp_path: Path) -> None:
    """Each is in its state, also the one that is not open. The picture is the one of the README."""
    async with (
        command(tmp_path, PORT=str(free_port())) as process,
        visiting(browser, await url_of(process)) as page,
    ):
        await page.set_viewport_size({"width": 1440, "height": 680})
        await start_review(page, 1_000_000)
        await go(page, "Overview")
        await go(page, "Tools", "Search parts")
        await call(page)
        await expect(page.locator(".outcome table")).to_be_visible()
        await start_review(page, 300)
        await go(page, "Tasks")
        states = page.locator(".entries .badge")
        await expect(states).to_have_text(["input required", "working"], timeout=60_000)
        running = page.locator("#activity .running")
        await expect(running.locator(".badge")).to_have_text(["input required", "working"])
        await expect(running).to_contain_text("of 205: ")
        await expect(page.get_by_role("link", name="Tasks 2", exact=True)).to_be_visible()
        await page.locator(".entries a").first.click()
        question = page.get_by_role("region", name="Question of the server")
        await expect(question).to_contain_text("Change them?")
        await picture(page, "console", full_page=False)
        await page.locator(".entries a").nth(1).click()
        await page.get_by_role("button", name="Cancel task").click()
        await expect(states).to_have_text(["input required", "cancelled"], timeout=30_000)


async def test_running_call_is_found_again(browser: Browser) -> None:
    """The activity shows it on every page, and its form still has its progress and its result."""
    async with serve(Endpoint(kitchen.suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "work")
        await call(page)
        await expect(page.locator(".logs")).to_be_visible()
        await go(page, "Resources")
        running = page.get_by_role("complementary").get_by_role("link", name="work")
        await expect(running).to_contain_text("1 of 4: warming up")
        await expect(running.get_by_role("progressbar")).to_have_js_property("position", 0.25)
        await running.click()
        await expect(page.locator(".call .status")).to_have_text("1 of 4: warming up")
        await go(page, "Events")
        kitchen.release()
        await expect(running).to_contain_text("completed")
        await running.click()
        await expect(page.locator(".outcome pre")).to_have_text("warm")


async def test_empty_required_text_is_flagged(page: Page) -> None:
    """It is a field that was forgotten; the JSON can say that the text is empty."""
    await go(page, "Tools", "greet")
    called: list[str] = []
    page.on("request", lambda sent: called.append(sent.headers.get("mcp-method", "")))
    await call(page)
    fault = page.locator(".field .fault")
    await expect(fault).to_have_text("This field is required. An empty text can be sent as JSON.")
    await expect(page.get_by_label("name")).to_be_focused()
    assert "tools/call" not in called

    await page.get_by_role("button", name="Edit as JSON").click()
    await page.get_by_label("The arguments as JSON").fill('{"name": ""}')
    await call(page)
    await expect(page.locator(".outcome")).to_contain_text("Hello, ")


async def test_counts_of_one_are_singular(page: Page) -> None:
    """One tool is no "1 tools"."""
    await expect(page.locator(".kinds")).to_have_text("1 tool")
    await go(page, "Tools")
    await expect(page.get_by_role("searchbox")).to_have_attribute("placeholder", "Search 1 tool")
    await expect(page.get_by_role("main")).to_contain_text("Choose one of 1 tool.")
    await page.locator(".entries a").click()
    await page.get_by_label("name").fill("Ann")
    await call(page)
    await expect(page.locator(".outcome")).to_contain_text("1 item")
    await expect(page.locator(".outcome")).not_to_contain_text("1 items")


async def test_long_list_shows_that_it_goes_on(browser: Browser) -> None:
    """A shade at its end, until the end is reached; the ring of the focus is inside of the list."""

    def numbered(number: int) -> object:
        @tool(name=f"tool-{number}")
        async def numbered() -> str:
            """One of many."""
            return "done"

        return numbered

    suite = Suite(name="long", version="1", tools=[numbered(each) for each in range(40)])
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools")
        frame = page.locator(".scrolling:has(> .entries)")
        await expect(frame).to_contain_class("more-below")
        await expect(frame).not_to_contain_class("more-above")
        await page.get_by_role("searchbox").focus()
        await page.keyboard.press("Tab")
        link = page.locator(".entries a").first
        await expect(link).to_be_focused()
        await expect(link).to_have_css("outline-offset", "-2px")
        await page.locator(".entries").evaluate("(list) => list.scrollTo(0, list.scrollHeight)")
        await expect(frame).not_to_contain_class("more-below")
        await expect(frame).to_contain_class("more-above")


async def test_search_gives_way_to_another_entry(browser: Browser) -> None:
    """An entry that is opened by a link is in the list, though a search has hidden it."""
    async with serve(Endpoint(kitchen.suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools")
        search = page.get_by_role("searchbox")
        await search.fill("order")
        await page.locator(".entries a").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("order")
        await expect(search).to_have_value("order")  # the entry is among those that were found
        await page.evaluate("location.hash = '#/tools/fail'")
        await expect(page.get_by_role("heading", level=1)).to_have_text("fail")
        await expect(search).to_have_value("")
        await expect(page.locator(".entries a[aria-current]")).to_contain_text("fail")


async def test_error_of_a_tool_is_not_reported_as_done(browser: Browser) -> None:
    """Its state says so, and the pill is as wide as its text."""
    async with serve(Endpoint(kitchen.suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "fail")
        await call(page)
        await expect(page.locator(".call .status")).to_contain_text("reported an error after")
        pill = await page.locator(".result .badge").bounding_box()
        assert pill is not None
        assert pill["width"] < 100
        await expect(page.get_by_role("complementary")).to_contain_text("failed")
