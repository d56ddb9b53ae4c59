"""The console as an HTTP resource: when it is served, and its security policy."""

import gzip
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import Endpoint, Security, Suite
from genmcp.auth import Bearer
from tests.support.serving import serve

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MOST_BYTES = 150 * 1024  # compressed


def suite() -> Suite:
    return Suite(name="test", version="1")


async def test_browser_gets_the_page_at_every_mount() -> None:
    """The page needs no other URL than that of the endpoint."""
    endpoint = Endpoint(suite(), console=True)
    app = Starlette(routes=[endpoint.route("/mcp"), Mount("/api", routes=[endpoint.route("/mcp")])])
    async with serve(app) as url, httpx.AsyncClient(headers=BROWSER) as browser:
        for path in ("/mcp", "/mcp/", "/api/mcp"):
            answer = await browser.get(url + path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "<title>MCP server</title>" in answer.text


async def test_browser_without_console_learns_how_to_have_one() -> None:
    """What a server offers is its own decision; 405, as for any GET without a session."""
    async with serve(Endpoint(suite())) as url, httpx.AsyncClient(headers=BROWSER) as browser:
        answer = await browser.get(url)

    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
    for words in ("MCP endpoint", "URL of this page", "console=True", "genmcp serve --console"):
        assert words in answer.text


async def test_client_that_asks_for_events_gets_no_page() -> None:
    """A GET of the transport is answered as before."""
    accept = {"accept": "text/event-stream"}
    both = {"accept": "text/event-stream, text/html"}
    async with serve(Endpoint(suite(), console=True)) as url, httpx.AsyncClient() as client:
        for headers in (accept, both, {"accept": "*/*"}):
            answer = await client.get(url, headers=headers)
            assert answer.status_code == 405


async def test_page_is_checked_like_every_request() -> None:
    """A page of another host name would let that host's name be rebound to this machine."""
    endpoint = Endpoint(suite(), console=True, security=Security(allowed_hosts=["mcp.example.com"]))
    async with serve(endpoint) as url, httpx.AsyncClient(headers=BROWSER) as browser:
        assert (await browser.get(url, headers={"host": "evil.example"})).status_code == 421
        allowed = await browser.get(url, headers={"host": "mcp.example.com"})
        assert allowed.status_code == 200


async def test_page_needs_no_token_but_its_calls_do() -> None:
    """A browser sends none when it opens a page, and the page has no data."""
    auth = Bearer("http://127.0.0.1/mcp", issuers=["https://login.example.com/tenant"])
    endpoint = Endpoint(suite(), console=True, auth=auth)
    async with serve(endpoint) as url, httpx.AsyncClient() as client:
        page = await client.get(url, headers=BROWSER)
        call = await client.post(url, json={})

    assert (page.status_code, call.status_code) == (200, 401)
    policy = page.headers["content-security-policy"]
    assert "connect-src 'self' https://login.example.com;" in policy


async def test_policy_allows_only_what_the_page_contains() -> None:
    """Text of a server that became markup could neither run nor send anything."""
    async with serve(Endpoint(suite(), console=True)) as url, httpx.AsyncClient() as client:
        answer = await client.get(url, headers=BROWSER)

    policy = dict(
        each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; ")
    )
    (script,) = re.findall(r'<script type="module">(.*?)</script>', answer.text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert policy == {
        "default-src": "'none'",
        "script-src": f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'",
        "style-src": f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'",
        "connect-src": "'self'",
        "img-src": "data:",
        "media-src": "data:",
        "frame-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "http://" not in answer.text.replace("http://127.0.0.1", "")
    assert "https://" not in answer.text


async def test_page_is_small_and_not_sent_twice() -> None:
    """It is fetched again only after an upgrade."""
    async with serve(Endpoint(suite(), console=True)) as url, httpx.AsyncClient() as client:
        zipped = await client.get(url, headers={**BROWSER, "accept-encoding": "gzip"})
        plain = await client.get(url, headers={**BROWSER, "accept-encoding": "identity"})
        known = {**BROWSER, "if-none-match": plain.headers["etag"]}
        again = await client.get(url, headers=known)

    assert zipped.text == plain.text
    assert "content-encoding" not in plain.headers
    assert len(gzip.compress(plain.content)) < MOST_BYTES
    assert int(zipped.headers["content-length"]) < MOST_BYTES
    assert (again.status_code, again.content) == (304, b"")


def test_endpoint_without_console_imports_nothing_of_it() -> None:
    """A server that does not use it pays nothing."""
    program = (
        "import sys; from genmcp import Endpoint, Suite; "
        "Endpoint(Suite(name='a', version='1')); "
        "print('genmcp._transports.console' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False"
