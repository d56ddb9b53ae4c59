"""Dependencies of hooks, steps and jobs: `Depends`."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import fastapi
import pytest

from genmcp import (
    Channel,
    ConfigurationError,
    Continue,
    Depends,
    Prompt,
    PromptRequest,
    Resource,
    Run,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    job,
    prompt,
    tool,
)
from genmcp.testing import RecordingClient, connect, replace_dependency
from tests.support.handlers import AcceptingHandler

LOG: list[str] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()


class Session:
    """A database session, which records how it ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads = {threading.get_ident()}


async def open_session(channel: Channel) -> AsyncIterator[Session]:
    LOG.append("open")
    try:
        yield Session(f"session of {channel.principal}")
    except ToolError:
        LOG.append("rollback")
        raise
    finally:
        LOG.append("close")


def settings() -> dict[str, str]:
    LOG.append("settings")
    return {"city": "Bonn"}


def blocking_session(
    settings: Annotated[dict[str, str], Depends(settings)],
) -> Iterator[Session]:
    session = Session(settings["city"])
    try:
        yield session
    finally:
        session.threads.add(threading.get_ident())
        LOG.append(f"closed in {len(session.threads)} threads")


async def stock(
    session: Annotated[Session, Depends(open_session)],
    settings: Annotated[dict[str, str], Depends(settings)],
) -> str:
    return f"{session.name} in {settings['city']}"


SessionOf = Annotated[Session, Depends(open_session)]


@tool
async def find(
    name: str,
    session: SessionOf,
    stock: Annotated[str, Depends(stock)],
    settings: Annotated[dict[str, str], Depends(settings)],
    fails: bool = False,
) -> str:
    """Finds a part."""
    LOG.append("call")
    if fails:
        raise ToolError("gone")
    return f"{name}: {stock} with {session.name}"


def client_of(*tools: Any, **more: Any) -> RecordingClient:
    return connect(Suite(name="test", version="1", tools=tools, **more))


async def test_function_gets_its_dependencies() -> None:
    """Each is created once per call, and closed after it."""
    async with client_of(find) as client:
        result = await client.call("find", {"name": "screw"})

    assert result.text == "screw: session of None in Bonn with session of None"
    assert LOG.count("settings") == 1
    assert [each for each in LOG if each != "settings"] == ["open", "call", "close"]


async def test_each_call_has_dependencies_of_its_own() -> None:
    """Concurrent calls must not share a session."""
    async with client_of(find) as client:
        await asyncio.gather(*(client.call("find", {"name": "a"}) for _ in range(3)))

    assert (LOG.count("open"), LOG.count("close")) == (3, 3)


async def test_client_does_not_see_dependencies() -> None:
    """They are not in the input schema, and cannot be passed as arguments."""
    async with client_of(find) as client:
        schema = (await client.tools())[0].input_schema
        result = await client.call("find", {"name": "a", "session": "b"})

    assert list(schema["properties"]) == ["name", "fails"]
    assert result.is_error
    assert "/session: unexpected property" in result.text


async def test_dependency_sees_the_error_of_the_call() -> None:
    """A transaction is rolled back this way."""
    async with client_of(find) as client:
        result = await client.call("find", {"name": "a", "fails": True})

    assert result.text == "gone"
    assert LOG[-2:] == ["rollback", "close"]


async def test_failure_of_a_dependency_ends_the_call() -> None:
    """The function does not run; dependencies that are already open are closed."""

    async def refuse(session: SessionOf) -> None:
        raise ToolError(f"no stock for {session.name}")

    @tool
    async def take(nothing: Annotated[None, Depends(refuse)]) -> None:
        LOG.append("call")

    async with client_of(take) as client:
        result = await client.call("take")

    assert result.text == "no stock for session of None"
    assert LOG == ["open", "rollback", "close"]


async def test_cancelled_call_closes_its_dependencies() -> None:
    """A connection returns to its pool even if the client has disconnected."""
    started = asyncio.Event()

    @tool(on_disconnect="cancel")
    async def wait(session: SessionOf) -> None:
        started.set()
        await asyncio.Event().wait()

    async with client_of(wait) as client:
        calling = asyncio.create_task(client.call("wait"))
        await started.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    assert LOG == ["open", "close"]


async def test_blocking_function_shares_the_thread_of_its_session() -> None:
    """An SQLite connection can only be used in the thread that opened it."""

    def connection() -> Iterator[sqlite3.Connection]:
        opened = sqlite3.connect(":memory:")
        yield opened
        opened.close()

    @tool
    def ask(
        database: Annotated[sqlite3.Connection, Depends(connection)],
        session: Annotated[Session, Depends(blocking_session)],
    ) -> int:
        session.threads.add(threading.get_ident())
        found: int = database.execute("select 42").fetchone()[0]
        return found

    async with client_of(ask) as client:
        assert (await client.call("ask")).structured_content == 42

    assert LOG == ["settings", "closed in 1 threads"]


async def test_blocking_dependency_does_not_stop_the_event_loop() -> None:
    """A `def` dependency runs in a thread, like a `def` hook, because it may block."""
    entered, left = threading.Event(), threading.Event()

    def slow() -> Iterator[str]:
        entered.set()
        assert left.wait(30)
        yield "done"

    @tool
    async def use(value: Annotated[str, Depends(slow)]) -> str:
        return value

    @tool
    async def release() -> bool:
        left.set()
        return entered.is_set()

    async with client_of(use, release) as client:
        calling = asyncio.create_task(client.call("use"))
        await asyncio.to_thread(entered.wait, 30)
        assert (await client.call("release")).structured_content is True
        assert (await calling).text == "done"


async def test_generator_in_a_thread_sees_the_error() -> None:
    """A `def` generator gets the exception of the call, like an async one."""

    def guard() -> Iterator[None]:
        try:
            yield
        except ToolError:
            LOG.append("seen")
            raise

    def swallow() -> Iterator[None]:
        try:
            yield
        except ToolError:
            LOG.append("swallowed")

    @tool
    async def fail(guard: Annotated[None, Depends(guard)]) -> str:
        raise ToolError("no")

    @tool
    async def hide(guard: Annotated[None, Depends(swallow)]) -> str:
        raise ToolError("no")

    async with client_of(fail, hide) as client:
        assert (await client.call("fail")).text == "no"
        await client.call("hide")

    assert LOG == ["seen", "swallowed"]


class Book(Tool):
    """Books a room."""

    name = "book"

    async def call(
        self, request: ToolRequest, channel: Channel, session: Session = Depends(open_session)
    ) -> Any:
        LOG.append(session.name)
        wait = elicit("Sure?", {"type": "object", "properties": {}}).then(self.sure)
        return wait if request.arguments.get("ask") else Continue("go", asyncio.sleep(0, "x"))

    async def sure(
        self,
        request: ToolRequest,
        answer: dict[str, Any],
        channel: Channel,
        stock: str = Depends(stock),
    ) -> str:
        return f"sure: {stock}"

    async def continue_(
        self, tag: str, outcome: Any, channel: Channel, stock: str = Depends(stock)
    ) -> str:
        return f"{tag}: {stock}"


async def test_hooks_of_a_class_get_their_dependencies() -> None:
    """`call`, `continue_` and the methods given to `then` each declare their own."""
    suite = Suite(name="test", version="1", tools=[Book])
    async with connect(suite, handler=AcceptingHandler()) as client:
        answered = await client.call("book", {"ask": True})
        waited = await client.call("book")

    assert answered.text == "sure: session of None in Bonn"
    assert waited.text == "go: session of None in Bonn"
    assert (LOG.count("open"), LOG.count("close")) == (4, 4)  # two per call


async def test_steps_and_prompts_and_resources_get_their_dependencies() -> None:
    """Every function that genmcp calls may declare them."""

    @tool
    async def ask(name: str) -> Continue:
        return elicit("Sure?", {"type": "object", "properties": {}}).then(sure)

    @ask.step
    async def sure(answer: dict[str, Any], name: str, session: SessionOf) -> str:
        return f"{name} {session.name}"

    @prompt
    def greet(name: str, session: Annotated[Session, Depends(blocking_session)]) -> str:
        return f"{name} {session.name}"

    class Review(Prompt):
        name = "review"

        def get(
            self,
            request: PromptRequest,
            channel: Channel,
            session: Session = Depends(blocking_session),
        ) -> str:
            return f"review {session.name}"

    class Info(Resource):
        uri = "info:a"

        async def read(self, key: Any, channel: Channel, stock: str = Depends(stock)) -> str:
            return stock

    suite = Suite(name="test", version="1", tools=[ask], prompts=[greet, Review], resources=[Info])
    async with connect(suite, handler=AcceptingHandler()) as client:
        answered = await client.call("ask", {"name": "a"})
        greeted = await client.prompt("greet", {"name": "b"})
        reviewed = await client.prompt("review")
        read = await client.read("info:a")

    assert answered.text == "a session of None"
    assert greeted.messages[0].content.text == "b Bonn"  # type: ignore[union-attr]
    assert reviewed.messages[0].content.text == "review Bonn"  # type: ignore[union-attr]
    assert read.contents[0].text == "session of None in Bonn"


def job_session(run: Run) -> Iterator[str]:
    yield f"attempt {run.attempt}"
    LOG.append("closed")


@job
async def count(run: Run, upto: int, session: str = Depends(job_session)) -> str:
    return f"{session} to {upto}"


@job
def count_in_thread(run: Run, upto: int, session: str = Depends(job_session)) -> str:
    return f"{session} to {upto}, in a thread"


async def test_jobs_get_their_dependencies() -> None:
    """They are created in the worker's process, anew for each attempt."""

    @tool
    async def work() -> Continue:
        return count.job(3).then(threaded)

    @work.step
    async def threaded(value: str, channel: Channel) -> Continue:
        LOG.append(value)
        return count_in_thread.job(4).then(done)

    @work.step
    async def done(value: str) -> str:
        return value

    async with client_of(work) as client:
        result = await client.call("work")

    assert result.text == "attempt 1 to 4, in a thread"
    assert LOG == ["closed", "attempt 1 to 3", "closed"]


def test_dependency_may_be_passed_in_a_direct_call() -> None:
    """So the function can be tested without a server."""
    assert count_in_thread(None, 3, session="mine") == "mine to 3, in a thread"  # type: ignore[arg-type]


async def test_tests_may_replace_a_dependency() -> None:
    """A replacement also applies to dependencies of dependencies, and is undone afterwards."""

    async def fake() -> Session:
        return Session("fake")

    async with client_of(find) as client:
        with replace_dependency(open_session, fake):
            with replace_dependency(open_session, lambda: Session("inner")):
                inner = await client.call("find", {"name": "a"})
            replaced = await client.call("find", {"name": "a"})
        after = await client.call("find", {"name": "a"})

    assert inner.text == "a: inner in Bonn with inner"
    assert replaced.text == "a: fake in Bonn with fake"
    assert after.text == "a: session of None in Bonn with session of None"


async def test_dependency_of_fastapi_is_one_here() -> None:
    """Dependencies that an application has declared for FastAPI can be reused."""
    annotated = Annotated[dict[str, str], fastapi.Depends(settings)]

    @tool
    async def where(settings: annotated) -> str:
        return str(settings["city"])

    async with client_of(where) as client:
        assert (await client.call("where")).text == "Bonn"


def needs_request(request: fastapi.Request) -> str:
    return str(request.url)


async def takes_request(url: Annotated[str, fastapi.Depends(needs_request)]) -> None: ...


def needs_header(x_admin: bool = fastapi.Header(False)) -> bool:
    return x_admin


def needs_query(admin: Annotated[bool, fastapi.Query()] = True) -> bool:
    return admin


async def takes_header(admin: Annotated[bool, fastapi.Depends(needs_header)]) -> None: ...
async def takes_query(admin: Annotated[bool, Depends(needs_query)]) -> None: ...
def needs_text(text: str) -> str:
    return text


def needs_needy(text: Annotated[str, Depends(needs_text)]) -> str:
    return text


async def takes_text(value: Annotated[str, Depends(needs_text)]) -> None: ...
async def takes_needy(value: Annotated[str, Depends(needs_needy)]) -> None: ...
def takes_async(value: Annotated[Session, Depends(open_session)]) -> None: ...
async def takes_run(value: Annotated[str, Depends(job_session)]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_text, "takes_text: its dependency needs_text has a parameter text that nobody"),
        (takes_needy, "its dependency needs_text has a parameter text that nobody passes"),
        (takes_async, "takes_async: its dependency open_session is async: make takes_async an"),
        (takes_request, "needs_request has a parameter request that nobody passes"),
        (takes_header, "needs_header has a parameter x_admin that nobody passes.* request.state"),
        (takes_query, "needs_query has a parameter admin that nobody passes"),
        (takes_run, "a parameter run that nobody passes: annotate it Channel, make it"),
    ],
)
def test_impossible_dependency_is_rejected_at_its_definition(function: Any, message: str) -> None:
    """At the definition, not on the first call."""
    with pytest.raises(ConfigurationError, match=message):
        tool(function)


def test_dependency_has_to_be_a_function() -> None:
    """A plain value would be shared by all calls."""
    with pytest.raises(ConfigurationError, match="Depends takes a function, not 3"):
        Depends(3)  # type: ignore[arg-type]
