"""The loopback listener: one path, one answer, and nothing of a request in a page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from genmcp.client.auth.asking import LoopbackListener, UserPrompt
from genmcp.core.auth.steps import Ask, FlowFailed, Listen

CALLBACK = "http://127.0.0.1/callback"
ASKED = "https://as.example/authorize?client_id=a&state=s3cret-state"


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[LoopbackListener, "asyncio.Task[str]"]]:
    """A listener, and a task that waits for its redirect."""
    async with LoopbackListener(CALLBACK) as listener:
        wait = asyncio.create_task(listener.wait(ASKED))
        await asyncio.sleep(0)
        yield listener, wait
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)


async def test_redirect_is_received(browser: httpx.AsyncClient) -> None:
    """The page repeats nothing of it, loads nothing, and sends no referrer."""
    async with waiting() as (listener, wait):
        page = await browser.get(f"{listener.redirect_uri}?code=c0de&state=s3cret-state")
        assert await wait == f"{listener.redirect_uri}?code=c0de&state=s3cret-state"

    assert page.status_code == 200
    assert "c0de" not in page.text
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "<script" not in page.text


@pytest.mark.parametrize("uri", ["http://localhost", "http://127.0.0.1/a/back"])
async def test_registered_redirect_uri_keeps_its_form(browser: httpx.AsyncClient, uri: str) -> None:
    """Without a path, and with another name of this machine; only the port is added."""
    async with LoopbackListener(uri) as listener:
        wait = asyncio.create_task(listener.wait(ASKED))
        await asyncio.sleep(0)
        assert listener.redirect_uri.startswith(uri.removesuffix("/a/back") + ":")
        await browser.get(f"{listener.redirect_uri}?code=c0de&state=s3cret-state")
        assert "code=c0de" in await wait


async def test_second_redirect_is_refused(browser: httpx.AsyncClient) -> None:
    """A page that is loaded again does not change the result."""
    async with waiting() as (listener, wait):
        url = f"{listener.redirect_uri}?state=s3cret-state&code="
        await browser.get(url + "first")
        again = await browser.get(url + "second")
        assert (await wait).endswith("code=first")
    assert again.status_code == 410


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("GET", "/favicon.ico", {}), 404),
        (("GET", "/callback/more?state=s3cret-state", {}), 404),
        (("POST", "/callback?state=s3cret-state", {}), 404),
        (("HEAD", "/callback?state=s3cret-state", {}), 404),
        (("GET", "/callback?state=s3cret-state", {"Host": "evil.example"}), 404),
        (("GET", "/callback?code=a", {}), 400),
        (("GET", "/callback?code=a&state=other", {}), 400),
        (("GET", "/callback?code=a&state=s3cret-state&state=other", {}), 400),
        (("GET", "/callback?code=a&state=%ff", {}), 400),
    ],
)
async def test_other_requests_do_not_end_the_wait(
    browser: httpx.AsyncClient, request_: tuple[str, str, dict[str, str]], status: int
) -> None:
    """Any page in the browser can send a request to this machine."""
    method, path, headers = request_
    async with waiting() as (listener, wait):
        origin = listener.redirect_uri.removesuffix("/callback")
        page = await browser.request(method, origin + path, headers=headers)
        assert page.status_code == status
        assert not wait.done()
        await browser.get(f"{listener.redirect_uri}?code=good&state=s3cret-state")
        assert "code=good" in await wait


async def test_browser_leaves_the_default_port_out(browser: httpx.AsyncClient) -> None:
    """RFC 9110, 7.2: `Host` has no port 80. Port 80 itself is not for tests."""
    async with waiting() as (listener, wait):
        url, listener.redirect_uri = listener.redirect_uri, "http://127.0.0.1:80/callback"
        headers = {"Host": "127.0.0.1"}
        page = await browser.get(f"{url}?code=good&state=s3cret-state", headers=headers)
        assert page.status_code == 200
        assert "code=good" in await wait


async def test_error_of_the_authorization_server_is_not_shown(browser: httpx.AsyncClient) -> None:
    """The page shows that the login was not completed, in words of its own."""
    async with waiting() as (listener, wait):
        query = "error=access_denied&error_description=<b>pwned</b>&state=s3cret-state"
        page = await browser.get(f"{listener.redirect_uri}?{query}")
        assert "error=access_denied" in await wait
    assert "not completed" in page.text
    assert "pwned" not in page.text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 70000,
        b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
async def test_broken_requests_are_survived(browser: httpx.AsyncClient, data: bytes) -> None:
    """Browsers open connections ahead, and port scanners send anything."""
    async with waiting() as (listener, wait):
        port = urlsplit(listener.redirect_uri).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        if writer.can_write_eof():
            writer.write_eof()
        await reader.read()
        writer.close()
        await browser.get(f"{listener.redirect_uri}?code=good&state=s3cret-state")
        assert "code=good" in await wait


async def test_port_is_closed_after_the_login(browser: httpx.AsyncClient) -> None:
    """Nothing of this machine stays open."""
    async with waiting() as (listener, _):
        pass
    with pytest.raises(httpx.ConnectError):
        await browser.get(listener.redirect_uri)


@pytest.mark.parametrize("steps", range(8))
async def test_cancelled_listener_leaves_no_port(steps: int) -> None:
    """A fixed port would be in use until the program ends."""
    async with LoopbackListener(CALLBACK) as free:
        fixed = free.redirect_uri
    opening = asyncio.create_task(LoopbackListener(fixed).__aenter__())
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    try:
        opened = await opening
    except asyncio.CancelledError:
        pass
    else:
        await opened.__aexit__(None, None, None)
    async with LoopbackListener(fixed):
        pass


async def test_port_of_an_earlier_login_is_preferred() -> None:
    """A registration names the redirect URI; some servers compare the port."""
    async with LoopbackListener(CALLBACK) as first:
        earlier = first.redirect_uri
    async with LoopbackListener(CALLBACK, earlier) as second:
        assert second.redirect_uri == earlier
        async with LoopbackListener(CALLBACK, earlier) as third:
            assert third.redirect_uri != earlier


async def test_fixed_port_that_is_in_use_names_the_option() -> None:
    """Two programs with the same fixed port, for example."""
    async with LoopbackListener(CALLBACK) as taken:
        prompt = UserPrompt(taken.redirect_uri)
        with pytest.raises(FlowFailed, match=r"OAuth\(redirect_uri="):
            await prompt.listen(Listen())
        await prompt.close()


async def test_url_is_shown_to_the_user(
    browser: httpx.AsyncClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On standard error: standard output may be the output of the program."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("there is no display"))
    prompt = UserPrompt()
    uri = await prompt.listen(Listen())
    asking = asyncio.create_task(prompt.ask(Ask(ASKED, uri)))
    await asyncio.sleep(0)
    await browser.get(f"{uri}?code=c0de&state=s3cret-state")
    assert "code=c0de" in await asking
    await prompt.close()

    shown = capsys.readouterr()
    assert ASKED in shown.err
    assert shown.out == ""
