"""`io.genmcp/idempotencyKey`: a call that is sent again is the same call."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Continue,
    Done,
    Endpoint,
    JobOptions,
    Limits,
    McpError,
    MemoryStore,
    Mux,
    Resource,
    Run,
    SQLiteStore,
    Store,
    Suite,
    Tool,
    ToolError,
    elicit,
    job,
    prompt,
    result,
)
from genmcp.errors import StoreUnavailable
from genmcp.stores.store import Delete, Op, Put
from tests.support.asgi import ALL, MODERN, PATIENCE, TASKS, Client, Connection, until

KEY = "io.genmcp/idempotencyKey"
LEGACY = "2025-11-25"
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BOB = {"action": "accept", "content": {"name": "Bob"}}


class Counts(Tool):
    """Counts its calls, and does what the test gives it."""

    task = "auto"
    result_ttl = 60.0

    def __init__(self, does: Callable[[], Any] = str, name: str = "counts") -> None:
        self.name = name
        self.does = does
        self.calls = 0

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        said = f"call {self.calls}"
        given = self.does()
        if isinstance(given, asyncio.Event):
            await given.wait()
        elif given:
            return given
        return said

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        match outcome:
            case Done(Accepted(content)):
                return f"{tag} {content['name']} of {self.calls}"
            case Done(value):
                return f"{tag} {value} of {self.calls}"
        raise ToolError(f"{tag} failed")


def serving(*tools: Tool, store: Store | None = None, lease: float = 30.0) -> Endpoint:
    """Return an endpoint that takes the principal from the request."""
    suite = Suite(name="test", version="1", tools=tools)
    mux = Mux(
        suite,
        store=store or MemoryStore(),
        jobs=JobOptions(lease=lease, shutdown_grace=0.0),
        secret="a secret of 16 bytes",
    )
    return Endpoint(mux, principal=lambda scope: scope.get("who"))


async def begin(app: Endpoint, version: str = MODERN, **options: Any) -> Client:
    return await Client.begin(app, version, **{"who": "ann", **options})


def keyed(client: Client, key: str = "k", *, tool: str = "counts", **arguments: Any) -> Any:
    return client.call(tool, arguments, **{KEY: key})


def said(answer: Connection) -> str:
    found: str = answer.messages[-1]["result"]["content"][0]["text"]
    return found


async def call(client: Client, key: str = "k", **arguments: Any) -> str:
    return said(await client.send(keyed(client, key, **arguments)))


async def held(app: Endpoint, number: int) -> None:
    """Wait until so many calls wait."""
    await until(lambda: len(app.mux.waiting_calls) == number)


def refused(answer: Connection) -> str:
    error = answer.json["error"]
    assert error["code"] == -32602
    found: str = error["message"]
    return found


@pytest.mark.parametrize("version", ALL)
async def test_same_key_and_arguments_get_the_first_answer(version: str) -> None:
    """On every revision; the order of arguments does not matter, another key does."""
    tool = Counts()
    client = await begin(serving(tool), version)

    assert await call(client, "k", a=1, b=[2]) == "call 1"
    assert await call(client, "k", b=[2], a=1) == "call 1"
    assert await call(client, "other", a=1, b=[2]) == "call 2"
    assert tool.calls == 2


async def test_other_arguments_are_refused() -> None:
    """The answer names the key."""
    client = await begin(serving(Counts()))
    await call(client, "k", a=1)

    assert f"{KEY} 'k' was used" in refused(await client.send(keyed(client, "k", a=2)))


async def test_key_needs_somebody_it_belongs_to() -> None:
    """Without authentication any client could fetch the result; an empty key is rejected."""
    app = serving(tool := Counts())

    assert "needs an auth" in refused(await (await begin(app, who=None)).send(keyed(Client(app))))
    assert "must not be empty" in refused(await (await begin(app)).send(keyed(Client(app), "")))
    assert tool.calls == 0


async def test_key_is_of_one_principal_and_one_tool() -> None:
    """Others with the same key make calls of their own."""
    app = serving(Counts(), Counts(name="other"))
    ann, bob = await begin(app), await begin(app, who="bob")

    assert await call(ann) == "call 1"
    assert await call(bob) == "call 2"
    assert said(await ann.send(keyed(ann, tool="other"))) == "call 1"


async def test_key_of_what_is_no_tool_means_nothing() -> None:
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


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_call_sent_again_while_it_runs_gets_its_answer(version: str) -> None:
    """It does not run a second time; both get the result."""
    go = asyncio.Event()
    app = serving(tool := Counts(lambda: go))
    first, second = await begin(app, version), await begin(app, version)
    async with first.open(keyed(first)) as one, second.open(keyed(second)) as two:
        await held(app, 2)
        go.set()
        await asyncio.gather(one.over(), two.over())

    assert [said(one), said(two)] == ["call 1", "call 1"]
    assert tool.calls == 1


@pytest.mark.parametrize("error", [ToolError("no"), ValueError("no")])
async def test_call_that_fails_frees_its_key(error: Exception) -> None:
    """A failed call runs again, and that result is kept."""

    def fails_once() -> None:
        if tool.calls == 1:
            raise error

    client = await begin(serving(tool := Counts(fails_once)))
    assert "isError" in (await client.send(keyed(client))).json["result"]

    assert [await call(client), await call(client)] == ["call 2", "call 2"]


async def test_result_that_says_error_is_an_answer() -> None:
    """The hook has returned, and may have had side effects."""
    client = await begin(serving(tool := Counts(lambda: result(error="no money"))))

    assert [await call(client), await call(client)] == ["no money", "no money"]
    assert tool.calls == 1


async def test_call_whose_client_left_frees_its_key() -> None:
    """A copy that waits for its result runs the call then."""
    go = asyncio.Event()
    app = serving(tool := Counts(lambda: go))
    first, second = await begin(app), await begin(app)
    async with first.open(keyed(first)) as one:
        await held(app, 1)
        async with second.open(keyed(second)) as two:
            await held(app, 2)
            one.disconnect()
            await until(lambda: tool.calls == 2)
            go.set()
            await two.over()

    assert said(two) == "call 2"


async def test_question_does_not_use_the_key_up() -> None:
    """The retry that answers it continues with the same key; its result is kept."""
    tool = Counts(lambda: Continue("named", elicit("Who?", NAME)))
    client = await begin(serving(tool), capabilities=ASKS)
    asked = await client.send(keyed(client))
    again = keyed(client)
    again["params"] |= {
        "requestState": asked.json["result"]["requestState"],
        "inputResponses": {"named": BOB},
    }

    answers = [said(await client.send(each)) for each in (again, again, keyed(client))]

    assert answers == ["named Bob of 1"] * 3


@job(name="idempotency.work")
async def work(run: Run) -> str:
    working.calls += 1
    await working.go.wait()
    if working.calls == working.fails:
        raise ValueError("no")
    return "worked"


class Working:
    """The job counts its runs, waits for `go`, and may fail once."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = 0
        self.go = asyncio.Event()


working: Working


@pytest.fixture(autouse=True)
def _working() -> None:
    global working
    working = Working()


def works() -> Counts:
    return Counts(lambda: Continue("done", work.job()))


async def over(client: Client, id: str) -> dict[str, Any]:
    """Return how a task stands in the end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            found: dict[str, Any] = answer.json["result"]
            if found["status"] not in ("working", "input_required"):
                return found
            await asyncio.sleep(0.01)


async def handle(client: Client) -> dict[str, Any]:
    answer = await client.send(keyed(client))
    found: dict[str, Any] = answer.json["result"]
    assert found["resultType"] == "task"
    return found


async def test_task_is_the_same_for_the_same_key() -> None:
    """Running and done; it is kept as long as the key is."""
    app = serving(works())
    client = await begin(app, capabilities=TASKS)
    first = await handle(client)
    again = await handle(client)
    working.go.set()
    await over(client, first["taskId"])
    later = await handle(client)

    assert len({each["taskId"] for each in (first, again, later)}) == 1
    assert [x["status"] for x in (first, again, later)] == ["working", "working", "completed"]
    assert first["ttlMs"] == Limits().idempotency_ttl * 1000
    assert working.calls == 1
    await app.mux.aclose()


async def test_promoted_call_gives_the_handle_to_who_waits_for_it() -> None:
    """A copy gets the handle as soon as the first call does."""
    go = asyncio.Event()
    tool = Counts(lambda: go)
    tool.promote_after = 0.05
    app = serving(tool)
    first, second = [await begin(app, capabilities=TASKS) for _ in range(2)]
    async with first.open(keyed(first)) as one, second.open(keyed(second)) as two:
        await until(lambda: bool(one.complete and two.complete), pause=0.01)
        (id,) = {each.json["result"]["taskId"] for each in (one, two)}
        go.set()
        await one.over()

    assert (await over(first, id))["result"]["content"][0]["text"] == "call 1"
    assert id == (await handle(first))["taskId"]
    await app.mux.aclose()


async def test_handle_of_a_failed_call_outlives_reuse_of_its_key() -> None:
    """A client may still poll the first task while another sends the call again."""
    working.fails = 1
    app = serving(works())
    client = await begin(app, capabilities=TASKS)
    working.go.set()
    first = await handle(client)
    failed = await over(client, first["taskId"])
    second = await handle(client)
    await over(client, second["taskId"])

    again = await over(client, first["taskId"])
    assert (failed["status"], failed["lastUpdatedAt"]) == (again["status"], again["lastUpdatedAt"])
    await app.mux.aclose()


async def test_id_of_a_running_keyed_call_is_unknown_to_clients() -> None:
    """It is private until the call is a task, although its owner could learn of its form."""
    go = asyncio.Event()
    app = serving(Counts(lambda: go))
    client, other = await begin(app), await begin(app, capabilities=TASKS)
    async with client.open(keyed(client)) as call:
        await held(app, 1)
        ((id, _),) = app.mux.tasks.service.keyed._running
        answer = await other.send(other.request("tasks/get", {"taskId": id}))
        assert answer.json["error"]["code"] == -32602
        go.set()
        await call.over()
    await app.mux.aclose()


async def test_thawed_process_publishes_no_second_task(tmp_path: Path) -> None:
    """It was frozen for longer than a lease before its job was written: the other call counts."""
    go = asyncio.Event()

    class Thaws(Counts):
        async def call(self, request: Any, channel: Any) -> Any:
            self.calls += 1
            await go.wait()
            return Continue("done", work.job())

    ghost, taker = Thaws(), works()
    first, second = [
        serving(tool, store=SQLiteStore(tmp_path / "studio.db"), lease=0.3)
        for tool in (ghost, taker)
    ]
    one, two = [await begin(app, capabilities=TASKS) for app in (first, second)]
    async with one.open(keyed(one)) as frozen:
        await until(lambda: ghost.calls == 1)
        await first.mux.tasks.service.aclose()  # no heartbeat any more
        id = (await handle(two))["taskId"]
        go.set()
        await frozen.over()

    assert frozen.json["error"]["code"] == -32603
    working.go.set()
    assert (await over(two, id))["status"] == "completed"
    assert working.calls == 1
    for app in (first, second):
        await app.mux.aclose()


@pytest.mark.parametrize("ends", ["cancelled", "raised"])
async def test_task_that_came_to_nothing_frees_the_key(ends: str) -> None:
    """A task that was cancelled, or whose hook raised: the same call makes another task."""
    working.fails = 1
    app = serving(works())
    client = await begin(app, capabilities=TASKS)
    first = await handle(client)
    if ends == "cancelled":
        await client.send(client.request("tasks/cancel", {"taskId": first["taskId"]}))
    working.go.set()
    await over(client, first["taskId"])

    second = await handle(client)

    assert first["taskId"] != second["taskId"]
    assert (await over(client, second["taskId"]))["result"]["content"][0][
        "text"
    ] == "done worked of 2"
    await app.mux.aclose()


async def test_promoted_call_that_raises_frees_the_key() -> None:
    """Its client reads of it in the task, and may try again."""
    go = asyncio.Event()

    class Raises(Counts):
        async def call(self, request: Any, channel: Any) -> Any:
            self.calls += 1
            await go.wait()
            raise ToolError(f"failed {self.calls}")

    tool = Raises()
    tool.promote_after = 0.01
    app = serving(tool)
    client = await begin(app, capabilities=TASKS)
    async with client.open(keyed(client)) as call:
        await until(lambda: call.complete, pause=0.01)
        go.set()
        await call.over()

    assert said(await client.send(keyed(client))) == "failed 2"
    await app.mux.aclose()


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_copy_of_a_call_in_another_process_gets_the_job_result(
    version: str, tmp_path: Path
) -> None:
    """Its job outlives the first server: a copy of the call gets the result."""
    path = tmp_path / "studio.db"
    first, second = [serving(works(), store=SQLiteStore(path)) for _ in range(2)]
    client = await begin(first, version)
    async with client.open(keyed(client)) as one:
        await until(lambda: working.calls == 1, pause=0.01)
        one.task.cancel()  # as a host does that goes away
    await first.mux.aclose()

    client = await begin(second, version)
    async with client.open(keyed(client)) as two:
        working.go.set()
        await two.over()

    assert said(two) == "done worked of 0"
    await second.mux.aclose()


async def test_call_that_only_follows_may_be_left() -> None:
    """Another that waits for the same task, and is cancelled, does not cancel it."""
    app = serving(works())
    first, second = await begin(app), await begin(app)
    async with first.open(keyed(first)) as one:
        await until(lambda: working.calls == 1)
        async with second.open(keyed(second)):
            await held(app, 2)
        await held(app, 1)
        working.go.set()
        await one.over()

    assert said(one) == "done worked of 1"
    await app.mux.aclose()


async def test_call_that_follows_one_that_is_cancelled_runs() -> None:
    """As if it had come later."""
    app = serving(works())
    first, second = await begin(app), await begin(app)
    async with first.open(keyed(first)) as one:
        await until(lambda: working.calls == 1)
        async with second.open(keyed(second)) as two:
            await held(app, 2)
            one.disconnect()
            await until(lambda: working.calls == 2)
            working.go.set()
            await two.over()

    assert said(two) == "done worked of 2"
    await app.mux.aclose()


async def test_call_that_follows_one_that_fails_is_told() -> None:
    """Both get the error; a later call runs again."""

    class Fails(Counts):
        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            raise McpError("no", code=-32000 - self.calls)

    app = serving(Fails(lambda: Continue("done", work.job())))
    first, second = await begin(app), await begin(app)
    async with first.open(keyed(first)) as one:
        await until(lambda: working.calls == 1)
        async with second.open(keyed(second)) as two:
            await held(app, 2)
            working.go.set()
            await asyncio.gather(one.over(), two.over())
    later = await first.send(keyed(first))

    assert [x.json["error"]["code"] for x in (one, two, later)] == [-32001, -32001, -32002]
    await app.mux.aclose()


class AsksLater(Counts):
    """Has a job done, and asks then."""

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        if tag == "done":
            return Continue("named", elicit("Who?", NAME))
        return await super().continue_(tag, outcome, channel)


async def test_question_of_a_task_is_answered_with_the_same_key() -> None:
    """For a client without tasks a retry joins the waiting call, and gets its result."""
    app = serving(AsksLater(lambda: Continue("done", work.job())))
    client = await begin(app, capabilities=ASKS)
    working.go.set()
    asked = await client.send(keyed(client))
    asked_again = await client.send(keyed(client))
    again = keyed(client)
    again["params"] |= {
        "requestState": asked_again.json["result"]["requestState"],
        "inputResponses": {"named": BOB},
    }

    assert asked.json["result"]["inputRequests"] == asked_again.json["result"]["inputRequests"]
    assert said(await client.send(again)) == "named Bob of 1"
    assert await call(client) == "named Bob of 1"
    assert working.calls == 1
    await app.mux.aclose()


async def test_two_processes_run_a_call_once(tmp_path: Path) -> None:
    """The call that writes the key first runs; the other one gets its result."""
    tools = [Counts(), Counts()]
    apps = [serving(tool, store=SQLiteStore(tmp_path / "studio.db")) for tool in tools]
    clients = [await begin(app) for app in apps]
    for number in range(10):
        calls = [call(client, f"k{number}") for client in clients]
        assert len({*await asyncio.gather(*calls)}) == 1

    assert sum(tool.calls for tool in tools) == 10
    for app in apps:
        await app.mux.aclose()


class View(MemoryStore):
    """One process's view of a store, which it may be unable to write to."""

    def __init__(self, store: MemoryStore) -> None:
        self.__dict__ = store.__dict__
        self.view: dict[str, int] = {}

    broken = False

    async def apply(self, *ops: Op) -> None:
        if self.broken and any(isinstance(op, Put) and op.expect for op in ops):
            raise StoreUnavailable("the disk is full")
        await super().apply(*ops)


async def test_process_that_is_gone_frees_its_keys(tmp_path: Path) -> None:
    """Another one runs the call; the first, if it was only frozen, gives the answer of that."""
    go = asyncio.Event()
    ghost, taker = Counts(lambda: go), Counts()
    taker.calls = 6
    first, second = [
        serving(tool, store=SQLiteStore(tmp_path / "studio.db"), lease=0.3)
        for tool in (ghost, taker)
    ]
    one, two = await begin(first), await begin(second)
    async with one.open(keyed(one)) as frozen:
        await until(lambda: ghost.calls == 1)
        await first.mux.tasks.service.aclose()  # it gives no sign of life any more
        assert await call(two) == "call 7"
        go.set()
        await frozen.over()

    assert [said(frozen), ghost.calls] == ["call 7", 1]
    for app in (first, second):
        await app.mux.aclose()


async def test_call_that_runs_long_keeps_its_key(tmp_path: Path) -> None:
    """Its process is alive, so that it may take longer than a lease."""
    go = asyncio.Event()
    tools = [Counts(lambda: go), Counts()]
    apps = [serving(tool, store=SQLiteStore(tmp_path / "studio.db"), lease=0.5) for tool in tools]
    first, second = [await begin(app) for app in apps]
    async with first.open(keyed(first)) as one:
        await until(lambda: tools[0].calls == 1)
        async with second.open(keyed(second)) as two:
            await held(apps[1], 1)
            await asyncio.sleep(1.0)  # two leases
            go.set()
            await asyncio.gather(one.over(), two.over())

    assert [said(one), said(two)] == ["call 1", "call 1"]
    assert tools[1].calls == 0
    for app in apps:
        await app.mux.aclose()


async def test_end_of_a_call_is_kept_when_the_store_is_back() -> None:
    """Its key must be freed although the write was rejected, or it would stay taken."""
    store = View(MemoryStore())

    def fails_once() -> None:
        if tool.calls == 1:
            raise ToolError("no")

    app = serving(tool := Counts(fails_once), store=(view := View(store)))
    client = await begin(app)

    class Away(View):
        broken = True

        async def apply(self, *ops: Op) -> None:
            if any(isinstance(op, Delete) for op in ops):
                raise StoreUnavailable("locked")
            await super().apply(*ops)

    view.__class__ = Away
    assert "isError" in (await client.send(keyed(client))).json["result"]
    view.__class__ = View
    assert await call(client) == "call 2"  # the key is freed
    view.__class__ = Away
    assert await call(client, "other") == "call 3"
    view.__class__ = View
    assert await call(client, "other") == "call 3"  # and the result is kept


async def test_store_that_fails_costs_the_key_and_not_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The answer goes out; that it is not kept is in the log."""

    class Broken(View):
        broken = True

    app = serving(Counts(), store=Broken(MemoryStore()))

    assert await call(await begin(app)) == "call 1"
    assert "is not stored yet: the disk is full" in caplog.text
    await app.mux.aclose()


async def test_resource_with_a_key_that_fails_later_is_no_matter() -> None:
    """A read that continues after its job has no key to free."""

    class Reads(Resource):
        name = "reads"
        uri = "note://today"

        async def read(self, key: Any, channel: Any) -> Any:
            return Continue("done", work.job())

        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            raise McpError("no", code=-32001)

    working.go.set()
    mux = Mux(Suite(name="test", version="1", resources=[Reads]))
    client = Client(Endpoint(mux))
    read = client.request("resources/read", {"uri": "note://today"}, **{KEY: "k"})
    answer = await client.send(read)

    assert answer.json["error"]["code"] == -32001
    await mux.aclose()


async def test_key_that_is_taken_meanwhile_is_looked_at_again() -> None:
    """Of two that find it free, one writes it; the other one gives that answer."""

    class Late(MemoryStore):
        async def apply(self, *ops: Op) -> None:
            if (op := ops[0]) and isinstance(op, Put) and op.expect == 0:
                await asyncio.sleep(0)  # the other one looks meanwhile
            await super().apply(*ops)

    app = serving(tool := Counts(), store=Late())
    clients = [await begin(app) for _ in range(2)]

    assert await asyncio.gather(*map(call, clients)) == ["call 1", "call 1"]
    assert tool.calls == 1


class Blocked(MemoryStore):
    """A store that takes no record of a task while it is locked."""

    def __init__(self) -> None:
        super().__init__()
        self.locked = True
        self.rejected = 0

    async def apply(self, *ops: Op) -> None:
        if self.locked and any(isinstance(op, Put) and "#call" in op.key for op in ops):
            self.rejected += 1
            raise StoreUnavailable("locked")
        await super().apply(*ops)


@pytest.mark.parametrize("thaws", [False, True])
async def test_key_is_kept_while_no_task_can_be_written(thaws: bool) -> None:
    """However long that takes: a copy of the call waits, and gets the same result."""
    go = asyncio.Event()
    tool = Counts(lambda: go)
    tool.promote_after = 0.01
    app = serving(tool, store=(store := Blocked()))
    first, second = [await begin(app, capabilities=TASKS) for _ in range(2)]
    async with first.open(keyed(first)) as one:
        await until(lambda: store.rejected > 2, pause=0.01)
        async with second.open(keyed(second)) as two:
            await held(app, 2)
            store.locked = not thaws
            if not thaws:
                go.set()
            await until(lambda: bool(one.complete and two.complete), pause=0.01)
            go.set()
            await asyncio.gather(one.over(), two.over())

    if thaws:
        (id,) = {each.json["result"]["taskId"] for each in (one, two)}
        assert (await over(first, id))["result"]["content"][0]["text"] == "call 1"
    else:
        assert [said(one), said(two)] == ["call 1", "call 1"]
    assert tool.calls == 1
    await app.mux.aclose()


class Edge(MemoryStore):
    """A store that lets a process see that its task is written only when *go* is set."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.go = asyncio.Event(), asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        await super().apply(*ops)
        if any(isinstance(op, Put) and "#call" in op.key for op in ops):
            self.written.set()
            await self.go.wait()


@pytest.mark.parametrize("patience", [0.01, 0.2])  # shorter and longer than a tick
@pytest.mark.parametrize("ends", ["result", "raised", "left"])
async def test_handle_by_key_resolves_when_promotion_is_too_late(
    ends: str, patience: float
) -> None:
    """The copy has got the handle of a task, and then the call ends before its promotion does."""
    go = asyncio.Event()

    class Ends(Counts):
        async def call(self, request: Any, channel: Any) -> Any:
            await go.wait()
            if ends == "raised":
                raise ToolError("no luck")
            return "done"

    tool = Ends()
    tool.promote_after = patience
    app = serving(tool, store=(store := Edge()))
    first, second = [await begin(app, capabilities=TASKS) for _ in range(2)]
    async with first.open(keyed(first)) as one:
        await store.written.wait()
        id = (await handle(second))["taskId"]
        if ends == "left":
            one.disconnect()
            await held(app, 0)
        go.set()
        await held(app, 0)
        store.go.set()
        await one.over()
        task = await over(second, id)

    if ends == "left":
        assert task["status"] == "cancelled"
    else:
        text = {"result": "done", "raised": "no luck"}[ends]
        assert text == task["result"]["content"][0]["text"] == said(one)
    await app.mux.aclose()


async def test_clocks_that_differ_make_no_second_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reaches a machine whose clock is an hour ahead while the task is being written."""
    store, gate = MemoryStore(), asyncio.Event()

    class Gate(View):
        async def apply(self, *ops: Op) -> None:
            if any(isinstance(op, Put) and "#call" in op.key for op in ops):
                writing.set()
                await gate.wait()
            await super().apply(*ops)

    writing = asyncio.Event()
    one, two = serving(works(), store=Gate(store)), serving(works(), store=View(store))
    first, second = [await begin(app, capabilities=TASKS) for app in (one, two)]
    async with first.open(keyed(first)) as call:
        await writing.wait()
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        async with second.open(keyed(second)) as copy:
            await held(two, 1)
            monkeypatch.undo()
            gate.set()
            await asyncio.gather(call.over(), copy.over())

    assert len({each.json["result"]["taskId"] for each in (call, copy)}) == 1
    routes: list[Any] = [app.mux.find("tools/call", "counts") for app in (one, two)]
    assert sorted(route.provider.calls for route in routes) == [0, 1]
    working.go.set()
    for app in (one, two):
        await app.mux.aclose()


async def test_copies_of_a_call_that_asks_run_it_once() -> None:
    """A copy gets the same question; copies of the answer get one result."""
    tool = Counts(lambda: Continue("named", elicit("Who?", NAME)))
    app = serving(tool)
    client = await begin(app, capabilities=ASKS)

    def answered(asked: Connection) -> Any:
        again = keyed(client)
        state = asked.json["result"]["requestState"]
        again["params"] |= {"requestState": state, "inputResponses": {"named": BOB}}
        return again

    asked = [await client.send(keyed(client)) for _ in range(3)]
    answers = [await client.send(answered(each)) for each in asked]

    assert len({each.json["result"]["requestState"] for each in asked}) == 1
    assert [said(each) for each in answers] == ["named Bob of 1"] * 3
    assert tool.calls == 1


async def test_copy_of_an_earlier_answer_gets_the_next_question() -> None:
    """It was answered, and the call has continued: no step of it runs again."""

    class AsksTwice(Counts):
        continued = 0

        async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
            self.continued += 1
            if tag == "named":
                return Continue("again", elicit("Really?", NAME))
            return await super().continue_(tag, outcome, channel)

    tool = AsksTwice(lambda: Continue("named", elicit("Who?", NAME)))
    client = await begin(serving(tool), capabilities=ASKS)
    first = await client.send(keyed(client))
    answer = keyed(client)
    answer["params"] |= {
        "requestState": first.json["result"]["requestState"],
        "inputResponses": {"named": BOB},
    }

    second, copy = [(await client.send(answer)).json["result"] for _ in range(2)]

    assert second == copy and list(copy["inputRequests"]) == ["again"]
    assert tool.continued == 1
