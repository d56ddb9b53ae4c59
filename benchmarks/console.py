"""How fast the console shows and searches long lists, in a real browser.

    python -m benchmarks.console

The time of a paint is from when the list has arrived to the second frame after, in which the
entries are on the screen; that of a search is from a key to the same.
"""

import asyncio
from statistics import median
from typing import Any

from genmcp import Endpoint, Resource, Suite, Tool
from tests.support.chromium import open_browser
from tests.support.serving import serve

TOOLS = 1_000
RESOURCES = 10_000
ROUNDS = 21

PAINT = """async (section) => {
  location.hash = '#/overview';
  await new Promise((done) => setTimeout(done, 50));
  const began = performance.now();
  location.hash = '#/' + section;
  while (!document.querySelector('.entries a')) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""

SEARCH = """async (text) => {
  const field = document.querySelector('input[type=search]');
  const began = performance.now();
  field.value = text;
  field.dispatchEvent(new Event('input'));
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""


class NumberedTool(Tool):
    description = "One of many tools, with a description of the usual length for a list."

    def __init__(self, number: int) -> None:
        self.name = f"tool-{number}"

    async def call(self, request: Any, channel: Any) -> str:
        return "done"


class NumberedResource(Resource):
    def __init__(self, number: int) -> None:
        self.uri = f"page://{number}"
        self.name = f"page {number}"

    async def read(self, key: Any, channel: Any) -> str:
        return "text"


async def main() -> None:
    suite = Suite(
        name="many",
        version="1",
        tools=[NumberedTool(number) for number in range(TOOLS)],
        resources=[NumberedResource(number) for number in range(RESOURCES)],
    )
    endpoint = Endpoint(suite, console=True)
    async with serve(endpoint) as url, open_browser() as browser:
        page = await browser.new_page()
        await page.goto(url)
        await page.get_by_role("heading", level=1).wait_for()
        for section, count in (("tools", TOOLS), ("resources", RESOURCES)):
            await page.evaluate(PAINT, section)  # fetches the list, which the page then keeps
            paints = [await page.evaluate(PAINT, section) for _ in range(ROUNDS)]
            texts = [str(number) for number in range(ROUNDS)]
            searches = [await page.evaluate(SEARCH, text) for text in texts]
            for what, times in (("paint", paints), ("search", searches)):
                print(
                    f"{count:6} {section:10} {what:7} median {median(times):5.1f} ms, "
                    f"worst {max(times):5.1f} ms"
                )


if __name__ == "__main__":
    asyncio.run(main())
