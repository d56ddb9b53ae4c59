"""Opaque access tokens."""

import asyncio
import json
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import httpx
import pytest

from genmcp import Endpoint, Suite
from genmcp.auth import AuthorizationUnavailable, Bearer, Introspection, InvalidToken, Jwt, jose
from genmcp.auth.verdicts import Clock
from genmcp.errors import ConfigurationError
from tests.support.clock import Clock as ManualClock
from tests.support.documented import write_examples
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, called, whoami

NOW = 1_800_000_000.0
ISSUER = "https://login.example.com"
ACTIVE = {"active": True, "aud": RESOURCE, "sub": "ada", "exp": NOW + 600, "scope": "read"}


@asynccontextmanager
async def opaque(**options: Any) -> AsyncIterator[tuple[OAuthServer, Introspection]]:
    """Serve an issuer of opaque tokens; yield it, and the options to ask it."""
    issuer = OAuthServer(resources=[RESOURCE], opaque=True)
    issuer.add_client("mcp server: 1", secret="50% of a+b /ü", method="client_secret_basic")
    async with issuer.serve():
        url = f"{issuer.url}/introspect"
        yield issuer, Introspection(url, "mcp server: 1", "50% of a+b /ü", **options)


def guarded(issuer: OAuthServer, verify: Any, **options: Any) -> Endpoint:
    bearer = Bearer(RESOURCE, issuers=[issuer.url], verify=verify, **options)
    return Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)


class Guarded(NamedTuple):
    """An issuer, an endpoint that asks it, and a client of the endpoint."""

    issuer: OAuthServer
    endpoint: Endpoint
    client: httpx.AsyncClient
    url: str

    async def call(self, token: str) -> httpx.Response:
        return await called(self.client, self.url, token)


@asynccontextmanager
async def introspecting(**options: Any) -> AsyncIterator[Guarded]:
    """Serve an issuer of opaque tokens, and an endpoint that accepts them."""
    async with opaque(**options) as (issuer, introspection):
        endpoint = guarded(issuer, introspection)
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            yield Guarded(issuer, endpoint, client, url)


async def test_opaque_token_is_accepted() -> None:
    """Our credentials are form-encoded before Basic (RFC 6749, 2.3.1); the issuer checks them."""
    async with introspecting() as it:
        good = await it.call(it.issuer.token("ada", "read", client_id="web"))
        bad = await it.call("unknown")
        other = await it.call(it.issuer.token("ada", audience="https://other.test"))

    assert f"{it.issuer.url} sub ada" in good.text
    assert (bad.status_code, other.status_code) == (401, 401)
    assert 'error="invalid_token"' in bad.headers["www-authenticate"]


async def test_revoked_token_is_refused_after_the_cache_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not before: within it, the issuer gets no request. The time is an option."""
    clock = ManualClock()
    monkeypatch.setattr("genmcp.auth.authenticator.SYSTEM_CLOCK", Clock(monotonic=clock))
    async with introspecting(cache=20) as it:
        token = it.issuer.token("ada")
        statuses = []
        for clock.now in (0, 19.9, 20):
            statuses.append((await it.call(token)).status_code)
            it.issuer.revoke(token)

    assert statuses == [200, 200, 401]
    assert len(it.issuer.received("introspect")) == 2


async def test_revoked_token_is_refused_at_once_without_cache() -> None:
    """`cache=0`: each request asks the issuer."""
    async with introspecting(cache=0) as it:
        token = it.issuer.token("ada")
        before = await it.call(token)
        it.issuer.revoke(token)
        after = await it.call(token)

    assert (before.status_code, after.status_code) == (200, 401)


async def test_concurrent_requests_ask_once() -> None:
    """A client opens many connections with a new token."""
    async with introspecting() as it:
        it.issuer.faults.delay["introspect"] = 0.3
        token = it.issuer.token("ada")
        found = await asyncio.gather(*(it.call(token) for _ in range(10)))

    assert [each.status_code for each in found] == [200] * 10
    assert len(it.issuer.received("introspect")) == 1


class Answer:
    """An introspection endpoint with one response. `asked` has the forms it got."""

    def __init__(self, body: Any, status: int = 200, **headers: str) -> None:
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.asked: list[dict[str, list[str]]] = []
        self.credentials = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        form = b""
        while True:
            message = await receive()
            form += message["body"]
            if not message.get("more_body"):
                break
        self.asked.append(parse_qs(form.decode(), strict_parsing=True))
        self.credentials = dict(scope["headers"])[b"authorization"]
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def verifier(url: str, issuers: tuple[str, ...] = (ISSUER,), **options: Any) -> Introspection:
    clock = ManualClock(NOW)
    introspection = Introspection(url, "server", "secret", **options)
    return introspection.bind(RESOURCE, issuers, Clock(clock, clock))


async def test_request_is_that_of_rfc_7662() -> None:
    """2.1: a form with the token, and our own credentials."""
    answer = Answer(ACTIVE)
    async with serve(answer, lifespan="off") as url:
        found = await verifier(url).verify("opaque+token/1")

    assert answer.asked == [{"token": ["opaque+token/1"], "token_type_hint": ["access_token"]}]
    assert b64decode(answer.credentials.removeprefix(b"Basic ")) == b"server:secret"
    assert (found.issuer, found.subject) == (ISSUER, "ada")
    assert found.scopes == {"read"}
    assert found.expires == NOW + 600


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"active": False}, "not active"),
        ({"active": "true"}, "not active"),
        ({"active": 1}, "not active"),
        ({"active": None}, "not active"),
        ({"aud": None}, "no aud"),
        ({"aud": "https://other.test"}, "wrong aud"),
        ({"aud": [RESOURCE + "/"]}, "wrong aud"),
        ({"iss": "https://other.test"}, "wrong iss"),
        ({"iss": ISSUER + "/"}, "wrong iss"),
        ({"iss": 7}, "wrong iss"),
        ({"exp": NOW - 60}, "expired"),
        ({"exp": "soon"}, "wrong exp"),
        ({"nbf": NOW + 60}, "nbf"),
        ({"sub": None}, "neither a subject nor a client"),
        ({"sub": 7}, "sub"),
        ({"scope": 7}, "scope"),
        ({"cnf": {"x5t#S256": "A"}}, "cnf"),
    ],
)
async def test_token_must_be_active_and_for_this_server(
    changes: dict[str, Any], reason: str
) -> None:
    """As for signed tokens, but `iss` and `exp` are optional (RFC 7662, 2.2)."""
    body = {name: value for name, value in {**ACTIVE, **changes}.items() if value is not None}
    async with serve(Answer(body), lifespan="off") as url:
        with pytest.raises(InvalidToken, match=reason):
            await verifier(url).verify("t")


async def test_identity_that_is_no_text_is_401() -> None:
    """Half of a surrogate pair: no task of such a user could be stored."""
    body = json.dumps({**ACTIVE, "exp": 2**33, "sub": "ada\ud800"}).encode()
    async with serve(Answer(body), lifespan="off") as asked:
        introspection = Introspection(asked, "server", "secret")
        bearer = Bearer(RESOURCE, issuers=[ISSUER], verify=introspection)
        endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            response = await called(client, url, "opaque")

    assert response.status_code == 401
    assert "half of a surrogate pair" in response.headers["www-authenticate"]


async def test_response_may_be_short() -> None:
    """Issuer and end are optional; the audience only with the explicit word."""
    async with serve(Answer({"active": True, "client_id": "robot"}), lifespan="off") as url:
        found = await verifier(url, unchecked_audience=True).verify("t")

    assert found.principal == f"{ISSUER} client robot"
    assert found.expires is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"error": "invalid_client"}, 401),
        Answer(ACTIVE, 500),
        Answer(ACTIVE, 404),
        Answer(ACTIVE, 204),
        Answer(ACTIVE, 307, location="/other"),
        Answer(b"active=true"),
        Answer([ACTIVE]),
        Answer(b'{"active": true, "active": false}'),
        Answer(b""),
        Answer({**ACTIVE, "x": "a" * 300_000}),
    ],
)
async def test_unusable_response_is_unavailable(answer: Answer) -> None:
    """Neither accepted nor refused: a client would throw a good token away after a 401."""
    async with serve(answer, lifespan="off") as url:
        with pytest.raises(AuthorizationUnavailable) as caught:
            await verifier(url).verify("the-token")

    assert "the-token" not in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_error_of_the_issuer_is_503(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Retry-After` and no challenge; an issuer that is slow, too."""
    monkeypatch.setattr("genmcp.auth.introspection.VERIFIER_TIMEOUT", 0.5)
    async with introspecting() as it:
        token = it.issuer.token("ada")
        it.issuer.faults.fail("introspect", 500, times=1)
        error = await it.call(token)
        it.issuer.faults.delay["introspect"] = 5
        slow = await it.call(token)
        it.issuer.faults.clear()
        good = await it.call(token)

    for response in (error, slow):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert "www-authenticate" not in response.headers
    assert good.status_code == 200
    assert "HTTP 500" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "http://login.example.com/introspect"}, "url"),
        ({"client_id": ""}, "client_id"),
        ({"secret": ""}, "secret"),
        ({"audiences": RESOURCE}, "audiences"),
        ({"cache": -1}, "cache"),
        ({"clients": "web"}, "clients"),
    ],
)
def test_wrong_option_is_an_error(options: dict[str, Any], word: str) -> None:
    """When it is made; the message names it."""
    good = {"url": ISSUER, "client_id": "server", "secret": "s"}
    with pytest.raises(ConfigurationError, match=word):
        Introspection(**{**good, **options})


def test_introspection_is_for_one_issuer() -> None:
    """The endpoint belongs to it."""
    with pytest.raises(ConfigurationError, match="single issuer"):
        verifier(ISSUER, (ISSUER, "https://other.test"))


def test_secret_is_not_shown() -> None:
    """A repr ends in a log."""
    assert "s3cret" not in repr(Introspection(ISSUER, "server", "s3cret"))


async def test_both_kinds_are_accepted_by_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/how-to/token-verification.md: an issuer that signs the tokens of some clients only."""
    write_examples("how-to/token-verification", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    both_kinds = import_module("both_kinds")
    monkeypatch.delitem(sys.modules, "both_kinds")
    async with opaque() as (issuer, introspection):
        key = jose.generate_key()
        keys = {"keys": [key.public_jwk]}
        claims = {"iss": issuer.url, "aud": RESOURCE, "sub": "bob", "exp": time.time() + 60}
        endpoint = guarded(issuer, both_kinds.BothKinds(Jwt(keys=keys), introspection))
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            hidden = await called(client, url, issuer.token("ada"))
            signed = await called(client, url, jose.sign(claims, key))
            bad = await called(client, url, "unknown")

    assert f"{issuer.url} sub ada" in hidden.text
    assert f"{issuer.url} sub bob" in signed.text
    assert bad.status_code == 401
    assert len(issuer.received("introspect")) == 2  # not for the signed token
