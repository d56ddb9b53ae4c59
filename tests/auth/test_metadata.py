"""Where clients find the metadata of an endpoint: RFC 9728, 3, for every way to mount it."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import ConfigurationError, Endpoint, Health, Registry, Suite
from genmcp.auth import Bearer
from genmcp.cli.serve import create_app
from genmcp.core.auth.challenges import parse_challenges
from genmcp.registry import RegistryEndpoint
from tests.support.serving import serve
from tests.support.tokens import ISSUER, Tokens, bearing, call, called, guarded, whoami

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


def named(response: httpx.Response) -> str:
    """The path of the metadata that a challenge names. Its host is the public one."""
    (challenge,) = parse_challenges(response.headers.get_list("www-authenticate"))
    where = urlsplit(challenge.params["resource_metadata"])
    assert where.netloc == "mcp.example.com"
    return where.path


def in_starlette() -> Any:
    return Starlette(routes=guarded().routes("/mcp"))


def in_fastapi() -> Any:
    app = FastAPI()
    app.router.routes.extend(guarded().routes("/mcp"))
    return app


def with_one_route() -> Any:
    return Starlette(routes=[guarded().route("/mcp")])


def below_mount() -> Any:
    return Starlette(routes=[Mount("/mcp", guarded())])


def below_mount_of_fastapi() -> Any:
    app = FastAPI()
    app.mount("/mcp", guarded())
    return app


def below_mount_with_root() -> Any:
    endpoint = guarded(resource="https://mcp.example.com/api/mcp")
    inner = Starlette(routes=[endpoint.route("/mcp")])
    return Starlette(routes=[endpoint.metadata_route(), Mount("/api", inner)])


def below_mount_without_root() -> Any:
    endpoint = guarded(resource="https://mcp.example.com/api/mcp")
    return Starlette(routes=[Mount("/api", Starlette(routes=[endpoint.route("/mcp")]))])


def as_sse() -> Any:
    return Starlette(routes=[guarded().sse_route("/mcp")])


AT_ROOT = [WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"{WELL_KNOWN}/mcp/"]
BELOW = [f"/mcp{WELL_KNOWN}", f"/mcp{WELL_KNOWN}/"]


@pytest.mark.parametrize(
    ("application", "url", "found", "challenged"),
    [
        (in_starlette, "/mcp", [*AT_ROOT, *BELOW], f"{WELL_KNOWN}/mcp"),
        (in_fastapi, "/mcp", [*AT_ROOT, *BELOW], f"{WELL_KNOWN}/mcp"),
        (guarded, "/mcp", [*AT_ROOT, *BELOW], f"{WELL_KNOWN}/mcp"),
        (with_one_route, "/mcp", BELOW, f"/mcp{WELL_KNOWN}"),
        (as_sse, "/mcp", BELOW, f"/mcp{WELL_KNOWN}"),
        (below_mount, "/mcp/", BELOW, f"/mcp{WELL_KNOWN}"),
        (below_mount_of_fastapi, "/mcp/", BELOW, f"/mcp{WELL_KNOWN}"),
        (
            below_mount_with_root,
            "/api/mcp",
            [WELL_KNOWN, f"{WELL_KNOWN}/api/mcp", f"/api/mcp{WELL_KNOWN}"],
            f"{WELL_KNOWN}/api/mcp",
        ),
        (
            below_mount_without_root,
            "/api/mcp",
            [f"/api/mcp{WELL_KNOWN}"],
            f"/api/mcp{WELL_KNOWN}",
        ),
    ],
)
async def test_metadata_is_found(
    application: Callable[[], Any],
    url: str,
    found: list[str],
    challenged: str,
    http: httpx.AsyncClient,
) -> None:
    """At the root of the host where it can be, else below the endpoint; the challenge names it."""
    async with serve(application()) as host:
        refused = await called(http, f"{host}{url}")
        documents = [await http.get(f"{host}{path}") for path in found]
        before = await http.get(f"{host}{named(refused)}")

    assert refused.status_code == 401
    assert named(refused) == challenged
    assert [each.status_code for each in documents] == [200] * len(found)
    assert len({each.text for each in documents}) == 1
    assert before.text == documents[0].text


@pytest.mark.parametrize("path", ["", "/"])
async def test_resource_may_be_the_whole_host(path: str, http: httpx.AsyncClient) -> None:
    """Then both paths are one. The resource stays the text that was given."""
    endpoint = guarded(resource=f"https://mcp.example.com{path}")
    async with serve(Starlette(routes=endpoint.routes("/"))) as host:
        refused = await called(http, f"{host}/")
        document = await http.get(f"{host}{named(refused)}")

    assert named(refused) == WELL_KNOWN
    assert document.json()["resource"] == f"https://mcp.example.com{path}"


@pytest.mark.parametrize("strips", [True, False])
async def test_metadata_is_found_behind_a_proxy(strips: bool, http: httpx.AsyncClient) -> None:
    """A prefix that a proxy adds, with `root_path`; and one that it strips, without."""
    resource = "https://mcp.example.com/tools/mcp"
    app = Starlette(routes=guarded(resource=resource).routes("/mcp"))
    options: dict[str, Any] = {} if strips else {"root_path": "/tools"}
    async with serve(app, **options) as host:
        refused = await called(http, f"{host}/mcp")
        root = await http.get(f"{host}{WELL_KNOWN}/tools/mcp")
        below = await http.get(f"{host}/mcp{WELL_KNOWN}")

    assert named(refused) == f"{WELL_KNOWN}/tools/mcp"
    assert root.json()["resource"] == below.json()["resource"] == resource


async def test_bare_endpoint_behind_a_prefix_names_a_path_below(
    http: httpx.AsyncClient,
) -> None:
    """The root of the host belongs to the proxy, so that the challenge names the path below."""
    endpoint = guarded(resource="https://mcp.example.com/tools/mcp")
    async with serve(endpoint, root_path="/tools") as host:
        refused = await called(http, f"{host}/mcp")
        below = await http.get(f"{host}/mcp{WELL_KNOWN}")

    assert named(refused) == f"/tools/mcp{WELL_KNOWN}"
    assert below.status_code == 200


async def test_metadata_on_loopback_with_a_port(http: httpx.AsyncClient) -> None:
    """A server under development: HTTP is allowed, and the port is a part of the resource."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    resource = f"http://127.0.0.1:{port}/mcp"
    app = Starlette(routes=guarded(resource=resource).routes("/mcp"))
    async with serve(app) as host:
        refused = await called(http, f"{host}/mcp")
        document = await http.get(f"{host}{WELL_KNOWN}/mcp")

    assert (
        f'resource_metadata="http://127.0.0.1:{port}{WELL_KNOWN}/mcp"'
        in (refused.headers["www-authenticate"])
    )
    assert document.json()["resource"] == resource


async def test_metadata_has_the_members_that_clients_need(http: httpx.AsyncClient) -> None:
    """RFC 9728, 2. Strings are published exactly as they were given."""
    endpoint = guarded(
        issuers=["https://Login.example.com/t1/", "https://b.example.com"],
        scopes=["read", "write"],
        about={"resource_name": "Parts", "resource_documentation": "https://example.com/docs"},
    )
    async with serve(endpoint) as host:
        document = await http.get(f"{host}{WELL_KNOWN}")

    assert document.headers["content-type"] == "application/json"
    assert document.json() == {
        "resource": "https://mcp.example.com/mcp",
        "authorization_servers": ["https://Login.example.com/t1/", "https://b.example.com"],
        "scopes_supported": ["read", "write"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Parts",
        "resource_documentation": "https://example.com/docs",
    }


async def test_announced_scopes_may_differ(http: httpx.AsyncClient) -> None:
    """The least that is useful, which may be more than every request needs."""
    endpoint = guarded(scopes=["read"], about={"scopes_supported": ["read", "write"]})
    async with serve(endpoint) as host:
        document = await http.get(f"{host}{WELL_KNOWN}")

    assert document.json()["scopes_supported"] == ["read", "write"]


async def test_metadata_is_not_built_from_the_host_header(http: httpx.AsyncClient) -> None:
    """A client that could choose the resource could get tokens for another server."""
    async with serve(in_starlette()) as host:
        for header in ("evil.example.com", "mcp.example.com:8443"):
            document = await http.get(f"{host}{WELL_KNOWN}", headers={"host": header})
            assert document.json()["resource"] == "https://mcp.example.com/mcp"


@pytest.mark.parametrize("application", [in_starlette, guarded, below_mount])
async def test_metadata_is_for_everyone(
    application: Callable[[], Any], http: httpx.AsyncClient
) -> None:
    """GET, HEAD and OPTIONS without credentials, for pages of any origin, for an hour at most."""
    page = {"origin": "https://anywhere.example.com"}
    preflight = {
        **page,
        "access-control-request-method": "GET",
        "access-control-request-headers": "mcp-protocol-version",
    }
    async with serve(application()) as host:
        url = f"{host}/mcp{WELL_KNOWN}"
        got = await http.get(url, headers=page)
        head = await http.head(url, headers=page)
        asked = await http.options(url, headers=preflight)
        with_token = await http.get(url, headers={"authorization": "Bearer stolen"})

    assert got.headers["access-control-allow-origin"] == "*"
    assert got.headers["cache-control"] == "public, max-age=3600"
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(got.content))
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "*"
    assert asked.headers["access-control-allow-headers"].startswith("*")
    assert with_token.text == got.text


async def test_metadata_cannot_be_written(http: httpx.AsyncClient) -> None:
    """405 at the root; below the endpoint, a POST is a message without credentials."""
    async with serve(in_starlette()) as host:
        root = await http.post(f"{host}{WELL_KNOWN}", json={})
        below = await http.post(f"{host}/mcp{WELL_KNOWN}", json={})

    assert (root.status_code, root.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert below.status_code == 401


async def test_endpoint_without_auth_has_no_metadata(http: httpx.AsyncClient) -> None:
    """A 404 means that no login is needed, or that it is arranged in another way."""
    endpoint = Endpoint(Suite(name="open", version="1", tools=[whoami]))
    async with serve(Starlette(routes=endpoint.routes("/mcp"))) as host:
        statuses = [
            (await http.get(f"{host}{path}")).status_code
            for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"/mcp{WELL_KNOWN}")
        ]

    assert statuses == [404] * 3
    with pytest.raises(ConfigurationError, match="auth="):
        endpoint.metadata_route()


async def test_health_needs_no_credentials(http: httpx.AsyncClient) -> None:
    """Probes of a supervisor have no token."""
    endpoint = guarded()
    app = Starlette(routes=[*endpoint.routes("/mcp"), *Health(endpoint).routes()])
    async with serve(app) as host:
        statuses = [(await http.get(f"{host}{path}")).status_code for path in ("/health", "/ready")]

    assert statuses == [200, 200]


def registry(verify: Tokens) -> RegistryEndpoint:
    servers = Registry([Suite(name=name, version="1", tools=[whoami]) for name in ("art", "music")])
    auth = Bearer("https://mcp.example.com/mcp", issuers=[ISSUER], verify=verify)
    return RegistryEndpoint(servers, auth=auth)


async def test_registry_has_one_metadata_for_all_servers(http: httpx.AsyncClient) -> None:
    """A token for the registry is one for each of its servers, and is verified once."""
    verify = Tokens()
    endpoint = registry(verify)
    async with serve(Starlette(routes=endpoint.routes("/mcp"))) as host:
        refused = [await called(http, f"{host}{path}") for path in ("/mcp", "/mcp/art")]
        found = [
            await http.get(f"{host}{path}")
            for path in (*AT_ROOT, *BELOW, f"{WELL_KNOWN}/mcp/art", f"{WELL_KNOWN}/mcp/music")
        ]
        served = [await called(http, f"{host}/mcp/{name}", "ada") for name in ("art", "music")]

    assert [each.status_code for each in refused] == [401, 401]
    assert {named(each) for each in refused} == {f"{WELL_KNOWN}/mcp"}
    assert [each.status_code for each in found] == [200] * len(found)
    assert [each.status_code for each in served] == [200, 200]
    assert verify.asked == ["ada"]


async def test_registry_below_a_mount_has_metadata_at_the_root(http: httpx.AsyncClient) -> None:
    """Its routes are added to those of the root application."""
    endpoint = registry(Tokens())
    app = Starlette(routes=[*endpoint.metadata_routes(), Mount("/mcp", endpoint)])
    async with serve(app) as host:
        refused = await called(http, f"{host}/mcp/art")
        found = [await http.get(f"{host}{path}") for path in (*AT_ROOT, f"{WELL_KNOWN}/mcp/art")]

    assert named(refused) == f"{WELL_KNOWN}/mcp"
    assert [each.status_code for each in found] == [200] * 4


async def test_registry_hides_its_servers_from_strangers(http: httpx.AsyncClient) -> None:
    """An unknown server is 401 as the others are, also in a preflight; with a token it is 404."""
    async with serve(Starlette(routes=registry(Tokens()).routes("/mcp"))) as host:
        refused = await called(http, f"{host}/mcp/unknown")
        preflights = [await http.options(f"{host}/mcp/{name}") for name in ("art", "unknown")]
        unknown = await called(http, f"{host}/mcp/unknown", "ada")

    assert (refused.status_code, unknown.status_code) == (401, 404)
    assert [each.status_code for each in preflights] == [204, 204]
    assert "unknown" in unknown.json()["error"]["message"]


async def test_path_of_resource_may_be_encoded(http: httpx.AsyncClient) -> None:
    """Clients get, and ask for, the encoded path; an ASGI server decodes it."""
    app = Starlette(routes=guarded(resource="https://mcp.example.com/my%20mcp").routes("/my mcp"))
    async with serve(app) as host:
        refused = await called(http, f"{host}/my%20mcp")
        document = await http.get(f"{host}{named(refused)}")

    assert named(refused) == f"{WELL_KNOWN}/my%20mcp"
    assert document.status_code == 200


async def test_registry_below_a_mount_names_its_own_path(http: httpx.AsyncClient) -> None:
    """The challenges of its servers name the one document that can be reached."""
    async with serve(Starlette(routes=[Mount("/mcp", registry(Tokens()))])) as host:
        refused = [await called(http, f"{host}{path}") for path in ("/mcp/", "/mcp/art")]
        document = await http.get(f"{host}{named(refused[1])}")

    assert {named(each) for each in refused} == {f"/mcp{WELL_KNOWN}"}
    assert document.json()["resource"] == "https://mcp.example.com/mcp"


async def test_served_endpoint_has_metadata(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`genmcp serve parts:endpoint` needs no further option; its probes stay open."""
    (tmp_path / "guarded_parts.py").write_text(
        "from tests.support.tokens import guarded\nendpoint = guarded()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GENMCP_SERVE", '{"target": "guarded_parts:endpoint"}')
    async with serve(create_app()) as host:
        refused = await called(http, f"{host}/mcp")
        documents = [await http.get(f"{host}{path}") for path in (*AT_ROOT, *BELOW)]
        ready = await http.get(f"{host}/ready")
        served = await called(http, f"{host}/mcp", "ada")

    assert (refused.status_code, named(refused)) == (401, f"{WELL_KNOWN}/mcp")
    assert [each.status_code for each in documents] == [200] * 5
    assert (ready.status_code, served.status_code) == (200, 200)


async def test_endpoint_of_composite_server_needs_a_token(http: httpx.AsyncClient) -> None:
    """A composite of servers of this process; those behind it demand no token."""
    server = Registry([Suite(name="art", version="1", tools=[whoami])]).server()
    endpoint = Endpoint(
        server, auth=Bearer("https://mcp.example.com/mcp", [ISSUER], verify=Tokens())
    )
    async with serve(endpoint) as host:
        refused = await called(http, f"{host}/mcp")
        served = await http.post(f"{host}/mcp", **bearing("ada", call("art/whoami")))

    assert refused.status_code == 401
    assert served.json()["result"]["content"][0]["text"] == f"{ISSUER} sub ada"
