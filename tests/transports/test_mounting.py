"""Mounted anywhere: no redirect, no lifespan, any middleware, any number."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Router
from starlette.testclient import TestClient

from genmcp import Channel, Endpoint, Limits, Mux, Security, Suite, tool
from tests.support.asgi import MODERN, Client, serving
from tests.support.serving import serve


@tool
async def greet(channel: Channel, name: str = "you") -> str:
    """Greets, after some progress."""
    await channel.progress(1)
    return f"hello {name}"


@tool
def count(to: int) -> str:
    """Counts in a thread."""
    return "-".join(str(i) for i in range(to))


def fastapi(*routes: Any) -> FastAPI:
    app = FastAPI()
    app.router.routes.extend(routes)
    return app


def post(http: Any, path: str, name: str = "greet", **meta: Any) -> Any:
    client = Client(None)
    message = client.call(name, **meta)
    return http.post(path, json=message, headers=client._headers(message), follow_redirects=False)


def said(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "application/json":
        text: str = answer.json()["result"]["content"][0]["text"]
        return text
    return "stream"


@contextmanager
def without_lifespan(app: Any) -> Iterator[TestClient]:
    """A new event loop for every request, and no lifespan."""
    yield TestClient(app)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("given", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("make", [lambda route: Starlette(routes=[route]), fastapi, None])
@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_route_answers_with_and_without_a_slash(run: Any, make: Any, given: str, path: str) -> None:
    """In Starlette, FastAPI and a bare Router; with a lifespan that runs, and without."""
    route = serving(greet).route(given)
    app = Router([route]) if make is None else make(route)

    with run(app) as http:
        assert said(post(http, path)) == "hello you"
        assert said(post(http, path, progressToken=1)) == "stream"
        assert http.put(path).status_code == 405
        assert http.post("/mcpx", follow_redirects=False).status_code == 404
        assert http.post("/mcp/x", follow_redirects=False).status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/mcp", "/api/v1/mcp/"])
def test_route_within_mounts(path: str) -> None:
    """Under a root path, and a router within a router."""
    app = Starlette(
        routes=[Mount("/api", routes=[Mount("/v1", Router([serving(greet).route("/mcp")]))])]
    )

    with TestClient(app, root_path="") as http:
        assert said(post(http, path)) == "hello you"


@pytest.mark.parametrize("path", ["/ada/mcp", "/ada/mcp/"])
def test_route_may_have_parameters(path: str) -> None:
    """They are in the scope's path_params, for `principal` to read, for example."""
    seen: list[Any] = []

    def who(scope: Any) -> str | None:
        seen.append(dict(scope["path_params"]))
        return None

    app = Starlette(routes=[serving(greet, principal=who).route("/{tenant}/mcp")])

    with TestClient(app) as http:
        said(post(http, path))

    assert seen == [{"tenant": "ada"}]


@pytest.mark.parametrize("path", ["/", ""])
def test_route_at_the_root(path: str) -> None:
    """A server may be nothing but its endpoint."""
    with TestClient(Starlette(routes=[serving(greet).route("/")])) as http:
        assert said(post(http, path)) == "hello you"


@pytest.mark.parametrize("path", ["/", "/x/{rest:path}"])
def test_route_takes_any_pattern(path: str) -> None:
    """Any path that Starlette compiles matches as before."""
    route = serving(greet).route(path)

    assert route.path_regex.match(path.replace("{rest:path}", "a/b"))
    assert repr(route.endpoint).startswith("<Endpoint of <Mux of test")


def test_mount_takes_the_endpoint_itself() -> None:
    """`Mount("/mcp", endpoint)` answers at /mcp/; its router redirects /mcp, as it does for all."""
    with TestClient(Starlette(routes=[Mount("/mcp", serving(greet))])) as http:
        assert said(post(http, "/mcp/")) == "hello you"
        assert post(http, "/mcp").status_code == 307


@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_bare_endpoint_is_an_app(run: Any) -> None:
    """With its own lifespan or without; it may be started a second time."""
    endpoint = serving(greet, count)
    for _ in range(2):
        with run(endpoint) as http:
            assert said(post(http, "/anything")) == "hello you"
            client = Client(None)
            message = client.call("count", {"to": 3})
            answer = http.post("/", json=message, headers=client._headers(message))
            assert said(answer) == "0-1-2"


def test_lifespan_closes_the_mux_that_was_made_here_only() -> None:
    """A given mux may have other endpoints, so that its owner closes it."""
    closed: list[str] = []

    class Counted(Mux):
        async def aclose(self) -> None:
            closed.append(self.server.info.name)
            await super().aclose()

    mux = Counted(Suite(name="given", version="1", tools=[greet]))
    with TestClient(Endpoint(mux)) as http:
        said(post(http, "/"))

    assert closed == []


def test_two_endpoints_in_one_app() -> None:
    """Each has its own tools and sessions."""
    one = Endpoint(Suite(name="one", version="1", tools=[greet]))
    two = Endpoint(Suite(name="two", version="1", tools=[count]))
    app = Starlette(routes=[one.route("/one"), two.route("/two")])

    with TestClient(app) as http:
        assert said(post(http, "/one")) == "hello you"
        assert post(http, "/two").json()["error"]["code"] == -32602


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        request.state.user = "ada"
        return await call_next(request)


class Reading(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        await request.body()
        return await call_next(request)


MIDDLEWARES = [
    [Middleware(Passing)],
    [Middleware(Reading)],
    [Middleware(GZipMiddleware, minimum_size=1)],
    [Middleware(CORSMiddleware, allow_origins=["https://app.example.com"])],
    [Middleware(GZipMiddleware, minimum_size=1), Middleware(Passing), Middleware(Reading)],
]


@pytest.mark.parametrize("middleware", MIDDLEWARES)
def test_starlette_middlewares_pass_responses_and_streams(middleware: Any) -> None:
    """JSON, streams and readable headers pass unchanged."""
    security = Security(allowed_origins=["https://app.example.com"])
    app = Starlette(routes=[serving(greet, security=security).route("/mcp")], middleware=middleware)
    client = Client(None)
    message = client.call("greet", progressToken=1)
    headers = {**client._headers(message), "origin": "https://app.example.com"}

    with TestClient(app) as http:
        answer = http.post("/mcp", json=message, headers=headers)
        assert said(post(http, "/mcp")) == "hello you"

    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers.get_list("access-control-allow-origin") == ["https://app.example.com"]
    assert answer.text.count("event: message") == 2


@pytest.mark.parametrize("middleware", [MIDDLEWARES[0], MIDDLEWARES[4]])
async def test_disconnect_is_noticed_through_middlewares(middleware: Any) -> None:
    """On a real server: a client that leaves cancels its call behind BaseHTTPMiddleware too."""
    loop = asyncio.get_running_loop()
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(channel: Channel) -> str:
        channel.start_stream()
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(cancelled.set)
        return ""

    app = Starlette(routes=[serving(wait).route("/mcp")], middleware=middleware)
    client = Client(None)
    message = client.call("wait")
    headers = {**client._headers(message), "host": "localhost"}
    async with serve(app) as url, asyncio.timeout(5):
        async with (
            httpx.AsyncClient() as http,
            http.stream("POST", f"{url}/mcp", json=message, headers=headers),
        ):
            await begun.wait()
        await cancelled.wait()


async def test_web_sockets_are_refused() -> None:
    """A scope that is not HTTP is closed without an exception."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await serving(greet)({"type": "websocket"}, send, send)  # type: ignore[arg-type]

    assert [message["type"] for message in sent] == ["websocket.close"]


def test_sessions_live_on_any_event_loop() -> None:
    """Each request may come on a loop of its own: sessions, streams and threads do not care."""
    endpoint = Endpoint(
        Mux(Suite(name="test", version="1", tools=[greet, count]), limits=Limits(max_threads=1))
    )
    client = Client(None, "2025-11-25")
    http = TestClient(endpoint)

    begun = http.post("/", json=client.initialize(), headers=client._headers(None))
    client.session = begun.headers["mcp-session-id"]
    called = http.post("/", json=client.call("count", {"to": 2}), headers=client._headers(None))
    streamed = http.post(
        "/", json=client.call("greet", progressToken=1), headers=client._headers(None)
    )
    first = next(line for line in streamed.text.splitlines() if line.startswith("id: "))
    resumed = http.get(
        "/", headers={**client._headers(None), "last-event-id": first.removeprefix("id: ")}
    )

    assert said(called) == "0-1"
    assert "hello you" in resumed.text
    assert MODERN not in begun.text
