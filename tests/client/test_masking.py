"""Errors, warnings and `repr` of clients and hubs show no secrets."""

import logging
import sys
from typing import Any

import httpx
import pytest

from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ClientError, ConnectError
from genmcp.client.options import Command, mask_url
from genmcp.client.sync import SyncClient
from genmcp.errors import ConfigurationError
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example:8/mcp", "https://a.example:8/mcp"),
        ("https://a.example/mcp?key=hunter2", "https://a.example/mcp?***"),
        ("https://ada:hunter2@a.example/mcp", "https://***@a.example/mcp"),
        ("https://a.example/mcp#hunter2", "https://a.example/mcp"),
        ("ada:hunter2@a.example/mcp", "ada:***@a.example/mcp"),
        ("https://[hunter2", "***"),
    ],
)
def test_url_is_shown_without_secrets(url: str, shown: str) -> None:
    """Without its query, fragment and user information."""
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    "target",
    [
        f"http://127.0.0.1:1/mcp?token={SECRET}",
        Command("/nowhere/server", ["--token", SECRET]),
        Command(sys.executable, ["-c", f"'{SECRET}'"]),
    ],
)
async def test_error_of_a_client_shows_no_secret(target: str | Command) -> None:
    """Neither the query of a URL nor the arguments of a command."""
    with pytest.raises(ClientError) as error:
        await Client(target).open()
    assert SECRET not in str(error.value)
    assert SECRET not in error.value.server_name


@pytest.mark.parametrize(
    "target", [f"ada:{SECRET}@a.example", f"ftp://a.example/?key={SECRET}", f"https://?{SECRET}"]
)
async def test_error_of_a_wrong_url_shows_no_secret(target: str) -> None:
    """It quotes the rest."""
    with pytest.raises(ConfigurationError, match="is not a URL") as error:
        await Client(target).open()
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (f"http://127.0.0.1:1/mcp?token={SECRET}", "http://127.0.0.1:1/mcp?***"),
        (Command("server", ["--token", SECRET]), "server ***"),
    ],
)
def test_error_of_a_closed_sync_client_shows_no_secret(target: str | Command, name: str) -> None:
    """As that of a client."""
    with pytest.raises(ClientClosed) as error:
        SyncClient(target).call("add")
    assert error.value.server_name == name
    assert SECRET not in str(error.value)


async def test_error_of_a_wrong_target_shows_no_secret() -> None:
    """Such as a URL object of a library, whose repr has the query."""
    target: Any = httpx.URL(f"https://a.example/mcp?token={SECRET}")
    with pytest.raises(ConfigurationError, match="or a Transport, not a URL") as error:
        await Client(target).open()
    assert SECRET not in str(error.value)
    assert SECRET not in repr(Client(target))


async def test_warnings_of_a_hub_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Of a server that cannot be reached, and of one that ends."""
    caplog.set_level(logging.DEBUG)

    async def sleep(delay: float) -> None:
        """Wait for nothing."""

    async with Hub(sleep=sleep) as hub:
        for config in (
            ServerConfig("a", url=f"http://127.0.0.1:1/?key={SECRET}", retry=Retry(1)),
            ServerConfig("b", command=sys.executable, args=["-c", "exit(3)", SECRET]),
        ):
            with pytest.raises(ConnectError) as error:
                await hub.add(config)
            assert SECRET not in str(error.value)
    for record in caplog.records:
        if record.name.startswith("genmcp"):
            assert SECRET not in record.getMessage()


def test_repr_shows_no_secret() -> None:
    """Of objects with headers, variables, arguments and URLs."""
    header, value = {"Authorization": f"Bearer {SECRET}"}, {"KEY": SECRET}
    shown = [
        ServerConfig("a", url=f"https://a.example/?key={SECRET}", headers=header),
        ServerConfig("b", command="b", args=["--key", SECRET], env=value),
        Command("c", ["--key", SECRET], env=value),
        Client("https://a.example/mcp", headers=header),
    ]

    assert SECRET not in repr(shown)
    assert repr(shown[0]) == (
        "ServerConfig(name='a', url='https://a.example/?***', headers={'Authorization': '***'})"
    )
    assert repr(shown[1]) == (
        "ServerConfig(name='b', command='b', args=('***', '***'), env={'KEY': '***'})"
    )
    assert repr(shown[2]) == "Command(command='c', args=('***', '***'), env={'KEY': '***'})"
