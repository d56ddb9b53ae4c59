"""Who is refused, with which status and challenge: RFC 6750, 3, over a real connection."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.serving import serve
from tests.support.tokens import called, guarded

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


async def test_request_without_credentials_is_401(http: httpx.AsyncClient) -> None:
    """RFC 6750, 3.1: without an error code, since the client knew nothing."""
    async with serve(guarded(scopes=["read", "write"])) as url:
        response = await called(http, f"{url}/mcp")

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == (
        f'Bearer scope="read write", resource_metadata="{METADATA}"'
    )
    assert response.json() == {
        "error": "unauthorized",
        "error_description": "This endpoint needs an access token",
    }
