"""Resources and repositories, one by one: their metadata and contents."""

import asyncio
import re
import threading
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError, ContractError, InvalidParams, ResourceNotFound
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition, ResourceLink
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.resources.resource import Resource, ResourceRepo, ResourceRoute
from genmcp.suite.suite import Suite
from genmcp.uri_template import UriTemplate
from tests.resources.asking import channel, page_of, read, resources, uris
from tests.support.asgi import MODERN
from tests.support.speaking import VERSIONS, speak


class Point(msgspec.Struct):
    x: int


@dataclass
class Place:
    y: int


class Echo(ResourceRepo):
    """Returns the requested URI."""

    prefix = "echo://"

    async def read(self, key: Any, channel: Channel) -> Any:
        return {"key": key}


class Shelves(Echo):
    """Shelves of books."""

    name = "shelf"
    template = "echo://{shelf}/{+book}"


def declare(kind: type, **attributes: Any) -> Any:
    """An instance of a class named Odd."""
    return type("Odd", (kind,), attributes)()


async def only(provider: object, uri: str) -> ResourceContents:
    """The only contents of a resource."""
    (contents,) = (await read(provider, uri)).contents
    return contents


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ("text/plain", "text")),
        ("", ("text/plain", "")),
        ({"a": [1, None]}, ("application/json", '{"a":[1,null]}')),
        (Point(1), ("application/json", '{"x":1}')),
        (Place(2), ("application/json", '{"y":2}')),
        (3, ("application/json", "3")),
        (False, ("application/json", "false")),
        (b"\0", ("application/octet-stream", b"\0")),
        (bytearray(b"ab"), ("application/octet-stream", b"ab")),
        ((b"ab", "image/png"), ("image/png", b"ab")),
        (ResourceContents("a:b", text="x", mime_type="text/html"), ("text/html", "x")),
        (ResourceContents("a:b", text="x"), (None, "x")),
    ],
)
@pytest.mark.parametrize("way", ["value", "function", "repository"])
async def test_values_become_contents(
    value: Any, expected: tuple[str | None, str | bytes], way: str
) -> None:
    """Text is text, bytes are a blob, data is JSON, contents are as they are."""

    class Repo(ResourceRepo):
        prefix = "a:"

        def read(self, key: str, channel: Channel) -> Any:
            return value

    providers = {
        "value": Resource("a:b", value),
        "function": Resource("a:b", lambda: value),
        "repository": Repo(),
    }
    mime_type, held = expected
    text, blob = (held, None) if isinstance(held, str) else (None, b64encode(held).decode())

    assert ResourceContents("a:b", text, blob, mime_type) == await only(providers[way], "a:b")


@pytest.mark.parametrize(
    ("value", "expected"), [("x", "text/css"), (b"x", "text/css"), ([[]], "text/css")]
)
async def test_resource_contents_have_the_declared_type(value: Any, expected: str) -> None:
    """The declared type applies to contents without their own."""
    assert (
        expected == (await only(Resource("a:b.png", value, mime_type="text/css"), "a:b")).mime_type
    )
    own = ResourceContents("a:c", text="x", mime_type="text/x")
    assert own == await only(Resource("a:b", own, mime_type="text/css"), "a:b")
    untold = ResourceContents("a:c", text="x")
    filled = ResourceContents("a:c", text="x", mime_type="text/css")
    assert filled == await only(Resource("a:b", untold, mime_type="text/css"), "a:b")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("a:b.MD", "text/markdown"),
        ("a:b.json?x=c.png#d.png", "application/json"),
        ("a:b/c.d/e", "text/plain"),
        ("a:b.unheard-of", "text/plain"),
        ("a:b.yml", "application/yaml"),
    ],
)
async def test_resource_type_is_guessed_by_the_suffix(uri: str, expected: str) -> None:
    """Without a declaration the suffix of the path decides, for texts and bytes."""
    assert expected == (await only(Resource(uri, "x"), uri)).mime_type


async def test_resource_with_a_list_has_several_contents() -> None:
    """Each is converted by itself; a nested list is JSON."""
    page = ResourceContents("a:page", text="x")
    result = await read(Resource("a:b", ["one", (b"2", "x/y"), [3], page]), "a:b")

    expected = ["text/plain", "x/y", "application/json", None]
    assert expected == [each.mime_type for each in result.contents]
    assert page == result.contents[3]
    assert (await read(Resource("a:b", []), "a:b")).contents == []


async def test_read_result_is_unchanged() -> None:
    """A ReadResourceResult is sent unchanged."""
    result = ReadResourceResult(contents=[], ttl_ms=5, cache_scope="public", meta={"a": 1})

    assert result is await read(Resource("a:b", lambda: result), "a:b")


async def test_fixed_content_is_encoded_once() -> None:
    """The result is made when it is registered, and is the same object every time."""
    route = ResourceRoute.of(Resource("a:b", {"a": 1}))
    line = channel("a:b")

    assert await route.handle(line.request, line) is await route.handle(line.request, line)


async def test_function_gets_the_channel_and_variables() -> None:
    """By the hints and the names of its parameters, as under `@resource`."""

    def both(page: str, channel: Channel) -> Any:
        return f"{page} {channel.request.method}"

    async def later() -> str:
        return "a"

    assert (await only(Resource("a:{page}", both), "a:b")).text == "b resources/read"
    assert (await only(Resource("a:b", later), "a:b")).text == "a"


async def test_resource_def_hooks_run_in_threads() -> None:
    """A function, a `def read` and a `def list` may block; an `async def` stays in the loop."""
    here = threading.get_ident()
    seen: dict[str, int] = {}

    class Repo(ResourceRepo):
        prefix = "a:"

        def parse_uri(self, uri: str) -> str:
            seen["parse_uri"] = threading.get_ident()
            return uri

        def list(self, cursor: Any, channel: Channel) -> Any:
            seen["list"] = threading.get_ident()
            return []

        def read(self, key: str, channel: Channel) -> Any:
            seen["read"] = threading.get_ident()
            return asyncio.sleep(0, "awaited")

    assert (await only(Repo, "a:b")).text == "awaited"
    await page_of(resources(Repo), 5)
    await read(Resource("a:b", lambda: [seen.update(function=threading.get_ident())]), "a:b")

    assert [name for name, thread in seen.items() if thread == here] == ["parse_uri"]
    assert {*seen} == {"parse_uri", "list", "read", "function"}


async def test_resource_may_be_a_class() -> None:
    """Attributes describe it; `read` returns its contents."""

    class Clock(Resource):
        """Returns the time."""

        uri = "clock://now"
        name = "clock"
        size = 5
        content = "12:00"

    class Bell(Clock):
        uri = "clock://bell"

        async def read(self, uri: str, channel: Channel) -> Any:
            return f"{uri}!"

    assert (await only(Clock, "clock://now")).text == "12:00"
    assert (await only(Bell, "clock://bell")).text == "clock://bell!"
    definition = ResourceRoute.of(Clock()).definition
    assert ResourceDefinition("clock://now", "clock", description="Returns the time.", size=5) == (
        definition
    )
    assert repr(Bell()) == "<Bell clock://bell>"


def test_resource_attributes_are_listed() -> None:
    """Every member of the specification's Resource and ResourceTemplate."""
    attributes: dict[str, Any] = {
        "name": "b",
        "title": "B",
        "description": "Bee.",
        "mime_type": "text/x",
        "icons": [Icon("https://icons.test/b.png")],
        "meta": {"a.test/x": 1},
    }
    hints = {"audience": ["user"], "priority": 0.5, "lastModified": "2025-01-12T15:00:58Z"}
    listed = {**attributes, "annotations": Annotations(["user"], 0.5, "2025-01-12T15:00:58Z")}

    one = ResourceRoute.of(Resource("a:b", "é", annotations=hints, **attributes))
    all_ = ResourceRoute.of(
        Resource("a:{+path}", lambda path: path, annotations=hints, **attributes)
    )
    repo = ResourceRoute.of(
        declare(Echo, template=UriTemplate("echo://{a}"), annotations=hints, **attributes)
    )

    assert ResourceDefinition("a:b", size=2, **listed) == one.definition
    assert ResourceTemplateDefinition("a:{+path}", **listed) == all_.template
    assert ResourceTemplateDefinition("echo://{a}", **listed) == repo.template
    assert [one.template, all_.definition, repo.definition] == [None, None, None]


def test_resource_is_named_by_its_function_or_its_uri() -> None:
    """A function has name and description; a lambda and a value have neither."""

    def settings() -> str:
        """All settings."""
        return ""

    def listed_as(resource: Resource) -> tuple[str, str | None, int | None]:
        found = ResourceRoute.of(resource).definition
        assert found is not None
        return found.name, found.description, found.size

    assert listed_as(Resource("a:b", settings)) == ("settings", "All settings.", None)
    assert listed_as(Resource("a:b", settings, name="x", description="y", size=7)) == ("x", "y", 7)
    assert listed_as(Resource("a:b", lambda: "")) == ("a:b", None, None)
    assert listed_as(Resource("a:b", b"abc")) == ("a:b", None, 3)
    assert listed_as(Resource("a:b", ["é", (b"ab", "x/y")])) == ("a:b", None, 4)


async def test_template_resource_serves_its_prefix() -> None:
    """The function gets the rest of the URI; None means that it is not found."""

    def page(path: str) -> str | None:
        return None if path.endswith("/missing") else path

    pages = Resource("docs://{+path}", page)

    assert await only(pages, "docs://a/b") == ResourceContents(
        "docs://a/b", text="a/b", mime_type="text/plain"
    )
    with pytest.raises(ResourceNotFound, match="docs://missing/missing"):
        await read(pages, "docs://missing/missing")


async def test_repo_reads_a_uri_or_the_variables_of_its_template() -> None:
    """Without a template the URI, with one its variables, with `parse_uri` the result of that."""

    class Parsing(Echo):
        async def parse_uri(self, uri: str) -> Any:
            return super().parse_uri(uri), 1

    assert (await only(Echo, "echo://x")).text == '{"key":"echo://x"}'
    assert (await only(Shelves, "echo://a/b/c")).text == '{"key":{"shelf":"a","book":"b/c"}}'
    assert (await only(Parsing, "echo://x")).text == '{"key":["echo://x",1]}'


async def test_base_hooks_of_a_resource_repository() -> None:
    """A repository without `list` lists nothing, and without `read` cannot be read."""
    line = channel()

    assert None is ResourceRoute.of(Echo).lister
    assert Echo().list(None, line) == ()
    assert None is Echo().complete("a", "b", {}, line)
    for hook in (ResourceRepo().read, Resource("a:b").read):
        with pytest.raises(NotImplementedError):
            hook("a:b", line)


@pytest.mark.parametrize("returned", [None, ResourceNotFound("internal://7")])
async def test_not_found_has_the_requested_uri(returned: Any) -> None:
    """None and ResourceNotFound are the same, and so is a URI its template does not fit."""

    class Repo(ResourceRepo):
        prefix = "a:"

        async def read(self, key: str, channel: Channel) -> Any:
            if returned:
                raise returned

    for provider, uri in ((Repo, "a:b"), (Shelves, "echo://a")):
        with pytest.raises(ResourceNotFound) as caught:
            await read(provider, uri)
        assert {"uri": uri} == caught.value.data


async def test_error_of_a_repository_is_the_response() -> None:
    """Its exception is the response."""

    class Repo(Echo):
        def parse_uri(self, uri: str) -> Any:
            raise InvalidParams("not like this")

    with pytest.raises(InvalidParams, match="not like this"):
        await read(Repo, "echo://x")


async def test_value_that_is_no_contents_is_an_error() -> None:
    """The error names hook, pattern and type."""
    error = r"<lambda>\.read \(a:b\) returned object: it is not JSON"
    with pytest.raises(ContractError, match=error):
        await read(Resource("a:b", lambda: object()), "a:b")


def test_repo_prefix_is_that_of_its_template() -> None:
    """A prefix of its own counts more; an empty one is for every URI."""
    assert ResourceRoute.of(Shelves).pattern == "echo://*"
    assert ResourceRoute.of(declare(Shelves, prefix=None, template="x://{a}")).pattern == "x://*"
    assert ResourceRoute.of(declare(Shelves, prefix="echo://a/")).pattern == "echo://a/*"
    assert (
        ResourceRoute.of(declare(Echo, prefix="")).pattern,
        ResourceRoute.of(declare(Echo, prefix="")).key,
    ) == ("*", "")


def yields(self: Any, key: Any, channel: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        (5, "5 is not a resource: give a Resource"),
        (str, "<class 'str'> is not a resource"),
        (Resource, "Resource.uri must be a URI (RFC 3986), not None"),
        (Resource("no uri", 1), "Resource.uri must be a URI (RFC 3986), not 'no uri'"),
        (Resource("a:%zz", 1), "Resource.uri must be a URI"),
        (Resource("a:é", 1), "Resource.uri must be a URI"),
        (Resource("a:b"), "Resource a:b has no content"),
        (Resource("a:b", None), "Resource a:b has no content"),
        (Resource("a:b", object()), "Resource a:b: it is not JSON"),
        (Resource("a:b", yields), "yields yields"),
        (Resource("a:b", lambda path: path), "parameter path is not a variable of a:b"),
        (declare(Resource, uri="a:{b}", read=Echo.read), "a class with read is a ResourceRepo"),
        (Resource("a:b", dict), "Resource a:b: its content is a value or a function"),
        (Resource("a:b", 1, size=-1), "Resource.size must be bytes, not -1"),
        (Resource("a:b", 1, name=" "), "Resource.name is blank"),
        (Resource("a:b", 1, title=""), "Resource.title is blank"),
        (declare(Echo, mime_type=5), "Odd.mime_type must be a text, not 5"),
        (declare(Echo, icons="x"), "Odd.icons must be a list of Icon"),
        (declare(Echo, cache_ttl=-1), "Odd.cache_ttl must be a number of seconds, not -1"),
        (declare(Echo, cache_ttl="1"), "Odd.cache_ttl must be a number of seconds, not '1'"),
        (declare(Echo, cache_scope="all"), "Odd.cache_scope must be 'public' or 'private'"),
        (declare(Echo, annotations=5), "Odd.annotations must be Annotations or a mapping"),
        (declare(Shelves, annotations={"x": 5}), "Odd.annotations: 'x' is not one of audience"),
        (declare(Shelves, annotations={"audience": 5}), "Odd.annotations: Expected `array | null`"),
        (declare(Shelves, annotations={"priority": 2}), "Odd.annotations: priority must be 0 to 1"),
        (declare(Shelves, annotations=Annotations(["dog"])), "Odd cannot be listed: Invalid enum"),  # type: ignore[list-item]
        (declare(Shelves, meta={"x": object()}), "Odd cannot be listed: it is not JSON"),
        (declare(Echo, prefix=None), "Odd needs a prefix or a template; prefix is None"),
        (declare(Echo, prefix=5), "Odd needs a prefix or a template; prefix is 5"),
        (declare(Echo, template="echo://{a}"), "Odd has a template, and no name"),
        (declare(Echo, template="{", name="a"), "URI template '{'"),
        (declare(Shelves, prefix="x://"), "no URI has both the prefix 'x://' and the template"),
        (declare(ResourceRepo, prefix="a:"), "Odd has no read"),
        (declare(Echo, read=yields), "Odd.read yields"),
    ],
)
def test_resource_is_checked_at_registration(provider: Any, error: str) -> None:
    """A wrong attribute is rejected with the class and the attribute."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        ResourceRoute.of(provider)


def test_unknown_attribute_of_a_resource_is_rejected() -> None:
    """A misspelt one is rejected at once; a class with arguments is instantiated by its user."""

    class Needy(Echo):
        def __init__(self, shelf: str) -> None: ...

    with pytest.raises(ConfigurationError, match="Resource takes no mimetype"):
        Resource("a:b", 1, mimetype="x/y")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="Needy takes arguments; give an instance"):
        ResourceRoute.of(Needy)


async def test_read_result_has_ttl_and_cache_scope() -> None:
    """`cache_ttl` is in seconds, on the wire in milliseconds; private by default."""
    kept = await read(declare(Echo, cache_ttl=1.5, cache_scope="public"), "echo://x")
    fixed = await read(Resource("a:b", 1, cache_ttl=60), "a:b")

    assert (kept.ttl_ms, kept.cache_scope) == (1500, "public")
    assert (fixed.ttl_ms, fixed.cache_scope) == (60_000, "private")


@pytest.mark.parametrize("page", ["a:b", {"uri": "a:b"}, None, 5])
async def test_value_that_is_no_page_is_an_error(page: Any) -> None:
    """The error names the hook and the type."""
    held = resources(declare(Echo, list=lambda self, cursor, channel: page))

    with pytest.raises(ContractError, match=r"Odd\.list \(echo://\*\) returned .*: it must return"):
        await page_of(held, 5)


async def test_tuple_of_two_resources_is_a_page() -> None:
    """A tuple of definitions is a page, and not a page and a cursor."""
    pair = (ResourceDefinition("a:1", "1"), ResourceDefinition("a:2", "2"))
    held = resources(declare(Echo, list=lambda self, cursor, channel: pair))

    assert await uris(held, 5) == [["a:1", "a:2"]]
    pair = ([ResourceLink("a:1", "1")], None)  # type: ignore[assignment]
    with pytest.raises(ContractError, match="ResourceLink: each resource must be a ResourceDef"):
        await uris(held, 5)


@pytest.mark.parametrize("version", VERSIONS)
async def test_resource_is_served_on_every_revision(version: str) -> None:
    """Lists, templates and contents; an unknown URI is -32602, before 2026-07-28 -32002."""
    given = [Resource("a:b", "text", name="b"), Shelves]

    async with speak(Suite(name="library", version="1", resources=given), version) as client:

        async def ask(method: str, **params: str) -> Any:
            return (await client.request(method, params)).message

        listed = await ask("resources/list")
        templates = await ask("resources/templates/list")
        contents = await ask("resources/read", uri="a:b")
        shelf = await ask("resources/read", uri="echo://a/b")
        missing = await ask("resources/read", uri="echo://a")

    assert [each["uri"] for each in listed["result"]["resources"]] == ["a:b"]
    (template,) = templates["result"]["resourceTemplates"]
    assert template["uriTemplate"] == "echo://{shelf}/{+book}"
    assert (contents["result"]["contents"]) == [
        {"uri": "a:b", "mimeType": "text/plain", "text": "text"}
    ]
    assert shelf["result"]["contents"][0]["mimeType"] == "application/json"
    assert (-32602 if version == MODERN else -32002) == missing["error"]["code"]
    assert missing["error"]["data"] == {"uri": "echo://a"}
