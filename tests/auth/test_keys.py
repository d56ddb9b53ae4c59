"""The published keys of an issuer: when they are fetched, and from where."""

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from genmcp import ConfigurationError, Endpoint, Suite
from genmcp.auth import AuthorizationUnavailable, Bearer, InvalidToken, Jwt, jose
from genmcp.auth.jwt import REFETCH, find_keys
from genmcp.auth.verdicts import Clock
from genmcp.core.auth.fetching import MAX_DOCUMENT
from genmcp.core.auth.steps import Fetched, FlowFailed
from tests.support.asgi import until
from tests.support.clock import Clock as ManualClock
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, called, whoami

START = 1_800_000_000.0
METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


@asynccontextmanager
async def published() -> AsyncIterator[tuple[OAuthServer, Jwt, ManualClock]]:
    """Serve an issuer over HTTP; yield it, a verifier of its tokens, and the clock of both."""
    clock = ManualClock(START)
    issuer = OAuthServer(resources=[RESOURCE], token_ttl=10**7, clock=clock)
    async with issuer.serve():
        yield issuer, Jwt().bind(RESOURCE, [issuer.url], Clock(clock, clock)), clock


class KeyServer:
    """An ASGI application with documents by path: a status, headers and a body.

    While `gate` is not set, it does not respond. `asked` has the paths of the requests.
    """

    def __init__(self) -> None:
        self.key = jose.generate_key()
        self.url = ""
        self.documents: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked.append(scope["path"])
        await asyncio.to_thread(self.gate.wait, 10)
        status, headers, body = self.documents.get(scope["path"], (404, {}, b"{}"))
        pairs = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    def put(self, path: str, document: Any, status: int = 200, **headers: Any) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.documents[path] = (status, named, body)

    def publish(self, path: str = METADATA, jwks_uri: str | None = "/keys", **changes: Any) -> None:
        """Serve good documents, with *changes* of the metadata."""
        place = None if jwks_uri is None else jwks_uri if ":" in jwks_uri else self.url + jwks_uri
        self.put(path, {"issuer": self.url, "jwks_uri": place, **changes})
        self.put("/keys", {"keys": [self.key.public_jwk]})

    def token(self, subject: str = "ada", life: float = 600) -> str:
        claims = {"iss": self.url, "aud": RESOURCE, "sub": subject, "exp": START + life}
        return jose.sign(claims, self.key)

    def verifier(self, clock: ManualClock | None = None) -> Jwt:
        chosen = clock or ManualClock(START)
        return Jwt().bind(RESOURCE, [self.url], Clock(chosen, chosen))


@asynccontextmanager
async def key_server() -> AsyncIterator[KeyServer]:
    server = KeyServer()
    async with serve(server, lifespan="off") as server.url:
        server.publish()
        try:
            yield server
        finally:
            server.gate.set()


async def test_keys_are_fetched_once() -> None:
    """By the first token; the metadata and the key set."""
    async with published() as (issuer, verifier, _):
        assert issuer.requests == []
        for subject in ("ada", "bob", "eve"):
            assert (await verifier.verify(issuer.token(subject))).subject == subject

        assert [each.endpoint for each in issuer.requests] == ["metadata", "jwks"]


async def test_keys_of_an_issuer_without_metadata() -> None:
    """`jwks_uri` is asked alone, and again when the issuer has changed its key."""
    clock = ManualClock(START)
    async with key_server() as server:
        server.documents.pop(METADATA)
        verifier = Jwt(jwks_uri=f"{server.url}/keys")
        bound = verifier.bind(RESOURCE, [server.url], Clock(clock, clock))
        first = await bound.verify(server.token())
        server.key = jose.generate_key()
        server.put("/keys", {"keys": [server.key.public_jwk]})
        await clock.advance(REFETCH)
        second = await bound.verify(server.token("bob"))

        assert (first.subject, second.subject) == ("ada", "bob")
        assert server.asked == ["/keys", "/keys"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Jwt(jwks_uri="http://login.example.com/keys"), "jwks_uri"),
        (lambda: Jwt(jwks_uri="keys.json"), "jwks_uri"),
        (lambda: Jwt(keys=jose.generate_key().public_jwk, jwks_uri="https://a.test/k"), "not both"),
        (
            lambda: Jwt(jwks_uri="https://a.test/k").bind(RESOURCE, ["https://a", "https://b"]),
            "for a single issuer",
        ),
    ],
)
def test_wrong_jwks_uri_fails_when_it_is_given(make: Callable[[], Jwt], reason: str) -> None:
    """Not with the first token; and one issuer must not speak for another."""
    with pytest.raises(ConfigurationError, match=reason):
        make()


async def test_concurrent_tokens_share_a_fetch() -> None:
    """One at a time (auth.md, JWKS): a server that starts gets many first tokens."""
    async with key_server() as server:
        verifier = server.verifier()
        server.gate.clear()
        tasks = [asyncio.create_task(verifier.verify(server.token(str(n)))) for n in range(20)]
        await until(lambda: server.asked)
        server.gate.set()
        found = await asyncio.gather(*tasks)

        assert [access.subject for access in found] == [str(n) for n in range(20)]
        assert server.asked == [METADATA, "/keys"]


async def test_cancelled_request_does_not_end_the_fetch_of_others() -> None:
    """The first client may close its connection."""
    async with key_server() as server:
        verifier = server.verifier()
        server.gate.clear()
        first, second = (asyncio.create_task(verifier.verify(server.token())) for _ in range(2))
        await until(lambda: server.asked)
        first.cancel()
        await asyncio.wait([first])
        server.gate.set()

        assert (await second).subject == "ada"
        assert first.cancelled()
        assert server.asked == [METADATA, "/keys"]


async def test_fetch_ends_with_its_last_request() -> None:
    """No fetch runs on without a waiting request, and the next token fetches."""
    async with key_server() as server:
        clock = ManualClock(START)
        verifier = server.verifier(clock)
        server.gate.clear()
        task = asyncio.create_task(verifier.verify(server.token()))
        await until(lambda: server.asked)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # the end of the fetch itself
        assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []
        server.gate.set()

        assert (await verifier.verify(server.token())).subject == "ada"


async def test_cancelled_fetch_may_be_repeated_soon() -> None:
    """Or else a client that leaves at once would hide a new key from the others for 30 s."""
    async with key_server() as server:
        clock = ManualClock(START)
        verifier = server.verifier(clock)
        await verifier.verify(server.token())
        server.key = jose.generate_key()
        server.publish()
        clock.now += 30
        server.gate.clear()
        task = asyncio.create_task(verifier.verify(server.token()))
        await until(lambda: len(server.asked) == 3)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        server.gate.set()
        with pytest.raises(InvalidToken):
            await verifier.verify(server.token())  # bounded, too
        clock.now += 5

        assert (await verifier.verify(server.token())).subject == "ada"


async def test_new_key_is_fetched() -> None:
    """An issuer signs with a new key: its `kid` is unknown. The former key stays listed."""
    async with published() as (issuer, verifier, clock):
        old = issuer.token("ada")
        await verifier.verify(old)
        clock.now += 30
        issuer.rotate()

        assert (await verifier.verify(issuer.token("bob"))).subject == "bob"
        assert (await verifier.verify(old)).subject == "ada"
        assert len(issuer.received("jwks")) == 2


async def test_withdrawn_key_is_refused() -> None:
    """Once the keys are fetched again, which another token causes."""
    async with published() as (issuer, verifier, clock):
        old = issuer.token("ada")
        await verifier.verify(old)
        clock.now += 30
        issuer.rotate(withdraw=True)
        await verifier.verify(issuer.token("bob"))

        with pytest.raises(InvalidToken, match="unknown key"):
            await verifier.verify(old)


async def test_unknown_keys_cause_few_fetches() -> None:
    """A stranger can send any `kid`, and must not make us hammer the issuer."""
    async with published() as (issuer, verifier, clock):
        await verifier.verify(issuer.token("ada"))
        key = jose.generate_key()
        claims = {"iss": issuer.url, "aud": RESOURCE, "sub": "eve", "exp": START + 600}
        for second in range(61):
            clock.now = START + second
            token = jose.sign(claims, key, header={"kid": f"random-{second}"})
            with pytest.raises(InvalidToken, match="unknown key"):
                await verifier.verify(token)

        assert len(issuer.received("jwks")) == 3  # at 0, 30 and 60 s


async def test_known_keys_do_not_wait_for_a_fetch() -> None:
    """While a token with an unknown `kid` is looked up, all others are served."""
    async with key_server() as server:
        clock = ManualClock(START)
        server.put("/keys", {"keys": [{**server.key.public_jwk, "kid": "a"}]})
        claims = {"iss": server.url, "aud": RESOURCE, "sub": "ada", "exp": START + 600}
        known, unknown = (jose.sign(claims, server.key, header={"kid": kid}) for kid in "ab")
        verifier = server.verifier(clock)
        await verifier.verify(known)
        clock.now += 60
        server.gate.clear()
        task = asyncio.create_task(verifier.verify(unknown))
        await until(lambda: len(server.asked) == 3)

        assert (await verifier.verify(known)).subject == "ada"
        assert not task.done()
        server.gate.set()
        with pytest.raises(InvalidToken, match="unknown key"):
            await task


async def test_changed_key_without_kid_is_fetched() -> None:
    """Only the failed signature shows that there is a new key."""
    async with key_server() as server:
        clock = ManualClock(START)
        verifier = server.verifier(clock)
        await verifier.verify(server.token())
        server.key = jose.generate_key()
        server.publish()
        with pytest.raises(InvalidToken, match="signature"):
            await verifier.verify(server.token())  # too soon after the last fetch
        clock.now += 30

        assert (await verifier.verify(server.token())).subject == "ada"


async def test_changed_key_is_fetched_though_keys_have_no_kid() -> None:
    """The tokens have one. Until it is in the key set, a key without one may be meant."""
    async with key_server() as server:
        clock = ManualClock(START)
        claims = {"iss": server.url, "aud": RESOURCE, "sub": "ada", "exp": START + 600}
        verifier = server.verifier(clock)
        await verifier.verify(jose.sign(claims, server.key, header={"kid": "a"}))
        clock.now += 30
        server.key = jose.generate_key()
        server.publish()

        token = jose.sign(claims, server.key, header={"kid": "b"})
        assert (await verifier.verify(token)).subject == "ada"


async def test_keys_are_fetched_again_when_they_are_stale() -> None:
    """A withdrawn key is found out without a token that has a new one."""
    async with key_server() as server:
        clock = ManualClock(START)
        verifier = server.verifier(clock)
        token = server.token(life=10**6)
        await verifier.verify(token)
        clock.now += 299
        await verifier.verify(token)
        assert len(server.asked) == 2
        clock.now += 1
        await verifier.verify(token)

        assert server.asked == [METADATA, "/keys"] * 2


async def test_old_keys_are_used_while_a_fetch_fails(caplog: pytest.LogCaptureFixture) -> None:
    """An issuer that is down logs no user out; the log has it, and each retry waits."""
    async with published() as (issuer, verifier, clock):
        token = issuer.token("ada")
        await verifier.verify(token)
        issuer.faults.fail("jwks", 500)
        for _ in range(3):
            clock.now += 300
            for _ in range(5):
                assert (await verifier.verify(token)).subject == "ada"
        assert len(issuer.received("jwks")) == 1 + 3
        assert [each.msg.count("of the last fetch") for each in caplog.records] == [1] * 3

        issuer.faults.clear()
        clock.now += 30
        await verifier.verify(token)
        clock.now += 30
        await verifier.verify(token)
        assert len(issuer.received("jwks")) == 1 + 3 + 1


async def test_unknown_key_is_unavailable_while_a_fetch_fails() -> None:
    """The token may be good: after a 401, its client would throw it away."""
    async with published() as (issuer, verifier, clock):
        await verifier.verify(issuer.token("ada"))
        issuer.rotate()
        issuer.faults.fail("jwks", 500)
        token = issuer.token("bob")
        clock.now += 60
        for _ in range(2):
            with pytest.raises(AuthorizationUnavailable, match="HTTP 500") as caught:
                await verifier.verify(token)
        assert caught.value.retry_after == 30
        issuer.faults.clear()
        clock.now += 30

        assert (await verifier.verify(token)).subject == "bob"


async def test_issuer_that_is_down_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """No challenge, `Retry-After`; once the issuer is up, the same token is accepted."""
    clock = ManualClock(START)
    issuer = OAuthServer(resources=[RESOURCE], clock=clock)
    async with issuer.serve():
        issuer.faults.fail("metadata", 503)
        issuer.faults.fail("openid", 503)
        verifier = Jwt().bind(RESOURCE, [issuer.url], Clock(clock, clock))
        monkeypatch.setattr(verifier, "bind", lambda *_: verifier)  # with this clock
        bearer = Bearer(RESOURCE, issuers=[issuer.url], verify=verifier)
        endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            token = issuer.token("ada")
            down = await called(client, url, token)
            issuer.faults.clear()
            soon = await called(client, url, token)
            clock.now += 5
            up = await called(client, url, token)

    assert (down.status_code, down.headers["retry-after"]) == (503, "5")
    assert "www-authenticate" not in down.headers
    assert soon.status_code == 503  # not a fetch for each request
    assert up.status_code == 200
    assert len(issuer.received("metadata")) == 2


@pytest.mark.parametrize(
    "broken",
    [
        {"status": 404},
        {"status": 500},
        {"document": b"<html>"},
        {"document": b"[]"},
        {"document": b"\xff"},
        {"issuer": "https://login.example.com"},
        {"issuer": "SLASH"},
        {"issuer": 7},
        {"jwks_uri": None},
        {"jwks_uri": "http://login.example.com/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "https://a@login.example.com/keys"},
        {"jwks_uri": "https://login.example.com:99999/keys"},
        {"jwks_uri": "/missing"},
    ],
)
async def test_document_that_cannot_be_used_is_passed_over(broken: dict[str, Any]) -> None:
    """RFC 8414, 3.3: another issuer's document is not used. The next place may have a good one."""
    async with key_server() as server:
        server.publish(OPENID)
        changes = dict(broken)
        if changes.get("issuer") == "SLASH":
            changes["issuer"] = server.url + "/"
        if "document" in changes or "status" in changes:
            server.put(METADATA, changes.get("document", {}), changes.get("status", 200))
        else:
            server.publish(METADATA, **changes)
        verifier = server.verifier()

        assert (await verifier.verify(server.token())).subject == "ada"
        assert server.asked[-1] == "/keys"


async def test_every_place_is_named_if_none_has_keys() -> None:
    """The log names the fault of each place."""
    async with key_server() as server:
        server.publish(issuer=server.url + "/")

        with pytest.raises(AuthorizationUnavailable) as caught:
            await server.verifier().verify(server.token())

        assert f"{server.url}{METADATA}: is of the issuer '{server.url}/'" in str(caught.value)
        assert f"{server.url}{OPENID}: no document (HTTP 404)" in str(caught.value)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"", "not a JWK set"),
        (b"{}", "not a JWK set"),
        (b'{"keys": 7}', "not a JWK set"),
        (b"[" * 5000, "not a JWK set"),
        (gzip.compress(b'{"keys": []}', mtime=0), "not a JWK set"),
        (b'{"keys": [], "x": "' + b"a" * MAX_DOCUMENT + b'"}', "not a JWK set"),
    ],
)
async def test_wrong_key_set_is_unavailable(document: bytes, problem: str) -> None:
    """It is bounded, and no reason to refuse a token."""
    async with key_server() as server:
        server.put("/keys", document)

        with pytest.raises(AuthorizationUnavailable, match=problem):
            await server.verifier().verify(server.token())


@pytest.mark.parametrize("keys", [[], [{"kty": "oct", "k": "c2VjcmV0"}]])
async def test_set_without_usable_keys_is_unavailable(keys: list[Any]) -> None:
    """It withdraws the old keys; but clients keep their tokens, and the log has the reason."""
    clock = ManualClock(START)
    async with key_server() as server:
        verifier = server.verifier(clock)
        await verifier.verify(server.token())
        server.put("/keys", {"keys": keys})
        clock.now += 300

        with pytest.raises(AuthorizationUnavailable, match="publishes no key that can be used"):
            await verifier.verify(server.token())
        server.publish()
        clock.now += 30
        accepted = await verifier.verify(server.token())

    assert accepted.subject == "ada"


async def test_mistake_in_other_metadata_does_not_matter() -> None:
    """Some servers have null, or text, where RFC 8414 demands another type."""
    async with key_server() as server:
        server.publish(client_id_metadata_document_supported=None, scopes_supported="a b")

        assert (await server.verifier().verify(server.token())).subject == "ada"


async def test_redirect_within_the_origin_is_followed() -> None:
    """A few times: a loop ends."""
    async with key_server() as server:
        server.put("/old", b"", 302, location="/older")
        server.put("/older", b"", 307, location=f"{server.url}/keys")
        server.publish(jwks_uri="/old")
        assert (await server.verifier().verify(server.token())).subject == "ada"

        server.put("/old", b"", 302, location="/old")
        with pytest.raises(AuthorizationUnavailable, match="redirects too often"):
            await server.verifier().verify(server.token())


@pytest.mark.parametrize("location", ["https://attacker.test/keys", "//attacker.test", "PORT"])
async def test_redirect_to_another_origin_is_not_followed(location: str) -> None:
    """Else anyone who controls a redirect of the issuer controls its keys."""
    async with key_server() as server, key_server() as other:
        target = other.url + "/keys" if location == "PORT" else location
        server.put("/old", b"", 302, location=target)
        server.publish(jwks_uri="/old")
        server.key = other.key

        with pytest.raises(AuthorizationUnavailable, match="redirects to another origin"):
            await server.verifier().verify(server.token())
        assert other.asked == []


async def test_slow_issuer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the fetch has one time limit."""
    monkeypatch.setattr("genmcp.auth.jwt.VERIFIER_TIMEOUT", 0.05)
    async with key_server() as server:
        server.gate.clear()

        with pytest.raises(AuthorizationUnavailable, match=r"no response within 0\.05 s"):
            await server.verifier().verify(server.token())


async def test_issuer_that_does_not_listen_is_unavailable() -> None:
    """The message has the error of the connection."""
    async with key_server() as server:
        token, verifier = server.token(), server.verifier()

    with pytest.raises(AuthorizationUnavailable, match="All connection attempts failed"):
        await verifier.verify(token)


@pytest.mark.parametrize(
    ("url", "issuer", "allowed"),
    [
        ("https://keys.example.com/a", "https://login.example.com", True),
        ("http://127.0.0.1:1/a", "http://localhost:2", True),
        ("http://127.0.0.1:1/a", "https://login.example.com", False),
        ("https://127.0.0.1/a", "https://login.example.com", False),
        ("https://[::1]/a", "https://login.example.com", False),
        ("http://keys.example.com/a", "https://login.example.com", False),
        ("ftp://keys.example.com/a", "https://login.example.com", False),
        ("https://[::1/a", "https://login.example.com", False),
    ],
)
def test_places_of_keys_are_checked(url: str, issuer: str, allowed: bool) -> None:
    """HTTPS, but on loopback; a public issuer names nothing on this machine."""
    metadata = json.dumps({"issuer": issuer, "jwks_uri": url}).encode()
    asked: list[str] = []
    steps = find_keys(issuer)
    step = next(steps)
    try:
        while True:
            asked.append(step.url)  # type: ignore[union-attr]
            step = steps.send(Fetched(200, body=b"{}" if asked[-1] == url else metadata))
    except (StopIteration, FlowFailed):
        pass

    assert (url in asked) is allowed


async def test_next_event_loop_has_the_keys() -> None:
    """One after the other, as in tests: a fetch of a loop that has ended holds up nothing."""
    async with key_server() as server:
        clock = ManualClock(START)
        verifier = server.verifier(clock)
        server.gate.clear()

        async def leave() -> None:
            waiting = asyncio.create_task(verifier.verify(server.token()))
            await until(lambda: server.asked)
            waiting.cancel()

        await asyncio.to_thread(asyncio.run, leave())
        server.gate.set()
        clock.now += 5

        for _ in range(2):
            access = await asyncio.to_thread(asyncio.run, verifier.verify(server.token()))
            assert access.subject == "ada"
        assert server.asked == [METADATA, METADATA, "/keys"]


async def test_issuers_do_not_speak_for_each_other() -> None:
    """A token counts only with the keys of the issuer that it names."""
    async with key_server() as one, key_server() as two:
        clock = ManualClock(START)
        both = Jwt().bind(RESOURCE, [one.url, two.url], Clock(clock, clock))
        claims = {"iss": one.url, "aud": RESOURCE, "sub": "ada", "exp": START + 600}

        assert (await both.verify(one.token())).issuer == one.url
        assert (await both.verify(two.token())).issuer == two.url
        with pytest.raises(InvalidToken, match="signature"):
            await both.verify(jose.sign(claims, two.key))


async def test_nothing_is_fetched_for_a_token_that_is_wrong_anyway() -> None:
    """A stranger's token must not cause requests."""
    async with published() as (issuer, verifier, _):
        for token in (issuer.token("a", audience="https://b"), issuer.token("a", expires_in=-60)):
            with pytest.raises(InvalidToken):
                await verifier.verify(token)

        assert issuer.requests == []


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
