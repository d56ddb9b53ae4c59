"""The requests that an API receives for the calls of its tools."""

from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from genmcp import Suite
from genmcp.openapi import openapi_tools
from genmcp.testing import connect
from tests.openapi.apis import BASE, Api, document, offline, received, tools_of


def operation(
    *parameters: dict[str, Any], path: str = "/x", method: str = "get", **members: Any
) -> dict[str, Any]:
    return {path: {method: {"operationId": "it", "parameters": [*parameters], **members}}}


def json_body(schema: Any, *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def form_body(schema: Any, encoding: Any = None) -> dict[str, Any]:
    media = {"schema": schema, "encoding": encoding or {}}
    return {"content": {"application/x-www-form-urlencoded": media}}


ITEM = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["name"],
}


async def test_request_has_arguments_where_they_belong() -> None:
    """Path, query, header, cookie and body are one object of arguments."""
    paths = operation(
        {"name": "item", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "q", "in": "query", "schema": {"type": "boolean"}},
        {"name": "X-Trace", "in": "header", "schema": {"type": "integer"}},
        {"name": "theme", "in": "cookie", "schema": {"type": "string"}},
        path="/items/{item}",
        method="post",
        requestBody=json_body({"type": "object", "properties": {"name": {"type": "string"}}}),
    )
    arguments = {"item": "a b", "q": True, "X-Trace": 7, "theme": "dark;x=1", "name": "Ada"}

    found = await received(paths, arguments)

    assert found["method"] == "POST"
    assert found["path"] == "/v1/items/a%20b"
    assert found["query"] == "q=true"
    assert found["headers"]["x-trace"] == "7"
    assert found["headers"]["cookie"] == "theme=dark%3Bx%3D1"
    assert found["headers"]["content-type"] == "application/json"
    assert found["body"] == '{"name":"Ada"}'


@pytest.mark.parametrize(
    ("options", "value", "expected"),
    [
        ({}, ["a", "b"], [("v", "a"), ("v", "b")]),
        ({"explode": False}, ["a", "b"], [("v", "a,b")]),
        ({"style": "spaceDelimited", "explode": False}, ["a", "b"], [("v", "a b")]),
        ({"style": "pipeDelimited", "explode": False}, ["a", "b"], [("v", "a|b")]),
        ({}, {"a": 1, "b": True}, [("a", "1"), ("b", "true")]),
        ({"explode": False}, {"a": 1, "b": 2}, [("v", "a,1,b,2")]),
        (
            {"style": "deepObject", "explode": True},
            {"a": 1, "b": 2},
            [("v[a]", "1"), ("v[b]", "2")],
        ),
        ({"content": {"application/json": {}}}, {"a": [1]}, [("v", '{"a":[1]}')]),
        ({"content": {"application/json": {}}}, "a", [("v", '"a"')]),
        ({}, {"a": {"b": 1}}, [("a", '{"b":1}')]),
        ({}, "a&b=c#d", [("v", "a&b=c#d")]),
        ({}, None, []),
        ({}, [], []),
    ],
)
async def test_query_is_written_in_the_style_of_the_parameter(
    options: dict[str, Any], value: Any, expected: list[tuple[str, str]]
) -> None:
    """OpenAPI 3.1, "Style Examples"."""
    found = await received(operation({"name": "v", "in": "query", **options}), {"v": value})

    assert parse_qsl(found["query"]) == expected


@pytest.mark.parametrize(
    ("explode", "value", "expected"),
    [
        (False, ["a", "b"], "a,b"),
        (False, {"a": 1, "b": 2}, "a,1,b,2"),
        (True, {"a": 1, "b": 2}, "a=1,b=2"),
    ],
)
async def test_path_and_header_are_written_in_the_simple_style(
    explode: bool, value: Any, expected: str
) -> None:
    """OpenAPI 3.1, "Style Examples"."""
    options = {"explode": explode, "schema": {}}
    paths = operation(
        {"name": "p", "in": "path", "required": True, **options},
        {"name": "H", "in": "header", **options},
        path="/x/{p}",
    )

    found = await received(paths, {"p": value, "H": value})

    assert httpx.URL(found["path"]).path == f"/v1/x/{expected}"
    assert found["headers"]["h"] == expected


async def test_defaults_are_not_sent() -> None:
    """A PATCH must not change members that the caller has not named."""
    schema = {"type": "object", "properties": {"a": {"default": 1}, "b": {"type": "string"}}}
    paths = operation(
        {"name": "page", "in": "query", "schema": {"type": "integer", "default": 1}},
        method="patch",
        requestBody=json_body(schema),
    )

    found = await received(paths, {"b": "c"})

    assert (found["query"], found["body"]) == ("", '{"b":"c"}')


@pytest.mark.parametrize(
    ("schema", "arguments", "body"),
    [
        (ITEM, {"name": "Ada", "id": 1}, '{"id":1,"name":"Ada"}'),
        ({"type": "array", "items": {}}, {"body": [1]}, "[1]"),
        ({"oneOf": [ITEM, {"type": "null"}]}, {"body": None}, "null"),
        (
            {**ITEM, "additionalProperties": True},
            {"body": {"name": "A", "x": 1}},
            '{"name":"A","x":1}',
        ),
        (
            {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}},
            {"a": None},
            '{"a":null}',
        ),
        ({"type": "object", "properties": {"a": {}}}, {}, "{}"),
    ],
)
async def test_members_of_a_body_are_arguments(
    schema: Any, arguments: dict[str, Any], body: str
) -> None:
    """The members of a plain object, otherwise the whole body as the argument `body`."""
    found = await received(operation(method="post", requestBody=json_body(schema)), arguments)

    assert found["body"] == body


async def test_optional_body_may_be_left_out() -> None:
    """Without the argument `body`, there is no body and no content type."""
    body = json_body({"type": "array", "items": {}}, required=False)

    found = await received(operation(method="post", requestBody=body), {})

    assert found["body"] == ""
    assert "content-type" not in found["headers"]


@pytest.mark.parametrize(("schema", "sent"), [(ITEM, ""), ({**ITEM, "required": []}, "{}")])
async def test_optional_body_without_arguments(schema: Any, sent: str) -> None:
    """`{}` would be an error where members are required, and is none elsewhere."""
    body = json_body(schema, required=False)

    found = await received(operation(method="post", requestBody=body), {})

    assert found["body"] == sent
    assert ("content-type" in found["headers"]) is bool(sent)


async def test_form_is_urlencoded() -> None:
    """Objects are JSON in a form, or in the style of their encoding."""
    schema = {"type": "object", "properties": {name: {} for name in "abcd"}}
    body = form_body(schema, {"d": {"style": "deepObject"}})
    arguments = {"a": "x y", "b": ["1", "2"], "c": {"e": 1}, "d": {"f": 2}}

    found = await received(operation(method="post", requestBody=body), arguments)

    expected = [("a", "x y"), ("b", "1"), ("b", "2"), ("c", '{"e":1}'), ("d[f]", "2")]
    assert parse_qsl(found["body"]) == expected
    assert found["headers"]["content-type"] == "application/x-www-form-urlencoded"


async def test_arguments_of_one_name_are_told_apart() -> None:
    """The path keeps its name; the place of the others follows theirs."""
    paths = operation(
        *({"name": "id", "in": place, "schema": {}} for place in ("query", "path", "header")),
        path="/x/{id}",
        method="put",
        requestBody=json_body({"type": "object", "properties": {"id": {}, "id_body": {}}}),
    )
    arguments = {"id": "1", "id_query": "2", "id_header": "3", "id_body": 4, "id_body_body": 5}

    found = await received(paths, arguments)

    assert (found["path"], found["query"], found["headers"]["id"]) == ("/v1/x/1", "id=2", "3")
    assert found["body"] == '{"id":4,"id_body":5}'


async def test_argument_has_a_name_that_clients_accept() -> None:
    """The API gets the name of its document."""
    found = await received(operation({"name": "filter[a b]", "in": "query"}), {"filter_a_b": "1"})

    assert parse_qsl(found["query"]) == [("filter[a b]", "1")]


async def test_parameter_of_an_operation_replaces_that_of_its_path() -> None:
    """OpenAPI 3.1, "Operation Object": same name and place."""
    paths = operation({"name": "v", "in": "query", "explode": False})
    paths["/x"]["parameters"] = [{"name": "v", "in": "query"}, {"name": "w", "in": "query"}]

    found = await received(paths, {"v": ["a", "b"], "w": "c"})

    assert parse_qsl(found["query"]) == [("v", "a,b"), ("w", "c")]


async def test_placeholder_without_a_parameter_is_an_argument() -> None:
    """Many documents forget it; the braces must not be sent."""
    found = await received(operation(path="/x/{id}"), {"id": "7"})

    assert found["path"] == "/v1/x/7"


def test_parameter_with_a_read_only_schema_is_an_argument() -> None:
    """GitHub's parameters have the schemas of members, which are read-only in bodies."""
    parameter = {"name": "id", "in": "path", "schema": {"type": "integer", "readOnly": True}}
    (tool,) = offline(operation(parameter, path="/x/{id}"))

    assert tool.input_schema["properties"] == {"id": {"type": "integer"}}  # type: ignore[index]


async def test_client_of_the_user_authenticates_requests() -> None:
    """Its headers, its auth and the parameters of its URLs are sent beside those of the call."""
    paths = operation({"name": "q", "in": "query"})
    async with tools_of(
        paths, auth=("ada", "secret"), params={"key": "k"}, headers={"X-Id": "1"}
    ) as client:
        found = (await client.call("it", {"q": "a"})).data

    assert found["headers"]["authorization"].startswith("Basic ")
    assert found["headers"]["x-id"] == "1"
    assert {*parse_qsl(found["query"])} == {("key", "k"), ("q", "a")}


async def test_parameters_that_the_client_sends_are_no_arguments() -> None:
    """A model can neither know the key of an API nor replace it."""
    paths = operation(
        {"name": "x-api-key", "in": "header", "required": True},
        {"name": "version", "in": "query", "required": True},
        {"name": "session", "in": "cookie"},
    )
    sent: dict[str, Any] = {
        "headers": {"X-API-Key": "k"},
        "params": {"version": "7"},
        "cookies": {"session": "s"},
    }

    async with tools_of(paths, **sent) as client:
        (tool,) = await client.tools()
        found = (await client.call("it")).data

    assert tool.input_schema["properties"] == {}
    assert (found["headers"]["x-api-key"], found["query"]) == ("k", "version=7")
    assert found["headers"]["cookie"] == "session=s"


@pytest.mark.parametrize("place", ["cookies", "headers"])
async def test_cookies_of_the_client_are_kept_beside_others(place: str) -> None:
    """Those of the operation are added, and none of the client's is an argument."""
    paths = operation({"name": "theme", "in": "cookie"}, {"name": "session", "in": "cookie"})
    own = {"session": "s"} if place == "cookies" else {"Cookie": "lang=de; session=s"}
    options: dict[str, Any] = {place: own}

    async with tools_of(paths, **options) as client:
        (tool,) = await client.tools()
        found = (await client.call("it", {"theme": "dark"})).data

    assert [*tool.input_schema["properties"]] == ["theme"]
    assert found["headers"]["cookie"].endswith("session=s; theme=dark")


async def test_cookie_of_a_response_reaches_no_other_caller() -> None:
    """One client serves all callers; its own cookies are sent, also if it gets new ones."""
    api, sent = Api(), []
    api.headers["set-cookie"] = "session=of-ann"
    transport = httpx.ASGITransport(api)
    http = httpx.AsyncClient(transport=transport, base_url=BASE, cookies={"key": "k"})
    tools = openapi_tools(document(operation()), client=http)

    async with http, connect(Suite("api", tools=tools)) as client:
        for key in ("k", "l"):
            http.cookies = httpx.Cookies({"key": key})
            for _ in range(2):
                found = (await client.call("it")).data
                sent.append(found["headers"]["cookie"])

    assert sent == ["key=k", "key=k", "key=l", "key=l"]


async def test_headers_of_the_protocol_are_no_arguments() -> None:
    """OpenAPI 3.1, "Parameter Object"; others would change how the request is read."""
    names = ("Accept", "Authorization", "Content-Type", "Host", "Transfer-Encoding", "Cookie")
    (tool,) = offline(operation(*({"name": name, "in": "header"} for name in names)))

    assert tool.input_schema["properties"] == {}  # type: ignore[index]


def test_headers_of_proxies_are_no_arguments() -> None:
    """An API trusts them: the caller would be another, or the request another operation."""
    names = ("X-Forwarded-For", "X_Forwarded_Host", "Forwarded", "X-Real-IP", "Proxy-Authorization")
    others = ("X-Original-URL", "X-HTTP-Method-Override", "X-Forward-To")
    (tool,) = offline(operation(*({"name": name, "in": "header"} for name in names + others)))

    assert [*tool.input_schema["properties"]] == ["X-Forward-To"]  # type: ignore[index]


async def test_unknown_argument_is_rejected() -> None:
    """A misspelt argument would otherwise be lost without a word."""
    async with tools_of(operation({"name": "limit", "in": "query"})) as client:
        result = await client.call("it", {"limits": 1})

    assert result.is_error
    assert "limits" in result.data


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_error_of_the_api_is_an_error_with_its_text(status: int) -> None:
    """The model reads what was wrong."""
    api = Api()
    api.status, api.body = status, b'{"message": "no such item"}'

    async with tools_of(operation(), api) as client:
        result = await client.call("it")

    assert result.is_error
    assert str(status) in result.data
    assert '"no such item"' in result.data


OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}}


def responding(schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return operation(responses={"200": {"content": {media_type: {"schema": schema}}}})


@pytest.mark.parametrize(
    ("body", "media_type", "data"),
    [
        (b'{"n": 1}', "application/json", {"n": 1}),
        (b'{"n": 1}', "application/hal+json; charset=utf-8", {"n": 1}),
        (b"[1, 2]", "application/json", "[1, 2]"),
        (b"not JSON", "application/json", "not JSON"),
        (b'{"n": 1}', "text/plain", '{"n": 1}'),
        (b"", "text/plain", "HTTP 200 OK"),
    ],
)
async def test_response_is_data_or_text(body: bytes, media_type: str, data: Any) -> None:
    """A JSON object is structured content; anything else is text."""
    api = Api()
    api.body, api.headers = body, {"content-type": media_type}

    async with tools_of(operation(), api) as client:
        result = await client.call("it")

    assert not result.is_error
    assert result.data == data


@pytest.mark.parametrize("status", [301, 302, 304, 307])
async def test_redirect_that_is_not_followed_is_an_error(status: int) -> None:
    """Nothing was done; the address may be of a host that is not public, as its page says, too."""
    api = Api()
    api.status, api.headers = status, {"location": "https://internal.example/x?key=1"}
    api.body = b'<a href="https://internal.example/x?key=1">here</a>'

    async with tools_of(operation(method="post"), api) as client:
        result = await client.call("it")

    assert result.is_error
    assert f"HTTP {status} " in result.data
    assert "internal" not in result.data


async def test_address_of_what_was_made_is_shown() -> None:
    """Of a response without content, it is all that the model needs."""
    api = Api()
    api.status, api.body, api.headers = 201, b"", {"location": "/items/7"}

    async with tools_of(operation(method="post"), api) as client:
        result = await client.call("it")

    assert result.data == "HTTP 201 Created /items/7"


async def test_documented_object_is_checked() -> None:
    """The types are the output schema; the model sees a response of others, but as an error."""
    api = Api()
    constraints = {"required": ["m"], "additionalProperties": False, "oneOf": [False]}
    async with tools_of(responding({**OBJECT, **constraints}), api) as client:
        (tool,) = await client.tools()
        assert tool.output_schema == OBJECT

        api.body = b'{"n": 1, "o": 2}'
        assert (await client.call("it")).data == {"n": 1, "o": 2}

        api.body = b'{"n": "one"}'
        result = await client.call("it")
        assert result.is_error
        texts = [each.text for each in result.content]  # type: ignore[union-attr]
        assert "/n" in texts[0]
        assert texts[1] == '{"n": "one"}'

        api.body = b"gone"
        assert (await client.call("it")).is_error


@pytest.mark.parametrize(
    "responses",
    [
        {"200": {"content": {"application/json": {"schema": {"type": "array"}}}}},
        {"200": {"content": {"text/plain": {"schema": OBJECT}}}},
        {"200": {"description": "no content"}},
        {
            "200": {"content": {"application/json": {"schema": OBJECT}}},
            "204": {"description": "nothing"},
        },
        {"404": {"content": {"application/json": {"schema": OBJECT}}}},
        {"200": {"$ref": "https://elsewhere.example/responses.json"}},
        {"200": {"content": {"application/json": {"schema": {"$ref": "#/nowhere"}}}}},
        None,
    ],
)
def test_other_responses_have_no_output_schema(responses: Any) -> None:
    """Only one kind of success, which is an object, can be described by one schema."""
    (tool,) = offline(operation(responses=responses))

    assert tool.output_schema is None


async def test_unreachable_api_is_an_error_without_its_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The URL may contain a key. The error has the name of the tool; the log names the host."""
    async with httpx.AsyncClient(base_url="http://127.0.0.1:1/secret") as http:
        tools = openapi_tools(document(operation()), client=http, rename=lambda _: "look")
        async with connect(Suite("api", tools=tools)) as client:
            result = await client.call("look")

    assert result.is_error
    assert result.data == "look: the request failed: ConnectError"
    assert "tool look: no response from 127.0.0.1: ConnectError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("method", "hints"),
    [
        ("get", {"readOnlyHint": True}),
        ("head", {"readOnlyHint": True}),
        ("put", {"idempotentHint": True}),
        ("delete", {"destructiveHint": True, "idempotentHint": True}),
        ("post", None),
        ("patch", None),
    ],
)
async def test_method_gives_the_annotations(method: str, hints: Any) -> None:
    """RFC 9110, 9.2: safe and idempotent methods."""
    async with tools_of(operation(method=method)) as client:
        (tool,) = await client.tools()

    if hints is None:
        assert tool.annotations is None
    else:
        assert {
            "readOnlyHint": tool.annotations.read_only_hint,  # type: ignore[union-attr]
            "idempotentHint": tool.annotations.idempotent_hint,  # type: ignore[union-attr]
            "destructiveHint": tool.annotations.destructive_hint,  # type: ignore[union-attr]
        } == {"readOnlyHint": None, "idempotentHint": None, "destructiveHint": None, **hints}
