"""Which servers a hub is to have, and when it tries again."""

import json
from pathlib import Path
from typing import Any

import pytest

from genmcp import Client, Endpoint, Suite, tool
from genmcp.client.auth import ClientCredentials, FileTokens, OAuth
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError
from genmcp.hub.config import Retry, ServerConfig, load_servers, server_of
from genmcp.hub.hub import Hub
from tests.support.serving import serve


@tool
async def ping() -> str:
    """Answers."""
    return "pong"


def test_retry_delay_doubles_up_to_a_cap() -> None:
    """0.5, 1 and 2 s; at most 30."""
    retry = Retry(3, 0.5)

    assert [retry.delay(attempt, 0.9) for attempt in range(3)] == [0.5, 1.0, 2.0]
    assert retry.delay(7, 0.0) == 30.0
    assert retry.delay(5000, 0.0) == 30.0


def test_retry_jitter_shortens_the_delay() -> None:
    """By at most that part."""
    assert Retry(3, 1.0, jitter=0.5).delay(1, 0.5) == 1.5
    assert Retry(3, 1.0, jitter=1.0).delay(1, 0.0) == 2.0


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"base_delay": -1}, {"cap": -1}, {"jitter": 1.5}, {"jitter": -0.1}],
)
def test_retry_rejects_invalid_values(options: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(**options)


@pytest.mark.parametrize(
    "name", ["", " ", "/a", "a/", 3, "a\nb", "a\x00b", " a", "a ", " /a", "a\u202eb", "a\ud800"]
)
def test_server_config_rejects_invalid_names(name: Any) -> None:
    """The name is the beginning of `server/tool`, of headers and of cursors."""
    with pytest.raises(ConfigurationError, match=r"ServerConfig\.name .* as in 'my-server/tool'"):
        ServerConfig(name, command="x")


def test_name_of_a_server_with_a_line_feed_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The servers after it are usable."""
    names = ["a\nb", "Framelink Figma MCP", "io.example/files"]
    servers = load_servers({"mcpServers": {name: {"command": "x"} for name in names}})

    assert [each.name for each in servers] == names[1:]
    assert "server 'a\\nb': ServerConfig.name" in caplog.text


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("name", ["Framelink Figma MCP", "io.example/files", "Büro №1"])
async def test_names_in_the_files_of_desktop_clients_work(name: str, revision: str) -> None:
    """They are listed, called over HTTP, and continued by a cursor."""
    options = ClientOptions(revision=revision)
    async with Hub() as hub:
        server = hub.server()
        server.page_size = 1
        for each in (name, "other"):
            await hub.add(ServerConfig(each, target=Suite("files", tools=[ping])))
        async with serve(Endpoint(server)) as url, Client(f"{url}/mcp", options=options) as client:
            names = [tool.name for tool in await client.tools()]
            texts = [(await client.call(tool)).data for tool in names]

    assert names == [f"{name}/ping", "other/ping"]
    assert texts == ["pong", "pong"]


@pytest.mark.parametrize("given", [{}, {"command": "x", "url": "http://x"}])
def test_server_config_takes_one_target(given: dict[str, str]) -> None:
    """One of command, url and target."""
    with pytest.raises(ConfigurationError, match="one of command, url and target"):
        ServerConfig("s", **given)  # type: ignore[arg-type]


def test_load_servers_reads_a_desktop_clients_file(tmp_path: Path) -> None:
    """Commands and URLs. Disabled servers are left out, unknown members ignored."""
    document = {
        "theme": "dark",
        "mcpServers": {
            "files": {"command": "npx", "args": ["fs", "/tmp"], "env": {"A": "b"}, "cwd": "/"},
            "remote": {"type": "http", "url": "http://localhost/mcp", "headers": {"x": "y"}},
            "off": {"command": "off", "disabled": True},
        },
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    retry = Retry(2)

    servers = load_servers(path, retry=retry)

    assert servers == [
        ServerConfig(
            "files", command="npx", args=("fs", "/tmp"), env={"A": "b"}, cwd="/", retry=retry
        ),
        ServerConfig("remote", url="http://localhost/mcp", headers={"x": "y"}, retry=retry),
    ]
    assert load_servers(document, retry=retry) == servers


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({}, "'mcpServers' is missing"),
        ({"mcpServers": [1]}, "Expected `object`"),
        ({"mcpServers": {"a": {"command": object()}}}, "object"),
        ({"mcpServers": {"a": {"command": 3}}}, "mcpServers: server 'a': Expected"),
        ({"mcpServers": {"a": {}}}, "'a'"),
    ],
)
def test_load_servers_rejects_other_documents(document: dict[str, Any], fault: str) -> None:
    """The message has the reason."""
    with pytest.raises(ConfigurationError, match=fault):
        load_servers(document)


ODD: Any = {
    "mcpServers": {
        "typed": {"command": 3},
        "io.example/good": {"command": "x"},
        "empty": {},
        "slashed/": {"command": "x"},
        "off": {"command": "x", "disabled": True},
    }
}


def test_load_servers_leaves_out_invalid_servers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each is logged."""
    assert load_servers(ODD) == [ServerConfig("io.example/good", command="x", args=())]

    faults = [record.getMessage() for record in caplog.records]
    assert len(faults) == 3
    assert all(each.endswith("it is left out") for each in faults)
    assert faults[0].startswith("mcpServers: server 'typed': Expected")
    assert "server 'empty': give either a command or a url" in faults[1]
    assert "server 'slashed/'" in faults[2]


def test_server_of_ignores_other_servers(caplog: pytest.LogCaptureFixture) -> None:
    """An error is about the named server only."""
    good = ServerConfig("io.example/good", command="x", args=(), retry=Retry(2))
    assert server_of(ODD, "io.example/good", retry=Retry(2)) == good
    for name, fault in (
        ("typed", "server 'typed': Expected"),
        ("off", "'off' is disabled"),
        ("none", "server 'none' does not exist; it has typed, io.example/good"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            server_of(ODD, name)
    assert not caplog.records


def test_load_servers_accepts_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors write one."""
    path = tmp_path / "config.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8-sig")

    assert load_servers(path) == [ServerConfig("a", command="x", args=())]


def test_load_servers_names_an_invalid_file(tmp_path: Path) -> None:
    """The path is part of the message."""
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        load_servers(str(path))


def test_load_servers_reads_authorization(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token or a login; secrets come from environment variables."""
    monkeypatch.setenv("PARTS_TOKEN", "t0ken")
    monkeypatch.setenv("CRM_SECRET", "s3cret")
    login = {
        "type": "oauth",
        "name": "Hub",
        "clientId": "hub",
        "secret": "${CRM_SECRET}",
        "scopes": ["crm:read"],
        "issuer": "https://login.example",
    }
    service = login | {"type": "client_credentials"}
    del service["name"]
    parts, crm, erp = load_servers(
        {
            "mcpServers": {
                "parts": {"url": "https://parts.example/mcp", "auth": "${PARTS_TOKEN}"},
                "crm": {"url": "https://crm.example/mcp", "auth": login},
                "erp": {"url": "https://erp.example/mcp", "auth": service},
            }
        }
    )

    assert parts.auth == "t0ken"
    assert isinstance(crm.auth, OAuth)
    assert (crm.auth.client_id, crm.auth.secret) == ("hub", "s3cret")
    assert (crm.auth.scopes, crm.auth.issuer) == (["crm:read"], "https://login.example")
    assert isinstance(crm.auth.tokens, FileTokens)
    assert isinstance(erp.auth, ClientCredentials)
    assert (erp.auth.client_id, erp.auth.secret) == ("hub", "s3cret")
    assert "s3cret" not in repr(crm) + repr(erp)
    assert "t0ken" not in repr(parts)


def test_load_servers_fills_in_variables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the desktop clients with such files do, everywhere; a default counts if it is not set."""
    monkeypatch.setenv("PARTS_TOKEN", 't0"ken')
    monkeypatch.delenv("REGION", raising=False)
    parts, files = load_servers(
        {
            "mcpServers": {
                "parts": {
                    "url": "https://${REGION:-eu}.example/mcp",
                    "headers": {"Authorization": "Bearer ${PARTS_TOKEN}"},
                },
                "files": {
                    "command": "${RUNNER:-npx}",
                    "args": ["--token=${env:PARTS_TOKEN}", "$HOME", "${}", "cost: $5"],
                    "env": {"TOKEN": "${PARTS_TOKEN}", "EMPTY": "${REGION:-}"},
                },
            }
        }
    )

    assert parts.url == "https://eu.example/mcp"
    assert parts.headers == {"Authorization": 'Bearer t0"ken'}
    assert (files.command, files.args) == ("npx", ('--token=t0"ken', "$HOME", "${}", "cost: $5"))
    assert files.env == {"TOKEN": 't0"ken', "EMPTY": ""}
    assert not caplog.records


@pytest.mark.parametrize("place", ["url", "headers"])
def test_load_servers_sends_no_name_of_a_variable(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server with a variable that is not set is left out, with the name and the place."""
    entry: dict[str, Any] = {"url": "https://a.example/mcp", "headers": {"X-Secret": "s3cret"}}
    entry[place] = {"X-Key": "${NOT_SET_ANYWHERE}"} if place == "headers" else "${NOT_SET_ANYWHERE}"
    servers = load_servers({"mcpServers": {"a": entry, "b": {"command": "x"}}})

    assert [each.name for each in servers] == ["b"]
    fault = f"server 'a': {place}: the environment variable NOT_SET_ANYWHERE is not set"
    assert fault in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("place", ["args", "env"])
def test_program_may_fill_in_variables_itself(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The text is left as it is, with a warning that has the place and no value."""
    text = "secret of ${NOT_SET_ANYWHERE}"
    given: Any = {"args": [text], "env": {"KEY": text}}[place]
    (server,) = load_servers({"mcpServers": {"a": {"command": "x", place: given}}})

    assert text in ([*server.args] or [*(server.env or {}).values()])
    fault = f"server 'a': {place}: the environment variable NOT_SET_ANYWHERE is not set"
    assert fault in caplog.text
    assert "secret of" not in caplog.text


@pytest.mark.parametrize(
    ("auth", "fault"),
    [
        ("${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE is not set"),
        ("not a token", "an access token must be"),
        ({"type": "basic"}, "Invalid value 'basic'"),
        ({"name": "x"}, "missing required field `type`"),
        ({"type": "oauth", "clientID": "x"}, "unknown field `clientID`"),
        ({"type": "oauth", "secret": "s3cret"}, "needs the client_id"),
        ({"type": "client_credentials", "clientId": "a"}, "either a secret or a key"),
        ({"type": "client_credentials", "clientId": "a", "secret": "s3cret"}, "needs issuer="),
        (7, "Expected `object`"),
    ],
)
def test_load_servers_rejects_invalid_authorization(auth: Any, fault: str) -> None:
    """The error names the server and the cause, and no secret."""
    entry = {"url": "https://parts.example/mcp", "auth": auth}
    with pytest.raises(ConfigurationError, match=fault) as caught:
        load_servers({"mcpServers": {"parts": entry}})
    assert "'parts'" in str(caught.value)
    assert "s3cret" not in str(caught.value)
