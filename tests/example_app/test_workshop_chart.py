"""The app of the workshop: its stock as a chart, in the console and for other hosts."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from example_app import create_app
from genmcp import Client
from genmcp.extensions import Extension
from tests.console.test_console_browser import call, go, picture, visiting
from tests.support.chromium import accessibility_faults, open_browser
from tests.support.serving import serve

HOST = Extension(
    "io.modelcontextprotocol/ui", settings={"mimeTypes": ["text/html;profile=mcp-app"]}
)


@pytest.mark.slow
async def test_chart_looks_up_parts_for_hosts_alone(tmp_path: Path) -> None:
    """Other clients get the search as it was, and no tool that they would not know to hide."""
    app = create_app(tmp_path / "workshop.db")
    async with serve(app) as url:
        async with Client(f"{url}/mcp", extensions=[HOST]) as host:
            tools = {each.name: each.meta or {} for each in await host.tools()}
            uri = tools["search_parts"]["ui"]["resourceUri"]
            (page,) = (await host.read(uri)).contents
            part = await host.call("look_up_part", {"number": "CH-103"})
            missing = await host.call("look_up_part", {"number": "none"})
        async with Client(f"{url}/mcp") as other:
            names = [each.name for each in await other.tools()]

    assert tools["look_up_part"]["ui"] == {"resourceUri": uri, "visibility": ["app"]}
    assert (page.mime_type, page.meta) == (
        "text/html;profile=mcp-app",
        {"ui": {"prefersBorder": True}},
    )
    assert part.structured_content["shelf"]
    assert missing.is_error
    assert "look_up_part" not in names


@pytest.mark.browser
@pytest.mark.timeout(300)
async def test_chart_shows_a_part_that_is_clicked_on(tmp_path: Path) -> None:
    """As it is now: its bar and its text."""
    app = create_app(tmp_path / "workshop.db")
    async with (
        open_browser() as browser,
        serve(app) as url,
        visiting(browser, f"{url}/mcp") as page,
    ):
        await go(page, "Tools", "Search parts")
        await page.get_by_label("text").fill("chain 11")
        await call(page)
        chart = page.frame_locator("main iframe")
        await expect(chart.locator("button")).to_have_count(5)
        bar = chart.locator("button").filter(has_text="Chain 11-speed, Albatros")
        before = int(await bar.locator(".count").inner_text())
        workshop = app.state.workshop
        (part,) = workshop.parts("Chain 11-speed, Albatros")
        repair = workshop.repairs(closed=False)[0].id  # an open one
        await asyncio.to_thread(workshop.withdraw, part.number, 1, repair, "ines")
        await bar.click()
        detail = chart.get_by_role("status")
        await expect(detail).to_contain_text(f"Chain 11-speed, Albatros: {before - 1} on shelf")
        await expect(bar.locator(".count")).to_have_text(str(before - 1))
        assert await accessibility_faults(page) == []
        await picture(page, "chart")
