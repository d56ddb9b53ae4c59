"""The targets of a client and their transports."""

import ssl
from typing import Any

import httpx
import pytest

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.http import HttpTransport
from genmcp.client.transports.http_pool import HttpPool
from genmcp.client.transports.httpx_adapter import HttpxAdapter
from genmcp.client.transports.memory import MemoryTransport
from genmcp.client.transports.stdio import StdioTransport
from genmcp.client.transports.targets import transport_to
from genmcp.errors import ConfigurationError
from genmcp.suite.suite import Suite
from tests.client.scripted import ANSWER, Asked, served
from tests.client.sinks import Recorder, request


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("target", "kind", "where"),
    [
        ("http://127.0.0.1:1/mcp#part", HttpTransport, "http://127.0.0.1:1/mcp"),
        ("https://[::1]/mcp?a=b", HttpTransport, "https://[::1]/mcp?***"),
        (Command("npx", ["-y", "server"]), StdioTransport, "npx ***"),
        (Suite(name="s", version="1"), MemoryTransport, "s"),
        (Mux(Suite(name="s", version="1")), MemoryTransport, "s"),
        (Endpoint(Suite(name="s", version="1")), MemoryTransport, "s"),
    ],
)
def test_each_target_has_its_transport(target: Any, kind: type, where: str) -> None:
    transport = transport_to(target)

    assert type(transport) is kind
    assert where in transport.server_name
    assert transport is transport_to(transport)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("python server.py", "Command"),
        ("ftp://127.0.0.1/mcp", "not a URL"),
        ("http:///mcp", "not a URL"),
        ("http://127.0.0.1:99999/", "not a URL"),
        (f"http://{'a' * 64}.example/", "not a URL"),
        ("http://me:secret@127.0.0.1/", "authorization"),
        (42, "not a int"),
    ],
)
def test_invalid_target_is_rejected(target: Any, why: str) -> None:
    """The error names the valid ones and contains no password."""
    with pytest.raises(ConfigurationError, match=why) as error:
        transport_to(target)

    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("environment", "options", "kind"),
    [
        ({}, {}, HttpPool),
        ({}, {"http_client": httpx.AsyncClient()}, HttpxAdapter),
        ({"https_proxy": "http://proxy.example:3128"}, {}, HttpxAdapter),
        ({"all_proxy": "http://proxy.example:3128"}, {}, HttpxAdapter),
        ({"http_proxy": "http://proxy.example:3128"}, {}, HttpPool),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "example.com"}, {}, HttpPool),
    ],
)
def test_httpx_is_used_only_for_proxies_and_its_clients(
    environment: dict[str, str],
    options: dict[str, Any],
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    transport = transport_to("https://example.com/mcp", options=ClientOptions(**options))

    assert isinstance(transport, HttpTransport)
    assert type(transport.requester) is kind


def test_proxied_requests_trust_the_given_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    made: list[dict[str, Any]] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: made.append(options))

    transport_to("https://example.com/mcp", options=ClientOptions(tls=tls))

    assert [each["verify"] for each in made] == [tls]


async def test_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    async def proxy(asked: Asked) -> None:
        seen.append(asked.headers["host"])
        await asked.reply(200, ANSWER)

    async with served(proxy) as url:
        monkeypatch.setenv("http_proxy", url.removesuffix("/mcp"))
        transport, recorder = transport_to("http://server.example/mcp"), Recorder()
        await transport.open(recorder)
        await transport.send(request(1))
        await transport.close()

    assert seen == ["server.example"]
    assert recorder.decoded == [ANSWER]


async def test_server_without_tls_is_a_connect_error() -> None:

    async def script(asked: Asked) -> None:
        await asked.reply(200, ANSWER)

    async with served(script) as url:
        options = ClientOptions(tls=ssl.create_default_context())
        transport = transport_to(url.replace("http:", "https:"), options=options)
        recorder = Recorder()
        await transport.open(recorder)
        await transport.send(request(1))
        await transport.close()

    assert "cannot reach https://127.0.0.1" in str(recorder.failure)
