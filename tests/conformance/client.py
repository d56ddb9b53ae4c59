"""The client under test in the official suite: `python -m tests.conformance.client URL`.

The suite names the scenario in `MCP_CONFORMANCE_SCENARIO`, the revision in
`MCP_CONFORMANCE_PROTOCOL_VERSION`, and parameters as JSON in `MCP_CONFORMANCE_CONTEXT`.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from genmcp.client.auth import Authorizer, ClientCredentials, OAuth
from genmcp.client.auth.dpop import DpopAuth
from genmcp.client.auth.identities import Enterprise, Workload
from genmcp.client.client import Client
from genmcp.client.errors import AuthorizationFailed, Forbidden
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.extensions import SkillRejected
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.question.question import Accepted

Scenario = Callable[[Client], Awaitable[object]]


class Fixture(ClientHandler):
    """Accepts every form, and prints that it did."""

    capabilities = ClientCapabilities(
        roots={}, sampling=SamplingCapability(), elicitation=ElicitationCapability(form={})
    )

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Confirm if a confirmation is required; otherwise use the defaults."""
        confirmable = "confirmed" in schema.get("properties", {})
        return Accepted({"confirmed": True} if confirmable else {})


async def list_tools(client: Client) -> None:
    """List the tools."""
    await client.tools()


async def add_numbers(client: Client) -> None:
    """Call a tool with arguments."""
    await client.tools()
    await client.call("add_numbers", {"a": 5, "b": 3})


async def accept_defaults(client: Client) -> None:
    """Answer a form with its default values."""
    await client.tools()
    await client.call("test_client_elicitation_defaults", {})


async def reconnect(client: Client) -> None:
    """Call a tool, and resume its interrupted stream."""
    await client.tools()
    await client.call("test_reconnection", {})


async def use_everything(client: Client) -> None:
    """Send a request of every kind."""
    for tool in await client.tools():
        await client.call(tool.name, {})
    for resource in await client.resources():
        await client.read(resource.uri)
    for prompt in await client.prompts():
        await client.prompt(prompt.name, {})


async def call_from_context(client: Client) -> None:
    """Make exactly the calls in the context."""
    await client.tools()
    for call in context()["toolCalls"]:
        await client.call(call["name"], call["arguments"])


async def call_listed_tools(client: Client) -> None:
    """Call every tool that the client does not hide."""
    for tool in await client.tools():
        await client.call(tool.name, example_of(tool.input_schema))


async def echo_schema(client: Client) -> None:
    """Send the schema of a tool back unchanged."""
    (schema,) = (
        tool.input_schema
        for tool in await client.tools()
        if tool.name == "json_schema_2020_12_tool"
    )
    await client.call("json_schema_echo", {"schema": schema})


async def answer_questions(client: Client) -> None:
    """Call tools that ask, with and without a state, and others, concurrently."""
    await client.tools()
    async with asyncio.TaskGroup() as calls:
        for name in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state"):
            calls.create_task(client.call(name, {}))
    await client.call("test_mrtr_no_result_type", {})


async def list_and_call(client: Client) -> None:
    """List the tools, and call the one that requires more scopes, if there is one."""
    await client.tools()
    await client.call("test-tool", {})


async def list_skills(client: Client) -> None:
    """List the skills, and read none of them."""
    await client.skills()


async def load_skills(client: Client) -> None:
    """Load each skill and read its files, until one is rejected."""
    for skill in await client.skills():
        try:
            await skill.load()
            for path in skill.files or ():
                await skill.read(path)
        except SkillRejected as error:
            sys.stdout.write(f"{error}\n")


# In these scenarios the client must reject the server or the authorization server.
REFUSED = (
    "auth/scope-retry-limit",
    "auth/resource-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
)


async def browse(url: str) -> str:
    """Follow the authorization URL, which the suite approves at once; return the redirect."""
    async with httpx.AsyncClient(trust_env=False) as browser:
        response = await browser.get(url)
    return response.headers["location"]


async def issuer_of(url: str) -> str:
    """Return the suite's authorization server, which a user would have configured."""
    parts = urlsplit(url)
    metadata = f"/.well-known/oauth-protected-resource{parts.path}"
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(parts._replace(path=metadata).geturl())
    return str(response.json()["authorization_servers"][0])


async def login(name: str, url: str) -> Authorizer:
    """Return the authorization for a scenario."""
    given = context()
    client_id, secret = given.get("client_id"), given.get("client_secret")
    match name:
        case "auth/client-credentials-jwt":
            key = given["private_key_pem"]
            return ClientCredentials(given["client_id"], key=key, issuer=await issuer_of(url))
        case "auth/client-credentials-basic":
            return ClientCredentials(given["client_id"], secret=secret, issuer=await issuer_of(url))
        case "auth/wif-jwt-bearer":
            issuer = await issuer_of(url)
            return Workload(lambda: given["valid_jwt"], issuer, client_id=client_id)
        case "auth/enterprise-managed-authorization":
            return Enterprise(
                await issuer_of(url),
                given["idp_issuer"],
                lambda: given["idp_id_token"],
                client_id=given["client_id"],
                secret=secret,
                idp_client_id=given["idp_client_id"],
                idp_token_endpoint=given["idp_token_endpoint"],
            )
        case "auth/dpop" | "auth/dpop-nonce":
            return DpopAuth(OAuth("genmcp conformance", ask=browse))
    if name == "auth/basic-cimd":
        client_id = "https://conformance-test.local/client-metadata.json"
    return OAuth(
        "genmcp conformance",
        client_id=client_id,
        secret=secret,
        issuer=None if client_id is None else await issuer_of(url),
        ask=browse,
    )


SCENARIOS: Mapping[str, Scenario] = {
    "initialize": list_tools,
    "tools_call": add_numbers,
    "elicitation-sep1034-client-defaults": accept_defaults,
    "sse-retry": reconnect,
    "request-metadata": list_tools,
    "http-standard-headers": use_everything,
    "http-custom-headers": call_from_context,
    "http-invalid-tool-headers": call_listed_tools,
    "json-schema-ref-no-deref": list_tools,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2322-client-request-state": answer_questions,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": load_skills,
    "sep-2640-client-verify-size": load_skills,
    "sep-2640-client-verify-frontmatter": load_skills,
}


def context() -> dict[str, Any]:
    """Return the additional parameters of the suite."""
    given: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    return given


def example_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that match the *schema* of a tool."""
    examples = {"string": "value", "integer": 1, "number": 1, "boolean": True}
    properties: Mapping[str, Any] = schema.get("properties", {})
    return {name: examples.get(each.get("type"), "value") for name, each in properties.items()}


async def run(url: str, name: str, scenario: Scenario, revision: str | None) -> None:
    """Run a scenario."""
    options = ClientOptions(revision=revision)
    auth = await login(name, url) if name.startswith("auth/") else None
    try:
        async with Client(url, timeout=20, handler=Fixture(), options=options, auth=auth) as client:
            await scenario(client)
    except (AuthorizationFailed, Forbidden) as error:
        if name not in REFUSED:
            raise
        sys.stdout.write(f"{error}\n")


def main() -> None:
    """Run the scenario the environment names."""
    name = os.environ.get("MCP_CONFORMANCE_SCENARIO", "initialize")
    scenario = list_and_call if name.startswith("auth/") else SCENARIOS.get(name)
    if scenario is None:
        sys.exit(f"there is no scenario {name!r} here: {', '.join(SCENARIOS)}")
    revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION")
    asyncio.run(run(sys.argv[-1], name, scenario, revision))


if __name__ == "__main__":
    main()
