"""Two muxes over one store: separate, unless they have one audience."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    JobOptions,
    Mux,
    Run,
    SQLiteStore,
    Suite,
    Tool,
    elicit,
    job,
)
from genmcp.core.outcome import Outcome
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.asking import YES, AnsweringClient


@job
async def shout(run: Run, word: str) -> str:
    return word.upper()


class Shout(Tool):
    """Repeats a word in capitals, in a job."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("shouted", shout.job(word=self.name))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        assert isinstance(outcome, Done)
        return f"{outcome.value}!"


@asynccontextmanager
async def two(folder: Path, audience: str | None = None) -> AsyncIterator[tuple[Client, Client]]:
    """Give a client of each of two muxes, `a` and `b`, which share a file and a secret."""
    path = folder / "store.db"
    muxes = [
        Mux(
            Suite(name=name, version="1", tools=[Shout("shout" if audience else name)]),
            store=SQLiteStore(path),
            secret="a secret of both of them",
            audience=audience,
        )
        for name in "ab"
    ]
    try:
        first, second = (Client(Endpoint(mux), capabilities=TASKS) for mux in muxes)
        yield first, second
    finally:
        for mux in muxes:
            await mux.aclose()


async def over(client: Client, id: str) -> dict[str, Any]:
    """Return how a task ends."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task: dict[str, Any] = answer.json["result"]
            if task["status"] not in ("working", "input_required"):
                return task
            await asyncio.sleep(0.001)


async def test_two_muxes_work_on_their_own_jobs_only(tmp_path: Path) -> None:
    """The tools of the other mux are not here, so that its calls could not continue here."""
    async with two(tmp_path) as clients:
        for round in range(5):
            for client, name in zip(clients, "ab", strict=True):
                begun = await client.send(client.call(name, id=round))
                task = await over(client, begun.json["result"]["taskId"])
                assert task["result"]["content"][0]["text"] == f"{name.upper()}!"


async def test_mux_leaves_the_jobs_of_another_to_its_own_workers(tmp_path: Path) -> None:
    """Work of an audience without a worker waits, whichever other worker uses the store."""
    path = tmp_path / "store.db"

    def mux(name: str, queue: str = "default") -> Mux:
        suite = Suite(name=name, version="1", tools=[Shout(name)])
        return Mux(
            suite,
            store=SQLiteStore(path),
            jobs=JobOptions(queues=[queue]),
            secret="a secret of both of them",
        )

    idle, other, worker = mux("a", "none"), mux("b"), mux("a")
    try:
        client = Client(Endpoint(idle), capabilities=TASKS)
        begun = await client.send(client.call("a"))
        stranger = Client(Endpoint(other), capabilities=TASKS)
        done = await stranger.send(stranger.call("b"))
        await over(stranger, done.json["result"]["taskId"])

        worker.tasks.worker.wake()
        task = await over(client, begun.json["result"]["taskId"])
        assert task["result"]["content"][0]["text"] == "A!"
    finally:
        for each in (idle, other, worker):
            await each.aclose()


async def test_two_muxes_do_not_know_each_others_tasks(tmp_path: Path) -> None:
    """With the same secret, principal and store: another audience is another client."""
    async with two(tmp_path) as (first, second):
        begun = await first.send(first.call("a"))
        id = begun.json["result"]["taskId"]
        found = await second.send(second.request("tasks/get", {"taskId": id}))
        assert (
            found.json["error"]["code"],
            found.json["error"]["message"],
        ) == (-32602, f"Unknown task: {id}")
        await over(first, id)


async def test_two_muxes_of_one_audience_are_one(tmp_path: Path) -> None:
    """Processes of one service: either knows the task, and either may work on it."""
    async with two(tmp_path, "service") as (first, second):
        begun = await first.send(first.call("shout"))
        task = await over(second, begun.json["result"]["taskId"])
        assert task["result"]["content"][0]["text"] == "SHOUT!"


async def test_two_muxes_of_one_audience_share_their_calls(tmp_path: Path) -> None:
    """A call that runs in one is cancelled by way of the other, and a question answered there."""

    class Runs(Tool):
        """Runs, or asks."""

        name = "runs"
        promote_after = 0.01

        def __init__(self) -> None:
            self.cancelled = asyncio.Event()

        async def call(self, request: Any, channel: Channel) -> Any:
            if request.arguments:
                return Continue("sure", elicit("Sure?"))
            return await asyncio.Event().wait()

        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return type(outcome).__name__

        def on_cancel(self, channel: Channel) -> None:
            self.cancelled.set()

    suite = Suite(name="test", version="1", tools=[tool := Runs()])
    path, secret = tmp_path / "store.db", "a secret of both of them"
    muxes = [Mux(suite, store=SQLiteStore(path), secret=secret) for _ in range(2)]
    here, there = (Client(Endpoint(mux), capabilities=TASKS) for mux in muxes)
    async with here.open(here.call("runs")) as call:
        await until(lambda: call.complete)
        id = call.json["result"]["taskId"]
        await there.send(there.request("tasks/cancel", {"taskId": id}))
        await asyncio.wait_for(tool.cancelled.wait(), PATIENCE)
        await call.over()

    asked = await AnsweringClient.begin(Endpoint(muxes[0]), "2025-11-25")
    async with asked.open(asked.call("runs", {"ask": True})) as call:
        while "method" not in (question := await call.message()):
            pass
        asked.app = Endpoint(muxes[1])
        await asked.respond(question, YES)
        answer = await call.message()
    for mux in muxes:
        await mux.aclose()

    assert answer["result"]["content"][0]["text"] == "Done"
