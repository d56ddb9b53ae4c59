"""The cost of a verified call, counted in Python calls: a time would depend on the machine."""

import sys
import time
from collections import Counter
from typing import Any

from genmcp import Endpoint, Suite
from genmcp.auth import Bearer, Jwt, jose
from tests.support.tokens import RESOURCE, call, whoami

ISSUER = "https://login.example.com"
KEY = jose.generate_key()


def endpoint(auth: Bearer | None) -> Endpoint:
    return Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=auth)


async def status_of(endpoint: Endpoint, token: str | None) -> int:
    """Call `whoami` over ASGI, without a client and its own calls."""
    options = call("whoami")
    headers = {**options["headers"], "host": "127.0.0.1"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    body = options["content"].encode()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    await endpoint(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def counted(endpoint: Endpoint, token: str | None) -> Counter[str]:
    """Return the Python functions that a call calls, after one that fills all caches."""
    found: Counter[str] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1

    assert await status_of(endpoint, token) == 200
    sys.setprofile(profile)
    try:
        status = await status_of(endpoint, token)
    finally:
        sys.setprofile(None)
    assert status == 200
    return found


async def test_verified_call_costs_few_calls_more() -> None:
    """The bar is 15 us more than an open call, of some 10 us; each call costs about 0.1 us.

    `python -m benchmarks.authorization` measures the time.
    """
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": time.time() + 600}
    token = jose.sign({**claims, "scope": "a b"}, KEY)
    verify = Jwt(keys=KEY.public_jwk)
    bearer = Bearer(RESOURCE, issuers=[ISSUER], scopes=["a"], verify=verify)

    plain = await counted(endpoint(None), None)
    verified = await counted(endpoint(bearer), token)

    assert verified["Verdicts.find"] == 1
    assert verified.total() - plain.total() <= 20, verified - plain
