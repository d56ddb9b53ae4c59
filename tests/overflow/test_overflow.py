"""Results above `overflow`: their beginning is sent, the whole is kept and read in ranges."""

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Access,
    CallToolResult,
    Channel,
    Client,
    ClientHandler,
    ConfigurationError,
    Continue,
    Endpoint,
    Hub,
    Image,
    Limits,
    MemoryStore,
    Mux,
    Provider,
    Registry,
    Run,
    Suite,
    TextContent,
    Tool,
    ToolError,
    elicit,
    embedded_resource,
    job,
    load_servers,
    result,
    tool,
)
from genmcp.client.errors import ServerError
from genmcp.errors import StoreFull, StoreUnavailable
from genmcp.overflow import LENGTH, MAX_RANGE, TTL, read_result
from genmcp.protocol.content import ImageContent, ResourceLink
from genmcp.stores.store import Op, Put
from genmcp.testing import connect
from tests.support.asgi import PATIENCE, TASKS, until
from tests.support.asgi import Client as HttpClient
from tests.support.clock import Clock
from tests.support.serving import serve
from tests.support.stores import stored_keys

LIMIT = 1000
SECRET = "a secret of 32 bytes for a test."
NEXT = re.compile(r"read (overflow://\S+)\?from=(\d+)&to=(\d+)]$")
ANN, BEN = (Access(subject=name) for name in ("ann", "ben"))


def returning(value: Any, **options: Any) -> Tool:
    """Return a tool that returns *value*."""

    class Returns(Tool):
        """Returns a value."""

        name = "returns"

        async def call(self, request: Any, channel: Channel) -> Any:
            return value

    made = Returns()
    for name, each in options.items():
        setattr(made, name, each)
    return made


def suite_of(*tools: Any, overflow: int | None = LIMIT, **options: Any) -> Suite:
    return Suite("test", tools=tools, overflow=overflow, **options)


async def called(client: Client, name: str = "returns") -> CallToolResult:
    return await client.call(name)


def links(found: CallToolResult) -> list[ResourceLink]:
    return [each for each in found.content if isinstance(each, ResourceLink)]


def texts(found: CallToolResult) -> list[str]:
    return [each.text for each in found.content if isinstance(each, TextContent)]


async def read(client: Client, uri: str) -> Any:
    (contents,) = (await client.read(uri)).contents
    return contents


async def whole(client: Client, uri: str) -> str:
    """Read the whole, from the first character to the last."""
    return (await read(client, uri)).text  # type: ignore[no-any-return]


TEXTS = {
    "lines": ("".join(f"line {number}\n" for number in range(1000)), "\n"),
    "words": ("several words é " * 500, " "),
    "one word": ("é" * 5000, "é"),
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_text_is_cut_and_read_on_where_it_was_cut(kind: str) -> None:
    """At a line or a word; the last range is shorter than the others."""
    text, end = TEXTS[kind]
    async with connect(suite_of(returning(text))) as client:
        found = await called(client)
        begin, note = texts(found)
        uri, at, to = NEXT.search(note).groups()  # type: ignore[union-attr]
        parts = [begin, await whole(client, f"{uri}?from={at}&to={to}")]
        starts = range(int(to), len(text), LIMIT)
        parts += [await whole(client, f"{uri}?from={n}&to={n + LIMIT}") for n in starts]
        (link,) = links(found)
        complete = await read(client, link.uri)

    assert LIMIT // 2 < len(begin) <= LIMIT
    assert begin.endswith(end)
    assert "".join(parts) == complete.text == text
    assert f"{len(text)} characters" in note
    assert (link.mime_type, link.size) == ("text/plain", len(text.encode()))
    assert link.meta == complete.meta == {LENGTH: len(text)}


async def test_result_within_the_limit_is_sent_as_it_is() -> None:
    """It is compared in characters: their bytes, and the escapes of JSON, do not count."""
    store = MemoryStore()
    mux = Mux(suite_of(returning({"text": "é" * 980})), store=store)
    async with connect(mux) as client:
        found = await called(client)

    assert found.structured_content == {"text": "é" * 980}
    assert links(found) == []
    assert stored_keys(store) == []
    await mux.aclose()


@tool
async def numbers() -> list[int]:
    """Numbers."""
    return list(range(5000))


@tool
async def things() -> list[Any]:
    """Numbers, without a schema of the items that could be wrong."""
    return [{"n": n, "text": 'a "quoted], text'} for n in range(500)]


@pytest.mark.parametrize("function", [numbers, things])
async def test_list_is_cut_at_an_element(function: Any) -> None:
    """What is sent fits the output schema; the next range begins with the next element."""
    async with connect(suite_of(function)) as client:
        found = await called(client, function.__name__)
        begin, note = texts(found)
        uri, at, _ = NEXT.search(note).groups()  # type: ignore[union-attr]
        rest = await read(client, f"{uri}?from={at}")
        elements = json.loads(await whole(client, uri))

    sent = json.loads(begin)
    assert LIMIT // 2 < len(begin) <= LIMIT
    assert sent == found.structured_content == elements[: len(sent)]
    assert json.loads("[" + rest.text) == elements[len(sent) :]
    assert rest.mime_type == "application/json"
    assert len(elements) == len(await function())


async def test_list_without_a_schema_is_cut_at_an_element() -> None:
    """It is sent as text alone."""
    async with connect(suite_of(returning([*range(5000)]))) as client:
        found = await called(client)
        begin, _ = texts(found)

    assert json.loads(begin) == [*range(len(json.loads(begin)))]
    assert links(found)[0].mime_type == "application/json"


@pytest.mark.parametrize(
    "text",
    [
        "[INFO] " + "a, b, c " * 500,
        "[INFO, at first, " * 500,
        '["' + "a, b, " * 500 + '"]',
        "[[1, 2], 3] and more " * 100,
    ],
)
async def test_text_that_resembles_a_list_is_cut_as_text(text: str) -> None:
    """A line of a log may begin with a bracket."""
    async with connect(suite_of(returning(text))) as client:
        found = await called(client)
        begin, _ = texts(found)
        assert text.startswith(begin)
        assert await whole(client, links(found)[0].uri) == text


ROWS = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": "array", "maxItems": 600},
        "total": {"type": "integer"},
    },
    "required": ["rows", "more", "total"],
}


@pytest.mark.parametrize("more", [3, 600])
async def test_lists_of_an_object_are_cut_the_longest_first(more: int) -> None:
    """The other members stay, so that the schema stays satisfied."""
    value = {"rows": [*range(3000)], "more": [*range(more)], "total": 7}
    async with connect(suite_of(returning(value, output_schema=ROWS))) as client:
        found = await called(client)
        kept = json.loads(await whole(client, links(found)[0].uri))

    sent: Any = found.structured_content
    assert sent["total"] == 7
    assert sent["rows"] == value["rows"][: len(sent["rows"])]  # type: ignore[index]
    assert sent["more"] == value["more"][: len(sent["more"])]  # type: ignore[index]
    assert (len(sent["more"]) == more) is (more == 3)
    assert texts(found)[0] == json.dumps(sent, separators=(",", ":"))
    assert len(texts(found)[0]) <= LIMIT
    assert kept == value
    assert not found.is_error


@pytest.mark.parametrize("overflow", [LIMIT, 350_000])
async def test_whole_is_not_checked_against_the_schema(overflow: int) -> None:
    """Its values may be more than a schema is checked with: what is sent fits the schema."""
    value = {"rows": [1] * 250_000, "more": [], "total": 7}
    async with connect(suite_of(returning(value, output_schema=ROWS), overflow=overflow)) as client:
        found = await called(client)

    sent: Any = found.structured_content
    assert sent["rows"] == [1] * len(sent["rows"])
    assert len(texts(found)[0]) <= overflow
    assert not found.is_error


STRICT = {"type": "object", "properties": {"rows": {"type": "array", "minItems": 2000}}}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"text": "a word " * 1000}, {"type": "object"}),
        ({"rows": [*range(3000)]}, STRICT),
        ({"rows": [], "text": "a word " * 1000}, {"type": "object"}),
        ("a word " * 1000, {"type": "string"}),
    ],
)
async def test_link_replaces_data_that_cannot_be_cut(value: Any, schema: Any) -> None:
    """As an error: a client must find structured content that fits the schema, or `isError`."""
    async with connect(suite_of(returning(value, output_schema=schema))) as client:
        found = await called(client)
        kept = json.loads(await whole(client, links(found)[0].uri))

    assert found.is_error
    assert found.structured_content is not value
    assert len(texts(found)[0]) <= LIMIT
    assert kept == value


async def test_object_without_a_schema_is_cut_as_text() -> None:
    """It is no error: nothing promised structured content."""
    value = {"text": "a word " * 1000}
    async with connect(suite_of(returning(value))) as client:
        found = await called(client)

    assert not found.is_error
    assert json.dumps(value, separators=(",", ":")).startswith(texts(found)[0])


async def test_text_and_other_data_are_kept_separately() -> None:
    """A summary stays; long data without a text form gets its own link."""
    data = {"rows": [*range(3000)]}
    async with connect(
        suite_of(
            returning(result("summary", data=data, as_text=False)),
            returning(result("a word " * 1000, "more", data=data), name="both"),
        )
    ) as client:
        short = await called(client)
        both = await called(client, "both")
        kept = [await whole(client, link.uri) for link in links(both)]

    assert texts(short)[0] == "summary"
    assert len(links(short)) == 1
    assert kept[0] == "a word " * 1000 + "\nmore"
    assert json.loads(kept[1]) == data


@pytest.mark.parametrize("as_text", [True, False])
async def test_data_of_several_chunks_is_read_as_it_was(as_text: bool) -> None:
    """A character of two bytes may be cut between two chunks; the text form is kept once."""
    data = {"rows": ["x" + "é" * number for number in range(1000)]}
    store = MemoryStore()
    value = result(data=data, as_text=as_text)
    mux = Mux(suite_of(returning(value)), store=store)
    async with connect(mux) as client:
        found = await called(client)
        kept = await whole(client, links(found)[0].uri)

    assert json.loads(kept) == data
    assert len(kept) > 500_000
    assert len(stored_keys(store)) == 1 + 3
    await mux.aclose()


async def test_texts_are_kept_as_one() -> None:
    """Each is short, and all together are not."""
    lines = [f"line {number}" for number in range(500)]
    blocks = [TextContent(line) for line in lines]
    async with connect(suite_of(returning(blocks))) as client:
        found = await called(client)
        kept = await whole(client, links(found)[0].uri)

    assert len(found.content) == 3
    assert kept == "\n".join(lines)


async def test_binary_content_is_replaced_by_a_link() -> None:
    """What fits stays. Ranges of the rest are counted in bytes."""
    data = bytes(range(256)) * 3000
    small = Image(b"small")
    value = [TextContent("two images"), small, Image(data), embedded_resource("a://b", data)]
    async with connect(suite_of(returning(value))) as client:
        found = await called(client)
        first, second = links(found)
        contents = await read(client, f"{first.uri}?from=250&to=700000")
        complete = await read(client, second.uri)

    assert found.content[:2] == [TextContent("two images"), small.block()]
    assert base64.b64decode(contents.blob) == data[250:700000]
    assert base64.b64decode(complete.blob) == data
    assert (first.mime_type, first.size, first.meta) == ("image/png", 768000, {LENGTH: 768000})
    assert (second.mime_type, second.name) == (None, "a://b")
    assert "768000 bytes" in (first.description or "")


async def test_embedded_text_is_replaced_by_a_link() -> None:
    """It is read as text."""
    value = [TextContent("a file"), embedded_resource("a://b", "é" * 5000)]
    async with connect(suite_of(returning(value))) as client:
        found = await called(client)
        contents = await read(client, links(found)[0].uri + "?from=4000")

    assert (contents.text, contents.mime_type) == ("é" * 1000, None)


async def test_limit_of_a_result_bounds_what_is_sent() -> None:
    """`Limits.max_result_bytes`, of the result and of a read."""
    mux = Mux(suite_of(returning("x" * 50_000)), limits=Limits(max_result_bytes=5000))
    async with connect(mux) as client:
        (link,) = links(await called(client))
        part = await read(client, link.uri + "?from=46000")
        with pytest.raises(ServerError, match="limit: max_result_bytes"):
            await client.read(link.uri)

    assert part.text == "x" * 4000
    await mux.aclose()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?from=5000&to=6000", "from=5000 is not before to=5000, of 5000"),
        ("?from=20&to=10", "from=20 is not before to=10"),
        ("?from=-1", "a range is given as ?from=0&to=1000"),
        ("?from=1&from=2", "a range is given as"),
        ("?page=2", "?page=2: a range is given as"),
    ],
)
async def test_wrong_range_is_an_error_that_names_it(query: str, message: str) -> None:
    """With the length, from which the client can compute another."""
    async with connect(suite_of(returning("x" * 5000))) as client:
        (link,) = links(await called(client))
        with pytest.raises(ServerError, match=re.escape(message)):
            await client.read(link.uri + query)


async def test_range_that_is_too_long_is_an_error() -> None:
    """The whole of a long result, too: the error names a range that can be read."""
    async with connect(suite_of(returning("x" * (MAX_RANGE + 1)))) as client:
        (link,) = links(await called(client))
        with pytest.raises(ServerError, match=r"at most 1000000: overflow://.*from=0&to=1000000"):
            await client.read(link.uri)
        longest = await read(client, link.uri + f"?from=1&to={MAX_RANGE + 1}")

    assert len(longest.text) == MAX_RANGE


async def test_model_with_tools_only_reads_on_by_a_tool() -> None:
    """`read_result` among the tools, which is not shortened itself."""
    tools = (returning("x" * 5000), read_result, returning(Image(b"x" * 5000), name="image"))
    async with connect(suite_of(*tools)) as client:
        (link,) = links(await called(client))
        (image,) = links(await called(client, "image"))
        uris = [link.uri + "?from=4000", link.uri, image.uri, "overflow://unknown"]
        part, complete, binary, unknown = [
            await client.call("read_result", {"uri": uri}) for uri in uris
        ]

    assert (part.text, complete.text) == ("x" * 1000, "x" * 5000)
    assert (binary.is_error, binary.text) == (True, "The result is binary (image/png).")
    assert (unknown.is_error, unknown.text) == (
        True,
        "There is no such result, or it has expired.",
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?from=1000001", "from=1000001 is not before to=1000001, of 1000001"),
        ("", "of which a read returns at most 1000000: URI?from=0&to=1000000"),
        ("?page=2", "URI?page=2: a range is given as ?from=0&to=1000"),
    ],
)
async def test_wrong_range_is_an_error_that_the_model_reads(query: str, message: str) -> None:
    """`isError`: hosts do not show a protocol error to the model."""
    tools = (returning("x" * (MAX_RANGE + 1)), read_result)
    async with connect(suite_of(*tools)) as client:
        (link,) = links(await called(client))
        found = await client.call("read_result", {"uri": link.uri + query})

    assert found.is_error
    assert message in found.text.replace(link.uri, "URI")


# Who may read.


async def refused(client: Client, uri: str) -> str:
    with pytest.raises(ServerError) as error:
        await client.read(uri)
    return str(error.value).replace(uri, "URI")


async def test_forged_foreign_and_expired_links_are_refused_alike() -> None:
    """With the error of a resource that does not exist."""
    clock = Clock(1000.0)
    store = MemoryStore(clock=clock)
    mux = Mux(suite_of(returning("x" * 5000)), store=store, secret=SECRET, clock=clock)
    async with connect(mux, access=ANN) as ann, connect(mux, access=BEN) as ben:
        (link,) = links(await called(ann))
        assert len(await whole(ann, link.uri)) == 5000
        async with connect(mux) as anonymous:
            errors = [
                await refused(ben, link.uri),
                await refused(anonymous, link.uri),
                await refused(ann, "overflow://" + "0" * 32),
                await refused(ann, "overflow://not-an-id"),
                # A range that is not in the result does not disclose that there is one.
                await refused(ben, link.uri + "?from=9999"),
            ]
        await clock.advance(TTL + 1)
        errors.append(await refused(ann, link.uri))
        await clock.advance(60)
        await store.apply(Put("other", b""))

    assert set(errors) == {"Resource not found: URI (-32602)"}
    assert stored_keys(store) == ["other"]
    await mux.aclose()


async def test_link_needs_the_scopes_of_the_tool() -> None:
    """As a call does: a token of the same user without them gets 403, with their names."""
    mux = Mux(suite_of(returning("x" * 5000, scopes=["admin"]), read_result))
    admin = HttpClient(Endpoint(mux), user=Access(subject="ann", scopes=frozenset({"admin"})))
    answer = await admin.send(admin.call("returns"))
    uri = answer.json["result"]["content"][2]["uri"]
    guest = HttpClient(Endpoint(mux), user=ANN)
    answers = {
        client: [
            await client.send(client.request("resources/read", {"uri": f"{uri}?from=4990"})),
            await client.send(client.call("read_result", {"uri": f"{uri}?from=4990"})),
        ]
        for client in (admin, guest)
    }
    resource, tool_result = (answer.json["result"] for answer in answers[admin])

    assert [each["text"] for each in resource["contents"] + tool_result["content"]] == [
        "x" * 10
    ] * 2
    for answer in answers[guest]:
        assert answer.status == 403
        assert 'scope="admin"' in answer.headers["www-authenticate"]
    await mux.aclose()


async def test_anonymous_link_is_for_whoever_has_it() -> None:
    """It has 128 random bits: nobody else can guess it, and no list contains it."""
    mux = Mux(suite_of(returning("x" * 5000)))
    async with connect(mux) as first, connect(mux) as second:
        (link,) = links(await called(first))
        assert re.fullmatch("overflow://[0-9a-f]{32}", link.uri)
        assert len(await whole(second, link.uri)) == 5000
        assert (await second.resources(), await second.templates()) == ([], [])
    await mux.aclose()


async def test_link_outlives_the_process_and_a_rotated_secret() -> None:
    """Another mux over the same store opens it with the secret that has sealed it."""
    store, suite = MemoryStore(), suite_of(returning("x" * 5000))
    first = Mux(suite, store=store, secret=SECRET)
    second = Mux(suite, store=store, secret=["another secret of 32 bytes......", SECRET])
    other = Mux(suite, store=store, secret="another secret of 32 bytes......")
    async with connect(first) as client:
        (link,) = links(await called(client))
    async with connect(second) as client:
        assert len(await whole(client, link.uri)) == 5000
    async with connect(other) as client:
        await refused(client, link.uri)
    await first.aclose()


async def test_result_that_expires_while_it_is_read_is_refused() -> None:
    """A range is complete, or an error."""
    store = MemoryStore()
    mux = Mux(suite_of(returning("x" * 500_000)), store=store)
    async with connect(mux) as client:
        (link,) = links(await called(client))
        keys = stored_keys(store)
        await store.touch(keys[1], 0.0)
        error = await refused(client, link.uri)

    assert len(keys) == 1 + 3
    assert "Resource not found" in error
    await mux.aclose()


# The store.


class Failing(MemoryStore):
    """A store that rejects a write, after which it accepts others."""

    def __init__(self, error: Exception, place: int = 1) -> None:
        super().__init__()
        self.error, self.left = error, place

    async def apply(self, *ops: Op) -> None:
        if isinstance(ops[0], Put) and ops[0].key.startswith("overflow:"):
            self.left -= 1
            if self.left < 0:
                raise self.error
        await super().apply(*ops)


async def test_client_fills_half_of_its_share_at_most() -> None:
    """The result is then an error, nothing of it is left, and everything else works."""
    store = MemoryStore(max_bytes=1_000_000)  # of which a client has 250,000
    mux = Mux(suite_of(returning("x" * 50_000), returning("short", name="short")), store=store)
    async with connect(mux, access=ANN) as ann, connect(mux, access=BEN) as ben:
        found = [await called(ann) for _ in range(4)]
        short = await called(ann, "short")
        other = await called(ben)
        kept = [await whole(ann, link.uri) for each in found for link in links(each)]

    assert [each.is_error for each in found] == [False, False, True, True]
    assert "longer than 1000 characters (limit: overflow)" in found[2].text
    assert found[2].text.endswith("there is no room in its client's share of the store")
    assert [len(each) for each in kept] == [50_000, 50_000]
    assert (await store.usage(f"principal {ANN.principal}")).entries == 4
    assert (short.text, other.is_error) == ("short", False)
    await mux.aclose()


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("error", [StoreFull, StoreUnavailable])
async def test_store_that_fails_keeps_nothing(error: type[Exception], place: int) -> None:
    """The error of the call tells nothing about the store."""
    store = Failing(error("at 10.0.0.1"), place)
    mux = Mux(suite_of(returning("x" * 300_000)), store=store)
    async with connect(mux) as client:
        found = await called(client)

    assert found.is_error
    assert found.text.endswith(
        "could not be kept: there is no room in the store, or it does not work"
    )
    assert stored_keys(store) == []
    await mux.aclose()


async def test_refused_result_leaves_none_of_its_parts() -> None:
    """Its text had room, and its image has not. What other calls have kept stays."""
    store = MemoryStore(max_bytes=1_000_000)  # of which a client's kept results have 125,000
    value = [TextContent("x" * 50_000), Image(b"x" * 100_000)]
    mux = Mux(suite_of(returning(value), returning("x" * 5000, name="other")), store=store)
    async with connect(mux, access=ANN) as ann:
        (link,) = links(await called(ann, "other"))
        before = stored_keys(store)
        found = await called(ann)
        assert len(await whole(ann, link.uri)) == 5000

    assert found.is_error
    assert found.text.endswith("there is no room in its client's share of the store")
    assert stored_keys(store) == before
    await mux.aclose()


@pytest.mark.parametrize("value", ["x" * 300_000 + "\ud800", ImageContent("=" * 2000, "image/png")])
async def test_result_that_cannot_be_stored_is_an_error(value: Any, caplog: Any) -> None:
    """Half of a surrogate pair, and base64 that is none. Neither is kept in part."""
    store = MemoryStore()
    mux = Mux(suite_of(returning(value)), store=store)
    async with connect(mux) as client:
        found = await called(client)

    assert found.is_error
    assert "The tool failed unexpectedly" in found.text
    assert stored_keys(store) == []
    await mux.aclose()


class Stalling(MemoryStore):
    """A store that never returns from the write of a second chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        await super().apply(*ops)
        if isinstance(ops[0], Put) and ops[0].key.endswith("#1"):
            self.reached.set()
            await asyncio.Event().wait()


async def test_cancelled_call_keeps_nothing() -> None:
    """The chunks that were written before are deleted."""
    store = Stalling()
    mux = Mux(suite_of(returning("x" * 500_000)), store=store)
    async with connect(mux) as client:
        call = asyncio.create_task(called(client))
        await asyncio.wait_for(store.reached.wait(), PATIENCE)
        assert len(stored_keys(store)) == 2
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: stored_keys(store) == [])
    await mux.aclose()


# Calls that wait.


@job(name="overflow.lines")
async def lines(run: Run) -> str:
    return "line\n" * 1000


class Waits(Tool):
    """Waits for a job."""

    name = "waits"
    result_ttl = 7200.0

    async def call(self, request: Any, channel: Channel) -> Continue:
        return lines.job().then(self.done)

    async def done(self, request: Any, value: str, channel: Channel) -> str:
        return value


async def test_value_of_a_job_is_kept_as_long_as_its_task() -> None:
    """The record of the task has the beginning and the link."""
    mux = Mux(suite_of(Waits()))
    client = HttpClient(Endpoint(mux), capabilities=TASKS)
    id = (await client.send(client.call("waits"))).json["result"]["taskId"]
    async with asyncio.timeout(PATIENCE):
        task: dict[str, Any] = {"status": "working"}
        while task["status"] == "working":
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task = answer.json["result"]
    begin, note, link = task["result"]["content"]
    answer = await client.send(client.request("resources/read", {"uri": link["uri"]}))

    assert begin["text"] == "line\n" * 200
    assert "kept for 120 minutes" in note["text"]
    assert answer.json["result"]["contents"][0]["text"] == "line\n" * 1000
    await mux.aclose()


@tool
async def asks() -> Continue:
    """Asks, and returns a long text."""
    return elicit("Sure?", {"type": "object", "properties": {}}).then(answered)


@asks.step
async def answered(value: Any) -> str:
    return "word " * 1000


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_result_after_a_question_is_shortened(revision: str) -> None:
    """In the step, as in `call`."""

    class Answers(ClientHandler):
        def handle_elicitation_create(self, message: str, schema: Any) -> Accepted:
            return Accepted({})

    async with connect(suite_of(asks), handler=Answers(), revision=revision) as client:
        found = await called(client, "asks")
        assert len(await whole(client, links(found)[0].uri)) == 5000


# Errors.

LONG = "a line of the error\n" * 500


@job(name="overflow.fails")
async def fails(run: Run) -> str:
    raise ToolError(LONG)


@tool
async def waits_in_vain() -> Continue:
    """Waits for a job that fails."""
    return fails.job().then(never)


@waits_in_vain.step
async def never(value: Any) -> str:
    return ""


@tool
async def raises() -> str:
    """Fails."""
    raise ToolError(LONG)


@pytest.mark.parametrize("function", [raises, waits_in_vain])
async def test_text_of_an_error_is_shortened(function: Any) -> None:
    """Of the tool, and of the job that it waited for. The whole can be read."""
    async with connect(suite_of(function)) as client:
        found = await called(client, function.__name__)
        uri, at, _ = NEXT.search(found.text).groups()  # type: ignore[union-attr]
        kept = await whole(client, uri)

    begin, _ = found.text.split("[The result is shortened.")
    assert found.is_error
    assert LIMIT // 2 < int(at) <= LIMIT
    assert kept == LONG
    assert begin == kept[: int(at)] + "\n"


async def test_shortened_error_keeps_that_a_call_may_be_sent_again() -> None:
    """With the same idempotency key."""
    count = 0

    @tool(idempotency_key="key")
    async def once(key: str) -> str:
        nonlocal count
        count += 1
        raise ToolError(LONG, retry=key == "retry")

    async with connect(suite_of(once), access=ANN) as client:
        for key in ("retry", "final") * 2:
            await client.call("once", {"key": key})

    assert count == 2 + 1


# Where it applies.


async def test_revision_without_links_gets_them_as_text() -> None:
    """2025-03-26 and 2024-11-05."""
    async with connect(suite_of(returning("x" * 5000)), revision="2025-03-26") as client:
        found = await called(client)
        uri, at, to = NEXT.search(texts(found)[1]).groups()  # type: ignore[union-attr]
        rest = await read(client, f"{uri}?from={at}&to={to}")

    assert texts(found)[2] == f"returns: {uri}"
    assert rest.text == "x" * 1000


async def test_tool_sets_another_limit_than_its_suite() -> None:
    """The resources are also served if only a tool has a limit."""
    tools = [returning("x" * 5000, overflow=2000), returning("x" * 5000, name="other")]
    async with connect(suite_of(*tools)) as client:
        sent = [texts(await called(client, name))[0] for name in ("returns", "other")]
        assert [*map(len, sent)] == [2000, 1000]
    async with connect(suite_of(*tools, overflow=None)) as client:
        (link,) = links(await called(client))
        assert links(await called(client, "other")) == []
        assert len(await whole(client, link.uri)) == 5000


class Office(Provider):
    """Has a tool."""

    def __init__(self, overflow: int | None) -> None:
        self.tool = returning("x" * 5000, overflow=overflow)

    def tools(self, access: Any, assigns: Any) -> Iterable[object]:
        yield self.tool


@pytest.mark.parametrize(("own", "length"), [(None, 1000), (3000, 3000)])
async def test_tools_of_providers_have_the_limit_of_the_suite(own: Any, length: int) -> None:
    """Or their own."""
    async with connect(suite_of(providers=[Office(own)])) as client:
        found = await called(client)
        assert len(texts(found)[0]) == length
        assert len(await whole(client, links(found)[0].uri)) == 5000


async def test_limit_of_a_providers_tool_alone_is_an_error(caplog: Any) -> None:
    """The suite would not serve what is kept."""
    async with connect(suite_of(providers=[Office(3000)], overflow=None)) as client:
        with pytest.raises(ServerError, match="Internal error"):
            await client.tools()
    assert "Returns.overflow: set Suite(overflow=), too" in caplog.text


async def test_link_is_read_through_a_registry() -> None:
    """Several of its servers may have the result."""
    short, long = suite_of(returning("short")), suite_of(returning("x" * 5000))
    registry = Registry([short])
    registry.add(long, name="second")
    async with connect(registry.server()) as client:
        found = await called(client, "second/returns")
        assert len(await whole(client, links(found)[0].uri)) == 5000
        assert "Resource not found" in await refused(client, "overflow://" + "0" * 32)


async def test_link_is_read_through_a_hub() -> None:
    """The hub asks the server that has it, although no list contains it."""
    async with serve(Endpoint(suite_of(returning("x" * 5000)))) as url, Hub() as hub:
        await hub.add_all(load_servers({"mcpServers": {"far": {"url": f"{url}/mcp"}}}))
        async with connect(hub.server()) as client:
            found = await called(client, "far/returns")
            assert len(await whole(client, links(found)[0].uri)) == 5000


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "64000"])
@pytest.mark.parametrize(
    "define",
    [
        lambda value: Suite("test", overflow=value),
        lambda value: type("Mine", (Tool,), {"name": "mine", "overflow": value}),
        lambda value: tool(overflow=value)(lines_of_text),
        lambda value: suite_of(returning("", overflow=value)),
    ],
)
def test_wrong_limit_is_an_error(define: Callable[[Any], Any], wrong: Any) -> None:
    """When the tool or the suite is defined."""
    with pytest.raises(ConfigurationError, match=r"overflow must be a number of characters"):
        define(wrong)


async def lines_of_text() -> str:
    """Text."""
    return ""


def test_server_without_a_limit_does_not_load_it() -> None:
    """With one it does."""
    program = """
import sys
from genmcp import Mux, Suite, tool

@tool
def add(a: int, b: int) -> int:
    return a + b

Mux(Suite("test", tools=[add]))
assert "genmcp.overflow" not in sys.modules
Mux(Suite("test", tools=[add], overflow=64_000))
assert "genmcp.overflow" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
