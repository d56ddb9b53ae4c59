"""Logins of a client: with a browser, with a function, and what is kept of them."""

import pytest

from genmcp import Client
from genmcp.client.auth import OAuth
from genmcp.client.errors import AuthorizationDenied
from tests.client.auth.logins import Browser, guarded_place


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    return Browser(monkeypatch)


async def test_first_request_leads_to_a_login(browser: Browser) -> None:
    """The browser is opened, redirected to this machine, and the request succeeds."""
    async with guarded_place() as place:
        async with Client(place.url, auth=OAuth("Parts agent")) as client:
            assert (await client.call("whoami", {"name": "Ann"})).data == "Ann"
        page = await browser.page()

    assert len(browser.opened) == 1
    assert "Login received" in page.text
    assert page.url.host == "127.0.0.1"
    assert place.grants() == ["authorization_code"]
    assert place.tokens[0] is None
    assert len(place.tokens) == 2


async def test_user_is_asked_once_for_several_clients() -> None:
    """The tokens belong to the OAuth, and the next client begins with them."""
    async with guarded_place() as place:
        auth = OAuth("Parts agent", ask=place.browse)
        for _ in range(3):
            async with Client(place.url, auth=auth) as client:
                await client.tools()

    assert len(place.asked) == 1
    assert [token for _, token in place.seen].count(None) == 1


async def test_denied_login_is_an_error_of_its_own() -> None:
    """The user has said no: the client does not ask again."""
    async with guarded_place() as place:
        place.issuer.consent = "deny"
        with pytest.raises(AuthorizationDenied, match="access_denied"):
            await Client(place.url, auth=OAuth("Parts agent", ask=place.browse)).open()

    assert len(place.asked) == 1
