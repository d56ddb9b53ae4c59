"""The cost of verified access tokens: plain calls to an open endpoint and to one with `auth=`.

    python -m benchmarks.authorization

Both endpoints are in this process and get the same requests over ASGI, alternately, so that a busy
machine disturbs both: the figure is the median of the differences, in CPU time. The bar is 15 us
for a token whose verdict is kept. The other figures are for information: a verification of a token
that is new, by algorithm, and a bad token that is repeated.
"""

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from joserfc import jwk

from benchmarks.figures import Figure, number
from benchmarks.load import modern
from benchmarks.subject import Echo
from genmcp import Endpoint, Suite
from genmcp.auth import Bearer, Jwt, jose

RESOURCE = "http://127.0.0.1/mcp"
ISSUER = "https://login.example.com"
BAR = 15.0
"""Microseconds that a verified call may take more than an open one."""

_ECHO = modern("tools/call", name="echo", arguments={"message": "hello"})
_BATCH = 50  # calls between two looks at the clock
_KEYS: dict[str, Callable[[], jwk.Key]] = {
    "ES256": lambda: jwk.ECKey.generate_key("P-256"),
    "EdDSA": lambda: jwk.OKPKey.generate_key("Ed25519"),
    "RS256": lambda: jwk.RSAKey.generate_key(2048),
}
_NEW = 200  # tokens that are verified for the first time

Call = Callable[[], Awaitable[None]]


def main() -> None:
    """Measure, print the figures, and fail if the bar is not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help=f"rounds of {_BATCH} calls each")
    logging.getLogger("genmcp").setLevel(logging.ERROR)  # the log of refused tokens
    figures = asyncio.run(_measured(parser.parse_args().rounds))
    for figure in figures:
        bound = f" (bar: {figure.bound:g})" if figure.bound < float("inf") else ""
        print(f"{figure.name}: {number(figure.found)}{bound} {figure.beside}".rstrip())
    if not all(figure.reached for figure in figures):
        raise SystemExit(1)


async def _measured(rounds: int) -> list[Figure]:
    key = jose.generate_key()
    plain, guarded = _endpoint(), _endpoint(_bearer(key))
    opened, verified = _calls(plain), _calls(guarded, token(key))
    refused = _calls(guarded, token(jose.generate_key()), status=401)
    without, known, bad = await _alternately(rounds, opened, verified, refused)
    above = [there - here for here, there in zip(without, known, strict=True)]
    return [
        Figure(
            "a verified call above an open one, us",
            median(above) * 1e6,
            BAR,
            f"open: {number(median(without) * 1e6)}, verified: {number(median(known) * 1e6)}",
        ),
        Figure("a repeated bad token, us", median(bad) * 1e6, float("inf")),
        *[
            Figure(f"a call with a new token ({name}), us", await _first(name) * 1e6, float("inf"))
            for name in _KEYS
        ],
    ]


async def _alternately(rounds: int, *calls: Call) -> list[list[float]]:
    """Return the seconds of each call, in each round."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, taken, strict=True):
            began = time.process_time()
            for _ in range(_BATCH):
                await call()
            times.append((time.process_time() - began) / _BATCH)
    return taken


async def _first(algorithm: str) -> float:
    """Return the seconds of a call whose token has not been verified before."""
    key = jose.read_key(_KEYS[algorithm]().as_dict(private=True))
    endpoint = _endpoint(_bearer(key))
    calls = [_calls(endpoint, token(key, jti=str(number))) for number in range(_NEW)]
    began = time.process_time()
    for call in calls:
        await call()
    return (time.process_time() - began) / _NEW


def token(key: jose.Key, **claims: Any) -> str:
    """Return an access token with the usual claims."""
    now = time.time()
    usual = {"iss": ISSUER, "aud": RESOURCE, "sub": "user-1", "client_id": "client-1"}
    times = {"iat": now, "exp": now + 3600}
    return jose.sign({**usual, **times, "scope": "orders:read orders:write", **claims}, key)


def _bearer(key: jose.Key) -> Bearer:
    verify = Jwt(keys=key.public_jwk)
    return Bearer(RESOURCE, issuers=[ISSUER], scopes=["orders:read"], verify=verify)


def _endpoint(bearer: Bearer | None = None) -> Endpoint:
    return Endpoint(Suite(name="benchmark", version="1", tools=[Echo()]), auth=bearer)


def _calls(endpoint: Endpoint, token: str | None = None, *, status: int = 200) -> Call:
    """Return a function that calls `echo`, and checks the status of the response."""
    body = _ECHO.body.encode()
    headers = {"host": "127.0.0.1", "content-length": str(len(body)), **_ECHO.headers}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    request = {"type": "http.request", "body": body, "more_body": False}
    expected = json.dumps("hello").encode()

    async def receive() -> dict[str, Any]:
        return request

    async def call() -> None:
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": pairs,
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
        }
        await endpoint(scope, receive, send)
        found = messages[0]["status"]
        if found != status or (status == 200 and expected not in messages[1]["body"]):
            raise RuntimeError(f"not the response that is measured: {messages}")

    return call


if __name__ == "__main__":
    main()
