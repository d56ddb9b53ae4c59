"""The console in a real browser, against a real server. Pictures are kept in .screenshots/."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from genmcp import Endpoint, Suite, Tool
from genmcp.resources.resource import Resource
from tests.console import kitchen
from tests.example_app.connecting import command, url_of
from tests.support.chromium import accessibility_faults, open_browser
from tests.support.serving import serve

PICTURES = Path(__file__).parents[2] / ".screenshots"

# The words and numbers on more than one line. Addresses, ids and programs are not words.
BROKEN_WORDS = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const broken = [];
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.parentElement.closest('script, style, code, pre, textarea, option')) continue;
    for (const { 0: word, index } of text.data.matchAll(/[\\p{L}\\p{N}_.,]+/gu)) {
      const range = document.createRange();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
      if (lines.size > 1) broken.push(word);
    }
  }
  return broken;
}"""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@asynccontextmanager
async def visiting(browser: Browser, url: str, **options: object) -> AsyncIterator[Page]:
    """A page in a window of its own; an error of its script fails the test."""
    context = await browser.new_context(viewport={"width": 1200, "height": 900}, **options)  # type: ignore[arg-type]
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    try:
        await page.goto(url)
        yield page
    finally:
        await context.close()
    # The browser reports each failed request; what the page does about it is tested.
    assert [each for each in faults if not each.startswith("Failed to load resource")] == []


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """The console of the server in `kitchen`."""
    async with (
        serve(Endpoint(kitchen.suite, console=True)) as url,
        visiting(browser, url) as visited,
    ):
        yield visited


async def picture(page: Page, name: str, *, full_page: bool = True) -> None:
    PICTURES.mkdir(exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=full_page)


async def go(page: Page, section: str, entry: str | None = None) -> None:
    """Go to an entry of a section as a user does."""
    link = page.get_by_role("navigation").get_by_role("link", name=section)
    await link.click()
    # The list of the section before is there until that of this one has arrived.
    await expect(link).to_have_attribute("aria-current", "page")
    await expect(page.get_by_role("main")).not_to_have_attribute("aria-busy", "true")
    if entry is not None:
        await page.locator(".entries a").filter(has_text=entry).first.click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(entry)


async def call(page: Page, name: str = "Call") -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def test_overview_tells_what_the_server_is(page: Page) -> None:
    """Its name, instructions, revisions, capabilities, and lines to copy."""
    await expect(page.get_by_role("heading", level=1)).to_have_text("The kitchen")
    main = page.get_by_role("main")
    for text in ("kitchen 1.2", "Cook with care.", "2026-07-28, 2025-11-25", page.url):
        await expect(main).to_contain_text(text)
    for client, text in (("Claude Code", "claude mcp add"), ("mcp.json", '"mcpServers"')):
        await page.get_by_role("tab", name=client).click()
        await expect(page.get_by_role("tabpanel")).to_contain_text(text)
    assert await page.title() == "The kitchen"
    await picture(page, "overview")


async def test_overview_offers_the_first_tools(page: Page) -> None:
    """A newcomer sees what can be tried, and how much there is."""
    kinds = page.locator(".kinds a")
    await expect(kinds).to_have_text(["9 tools", "2 resources", "1 prompt"])
    await expect(page.locator(".cards a")).to_have_count(6)
    await page.locator(".cards").get_by_role("link", name="order").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("order")


async def test_form_has_a_field_for_each_argument(page: Page) -> None:
    """Nested objects, lists, choices, variants, dates, defaults and any JSON."""
    await go(page, "Tools", "order")
    await page.get_by_label("customer").fill("Ann")
    await page.get_by_role("button", name="Add").click()
    await page.get_by_label("article").fill("screw")
    await page.get_by_label("count").fill("3")
    await page.get_by_label("ship_to").check()
    await page.get_by_label("street").fill("Hill 1")
    await page.get_by_label("payment").select_option(label="kind: card")
    await page.get_by_label("number").fill("123")
    await page.get_by_label("when").fill("2026-12-24")
    await page.get_by_label("size").select_option("large")
    await page.get_by_label("gift").select_option("true")
    await page.get_by_label("notes").fill('{"a": [1]}')
    await picture(page, "form")
    await call(page)

    await expect(page.locator(".outcome")).to_contain_text("screw")
    await page.get_by_text("Request and answer").click()
    await page.get_by_role("tab", name="Request").click()
    sent = page.get_by_role("tabpanel").locator("pre")
    for text in ('"city": "Bonn"', '"kind": "card"', '"when": "2026-12-24"', '"count": 3'):
        await expect(sent).to_contain_text(text)


async def test_faults_are_shown_at_their_fields(page: Page) -> None:
    """Those that the page finds, and those that only the server finds."""
    await go(page, "Tools", "order")
    await page.get_by_label("customer").fill("A")
    await call(page)
    customer = page.locator(".field").filter(has_text="customer")
    await expect(customer.locator(".fault")).to_have_text("Enter at least 2 characters.")
    await expect(page.get_by_label("customer")).to_have_attribute("aria-invalid", "true")

    await page.get_by_label("customer").fill("Ann")
    await page.get_by_label("weight").fill("heavy")
    await call(page)
    weight = page.locator(".field").filter(has_text="weight")
    await expect(weight.locator(".fault")).to_have_text("Enter a number.")

    await page.get_by_label("weight").fill("1")
    await page.get_by_label("ship_to").check()
    await page.get_by_role("button", name="Edit as JSON").click()
    text = page.get_by_label("The arguments as JSON")
    await text.fill('{"customer": "Ann", "lines": [{"article": "x", "count": 10}]}')
    await page.get_by_role("button", name="Edit as a form").click()
    await call(page)
    number = page.locator(".item .field").filter(has_text="count")
    await expect(number.locator(".fault")).to_have_text("The most is 9.")
    await picture(page, "faults")


async def test_fault_of_the_server_is_shown_at_its_field(page: Page) -> None:
    """With the JSON the user can send what the form would refuse."""
    await go(page, "Tools", "order")
    await page.get_by_role("button", name="Edit as JSON").click()
    text = page.get_by_label("The arguments as JSON")
    await text.fill('{"customer": "Ann", "lines": [], "ship_to": {"city": "Rome"}}')
    await call(page)

    await expect(page.locator(".schema-form > .fault")).to_contain_text("/ship_to")
    await expect(page.locator(".result.failed")).to_contain_text("street")


async def test_result_is_shown_by_its_type(page: Page) -> None:
    """Texts as texts, whatever they contain; structured content as a tree and tables."""
    await go(page, "Tools", "show")
    await call(page)
    result = page.locator(".outcome")

    await expect(result.locator("pre").first).to_have_text(kitchen.MARKUP)
    await expect(result.locator("img")).to_have_js_property("naturalWidth", 1)
    await expect(result.locator("audio")).to_be_visible()
    await expect(result.get_by_role("link", name="The counter")).to_be_visible()
    await expect(result).to_contain_text("An embedded note")
    await expect(result.locator("table th")).to_have_text(["a", "b"])
    await expect(result.locator("table tbody tr")).to_have_count(2)
    assert await page.title() == "The kitchen"  # the markup was not run
    await picture(page, "result")
    await result.get_by_role("link", name="The counter").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("counter")


async def test_same_call_elsewhere_is_offered(page: Page) -> None:
    """As curl and as Python; the command works as it is."""
    await go(page, "Tools", "fail")
    await call(page)
    await expect(page.locator(".result.failed")).to_contain_text("There is no more paper.")
    await page.get_by_text("Request and answer").click()
    curl = await page.get_by_role("tabpanel").locator("pre").inner_text()
    await page.get_by_role("tab", name="Python").click()
    program = page.get_by_role("tabpanel").locator("pre")
    await expect(program).to_contain_text('await client.call("fail", {})')

    process = await asyncio.create_subprocess_shell(
        curl, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    assert b"There is no more paper." in answer


async def test_running_call_shows_progress_and_logs(page: Page) -> None:
    """While it runs, and not at its end."""
    await go(page, "Tools", "work")
    await call(page)
    await expect(page.locator(".call .status")).to_have_text("1 of 4: warming up")
    await expect(page.locator(".call progress")).to_have_js_property("position", 0.25)
    await expect(page.locator(".logs")).to_have_text("warning It is cold.")
    await picture(page, "progress")

    kitchen.release()
    await expect(page.locator(".outcome pre")).to_have_text("warm")


async def test_running_call_can_be_cancelled(page: Page) -> None:
    """The server sees that the client has left."""
    await go(page, "Tools", "work")
    await call(page)
    await expect(page.locator(".logs")).to_be_visible()
    await call(page, "Cancel")

    await expect(page.locator(".call .status")).to_have_text("Cancelled")


async def test_question_of_a_call_is_answered_on_the_page(page: Page) -> None:
    """A form, validated as that of a tool."""
    await go(page, "Tools", "ask")
    await call(page)
    question = page.get_by_role("region", name="Question of the server")
    await expect(question).to_contain_text("Who are you?")
    await question.get_by_label("name").fill("Ann")
    await picture(page, "question")
    await question.get_by_role("button", name="Answer").click()

    await expect(page.locator(".outcome")).to_have_text("Hello, Ann")


async def test_question_can_be_declined(page: Page) -> None:
    """The tool ends as it does with every client."""
    await go(page, "Tools", "ask")
    await call(page)
    await call(page, "Decline")

    await expect(page.locator(".outcome")).to_contain_text("The user declined.")


async def test_url_is_shown_before_it_is_opened(page: Page) -> None:
    """The user decides by its host."""
    await go(page, "Tools", "visit")
    await call(page)
    question = page.get_by_role("region", name="Question of the server")
    await expect(question.locator("strong")).to_have_text("pay.example.com")
    link = question.get_by_role("link", name="Open")
    await expect(link).to_have_attribute("href", "https://pay.example.com/bill/7")
    await expect(link).to_have_attribute("rel", "noopener noreferrer")
    await question.get_by_role("button", name="Decline").click()

    await expect(page.locator(".outcome")).to_contain_text("The user declined.")


async def test_template_is_completed_and_read(page: Page) -> None:
    """The server suggests values while the user types."""
    await go(page, "Resources", "city")
    await page.get_by_label("name").fill("B")
    await expect(page.locator("datalist option")).to_have_count(2)
    await page.get_by_label("name").fill("Bonn")
    await page.get_by_label("country").fill("D & E")
    await page.get_by_role("button", name="Read").click()

    await expect(page.locator(".outcome")).to_contain_text("Bonn in D & E")
    await picture(page, "resource")


async def test_unlisted_resource_waits_for_a_click(browser: Browser) -> None:
    """Another site can open the page at a URI of its choice; a listed one is read at once."""
    async with (
        serve(Endpoint(kitchen.suite, console=True)) as url,
        visiting(browser, f"{url}#/resources/counter%3A%2F%2Fvalue") as page,
    ):
        await expect(page.locator(".outcome")).to_contain_text("value:")
        read: list[str] = []
        page.on("request", lambda sent: read.append(sent.headers.get("mcp-method", "")))
        await page.goto("about:blank")
        await page.goto(f"{url}#/resources/city%3A%2F%2FD%2FBonn")

        await expect(page.get_by_role("main")).to_contain_text("does not list this resource")
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        assert "server/discover" in read
        assert "resources/read" not in read
        await call(page, "Read")
        await expect(page.locator(".outcome")).to_contain_text("Bonn in D")
        assert read.count("resources/read") == 1
        await expect(page.get_by_role("button", name="Read again")).to_be_visible()


async def test_prompt_is_shown_as_messages(page: Page) -> None:
    """Its arguments are completed, too."""
    await go(page, "Prompts", "review")
    await page.get_by_label("language").fill("ru")
    await expect(page.locator("datalist option[value=rust]")).to_have_count(1)
    await page.get_by_label("code").fill("x = 1")
    await page.get_by_label("language").fill("rust")
    await call(page, "Get")

    await expect(page.locator(".message.user")).to_contain_text("Review this rust: x = 1")
    await picture(page, "prompt")


async def test_subscribed_resource_is_read_again(browser: Browser) -> None:
    """Another client changes it, and the page follows."""
    async with (
        serve(Endpoint(kitchen.suite, console=True)) as url,
        visiting(browser, url) as page,
        visiting(browser, url) as other,
    ):
        await go(page, "Resources", "counter")
        before = kitchen.counter["value"]
        await expect(page.locator(".outcome")).to_contain_text(f"value: {before}")
        await page.get_by_label("Read again when it changes").check()
        following = page.get_by_text("Following changes.")
        await expect(following).to_have_text("Following changes. None yet.")
        await go(other, "Tools", "count")
        await call(other)
        await expect(page.locator(".outcome")).to_contain_text(f"value: {before + 1}")
        await expect(following).to_contain_text("1 change, the last at ")
        activity = page.get_by_role("complementary", name="Activity")
        await expect(activity).to_contain_text("counter://value has changed")
        await go(page, "Events")
        await expect(page.locator(".events")).to_contain_text("notifications/resources/updated")
        await picture(page, "events")


async def test_list_follows_the_server(browser: Browser) -> None:
    """A tool that is added appears without a reload."""
    suite = Suite(name="grows", version="1", tools=[kitchen.fail])
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Events")
        await expect(page.get_by_text("Listening.")).to_be_visible()
        await go(page, "Tools")
        await expect(page.locator(".entries a")).to_have_count(1)
        suite.add(kitchen.show)
        await expect(page.locator(".entries a")).to_have_count(2)


async def test_page_works_by_keyboard(page: Page) -> None:
    """Numbers go to the sections, a slash to the search, Ctrl-Enter calls."""
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await page.keyboard.press("2")
    await expect(page.locator(".entries a")).to_have_count(9)
    await page.keyboard.press("/")
    await page.keyboard.type("asks for a name")
    await expect(page.locator(".entries a")).to_have_count(1)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("ask")
    await page.get_by_label("greeting").focus()
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_label("name")).to_be_focused()
    await page.keyboard.type("Eve")
    await page.keyboard.press("Enter")

    await expect(page.locator(".outcome")).to_have_text("Hello, Eve")


async def test_single_keys_can_be_turned_off(page: Page) -> None:
    """Speech input may press them by accident (WCAG 2.1.4)."""
    await page.get_by_text("Keys", exact=True).click()
    await page.get_by_label("Use single keys").uncheck()
    await page.reload()
    await page.get_by_text("Keys", exact=True).click()
    await expect(page.get_by_label("Use single keys")).not_to_be_checked()
    await page.keyboard.press("2")
    await page.keyboard.press("Control+2")
    await expect(page.get_by_role("heading", level=1)).to_have_text("The kitchen")
    await page.get_by_label("Use single keys").check()
    await page.get_by_label("Use single keys").blur()
    await page.keyboard.press("2")
    await expect(page.locator(".entries a")).to_have_count(9)


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 768), ("light", 1440)])
async def test_page_is_accessible(browser: Browser, theme: str, width: int) -> None:
    """WCAG AA in both themes; nothing is wider than the screen, and no word is broken."""
    async with (
        serve(Endpoint(kitchen.suite, console=True)) as url,
        visiting(browser, url, color_scheme=theme) as page,
    ):
        await page.set_viewport_size({"width": width, "height": 800})
        for section, entry in [
            *(("Overview", None), ("Tools", "order"), ("Resources", "counter")),
            *(("Prompts", "review"), ("Tasks", None), ("Events", None), ("Tools", "ask")),
            *(("Tools", "fail"), ("Tools", "stock"), ("Overview", None)),
        ]:
            await go(page, section, entry)
            if entry == "ask":
                await call(page)
                await expect(page.get_by_label("name")).to_be_visible()
            elif entry in ("fail", "stock"):
                await call(page)
                await expect(page.locator(".result")).to_be_visible()
            await page.wait_for_function("!document.querySelector('main').ariaBusy")
            assert await accessibility_faults(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate(BROKEN_WORDS) == []
            await picture(page, f"{theme}-{width}-{section}-{entry}")


async def test_theme_is_chosen_and_kept(page: Page) -> None:
    """Over a reload."""
    root = page.locator("html")
    await expect(root).to_have_attribute("data-theme", "light")
    await page.get_by_role("button", name="Dark theme").click()
    await expect(root).to_have_attribute("data-theme", "dark")
    await page.reload()
    await expect(root).to_have_attribute("data-theme", "dark")


async def test_many_entries_are_searched(browser: Browser) -> None:
    """The list shows the first of them, and the search finds each."""

    class Numbered(Tool):
        description = "One of many."

        def __init__(self, number: int) -> None:
            self.name = f"tool-{number}"

        async def call(self, request: object, channel: object) -> str:
            return self.name

    class Page(Resource):
        def __init__(self, number: int) -> None:
            self.uri = f"page://{number}"
            self.name = f"page {number}"

        async def read(self, key: object, channel: object) -> str:
            return "text"

    suite = Suite(
        name="many",
        version="1",
        tools=[Numbered(number) for number in range(1000)],
        resources=[Page(number) for number in range(10_000)],
    )
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        for section, count, last in (
            ("Tools", 1000, "tool-999"),
            ("Resources", 10_000, "page 9999"),
        ):
            await go(page, section)
            await expect(page.get_by_text(f"The first 200 of {count}")).to_be_visible()
            await page.get_by_role("searchbox").fill(last)
            await expect(page.locator(".entries a")).to_have_count(1)
            await page.locator(".entries a").click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(last)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def start_review(page: Page, simulations: int) -> None:
    await go(page, "Tools", "Review the minimums")
    await page.get_by_label("simulations").fill(str(simulations))
    await call(page)
    await expect(page.locator(".task .badge")).to_have_text("working")


@pytest.mark.chaos
async def test_task_goes_on_after_the_server_was_killed(browser: Browser, tmp_path: Path) -> None:
    """The page waits for the server, and shows the question and the result of the same task."""
    port = str(free_port())
    async with command(tmp_path, PORT=port) as process:
        url = await url_of(process)
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(url)
        await start_review(page, 20_000)
        process.kill()
        await process.wait()
        await expect(page.get_by_text("Trying again…")).to_be_visible()
    async with command(tmp_path, PORT=port) as process:
        await url_of(process)
        question = page.get_by_role("region", name="Question of the server")
        await expect(question).to_contain_text("Change them?", timeout=120_000)
        await picture(page, "task-question")
        await question.get_by_role("button", name="Answer").click()
        await expect(page.locator(".task .badge")).to_have_text("completed", timeout=30_000)
        await expect(page.locator(".outcome table").first).to_be_visible()
        await picture(page, "task-result")
        await context.close()


async def test_tasks_are_there_after_a_reload(browser: Browser, tmp_path: Path) -> None:
    """Their ids are in the browser; their state is asked of the server."""
    async with (
        command(tmp_path, PORT=str(free_port())) as process,
        visiting(browser, await url_of(process)) as page,
    ):
        await start_review(page, 1_000_000)
        await page.reload()
        await expect(page.get_by_role("link", name="Tasks 1", exact=True)).to_be_visible()
        await go(page, "Tasks")
        await page.locator(".entries a").click()
        await expect(page.locator(".task .badge")).to_have_text("working")
        await page.get_by_role("button", name="Cancel task").click()
        await expect(page.locator(".task .badge")).to_have_text("cancelled", timeout=30_000)
        await page.get_by_text("History").click()
        await expect(page.locator(".history")).to_contain_text("cancelled")
        await page.get_by_role("button", name="Forget").click()
        await expect(page.get_by_text("No call of this browser")).to_be_visible()


async def test_user_logs_in_on_the_page(browser: Browser, tmp_path: Path) -> None:
    """With PKCE at the authorization server; the token stays in this window."""
    async with (
        command(tmp_path, PORT=str(free_port()), EXAMPLE_LOGIN="1") as process,
        visiting(browser, await url_of(process)) as page,
    ):
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("button", name="Allow").click()  # at the authorization server
        await expect(page.get_by_role("heading", level=1)).to_have_text("Bicycle workshop")
        await go(page, "Tools", "List repairs")
        await call(page)
        await expect(page.locator(".outcome table").first).to_be_visible()
        await picture(page, "login")


async def test_form_is_kept_while_the_user_grants_a_scope(browser: Browser, tmp_path: Path) -> None:
    """The call of a tool that needs a further scope is then one click away."""
    async with (
        command(tmp_path, PORT=str(free_port()), EXAMPLE_LOGIN="1") as process,
        visiting(browser, await url_of(process)) as page,
    ):
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("button", name="Allow").click()
        await go(page, "Tools", "Book a delivery")
        await page.get_by_label("supplier").fill("Ines & Co")
        await page.get_by_label("csv").fill("number,quantity\nBC-101,3")
        await call(page)
        await expect(page.get_by_role("region", name="Log in")).to_contain_text("deliveries")
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("button", name="Allow").click()
        await expect(page.get_by_label("supplier")).to_have_value("Ines & Co")
        await call(page)
        await expect(page.locator(".outcome")).to_contain_text("BC-101")
