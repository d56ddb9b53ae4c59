"""Logins of a client: by a browser or a function, renewal, step-up, and their failures."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from genmcp import (
    Client,
    ClientOptions,
    ConfigurationError,
    Hub,
    ServerConfig,
    Suite,
    SyncClient,
    tool,
)
from genmcp.client.auth import MemoryTokens, OAuth, RejectedRequest, TokensUnavailable
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.errors import (
    AuthorizationDenied,
    AuthorizationFailed,
    ConnectError,
    Forbidden,
    IssuerMismatch,
    Unauthorized,
)
from genmcp.core.auth.record import Record, record_key
from genmcp.core.auth.steps import Ask, FlowFailed, Listen
from tests.client.auth.logins import Browser, guarded_place
from tests.client.scripted import Asked, served
from tests.contracts.tokens import save
from tests.support.oauth.server import OAuthServer

LEGACY = ClientOptions(revision="2025-11-25")
NAME = "Parts agent"


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    return Browser(monkeypatch)


async def record_of(auth: OAuth, url: str) -> Record:
    record = await auth.tokens.load(record_key(url, auth.name))
    assert record is not None
    return record


async def change_record(auth: OAuth, url: str, **members: Any) -> None:
    """Change the stored record, as another process does."""
    record = await record_of(auth, url)
    await save(auth.tokens, replace(record, **members), record_key(url, auth.name))


async def test_first_request_leads_to_a_login(browser: Browser) -> None:
    """The browser is opened, redirected to this machine, and the request succeeds."""
    async with guarded_place() as place:
        async with Client(place.url, auth=OAuth(NAME)) as client:
            assert (await client.call("whoami", {"name": "Ann"})).data == "Ann"
        page = await browser.page()

    assert len(browser.opened) == 1
    assert "Login received" in page.text
    assert page.url.host == "127.0.0.1"
    assert place.grants() == ["authorization_code"]
    assert place.tokens[0] is None
    assert len(place.tokens) == 2


def without_iss() -> OAuthServer:
    """Return an issuer that does not identify itself in redirects."""
    issuer = OAuthServer()
    issuer.faults.metadata = {"authorization_response_iss_parameter_supported": None}
    issuer.faults.redirect = {"iss": None}
    return issuer


async def test_login_without_iss_returns_to_a_path_of_the_issuer(browser: Browser) -> None:
    """RFC 9700, 4.4.2: by the path, the redirect cannot be that of another issuer."""
    async with guarded_place(without_iss()) as place:
        async with Client(place.url, auth=OAuth(NAME)) as client:
            await client.tools()
        page = await browser.page()

    assert "Login received" in page.text
    assert page.url.path.startswith("/callback/")
    assert place.grants() == ["authorization_code"]


async def test_redirect_to_the_path_of_another_issuer_is_refused() -> None:
    """The code of an honest server is not given to the hostile one that led the browser there."""
    async with guarded_place(without_iss()) as place:

        async def browse(url: str) -> str:
            back = urlsplit(await place.browse(url))
            return back._replace(path="/callback").geturl()

        with pytest.raises(IssuerMismatch, match="another path"):
            await Client(place.url, auth=OAuth(NAME, ask=browse)).open()

    assert place.grants() == []


async def test_user_is_asked_once_for_several_clients() -> None:
    """The tokens belong to the OAuth, and the next client begins with them."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        for _ in range(3):
            async with Client(place.url, auth=auth) as client:
                await client.tools()

    assert len(place.asked) == 1
    assert [token for _, token in place.seen].count(None) == 1


async def test_requests_of_a_session_and_its_stream_are_authorized() -> None:
    """2025-11-25: POST, the stream for notifications, and the end of the session."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth, options=LEGACY) as client:
            await client.tools()
            await client._connection.transport.notifications_ready()

    assert {method for method, token in place.seen if token} == {"POST", "GET", "DELETE"}
    assert len(place.tokens) == 2


async def test_sse_pair_is_authorized_by_a_login() -> None:
    """HTTP+SSE of 2024-11-05: the 401 to the first request begins the login."""
    async with guarded_place(sse=True) as place:
        url = place.url.replace("/mcp", "/sse")
        auth = OAuth(NAME, ask=place.browse, resource=place.url)
        async with Client(url, auth=auth) as client:
            assert (await client.call("whoami")).data == "nobody"

    assert len(place.asked) == 1


async def test_expiring_token_is_renewed_ahead() -> None:
    """No login begins, and no request is rejected."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            await client.tools()
        record = await record_of(auth, place.url)
        assert record.expires is not None
        await change_record(auth, place.url, expires=record.expires - 3555)
        async with Client(place.url, auth=auth) as client:
            await client.tools()

    assert place.grants() == ["authorization_code", "refresh_token"]
    assert len(place.asked) == 1
    assert [token for _, token in place.seen].count(None) == 1


async def test_fifty_rejected_requests_cause_one_renewal() -> None:
    """While the stream for notifications is open, and no request waits for another."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth, options=LEGACY) as client:
            await client.call("whoami")
            await client._connection.transport.notifications_ready()
            place.refused.add((await record_of(auth, place.url)).access_token or "")
            calls = (client.call("whoami", {"name": str(n)}) for n in range(50))
            results = await asyncio.gather(*calls)

    assert [result.data for result in results] == [str(number) for number in range(50)]
    assert place.grants() == ["authorization_code", "refresh_token"]
    assert len(place.asked) == 1


async def test_many_first_requests_cause_one_login() -> None:
    """Clients that are opened at once wait for the same login."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        clients = [Client(place.url, auth=auth) for _ in range(8)]
        await asyncio.gather(*(client.open() for client in clients))
        await asyncio.gather(*(client.aclose() for client in clients))

    assert len(place.asked) == 1


async def test_revoked_refresh_token_leads_to_a_login() -> None:
    """The user logs in again, and the client keeps its registration."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            await client.tools()
            record = await record_of(auth, place.url)
            place.issuer.revoke(record.refresh_token or "")
            place.refused.add(record.access_token or "")
            assert (await client.call("whoami")).data == "nobody"

    assert place.grants() == ["authorization_code", "refresh_token", "authorization_code"]
    assert len(place.asked) == 2
    assert len(place.issuer.received("register")) == 1


async def test_unavailable_authorization_server_keeps_the_tokens() -> None:
    """An error 500 removes nothing: the next attempt needs no login."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            await client.tools()
            place.refused.add((await record_of(auth, place.url)).access_token or "")
            place.issuer.faults.fail("token", 500)
            with pytest.raises(AuthorizationFailed):
                await client.call("whoami")
            place.issuer.faults.clear()
            assert (await client.call("whoami")).data == "nobody"

    assert len(place.asked) == 1


@tool(task="always")
async def bake() -> str:
    """Bake, as a task."""
    return "bread"


async def test_task_outlives_an_unavailable_authorization_server() -> None:
    """A renewal that fails with HTTP 503 is tried again with the next poll of the task."""
    suite = Suite(name="parts", version="1", tools=[bake])
    async with asyncio.timeout(20), guarded_place(suite=suite) as place:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            task = await client.call_task("bake")
            place.refused.add((await record_of(auth, place.url)).access_token or "")
            place.issuer.faults.fail("token", 503, times=2)  # for a subscription, and a poll
            assert (await task.wait()).data == "bread"

    assert place.grants() == ["authorization_code", *["refresh_token"] * 3]


async def test_forbidden_operation_leads_to_a_login_with_more_scopes() -> None:
    """The new scopes are requested beside those that were granted."""
    async with guarded_place() as place:
        place.demands["order"] = "parts:write"
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            assert (await client.call("order", {"part": "bolt"})).data == "bolt"
            assert (await client.call("order", {"part": "nut"})).data == "nut"

    assert len(place.asked) == 2
    assert set((await record_of(auth, place.url)).scopes) == {"parts:read", "parts:write"}


async def test_scope_that_the_user_does_not_grant_is_forbidden() -> None:
    """The error names the scope, and the logins come to an end."""
    async with guarded_place() as place:
        place.demands["order"] = "parts:write"
        place.issuer.approved_scopes = ["parts:read"]
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            with pytest.raises(Forbidden) as caught:
                await client.call("order", {"part": "bolt"})
            assert (await client.call("whoami")).data == "nobody"

    assert caught.value.scopes == ("parts:write",)
    assert len(place.asked) == 2


async def test_denied_login_is_an_error_of_its_own() -> None:
    """The user has refused: no second login begins."""
    async with guarded_place() as place:
        place.issuer.consent = "deny"
        with pytest.raises(AuthorizationDenied, match="access_denied"):
            await Client(place.url, auth=OAuth(NAME, ask=place.browse)).open()

    assert len(place.asked) == 1


async def test_login_is_denied_once_although_challenges_differ() -> None:
    """Some servers put the id of the request into the challenge."""
    async with guarded_place() as place:
        place.issuer.consent = "deny"
        guarded, count = place.app, 0

        async def numbered(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                nonlocal count
                if message.get("status") == 401:
                    count += 1
                    headers = dict(message["headers"])
                    headers[b"www-authenticate"] += f', error_description="{count}"'.encode()
                    message = {**message, "headers": [*headers.items()]}
                await send(message)

            await guarded(scope, receive, sending)

        place.app = numbered
        auth = OAuth(NAME, ask=place.browse)
        opening = (Client(place.url, auth=auth).open() for _ in range(8))
        found = await asyncio.gather(*opening, return_exceptions=True)

    assert {type(each) for each in found} == {AuthorizationDenied}
    assert count >= 8
    assert len(place.asked) == 1


async def test_other_issuer_in_the_redirect_is_refused() -> None:
    """RFC 9207: the code is not sent anywhere."""
    async with guarded_place() as place:
        place.issuer.faults.redirect["iss"] = "https://evil.example"
        with pytest.raises(IssuerMismatch):
            await Client(place.url, auth=OAuth(NAME, ask=place.browse)).open()

    assert place.grants() == []


async def test_background_requests_do_not_ask_the_user() -> None:
    """The stream for notifications is opened again at any time, also at night."""
    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse)
        challenge = [("www-authenticate", "Bearer")]
        rejection = RejectedRequest(
            method="GET", url=place.url, sent={}, status=401, headers=challenge, foreground=False
        )
        assert not await auth.authorization(place.url).rejected(rejection)

    assert place.asked == []


async def test_login_ends_with_the_request_that_needs_it() -> None:
    """A caller that gives up leaves no listener behind."""
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def ask(url: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with guarded_place() as place:
        opening = asyncio.create_task(Client(place.url, auth=OAuth(NAME, ask=ask)).open())
        await begun.wait()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    assert ended.is_set()


async def test_hub_does_not_mix_the_tokens_of_its_servers() -> None:
    """One OAuth for two servers of different authorization servers: each gets its own token."""
    async with guarded_place() as one, guarded_place() as two:
        auth = OAuth(NAME, ask=one.browse)
        configs = [ServerConfig("one", url=one.url, auth=auth)]
        configs.append(ServerConfig("two", url=two.url, auth=auth))
        async with Hub() as hub:
            assert await hub.add_all(configs) == {}
            assert (await hub.call("one/whoami", {"name": "a"})).data == "a"
            assert (await hub.call("two/whoami", {"name": "b"})).data == "b"

    assert not {*one.tokens} & {*two.tokens} - {None}
    assert len(one.issuer.received("token")) == len(two.issuer.received("token")) == 1


async def test_login_at_one_server_delays_no_renewal_at_another() -> None:
    """The user may be away, and the other servers of a hub need none."""
    asked = asyncio.Event()
    async with guarded_place() as one, guarded_place() as two:

        async def ask(url: str) -> str:
            if url.startswith(two.issuer.url):
                return await two.browse(url)
            asked.set()
            await asyncio.Event().wait()
            return ""

        auth = OAuth(NAME, ask=ask)
        async with Client(two.url, auth=auth) as client:
            await client.tools()
            waiting = asyncio.create_task(Client(one.url, auth=auth).open())
            await asked.wait()
            two.refused.add((await record_of(auth, two.url)).access_token or "")
            async with asyncio.timeout(10):
                assert (await client.call("whoami")).data == "nobody"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    assert two.grants() == ["authorization_code", "refresh_token"]


async def test_token_is_not_sent_to_another_origin() -> None:
    """A server that redirects elsewhere gets a token; the other place gets nothing."""
    strangers: list[Asked] = []

    async def stranger(asked: Asked) -> None:
        strangers.append(asked)
        await asked.reply(200, {})

    async with guarded_place() as place, served(stranger) as elsewhere:
        auth = OAuth(NAME, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            await client.tools()

            async def redirect(scope: Any, receive: Any, send: Any) -> None:
                headers = [(b"location", elsewhere.encode()), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 307, "headers": headers})
                await send({"type": "http.response.body", "body": b""})

            place.app = redirect
            with pytest.raises(ConnectError, match="it has moved to"):
                await client.call("whoami")

    assert strangers == []


def test_sync_client_logs_in(browser: Browser) -> None:
    """The listener runs in the event loop of the client."""

    async def run() -> None:
        async with guarded_place() as place:
            await asyncio.to_thread(use, place.url)

    def use(url: str) -> None:
        for _ in range(2):
            with SyncClient(url, auth=auth) as client:
                assert client.call("whoami").data == "nobody"

    auth = OAuth(NAME)
    asyncio.run(run())
    assert len(browser.opened) == 1


async def test_login_that_takes_too_long_fails() -> None:
    """The user is away, and the request fails in time."""

    async def ask(url: str) -> str:
        await asyncio.Event().wait()
        return ""

    prompt = UserPrompt(ask=ask, timeout=0.05)
    uri = await prompt.listen(Listen())
    with pytest.raises(FlowFailed, match="did not log in within"):
        await prompt.ask(Ask("https://as.example/authorize", uri))
    await prompt.close()


@pytest.mark.parametrize("is_async", [False, True])
async def test_failure_of_the_function_is_reported(is_async: bool) -> None:
    """A function that fails, or returns no URL, fails the login."""

    def fail(url: str) -> Any:
        raise OSError("no display")

    async def nothing(url: str) -> Any:
        return None

    async with guarded_place() as place:
        auth = OAuth(NAME, ask=nothing if is_async else fail)
        with pytest.raises(AuthorizationFailed, match="NoneType" if is_async else "no display"):
            await Client(place.url, auth=auth).open()


async def test_failure_of_the_storage_is_an_authorization_failure() -> None:
    """A client raises no other error than its own."""

    class Broken(MemoryTokens):
        async def load(self, key: str) -> Record | None:
            raise TokensUnavailable("the disk is full")

    async with guarded_place() as place:
        auth = OAuth(NAME, ask=place.browse, tokens=Broken())
        with pytest.raises(AuthorizationFailed, match="the disk is full"):
            await Client(place.url, auth=auth).open()


async def test_registered_client_uses_its_redirect_uri() -> None:
    """With a secret, a fixed redirect URI, and a function that stands for a website."""
    issuer = OAuthServer()
    issuer.add_client("web", secret="s3cret", redirect_uris=["https://app.example/back"])
    async with guarded_place(issuer) as place:
        auth = OAuth(
            NAME,
            client_id="web",
            secret="s3cret",
            issuer=issuer.url,
            redirect_uri="https://app.example/back",
            ask=place.browse,
        )
        async with Client(place.url, auth=auth) as client:
            await client.tools()

    assert issuer.received("register") == []
    assert "redirect_uri=https%3A%2F%2Fapp.example%2Fback" in place.asked[0]


async def test_secrets_are_neither_logged_nor_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither tokens, nor codes, nor the client secret, at any level."""
    caplog.set_level(logging.DEBUG)
    issuer = OAuthServer()
    issuer.add_client("app", secret="s3cret", redirect_uris=["http://127.0.0.1/callback"])
    async with guarded_place(issuer) as place:
        auth = OAuth(NAME, client_id="app", secret="s3cret", issuer=issuer.url, ask=place.browse)
        async with Client(place.url, auth=auth) as client:
            await client.tools()
            record = await record_of(auth, place.url)
            place.refused.add(record.access_token or "")
            await client.call("whoami")
            shown = [repr(auth), repr(record), repr(client._connection), caplog.text]
            place.issuer.faults.fail("token", 400, error="invalid_grant")
            place.refused.add((await record_of(auth, place.url)).access_token or "")
            with pytest.raises(AuthorizationFailed) as caught:
                await client.call("whoami")
        shown += [str(caught.value), repr(caught.value), caplog.text]

    ours = [line for line in "\n".join(shown).splitlines() if "httpcore" not in line]
    codes = [each.params.get("code", "-") for each in issuer.received("token")]
    assert "client secret" not in shown[0]
    for secret in ["s3cret", record.access_token, record.refresh_token, *codes]:
        if secret and secret != "-":
            assert not [line for line in ours if secret in line]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OAuth(""), "OAuth.name"),
        (lambda: OAuth("a", secret="x"), "needs the client_id"),
        (lambda: OAuth("a", client_id="b", secret="x"), "needs issuer='https"),
        (lambda: OAuth("a", scopes="b"), "not a string"),
        (lambda: OAuth("a", issuer="http://login.example"), "OAuth.issuer"),
        (lambda: OAuth("a", redirect_uri="http://127.0.0.1:70000/c"), "redirect_uri"),
        (lambda: OAuth("a", redirect_uri="https://app.example/c"), "ask="),
        (lambda: OAuth("a", redirect_uri="http://app.example/c"), "redirect_uri"),
        (lambda: OAuth("a", redirect_uri="http://[::1]:8080/c"), "ask="),
        (lambda: OAuth("a", ask=cast(Any, 7)), "must be a function"),
        (lambda: OAuth("a", tokens=cast(Any, 7)), "a TokenStorage"),
    ],
)
def test_options_are_checked_when_made(make: Callable[[], OAuth], text: str) -> None:
    """Not with the first login, which may be days later."""
    with pytest.raises(ConfigurationError, match=text):
        make()


async def test_rejection_of_a_new_token_is_unauthorized() -> None:
    """A server that accepts no token does not cause one login after the other."""
    async with guarded_place() as place:

        class Never(set[str]):
            def __contains__(self, token: object) -> bool:
                return token is not None

        place.refused = Never()
        with pytest.raises(Unauthorized):
            await Client(place.url, auth=OAuth(NAME, ask=place.browse)).open()

    assert len(place.asked) == 1
