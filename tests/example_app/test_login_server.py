"""The authorization server of the example: small, but not careless with codes."""

from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from example_app.login_server import LoginServer, s256

RESOURCE = "http://127.0.0.1:8000/mcp"
REDIRECT = "http://127.0.0.1:5555/callback"
VERIFIER = "v" * 50


class User:
    """A client that has registered, and the user at its form."""

    def __init__(self, server: LoginServer, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.client_id = ""

    async def register(self) -> None:
        document = {"redirect_uris": [REDIRECT], "client_name": "<b>Tests</b>"}
        response = await self.http.post("/register", json=document)
        assert response.status_code == 201
        self.client_id = response.json()["client_id"]

    def query(self, **changes: str) -> dict[str, str]:
        return {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": REDIRECT,
            "scope": "workshop",
            "state": "s-1",
            "code_challenge": s256(VERIFIER),
            "code_challenge_method": "S256",
            "resource": RESOURCE,
            **changes,
        }

    async def decide(self, decision: str = "approve", **changes: str) -> dict[str, str]:
        """Send the form; return the parameters of the redirect."""
        form = {"user": "ines", "decision": decision}
        response = await self.http.post("/authorize", params=self.query(**changes), data=form)
        assert response.status_code == 302, response.text
        query = parse_qs(urlsplit(response.headers["location"]).query)
        return {name: values[0] for name, values in query.items()}

    async def redeem(self, code: str, **changes: str) -> httpx.Response:
        form = {
            "grant_type": "authorization_code",
            "client_id": self.client_id,
            "redirect_uri": REDIRECT,
            "code": code,
            "code_verifier": VERIFIER,
            **changes,
        }
        return await self.http.post("/token", data=form)


@pytest.fixture
async def user() -> AsyncIterator[User]:
    server = LoginServer(RESOURCE, ["workshop"])
    server.move("http://login.test")
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url=server.url) as http:
        user = User(server, http)
        await user.register()
        yield user


async def test_login_server_redeems_a_code_once(user: User) -> None:
    """A code that leaks afterwards is worth nothing."""
    answer = await user.decide()
    token = await user.redeem(answer["code"])

    assert (answer["state"], answer["iss"]) == ("s-1", "http://login.test")
    assert token.json()["scope"] == "workshop"
    assert (await user.redeem(answer["code"])).json() == {"error": "invalid_grant"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_verifier": "guessed"}, "invalid_grant"),
        ({"client_id": "another"}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:5555/other"}, "invalid_grant"),
        ({"code": "guessed"}, "invalid_grant"),
        ({"resource": "https://other.test"}, "invalid_target"),
        ({"grant_type": "refresh_token"}, "unsupported_grant_type"),
    ],
)
async def test_login_server_refuses_a_wrong_request(
    user: User, changes: dict[str, str], error: str
) -> None:
    """A code is bound to its client, redirect URI, verifier and resource."""
    code = (await user.decide())["code"]
    refused = await user.redeem(**{"code": code, **changes})

    assert (refused.status_code, refused.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"resource": "https://other.test"}, "invalid_target"),
        ({"scope": "admin"}, "invalid_scope"),
    ],
)
async def test_login_server_reports_faults_to_the_client(
    user: User, changes: dict[str, str], error: str
) -> None:
    """In the redirect (RFC 6749, 4.1.2.1), as it reports that the user has denied."""
    assert (await user.decide(**changes))["error"] == error
    assert (await user.decide("deny"))["error"] == "access_denied"


@pytest.mark.parametrize(
    "changes", [{"client_id": "unknown"}, {"redirect_uri": "https://evil.test/callback"}]
)
async def test_login_server_sends_no_user_to_strangers(user: User, changes: dict[str, str]) -> None:
    """An unregistered redirect URI is an error page: the code would go to it."""
    response = await user.http.get("/authorize", params=user.query(**changes))

    assert response.status_code == 400


async def test_login_server_accepts_another_loopback_port(user: User) -> None:
    """RFC 8252, 7.3: a native client takes any free port."""
    assert "code" in await user.decide(redirect_uri="http://127.0.0.1:6666/callback")


async def test_login_server_page_escapes_the_client(user: User) -> None:
    """Its name was chosen by the client."""
    page = await user.http.get("/authorize", params=user.query())

    assert "&lt;b&gt;Tests&lt;/b&gt;" in page.text


@pytest.mark.parametrize("uris", [[], ["no-scheme"], ["http://127.0.0.1/#fragment"], None, 7])
async def test_login_server_registers_only_urls(user: User, uris: object) -> None:
    """RFC 7591, 3.2.2."""
    response = await user.http.post("/register", json={"redirect_uris": uris})

    assert response.status_code == 400
