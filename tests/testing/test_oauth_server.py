"""`OAuthServer`: tokens that it issues, and requests that it refuses."""

import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwk, jwt

from genmcp.errors import ConfigurationError
from tests.support.oauth.keys import read_jwt, s256
from tests.support.oauth.server import OAuthServer

REDIRECT = "http://127.0.0.1:8765/callback"
RESOURCE = "https://mcp.example.com/mcp"
VERIFIER = secrets.token_urlsafe(48)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """A client that was registered in advance, and calls the issuer in memory."""

    def __init__(self, issuer: OAuthServer, http: httpx.AsyncClient) -> None:
        self.issuer = issuer
        self.http = http

    async def authorize(self, **changes: str | None) -> dict[str, str]:
        """Return the parameters of the redirect."""
        response = await self.page(**changes)
        assert response.status_code == 302, response.text
        return query(response.headers["location"])

    async def page(self, **changes: str | None) -> httpx.Response:
        params: dict[str, str | None] = {
            "response_type": "code",
            "client_id": "app",
            "redirect_uri": REDIRECT,
            "scope": "read write",
            "state": "s-1",
            "code_challenge": s256(VERIFIER),
            "code_challenge_method": "S256",
            "resource": RESOURCE,
            **changes,
        }
        present = {name: value for name, value in params.items() if value is not None}
        return await self.http.get("/authorize", params=present)

    async def redeem(self, code: str, /, **changes: str) -> httpx.Response:
        form = {
            "grant_type": "authorization_code",
            "client_id": "app",
            "code": code,
            "redirect_uri": REDIRECT,
            "code_verifier": VERIFIER,
            "resource": RESOURCE,
            **changes,
        }
        return await self.http.post("/token", data=form)

    async def login(self, **changes: str | None) -> dict[str, Any]:
        """Return the token response of a whole login."""
        response = await self.redeem((await self.authorize(**changes))["code"])
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def refresh(self, token: str, /, **changes: str) -> httpx.Response:
        form = {"grant_type": "refresh_token", "client_id": "app", "refresh_token": token}
        return await self.http.post("/token", data={**form, **changes})

    async def introspect(self, token: str) -> dict[str, Any]:
        response = await self.http.post("/introspect", data={"token": token}, auth=("rs", "pw"))
        assert response.status_code == 200
        found: dict[str, Any] = response.json()
        return found


def query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def claims_of(issuer: OAuthServer, token: str, now: float = 1_800_000_000.0) -> dict[str, Any]:
    return read_jwt(token, issuer.jwks["keys"], types=["at+jwt"], now=now)


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def options() -> Mapping[str, Any]:
    """Return the options of the issuer; tests replace them."""
    return {}


@pytest.fixture
def issuer(clock: Clock, options: Mapping[str, Any]) -> Iterator[OAuthServer]:
    issuer = OAuthServer("https://issuer.test", clock=clock, user="ann", **options)
    issuer.add_client("app", redirect_uris=[REDIRECT])
    issuer.add_client("rs", secret="pw")
    yield issuer


@pytest.fixture
async def caller(issuer: OAuthServer) -> AsyncIterator[Caller]:
    transport = httpx.ASGITransport(app=issuer.app)
    async with httpx.AsyncClient(transport=transport, base_url=issuer.url) as http:
        yield Caller(issuer, http)


async def test_login_gets_tokens_for_user_scopes_and_resource(caller: Caller) -> None:
    """The redirect names the issuer (RFC 9207), and the token is one of RFC 9068."""
    redirect = await caller.authorize()
    response = await caller.redeem(redirect["code"])
    answer = response.json()

    assert (redirect["state"], redirect["iss"]) == ("s-1", "https://issuer.test")
    assert response.headers["cache-control"] == "no-store"
    assert (answer["token_type"], answer["scope"]) == ("Bearer", "read write")
    claims = claims_of(caller.issuer, answer["access_token"])
    assert claims.pop("jti")
    assert claims == {
        "iss": "https://issuer.test",
        "sub": "ann",
        "client_id": "app",
        "aud": RESOURCE,
        "scope": "read write",
        "iat": 1_800_000_000,
        "exp": 1_800_003_600,
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"scope": 'a"b'}, "invalid_scope"),
        ({"resource": "mcp"}, "invalid_target"),
        ({"resource": f"{RESOURCE}#part"}, "invalid_target"),
    ],
)
async def test_wrong_authorization_request_is_refused(
    caller: Caller, changes: dict[str, str | None], error: str
) -> None:
    """The error is sent to the redirect URI with state and issuer."""
    redirect = await caller.authorize(**changes)

    assert (redirect["error"], redirect["state"]) == (error, "s-1")
    assert redirect["iss"] == "https://issuer.test"
    assert "code" not in redirect


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "stranger"},
        {"redirect_uri": "https://evil.example.com/callback"},
        {"redirect_uri": "http://127.0.0.1:8765/callback/other"},
        {"redirect_uri": "http://user@127.0.0.1:8765/callback"},
        {"redirect_uri": None},
    ],
)
async def test_unknown_redirect_is_no_redirect(
    caller: Caller, changes: dict[str, str | None]
) -> None:
    """RFC 6749, 4.1.2.1: an open redirector otherwise."""
    response = await caller.page(**changes)

    assert response.status_code == 400
    assert "location" not in response.headers


async def test_loopback_redirect_may_have_any_port(caller: Caller) -> None:
    """RFC 8252, 7.3: a native application binds a free port."""
    redirect = await caller.authorize(redirect_uri="http://127.0.0.1:1/callback")

    assert "code" in redirect


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_verifier": "x" * 43}, "invalid_grant"),
        ({"code_verifier": "short"}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:1/callback"}, "invalid_grant"),
        ({"client_id": "other"}, "invalid_grant"),
        ({"resource": "https://other.example.com"}, "invalid_target"),
        ({"code": "guessed"}, "invalid_grant"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
    ],
)
async def test_wrong_token_request_is_refused(
    caller: Caller, changes: dict[str, str], error: str
) -> None:
    """The code stays valid, since no client has proved to own it."""
    caller.issuer.add_client("other", redirect_uris=[REDIRECT])
    code = (await caller.authorize())["code"]

    wrong = await caller.redeem(code, **changes)

    assert error_of(wrong) == (400, error)
    assert (await caller.redeem(code)).status_code == 200


async def test_repeated_parameter_is_refused(caller: Caller) -> None:
    """RFC 6749, 3.1: parameters must not be included more than once."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    content = "grant_type=refresh_token&grant_type=refresh_token&client_id=app&refresh_token=x"

    response = await caller.http.post("/token", content=content, headers=headers)

    assert error_of(response) == (400, "invalid_request")


async def test_second_use_of_a_code_revokes_its_tokens(caller: Caller) -> None:
    """RFC 6749, 4.1.2."""
    code = (await caller.authorize())["code"]
    token = (await caller.redeem(code)).json()["access_token"]
    assert (await caller.introspect(token))["active"]

    again = await caller.redeem(code)

    assert error_of(again) == (400, "invalid_grant")
    assert await caller.introspect(token) == {"active": False}


async def test_code_expires(caller: Caller, clock: Clock) -> None:
    """After a minute."""
    code = (await caller.authorize())["code"]
    clock.now += 61

    assert error_of(await caller.redeem(code)) == (400, "invalid_grant")


async def test_refresh_rotates_and_detects_reuse(caller: Caller) -> None:
    """RFC 9700, 4.14.2: the second use of a refresh token ends the grant."""
    first = await caller.login()
    second = (await caller.refresh(first["refresh_token"])).json()
    assert second["refresh_token"] != first["refresh_token"]
    assert claims_of(caller.issuer, second["access_token"])["aud"] == RESOURCE

    reused = await caller.refresh(first["refresh_token"])

    assert error_of(reused) == (400, "invalid_grant")
    assert error_of(await caller.refresh(second["refresh_token"])) == (400, "invalid_grant")
    assert await caller.introspect(second["access_token"]) == {"active": False}


async def test_refresh_narrows_scopes_and_never_widens_them(caller: Caller) -> None:
    """RFC 6749, 6."""
    token = (await caller.login())["refresh_token"]

    wide = await caller.refresh(token, scope="read admin")
    other = await caller.refresh(token, resource="https://other.example.com")
    narrow = await caller.refresh(token, scope="read")

    assert error_of(wide) == (400, "invalid_scope")
    assert error_of(other) == (400, "invalid_target")
    assert narrow.json()["scope"] == "read"


async def test_scope_openid_returns_an_id_token(caller: Caller) -> None:
    """OpenID Connect Core 1.0, 3.1.3.3: for the client, with the nonce of its request."""
    answer = await caller.login(scope="openid", nonce="n-1")

    keys = caller.issuer.jwks["keys"]
    claims = read_jwt(answer["id_token"], keys, types=["jwt"], now=1_800_000_000)
    assert [claims[name] for name in ("sub", "aud", "nonce")] == ["ann", "app", "n-1"]
    assert "id_token" not in await caller.login(scope="read")


async def test_user_denies(caller: Caller) -> None:
    """The client gets access_denied, and no code."""
    caller.issuer.consent = "deny"

    redirect = await caller.authorize()

    assert (redirect["error"], redirect["state"]) == ("access_denied", "s-1")
    assert "code" not in redirect


async def test_user_is_asked_by_a_form(caller: Caller) -> None:
    """The page shows who asks for which scopes; the form is valid once."""
    caller.issuer.consent = "ask"
    page = await caller.page(scope="read <b>")
    key = page.text.partition('name="request" value="')[2].partition('"')[0]
    assert "&lt;b&gt;" in page.text
    assert "<b>" not in page.text

    form = {"request": key, "user": "eve", "decision": "approve"}
    answer = await caller.http.post("/authorize", data=form)
    again = await caller.http.post("/authorize", data=form)
    token = await caller.redeem(query(answer.headers["location"])["code"])

    assert claims_of(caller.issuer, token.json()["access_token"])["sub"] == "eve"
    assert error_of(again) == (400, "invalid_request")


async def test_user_grants_some_of_the_scopes(caller: Caller) -> None:
    """The response names them (RFC 6749, 3.3)."""
    caller.issuer.approved_scopes = ["read"]

    assert (await caller.login())["scope"] == "read"


async def test_registration_returns_a_usable_client(caller: Caller) -> None:
    """RFC 7591: by default with a secret, and Basic."""
    body = {
        "redirect_uris": [REDIRECT],
        "client_name": "App",
        "grant_types": ["authorization_code"],
    }
    response = await caller.http.post("/register", json=body)
    client = response.json()
    code = (await caller.authorize(client_id=client["client_id"]))["code"]
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": REDIRECT,
        "code_verifier": VERIFIER,
    }
    auth = (client["client_id"], client["client_secret"])
    answer = await caller.http.post("/token", data=form, auth=auth)

    assert response.status_code == 201
    assert client["token_endpoint_auth_method"] == "client_secret_basic"
    assert answer.status_code == 200
    # It did not register for refresh tokens.
    assert "refresh_token" not in answer.json()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://evil.example.com/"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [REDIRECT], "application_type": "web"}, "invalid_redirect_uri"),
        ({"redirect_uris": REDIRECT}, "invalid_client_metadata"),
        ({"redirect_uris": [REDIRECT], "grant_types": ["implicit"]}, "invalid_client_metadata"),
        (
            {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "tls"},
            "invalid_client_metadata",
        ),
        ([], "invalid_client_metadata"),
    ],
)
async def test_wrong_registration_is_refused(caller: Caller, body: Any, error: str) -> None:
    """Each by the error of RFC 7591, 3.2.2."""
    assert error_of(await caller.http.post("/register", json=body)) == (400, error)


async def test_client_is_known_by_its_document(caller: Caller) -> None:
    """A URL as client id; the document must name it."""
    url = "https://app.example.com/client.json"
    caller.issuer.add_document(url, {"client_id": url, "redirect_uris": [REDIRECT]})
    other = "https://other.example.com/client.json"
    caller.issuer.add_document(other, {"client_id": url, "redirect_uris": [REDIRECT]})

    redirect = await caller.authorize(client_id=url)
    answer = await caller.redeem(redirect["code"], client_id=url)
    refused = await caller.page(client_id=other)

    assert claims_of(caller.issuer, answer.json()["access_token"])["client_id"] == url
    assert error_of(refused) == (400, "invalid_client")


CREDENTIALS = {"grant_type": "client_credentials", "scope": "read", "resource": RESOURCE}


async def test_client_authenticates_by_its_registered_method_only(caller: Caller) -> None:
    """Id and secret are form-encoded before Basic (RFC 6749, 2.3.1)."""
    caller.issuer.add_client("a:b", secret="p%w")
    basic = b64encode(b"a%3Ab:p%25w").decode()
    by_post = {**CREDENTIALS, "client_id": "a:b", "client_secret": "p%w"}
    headers = {"authorization": f"Basic {basic}"}
    post = caller.http.post

    fine = await post("/token", data=CREDENTIALS, headers=headers)
    wrong_method = await post("/token", data=by_post)
    two_methods = await post("/token", data=by_post, headers=headers)
    wrong_secret = await post("/token", data=CREDENTIALS, auth=("a%3Ab", "wrong"))

    assert claims_of(caller.issuer, fine.json()["access_token"])["sub"] == "a:b"
    assert "refresh_token" not in fine.json()
    assert error_of(wrong_method) == (401, "invalid_client")
    assert error_of(two_methods) == (400, "invalid_request")
    assert error_of(wrong_secret) == (401, "invalid_client")
    assert wrong_secret.headers["www-authenticate"] == "Basic"


def signed(key: Any, claims: Mapping[str, Any], **header: Any) -> str:
    return jwt.encode({"alg": "ES256", **header}, dict(claims), key, algorithms=["ES256"])


async def test_client_authenticates_by_its_key(caller: Caller, clock: Clock) -> None:
    """RFC 7523: each assertion once, for this issuer."""
    key = jwk.ECKey.generate_key("P-256")
    caller.issuer.add_client("service", keys=key.as_dict(private=False))
    claims = {
        "iss": "service",
        "sub": "service",
        "aud": "https://issuer.test",
        "exp": clock.now + 60,
        "jti": "1",
    }

    async def send(key: Any, **changes: Any) -> httpx.Response:
        kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        assertion = signed(key, {**claims, **changes})
        form = {"client_assertion_type": kind, "client_assertion": assertion}
        return await caller.http.post("/token", data={**CREDENTIALS, **form})

    fine = await send(key)
    assert fine.status_code == 200, fine.text
    wrong = [
        await send(key),
        await send(key, jti="2", aud="https://other.test"),
        await send(key, jti="3", exp=clock.now - 1),
        await send(key, jti="4", sub="other"),
        await send(jwk.ECKey.generate_key("P-256"), jti="5"),
    ]
    assert [error_of(each) for each in wrong] == [(401, "invalid_client")] * 5


async def test_opaque_tokens_are_read_by_introspection(clock: Clock) -> None:
    """By clients with a secret only; an expired or revoked token is inactive."""
    issuer = OAuthServer(opaque=True, clock=clock, resources=[RESOURCE])
    issuer.add_client("rs", secret="pw")
    transport = httpx.ASGITransport(app=issuer.app)
    async with httpx.AsyncClient(transport=transport, base_url=issuer.url) as http:
        caller = Caller(issuer, http)
        token = issuer.token("ann", "read write", tenant="acme")
        active = await caller.introspect(token)
        stranger = await http.post("/introspect", data={"token": token})
        issuer.revoke(token)
        revoked = await caller.introspect(token)
        old = issuer.token("ann")
        clock.now += 3600
        expired = await caller.introspect(old)

    assert "." not in token
    found = [active[name] for name in ("active", "sub", "scope", "aud", "tenant")]
    assert found == [True, "ann", "read write", RESOURCE, "acme"]
    assert error_of(stranger) == (401, "invalid_client")
    assert revoked == expired == {"active": False}


async def test_revocation_of_a_refresh_token_ends_the_grant(caller: Caller) -> None:
    """RFC 7009, 2.1; an unknown token is no error (2.2), another client's is one."""
    answer = await caller.login()
    caller.issuer.add_client("other")
    data = {"token": answer["refresh_token"], "client_id": "other"}
    assert error_of(await caller.http.post("/revoke", data=data)) == (400, "invalid_grant")

    gone = await caller.http.post("/revoke", data={**data, "client_id": "app"})
    unknown = await caller.http.post("/revoke", data={"token": "x", "client_id": "app"})

    assert (gone.status_code, unknown.status_code) == (200, 200)
    assert await caller.introspect(answer["access_token"]) == {"active": False}
    refused = await caller.refresh(answer["refresh_token"])
    assert error_of(refused) == (400, "invalid_grant")


async def test_rotation_keeps_former_keys_until_they_are_withdrawn(caller: Caller) -> None:
    """Tokens of the former key verify until then."""
    issuer = caller.issuer
    old = issuer.token("ann")

    issuer.rotate()
    new = issuer.token("ann")
    assert claims_of(issuer, old)["sub"] == claims_of(issuer, new)["sub"] == "ann"
    assert (await caller.http.get("/jwks")).json() == issuer.jwks

    issuer.rotate(withdraw=True)
    with pytest.raises(ValueError, match="signature"):
        claims_of(issuer, new)


async def test_identity_assertion_is_exchanged_for_a_token(clock: Clock) -> None:
    """Enterprise-managed authorization: ID token, ID-JAG, access token."""
    idp = OAuthServer("https://idp.test", clock=clock)
    server = OAuthServer("https://as.test", clock=clock)
    server.trust(idp.url, idp.jwks)
    idp.add_client("app", secret="one", known_as="app-at-as")
    server.add_client("app-at-as", secret="two")
    server.add_client("other", secret="two")
    bearer = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
    exchange = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": idp.id_token("ann", "app"),
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": server.url,
        "resource": RESOURCE,
        "scope": "read",
    }
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app=idp.app), base_url=idp.url) as at_idp,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app), base_url=server.url) as at,
    ):
        stolen = {**exchange, "subject_token": idp.id_token("ann", "another")}
        refused = await at_idp.post("/token", data=stolen, auth=("app", "one"))
        jag = (await at_idp.post("/token", data=exchange, auth=("app", "one"))).json()
        form = {**bearer, "assertion": jag["access_token"]}
        wrong = await at.post("/token", data=form, auth=("other", "two"))
        wide = await at.post("/token", data={**form, "scope": "admin"}, auth=("app-at-as", "two"))
        form["assertion"] = (
            await at_idp.post("/token", data=exchange, auth=("app", "one"))
        ).json()["access_token"]
        fine = await at.post("/token", data=form, auth=("app-at-as", "two"))
        again = await at.post("/token", data=form, auth=("app-at-as", "two"))

    assert jag["token_type"] == "N_A"
    assert error_of(refused) == error_of(wrong) == (400, "invalid_grant")
    assert error_of(wide)[0] == error_of(again)[0] == 400
    claims = claims_of(server, fine.json()["access_token"])
    found = [claims[name] for name in ("sub", "aud", "scope", "client_id")]
    assert found == ["ann", RESOURCE, "read", "app-at-as"]


async def test_access_token_is_exchanged_for_another_audience(caller: Caller) -> None:
    """RFC 8693: for a call of the resource server to another API, with fewer scopes."""
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": caller.issuer.token("ann", "read write", audience=RESOURCE),
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "audience": "https://api.example.com",
    }

    fine = await caller.http.post("/token", data={**form, "scope": "read"}, auth=("rs", "pw"))
    wide = await caller.http.post("/token", data={**form, "scope": "admin"}, auth=("rs", "pw"))

    claims = claims_of(caller.issuer, fine.json()["access_token"])
    found = [claims[name] for name in ("sub", "aud", "scope", "act")]
    assert found == ["ann", "https://api.example.com", "read", {"sub": "rs"}]
    assert error_of(wide) == (400, "invalid_scope")


async def test_workload_assertion_needs_no_client(caller: Caller, clock: Clock) -> None:
    """RFC 7523, 2.1: the platform that runs it vouches for it."""
    platform = OAuthServer("https://platform.test", clock=clock)
    caller.issuer.trust(platform.url, platform.jwks)
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "resource": RESOURCE}
    fine = platform.id_token("job-1", "https://issuer.test")
    elsewhere = platform.id_token("job-1", "https://other.test")

    answer = await caller.http.post("/token", data={**form, "assertion": fine})
    refused = await caller.http.post("/token", data={**form, "assertion": elsewhere})

    assert claims_of(caller.issuer, answer.json()["access_token"])["sub"] == "job-1"
    assert error_of(refused) == (400, "invalid_grant")


@pytest.mark.parametrize("options", [{"dpop": True, "dpop_nonce": True}])
async def test_dpop_token_is_bound_to_the_key(caller: Caller, clock: Clock) -> None:
    """RFC 9449: a nonce, then `cnf.jkt`; the refresh token is bound as well."""
    key = jwk.ECKey.generate_key("P-256")
    header = {"typ": "dpop+jwt", "jwk": key.as_dict(private=False)}
    claims = {"htm": "POST", "htu": "https://issuer.test/token", "iat": clock.now, "jti": "1"}
    form = {
        "grant_type": "authorization_code",
        "client_id": "app",
        "code": (await caller.authorize())["code"],
        "redirect_uri": REDIRECT,
        "code_verifier": VERIFIER,
    }

    async def send(**changes: Any) -> httpx.Response:
        proof = signed(key, {**claims, **changes}, **header)
        return await caller.http.post("/token", data=form, headers={"DPoP": proof})

    unproved = await caller.http.post("/token", data=form)
    challenged = await send()
    nonce = challenged.headers["dpop-nonce"]
    wrong = [
        await send(nonce=nonce, htm="GET"),
        await send(nonce=nonce, htu="https://issuer.test/other"),
        await send(nonce=nonce, iat=clock.now - 301),
    ]
    fine = await send(nonce=nonce)
    again = await send(nonce=nonce)
    unbound = await caller.refresh(fine.json()["refresh_token"])

    assert error_of(unproved) == (400, "invalid_dpop_proof")
    assert error_of(challenged) == (400, "use_dpop_nonce")
    assert [error_of(each)[1] for each in wrong] == ["invalid_dpop_proof"] * 3
    assert fine.json()["token_type"] == "DPoP"
    bound = claims_of(caller.issuer, fine.json()["access_token"])["cnf"]
    assert bound == {"jkt": key.thumbprint()}
    assert error_of(again)[1] == error_of(unbound)[1] == "invalid_dpop_proof"


@pytest.mark.parametrize("options", [{"offline_access": True, "scopes": ["read", "write"]}])
async def test_refresh_tokens_need_offline_access(caller: Caller) -> None:
    """If the issuer lists that scope; a scope that it does not list is refused."""
    metadata = await caller.http.get("/.well-known/oauth-authorization-server")

    assert metadata.json()["scopes_supported"] == ["read", "write", "offline_access"]
    assert "refresh_token" not in await caller.login()
    assert "refresh_token" in await caller.login(scope="read offline_access")
    assert (await caller.authorize(scope="admin"))["error"] == "invalid_scope"


async def test_served_issuer_names_its_url_and_path() -> None:
    """The documents are where RFC 8414, 3 and OpenID Connect Discovery look for them."""
    issuer = OAuthServer("https://issuer.test/t1")
    async with issuer.serve() as url, httpx.AsyncClient() as http:
        parts = urlsplit(url)
        root = f"{parts.scheme}://{parts.netloc}"
        places = [
            f"{root}/.well-known/oauth-authorization-server/t1",
            f"{root}/.well-known/openid-configuration/t1",
            f"{url}/.well-known/openid-configuration",
        ]
        found = [(await http.get(place)).json() for place in places]
        jwks = await http.get(found[0]["jwks_uri"])

    assert url == issuer.url
    assert (parts.hostname, parts.path) == ("127.0.0.1", "/t1")
    assert {each["issuer"] for each in found} == {url}
    assert jwks.json() == issuer.jwks


def test_issuer_is_served_to_blocking_clients() -> None:
    """It has a thread of its own; a port that is taken is an error."""
    issuer = OAuthServer()
    with issuer.serve() as url:
        assert httpx.get(f"{url}/jwks").json() == issuer.jwks
        with pytest.raises(OSError, match="in use"), OAuthServer().serve(urlsplit(url).port or 0):
            pass

    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/jwks")


async def test_requests_are_recorded_without_secrets_in_their_repr(caller: Caller) -> None:
    """A test reads what was sent; a failing one prints no token."""
    await caller.login()
    await caller.redeem("guessed")

    (first, second) = caller.issuer.received("token")
    assert (first.status, first.error) == (200, None)
    assert (second.status, second.error) == (400, "invalid_grant")
    assert first.params["code_verifier"] == VERIFIER
    assert first.values("resource") == [RESOURCE]
    assert VERIFIER not in repr(first)
    assert [each.endpoint for each in caller.issuer.requests] == ["authorize", "token", "token"]


async def test_faults_are_switched_on_and_off(caller: Caller) -> None:
    """Each as a client would meet it."""
    faults = caller.issuer.faults
    faults.fail("token", 503, times=1)
    code = (await caller.authorize())["code"]
    assert error_of(await caller.redeem(code)) == (503, "server_error")
    assert (await caller.redeem(code)).status_code == 200

    faults.metadata = {"issuer": "https://evil.test", "code_challenge_methods_supported": None}
    faults.redirect = {"iss": None}
    faults.tokens = {"refresh_token": None}
    faults.claims = {"aud": "https://other.test"}
    document = (await caller.http.get("/.well-known/oauth-authorization-server")).json()
    assert document["issuer"] == "https://evil.test"
    assert "code_challenge_methods_supported" not in document
    redirect = await caller.authorize()
    answer = (await caller.redeem(redirect["code"])).json()
    assert "iss" not in redirect
    assert "refresh_token" not in answer
    assert claims_of(caller.issuer, answer["access_token"])["aud"] == "https://other.test"

    faults.clear()
    faults.foreign_key = True
    with pytest.raises(ValueError, match="signature"):
        claims_of(caller.issuer, (await caller.login())["access_token"])


def test_wrong_options_are_refused() -> None:
    """When the issuer is made, not when a client asks."""
    with pytest.raises(ConfigurationError, match="not an issuer"):
        OAuthServer("issuer.test")
    with pytest.raises(ConfigurationError, match="unknown method"):
        OAuthServer().add_client("app", method="tls")


def test_token_is_issued_without_a_request() -> None:
    """For tests of a server: with any claims, and expired ones too."""
    issuer = OAuthServer(resources=[RESOURCE])
    token = issuer.token("ann", ["read"], expires_in=60, tenant="acme", client_id="app")
    expired = issuer.token("ann", expires_in=-1)

    claims = read_jwt(token, issuer.jwks["keys"], types=["at+jwt"], now=0)
    assert (claims["aud"], claims["tenant"], claims["client_id"]) == (RESOURCE, "acme", "app")
    assert claims["exp"] - claims["iat"] == 60
    with pytest.raises(ValueError, match="expired"):
        claims_of(issuer, expired, now=issuer._ledger.clock())
