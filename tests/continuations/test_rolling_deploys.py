"""Two releases of a server with one store: a step unknown to one release runs in the other."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    Failed,
    JobOptions,
    Mux,
    Outcome,
    Run,
    SQLiteStore,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    job,
)
from genmcp.core.waiting import Job, Working
from genmcp.errors import WorkRaised
from tests.support.asgi import PATIENCE, TASKS, Client
from tests.tasks.bench import Bench, ended, made, opened, until

pytestmark = pytest.mark.slow

ASKS = {"elicitation": {"form": {}}, **TASKS}


class Stage:
    """The event for which the job of a test waits."""

    go: asyncio.Event


@pytest.fixture(autouse=True)
async def _staged(_tasks_end: None) -> None:
    Stage.go = asyncio.Event()


@job(name="deploy.work")
async def work(run: Run) -> str:
    await Stage.go.wait()
    return "worked"


class Works(Tool):
    """Waits for a job, and continues under the tag of its release."""

    name = "works"

    def __init__(self, tag: str = "worked") -> None:
        self.tag = tag

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue(self.tag, work.job())

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        if tag == self.tag and isinstance(outcome, Done):
            return f"{outcome.value} under {tag}"
        return None


class Contact(Struct):
    name: str


class Asks(Tool):
    """Asks for a contact."""

    name = "asks"
    task = "always"

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("named", elicit("Who?", Contact))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match outcome:
            case Done(Accepted(contact)):
                return f"It is {contact.name}"
            case Failed(WorkRaised(_, kind, text)):
                return f"{kind}: {text}"


@asynccontextmanager
async def release(
    version: str, folder: Path, *tools: Tool, timeout: float = 60.0
) -> AsyncIterator[Endpoint]:
    """Serve one release with the store in *folder*."""
    store = SQLiteStore(folder / "store.db")
    mux = Mux(
        Suite(name="deployed", version=version, tools=tools),
        secret="a secret of 16 bytes",
        store=store,
        jobs=JobOptions(unknown_timeout=timeout, shutdown_grace=0.1),
    )
    await mux.tasks.service.start()
    try:
        yield Endpoint(mux)
    finally:
        await mux.aclose()
        await store.aclose()


async def task_id(client: Client, tool: str) -> str:
    answer = await client.send(client.call(tool))
    id: str = answer.json["result"]["taskId"]
    return id


async def task_with(client: Client, id: str, *statuses: str) -> Any:
    """Poll a task until it has one of *statuses*; return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task = answer.json["result"]
            if task["status"] in statuses:
                return task
            await asyncio.sleep(0.01)


async def text_of(client: Client, id: str) -> str:
    task = await task_with(client, id, "completed", "failed")
    text: str = task["result"]["content"][0]["text"]
    return text


async def passed_on(app: Endpoint, id: str) -> None:
    """Wait until a process has returned the task for others to run."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await app.mux.tasks.service.get(id, None)
            assert not task.ended, task
            if task.deferred_seconds:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("new", "old"), [([Works()], []), ([Works("of_2")], [Works("of_1")])], ids=["tool", "tag"]
)
async def test_continuation_runs_in_the_release_that_has_it(
    tmp_path: Path, new: list[Tool], old: list[Tool]
) -> None:
    """The old process gets the step of a new tool or tag first, and passes it on."""
    async with release("2", tmp_path, *new) as app:
        id = await task_id(Client(app, capabilities=TASKS), "works")
    Stage.go.set()
    async with release("1", tmp_path, *old) as app:
        await passed_on(app, id)
    # The old process has stopped. Otherwise it would claim some deliveries and pass them on later.
    async with release("2", tmp_path, *new) as app:
        assert "worked under" in await text_of(Client(app, capabilities=TASKS), id)


async def test_continuation_that_no_release_knows_fails_in_time(tmp_path: Path) -> None:
    """The tool was removed for good: after a time limit the task fails with that reason."""
    async with release("1", tmp_path, Works()) as app:
        id = await task_id(Client(app, capabilities=TASKS), "works")
    Stage.go.set()
    async with release("2", tmp_path, Asks(), timeout=0.1) as app:
        task = await task_with(Client(app, capabilities=TASKS), id, "failed")

    assert task["error"]["code"] == -32603
    assert "tools/call works is not there any more" in task["error"]["message"]


async def test_tag_that_its_own_release_does_not_know_fails_at_once(tmp_path: Path) -> None:
    """A missing case in the same release is a defect, which no other process would fix."""

    class Forgets(Works):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            return None

    Stage.go.set()
    async with release("1", tmp_path, Forgets()) as app:
        client = Client(app, capabilities=TASKS)
        task = await task_with(client, await task_id(client, "works"), "failed", "completed")

    assert "Internal error" in task["error"]["message"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("sqlite", tmp_path) as bench:
        yield bench


def later(register: Callable[..., Any], *parameters: str) -> Any:
    """Register a job whose *parameters* differ between the releases."""

    async def grown(run: Run, **given: Any) -> Any:
        return [run.attempt, given]

    run = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [run.replace(name=each) for each in parameters]
    grown.__signature__ = inspect.Signature([run, *others])  # type: ignore[attr-defined]
    return register(grown)


async def test_job_runs_in_a_worker_that_has_it(bench: Bench) -> None:
    """A worker without the job, or with other parameters, passes it on; that is not an attempt."""
    jobs = bench.jobs()
    arguments = {"url": "x"}
    await jobs.create(made(Working(Job(name="deploy.later", arguments=arguments))), b"")
    await until(jobs, lambda task: task.deferred_seconds > 0)
    later(job(name="deploy.later"), "address")
    await until(jobs, lambda task: task.deferred_seconds > 0.5)
    later(job(name="deploy.later"), "url")

    await ended(jobs)

    (outcome,) = bench.resumed.outcomes
    assert Done([1, arguments]) == outcome


async def test_job_that_no_worker_knows_fails_in_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The tool gets a text without details; the log has the name of the job."""
    jobs = bench.jobs(unknown_timeout=0.1)
    await jobs.create(made(Working(Job(name="deploy.never", arguments={}, retries=3))), b"")

    await ended(jobs)

    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed) and isinstance(outcome.error, WorkRaised)
    assert outcome.error.message == "The job is not known to any worker"
    assert "'deploy.never'" in caplog.text and "JobOptions.unknown_timeout" in caplog.text


async def answered(client: Client, id: str, content: Any) -> Any:
    responses = {"named": {"action": "accept", "content": content}}
    update = {"taskId": id, "inputResponses": responses}
    return (await client.send(client.request("tasks/update", update))).json


@pytest.mark.parametrize("changed", ["required", "gone"])
async def test_answer_to_an_earlier_form_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The type has changed since: the tool gets a failure, or another process continues."""
    async with release("1", tmp_path, Asks()) as app:
        client = Client(app, capabilities=ASKS)
        id = await task_id(client, "asks")
        await task_with(client, id, "input_required")

    class Grown(Struct):
        name: str
        email: str

    here = sys.modules[__name__]
    if changed == "required":
        monkeypatch.setattr(here, "Contact", Grown)
    else:
        monkeypatch.delattr(here, "Contact")
    async with release("2", tmp_path, Asks()) as app:
        client = Client(app, capabilities=ASKS)
        assert "result" in await answered(client, id, {"name": "Ann"})
        if changed == "required":
            assert "email: please fill it in" in await text_of(client, id)
        else:
            await passed_on(app, id)
            monkeypatch.undo()
            assert await text_of(client, id) == "It is Ann"


async def test_answer_that_fits_no_release_is_an_error(tmp_path: Path) -> None:
    """An empty success would acknowledge it, so it is an error, and the question stays open."""
    async with release("1", tmp_path, Asks()) as app:
        client = Client(app, capabilities=ASKS)
        id = await task_id(client, "asks")
        await task_with(client, id, "input_required")

        error = (await answered(client, id, {"name": 7}))["error"]
        await answered(client, id, {"name": "Ann"})

        assert await text_of(client, id) == "It is Ann"
    assert error["code"] == -32602
    assert "The answer to 'named' does not fit: name: " in error["message"]


BEGUN: list[str] = []


@job(name="deploy.begun")
async def begins(run: Run) -> str:
    BEGUN.append(run.id)
    return "done"


class AsksThenWorks(Tool):
    """Asks two questions, and runs a job."""

    name = "asks"

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("first", elicit("Who?", Contact))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "first", Done(Accepted()):
                return Continue("second", elicit("Sure?", Contact))
            case "second", Done(Accepted()):
                return Continue("worked", begins.job())
            case "worked", Done(value):
                return value
        raise ValueError(tag)


OLD, NEW = "the old secret of 16 bytes", "the new secret of 16 bytes"


async def test_answer_begins_one_job_while_the_secret_is_rotated(tmp_path: Path) -> None:
    """Both answers reach processes with the old and the new secret, in every order."""
    BEGUN.clear()
    stores = [SQLiteStore(tmp_path / "store.db") for _ in range(2)]
    muxes = [
        Mux(Suite(name="rotated", version="1", tools=[AsksThenWorks]), secret=secret, store=store)
        for secret, store in zip((OLD, [NEW, OLD]), stores, strict=True)
    ]
    before, after = [Client(Endpoint(mux), capabilities=ASKS) for mux in muxes]
    for mux in muxes:
        await mux.tasks.service.start()

    async def answer(client: Client, pending: Any, name: str) -> Any:
        again = client.call("asks")
        again["params"] |= {
            "requestState": pending["requestState"],
            "inputResponses": {name: {"action": "accept", "content": {"name": "Ann"}}},
        }
        return (await client.send(again)).json["result"]

    pending = (await before.send(before.call("asks"))).json["result"]
    second = [await answer(each, pending, "first") for each in (after, before)]
    seconds = [(after, second[0]), (after, second[1]), (before, second[1])]
    tasks = [await answer(client, each, "second") for client, each in seconds]
    for task in tasks:
        assert await text_of(after, task["taskId"]) == "done"

    assert len({task["taskId"] for task in tasks}) == 1
    assert len(BEGUN) == 1
    for mux, store in zip(muxes, stores, strict=True):
        await mux.aclose()
        await store.aclose()
