"""The console of `genmcp inspect` in a real browser, in front of a server over stdio."""

import asyncio
import shlex
import sys
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.asgi import PATIENCE
from tests.support.chromium import open_browser

ROOT = Path(__file__).parents[2]
OTHER = shlex.join([sys.executable, str(Path(__file__).with_name("other_sdk.py"))])

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


async def test_inspect_shows_a_foreign_server_in_a_browser() -> None:
    """The address of the command opens the page, which calls a tool of the Python SDK's server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "genmcp", "inspect", OTHER, "--no-browser"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE * 3):
            url = (await process.stdout.readline()).decode().strip()
        async with open_browser() as browser:
            page = await browser.new_page()
            await page.goto(url)
            await expect(page.get_by_role("heading", level=1)).to_have_text("other")
            await page.get_by_role("navigation").get_by_role("link", name="Tools").click()
            await page.locator(".entries a").filter(has_text="shout").first.click()
            await page.get_by_label("text").fill("hello")
            await page.get_by_role("button", name="Call", exact=True).click()
            await expect(page.locator(".outcome")).to_contain_text("HELLO")
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0
