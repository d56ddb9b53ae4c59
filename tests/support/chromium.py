"""A real Chromium for the tests that need a browser.

The variable GENMCP_TEST_BROWSER names its program. Otherwise it is found on the PATH, or, on Linux
with x86-64, that of the npm package `@sparticuz/chromium`, installed into .conformance/.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, Page, async_playwright

from tests.support.npm import npm_package

CHROMIUM = ("@sparticuz/chromium", "153.0.0")
AXE = ("axe-core", "4.14.1")

# Decompresses the program of the package into the temporary folder.
_UNPACK = 'import chromium from "@sparticuz/chromium"; await chromium.executablePath();'


def browser_program() -> str:
    """Return the path of a Chromium.

    Raises:
        FileNotFoundError: no browser was found, and it cannot be installed.
    """
    if path := os.environ.get("GENMCP_TEST_BROWSER"):
        return path
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise FileNotFoundError(
            "no browser: put chromium or google-chrome on the PATH, or set GENMCP_TEST_BROWSER to "
            "the path of its program"
        )
    node, modules = npm_package(*CHROMIUM)
    folder = modules.parent / "browser"
    if not folder.exists():
        # Renamed once it is complete: several processes may run tests at once.
        with TemporaryDirectory(dir=modules.parent) as made:
            subprocess.run(
                [node, "--input-type=module", "-e", _UNPACK],
                cwd=modules.parent,
                env={**os.environ, "TMPDIR": made},
                check=True,
                capture_output=True,
            )
            with suppress(OSError):  # another process has installed it
                Path(made).rename(folder)
            Path(made).mkdir(exist_ok=True)  # for TemporaryDirectory, which removes it
    return str(folder / "chromium")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Start the browser, headless."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_program(),
            args=["--no-sandbox"],  # the sandbox refuses to run as root; the pages are local
        )
        try:
            yield browser
        finally:
            await browser.close()


async def accessibility_faults(page: Page) -> list[str]:
    """Return the violations of WCAG 2.2, levels A and AA, that axe-core finds on the page."""
    _, modules = npm_package(*AXE)
    await page.evaluate((modules / "axe-core" / "axe.min.js").read_text("utf-8"))
    found = await page.evaluate(
        "axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] })"
    )
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]
