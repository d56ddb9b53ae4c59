"""Apps in the console, in a real browser: what a page can do in its frame, and what it cannot."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, FrameLocator, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from genmcp import (
    Continue,
    Endpoint,
    Hub,
    ServerConfig,
    Suite,
    Tool,
    ToolAnnotations,
    elicit,
    tool,
)
from genmcp.extensions import App, Csp
from tests.console import kitchen
from tests.console.test_console_browser import call, go, picture, visiting
from tests.support.chromium import accessibility_faults, open_browser
from tests.support.npm import npm_package
from tests.support.peers import APPS_HOST
from tests.support.serving import serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BEGIN = """<!doctype html>
<html lang="en">
<title>Stock</title>
<p id="given"></p><p id="shown"></p><p id="answer"></p>
<button id="act">Act</button>
<script>
const put = (id, value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  document.getElementById(id).textContent = text;
};
const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
const waiting = new Map();
let last = 0;
const request = (method, params = {}) =>
  new Promise((resolve) => {
    last += 1;
    waiting.set(last, resolve);
    send({ id: last, method, params });
  });
addEventListener("message", ({ data }) => {
  if (data.method === "ui/notifications/tool-input") put("given", data.params.arguments);
  else if (data.method === "ui/notifications/tool-result")
    put("shown", data.params.content[0].text);
  else if (data.method === "ui/resource-teardown") send({ id: data.id, result: {} });
  else waiting.get(data.id)?.(data.error ?? data.result);
});
"""
START = """
request("ui/initialize", {
  appInfo: { name: "stock", version: "1" },
  appCapabilities: {},
  protocolVersion: "2026-01-26",
}).then((host) => {
  send({ method: "ui/notifications/initialized" });
  act.onclick = () => main(host);
});
</script>
"""


def page_of(main: str) -> str:
    """Return an app whose button runs `main(host)`, without a library."""
    return f"{BEGIN}async function main(host) {{ {main} }}{START}"


@tool(annotations=ToolAnnotations(read_only_hint=True))
async def show_stock(part: str = "bolt") -> str:
    """Shows the stock."""
    return f"3 of {part}"


@tool
async def reorder(part: str) -> Continue:
    """Orders more."""
    return elicit(f"Order {part}?", kitchen.Answer).then(ordered)


@reorder.step
async def ordered(answer: kitchen.Answer, part: str) -> str:
    return f"{answer.name} ordered {part}"


@tool(meta={"ui": {"visibility": ["model"]}})
async def erase() -> str:
    """Erases all."""
    raise AssertionError("no app may call this tool")


class Slow(Tool):
    """Counts, as a task."""

    name = "count_stock"
    task = "always"

    async def call(self, request: Any, channel: Any) -> str:
        return "4 of all"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


def suite_of(html: str, **options: Any) -> Suite:
    app = App("ui://shop/stock", html, tools=[show_stock, Slow], app_tools=[reorder], **options)
    return Suite("shop", tools=[erase], extensions=[app])


@asynccontextmanager
async def opened(browser: Browser, html: str, **options: Any) -> AsyncIterator[Page]:
    """The console with the result of the tool `show_stock`, which has the page *html*."""
    endpoint = Endpoint(suite_of(html, **options), console=True)
    async with serve(endpoint) as url, visiting(browser, url) as page:
        await go(page, "Tools", "show_stock")
        await call(page)
        await expect(frame_of(page).locator("#shown")).to_have_text("3 of bolt")
        yield page


def frame_of(page: Page) -> FrameLocator:
    return page.frame_locator("main iframe")


async def act(page: Page) -> Callable[[str], Awaitable[None]]:
    """Press the button of the app, and return what expects its answer."""
    await frame_of(page).locator("#act").click()
    answer = frame_of(page).locator("#answer")

    async def expected(text: str) -> None:
        await expect(answer).to_contain_text(text)

    return expected


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[str, list[str]]]:
    """Another host, and the paths that were requested of it."""
    seen: list[str] = []

    async def respond(request: Request) -> Response:
        seen.append(request.url.path)
        return PlainTextResponse("hello", headers={"access-control-allow-origin": "*"})

    async with serve(Starlette(routes=[Route("/{path:path}", respond)])) as url:
        yield url, seen


async def test_app_shows_a_result_and_calls_a_tool(browser: Browser) -> None:
    """It gets the arguments and the result; the call of its button asks the user a question."""
    main = """
      const { content } = await request("tools/call", {name: "reorder", arguments: {part: "gear"}});
      put("answer", content[0].text);
      send({ method: "ui/notifications/size-changed", params: { width: 300, height: 333 } });
      put("shown", (await request("ping")) && host.hostContext.toolInfo.tool.name);
    """
    async with opened(browser, page_of(main)) as page:
        await expect(frame_of(page).locator("#given")).to_have_text('{"part":"bolt"}')
        await expect(page.locator("main .outcome")).to_contain_text("3 of bolt")
        expected = await act(page)
        question = page.get_by_role("region", name="Question of the server")
        await expect(question).to_contain_text("The app asks to call reorder.")
        await question.get_by_role("button", name="Allow").click()
        await question.get_by_label("name").fill("Ann")
        assert await accessibility_faults(page) == []
        await picture(page, "app")
        await question.get_by_role("button", name="Answer").click()
        await expected("Ann ordered gear")
        await expect(frame_of(page).locator("#shown")).to_have_text("show_stock")
        await expect(page.locator("main iframe")).to_have_css("height", "333px")


async def test_app_is_there_after_a_move_and_for_a_task(browser: Browser) -> None:
    """A frame that is shown again begins anew, with the same result."""
    async with opened(browser, page_of("")) as page:
        await go(page, "Overview")
        await go(page, "Tools", "show_stock")
        await expect(frame_of(page).locator("#shown")).to_have_text("3 of bolt")
        await go(page, "Tools", "count_stock")
        await call(page)
        await expect(frame_of(page).locator("#shown")).to_have_text("4 of all")


async def test_app_can_call_no_hidden_tool(browser: Browser) -> None:
    """SEP-1865, "Visibility": one for models only, and one that the server does not have."""
    main = """
      const answers = [];
      for (const name of ["erase", "no_such_tool", null]) {
        answers.push((await request("tools/call", { name, arguments: {} })).code);
      }
      put("answer", answers);
    """
    async with opened(browser, page_of(main)) as page:
        await (await act(page))("[-32602,-32602,-32602]")


PARTS: list[str] = []


@tool
async def note(part: str) -> str:
    """Notes a part."""
    PARTS.append(part)
    return f"noted {part}"


@tool(annotations=ToolAnnotations(read_only_hint=True))
async def read_notes() -> str:
    """Reads the notes, which are not for every page."""
    return f"notes: {PARTS}"


NOTING = """
  const noted = (name, part) =>
    request("tools/call", { name, arguments: part === undefined ? {} : { part } })
      .then(({ code, message, content }) => message ?? content[0].text);
"""


async def test_user_is_asked_before_the_first_call_of_a_tool(browser: Browser) -> None:
    """Once for each tool. Only one that reads, and belongs to the page, needs no answer."""
    PARTS.clear()
    main = """
      put("answer", await Promise.all([
        noted("note", "bolt"), noted("note", "gear"), noted("read_notes"), noted("show_stock", "x"),
      ]));
      put("shown", [await noted("note", "rim"), await noted("read_notes")]);
    """
    page_suite = suite_of(page_of(NOTING + main))
    page_suite.add(note, read_notes)
    async with serve(Endpoint(page_suite, console=True)) as url, visiting(browser, url) as page:
        await go(page, "Tools", "show_stock")
        await call(page)
        expected = await act(page)
        question = page.get_by_role("region", name="Question of the server")
        await expect(question).to_contain_text("The app asks to call note.")
        assert PARTS == []
        assert await accessibility_faults(page) == []
        await question.get_by_role("button", name="Allow").click()
        await expect(question).to_contain_text("The app asks to call read_notes.")
        await question.get_by_role("button", name="Decline").click()
        await expected('["noted bolt","noted gear","The user declined","3 of x"]')
        shown = frame_of(page).locator("#shown")
        await expect(shown).to_have_text('["noted rim","The user declined"]')
        await expect(question).to_have_count(0)
    assert PARTS == ["bolt", "gear", "rim"]


async def test_app_at_a_hub_reaches_its_own_server_alone(browser: Browser) -> None:
    """Another server may be one that the user trusts more, with the same token."""
    PARTS.clear()
    main = """
      const answers = [];
      for (const name of ["mail/note", "mail/read_notes", "note", "shop/note"]) {
        answers.push(await noted(name, name === "mail/read_notes" ? undefined : "bolt"));
      }
      put("answer", answers);
    """
    shop = suite_of(page_of(NOTING + main))
    shop.add(note)
    async with Hub() as hub:
        await hub.add(ServerConfig("shop", target=shop))
        await hub.add(ServerConfig("mail", target=Suite("mail", tools=[note, read_notes])))
        endpoint = Endpoint(hub.server(name="all"), console=True)
        async with serve(endpoint) as url, visiting(browser, url) as page:
            await go(page, "Tools", "shop/show_stock")
            await call(page)
            expected = await act(page)
            question = page.get_by_role("region", name="Question of the server")
            await expect(question).to_contain_text("The app asks to call shop/note.")
            await question.get_by_role("button", name="Allow").click()
            refused = [
                f"No tool {each} is visible to apps"
                for each in ("mail/note", "mail/read_notes", "note")
            ]
            await expected(json.dumps([*refused, "noted bolt"], separators=(",", ":")))
    assert PARTS == ["bolt"]


async def test_requests_of_an_app_are_refused_by_errors(browser: Browser) -> None:
    """What is no part of the protocol of apps, or is malformed. Garbage is ignored."""
    main = """
      for (const each of [null, 1, "x", [], {}, new Map(), { jsonrpc: "2.0" }, { id: 1 }, [1n]]) {
        parent.postMessage(each, "*");
      }
      send({ method: "ui/notifications/size-changed", params: { height: "1; position: fixed" } });
      send({ method: "ui/notifications/size-changed", params: { height: 1e9 } });
      const asked = [
        ["resources/read", { uri: "ui://shop/stock" }],
        ["tools/list"],
        ["sampling/createMessage"],
        ["ui/open-link", { url: "javascript:alert(1)" }],
        ["ui/open-link", { url: 7 }],
        ["ui/message", { role: "user", content: [{ type: "image", data: "" }] }],
        ["ui/message", { role: "user", content: null }],
      ];
      const answers = [];
      for (const [method, params] of asked) answers.push((await request(method, params)).code);
      put("answer", answers);
    """
    async with opened(browser, page_of(main)) as page:
        codes = [-32601] * 3 + [-32602] * 4
        await (await act(page))(json.dumps(codes, separators=(",", ":")))
        await expect(page.locator("main iframe")).to_have_css("height", "800px")


async def test_link_is_opened_by_the_user_alone(browser: Browser) -> None:
    """The user sees its host; a second one must wait."""
    main = """
      const links = ["https://pay.example.com/7", "https://b.example"].map((url) =>
        request("ui/open-link", { url }));
      put("answer", (await Promise.all(links)).map((each) => each.message));
    """
    async with opened(browser, page_of(main)) as page:
        expected = await act(page)
        question = page.get_by_role("region", name="Question of the server")
        await expect(question.locator("strong")).to_have_text("pay.example.com")
        await question.get_by_role("button", name="Decline").click()
        await expected('["The user declined","Another link waits for the user"]')


async def test_message_of_an_app_is_shown_as_text(browser: Browser) -> None:
    """There is no conversation that it could be added to."""
    main = """
      const text = "<img src=x onerror=\\"document.title = 'broken into'\\">";
      const content = [{ type: "text", text }];
      put("answer", await request("ui/message", { role: "user", content }));
    """
    async with opened(browser, page_of(main)) as page:
        await (await act(page))("{}")
        acts = page.get_by_label("Acts of the app")
        await expect(acts).to_contain_text("Message: <img src=x onerror=")
        assert await page.title() == "shop"


@pytest.mark.parametrize("leave", ["form.submit()", "{ location.href = 'OTHER/location' }"])
async def test_app_cannot_leave_its_frame(browser: Browser, leave: str) -> None:
    """Its origin is none, so that it reaches no other window, storage, host or cookie."""
    tries = """
      const tries = {
        parent: () => parent.document.title,
        top: () => { top.location.href = "OTHER/top"; },
        storage: () => localStorage.length,
        cookies: () => document.cookie,
        popup: () => { if (!open("OTHER/popup")) throw new Error("blocked"); },
        fetch: () => fetch("OTHER/fetch"),
        itself: () => fetch(location.href || "OTHER/fetch"),
        script: () => import("OTHER/import"),
        evaluated: () => eval("1"),
      };
      const reached = [];
      for (const [name, attempt] of Object.entries(tries)) {
        await Promise.resolve().then(attempt).then(() => reached.push(name), () => {});
      }
      new Image().src = "OTHER/image";
      navigator.sendBeacon("OTHER/beacon");
      put("answer", reached.length ? reached : "in its frame");
      const form = document.createElement("form");
      Object.assign(form, { action: "OTHER/form", method: "post" });
      document.body.append(form);
      act.onclick = () => LEAVE;
    """.replace("LEAVE", leave)
    head = (
        "<img src='OTHER/early'><script src='OTHER/early'></script>"
        "<link rel='stylesheet' href='OTHER/early'><iframe src='OTHER/early'></iframe>"
        "<meta http-equiv='content-security-policy' content='default-src *'>"
        "<object data='OTHER/early'></object><base href='OTHER/'>"
    )
    async with recording() as (other, seen):
        html = head.replace("OTHER", other) + page_of(tries).replace("OTHER", other)
        suite = suite_of(html)
        async with serve(Endpoint(suite, console=True)) as url:
            page = await browser.new_page()  # the browser reports each violation as an error
            await page.goto(url)
            await go(page, "Tools", "show_stock")
            await call(page)
            await (await act(page))("in its frame")
            await act(page)
            await expect(frame_of(page).locator("#answer")).to_have_count(0)  # it shows an error
            assert page.url.startswith(url)
            assert await page.title() == "shop"
            assert len(page.context.pages) == 1
            await expect(page.locator("main .outcome")).to_contain_text("3 of bolt")
            await page.close()
    assert seen == []


async def test_app_reaches_the_declared_origins_alone(browser: Browser) -> None:
    """The policy of its resource (`_meta.ui.csp`) is that of the page."""
    main = """
      const results = [];
      for (const url of ["ALLOWED/yes", "OTHER/no"]) {
        results.push(await fetch(url).then((each) => each.text(), () => "blocked"));
      }
      put("answer", results);
    """
    async with recording() as (allowed, seen), recording() as (other, unseen):
        html = page_of(main).replace("ALLOWED", allowed).replace("OTHER", other)
        suite = suite_of(html, csp=Csp(connect_domains=[allowed]))
        async with serve(Endpoint(suite, console=True)) as url:
            page = await browser.new_page()
            await page.goto(url)
            await go(page, "Tools", "show_stock")
            await call(page)
            await (await act(page))('["hello","blocked"]')
            await page.close()
    assert (seen, unseen) == (["/yes"], [])


@pytest.mark.peers
async def test_app_of_the_reference_library_works(browser: Browser) -> None:
    """`@modelcontextprotocol/ext-apps` in the page, which checks each message of the host."""
    _, modules = npm_package(*APPS_HOST)
    library = modules / APPS_HOST[0] / "dist" / "src" / "app-with-deps.js"
    text = await asyncio.to_thread(library.read_text, "utf-8")
    exported, _, names = text.rpartition("export{")
    (local,) = re.findall(r"([\w$]+) as App\b", names)
    main = """
      const app = new LOCAL({ name: "stock", version: "1" }, {});
      app.ontoolresult = ({ content }) => { shown.textContent = content[0].text; };
      act.onclick = async () => {
        const message = { role: "user", content: [{ type: "text", text: "Hi" }] };
        const sent = await app.sendMessage(message);
        const called = { name: "show_stock", arguments: { part: "x" } };
        const { content } = await app.callServerTool(called);
        const { theme } = app.getHostContext();
        answer.textContent = `${content[0].text} ${JSON.stringify(sent)} ${theme}`;
      };
      await app.connect();
    """
    script = exported.replace("</script", "<\\/script") + main.replace("LOCAL", local)
    body = '<p id="shown"></p><button id="act">Act</button><p id="answer"></p>'
    html = f'<!doctype html>{body}<script type="module">{script}</script>'
    async with serve(Endpoint(suite_of(html), console=True)) as url:
        page = await browser.new_page()  # the library tries whether it may compile code
        await page.goto(url)
        await go(page, "Tools", "show_stock")
        await call(page)
        await expect(frame_of(page).locator("#shown")).to_have_text("3 of bolt")
        await (await act(page))("3 of x {} light")


async def test_frame_is_served_in_a_sandbox() -> None:
    """A browser that opens its URL gives it no origin, and other sites cannot frame it."""
    accept = {"accept": "text/html"}
    async with serve(Endpoint(suite_of("<p>"), console=True)) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}?app", headers=accept)

    policy = answer.headers["content-security-policy"].split("; ")
    assert {"sandbox allow-scripts allow-forms", "frame-ancestors 'self'"} <= {*policy}
    assert "ui/notifications/sandbox-proxy-ready" in answer.text
