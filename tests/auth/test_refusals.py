"""Who is refused, with which status, challenge and body: RFC 6750, 3, over real connections."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from genmcp import Channel, Security, Tool, tool
from genmcp.auth import AuthorizationUnavailable, InvalidToken
from genmcp.auth.authenticator import Refusal, credentials_of
from genmcp.core.access import Access
from genmcp.errors import HttpRejected
from tests.support.asgi import until
from tests.support.serving import serve
from tests.support.tokens import HEADERS, Tokens, access, bearing, call, called, guarded

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
PAGE = "https://app.example.com"
ADA: Any = access("ada")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


async def test_request_without_credentials_is_401(http: httpx.AsyncClient) -> None:
    """RFC 6750, 3.1: without an error code, since the client knew nothing."""
    async with serve(guarded(scopes=["read", "write"])) as url:
        response = await called(http, f"{url}/mcp")

    assert response.status_code == 401
    assert response.headers.get_list("www-authenticate") == [
        f'Bearer scope="read write", resource_metadata="{METADATA}"'
    ]
    assert response.json() == {
        "error": "unauthorized",
        "error_description": "This endpoint needs an access token",
    }


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "PUT"])
async def test_every_method_needs_credentials(method: str, http: httpx.AsyncClient) -> None:
    """2025-11-25, authorization, "Token Requirements": in every request, also within a session."""
    async with serve(guarded()) as url:
        response = await http.request(method, f"{url}/mcp")

    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer resource_metadata=")


async def test_another_scheme_is_as_no_credentials(http: httpx.AsyncClient) -> None:
    """RFC 6750, 3.1: an unsupported scheme gets no error code either."""
    options = call("whoami")
    options["headers"]["authorization"] = "Basic YWRhOnB3"
    async with serve(guarded()) as url:
        response = await http.post(f"{url}/mcp", **options)

    assert response.status_code == 401
    assert "error=" not in response.headers["www-authenticate"]


async def test_invalid_token_is_401(http: httpx.AsyncClient) -> None:
    """The challenge has the reason, without the found value, which is for the log."""
    async with serve(guarded(scopes=["read"])) as url:
        response = await called(http, f"{url}/mcp", "stolen")

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == (
        'Bearer error="invalid_token", error_description="wrong aud", '
        f'scope="read", resource_metadata="{METADATA}"'
    )
    assert response.json() == {"error": "invalid_token", "error_description": "wrong aud"}
    assert response.headers["cache-control"] == "no-store"


async def test_text_of_verifier_cannot_break_the_header(http: httpx.AsyncClient) -> None:
    """Any reason of a verifier is quoted, and becomes ASCII."""
    broken = Tokens(bad=InvalidToken('no "quotes"\r\nset-cookie: a=b, ü'))
    async with serve(guarded(verify=broken)) as url:
        response = await called(http, f"{url}/mcp", "bad")

    assert response.status_code == 401
    assert (
        r'error_description="no \"quotes\"??set-cookie: a=b, ?"'
        in (response.headers["www-authenticate"])
    )
    assert "set-cookie" not in response.headers


async def test_missing_scope_of_endpoint_is_403(http: httpx.AsyncClient) -> None:
    """The challenge has all scopes of the endpoint at once, also those that the token has."""
    verify = Tokens(half=access("ada", "read"))
    async with serve(guarded(scopes=["read", "write"], verify=verify)) as url:
        response = await called(http, f"{url}/mcp", "half")
        again = await called(http, f"{url}/mcp", "half")

    assert response.status_code == again.status_code == 403
    assert response.headers["www-authenticate"] == (
        'Bearer error="insufficient_scope", '
        'error_description="The access token lacks a scope; needed: read write", '
        f'scope="read write", resource_metadata="{METADATA}"'
    )
    assert response.json()["error"] == "insufficient_scope"


@tool(scopes=["parts:write", "read"])
async def reorder() -> str:
    """Needs a scope of its own."""
    return "ordered"


class Secret(Tool):
    """A tool that only Ada's boss sees."""

    name = "secret"
    scopes = ["secret:read"]

    def visible(self, access: Access | None) -> bool:
        return access is not None and access.subject == "boss"

    async def call(self, request: Any, channel: Channel) -> str:
        return "secret"


def named(name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (named("reorder"), "read write parts:write"),
        ([named("whoami"), named("reorder")], "read write parts:write"),
        (named("secret"), "read write"),
        (named("unknown"), "read write"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, "read write"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}, "read write"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, "read write"),
        ([], "read write"),
        ("nonsense", "read write"),
    ],
)
async def test_challenge_has_scopes_of_endpoint_and_operation(
    message: Any, expected: str, http: httpx.AsyncClient
) -> None:
    """A client asks its user once, not once for the endpoint and then for the tool."""
    endpoint = guarded(
        reorder, Secret, scopes=["read", "write"], verify=Tokens(half=access("ada", "read"))
    )
    headers = {**HEADERS, "authorization": "Bearer half"}
    async with serve(endpoint) as url:
        response = await http.post(f"{url}/mcp", headers=headers, json=message)

    assert response.status_code == 403
    assert f'scope="{expected}"' in response.headers["www-authenticate"]


async def test_stream_needs_scopes_of_endpoint(http: httpx.AsyncClient) -> None:
    """A GET names no component: its challenge has the scopes of the endpoint."""
    verify = Tokens(half=access("ada", "read"))
    headers = {"accept": "text/event-stream", "authorization": "Bearer half"}
    async with serve(guarded(reorder, scopes=["read", "write"], verify=verify)) as url:
        response = await http.get(f"{url}/mcp", headers=headers)

    assert response.status_code == 403
    assert 'scope="read write"' in response.headers["www-authenticate"]


async def test_implied_scopes_are_granted(http: httpx.AsyncClient) -> None:
    """Hierarchies are the server's to know; they apply transitively and may be circular."""
    implies = {"admin": ["write"], "write": ["read"], "read": ["admin"]}
    verify = Tokens(root=access("ada", "admin"))

    @tool
    async def scopes(channel: Channel) -> str:
        """Returns the granted scopes."""
        assert channel.access is not None
        return " ".join(sorted(channel.access.scopes))

    endpoint = guarded(scopes, scopes=["read"], implies=implies, verify=verify)
    async with serve(endpoint) as url:
        response = await http.post(f"{url}/mcp", **bearing("root", call("scopes")))

    assert response.json()["result"]["content"][0]["text"] == "admin read write"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?access_token=ada", []),
        ("?a=1&access%5Ftoken=ada", []),
        ("?access_token=", [("authorization", "Bearer ada")]),
        ("", [("authorization", "Bearer ada"), ("authorization", "Bearer ada")]),
        ("", [("authorization", "Basic abc"), ("authorization", "Bearer ada")]),
        ("", [("authorization", "Bearer")]),
        ("", [("authorization", "Bearer a b")]),
        ("", [("authorization", 'Bearer "ada"')]),
        ("", [("authorization", "Bearer ada, Bearer ada")]),
    ],
)
async def test_malformed_credentials_are_400(
    query: str, headers: list[tuple[str, str]], http: httpx.AsyncClient
) -> None:
    """RFC 6750, 3.1, `invalid_request`: in the query, given twice, or without a token."""
    verify = Tokens()
    options = call("whoami")
    options["headers"] = [*options["headers"].items(), *headers]
    async with serve(guarded(verify=verify)) as url:
        await called(http, f"{url}/mcp", "ada")
        verify.asked.clear()
        response = await http.post(f"{url}/mcp{query}", **options)

    assert response.status_code == 400
    assert 'error="invalid_request"' in response.headers["www-authenticate"]
    assert response.json()["error"] == "invalid_request"
    assert verify.asked == []


async def test_token_too_large_is_431(http: httpx.AsyncClient) -> None:
    """A stranger must not make the verifier decode a text as long as a header."""
    verify = Tokens()
    async with serve(guarded(verify=verify)) as url:
        response = await called(http, f"{url}/mcp", "a" * 8193)

    assert response.status_code == 431
    assert "larger than 8192 bytes" in response.text
    assert verify.asked == []


async def test_unavailable_verifier_is_503(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a challenge: after a 401, clients throw good tokens away."""
    verify = Tokens(ada=AuthorizationUnavailable("keys of the issuer: timeout", retry_after=7))
    async with serve(guarded(verify=verify)) as url:
        response = await called(http, f"{url}/mcp", "ada")
        verify.tokens["ada"] = access("ada")
        recovered = await called(http, f"{url}/mcp", "ada")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"
    assert "www-authenticate" not in response.headers
    assert response.json()["error"] == "temporarily_unavailable"
    assert "keys of the issuer: timeout" in caplog.text
    assert "keys of the issuer" not in response.text
    assert recovered.status_code == 200


async def test_defect_of_verifier_is_500(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect admits no request, and does not look like a wrong token to the client."""
    async with serve(guarded(verify=Tokens(ada=KeyError("secret")))) as url:
        response = await called(http, f"{url}/mcp", "ada")

    assert response.status_code == 500
    assert "secret" not in response.text


async def test_verified_token_is_not_verified_again(http: httpx.AsyncClient) -> None:
    """A signature costs as much as a call: repeated requests only look the token up."""
    verify = Tokens()
    async with serve(guarded(verify=verify, scopes=["read"])) as url:
        responses = [await called(http, f"{url}/mcp", "ada") for _ in range(3)]

    assert [each.status_code for each in responses] == [200] * 3
    assert verify.asked == ["ada"]


async def test_scheme_may_have_any_case(http: httpx.AsyncClient) -> None:
    """RFC 9110, 11.1: the scheme is case-insensitive."""
    options = call("whoami")
    async with serve(guarded()) as url:
        for scheme in ("bearer", "BEARER", "bearer"):
            options["headers"]["authorization"] = f"{scheme} ada"
            response = await http.post(f"{url}/mcp", **options)
            assert response.status_code == 200


class Slow(Tokens):
    """Verifies nothing until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.go = False

    async def verify(self, token: str) -> Access:
        self.waiting += 1
        await until(lambda: self.go, pause=0.01)
        return await super().verify(token)


BY_HEADER: Any = {"client_key": lambda scope: dict(scope["headers"]).get(b"x-client", b"").decode()}


async def called_from(
    http: httpx.AsyncClient, url: str, token: str, address: str
) -> httpx.Response:
    """Send a call of `whoami` as a client at *address*."""
    options = bearing(token, call("whoami"))
    options["headers"]["x-client"] = address
    return await http.post(url, **options)


@pytest.fixture
async def crowd() -> AsyncIterator[httpx.AsyncClient]:
    """A client with a connection for each request."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
        yield client


async def test_verifications_at_once_are_limited(crowd: httpx.AsyncClient) -> None:
    """Strangers with random tokens cannot make the server wait for the issuer without bound."""
    verify = Slow()
    async with serve(guarded(endpoint=BY_HEADER, verify=verify)) as url:
        first = [
            asyncio.create_task(called_from(crowd, f"{url}/mcp", f"random{n}", f"client {n}"))
            for n in range(100)
        ]
        await until(lambda: verify.waiting == 100, pause=0.01)
        refused = await called_from(crowd, f"{url}/mcp", "mallory", "mallory")
        verify.go = True
        statuses = {(await each).status_code for each in first}
        later = await called(crowd, f"{url}/mcp", "ada")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert statuses == {401}
    assert later.status_code == 200


async def test_one_address_cannot_use_up_all_verifications(crowd: httpx.AsyncClient) -> None:
    """A stranger who sends random tokens has an eighth: others are verified meanwhile."""
    verify = Slow()
    async with serve(guarded(endpoint=BY_HEADER, verify=verify)) as url:

        async def sent(token: str, address: str) -> int:
            return (await called_from(crowd, f"{url}/mcp", token, address)).status_code

        first = [asyncio.create_task(sent(f"random{n}", "192.0.2.1")) for n in range(13)]
        await until(lambda: verify.waiting == 13, pause=0.01)
        refused = await sent("another", "192.0.2.1")
        other = asyncio.create_task(sent("ada", "192.0.2.2"))
        await until(lambda: verify.waiting == 14, pause=0.01)
        verify.go = True

        assert {await each for each in first} == {401}
        assert (refused, await other) == (503, 200)


async def test_requests_with_one_token_wait_for_one_verification(
    http: httpx.AsyncClient,
) -> None:
    """A client that begins with many requests at once does not reach the limit alone."""
    verify = Slow()
    async with serve(guarded(verify=verify)) as url:
        first = [asyncio.create_task(called(http, f"{url}/mcp", "ada")) for _ in range(20)]
        await until(lambda: verify.waiting == 1, pause=0.01)
        verify.go = True
        accepted = [(await each).status_code for each in first]

    assert accepted == [200] * 20
    assert verify.waiting == 1


async def test_body_of_stranger_is_not_read() -> None:
    """The refusal comes before the first byte of the body, however large it would be."""
    async with serve(guarded()) as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(
            b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"accept: */*\r\ncontent-length: 1000000\r\n\r\n"
        )
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 401 ")


async def test_head_is_checked_before_credentials(http: httpx.AsyncClient) -> None:
    """A page of another origin learns nothing, not even whether it has a good token."""
    verify = Tokens()
    options = bearing("ada", call("whoami"))
    options["headers"]["origin"] = "https://evil.example.com"
    async with serve(guarded(verify=verify)) as url:
        response = await http.post(f"{url}/mcp", **options)

    assert response.status_code == 403
    assert "www-authenticate" not in response.headers
    assert verify.asked == []


async def test_preflight_needs_no_credentials(http: httpx.AsyncClient) -> None:
    """A browser sends none with it; the header with the token is allowed."""
    endpoint = guarded(endpoint={"security": Security(allowed_origins=[PAGE])})
    headers = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    async with serve(endpoint) as url:
        response = await http.options(f"{url}/mcp", headers=headers)

    assert response.status_code == 204
    assert "authorization" in response.headers["access-control-allow-headers"]


async def test_page_can_read_the_challenge(http: httpx.AsyncClient) -> None:
    """A client in a browser needs the CORS headers with the refusal."""
    endpoint = guarded(endpoint={"security": Security(allowed_origins=[PAGE])})
    options = call("whoami")
    options["headers"]["origin"] = PAGE
    async with serve(endpoint) as url:
        response = await http.post(f"{url}/mcp", **options)

    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "www-authenticate" in response.headers["access-control-expose-headers"]


async def test_log_has_reason_and_never_the_token(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Found and expected audience at WARNING, once: strangers must not fill the log."""
    async with serve(guarded()) as url:
        for number in range(20):
            await called(http, f"{url}/mcp", f"stolen{number}")

    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.getMessage() == (
        "an access token was refused: wrong aud: found: 'https://other', expected: "
        "https://mcp.example.com/mcp"
    )
    assert "stolen" not in caplog.text


async def test_log_is_bounded_over_many_reasons(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A reason with a part of the token in it is another one each time; a line stays a line."""
    reasons = {f"t{number}": InvalidToken(f"odd {number}\n{'x' * 9999}") for number in range(60)}
    async with serve(guarded(verify=Tokens(**reasons))) as url:
        for token in reasons:
            await called(http, f"{url}/mcp", token)

    records = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert 0 < len(records) <= 33
    assert all("\n" not in each and len(each) < 1000 for each in records)


async def test_request_without_credentials_is_not_logged(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client begins so."""
    async with serve(guarded()) as url:
        await called(http, f"{url}/mcp")

    assert caplog.records == []


async def test_anonymous_clients_may_be_let_in(http: httpx.AsyncClient) -> None:
    """optional=True: a request without a token is anonymous; a wrong token is refused."""
    async with serve(guarded(optional=True, scopes=["read"])) as url:
        anonymous = await called(http, f"{url}/mcp")
        known = await called(http, f"{url}/mcp", "ada")
        wrong = await called(http, f"{url}/mcp", "stolen")

    assert anonymous.json()["result"]["content"][0]["text"] == "None"
    assert known.json()["result"]["content"][0]["text"].endswith("ada")
    assert wrong.status_code == 401


async def test_user_of_host_application_does_not_count(http: httpx.AsyncClient) -> None:
    """With auth=, only a token gives an identity, also where anonymous clients are let in."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        scope = {**scope, "user": access("root", "read")}
        await endpoint(scope, receive, send)

    endpoint = guarded(optional=True)
    async with serve(host) as url:
        response = await called(http, f"{url}/mcp")

    assert response.json()["result"]["content"][0]["text"] == "None"


async def test_identity_of_token_may_be_chosen(http: httpx.AsyncClient) -> None:
    """principal= of Bearer replaces issuer and subject."""
    endpoint = guarded(principal=lambda access: f"tenant 7 {access.subject}")
    async with serve(endpoint) as url:
        response = await called(http, f"{url}/mcp", "ada")

    assert response.json()["result"]["content"][0]["text"] == "tenant 7 ada"


async def test_identity_that_is_empty_is_500(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty text would be one identity for all."""
    async with serve(guarded(principal=lambda access: "")) as url:
        response = await called(http, f"{url}/mcp", "ada")

    assert response.status_code == 500
    assert "principal=" in caplog.text


async def test_chosen_identity_that_is_no_text_is_401(http: httpx.AsyncClient) -> None:
    """It comes from a claim, such as half of a surrogate pair; no task could be stored for it."""
    async with serve(guarded(principal=lambda access: f"{access.subject}\ud800")) as url:
        response = await called(http, f"{url}/mcp", "ada")

    assert response.status_code == 401
    assert "half of a surrogate pair" in response.headers["www-authenticate"]


@pytest.mark.parametrize(
    "wrong",
    [Access(), Access(issuer="https://login.example.com"), "sesame", replace(ADA, scopes="r")],
)
async def test_verifier_must_return_an_identity(
    wrong: Any, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one, all tokens would share sessions and tasks. The log does not have the value."""
    async with serve(guarded(verify=Tokens(sesame=wrong))) as url:
        response = await called(http, f"{url}/mcp", "sesame")

    assert response.status_code == 500
    assert "verify= of Bearer" in caplog.text
    assert "sesame" not in caplog.text


@given(
    values=st.lists(st.binary(max_size=40) | st.just(b"Bearer ada"), max_size=2),
    query=st.binary(max_size=30),
)
def test_credentials_are_read_or_refused(values: list[bytes], query: bytes) -> None:
    """No bytes in a header or query are an error of the server; a token has only its letters."""
    scope = {"query_string": query, "headers": [(b"authorization", each) for each in values]}
    try:
        _, token = credentials_of(scope)
    except (Refusal, HttpRejected) as error:
        assert error.status in (400, 431)
    else:
        assert token is None or (token.isascii() and " " not in token)
