"""A server that demands an access token, for the tests beside this file."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from genmcp import Endpoint, Suite, tool


@tool
def whoami(name: str = "nobody") -> str:
    """Return a name."""
    return name


def suite() -> Suite:
    return Suite(name="guarded", version="1", tools=[whoami])


class Guarded:
    """Passes requests with a token that *accepts* on; answers the others with *refusal*.

    Attributes:
        seen: the HTTP method and the `Authorization` header of each request, in order.
    """

    def __init__(
        self,
        accepts: Callable[[str | None], bool] = lambda token: token == "Bearer good",
        app: ASGIApp | None = None,
        *,
        status: int = 401,
        challenge: str = 'Bearer error="invalid_token"',
    ) -> None:
        self.accepts = accepts
        self.seen: list[tuple[str, str | None]] = []
        self._app: Any = app or Endpoint(suite())
        self._status = status
        self._challenge = challenge

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = dict(scope["headers"]).get(b"authorization")
        header = None if token is None else token.decode("latin-1")
        self.seen.append((scope["method"], header))
        if self.accepts(header):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", self._challenge.encode()), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})
