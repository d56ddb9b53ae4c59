"""Documents, arguments and responses that are meant to do harm, or happen to."""

import gzip
from typing import Any

import httpx
import msgspec
import pytest

from genmcp import Suite
from genmcp.openapi import openapi_tools
from genmcp.testing import connect
from tests.openapi.apis import BASE, Api, document, input_of, offline, received, tools_of
from tests.support.serving import serve

ID = {"name": "id", "in": "path", "required": True, "schema": {}}


def size_of(schema: Any) -> int:
    return len(msgspec.json.encode(schema))


def test_exponential_references_are_cut() -> None:
    """Thirty levels of two references each would be a thousand million schemas."""
    levels: dict[str, Any] = {
        f"L{level}": {
            "type": "object",
            "properties": {
                side: {"$ref": f"#/components/schemas/L{level + 1}"} for side in ("a", "b")
            },
        }
        for level in range(30)
    }

    made = input_of({"$ref": "#/components/schemas/L0"}, L30={"type": "string"}, **levels)

    assert made["properties"]["a"]["properties"]["b"]["type"] == "object"
    assert size_of(made) < 100_000


def test_wide_and_deep_schemas_are_cut() -> None:
    """More members, choices or levels than a model could use accept any value."""
    wide = {"type": "object", "properties": {f"p{number}": {} for number in range(100_000)}}
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}

    assert input_of(wide) == {"type": "object"}
    assert input_of({"type": "string", "enum": ["a"] * 100_000}) == {"type": "string"}
    assert size_of(input_of(deep)) < 2_000
    assert len(input_of({"description": "x" * 100_000})["description"]) < 5_000


def test_schema_that_contains_itself_in_python_is_cut() -> None:
    """As YAML with an alias within its anchor is read."""
    loop: dict[str, Any] = {"type": "array"}
    loop["items"] = loop

    assert size_of(input_of(loop)) < 2_000


@pytest.mark.parametrize(
    "reference",
    ["https://elsewhere.example/a.json", "other.json#/a", "#/components/schemas/A", "#/nowhere", 7],
)
def test_references_that_lead_elsewhere_skip_the_operation(reference: Any) -> None:
    """Nothing is fetched; the reason names the reference."""
    schema = {"$ref": reference}
    get = {"parameters": [{"name": "a", "in": "query", "schema": schema}]}

    tools = offline({"/x": {"get": get}}, schemas={"A": {"$ref": "#/components/schemas/A"}})

    assert not tools
    assert str(reference) in tools.skipped["GET /x"]


def test_path_that_leads_elsewhere_is_skipped() -> None:
    """A reference in place of a path has no operations that could be named."""
    tools = offline({"/x": {"$ref": "https://elsewhere.example/x.json"}, "/y": {"get": {}}})

    assert [each.name for each in tools] == ["get_y"]
    assert "is outside of the document" in tools.skipped["/x"]


def test_ten_thousand_operations_become_tools() -> None:
    """Also if all of them have the same names, and refer to the same large schema."""
    text = {"type": "object", "properties": {"a": {"description": "x" * 100_000}}}
    paths = {
        f"/{number}": {
            "get": {
                "operationId": "é" * (number + 1),
                "parameters": [
                    {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/T"}}
                ],
            }
        }
        for number in range(10_000)
    }

    tools = offline(paths, schemas={"T": text})

    assert len({each.name for each in tools}) == 10_000
    assert size_of(tools[-1].input_schema) < 10_000


@pytest.mark.parametrize(
    "path",
    ["//elsewhere.example/x", "/../admin", "/a/./b", "/a/%2E%2e/b", "/a?b=c", "/a#b", "/a\\b", "x"],
)
def test_path_of_the_document_stays_below_the_base_url(path: str) -> None:
    """A path is neither a URL, nor does it lead out of the `base_url`."""
    tools = offline({path: {"get": {"operationId": "it"}}})

    assert not tools
    assert "its path" in tools.skipped["it"]


def test_member_may_be_called_as_a_reference() -> None:
    """`$ref` below `properties` is a name like any other."""
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}}, "required": ["$ref"]}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}

    (tool,) = offline({"/x": {"post": {"requestBody": body}}})

    assert input_of(schema) == schema
    assert tool.input_schema["properties"] == {"ref": {"type": "string"}}  # type: ignore[index]


async def test_requests_go_to_the_base_url_only() -> None:
    """Whatever servers the document, a path or an operation names."""
    servers = [{"url": "https://elsewhere.example"}]
    paths = {"/x": {"get": {"servers": servers}, "servers": servers}}

    found = await received({**paths}, {})

    assert found["headers"]["host"] == "api.example"


@pytest.mark.parametrize(
    "value", ["../admin", "..", ".", "", "1/keys", "1\\keys", "a\r\nb", "\x00"]
)
async def test_argument_cannot_leave_its_segment(value: str) -> None:
    """Many servers decode `%2F` before they look for the operation."""
    async with tools_of({"/users/{id}": {"delete": {"parameters": [ID]}}}) as client:
        result = await client.call("delete_users_id", {"id": value})

    assert result.is_error
    assert "Argument 'id' must not change the path" in result.data


@pytest.mark.parametrize("value", ["a?b=c", "a#b", "a%2Fb", "%2e%2e", "..a", "{id}", "é;x=1&y"])
async def test_argument_is_percent_encoded(value: str) -> None:
    """One segment, which the API reads as the value, on a real server."""
    async with serve(Api(), lifespan="off") as url, httpx.AsyncClient(base_url=url) as http:
        paths = {"/users/{id}/x": {"get": {"operationId": "it", "parameters": [ID]}}}
        tools = openapi_tools(document(paths), client=http)
        async with connect(Suite("api", tools=tools)) as client:
            found = (await client.call("it", {"id": value})).data

    _, users, segment, last = found["path"].split("/")
    assert (users, last, found["query"]) == ("users", "x", "")
    assert httpx.URL(f"{BASE}/{segment}").path == f"/{value}"


async def test_several_segments_are_allowed_where_they_are_documented() -> None:
    """GitHub's extension `x-multi-segment`; also then none may be `..`."""
    parameter = {**ID, "x-multi-segment": True}
    paths = {"/contents/{id}": {"get": {"operationId": "it", "parameters": [parameter]}}}
    async with tools_of(paths) as client:
        found = (await client.call("it", {"id": "docs/a b.md"})).data
        refused = await client.call("it", {"id": "docs/../../admin"})

    assert found["path"] == "/v1/contents/docs%2Fa%20b.md"
    assert refused.is_error


async def test_null_cannot_stand_for_a_segment() -> None:
    """The braces of the path must not be sent."""
    async with tools_of({"/x/{id}": {"get": {"parameters": [ID]}}}) as client:
        result = await client.call("get_x_id", {"id": None})

    assert result.is_error
    assert result.data == "Argument 'id' must not be null."


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "é", " a", "a\x00"])
async def test_argument_cannot_add_a_header(value: str) -> None:
    """Neither in a header nor in a cookie."""
    header = {"name": "X-Trace", "in": "header"}
    cookie = {"name": "theme", "in": "cookie"}
    async with tools_of({"/x": {"get": {"parameters": [header, cookie]}}}) as client:
        refused = await client.call("get_x", {"X-Trace": value})
        found = (await client.call("get_x", {"theme": value})).data

    assert refused.is_error
    assert "Argument 'X-Trace'" in refused.data
    assert found["headers"]["cookie"].isascii()
    assert found["headers"]["cookie"].isprintable()


@pytest.mark.parametrize("key", ["api_key", "API_Key", "api_key[]", "limit", "filter[a]"])
async def test_member_cannot_replace_another_parameter(key: str) -> None:
    """An object may be written as parameters, as the style `form` does by default."""
    names = ("filter", "limit", "page[size]", "filter[a]")
    parameters = [{"name": name, "in": "query"} for name in names]
    paths = {"/x": {"get": {"parameters": parameters}}}
    async with tools_of(paths, params={"api_key": "SECRET"}) as client:
        refused = await client.call("get_x", {"filter": {"b": "1", key: "mine"}})
        found = (await client.call("get_x", {"filter": {"b": "1"}, "page_size": 2})).data

    assert refused.is_error
    assert f"Argument 'filter' cannot set parameter '{key}'" in refused.data
    assert found["query"] == "api_key=SECRET&b=1&page%5Bsize%5D=2"


@pytest.mark.parametrize(
    "sent", [{"cookies": {"session": "s"}}, {"headers": {"Cookie": "a=b; session=s"}}]
)
async def test_member_cannot_replace_a_cookie(sent: Any) -> None:
    """Neither one of the client's `cookies` nor one of its headers."""
    get = {"parameters": [{"name": "prefs", "in": "cookie"}]}
    async with tools_of({"/x": {"get": get}}, **sent) as client:
        refused = await client.call("get_x", {"prefs": {"session": "mine"}})

    assert refused.is_error
    assert "cannot set parameter 'session'" in refused.data


def test_header_with_a_wrong_name_skips_the_operation() -> None:
    """RFC 9110, 5.1: it would be written into the request as it is."""
    parameter = {"name": "X-A: 1\r\nX-B", "in": "header"}

    tools = offline({"/x": {"get": {"parameters": [parameter]}}})

    assert not tools
    assert "GET /x" in tools.skipped


@pytest.mark.parametrize("compressed", [False, True])
async def test_large_response_is_an_error(compressed: bool) -> None:
    """The limit counts the decompressed bytes."""
    api = Api()
    api.body = b"x" * 5_000_000
    if compressed:
        api.body = gzip.compress(api.body)
        api.headers["content-encoding"] = "gzip"

    async with tools_of({"/x": {"get": {}}}, api) as client:
        result = await client.call("get_x")

    assert result.is_error
    assert "more than 4194304 bytes" in result.data


async def test_stream_of_events_is_an_error() -> None:
    """It may never end, which no limit of its size would notice."""
    api = Api()
    api.headers["content-type"] = "text/event-stream; charset=utf-8"

    async with tools_of({"/x": {"get": {}}}, api) as client:
        result = await client.call("get_x")

    assert result.is_error
    assert "stream of events" in result.data


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" * 100_000, {"content-type": "application/json"}),
        (b'{"a":' * 100_000, {"content-type": "application/json"}),
        (b"\xff\xfe\x00", {"content-type": "application/json"}),
        (b"\x89PNG", {"content-type": "image/png"}),
        (b"broken", {"content-encoding": "gzip"}),
        (b'{"a": 1e999}', {"content-type": "application/json; charset=nowhere"}),
        (b'{\r\n"a":\r\n1}', {"content-type": "application/json"}),
    ],
)
async def test_odd_response_is_a_result(body: bytes, headers: dict[str, str]) -> None:
    """A text or an error, but never an internal error, which has a reference."""
    api = Api()
    api.body, api.headers = body, headers

    async with tools_of({"/x": {"get": {}}}, api) as client:
        result = await client.call("get_x")

    assert "failed unexpectedly" not in str(result.data)


def test_document_of_wrong_types_is_harmless() -> None:
    """Any JSON value may stand anywhere."""
    for wrong in (None, True, 7, "x", [], [7], {}, {"a": 7}):
        for paths in (
            wrong,
            {"/x": wrong},
            {"/x": {"get": {"operationId": wrong, "parameters": wrong, "tags": wrong}}},
            {"/x": {"post": {"requestBody": wrong, "responses": wrong, "summary": wrong}}},
            {"/x": {"get": {"parameters": [{"name": wrong, "in": wrong, "schema": wrong}]}}},
            {"/x": {"get": {"parameters": [{"name": "a", "in": "query", "content": wrong}]}}},
            {"/x": {"get": {"parameters": [{"name": "a", "in": "query", "style": wrong}]}}},
            {"/x": {"post": {"requestBody": {"content": {"application/json": wrong}}}}},
            {"/x": {"post": {"requestBody": {"content": {"application/json": {"schema": wrong}}}}}},
            {"/x": {"get": {"responses": {"200": wrong}}}},
            {"/x": {"get": {"responses": {"200": {"content": {"application/json": wrong}}}}}},
        ):
            tools = offline(paths)  # type: ignore[arg-type]
            Suite("api", tools=tools)
            assert len(tools) + len(tools.skipped) <= 1


@pytest.mark.parametrize(
    "keyword",
    [
        *("type", "properties", "required", "enum", "const", "default", "items", "allOf", "anyOf"),
        *("pattern", "minimum", "maxLength", "uniqueItems", "additionalProperties", "nullable"),
        *("description", "format", "multipleOf", "exclusiveMinimum", "deprecated", "not"),
    ],
)
def test_faulty_keyword_is_left_out(keyword: str) -> None:
    """The schemas of the tools are valid; the API checks the rest."""
    for wrong in (None, True, "x", [], [7], ["a", "a"], {}, {"a": 7}, 1.5, -1, 0):
        input_of({"type": "object", "required": ["a"], keyword: wrong})
        input_of({keyword: wrong})
