"""The options of Bearer, and the modules that an endpoint without it does not import."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import genmcp
from genmcp import (
    Access,
    Channel,
    Client,
    ConfigurationError,
    Endpoint,
    Suite,
    Unauthorized,
    tool,
)
from genmcp.auth import Bearer, Introspection, InvalidToken, Jwt
from genmcp.auth.authenticator import Authenticator
from tests.support.asgi import Client as AsgiClient
from tests.support.tokens import ISSUER, RESOURCE, Tokens, guarded


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"resource": "mcp.example.com"}, "resource"),
        ({"resource": "http://mcp.example.com/mcp"}, "resource"),
        ({"resource": "https://mcp.example.com/mcp#part"}, "resource"),
        ({"resource": "https://mcp.example.com/mcp?tenant=1"}, "resource"),
        ({"resource": "https://user@mcp.example.com/mcp"}, "resource"),
        ({"issuers": ISSUER}, "issuers"),
        ({"issuers": [], "verify": None}, "issuers"),
        ({"issuers": [], "verify": Jwt()}, "issuers"),
        ({"issuers": [], "verify": Introspection("https://a.example/i", "a", "b")}, "issuers"),
        ({"issuers": ["login.example.com"]}, "issuers"),
        ({"issuers": [ISSUER, "http://login.example.com"]}, "issuers"),
        ({"issuers": [f"{ISSUER}?tenant=1"]}, "issuers"),
        ({"scopes": "read write"}, "scopes"),
        ({"scopes": ["read write"]}, "scopes"),
        ({"scopes": ['"read"']}, "scopes"),
        ({"scopes": [""]}, "scopes"),
        ({"scopes": [7]}, "scopes"),
        ({"scopes": ["offline_access"]}, "scopes"),
        ({"implies": {"admin": "write"}}, "implies"),
        ({"implies": {"ad min": ["write"]}}, "implies"),
        ({"verify": Tokens}, "verify"),
        ({"verify": "secret"}, "verify"),
        ({"principal": "ada"}, "principal"),
        ({"about": {"resource": "https://other.example.com"}}, "about"),
        ({"about": {"resource_name": object()}}, "about"),
        ({"about": {"scopes_supported": "read"}}, "about"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    """When it is made, not with the first request."""
    given = {"resource": RESOURCE, "issuers": [ISSUER], "verify": Tokens(), **options}

    with pytest.raises(ConfigurationError, match=rf"^{named}"):
        Bearer(**given)


class Keys:
    """Verifies a key that was issued by hand."""

    async def verify(self, token: str) -> Access:
        if token != "the-key":
            raise InvalidToken("the key is unknown")
        return Access(client_id="reports")


async def test_static_keys_need_no_authorization_server() -> None:
    """The metadata names none, so that no client begins a login that cannot end."""

    @tool
    def whoami(channel: Channel) -> str:
        return str(channel.access and channel.access.client_id)

    bearer = Bearer(RESOURCE, verify=Keys())
    endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
    assert "authorization_servers" not in msgspec.json.decode(bearer.metadata)
    async with Client(endpoint, auth="the-key") as client:
        assert (await client.call("whoami")).text == "reports"
    with pytest.raises(Unauthorized):
        await Client(endpoint, auth="another").open()
    await endpoint.aclose()


def test_bearer_is_frozen() -> None:
    """A change of the caller's list has no effect after the check."""
    issuers = [ISSUER]
    bearer = Bearer(RESOURCE, issuers, verify=Tokens())
    authenticator = Authenticator(bearer)
    issuers.append("https://evil.example.com")

    assert authenticator.bearer.issuers == (ISSUER,)
    with pytest.raises(AttributeError):
        bearer.resource = "https://other.example.com"  # type: ignore[misc]
    assert msgspec.structs.replace(bearer, optional=True).optional


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"auth": Bearer(RESOURCE, [ISSUER], verify=Tokens()), "principal": str}, "principal"),
        ({"auth": "token"}, "auth"),
        ({"auth": Bearer}, "auth"),
    ],
)
def test_wrong_options_of_endpoint_are_named(options: dict[str, Any], named: str) -> None:
    """One option and one place for the identity of clients."""
    with pytest.raises(ConfigurationError, match=named):
        Endpoint(Suite(name="test", version="1"), **options)


SERVE = """
import asyncio, sys
from genmcp import Client, Endpoint, Suite, tool

@tool
def greet() -> str:
    "Greets."
    return "Hello."

async def main():
    async with Client(Endpoint(Suite(name="test", version="1", tools=[greet]))) as client:
        await client.call("greet")

asyncio.run(main())
"""


def imported(code: str, *prefixes: str) -> str:
    """Return the modules with a name that begins with a prefix, of those that a program imports."""
    code += f"\nprint([each for each in sys.modules if each.startswith({prefixes!r})])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    return done.stdout.strip()


def test_endpoint_without_auth_imports_no_oauth() -> None:
    """A server pays for the parts that it uses."""
    assert imported(SERVE, "genmcp.auth", "joserfc") == "[]"


OAUTH = "OAuth('Parts agent').authorization('https://a.example/mcp')"
SERVICE = "ClientCredentials('a', secret='s', issuer='https://b').authorization('https://a/m')"


@pytest.mark.parametrize(
    "code",
    [
        "from genmcp.auth import Bearer; Bearer('https://a/m', ['https://b'])",
        f"from genmcp import Client; from genmcp.client.auth import OAuth; {OAUTH}",
        f"from genmcp import Client; from genmcp.client.auth import ClientCredentials; {SERVICE}",
    ],
)
def test_extensions_are_not_imported_by_the_rest(code: str) -> None:
    """DPoP, workloads and single sign-on are for few."""
    for module in ("auth.extensions", "client.auth.dpop", "client.auth.identities"):
        assert imported(f"import sys; {code}", f"genmcp.{module}") == "[]"


def test_no_other_module_imports_the_extensions() -> None:
    """Few need them: a program that does imports them itself."""
    package = Path(genmcp.__file__).parent
    importing = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "import" in path.read_text("utf-8")
        and "from genmcp.auth.extensions" in path.read_text("utf-8")
        and "auth/extensions" not in path.as_posix()
    ]

    assert importing == ["client/auth/dpop.py"]


@pytest.mark.parametrize(
    ("host", "status"), [("mcp.example.com", 200), ("evil.example.com", 421), ("localhost", 200)]
)
async def test_host_of_the_resource_may_be_asked_for(host: str, status: int) -> None:
    """Behind a proxy on the same machine, whose requests have the public name."""
    client = AsgiClient(guarded(), client=("127.0.0.1", 5000))
    headers = {"host": host, "authorization": "Bearer ada"}

    response = await client.send(client.request("tools/list"), headers=headers)

    assert response.status == status
