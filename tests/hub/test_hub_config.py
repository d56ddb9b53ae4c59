"""Which servers a hub is to have, and when it tries again."""

import json
from pathlib import Path
from typing import Any

import pytest

from genmcp.errors import ConfigurationError
from genmcp.hub.config import Retry, ServerConfig, load_servers, server_of


def test_retry_waits_twice_as_long_each_time_up_to_a_cap() -> None:
    """0.5, 1 and 2 s; never more than 30."""
    retry = Retry(3, 0.5)

    assert [retry.delay(attempt, 0.9) for attempt in range(3)] == [0.5, 1.0, 2.0]
    assert retry.delay(7, 0.0) == 30.0
    assert retry.delay(5000, 0.0) == 30.0


def test_retry_leaves_a_part_to_chance_if_asked_to() -> None:
    """With jitter a wait is shorter by up to that part."""
    assert Retry(3, 1.0, jitter=0.5).delay(1, 0.5) == 1.5
    assert Retry(3, 1.0, jitter=1.0).delay(1, 0.0) == 2.0


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"base_delay": -1}, {"cap": -1}, {"jitter": 1.5}, {"jitter": -0.1}],
)
def test_retry_refuses_what_means_nothing(options: dict[str, Any]) -> None:
    """A wrong option is told when it is given."""
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(**options)


@pytest.mark.parametrize("name", ["", " ", "/a", "a/", 3])
def test_server_config_refuses_a_name_that_tools_could_not_have(name: Any) -> None:
    """A tool is `server/tool`."""
    with pytest.raises(ConfigurationError, match=r"ServerConfig\.name"):
        ServerConfig(name, command="x")


@pytest.mark.parametrize("given", [{}, {"command": "x", "url": "http://x"}])
def test_server_config_is_of_one_server(given: dict[str, str]) -> None:
    """There is one way to it."""
    with pytest.raises(ConfigurationError, match="one of command, url and target"):
        ServerConfig("s", **given)  # type: ignore[arg-type]


def test_servers_are_read_from_a_desktop_clients_file(tmp_path: Path) -> None:
    """Commands and URLs; what is disabled is left out, what is unknown left alone."""
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
def test_servers_that_cannot_be_read_are_told_of(document: dict[str, Any], fault: str) -> None:
    """The message says what is wrong."""
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


def test_servers_that_are_described_wrongly_leave_the_others_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log tells of each of them."""
    assert load_servers(ODD) == [ServerConfig("io.example/good", command="x", args=())]

    faults = [record.getMessage() for record in caplog.records]
    assert len(faults) == 3
    assert all(each.endswith("it is left out") for each in faults)
    assert faults[0].startswith("mcpServers: server 'typed': Expected")
    assert "server 'empty': give either a command or a url" in faults[1]
    assert "server 'slashed/'" in faults[2]


def test_server_is_read_alone_whatever_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with it is told, and with no other."""
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


def test_servers_are_read_from_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As editors of one desktop write it."""
    path = tmp_path / "config.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8-sig")

    assert load_servers(path) == [ServerConfig("a", command="x", args=())]


def test_servers_of_a_file_that_is_no_json_name_the_file(tmp_path: Path) -> None:
    """Which file it was is part of the message."""
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        load_servers(str(path))
