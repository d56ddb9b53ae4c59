"""A token without a scope that an operation needs."""

import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from genmcp import Client
from genmcp.client.errors import Forbidden
from tests.support.serving import serve

CHALLENGE = 'Bearer error="insufficient_scope", scope="parts:read parts:write"'


async def refuse(request: Request) -> JSONResponse:
    """Answer like a server with an operation that needs more scopes."""
    id = json.loads(await request.body()).get("id")
    error = {"code": -32603, "message": "The access token lacks a scope"}
    body = {"jsonrpc": "2.0", "id": id, "error": error}
    return JSONResponse(body, 403, headers={"WWW-Authenticate": CHALLENGE})


async def test_missing_scopes_are_in_the_error() -> None:
    """Also where the body of the response is a JSON-RPC error, which has no scopes."""
    app = Starlette(routes=[Route("/mcp", refuse, methods=["POST"])])
    async with serve(app) as base:
        with pytest.raises(Forbidden, match="lacks a scope") as caught:
            async with Client(f"{base}/mcp", auth="a-token"):
                pass
    assert caught.value.scopes == ("parts:read", "parts:write")
    assert not caught.value.sent
