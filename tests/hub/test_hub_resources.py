"""Which server of a hub reads a resource that none of them lists."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Channel, McpError, Suite
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.errors import ResourceNotFound
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.resources import ResourceRepo

TIME = 10.0


class Vault(ResourceRepo):
    """Resources that are not listed, and have no template."""

    name = "vault"
    prefix = "vault://"

    async def read(self, key: str, channel: Channel) -> str:
        """Return it."""
        return f"secret {key}"


class Greedy(ResourceRepo):
    """Records every requested URI."""

    name = "greedy"

    def __init__(self, template: str) -> None:
        self.template = template
        self.prefix = template.partition("{")[0]
        self.learned: list[str] = []

    async def read(self, key: Any, channel: Channel) -> str:
        """Raise a ToolError."""
        self.learned.append(str(key))
        return "forged"


class Refusing(ResourceRepo):
    """Has no resources, and rejects requests with a code of its own."""

    name = "refusing"
    prefix = ""

    async def read(self, key: str, channel: Channel) -> str:
        """Refuse."""
        raise McpError("Unknown resource", code=-5)


class ResourceRepoAt(ResourceRepo):
    """Resources below a prefix."""

    name = "below"

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    async def read(self, key: str, channel: Channel) -> str:
        """Return the prefix."""
        return f"at {self.prefix}"


def suite(*resources: Any) -> Suite:
    """Return a server of *resources*."""
    return Suite(name="s", version="1", resources=resources)


@asynccontextmanager
async def client_of(*suites: Suite) -> AsyncIterator[Client]:
    """Return a client of a hub of *suites*, added in their order."""
    async with asyncio.timeout(TIME), Hub() as hub:
        server = hub.server()
        for index, each in enumerate(suites):
            await hub.add(ServerConfig(f"s{index}", target=each))
        async with Client(server) as client:
            yield client


async def read(client: Client, uri: str) -> str:
    """Return the contents of a resource."""
    (held,) = (await client.read(uri)).contents
    return held.text or ""


@pytest.mark.parametrize("template", ["{+path}", "vault://{+path}"])
async def test_later_member_cannot_take_over_a_resource(template: str) -> None:
    """It does not receive the URI, although its template matches."""
    greedy = Greedy(template)
    async with client_of(suite(Vault), suite(greedy)) as client:
        assert await read(client, "vault://payroll") == "secret vault://payroll"
    assert greedy.learned == []


class Empty(Greedy):
    """Has no resources."""

    async def read(self, key: Any, channel: Channel) -> str:
        """Raise the error."""
        raise ResourceNotFound(str(key))


async def test_template_without_a_scheme_is_ignored() -> None:
    """It would match every URI, and later members would receive none."""
    async with client_of(suite(Empty("{+path}")), suite(Vault)) as client:
        assert await read(client, "vault://x") == "secret vault://x"


async def test_template_ends_the_search() -> None:
    """Members after the last one with a matching template receive nothing."""
    last = suite(ResourceRepoAt(""))
    async with client_of(suite(Vault), suite(Empty("web://{+path}")), last) as client:
        with pytest.raises(ServerError, match="Resource not found"):
            await client.read("web://page")
        assert await read(client, "elsewhere://page") == "at "


async def test_error_without_a_template_continues_the_search() -> None:
    """Servers have codes of their own for an unknown resource."""
    async with client_of(suite(Refusing), suite(Greedy("web://{+path}"))) as client:
        assert await read(client, "web://page") == "forged"
        with pytest.raises(ServerError, match="Unknown resource"):
            await client.read("nothing://x")


async def test_error_of_the_owner_is_the_response() -> None:
    """Its template matches."""

    class Broken(Greedy):
        async def read(self, key: Any, channel: Channel) -> str:
            raise McpError("out of paper", code=-5)

    async with client_of(suite(Broken("web://{+path}")), suite(Vault)) as client:
        with pytest.raises(ServerError, match="out of paper"):
            await client.read("web://page")


async def test_hub_reads_from_the_first_server_that_has_it() -> None:
    """As its clients do; another server is read from by its name."""
    async with asyncio.timeout(TIME), Hub() as hub:
        with pytest.raises(ResourceNotFound, match="web://page"):
            await hub.read("web://page")
        for index, each in enumerate([suite(Vault), suite(Greedy("web://{+path}"))]):
            await hub.add(ServerConfig(f"s{index}", target=each))

        (vault,) = (await hub.read("vault://payroll")).contents
        (page,) = (await hub.read("web://page")).contents
        (named,) = (await hub.read("web://other", server="s1")).contents
        with pytest.raises(ServerError):
            await hub.read("web://page", server="s0")

    assert (vault.text, page.text, named.text) == ("secret vault://payroll", "forged", "forged")
