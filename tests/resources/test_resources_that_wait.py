"""Resources that wait for something, or ask their client, before they are read."""

import asyncio
import inspect
from typing import Any

import msgspec
import pytest

from genmcp import (
    Accepted,
    CapabilityMissing,
    Channel,
    ConfigurationError,
    Continue,
    Declined,
    Done,
    Endpoint,
    Failed,
    Mux,
    Outcome,
    Resource,
    Run,
    Suite,
    elicit,
    job,
)
from genmcp.errors import ResourceNotFound
from genmcp.protocol import ResourceContents
from genmcp.protocol.resources import ReadResourceResult
from genmcp.resources import ResourceRepo
from tests.prompts.answering import ASKABLE, request
from tests.support.asgi import MODERN, Connection


class Word(msgspec.Struct):
    """The required knowledge."""

    word: str


SESAME = {"action": "accept", "content": {"word": "sesame"}}
WRONG = {"action": "accept", "content": {"word": "please"}}
NO = {"action": "decline"}


class Vault(Resource):
    """Is read by those who know the word."""

    uri = "vault://gold"
    cache_ttl = 60
    cache_scope = "public"

    async def read(self, uri: str, channel: Channel) -> Continue:
        channel.assigns["tries"] = 1
        return Continue("word", elicit("The word?", Word))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "word", Done(Accepted(Word("sesame"))):
                return f"gold at the try {channel.assigns['tries']}"
            case "word", Done(Accepted()):
                channel.assigns["tries"] += 1
                return Continue("word", elicit("No. The word?", Word))
            case _, Done(Declined()):
                raise ResourceNotFound("vault://elsewhere")
            case _, Failed(error):
                raise error


class Shelf(ResourceRepo):
    """Boxes that are opened for those who agree."""

    name = "box"
    template = "shelf://{box}"

    def __init__(self) -> None:
        self.parsed: list[str] = []

    def parse_uri(self, uri: str) -> Any:
        self.parsed.append(uri)
        return super().parse_uri(uri)

    def read(self, key: Any, channel: Channel) -> Any:
        return Continue("agreed", elicit("Open it?"))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        if outcome == Done(Declined()):
            return None
        return f"{tag}, and in {channel.request.arguments['box']} is nothing"


def serving(*resources: Any) -> Endpoint:
    return Endpoint(Suite(name="test", version="1", resources=resources))


async def read(app: Any, version: str, uri: str, *answers: Any) -> Connection:
    """Read a resource, answering its questions; return the last response."""
    return await request(app, version, "resources/read", *answers, uri=uri)


def text(answered: Connection) -> str:
    """Return the text that was read."""
    (contents,) = answered.messages[-1]["result"]["contents"]
    found: str = contents["text"]
    return found


@pytest.mark.parametrize("version", ASKABLE)
async def test_resource_sends_questions_on_every_revision(version: str) -> None:
    """One class without a revision continues with each answer of its client, step by step."""
    answered = await read(serving(Vault()), version, "vault://gold", WRONG, SESAME)

    assert text(answered) == "gold at the try 2"


@pytest.mark.parametrize("version", ASKABLE)
async def test_repository_continues_with_its_key(version: str) -> None:
    """`continue_` gets the key of `read`; it is parsed again only for another request."""
    shelf = Shelf()

    answered = await read(serving(shelf), version, "shelf://red", {"action": "accept"})

    assert text(answered) == "agreed, and in red is nothing"
    assert ["shelf://red"] * (2 if version == MODERN else 1) == shelf.parsed


async def test_resource_read_with_answers_must_not_be_cached() -> None:
    """A result that depends on an answer is private (2026-07-28, caching, "Cache Key")."""

    class Given(Vault):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            contents = [ResourceContents("vault://gold", text="silver")]
            return ReadResourceResult(contents=contents, ttl_ms=5, cache_scope="public")

    for vault in (Vault(), Given()):
        result = (await read(serving(vault), MODERN, "vault://gold", SESAME)).json["result"]
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


async def test_resource_read_with_answers_is_not_cached() -> None:
    """That holds as well where the question came up in the store, after a job."""

    class Fetched(Vault):
        async def read(self, uri: str, channel: Channel) -> Continue:
            return Continue("fetched", fetch.job(words="gold"))

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            if tag == "fetched":
                return Continue("word", elicit("The word?", Word))
            return "gold"

    app = serving(Fetched())
    try:
        answered = await read(app, MODERN, "vault://gold", SESAME)
    finally:
        await app.aclose()

    assert text(answered) == "gold"
    result = answered.json["result"]
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


class Late(Resource):
    """Waits for the given wait, and returns the outcome."""

    uri = "late://x"
    cache_ttl = 60
    cache_scope = "public"

    def __init__(self, on: Any) -> None:
        super().__init__()
        self.on = on

    async def read(self, uri: str, channel: Channel) -> Any:
        return Continue("waited", self.on())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return f"{tag}: {outcome} {channel.request.arguments}"


async def later() -> str:
    await asyncio.sleep(0)
    return "here"


@job
async def fetch(run: Run, words: str) -> str:
    return words.upper()


@pytest.mark.parametrize("version", ASKABLE)
@pytest.mark.parametrize(
    ("on", "value"), [(later, "here"), (lambda: fetch.job(words="done"), "DONE")]
)
async def test_resource_waits_for_work(on: Any, value: str, version: str) -> None:
    """The value of an awaitable or a job does not depend on an answer, so it is cached."""
    app = serving(Late(on))
    try:
        answered = await read(app, version, "late://x")
    finally:
        await app.aclose()

    assert text(answered) == f"waited: Done(value={value!r}) late://x"
    if version == MODERN:
        result = answered.json["result"]
        assert (result["ttlMs"], result["cacheScope"]) == (60_000, "public")


@pytest.mark.parametrize("version", ASKABLE)
async def test_resource_not_found_after_a_wait(version: str) -> None:
    """ResourceNotFound from `continue_` is the error, with the requested URI."""
    answered = await read(serving(Vault()), version, "vault://gold", NO)

    error = answered.messages[-1]["error"]
    assert (-32602 if version == MODERN else -32002) == error["code"]
    assert error["data"] == {"uri": "vault://gold"}


async def test_unmatched_tag_of_a_resource_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """None from `continue_` is a defect; it does not mean that the resource does not exist."""
    answered = await read(serving(Shelf()), MODERN, "shelf://red", NO)

    assert answered.json["error"]["code"] == -32603
    assert (
        "Shelf.continue_ (shelf://*) returned None for tag 'agreed' and Done: add a case for them"
    ) in caplog.text


async def test_removed_resource_is_not_continued() -> None:
    """Where the request with the answer has no key, the resource does not exist."""

    class Empty(Shelf):
        def parse_uri(self, uri: str) -> Any:
            return None

    suites = [Suite(name="test", version="1", resources=[each]) for each in (Shelf, Empty)]
    now = [Endpoint(Mux(suite, secret="s" * 32)) for suite in suites]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await now.pop(0)(scope, receive, send)

    answered = await read(app, MODERN, "shelf://red", {"action": "accept"})

    assert answered.json["error"]["code"] == -32602
    assert answered.json["error"]["data"] == {"uri": "shelf://red"}


async def test_resource_without_continuation_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A Continue without a `continue_` fails that read; its awaitable never starts."""
    made: list[Any] = []

    async def function() -> Any:
        made.append(later())
        return Continue("never", made[-1])

    answered = await read(serving(Resource("x://y", function)), MODERN, "x://y")

    assert answered.json["error"]["code"] == -32603
    assert "function.read (x://y) returned Continue: it has no continue_" in caplog.text
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_resource_annotated_to_wait_needs_a_continue_() -> None:
    """A class is refused when it is made, a function when it is registered."""
    with pytest.raises(ConfigurationError, match=r"Waits\.read is annotated to return Continue"):

        class Waits(Resource):
            async def read(self, uri: str, channel: Channel) -> str | Continue:
                raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"Repo\.read is annotated to return Continue"):

        class Repo(ResourceRepo):
            async def read(self, key: Any, channel: Channel) -> "Continue":
                raise NotImplementedError

    async def waiting() -> Continue:
        raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"waiting is annotated to return Continue"):
        serving(Resource("x://y", waiting))


async def test_function_may_continue_in_a_class() -> None:
    """A class with a `continue_` may have a function as its content."""

    async def waiting() -> Continue:
        return Continue("waited", later())

    class Function(Resource):
        uri = "x://y"
        content = staticmethod(waiting)

        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return f"{outcome}"

    assert text(await read(serving(Function), MODERN, "x://y")) == "Done(value='here')"


async def test_resource_continue_has_no_default() -> None:
    """A hook that is not implemented cannot be called."""
    nothing: Any = None

    for kind in (Resource("x://y", ""), ResourceRepo()):
        with pytest.raises(NotImplementedError):
            kind.continue_("x", Failed(CapabilityMissing({})), nothing)
