"""A server that accepts DPoP, behind a proxy, and requests to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from genmcp import Endpoint, Mux, Suite
from genmcp.auth import Bearer, Jwt, Verifier
from genmcp.auth.extensions.dpop import Dpop
from tests.auth.proofs import Holder
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve

OWNER, THIEF = Holder(), Holder()
SECRET = "the secret of the server"
URL = "https://mcp.example.com/mcp"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
HEADERS = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
    "Accept": "application/json, text/event-stream",
}

Headers = list[tuple[str, str]]


class Target(NamedTuple):
    """A server, and a token for it that is bound to the key of OWNER.

    `url` is the public URL, as a proxy in front of the server would have it; `at` is its address.
    """

    at: str
    issuer: OAuthServer
    token: str
    url: str = URL

    async def send(self, headers: Headers) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            given = [*HEADERS.items(), *headers]
            return await client.post(f"{self.at}/mcp", headers=given, json=BODY)

    def proof(self, holder: Holder = OWNER, **changes: Any) -> str:
        return holder.proof("POST", self.url, self.token, **changes)

    def with_proof(self, *proofs: str, token: str | None = None) -> Headers:
        given = [("Authorization", f"DPoP {token or self.token}")]
        return [*given, *(("DPoP", proof) for proof in proofs)]

    def changed(self, holder: Holder = OWNER, **changes: Any) -> Headers:
        return self.with_proof(self.proof(holder, **changes))


@asynccontextmanager
async def served(
    *,
    accepted: bool = True,
    required: bool = False,
    nonces: bool = False,
    issuer: OAuthServer | None = None,
    scopes: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[Target]:
    """Serve an endpoint over HTTP behind a proxy, with the options of its `Dpop` and its mux."""
    issuer = issuer or OAuthServer()
    token = issuer.token("ann", audience=URL, cnf={"jkt": OWNER.thumbprint})
    verify: Verifier = Jwt(keys=issuer.jwks)
    if accepted:
        verify = Dpop(verify, required=required, nonces=nonces)
    bearer = Bearer(URL, issuers=[issuer.url], verify=verify, scopes=scopes)
    mux = Mux(Suite(name="parts", version="1"), secret=SECRET, **options)
    async with serve(Endpoint(mux, auth=bearer)) as at:
        yield Target(at, issuer, token)
    await mux.aclose()
