"""Clients of `OAuthServer`: their documents, secrets, keys, and odd requests."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from joserfc import jwk, jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tests.support.oauth.keys import read_jwt, s256
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve

REDIRECT = "http://127.0.0.1:8765/callback"
CREDENTIALS = {"grant_type": "client_credentials"}
VERIFIER = "v" * 43


@pytest.fixture
def now() -> list[float]:
    """Return the time of the issuer, which a test may replace."""
    return [1_800_000_000.0]


@pytest.fixture
def issuer(now: list[float]) -> OAuthServer:
    return OAuthServer("https://issuer.test", clock=lambda: now[0], secret_ttl=60)


@pytest.fixture
async def http(issuer: OAuthServer) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=issuer.app)
    async with httpx.AsyncClient(transport=transport, base_url=issuer.url) as http:
        yield http


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]


def request_of(client_id: str) -> dict[str, str]:
    return {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": REDIRECT,
        "code_challenge": s256(VERIFIER),
        "code_challenge_method": "S256",
    }


DOCUMENTS: dict[str, Any] = {
    "good": {"redirect_uris": [REDIRECT]},
    "secret": {"redirect_uris": [REDIRECT], "client_secret": "x"},
    "other": {"redirect_uris": [REDIRECT], "client_id": "http://127.0.0.1/other"},
    "list": [],
    "large": {"redirect_uris": [REDIRECT], "padding": "x" * 70_000},
}


async def document(request: Request) -> Response:
    """Serve a client id metadata document."""
    name = request.path_params["name"]
    if name == "moved":
        return RedirectResponse("/good")
    if name not in DOCUMENTS:
        return Response(status_code=404)
    found = DOCUMENTS[name]
    if isinstance(found, dict):
        found = {"client_id": str(request.url), **found}
    return Response(json.dumps(found))


async def test_client_id_metadata_document_is_fetched(http: httpx.AsyncClient) -> None:
    """It must name its own URL, without redirects, secrets and excess size."""
    async with serve(Starlette(routes=[Route("/{name}", document)])) as base:
        fine = await http.get("/authorize", params=request_of(f"{base}/good"))
        names = ["secret", "other", "list", "large", "missing", "moved"]
        places = [f"{base}/{name}" for name in names]
        wrong = [await http.get("/authorize", params=request_of(place)) for place in places]

    assert "code=" in fine.headers["location"]
    assert [error_of(each) for each in wrong] == [(400, "invalid_client")] * len(names)


@pytest.mark.parametrize(
    "client_id", ["http://example.com/client.json", "https://example.com", "http://127.0.0.1:1/c"]
)
async def test_unusable_url_is_no_client(http: httpx.AsyncClient, client_id: str) -> None:
    """HTTPS with a path, or HTTP on loopback; an unreachable one is unknown."""
    response = await http.get("/authorize", params=request_of(client_id))

    assert error_of(response) == (400, "invalid_client")


async def test_secret_of_a_registered_client_expires(
    issuer: OAuthServer, http: httpx.AsyncClient, now: list[float]
) -> None:
    """RFC 7591, 3.2.1: `client_secret_expires_at`; a forgotten client is unknown."""
    body = {"grant_types": ["client_credentials"]}
    client = (await http.post("/register", json=body)).json()
    auth = (client["client_id"], client["client_secret"])
    assert client["client_secret_expires_at"] == now[0] + 60
    assert (await http.post("/token", data=CREDENTIALS, auth=auth)).status_code == 200

    now[0] += 61
    assert error_of(await http.post("/token", data=CREDENTIALS, auth=auth))[0] == 401
    issuer.forget_client(client["client_id"])
    assert error_of(await http.post("/token", data=CREDENTIALS, auth=auth))[0] == 401


@pytest.mark.parametrize(
    ("form", "header", "error"),
    [
        ({}, None, "invalid_client"),
        ({}, "Basic !", "invalid_client"),
        ({}, "Basic bm9jb2xvbg==", "invalid_client"),
        ({}, "Bearer x", "invalid_client"),
        ({"client_id": "other"}, "Basic c2VydmljZTpwdw==", "invalid_request"),
        ({"client_assertion": "x.y.z"}, None, "invalid_request"),
        ({"client_id": "app"}, None, "unauthorized_client"),
        ({"client_id": "open"}, None, "unauthorized_client"),
    ],
)
async def test_malformed_authentication_is_refused(
    issuer: OAuthServer,
    http: httpx.AsyncClient,
    form: dict[str, str],
    header: str | None,
    error: str,
) -> None:
    """Each with the error of RFC 6749, 5.2."""
    issuer.add_client("service", secret="pw")
    issuer.add_client("app", redirect_uris=[REDIRECT])
    issuer.add_client("open", grant_types=["client_credentials"])
    headers = {"authorization": header} if header else {}

    response = await http.post("/token", data={**CREDENTIALS, **form}, headers=headers)

    assert response.json()["error"] == error


@pytest.mark.parametrize("assertion", ["x", "x.y.z", "x.W10.z"])
async def test_malformed_assertion_is_refused(http: httpx.AsyncClient, assertion: str) -> None:
    """Before anything is looked up."""
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    form = {**CREDENTIALS, "client_assertion": assertion, "client_assertion_type": kind}

    assert error_of(await http.post("/token", data=form)) == (401, "invalid_client")


async def test_client_that_registers_a_key_must_send_it(http: httpx.AsyncClient) -> None:
    """RFC 7591, 2: `jwks` with `private_key_jwt`."""
    body = {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "private_key_jwt"}
    key = jwk.ECKey.generate_key("P-256").as_dict(private=False)

    assert error_of(await http.post("/register", json=body))[1] == "invalid_client_metadata"
    fine = await http.post("/register", json={**body, "jwks": {"keys": [key]}})
    assert fine.status_code == 201
    assert "client_secret" not in fine.json()


async def test_client_uses_only_grants_it_registered_for(
    issuer: OAuthServer, http: httpx.AsyncClient
) -> None:
    """RFC 6749, 5.2: unauthorized_client, at both endpoints."""
    issuer.add_client(
        "service", secret="pw", redirect_uris=[REDIRECT], grant_types=["client_credentials"]
    )
    bearer = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    issuer.trust(issuer.url, issuer.jwks)
    assertion = issuer.id_token("ann", issuer.url)

    code = await http.get("/authorize", params=request_of("service"))
    form = {"grant_type": bearer, "assertion": assertion}
    token = await http.post("/token", data=form, auth=("service", "pw"))

    assert "error=unauthorized_client" in code.headers["location"]
    assert error_of(token) == (400, "unauthorized_client")


@pytest.mark.parametrize("endpoint", ["token", "introspect", "revoke", "register"])
async def test_body_is_bounded_and_of_the_right_type(
    http: httpx.AsyncClient, endpoint: str
) -> None:
    """The form of RFC 6749, appendix B; JSON for registrations."""
    media = "application/json" if endpoint == "register" else "application/x-www-form-urlencoded"
    other = await http.post(f"/{endpoint}", content="a=b", headers={"content-type": "text/plain"})
    headers = {"content-type": media}
    large = await http.post(f"/{endpoint}", content="x" * 70_000, headers=headers)

    assert error_of(other) == (400, "invalid_request")
    assert error_of(large) == (413, "invalid_request")


async def test_slow_endpoint_answers_later(issuer: OAuthServer, http: httpx.AsyncClient) -> None:
    """A client with a shorter time-out gives up."""
    issuer.faults.delay["jwks"] = 0.01
    assert (await http.get("/jwks")).json() == issuer.jwks

    issuer.faults.delay["jwks"] = 3600
    async with issuer.serve() as url, httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(f"{url}/jwks", timeout=0.1)


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "ES512", "RS256", "PS256", "Ed25519"])
def test_tokens_are_signed_by_each_algorithm(algorithm: str) -> None:
    """The key set names it."""
    issuer = OAuthServer(algorithm=algorithm)
    token = issuer.token("ann")

    assert issuer.jwks["keys"][0]["alg"] == algorithm
    assert read_jwt(token, issuer.jwks["keys"], types=["at+jwt"], now=0)["sub"] == "ann"


PROOF = {"htm": "POST", "htu": "https://issuer.test/token?x=1", "iat": 1_800_000_000, "jti": "1"}


@pytest.mark.parametrize(
    ("header", "claims", "status"),
    [
        ({}, {}, 200),
        ({"typ": "JWT"}, {}, 400),
        ({"jwk": None}, {}, 400),
        ({"jwk": "private"}, {}, 400),
        ({}, {"jti": ""}, 400),
        ({}, {"iat": None}, 400),
        ({}, {"htu": None}, 400),
    ],
)
async def test_proof_of_possession_is_checked(
    issuer: OAuthServer, http: httpx.AsyncClient, header: dict[str, Any], claims: Any, status: int
) -> None:
    """RFC 9449, 4.3; the query does not count."""
    issuer.add_client("service", secret="pw")
    key = jwk.ECKey.generate_key("P-256")
    full = {"alg": "ES256", "typ": "dpop+jwt", "jwk": key.as_dict(private=False), **header}
    if full["jwk"] == "private":
        full["jwk"] = key.as_dict(private=True)
    if full["jwk"] is None:
        del full["jwk"]
    proof = jwt.encode(full, {**PROOF, **claims}, key, algorithms=["ES256"])

    answer = await http.post(
        "/token", data=CREDENTIALS, auth=("service", "pw"), headers={"DPoP": proof}
    )

    assert answer.status_code == status
    assert answer.json().get("error") == (None if status == 200 else "invalid_dpop_proof")


async def test_code_is_bound_to_the_key_of_its_request(
    issuer: OAuthServer, http: httpx.AsyncClient
) -> None:
    """RFC 9449, 10: `dpop_jkt`."""
    issuer.add_client("app", redirect_uris=[REDIRECT])
    params = {**request_of("app"), "dpop_jkt": "of another key"}
    location = httpx.URL((await http.get("/authorize", params=params)).headers["location"])
    form = {
        "grant_type": "authorization_code",
        "client_id": "app",
        "code": location.params["code"],
        "redirect_uri": REDIRECT,
        "code_verifier": VERIFIER,
    }

    assert error_of(await http.post("/token", data=form)) == (400, "invalid_grant")


async def test_refresh_token_without_rotation_is_used_again(now: list[float]) -> None:
    """Until it expires; introspection reads it."""
    issuer = OAuthServer(rotation=False, refresh_ttl=100, clock=lambda: now[0])
    issuer.add_client("app", redirect_uris=[REDIRECT])
    issuer.add_client("rs", secret="pw")
    transport = httpx.ASGITransport(app=issuer.app)
    async with httpx.AsyncClient(transport=transport, base_url=issuer.url) as http:
        location = (await http.get("/authorize", params=request_of("app"))).headers["location"]
        form = {
            "grant_type": "authorization_code",
            "client_id": "app",
            "code": httpx.URL(location).params["code"],
            "redirect_uri": REDIRECT,
            "code_verifier": VERIFIER,
        }
        token = (await http.post("/token", data=form)).json()["refresh_token"]
        again = {"grant_type": "refresh_token", "client_id": "app", "refresh_token": token}
        answers = [await http.post("/token", data=again) for _ in range(2)]
        wrong = await http.post("/token", data={**again, "refresh_token": "x"})
        read = await http.post("/introspect", data={"token": token}, auth=("rs", "pw"))
        public = await http.post("/introspect", data={"token": token, "client_id": "app"})
        now[0] += 101
        late = await http.post("/token", data=again)

    assert [each.status_code for each in answers] == [200, 200]
    assert "refresh_token" not in answers[0].json()
    assert read.json()["active"]
    assert error_of(public) == (401, "invalid_client")
    assert error_of(wrong) == error_of(late) == (400, "invalid_grant")


async def test_user_denies_in_the_form_or_cannot_be_asked(
    issuer: OAuthServer, http: httpx.AsyncClient
) -> None:
    """`prompt=none` forbids the page (OpenID Connect Core 1.0, 3.1.2.1)."""
    issuer.add_client("app", redirect_uris=[REDIRECT])
    issuer.consent = "ask"
    page = await http.get("/authorize", params=request_of("app"))
    key = page.text.partition('name="request" value="')[2].partition('"')[0]

    denied = await http.post("/authorize", data={"request": key, "decision": "deny"})
    silent = await http.get("/authorize", params={**request_of("app"), "prompt": "none"})

    assert issuer.consent == "ask"
    assert "error=access_denied" in denied.headers["location"]
    assert "error=interaction_required" in silent.headers["location"]


async def test_options_of_the_user_can_be_set_later(
    issuer: OAuthServer, http: httpx.AsyncClient
) -> None:
    """For a test with two users; None approves every scope again."""
    issuer.add_client("app", redirect_uris=[REDIRECT])
    issuer.user = "eve"
    issuer.approved_scopes = []
    assert (issuer.user, issuer.approved_scopes) == ("eve", [])

    issuer.approved_scopes = None
    response = await http.get("/authorize", params={**request_of("app"), "scope": "a"})
    (grant,) = [code.grant for code in issuer._ledger.codes.values()]
    assert response.status_code == 302
    assert (grant.subject, grant.scopes) == ("eve", ("a",))
