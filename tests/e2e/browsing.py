"""A browser that logs in as the test user. Its command can be the value of $BROWSER."""

import asyncio
import sys
from html.parser import HTMLParser
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx

USER = "ann"


class Form(HTMLParser):
    """The last form of a page: its target, and the values of its fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.action = ""
        self.values: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "form":
            self.action, self.values = found.get("action") or "", {}
        elif tag in ("input", "button") and (name := found.get("name")):
            # The first button is the one that accepts.
            self.values.setdefault(name, found.get("value") or USER)


async def browse(url: str) -> str:
    """Log in as `USER`, accept everything, and return the URL of the redirect."""
    end = parameters(url)["redirect_uri"]
    async with httpx.AsyncClient() as http:
        response = await http.get(url)
        for _ in range(12):
            if response.is_redirect:
                location = urljoin(str(response.url), response.headers["location"])
                if location.startswith(end):
                    return location
                response = await http.get(location)
            else:
                assert response.status_code == 200, response.text
                form = Form(response.text)
                target = urljoin(str(response.url), form.action)
                response = await http.post(target, data=form.values)
    raise AssertionError(f"no redirect to the client; the last page: {response.text}")


def parameters(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def visit(url: str) -> None:
    """Log in, and follow the redirect."""
    async with httpx.AsyncClient() as http:
        await http.get(await browse(url))


if __name__ == "__main__":
    asyncio.run(visit(sys.argv[1]))
