"""Servers made of real OpenAPI documents: linted, and called by the clients of others."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import fastmcp
import httpx
import mcp
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import genmcp
from genmcp import Endpoint, Suite
from genmcp.cli.lint import check_tools
from genmcp.openapi import OperationTool, OperationTools, openapi_tools
from genmcp.protocol.tools import ToolDefinition
from genmcp.tools import ToolRoute
from tests.support.openapi_documents import figma, github
from tests.support.serving import serve

# The first run installs the packages.
pytestmark = [pytest.mark.peers, pytest.mark.e2e, pytest.mark.timeout(300)]
METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}


class Part(BaseModel):
    number: str
    count: int = 1


def shop() -> dict[str, Any]:
    """Return the document of a FastAPI app."""
    app = FastAPI()

    @app.get("/parts/{number}")
    async def get_part(number: str, verbose: bool = False) -> Part:
        return Part(number=number)

    @app.post("/parts")
    async def add_part(part: Part) -> list[Part]:
        return [part]

    return app.openapi()


DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "github": github,
    "figma": figma,
    "shop": shop,
}


def tools_of(name: str, client: httpx.AsyncClient | None = None, **options: Any) -> OperationTools:
    client = client or httpx.AsyncClient(base_url="https://api.example")
    return openapi_tools(DOCUMENTS[name](), client=client, **options)


def definitions_of(tools: OperationTools) -> list[ToolDefinition]:
    return [ToolRoute.of(tool).definition for tool in tools]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_operation_is_a_tool_or_has_a_reason(name: str) -> None:
    """Of all 1,223 operations of GitHub, two have bodies that are neither JSON nor a form."""
    paths = DOCUMENTS[name]()["paths"].values()
    operations = sum(len(METHODS & {*each}) for each in paths)

    tools = tools_of(name)

    assert len(tools) + len(tools.skipped) == operations
    skipped = {"markdown/render-raw", "repos/upload-release-asset"} if name == "github" else set()
    assert {*tools.skipped} == skipped


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tools_of_real_documents_pass_the_lint(name: str) -> None:
    """Except that a server with all operations of GitHub has too many for some clients."""
    found = [*check_tools(definitions_of(tools_of(name)), revision="2025-11-25")]

    assert [each.rule.id for each in found] == (["too-many-tools"] if name == "github" else [])


def test_selected_tools_of_a_large_document_pass_the_lint() -> None:
    """`only` makes a server of a size that all clients accept."""
    tools = tools_of("github", only=["issues/*", "pulls/*"])

    assert not [*check_tools(definitions_of(tools), revision="2025-11-25")]
    assert len(tools) > 80


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schemas_of_real_documents_are_valid(name: str) -> None:
    """By another judge, every tenth: JSON Schema 2020-12, and no references."""
    for tool in definitions_of(tools_of(name))[::10]:
        for schema in (tool.input_schema, tool.output_schema or {}):
            Draft202012Validator.check_schema(schema)
            assert '"$ref":' not in json.dumps(schema)


@cache
def examples() -> dict[str, tuple[str, str, Any]]:
    """Return GitHub's operations that have an example: method, path, and the example."""
    document = github()
    found = {}
    for path, item in document["paths"].items():
        for method in METHODS & {*item}:
            operation = item[method]
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json", {})
                for reference in content.get("examples", {}).values():
                    name = reference.get("$ref", "").rpartition("/")[2]
                    example = document["components"]["examples"].get(name, {})
                    if status == "200" and isinstance(example.get("value"), dict):
                        id = operation["operationId"]
                        found[id] = (method.upper(), path, example["value"])
    return found


def fits(tool: OperationTool, value: Any) -> bool:
    schema: Any = tool.output_schema
    return schema is not None and Draft202012Validator(schema).is_valid(value)


def has_arguments(tool: OperationTool) -> bool:
    """Return whether the tool can be called with made-up arguments."""
    schema: Any = tool.input_schema
    return Draft202012Validator(schema).is_valid(arguments_for(schema))


def test_examples_of_a_real_document_fit_its_output_schemas() -> None:
    """Real responses break their constraints, but rarely have other types than documented."""
    tools = {each.operation: each for each in tools_of("github")}
    known = [id for id in examples() if tools[id].output_schema is not None]
    unfit = [id for id in known if not fits(tools[id], examples()[id][2])]

    assert len(known) > 300
    assert len(unfit) < len(known) / 25, unfit


def api() -> Starlette:
    """Return an API that responds with the examples of GitHub, and shows what it received."""
    routes = []
    for method, path, value in examples().values():

        async def respond(request: Request, value: Any = value) -> JSONResponse:
            received = {"x-path": request.url.path, "x-query": request.url.query}
            return JSONResponse(value, headers=received)

        plain = re.sub(r"\{[^{}]+\}", lambda each: each[0].replace("-", "_"), path)
        routes.append(Route(plain, respond, methods=[method]))
    return Starlette(routes=routes)


@pytest.mark.parametrize("peer", ["genmcp", "mcp", "fastmcp"])
async def test_sample_of_operations_is_called_by_clients(peer: str) -> None:
    """Every fourth operation with an example: each client gets the example, and checks it."""
    tools = {each.operation: each for each in tools_of("github")}
    sample = {
        id: value
        for id, (_, _, value) in [*examples().items()][::4]
        if fits(tools[id], value) and has_arguments(tools[id])
    }
    assert len(sample) > 80

    client = httpx.AsyncClient(transport=httpx.ASGITransport(api()), base_url="https://api.example")
    served = tools_of("github", client, only=[*sample])
    calls = [(each.name, arguments_for(each.input_schema)) for each in served]
    async with serve(Endpoint(Suite("github", tools=served))) as url:
        results = await results_of(peer, f"{url}/mcp", calls)

    assert results == [sample[tool.operation] for tool in served]


async def results_of(peer: str, url: str, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    if peer == "genmcp":
        async with genmcp.Client(url) as client:
            return [(await client.call(*each)).data for each in calls]
    if peer == "mcp":
        async with mcp.Client(url) as official:
            return [(await official.call_tool(*each)).structured_content for each in calls]
    async with fastmcp.Client(url) as fast:
        return [(await fast.call_tool(*each)).structured_content for each in calls]


def arguments_for(schema: Any) -> dict[str, Any]:
    """Return arguments that fit the required ones of *schema*."""
    return {name: value_for(schema["properties"][name]) for name in schema.get("required", ())}


def value_for(schema: Any) -> Any:
    if "anyOf" in schema or "oneOf" in schema:
        return value_for((schema.get("anyOf") or schema["oneOf"])[0])
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return [value_for(schema["items"])] * schema.get("minItems", 1)
        case "object":
            return arguments_for({"properties": {}, **schema})
    return "7" * max(1, schema.get("minLength", 1))
