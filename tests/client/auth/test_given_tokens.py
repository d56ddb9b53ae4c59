"""Access tokens given by the user, and the authorization of requests over HTTP."""

import asyncio
import gc
import logging
import ssl
from collections.abc import Mapping
from typing import Any

import h11
import httpx
import pytest
from starlette.applications import Starlette

from genmcp import (
    Client,
    ClientOptions,
    Command,
    ConfigurationError,
    Endpoint,
    Hub,
    ServerConfig,
    SyncClient,
    Unauthorized,
)
from genmcp.client.auth import Authorization, OAuth, RejectedRequest
from genmcp.client.errors import AuthorizationFailed, Forbidden
from genmcp.client.transports.targets import transport_to
from tests.client.auth.guarded import Guarded, suite
from tests.client.scripted import Asked, served
from tests.client.sinks import Recorder, request
from tests.support.client_bounds import bounds
from tests.support.serving import serve

WHO = {"name": "test", "version": "1"}
LEGACY = ClientOptions(revision="2025-11-25")


def with_httpx() -> ClientOptions:
    return ClientOptions(http_client=httpx.AsyncClient(trust_env=False))


@pytest.mark.parametrize("uses_httpx", [False, True])
async def test_token_is_sent_with_each_request(uses_httpx: bool) -> None:
    """The requests of the session, its notification stream and its end have the token."""
    guarded = Guarded()
    own = httpx.AsyncClient(trust_env=False) if uses_httpx else None
    options = ClientOptions(revision="2025-11-25", http_client=own)
    async with serve(guarded) as url, Client(url, auth="good", options=options) as client:
        assert (await client.call("whoami", {"name": "Ann"})).data == "Ann"
        await client._connection.transport.notifications_ready()
    if own is not None:
        await own.aclose()

    assert {method for method, _ in guarded.seen} == {"POST", "GET", "DELETE"}
    assert {token for _, token in guarded.seen} == {"Bearer good"}


async def test_wrong_token_is_unauthorized() -> None:
    """The same token is not sent twice, and the error has the challenge but not the token."""
    guarded = Guarded()
    async with serve(guarded) as url:
        with pytest.raises(Unauthorized) as caught:
            await Client(url, auth="outdated").open()

    assert caught.value.challenge == 'Bearer error="invalid_token"'
    assert "outdated" not in str(caught.value)
    assert guarded.seen == [("POST", "Bearer outdated")]


async def test_token_that_a_server_repeats_is_not_shown() -> None:
    """Gateways do so in their errors, and errors end in logs."""

    async def gateway(asked: Asked) -> None:
        await asked.reply(401, {"error": f"not valid: {asked.headers.get('authorization')}"})

    async with served(gateway) as url:
        with pytest.raises(Unauthorized, match=r"not valid: Bearer \*\*\*") as caught:
            await Client(url, auth="0utdated-token").open()

    assert b"0utdated" not in caught.value.content


@pytest.mark.parametrize("is_async", [False, True])
async def test_function_is_asked_again_after_401(is_async: bool) -> None:
    """A token that expires is replaced, and the call that met it succeeds."""
    tokens = iter(["first", "second"])
    valid = {"Bearer first"}

    async def later() -> str:
        return next(tokens)

    guarded = Guarded(lambda token: token in valid)
    source = later if is_async else lambda: next(tokens)
    async with serve(guarded) as url, Client(url, auth=source) as client:
        await client.tools()
        valid.clear()
        valid.add("Bearer second")
        assert (await client.call("whoami")).data == "nobody"

    assert next(tokens, None) is None


async def test_function_that_returns_the_same_token_ends_the_attempt() -> None:
    """Otherwise each 401 would cause another one."""
    guarded = Guarded()
    async with serve(guarded) as url:
        with pytest.raises(Unauthorized):
            await Client(url, auth=lambda: "bad").open()

    assert len(guarded.seen) == 1


async def test_error_of_a_token_function_is_an_authorization_failure() -> None:
    """The caller gets a ClientError with the cause."""

    def source() -> str:
        raise OSError("the vault is sealed")

    async with serve(Guarded()) as url:
        with pytest.raises(AuthorizationFailed, match="the vault is sealed") as caught:
            await Client(url, auth=source).open()
    assert isinstance(caught.value.__cause__, OSError)


async def test_concurrent_requests_wait_for_no_other_request() -> None:
    """Requests that are rejected at once all succeed, while a notification stream is open."""
    valid = {"Bearer 1"}
    calls = 0

    async def source() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return next(iter(valid)).removeprefix("Bearer ")

    guarded = Guarded(lambda token: token in valid)
    async with serve(guarded) as url, Client(url, auth=source, options=LEGACY) as client:
        await client.tools()
        await client._connection.transport.notifications_ready()
        valid.clear()
        valid.add("Bearer 2")
        results = await asyncio.gather(*(client.call("whoami") for _ in range(30)))

    assert {result.data for result in results} == {"nobody"}


async def test_sse_pair_is_authorized() -> None:
    """HTTP+SSE of 2024-11-05: the stream and the posts have the token."""
    app = Starlette(routes=[Endpoint(suite()).sse_route("/sse")])
    guarded = Guarded(app=app)
    async with serve(guarded) as url, Client(f"{url}/sse", auth="good") as client:
        assert (await client.call("whoami")).data == "nobody"

    assert {token for _, token in guarded.seen} == {"Bearer good"}
    assert {"GET", "POST"} == {method for method, _ in guarded.seen}


async def test_sse_stream_that_demands_a_token_is_unauthorized() -> None:
    """Not the 405 of the first request, which would hide the cause."""
    app = Starlette(routes=[Endpoint(suite()).sse_route("/sse")])
    guarded = Guarded(app=app)
    guarded.accepts = lambda _: guarded.seen[-1][0] == "POST"
    async with serve(guarded) as url:
        with pytest.raises(Unauthorized):
            await Client(f"{url}/sse").open()


async def test_forbidden_names_the_scopes() -> None:
    """HTTP 403 is an error of its own, with the scopes of the challenge."""
    guarded = Guarded(status=403, challenge='Bearer error="insufficient_scope", scope="a b"')
    async with serve(guarded) as url:
        with pytest.raises(Forbidden) as caught:
            await Client(url, auth="weak").open()

    assert list(caught.value.scopes) == ["a", "b"]
    assert not caught.value.sent


def test_sync_client_is_authorized() -> None:
    """A blocking client takes the same option."""

    async def run() -> None:
        async with serve(Guarded()) as url:
            await asyncio.to_thread(call, url)

    def call(url: str) -> None:
        with SyncClient(url, auth="good") as client:
            assert client.call("whoami").data == "nobody"

    asyncio.run(run())


async def test_endpoint_in_this_process_gets_the_token() -> None:
    """For tests of a server that authenticates."""
    seen: list[Any] = []
    endpoint = Endpoint(suite(), principal=lambda scope: seen.append(dict(scope["headers"])))
    async with Client(endpoint, auth="good") as client:
        await client.tools()
    assert {headers[b"authorization"] for headers in seen} == {b"Bearer good"}


async def test_hub_authorizes_each_server() -> None:
    """Each server gets the token of its own configuration, and no other."""
    first, second = Guarded(), Guarded(lambda token: token == "Bearer other")
    async with serve(first) as one, serve(second) as two:
        configs = [
            ServerConfig("one", url=one, auth="good"),
            ServerConfig("two", url=two, auth=lambda: "other", headers={"X-Team": "a"}),
        ]
        async with Hub() as hub:
            assert await hub.add_all(configs) == {}
            assert {each.name for each in hub.tools()} == {"one/whoami", "two/whoami"}

    assert {token for _, token in first.seen} == {"Bearer good"}
    assert {token for _, token in second.seen} == {"Bearer other"}


class Patient(Authorization):
    """Waits for *event*, as for a user, and then sends a token."""

    pauses_timeouts = True

    def __init__(self) -> None:
        self.waiting, self.event = asyncio.Event(), asyncio.Event()
        self.rejections: list[RejectedRequest] = []
        self.answers = 0

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        return {"Authorization": "Bearer good"} if self.event.is_set() else {}

    async def rejected(self, request: RejectedRequest) -> bool:
        self.rejections.append(request)
        self.waiting.set()
        await self.event.wait()
        return True

    async def rejections_of(self, count: int) -> None:
        while len(self.rejections) < count:
            self.waiting.clear()
            await self.waiting.wait()

    def answered(self, url: str, headers: Mapping[str, str]) -> None:
        self.answers += 1

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> Authorization:
        return self


async def test_timeouts_are_paused_while_the_user_is_asked() -> None:
    """A login takes minutes, and a request seconds; neither may end the other."""
    patient = Patient()
    async with serve(Guarded()) as url:
        client = Client(url, auth=patient)
        opening = asyncio.create_task(client.open())
        await patient.waiting.wait()
        connection = client._connection
        later = asyncio.get_running_loop().time() + 1e6
        assert connection._machine.check_timeouts(later) == []
        patient.event.set()
        await opening
        assert (await client.call("whoami")).data == "nobody"
        await client.aclose()

    [rejection] = patient.rejections
    assert (rejection.status, rejection.attempt, rejection.foreground) == (401, 1, True)
    assert repr(rejection) == f"RejectedRequest(POST {url}/: 401, attempt 1)"
    assert patient.answers > 2


async def test_waiting_requests_are_reported_to_the_sink() -> None:
    """The sink pauses the timeouts of such a request."""
    patient = Patient()
    patient.event.set()
    recorder = Recorder()
    guarded = Guarded(lambda token: token == "Bearer good" and len(guarded.seen) > 1)
    async with serve(guarded) as url:
        transport = transport_to(url, auth=patient)
        await transport.open(recorder)
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": WHO}
        await transport.send(request(1, "initialize", revision=None, **begin))
        await recorder.until(messages=1)
        await transport.close()

    assert recorder.waits == [(1, True), (1, False)] * 3


async def test_request_is_sent_a_limited_number_of_times() -> None:
    """An authorization that always wants to try again ends as Unauthorized."""
    patient = Patient()
    patient.event.set()
    guarded = Guarded(lambda _: False)
    async with serve(guarded) as url:
        with pytest.raises(Unauthorized):
            await Client(url, auth=patient).open()

    assert [each.attempt for each in patient.rejections] == [1, 2, 3, 4, 5]
    assert len(guarded.seen) == 6


async def test_rejected_requests_occupy_no_connection() -> None:
    """With one connection at most, two requests can wait for the user at once."""
    with bounds(max_connections=1):
        patient = Patient()
        guarded = Guarded(lambda token: token == "Bearer good" or len(guarded.seen) < 2)
        async with serve(guarded) as url, Client(url, auth=patient) as client:
            calls = [asyncio.create_task(each()) for each in (client.tools, client.ping)]
            async with asyncio.timeout(10):
                await patient.rejections_of(2)
            patient.event.set()
            await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("target", "auth", "headers", "text"),
    [
        ("http://h/mcp", "a b", None, "access token must be"),
        ("http://h/mcp", "Bearer abc", None, "without the scheme"),
        ("http://h/mcp", 7, None, "not a int"),
        (Command("server"), "abc", None, r"Command\(env"),
        (suite(), "abc", None, "a URL or an Endpoint"),
        (Endpoint(suite()), OAuth("Agent"), None, "OAuth needs the URL"),
        ("http://h/mcp", "abc", {"authorization": "x"}, "not both"),
    ],
)
async def test_auth_that_cannot_be_used_is_refused(
    target: Any, auth: Any, headers: Mapping[str, str] | None, text: str
) -> None:
    """Before anything is sent, and without the token in the message."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        await Client(target, headers=headers or {}, auth=auth).open()
    assert "abc" not in str(caught.value)


async def test_httpx_client_with_its_own_authentication_is_refused() -> None:
    """One option, one place."""
    async with httpx.AsyncClient(auth=("user", "password"), trust_env=False) as own:
        options = ClientOptions(http_client=own)
        with pytest.raises(ConfigurationError, match="either auth="):
            await Client("http://h/mcp", auth="abc", options=options).open()


def test_token_of_a_hub_server_is_masked() -> None:
    """A configuration is logged, and shown in errors."""
    assert "secret" not in repr(ServerConfig("one", url="https://h/mcp", auth="secret"))
    with pytest.raises(ConfigurationError, match="not a command"):
        ServerConfig("one", command="x", auth="secret")


async def test_token_without_tls_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Usual within a cluster, and a mistake elsewhere. On loopback, no warning is needed."""
    for url in ("https://h/mcp", "http://127.0.0.1/mcp", "http://example.com/mcp?key=k"):
        await transport_to(url, auth="abc").close()
    [warning] = caplog.messages
    assert warning == "http://example.com/mcp?*** gets access tokens without TLS"


async def test_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither at success nor at failure, at any level."""
    caplog.set_level(logging.DEBUG)
    async with serve(Guarded(lambda token: token == "Bearer seekrit")) as url:
        async with Client(url, auth="seekrit", options=LEGACY) as client:
            await client.tools()
        with pytest.raises(Unauthorized):
            await Client(url, auth="seekrit-2").open()
    assert "seekrit" not in caplog.text


async def test_closed_client_keeps_no_token() -> None:
    """Heads of requests are kept for the next ones, and belong to the connection."""
    token = b"Bearer a-token-of-this-test"
    async with serve(Guarded(lambda given: given == token.decode())) as url:
        client = Client(url, auth=token.decode().removeprefix("Bearer "))
        async with client:
            await client.call("whoami")
            assert heads_with(token)
        gc.collect()
        assert not heads_with(token)


def heads_with(value: bytes) -> list[h11.Request]:
    heads = [each for each in gc.get_objects() if isinstance(each, h11.Request)]
    return [head for head in heads if (b"authorization", value) in [*head.headers]]
