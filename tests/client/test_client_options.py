"""Options of a client, and its description of itself."""

import inspect
import re
from typing import Any, cast

import httpx
import pytest

import genmcp
from genmcp import ClientHandler, Suite
from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import ChangeStream
from genmcp.client.sync import SyncChangeStream, SyncClient, SyncTask
from genmcp.client.tasks import TaskHandle
from genmcp.errors import ConfigurationError


def test_options_say_which_version_the_client_is() -> None:
    """A server that logs its clients sees the version that is installed."""
    assert ("genmcp", genmcp.__version__) == (
        ClientOptions().info.name,
        ClientOptions().info.version,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("idle_timeout", -1),
        ("open_timeout", "3"),
        ("cache_size", -1),
        ("revision", "2020-01-01"),
        ("stderr", "out"),
        ("http_client", httpx.Client),
    ],
)
def test_options_that_mean_nothing_are_refused(option: str, value: object) -> None:
    """A wrong option is rejected at construction, by name."""
    with pytest.raises(ConfigurationError, match=f"ClientOptions.{option}"):
        ClientOptions(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"timeout": "3"}, "timeout must be a positive number of seconds, not '3'"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        ({"header": {}}, "Client has no argument 'header'; write headers=..."),
        ({"timout": 3}, "Client has no argument 'timout'; write timeout=..."),
        ({"headers": [("a", "b")]}, 'headers must be a mapping, such as {"x-tenant": "acme"}'),
        ({"headers": {"a": "b\r\nc: d"}}, "headers: 'a' has a name or value that HTTP does not"),
        ({"headers": {"a": 1}}, "headers: 'a' has a name or value that HTTP does not"),
        ({"idle_timeout": 3}, "write options=ClientOptions(idle_timeout=...)"),
        ({"retries": 3}, "it has headers, timeout, auth, handler, extensions, options"),
        ({"handler": ClientHandler}, "handler must be an instance of a ClientHandler"),
        ({"options": {"revision": None}}, "options must be a ClientOptions(...)"),
        ({"auth": 7}, "auth must be an access token"),
    ],
)
@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_wrong_argument_is_named(kind: Any, arguments: dict[str, Any], advice: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match=re.escape(advice)):
        kind("http://localhost:8000/mcp", **arguments)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("call_tool", "Client has no 'call_tool'; it has call"),
        ("list_tools", "Client has no 'list_tools'; it has tools"),
        ("close", "Client has no 'close'; it has aclose"),
        ("read_resource", "Client has no 'read_resource'; it has read"),
        ("get_prompt", "Client has no 'get_prompt'; it has prompt"),
        ("list_resource_templates", "Client has no 'list_resource_templates'; it has templates"),
        ("connect", "Client has no 'connect'; it has open"),
        ("toools", "Client has no 'toools'; it has tools"),
        ("xyz", "'Client' object has no attribute 'xyz'"),
    ],
)
def test_wrong_method_is_named(name: str, advice: str) -> None:
    """The names of other clients, and misspelt ones."""
    client: Any = Client(Suite(name="s", version="1"))

    with pytest.raises(AttributeError, match=re.escape(advice)):
        getattr(client, name)


async def test_client_says_how_it_is_entered() -> None:
    """An `await`, a plain `with`, and a call without either are likely first tries."""
    client: Any = Client(Suite(name="s", version="1"))

    with pytest.raises(TypeError, match="async with Client"):
        await client
    with pytest.raises(TypeError, match=r"async with Client.*SyncClient"), client:
        pass
    with pytest.raises(ClientClosed, match="use `async with`"):
        await client.tools()
    with pytest.raises(TypeError, match="with SyncClient"):
        async with cast(Any, SyncClient(Suite(name="s", version="1"))):
            pass


def test_sync_client_has_the_methods_of_the_client() -> None:
    """Under the same names, with the same parameters; its `aclose` blocks, and is `close`."""
    assert parameters(SyncClient) == parameters(Client)
    assert public(SyncClient) - public(Client) == {"close"}
    pairs = [(Client, SyncClient), (TaskHandle, SyncTask), (ChangeStream, SyncChangeStream)]
    for plain, sync in pairs:
        for name in public(plain) - {"aclose"}:
            expected, found = getattr(plain, name), getattr(sync, name)
            if callable(expected):
                assert parameters(found) == parameters(expected), name


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - {"wait_until"}


def parameters(method: Any) -> list[Any]:
    return [*inspect.signature(method).parameters.values()]


def test_client_has_few_names() -> None:
    """What completion shows can be read at a glance."""
    assert len(public(Client)) <= 28
