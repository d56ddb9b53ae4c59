"""A server that accepts a few fixed tokens, for tests that are not about their verification."""

import json
from typing import Any

import httpx

from genmcp import Channel, Endpoint, Suite, tool
from genmcp.auth import Bearer, InvalidToken
from genmcp.core.access import Access
from tests.support.asgi import Client

ISSUER = "https://login.example.com"
RESOURCE = "https://mcp.example.com/mcp"
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"


class Tokens:
    """A verifier that knows a few tokens. *asked* lists those it was called with.

    Exceptions among the values are raised.
    """

    cache = 60.0

    def __init__(self, **tokens: Access | Exception) -> None:
        self.tokens: dict[str, Access | Exception] = {
            "ada": access("ada", "read"),
            "bob": access("bob", "read"),
            **tokens,
        }
        self.asked: list[str] = []

    async def verify(self, token: str) -> Access:
        """Return the value for the token."""
        self.asked.append(token)
        found = self.tokens.get(token)
        if found is None:
            raise InvalidToken("wrong aud", f"found: 'https://other', expected: {RESOURCE}")
        if isinstance(found, Exception):
            raise found
        return found


def access(subject: str, *scopes: str, expires: float | None = None) -> Access:
    """Return the Access of *subject* at the issuer."""
    return Access(
        issuer=ISSUER, subject=subject, client_id="app", scopes=frozenset(scopes), expires=expires
    )


@tool
async def whoami(channel: Channel) -> str:
    """Returns the principal."""
    return str(channel.principal)


def guarded(
    *tools: Any, endpoint: dict[str, Any] | None = None, resource: str = RESOURCE, **options: Any
) -> Endpoint:
    """Return an endpoint that accepts `Tokens`; *options* are those of `Bearer`."""
    return Endpoint(
        Suite(name="test", version="1", tools=[whoami, *tools]),
        auth=Bearer(resource, **{"issuers": [ISSUER], "verify": Tokens(), **options}),
        **(endpoint or {}),
    )


def call(name: str, arguments: dict[str, Any] | None = None, **further: Any) -> dict[str, Any]:
    """Return the options of an httpx request that calls a tool."""
    return request("tools/call", {"name": name, "arguments": arguments or {}}, name, **further)


def request(
    method: str, params: dict[str, Any], name: str | None = None, **further: Any
) -> dict[str, Any]:
    """Return the options of an httpx request of 2026-07-28."""
    meta = {
        _META + "protocolVersion": MODERN,
        _META + "clientInfo": {"name": "test", "version": "1"},
        _META + "clientCapabilities": further.pop("capabilities", {}),
        **further,
    }
    headers = {**HEADERS, "mcp-protocol-version": MODERN, "mcp-method": method}
    if name is not None:
        headers["mcp-name"] = name
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return {"headers": headers, "content": json.dumps(message)}


def bearing(token: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a request, with a token added."""
    if token is None:
        return options
    return {**options, "headers": {**options["headers"], "authorization": f"Bearer {token}"}}


async def called(client: httpx.AsyncClient, url: str, token: str | None = None) -> httpx.Response:
    """Call `whoami`."""
    return await client.post(url, **bearing(token, call("whoami")))


class Holder(Client):
    """A client in memory that sends a token. Assign to `token` to change it."""

    token: str | None = None

    def _headers(self, message: Any) -> dict[str, str]:
        headers = super()._headers(message)
        return (
            headers if self.token is None else headers | {"authorization": f"Bearer {self.token}"}
        )

    @classmethod
    async def having(cls, app: Any, token: str, version: str = MODERN, **scope: Any) -> "Holder":
        """Return a client with *token* that has initialized a session, if the revision has any."""
        holder = cls(app, version, **scope)
        holder.token = token
        if version != MODERN:
            answer = await holder.send(holder.initialize())
            holder.session = answer.headers["mcp-session-id"]
        return holder
