"""Calls with an idempotency key: each is one task, however often it is sent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    ConfigurationError,
    Continue,
    Endpoint,
    Limits,
    McpError,
    MemoryStore,
    Run,
    SQLiteStore,
    Suite,
    ToolError,
    elicit,
    gather,
    job,
    prompt,
    result,
    tool,
)
from genmcp.errors import InsufficientScope, InvalidParams, Overloaded, StoreUnavailable
from genmcp.stores.store import Op, StoreEntry
from genmcp.tasks.worker import WorkerState
from tests.support.asgi import ALL, MODERN, PATIENCE, TASKS, Client, until
from tests.support.keyed import (
    ASKS,
    BOB,
    KEY,
    LEGACY,
    NAME,
    Counts,
    Stage,
    answered,
    asks,
    begin,
    call,
    close_all,
    keyed,
    over,
    refused,
    said,
    serving,
    works,
)
from tests.support.pipes import modern, piped_mux
from tests.support.stores import stored_keys


@pytest.fixture(autouse=True)
async def _closed(_tasks_end: None) -> AsyncIterator[None]:
    Stage.reset()
    yield
    await close_all()


async def waiting(app: Endpoint, number: int) -> None:
    """Wait until *number* hooks and clients of keyed calls wait."""
    await until(lambda: len(app.mux.waiting_calls) == number)


async def handle(client: Client) -> dict[str, Any]:
    """Return the task of a call."""
    found: dict[str, Any] = (await client.send(keyed(client))).json["result"]
    assert found["resultType"] == "task"
    return found


def cancel(client: Client, id: str) -> Any:
    return client.request("tasks/cancel", {"taskId": id})


# The key.


@pytest.mark.parametrize("version", ALL)
async def test_same_key_and_arguments_get_the_first_result(version: str) -> None:
    """On every revision; the order of arguments is not significant, another key is."""
    counts = Counts()
    client = await begin(serving(counts), version)

    assert await call(client, "k", a=1, b=[2]) == "call 1"
    assert await call(client, "k", b=[2], a=1) == "call 1"
    assert await call(client, "other", a=1, b=[2]) == "call 2"
    assert counts.calls == 2


async def test_other_arguments_are_rejected() -> None:
    """A key that is used twice by mistake must not return the result of another call."""
    client = await begin(serving(Counts()))
    await call(client, "k", a=1)

    assert "other arguments" in refused(await client.send(keyed(client, "k", a=2)))
    assert await call(client, "k", a=1) == "call 1"


async def test_anonymous_key_over_http_is_rejected() -> None:
    """Without authentication any client could fetch the result; an empty key is an error."""
    app = serving(counts := Counts())

    anonymous = await begin(app, who=None)
    assert "authenticated" in refused(await anonymous.send(keyed(anonymous)))
    client = await begin(app)
    assert "must not be empty" in refused(await client.send(keyed(client, "")))
    assert counts.calls == 0


async def test_client_of_a_pipe_may_use_keys() -> None:
    """A pipe has one client."""
    mux = serving(Counts()).mux
    texts = []
    async with piped_mux(mux) as wires:
        for id in (1, 2):
            wires.send(modern("tools/call", {"name": "counts", "arguments": {}}, id, **{KEY: "k"}))
            texts.append((await wires.answer(id))["result"]["content"][0]["text"])

    assert texts == ["call 1", "call 1"]


async def test_key_belongs_to_one_principal_and_one_tool() -> None:
    """A stranger who guesses a key makes a call of its own, and learns nothing."""
    app = serving(Counts(), Counts(name="other"))
    ann, bob = await begin(app), await begin(app, who="bob", capabilities=TASKS)

    assert await call(ann) == "call 1"
    assert await call(bob) == "call 2"
    assert said(await ann.send(keyed(ann, tool="other"))) == "call 1"


async def test_stranger_cannot_read_or_cancel_a_keyed_task() -> None:
    """The id is derived with the secret of the server; even its owner's id opens nothing."""
    app = serving(Counts(works, task="always"))
    ann, bob = [await begin(app, who=who, capabilities=TASKS) for who in ("ann", "bob")]
    id = (await handle(ann))["taskId"]

    for request in (bob.request("tasks/get", {"taskId": id}), cancel(bob, id)):
        assert refused(await bob.send(request))
    Stage.go.set()
    assert (await over(ann, id))["status"] == "completed"


async def test_key_of_another_method_has_no_effect() -> None:
    """A prompt is made again."""
    made: list[str] = []

    @prompt
    def greeting() -> str:
        made.append("hello")
        return "hello"

    app = Endpoint(Suite(name="test", version="1", prompts=[greeting]))
    client = Client(app)
    for _ in range(2):
        await client.send(client.request("prompts/get", {"name": "greeting"}, **{KEY: "k"}))

    assert made == ["hello", "hello"]


async def test_argument_is_the_key_if_the_tool_names_it() -> None:
    """A model repeats its request id, and the call runs once, as with a key of the client."""
    booked: list[str] = []

    @tool(idempotency_key="request_id")
    async def book(room: str, request_id: str | None = None) -> str:
        booked.append(room)
        return f"booking {len(booked)}"

    app = serving(book)
    client = await begin(app)

    async def booking(**arguments: Any) -> str:
        meta = {KEY: f"the client's own {len(booked)}"}
        return said(await client.send(client.call("book", arguments, **meta)))

    texts = [await booking(room="a", request_id=id) for id in ("1", "1", "2")]
    assert texts == ["booking 1", "booking 1", "booking 2"]
    without = client.call("book", {"room": "b"})
    assert [said(await client.send(without)) for _ in range(2)] == ["booking 3", "booking 4"]
    other = client.call("book", {"room": "c", "request_id": "1"})
    assert "other arguments" in refused(await client.send(other))


def test_argument_of_the_key_must_exist() -> None:
    """A tool that misspells it would run each call again."""

    async def book(room: str) -> str:
        return room

    with pytest.raises(ConfigurationError, match=r"book\.idempotency_key: .* 'request_id'"):
        Suite(name="test", version="1", tools=[tool(idempotency_key="request_id")(book)])


async def test_key_is_known_after_the_secret_is_rotated() -> None:
    """The old secret still opens, so that a retry across the deployment finds its call."""
    store = MemoryStore()
    secrets = ["the old secret is long", "the new secret is long"]
    counts = Counts()
    first = serving(counts, store=store, secret=secrets[0])
    second = serving(counts, store=store, secret=[secrets[1], secrets[0]])

    assert await call(await begin(first)) == "call 1"
    assert await call(await begin(second)) == "call 1"
    assert await call(await begin(second), "other") == "call 2"


# Copies of a call that runs.


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_copy_of_a_running_call_gets_its_result(version: str) -> None:
    """It does not run a second time."""
    go = asyncio.Event()
    app = serving(counts := Counts(lambda: go))
    first, second = await begin(app, version), await begin(app, version)
    async with first.open(keyed(first)) as one, second.open(keyed(second)) as two:
        await waiting(app, 3)
        go.set()
        await asyncio.gather(one.over(), two.over())

    assert [said(one), said(two)] == ["call 1", "call 1"]
    assert counts.calls == 1


@pytest.mark.parametrize("version", [LEGACY, MODERN])
@pytest.mark.parametrize("does", ["hook", "job"])
async def test_client_that_leaves_ends_only_its_own_wait(version: str, does: str) -> None:
    """The call continues, also if no other client waits, and `on_cancel` is not called."""
    go = asyncio.Event()
    gives = works if does == "job" else lambda: go
    app = serving(counts := Counts(gives, on_disconnect="cancel"))
    first, second = await begin(app, version), await begin(app, version)
    async with first.open(keyed(first)) as one:
        await until(lambda: counts.calls if does == "hook" else Stage.runs)
        async with second.open(keyed(second)) as two:
            await until(lambda: len(app.mux.waiting_calls) >= 2)
            one.disconnect()
            await one.over()
            two.disconnect()
            await two.over()
    go.set()
    Stage.go.set()

    assert await call(first) == ("call 1" if does == "hook" else "done worked of 1")
    assert (counts.calls, counts.cancels) == (1, 0)


async def test_cancelled_notification_ends_only_its_own_wait() -> None:
    """2025-11-25: the client gets no response, and the call continues: a documented departure."""
    go = asyncio.Event()
    app = serving(counts := Counts(lambda: go))
    client = await begin(app, LEGACY)
    request = keyed(client)
    async with client.open(request) as connection:
        await waiting(app, 2)
        id = request["id"]
        cancelled = client.notification("notifications/cancelled", requestId=id)
        await client.send(cancelled)
        await connection.over()
    go.set()

    assert connection.body == b""
    assert await call(client) == "call 1"
    assert (counts.calls, counts.cancels) == (1, 0)


async def test_two_replicas_run_a_call_once(tmp_path: Path) -> None:
    """Both get the key at once: one of them creates the task, the other one follows it."""
    tools = [Counts(), Counts()]
    apps = [serving(each, store=SQLiteStore(tmp_path / "a.db")) for each in tools]
    clients = [await begin(app) for app in apps]
    for number in range(10):
        calls = [call(client, f"k{number}") for client in clients]
        assert len({*await asyncio.gather(*calls)}) == 1

    assert sum(each.calls for each in tools) == 10


async def test_call_outlives_a_lease_and_its_client(tmp_path: Path) -> None:
    """Its process is alive, so that no other one takes the key."""
    go = asyncio.Event()
    tools = [Counts(lambda: go), Counts()]
    apps = [serving(each, store=SQLiteStore(tmp_path / "a.db"), lease=0.3) for each in tools]
    first, second = [await begin(app) for app in apps]
    async with first.open(keyed(first)) as one:
        await until(lambda: tools[0].calls == 1)
        one.disconnect()
    heartbeats: Any = apps[0].mux.tasks.service.heartbeats
    beat, beats = heartbeats.beat, 0

    async def counted() -> None:
        nonlocal beats
        beats += 1
        await beat()

    heartbeats.beat = counted
    async with second.open(keyed(second)) as two:
        await waiting(apps[1], 1)
        await until(lambda: beats > 18, pause=0.01)  # nine in a lease
        go.set()
        await two.over()

    assert (said(two), tools[1].calls) == ("call 1", 0)


@pytest.mark.parametrize("on_worker_lost", ["rerun", "fail"])
async def test_key_of_a_lost_process(tmp_path: Path, on_worker_lost: Any) -> None:
    """It is free again only for a tool with `on_worker_lost = "rerun"`."""
    go = asyncio.Event()
    lost, other = [Counts(lambda: go, on_worker_lost=on_worker_lost) for _ in range(2)]
    first, second = [
        serving(each, store=SQLiteStore(tmp_path / "a.db"), lease=0.3) for each in (lost, other)
    ]
    one, two = await begin(first), await begin(second)
    async with one.open(keyed(one)) as gone:
        await until(lambda: lost.calls == 1)
        await first.mux.tasks.service.aclose()  # its heartbeat ends, and its hook
        gone.disconnect()
    go.set()

    answer = await two.send(keyed(two))
    if on_worker_lost == "rerun":
        assert (said(answer), other.calls) == ("call 1", 1)
    else:
        assert "process that worked on it is gone" in answer.json["error"]["message"]
        assert other.calls == 0


# Calls that end: which of them free the key.


@pytest.mark.parametrize(
    "error", [ToolError("no"), ValueError("no"), McpError("no", code=-32001)], ids=repr
)
async def test_error_is_kept_as_a_result_is(error: Exception) -> None:
    """The hook has run, and may have had effects."""
    client = await begin(serving(counts := Counts(lambda: error)))
    first, again = [(await client.send(keyed(client))).json for _ in range(2)]

    assert counts.calls == 1
    assert "error" in first or first["result"]["isError"]
    assert {**first, "id": 0} == {**again, "id": 0}


async def test_result_that_is_an_error_is_kept() -> None:
    """`isError` is part of a result."""
    client = await begin(serving(counts := Counts(lambda: result(error="no money"))))

    assert [await call(client), await call(client)] == ["no money", "no money"]
    assert counts.calls == 1


@pytest.mark.parametrize(
    "error", [ToolError("no", retry=True), Overloaded("busy"), InsufficientScope("a")], ids=repr
)
async def test_error_that_asks_for_a_retry_frees_the_key(error: Exception) -> None:
    """The next call runs, also with other arguments, and its result is kept."""
    counts = Counts(lambda: error if counts.calls == 1 else None)
    client = await begin(serving(counts))
    await client.send(keyed(client, a=1))

    assert [await call(client, a=2), await call(client, a=2)] == ["call 2", "call 2"]


async def test_rejected_arguments_free_the_key() -> None:
    """`call` did not begin: the model corrects its arguments, and keeps the key."""

    class Validates(Counts):
        input_schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

        def validate(self, request: Any, channel: Any) -> Any:
            if request.arguments["n"] < 0:
                raise InvalidParams("n is negative")
            return request

    client = await begin(serving(Validates()))

    assert "is negative" in await call(client, n=-1)
    assert "n" in await call(client, n="one")
    assert [await call(client, n=1), await call(client, n=1)] == ["call 1", "call 1"]


@pytest.mark.parametrize("does", ["hook", "job", "question"])
async def test_cancelled_task_frees_the_key(does: str) -> None:
    """`tasks/cancel` ends the call; a copy that waits gets an error, and the next one runs."""
    go = asyncio.Event()
    makes = {"hook": lambda: go, "job": works, "question": asks}[does]
    counts = Counts(lambda: makes() if counts.calls == 1 else None, promote_after=0.01)
    app = serving(counts)
    owner, copy = await begin(app, capabilities={**TASKS, **ASKS}), await begin(app)
    if does == "question":
        await owner.send(keyed(owner))
        (id,) = [key.partition("task:")[2] for key in records(app)]
        await owner.send(cancel(owner, id))
    else:
        id = (await handle(owner))["taskId"]
        async with copy.open(keyed(copy)) as connection:
            await until(lambda: len(app.mux.tasks.service.records.followed) == 1)
            await owner.send(cancel(owner, id))
            await connection.over()
        assert "cancelled" in connection.json["error"]["message"]
        await until(lambda: counts.cancels == 1)

    assert (await over(owner, id))["status"] == "cancelled"
    assert await call(copy) == "call 2"
    assert (await over(owner, id))["status"] == "completed"


async def test_call_after_a_cancelled_one_has_jobs_of_its_own() -> None:
    """It does not wait for the earlier ones; and `run.id` is the key of work elsewhere."""
    ids, go = list[str](), asyncio.Event()

    @job
    async def counting(run: Run) -> int:
        ids.append(run.id)
        await go.wait()
        return len(ids)

    counts = Counts(lambda: Continue("got", gather(counting.job(), counting.job())))
    owner = await begin(serving(counts), capabilities=TASKS)
    id = (await handle(owner))["taskId"]
    await until(lambda: len(ids) == 2)
    await owner.send(cancel(owner, id))
    go.set()

    await handle(owner)
    assert (await over(owner, id))["result"]["content"][0]["text"].endswith("of 2")
    assert len(set(ids)) == len(ids) == 4


def records(app: Endpoint) -> list[str]:
    """Return the keys of the records of tasks in a store in memory."""
    assert isinstance(app.mux.store, MemoryStore)
    return [key for key in stored_keys(app.mux.store) if "/task:" in key and "#" not in key]


async def test_hook_that_ignores_its_cancellation_has_no_result() -> None:
    """The task has ended: `on_cancel` is called after the hook, and the next call runs."""
    stubborn = asyncio.Event()

    class Stubborn(Counts):
        async def call(self, request: Any, channel: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                return "again"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await stubborn.wait()
            return "kept"

    app = serving(counts := Stubborn(promote_after=0.01))
    client = await begin(app, capabilities=TASKS)
    id = (await handle(client))["taskId"]
    await client.send(cancel(client, id))

    assert await call(client) == "again"
    assert counts.cancels == 0
    stubborn.set()
    await until(lambda: counts.cancels == 1)
    assert await call(client) == "again"


# Tasks.


async def test_task_is_the_same_for_the_same_key() -> None:
    """A client with tasks gets the handle while the call runs, and then the result."""
    app = serving(Counts(works))
    client = await begin(app, capabilities=TASKS)
    first, again = [await handle(client) for _ in range(2)]
    Stage.go.set()
    await over(client, first["taskId"])

    assert first["taskId"] == again["taskId"]
    assert first["ttlMs"] == 60_000  # `Tool.result_ttl`
    assert await call(client) == "done worked of 1"
    assert Stage.runs == 1


async def test_every_copy_of_a_long_call_gets_the_handle() -> None:
    """Each after its own `promote_after`."""
    go = asyncio.Event()
    app = serving(Counts(lambda: go, promote_after=0.05))
    first, second = [await begin(app, capabilities=TASKS) for _ in range(2)]
    async with first.open(keyed(first)) as one, second.open(keyed(second)) as two:
        await until(lambda: bool(one.complete and two.complete), pause=0.01)
        (id,) = {each.json["result"]["taskId"] for each in (one, two)}
        go.set()

    assert (await over(first, id))["result"]["content"][0]["text"] == "call 1"


async def test_tool_that_is_always_a_task_gives_the_handle() -> None:
    """At once, and after its end as well."""
    go = asyncio.Event()
    client = await begin(serving(Counts(lambda: go, task="always")), capabilities=TASKS)
    id = (await handle(client))["taskId"]
    go.set()

    assert (await over(client, id))["result"]["content"][0]["text"] == "call 1"
    assert await call(client) == "call 1"


async def test_tool_that_requires_tasks_rejects_other_clients() -> None:
    """With a key as without: no record is written."""
    app = serving(counts := Counts(requires_tasks=True))
    answer = await (client := await begin(app)).send(keyed(client))

    assert answer.json["error"]["code"] == -32021
    assert (counts.calls, records(app)) == (0, [])


async def test_step_in_this_process_continues_the_call() -> None:
    """An awaitable of the hook: its wait is written, and the result is that of `continue_`."""

    async def later() -> str:
        return "later"

    app = serving(counts := Counts(lambda: Continue("done", later())))

    assert await call(await begin(app)) == "done later of 1"
    assert counts.continued == 1


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_copy_in_another_process_gets_the_job_result(version: str, tmp_path: Path) -> None:
    """The job outlives the first server."""
    first, second = [serving(Counts(works), store=SQLiteStore(tmp_path / "a.db")) for _ in "ab"]
    client = await begin(first, version)
    async with client.open(keyed(client)) as one:
        await until(lambda: Stage.runs == 1, pause=0.01)
        one.task.cancel()  # as a host does that stops
    await first.mux.aclose()

    client = await begin(second, version)
    async with client.open(keyed(client)) as two:
        Stage.go.set()
        await two.over()

    assert said(two) == "done worked of 0"


async def test_process_that_stops_without_its_store(tmp_path: Path) -> None:
    """The end of the hook cannot be written: that does not delay the exit."""

    class Away(SQLiteStore):
        away = False

        async def apply(self, *ops: Op) -> None:
            if self.away:
                raise StoreUnavailable("away")
            await super().apply(*ops)

        async def get(self, key: str) -> StoreEntry | None:
            if self.away:
                raise StoreUnavailable("away")
            return await super().get(key)

    go = asyncio.Event()
    store = Away(tmp_path / "a.db")
    app = serving(Counts(lambda: go), store=store)
    client = await begin(app)
    async with client.open(keyed(client)) as connection:
        await waiting(app, 2)
        connection.disconnect()
        store.away = True
        await asyncio.wait_for(app.mux.tasks.aclose(), PATIENCE)
    await waiting(app, 0)
    store.away = False


async def test_endpoint_that_stops_gives_the_hook_its_grace(tmp_path: Path) -> None:
    """A keyed call has the grace period of jobs, and its client gets the result."""
    go = asyncio.Event()
    app = serving(Counts(lambda: go), store=SQLiteStore(tmp_path / "a.db"), shutdown_grace=5.0)
    client = await begin(app)
    async with client.open(keyed(client)) as connection:
        await waiting(app, 2)
        closing = asyncio.create_task(app.aclose())
        await until(lambda: app.mux.tasks.worker.state is WorkerState.STOPPING)
        go.set()
        await connection.over()
    await closing

    assert said(connection) == "call 1"


# Questions.


async def test_question_is_that_of_one_task() -> None:
    """A copy gets the same question, and copies of the answer get one result."""
    counts = Counts(asks)
    client = await begin(serving(counts), capabilities=ASKS)
    asked = [await client.send(keyed(client)) for _ in range(3)]
    answers = [await client.send(answered(client, each)) for each in asked]

    questions = [each.json["result"]["inputRequests"] for each in asked]
    assert questions == [questions[0]] * 3
    assert [said(each) for each in answers] == ["named Bob of 1"] * 3
    assert await call(client) == "named Bob of 1"
    assert (counts.calls, counts.continued) == (1, 1)


async def test_answer_without_the_key_reaches_the_task() -> None:
    """`requestState` names the task."""
    counts = Counts(asks)
    client = await begin(serving(counts), capabilities=ASKS)
    again = answered(client, await client.send(keyed(client)))
    del again["params"]["_meta"][KEY]

    assert said(await client.send(again)) == "named Bob of 1"
    assert await call(client) == "named Bob of 1"


async def test_state_of_another_call_is_rejected() -> None:
    """A step of a call without a key must not run under a key that promises one run."""
    client = await begin(serving(Counts(asks)), capabilities=ASKS)
    plain = await client.send(client.call("counts", {}))

    assert "another idempotency key" in refused(await client.send(answered(client, plain)))


async def test_answer_may_come_with_the_call() -> None:
    """A client that knows the question sends the answer along."""
    client = await begin(serving(Counts(asks)), capabilities=ASKS)
    early = keyed(client)
    early["params"]["inputResponses"] = {"named": BOB}

    assert said(await client.send(early)) == "named Bob of 1"


async def test_client_that_answers_and_leaves_does_not_end_the_call() -> None:
    """The answer was written: the call continues."""
    go = asyncio.Event()

    class Waits(Counts):
        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            await go.wait()
            return await super().continue_(tag, outcome, channel)

    app = serving(counts := Waits(asks))
    client = await begin(app, capabilities=ASKS)
    asked = await client.send(keyed(client))
    async with client.open(answered(client, asked)) as leaving:
        await until(lambda: app.mux.tasks.service.runner._steps)
        leaving.disconnect()
    go.set()

    assert await call(client) == "named Bob of 1"
    assert (counts.calls, counts.cancels) == (1, 0)


async def test_copy_of_an_earlier_answer_gets_the_next_question() -> None:
    """The call has continued: no step of it runs again."""

    class AsksTwice(Counts):
        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            self.continued += 1
            if tag == "named":
                return Continue("again", elicit("Really?", NAME))
            return await super().continue_(tag, outcome, channel)

    counts = AsksTwice(asks)
    client = await begin(serving(counts), capabilities=ASKS)
    answer = answered(client, await client.send(keyed(client)))
    both = [(await client.send(answer)).json["result"]["inputRequests"] for _ in range(2)]

    assert both[0] == both[1] and list(both[0]) == ["again"]
    assert counts.continued == 1


async def test_question_after_a_job_is_answered_with_the_same_key() -> None:
    """For a client without tasks."""

    class AsksLater(Counts):
        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            return asks() if tag == "done" else await super().continue_(tag, outcome, channel)

    client = await begin(serving(AsksLater(works)), capabilities=ASKS)
    Stage.go.set()
    asked = [await client.send(keyed(client)) for _ in range(2)]

    assert said(await client.send(answered(client, asked[1]))) == "named Bob of 1"
    assert Stage.runs == 1


async def test_legacy_client_is_asked_on_its_connection() -> None:
    """2025-11-25, also if a client of 2026-07-28 made the call and has the question."""
    app = serving(Counts(asks))
    modern_client = await begin(app, capabilities=ASKS)
    await modern_client.send(keyed(modern_client))
    legacy = await begin(app, LEGACY, capabilities=ASKS)
    async with legacy.open(keyed(legacy)) as connection:
        question = await connection.message()
        while question.get("method") != "elicitation/create":
            question = await connection.message()
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": BOB}
        await legacy.send(reply)
        await connection.over()

    assert said(connection) == "named Bob of 1"


# Bounds.


async def test_open_keyed_calls_of_a_client_are_bounded() -> None:
    """They run on without their clients: the bound is that of open tasks."""
    go = asyncio.Event()
    app = serving(Counts(lambda: go), tasks_of_client=2)
    client = await begin(app)
    for key in ("a", "b"):
        async with client.open(keyed(client, key)) as connection:
            await until(lambda: len(app.mux.waiting_calls) >= 2)
            connection.disconnect()

    answer = await client.send(keyed(client, "c"))
    assert (answer.status, answer.json["error"]["data"]["retryAfter"]) == (429, 60)
    assert len(app.mux.waiting_calls) == 2  # the hooks
    go.set()
    await waiting(app, 0)
    assert await call(client, "c") == "call 3"


def test_settings_of_the_earlier_mechanism_are_gone() -> None:
    """A result is kept for `Tool.result_ttl`."""
    for name in ("idempotency_ttl", "late_results_bytes"):
        with pytest.raises(TypeError, match=name):
            Limits(**{name: 1})
