"""The schemas of tools: JSON Schema 2020-12 without references, from OpenAPI 3.0 and 3.1."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from genmcp import ConfigurationError, Suite
from genmcp.cli.lint import check_tools
from genmcp.openapi import openapi_tools
from genmcp.tools import ToolRoute
from tests.openapi.apis import BASE, CLIENT, document, input_of, offline


@pytest.mark.parametrize(
    ("version", "schema", "expected"),
    [
        ("3.0.3", {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ("3.1.0", {"type": ["string", "null"]}, {"type": ["string", "null"]}),
        (
            "3.0.3",
            {"type": "array", "items": {"type": "string"}, "nullable": True, "description": "d"},
            {
                "description": "d",
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            },
        ),
        (
            "3.0.3",
            {"type": "string", "nullable": True, "enum": ["a", None]},
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
        ),
        (
            "3.0.3",
            {"allOf": [{"$ref": "#/components/schemas/A"}], "nullable": True},
            {"anyOf": [{"allOf": [{"type": "integer"}]}, {"type": "null"}]},
        ),
        (
            "3.1.0",
            {"type": ["object", "string"], "properties": {"a": True}},
            {
                "anyOf": [
                    {"type": "string", "properties": {"a": {}}},
                    {"type": "object", "properties": {"a": {}}},
                ]
            },
        ),
        ("3.0.3", {"nullable": True}, {}),
        ("3.1.0", {"type": "null"}, {"type": "null"}),
        ("3.0.3", {"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ("3.0.3", {"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ("3.1.0", {"exclusiveMaximum": 5}, {"exclusiveMaximum": 5}),
        ("3.0.3", {"type": "array"}, {"type": "array", "items": {}}),
        (
            "3.1.0",
            {"type": "array", "prefixItems": [{"const": 1}, False]},
            {"type": "array", "prefixItems": [{"const": 1}, {"not": {}}], "items": {}},
        ),
        (
            "3.1.0",
            {"$ref": "#/components/schemas/A", "description": "the other"},
            {"type": "integer", "description": "the other"},
        ),
        (
            "3.1.0",
            {"type": "object", "additionalProperties": False},
            {"type": "object", "additionalProperties": False},
        ),
        ("3.1.0", {"not": {"type": "string"}}, {"not": {"type": "string"}}),
        (
            "3.1.0",
            {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False},
            {"type": "object"},
        ),
        ("3.1.0", {"type": "file", "x-extra": 1, "example": 2, "format": 7}, {}),
        ("3.1.0", {"type": "string", "pattern": "^(?!x)a"}, {"type": "string"}),
        ("3.1.0", {"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}),
        ("3.1.0", {"minLength": True, "minimum": "1", "required": True, "enum": "a"}, {}),
        ("3.1.0", "no schema", {}),
    ],
)
def test_schema_is_translated(version: str, schema: Any, expected: Any) -> None:
    """Models get one type for each schema, and null for itself; faulty keywords are left out."""
    assert input_of(schema, version, A={"type": "integer"}) == expected


def test_read_only_members_are_not_arguments() -> None:
    """OpenAPI 3.1, "Schema Object": they are sent in responses only, and the reverse."""
    schema = {
        "type": "object",
        "properties": {"id": {"$ref": "#/components/schemas/Id"}, "key": {"writeOnly": True}},
        "required": ["id", "key"],
    }
    content = {"content": {"application/json": {"schema": schema}}}
    paths = {
        "/x": {
            "post": {"requestBody": {"required": True, **content}, "responses": {"200": content}}
        }
    }

    (tool,) = offline(paths, schemas={"Id": {"type": "integer", "readOnly": True}})

    assert isinstance(tool.input_schema, Mapping)
    assert isinstance(tool.output_schema, Mapping)
    assert tool.input_schema["properties"] == {"key": {}}
    assert tool.input_schema["required"] == ["key"]
    assert tool.output_schema["properties"] == {"id": {"type": "integer"}}


def test_schema_within_itself_ends() -> None:
    """There are no references in the schemas of tools, which many models reject."""
    node = {
        "type": "object",
        "description": "A node.",
        "properties": {"next": {"$ref": "#/components/schemas/Node"}, "n": {"type": "integer"}},
    }

    assert input_of({"$ref": "#/components/schemas/Node"}, Node=node) == {
        "type": "object",
        "description": "A node.",
        "properties": {
            "next": {"type": "object", "description": "A node."},
            "n": {"type": "integer"},
        },
    }


def test_tool_is_described_by_its_operation() -> None:
    """The summary is the title, and the description that of the operation."""
    texts = {"summary": "Get it", "description": "Gets all of it.\\n"}
    paths = {
        "/a": {"get": texts},
        "/b": {"get": {"summary": "Get b"}},
        "/c": {"get": {"summary": " "}},
    }

    tools = offline(paths)

    assert [(each.title, each.description) for each in tools] == [
        ("Get it", "Gets all of it.\\n"),
        ("Get b", "Get b"),
        (None, "GET /c"),
    ]


def test_names_are_those_that_clients_accept() -> None:
    """Of the `operationId`, otherwise of method and path; a name that is taken gets a number."""
    paths = {
        "/a": {"get": {"operationId": "repos/get it"}, "put": {"operationId": "repos/get it"}},
        "/users/{id}": {"get": {}, "parameters": [{"$ref": "#/components/parameters/id"}]},
        "/b": {"get": {"operationId": "repos/get?it"}, "post": {"operationId": "x" * 100}},
        "/c": {"get": {"operationId": "x" * 90}, "post": {"operationId": "?"}},
    }

    tools = offline(paths, parameters={"id": {"name": "id", "in": "path"}})

    assert [each.name for each in tools] == [
        "repos_get_it",
        "put_a",
        "get_users_id",
        "repos_get_it_2",
        "x" * 64,
        "x" * 56 + "_2",
        "unnamed",
    ]
    definitions = [ToolRoute.of(each).definition for each in tools]
    assert not [*check_tools(definitions, revision="2025-11-25")]


def test_only_selects_operations_and_rename_names_them() -> None:
    """By operationId or method and path, `*` stands for any text."""
    paths = {
        "/users": {"get": {"operationId": "users/list"}, "post": {"operationId": "users/add"}},
        "/users/{id}": {"get": {}, "delete": {"operationId": "users/delete"}},
    }

    def names(*only: str) -> list[str]:
        rename = {"users/list": "list.users"}.get
        found = openapi_tools(document(paths), client=CLIENT, only=only, rename=rename)
        return [each.name for each in found]

    assert names("GET *") == ["list.users", "get_users_id"]
    assert names("users/*") == ["list.users", "users_add", "users_delete"]
    assert names("DELETE /users/{id}", "users/add") == ["users_add", "users_delete"]
    with pytest.raises(ConfigurationError, match="no operation is 'users/ad'"):
        names("users/ad", "users/list")


def test_operations_that_are_no_tools_have_a_reason() -> None:
    """Each operation is a tool or is named in `skipped`."""
    body: dict[str, Any] = {"content": {"multipart/form-data": {}, "image/png": {}}}
    form = {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "array"}}}}
    paths = {
        "/upload": {"post": {"operationId": "upload", "requestBody": body}},
        "/form": {"post": {"requestBody": form}},
        "/x": {"trace": {}},
        "/matrix/{m}": {"get": {"parameters": [{"name": "m", "in": "path", "style": "matrix"}]}},
        "/other": {"get": {"parameters": [{"name": "m", "in": "querystring"}]}},
        "/swagger": {"get": {"parameters": [{"$ref": "#/parameters/m"}]}},
        "/fine": {"get": {}, "description": "not an operation"},
    }

    tools = offline(paths)

    assert [each.operation for each in tools] == ["GET /fine"]
    assert {id: reason.partition(":")[0] for id, reason in tools.skipped.items()} == {
        "upload": "its body is multipart/form-data, image/png",
        "POST /form": "its form is not an object with properties of its own",
        "TRACE /x": "a response to TRACE shows the credentials of the request",
        "GET /matrix/{m}": "its parameter 'm' has the style 'matrix'",
        "GET /other": "its parameter 'm' is in 'querystring'",
        "GET /swagger": "$ref '#/parameters/m' leads nowhere",
    }


def test_document_is_read_from_a_file(tmp_path: Path) -> None:
    """A path of JSON."""
    path = tmp_path / "openapi.json"
    path.write_bytes(msgspec.json.encode(document({"/x": {"get": {}}})))
    for each in (path, str(path)):
        (tool,) = openapi_tools(each, client=CLIENT)
        assert tool.name == "get_x"


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ({"swagger": "2.0"}, {}, "None is not a version of OpenAPI 3"),
        ({"openapi": "4.0.0"}, {}, "'4.0.0' is not a version"),
        ([], {}, "is no path of a JSON file"),
        ("absent.json", {}, "'absent.json' is no path"),
        (document({}), {"client": None}, "with a base_url"),
        (document({}), {"client": httpx.AsyncClient()}, "with a base_url"),
        (document({}), {"client": httpx.Client(base_url=BASE)}, "an httpx.AsyncClient"),
        (document({}), {"only": "users/*"}, "no operation is"),
        (document({"/": {"get": {}}}), {"rename": lambda id: "a b"}, "of 'GET /'.name must be"),
    ],
)
def test_wrong_options_are_named(source: Any, options: dict[str, Any], reason: str) -> None:
    """A ConfigurationError at construction, as of every component."""
    with pytest.raises(ConfigurationError, match=reason.replace("/", ".")):
        openapi_tools(source, **{"client": CLIENT, **options})


def test_error_names_the_servers_of_the_document() -> None:
    """They are not used by themselves, but tell which `base_url` is meant."""
    source = {**document({}), "servers": [{"url": "https://api.example.com"}]}

    with pytest.raises(ConfigurationError, match=r"https://api\.example\.com"):
        openapi_tools(source)


def test_tools_may_be_changed_before_they_are_served() -> None:
    """They are tools like others: attributes can be set, and tools left out."""
    tools = offline({"/a": {"get": {}}, "/b": {"get": {}}})
    tools[0].scopes = ["read"]

    suite = Suite("api", tools=[each for each in tools if each.name != "get_b"])

    assert repr(suite) == "<Suite api 0.1.0, 1 tools>"
