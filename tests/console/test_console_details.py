"""The console with difficult schemas, large results, and calls that are left or cancelled."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from genmcp import Channel, Continue, Endpoint, Suite, Tool, ToolRequest, elicit, tool
from tests.console import kitchen
from tests.console.test_console_browser import call, go, visiting
from tests.support.chromium import open_browser
from tests.support.serving import serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LONG = 2**63 - 1  # a number of JavaScript is exact up to 2**53


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


class Echo(Tool):
    """Returns its arguments."""

    name = "echo"
    input_schema = {
        "type": "object",
        "properties": {
            "sure": {"type": "boolean"},
            "number": {"type": "integer"},
            "at": {
                "type": "string",
                "format": "date-time",
                "default": "2026-01-02T03:04:05.678901Z",
            },
            "both": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
            "place": {"allOf": [{"$ref": "#/$defs/place"}], "description": "Where."},
            "node": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            "owner": {
                "anyOf": [
                    {"type": "object", "properties": {"name": {"type": "string"}}},
                    {"type": "null"},
                ]
            },
        },
        "required": ["sure", "number", "place", "owner"],
        "patternProperties": {"^x-": {"type": "string"}},
        "$defs": {
            "place": {"type": "object", "properties": {"city": {"type": "string"}}},
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    "pair": {"$ref": "#/$defs/pair"},
                },
            },
            "pair": {
                "type": "object",
                "properties": {
                    "left": {"$ref": "#/$defs/pair"},
                    "right": {"$ref": "#/$defs/pair"},
                },
                "required": ["left", "right"],
            },
        },
    }

    async def call(self, request: ToolRequest, channel: Channel) -> dict[str, Any]:
        return dict(request.arguments)


@tool
async def large() -> list[dict[str, int | str]]:
    """Returns many rows."""
    return [{"row": row, "text": "x" * 20} for row in range(40_000)]


@tool
async def uneven() -> list[dict[str, int]]:
    """Returns rows that make no table."""
    return [{"first": 1}, {"second": 2}]


suite = Suite(name="details", version="1", tools=[Echo, large, uneven])


async def sent_arguments(page: Page) -> Any:
    """The arguments of the call, as the page shows its request."""
    await page.get_by_text("Request and answer").click()
    await page.get_by_role("tab", name="Request").click()
    text = await page.get_by_role("tabpanel").locator("pre").inner_text()
    return json.loads(text)["params"]["arguments"]


async def test_form_of_a_difficult_schema(browser: Browser) -> None:
    """Recursion, references, unions with null, tuples, long integers, and a choice left open."""
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "echo")
        await page.get_by_label("number").fill(str(LONG))
        await page.get_by_label("city").fill("Rome")
        await page.get_by_label("node").check()
        await page.get_by_label("value").fill("1")
        await page.get_by_label("next").check()
        await page.get_by_label("value").nth(1).fill("2")
        await page.get_by_label("both").fill('[1, "a"]')
        await call(page)
        await expect(page.locator(".fault").get_by_text("Choose one.")).to_be_visible()
        await page.get_by_label("sure").select_option("false")
        await call(page)

        await expect(page.locator(".outcome")).to_contain_text(str(LONG))
        assert await sent_arguments(page) == {
            "sure": False,
            "number": LONG,
            "at": "2026-01-02T03:04:05.678901Z",  # not touched, so not rounded
            "both": [1, "a"],
            "place": {"city": "Rome"},
            "node": {"value": 1, "next": {"value": 2}},
            "owner": None,
        }


async def test_nothing_is_lost_between_form_and_json(browser: Browser) -> None:
    """Members without a field, and a form that is not complete."""
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "echo")
        await page.get_by_label("city").fill("Rome")  # `sure` and `number` are missing
        await page.get_by_role("button", name="Edit as JSON").click()
        text = page.get_by_label("The arguments as JSON")
        given = json.loads(await text.input_value())
        assert given["place"] == {"city": "Rome"}
        given |= {"sure": True, "number": LONG, "x-more": "kept"}
        await text.fill(json.dumps(given))
        await page.get_by_role("button", name="Edit as a form").click()
        await expect(page.get_by_text("Further members, as JSON only: x-more")).to_be_visible()
        await call(page)
        await expect(page.locator(".outcome")).to_contain_text("kept")
        assert await sent_arguments(page) == given


async def test_large_and_uneven_results(browser: Browser) -> None:
    """Of many rows the first are rendered; rows with other members are shown with them."""
    async with serve(Endpoint(suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "large")
        await call(page)
        await expect(page.locator(".outcome tbody tr")).to_have_count(100)
        await page.get_by_role("button", name="Show more").click()
        await expect(page.locator(".outcome tbody tr")).to_have_count(200)
        await page.get_by_text("Request and answer").click()
        await page.get_by_role("tab", name="Answer").click()
        await expect(page.get_by_role("button", name="Show all").last).to_be_visible()

        await go(page, "Tools", "uneven")
        await call(page)
        await expect(page.locator(".outcome")).to_contain_text("second: 2")


async def test_call_with_an_open_question_can_be_cancelled(browser: Browser) -> None:
    """The question goes with the call."""
    async with serve(Endpoint(kitchen.suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "ask")
        await call(page)
        await expect(page.get_by_role("region", name="Question of the server")).to_be_visible()
        await page.locator(".call > .actions").get_by_role("button", name="Cancel").click()

        await expect(page.locator(".call .status")).to_have_text("Cancelled")
        await expect(page.locator(".question")).to_have_count(0)


async def test_focus_goes_to_the_page_that_is_opened(browser: Browser) -> None:
    """A screen reader reads it, and the keyboard goes on there; a broken address is reported."""
    async with serve(Endpoint(kitchen.suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "ask")
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        await go(page, "Tasks")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        await page.evaluate("location.hash = '#/tools/%E0'")
        await expect(page.get_by_role("button", name="Try again")).to_be_visible()


class Ask(Tool):
    """Asks for a name, as a task."""

    name = "ask"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return elicit("Who are you?", kitchen.Answer).then(self.answered)

    async def answered(self, request: ToolRequest, answer: kitchen.Answer, channel: Channel) -> str:
        return f"Hello, {answer.name}"


async def test_question_of_a_task_outlives_its_page(browser: Browser) -> None:
    """It is there when the page is opened again, once, and goes when it is answered elsewhere."""
    tasks = Suite(name="tasks", version="1", tools=[Ask])
    async with serve(Endpoint(tasks, console=True)) as url, visiting(browser, url) as page:
        question = page.get_by_role("region", name="Question of the server")
        await go(page, "Tools", "ask")
        await call(page)
        await expect(question).to_have_count(1)
        other = await page.context.new_page()
        await other.goto(url)
        await go(other, "Tasks")
        await other.locator(".entries a").click()
        await expect(other.get_by_role("region", name="Question of the server")).to_have_count(1)
        await go(page, "Events")
        await go(page, "Tasks")
        await page.locator(".entries a").click()
        await expect(question).to_have_count(1)
        await question.get_by_label("name").fill("Ann")
        await question.get_by_role("button", name="Answer").click()

        for each in (page, other):
            await expect(each.locator(".outcome").last).to_contain_text("Hello, Ann")
            await expect(each.locator(".question")).to_have_count(0)
        await other.close()


async def test_task_with_an_open_question_can_be_cancelled(browser: Browser) -> None:
    """Its question is no longer open."""
    tasks = Suite(name="tasks", version="1", tools=[Ask])
    async with serve(Endpoint(tasks, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "ask")
        await call(page)
        await expect(page.locator(".question")).to_have_count(1)
        await page.get_by_role("button", name="Cancel task").click()
        await expect(page.locator(".task .badge")).to_have_text("cancelled")
        await expect(page.locator(".question")).to_have_count(0)
