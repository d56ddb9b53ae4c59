"""docs/how-to/identity-providers.md: tokens of GitHub are verified by its API."""

import base64
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from genmcp.auth import AuthorizationUnavailable, InvalidToken
from tests.support.documented import write_examples
from tests.support.serving import serve

GRANTED = {
    "user": {"id": 7, "login": "ada"},
    "scopes": ["read:user"],
    "app": {"client_id": "press"},
}


async def check_token(request: Request) -> Response:
    """Answer as `POST /applications/{client_id}/token` of GitHub."""
    credentials = base64.b64encode(b"press:s3cret").decode()
    if request.headers["authorization"] != f"Basic {credentials}":
        return JSONResponse({"message": "Requires authentication"}, status_code=401)
    found = (await request.json())["access_token"] == "gho_of_ada"
    return JSONResponse(GRANTED) if found else JSONResponse({}, status_code=404)


@pytest.fixture
def github_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that the page shows."""
    write_examples("how-to/identity-providers", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = import_module("github_tokens").GitHubTokens
    monkeypatch.delitem(sys.modules, "github_tokens")
    return found


@pytest.fixture
async def api() -> AsyncIterator[str]:
    """The URL of an API such as GitHub's."""
    routes = [Route("/applications/press/token", check_token, methods=["POST"])]
    async with serve(Starlette(routes=routes)) as url:
        yield url


async def test_github_recipe_accepts_a_token_of_its_app(github_tokens: Any, api: str) -> None:
    """The id is the subject, since users can change their login."""
    access = await github_tokens("press", "s3cret", api).verify("gho_of_ada")

    assert (access.subject, access.claims) == ("7", {"login": "ada"})
    assert access.scopes == {"read:user"}
    assert access.principal == "https://github.com/login/oauth sub 7"


async def test_github_recipe_rejects_other_tokens(github_tokens: Any, api: str) -> None:
    """A token of another app is unknown to GitHub here."""
    with pytest.raises(InvalidToken):
        await github_tokens("press", "s3cret", api).verify("gho_of_another_app")


async def test_github_recipe_keeps_tokens_if_it_cannot_ask(github_tokens: Any, api: str) -> None:
    """Wrong credentials of the server, or no connection: not the fault of the token."""
    with pytest.raises(AuthorizationUnavailable, match="401"):
        await github_tokens("press", "wrong", api).verify("gho_of_ada")
    with pytest.raises(AuthorizationUnavailable, match="ConnectError"):
        await github_tokens("press", "s3cret", "http://127.0.0.1:9").verify("gho_of_ada")
