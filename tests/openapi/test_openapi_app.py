"""The tools of a FastAPI app, which is called in this process with the access of its caller."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import pytest
from fastapi import Cookie, Depends, FastAPI, HTTPException, Path, Request, Response, UploadFile
from fastapi.security import HTTPBearer
from mcp import Client
from pydantic import BaseModel
from starlette.authentication import requires
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import genmcp
from genmcp import Access, Endpoint, Suite
from genmcp.cli.lint import check_tools
from genmcp.openapi import openapi_tools
from genmcp.testing import connect
from genmcp.tools import ToolRoute
from tests.support.asgi import Client as AsgiClient
from tests.support.serving import serve


class Part(BaseModel):
    number: str
    count: int = 1
    inner: "list[Part]" = []


def shop() -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"stock": {"M6": 3}}

    app = FastAPI(lifespan=lifespan)

    @app.get("/parts/{number}")
    async def get_part(number: str, request: Request) -> Part:
        """Gets a part."""
        stock = getattr(request.state, "stock", {"M6": 0})
        if number not in stock:
            raise HTTPException(404, f"there is no part {number}")
        return Part(number=number, count=stock[number])

    @app.post("/parts")
    async def add_part(part: Part) -> Part:
        return part

    @app.get("/files/{name:path}")
    async def get_file(
        name: Annotated[str, Path(json_schema_extra={"x-multi-segment": True})],
    ) -> str:
        return name

    @app.post("/upload")
    async def upload(file: UploadFile) -> int:
        return 1

    @app.get("/token")
    async def get_token(token: Annotated[Any, Depends(HTTPBearer())]) -> str:
        return str(token.credentials)

    @app.get("/caller")
    @requires("parts:read")
    async def get_caller(request: Request) -> dict[str, Any]:
        return {"subject": request.user.subject, "scopes": request.auth.scopes}

    @app.get("/peer")
    async def get_peer(request: Request) -> dict[str, Any]:
        peer = request.client
        return {"peer": peer.host if peer else None, "host": request.headers["host"]}

    @app.get("/visits")
    async def count_visits(response: Response, visits: Annotated[int, Cookie()] = 0) -> int:
        response.set_cookie("visits", str(visits + 1))
        return visits

    @app.get("/broken")
    async def break_down() -> None:
        raise RuntimeError("secret")

    return app


async def test_tools_of_an_app_need_no_client() -> None:
    """The models of its routes are the schemas of its tools."""
    rename = {"add_part_parts_post": "add_part", "get_part_parts__number__get": "get_part"}.get
    tools = openapi_tools(shop(), rename=rename)
    definitions = [ToolRoute.of(each).definition for each in tools]

    async with connect(Suite("shop", tools=tools)) as client:
        names = [each.name for each in await client.tools()]
        part = await client.call("add_part", {"number": "M8", "inner": [{"number": "M4"}]})
        absent = await client.call("get_part", {"number": "M9"})

    assert not [*check_tools(definitions, revision="2025-11-25")]
    assert "add_part" in names
    assert [*tools.skipped] == ["upload_upload_post"]
    assert part.data["inner"] == [{"number": "M4", "count": 1, "inner": []}]
    assert absent.is_error
    assert "there is no part M9" in absent.data


async def test_app_serves_its_own_operations_as_tools() -> None:
    """Its routes get the state of its lifespan, the host and the token of the caller."""
    app = shop()
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1"])
    tools = openapi_tools(app, only=["GET /parts/*", "GET /token", "GET /peer"])
    app.router.routes.append(Endpoint(Suite("shop", tools=tools)).route("/mcp"))

    headers = {"Authorization": "Bearer of-the-caller"}

    async with serve(app) as url, genmcp.Client(f"{url}/mcp", headers=headers) as client:
        part = await client.call("get_part_parts__number__get", {"number": "M6"})
        token = await client.call("get_token_token_get")
        peer = await client.call("get_peer_peer_get")
        async with Client(f"{url}/mcp") as other:
            refused = await other.call_tool("get_token_token_get", {})

    assert part.data["count"] == 3
    assert token.data == '"of-the-caller"'
    assert peer.data == {"peer": "127.0.0.1", "host": url.removeprefix("http://")}
    assert refused.is_error
    assert "HTTP 401" in refused.content[0].text  # type: ignore[union-attr]


async def test_app_gets_the_access_of_the_caller() -> None:
    """As `request.user` and `request.auth`, verified by the endpoint."""
    suite = Suite("shop", tools=openapi_tools(shop(), only=["GET /caller"]))
    access = Access(subject="ada", scopes=frozenset({"parts:read"}))

    async with connect(suite, access=access) as client:
        granted = await client.call("get_caller_caller_get")
    async with connect(suite, access=Access(subject="bob")) as client:
        refused = await client.call("get_caller_caller_get")

    assert granted.data == {"subject": "ada", "scopes": ["authenticated", "parts:read"]}
    assert refused.is_error
    assert "HTTP 403" in refused.data


@pytest.mark.parametrize("address", [None, "203.0.113.7"])
async def test_caller_is_not_taken_for_a_local_one(address: str | None) -> None:
    """An app may trust clients of 127.0.0.1, which httpx pretends to be by default."""
    suite = Suite("shop", tools=openapi_tools(shop(), only=["GET /peer"]))
    caller = AsgiClient(Endpoint(suite), client=address and (address, 7))

    answer = await caller.send(caller.call("get_peer_peer_get"))

    assert answer.json["result"]["structuredContent"]["peer"] == address


async def test_cookies_of_an_app_do_not_reach_other_callers() -> None:
    """One client serves all callers: a session of one must not become that of the next."""
    async with connect(Suite("shop", tools=openapi_tools(shop(), only=["GET /visits"]))) as client:
        first = await client.call("count_visits_visits_get")
        second = await client.call("count_visits_visits_get")
        own = await client.call("count_visits_visits_get", {"visits": 7})

    assert (first.data, second.data, own.data) == ("0", "0", "7")


async def test_exception_of_an_app_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets a reference, which is in the log with the exception, as of any tool."""
    async with connect(Suite("shop", tools=openapi_tools(shop(), only=["GET /broken"]))) as client:
        result = await client.call("break_down_broken_get")

    assert result.is_error
    assert "secret" not in result.data
    assert "secret" in caplog.text


@pytest.mark.parametrize("name", ["1/keys", "1%2Fkeys"])
async def test_argument_reaches_only_the_route_of_its_tool(name: str) -> None:
    """An app decodes the path before it looks for the route."""
    app = FastAPI()

    @app.get("/users/{id}")
    async def get_user(id: str) -> str:
        return f"user {id}"

    @app.get("/users/{id}/keys", include_in_schema=False)
    async def get_keys(id: str) -> str:
        return "secret"

    async with connect(Suite("users", tools=openapi_tools(app))) as client:
        result = await client.call("get_user_users__id__get", {"id": name})

    assert "secret" not in result.data


async def test_path_parameter_of_an_app_may_have_segments() -> None:
    """`{name:path}` is not in the document of FastAPI: the parameter has to name it."""
    async with connect(Suite("shop", tools=openapi_tools(shop(), only=["GET /files/*"]))) as client:
        result = await client.call("get_file_files__name__get", {"name": "docs/a.md"})

    assert result.data == '"docs/a.md"'


class LenientMiddleware:
    """Takes a closed connection for the end of a request, as many do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(OSError):
            await self.app(scope, receive, send)


@pytest.mark.parametrize("middleware", [None, GZipMiddleware, LenientMiddleware])
async def test_app_is_ended_when_its_response_is_too_large(middleware: Any) -> None:
    """The response of an app is collected before any of it is read."""
    app, sent = FastAPI(), Counter[str]()
    if middleware is not None:
        app.add_middleware(middleware)

    @app.get("/report", operation_id="report")
    async def get_report() -> StreamingResponse:
        async def rows() -> AsyncIterator[bytes]:
            for _ in range(200):
                sent["rows"] += 1
                yield b"x" * 65_536

        return StreamingResponse(rows())

    async with connect(Suite("shop", tools=openapi_tools(app))) as client:
        result = await client.call("report")

    assert result.is_error
    assert "more than 4194304 bytes" in result.data
    assert sent["rows"] == 65


async def test_stream_of_events_of_an_app_is_an_error() -> None:
    """It may never end, and send little: no limit of the size would end the call."""
    app, begun = FastAPI(), asyncio.Event()

    @app.get("/events", operation_id="watch")
    async def watch() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            begun.set()
            yield "data: first\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async with connect(Suite("shop", tools=openapi_tools(app))) as client:
        result = await client.call("watch")

    assert result.is_error
    assert "stream of events" in result.data
    assert not begun.is_set()
