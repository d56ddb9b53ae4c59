"""`genmcp jobs` and `genmcp store` on the file of a deployment."""

import asyncio
import importlib
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis

from genmcp import Channel, Continue, Mux, Suite, Tool, ToolRequest
from genmcp.core.outcome import Done
from genmcp.core.task import Task
from genmcp.core.waiting import Asking, Finished, Working
from genmcp.errors import StoreFull, StoreUnavailable
from genmcp.stores import open_store
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Op, Put
from genmcp.tasks.inspection import TaskSummary
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.service import TaskService
from genmcp.testing import connect
from tests.support.postgres_server import fresh_schema, shared_postgres
from tests.tasks.bench import BOUND, Resumed, ended, made, until

RunCommand: TypeAlias = Callable[..., tuple[int, str, str]]


@job(queue="press")
async def print_pages(run: Run, pages: int) -> int:
    await run.progress(1, pages, "warming up")
    try:
        await asyncio.Event().wait()
    finally:
        print_pages_stopped["event"].set()
    return pages


print_pages_stopped: dict[str, asyncio.Event] = {}


DATABASE = 9  # of the Redis server that the tests of this process share


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """The URL of an empty store of each kind that processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    if request.param == "redis":
        server: str = request.getfixturevalue("redis_url")
        url = f"{server.rstrip('/0')}/{DATABASE}"
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        return url
    url = f"{shared_postgres()}?schema={fresh_schema()}"

    async def migrate() -> None:
        async with aclosing(open_store(url)) as store:
            await store.migrate()

    asyncio.run(migrate())
    return url


@pytest.fixture
def file_url(path: Path) -> str:
    asyncio.run(SQLiteStore(path).aclose())  # creates the file
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    "command",
    [
        ("store", "stats"),
        ("store", "check"),
        ("store", "migrate", "--dry-run"),
        ("jobs", "list"),
        ("jobs", "retry", "t1"),
    ],
)
def test_command_on_a_store_that_does_not_exist_creates_none(
    command: Sequence[str], run: RunCommand, path: Path
) -> None:
    """A misspelt path is an error: its empty store would look like one without tasks."""
    status, output, errors = run(*command, "--store", f"sqlite:///{path}")

    assert (status, output, path.exists()) == (2, "", False)
    assert f"there is no store '{path}'" in errors
    assert run("store", "migrate", "--store", f"sqlite:///{path}")[0] == 0
    assert path.exists()


@asynccontextmanager
async def service(
    url: str, name: str = "shop", resume: Resumed | None = None, **options: Any
) -> AsyncIterator[TaskService]:
    """A service on the file, which serves no queue with jobs unless it is started."""
    store = open_store(url)
    options = {"queues": ["none"], "shutdown_grace": 0.0, **options}
    tasks = TaskService(
        store,
        process_name=lambda: f"{name}-1",
        resume=resume or Resumed(),
        options=JobOptions(**options),
        namespace=name,
    )
    try:
        yield tasks
    finally:
        await tasks.aclose()
        await store.aclose()


def setup(url: str, *tasks: Task, name: str = "shop") -> None:
    """Write *tasks*; those with `fails` in their ids fail."""

    async def write() -> None:
        async with service(url, name) as jobs:
            now = jobs.records.now()
            for task in tasks:
                fields = {"created": now - 90, "updated": now, "due": now, "ttl": 600.0}
                await jobs.create(made_with(task, **fields), b"{}")
                if "fails" in task.id:
                    error = b'{"code": -32603, "message": "no \\u001b[31mpaper\\nleft"}'
                    await jobs.finish(task.id, Finished(error=error), fencing_token=0)

    asyncio.run(write())


def made_with(task: Task, **fields: Any) -> Task:
    return made(task.work, **{"id": task.id, "owner": task.owner, "tool": task.tool, **fields})  # type: ignore[arg-type]


def queued(id: str, owner: str | None = None) -> Task:
    return made(Working(print_pages.job(pages=3)), id=id, owner=owner, tool="print")


def asking(id: str, owner: str | None = None) -> Task:
    return made(Asking({"size": b"{}"}), id=id, owner=owner, tool="print")


def test_list_shows_open_tasks_as_a_table(run: RunCommand, url: str) -> None:
    """By default the tasks that have not ended, with their queue and owner."""
    setup(url, queued("t1", "ann"), asking("t2"), queued("fails"))
    status, output, errors = run("jobs", "list", "--store", url)

    assert (status, errors) == (0, "")
    heading, *rows = output.splitlines()
    assert heading.split() == ["ID", "STATE", "TOOL", "QUEUE", "OWNER", "AGE", "DETAILS"]
    assert [row.split() for row in rows] == [
        ["t1", "queued", "print", "press", "ann", "1m", "-"],
        ["t2", "input_required", "print", "-", "-", "1m", "-"],
    ]


def test_list_of_failed_tasks_has_their_reasons(run: RunCommand, file_url: str) -> None:
    """The dead-letter view. Text of a job cannot forge a row, nor reach the terminal as escapes."""
    setup(file_url, queued("t1", "ann"), queued("fails", "bob"))
    _, output, _ = run("jobs", "list", "--store", file_url, "--state", "failed")

    (row,) = output.splitlines()[1:]
    assert row.split(maxsplit=6)[:2] == ["fails", "failed"]
    assert row.endswith("no [31mpaper left")


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--queue", "press"], ["t1", "t3"]),
        (["--queue", "press", "--owner", "ann"], ["t1"]),
        (["--owner", "ann"], ["fails", "t1"]),
        (["--owner", "ann", "--state", "failed"], ["fails"]),
        (["--state", "input_required", "--state", "failed"], ["fails", "t2"]),
        (["--owner", "nobody"], []),
        (["--service", "shop"], ["t1", "t2", "t3"]),
        (["--service", "other"], []),
    ],
)
def test_list_is_filtered(
    options: list[str], ids: list[str], run: RunCommand, file_url: str
) -> None:
    """By state, queue, owner and service, and as JSON."""
    setup(file_url, queued("t1", "ann"), asking("t2"), queued("t3", "bob"), queued("fails", "ann"))
    _, output, _ = run("jobs", "list", "--store", file_url, "--json", *options)

    assert sorted(task["id"] for task in json.loads(output)) == ids


def test_list_is_limited(run: RunCommand, file_url: str) -> None:
    """A long list ends with how to see the rest."""
    setup(file_url, *(queued(f"t{number}") for number in range(5)))

    _, output, _ = run("jobs", "list", "--store", file_url, "--limit", "4")
    assert len(output.splitlines()) == 6
    assert "more than 4 tasks" in output
    _, output, _ = run("jobs", "list", "--store", file_url, "--limit", "5")
    assert "more than" not in output


def test_list_includes_all_services_of_a_store(
    run: RunCommand, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several servers share a file; the store may be named by the variable of the servers."""
    setup(file_url, queued("t1"), name="shop")
    setup(file_url, queued("t2"), name="hotel")
    monkeypatch.setenv("GENMCP_STORE", file_url)
    _, output, _ = run("jobs", "list", "--json")

    listed = {task["id"]: task["service"] for task in json.loads(output)}
    assert listed == {"t1": "shop", "t2": "hotel"}


def test_show_has_the_job_the_reason_and_the_messages(run: RunCommand, url: str) -> None:
    """Everything that is stored of a task, for a person and as JSON."""
    setup(url, queued("t1", "ann"), queued("fails"))

    async def log() -> None:
        async with service(url) as jobs:
            await jobs.records.log_message("t1", b'{"method":"notifications/message"}')

    asyncio.run(log())
    _, output, _ = run("jobs", "show", "t1", "--store", url)
    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert lines["state"] == "queued"
    assert lines["job"].endswith("print_pages")
    assert lines["arguments"] == '{"pages":3}'
    assert lines["owner"] == "ann"
    assert lines["message"] == '{"method":"notifications/message"}'

    _, output, _ = run("jobs", "show", "fails", "--store", url, "--json")
    shown = json.loads(output)
    assert shown["reason"] == "no \x1b[31mpaper\nleft"
    assert shown["error"]["code"] == -32603


@job
async def mould(run: Run) -> Any:
    return {"parts": [1, object.__new__(Mould)]}


class Mould:
    """A class without a JSON form."""


class Moulds(Tool):
    """Waits for a job with a result that cannot be stored."""

    name = "mould"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return mould.job().then(self.done)

    async def done(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return "never"


def test_show_has_the_place_of_a_result_that_cannot_be_stored(
    run: RunCommand, file_url: str
) -> None:
    """With its type and the remedy; the result of the task has the same text."""
    message = (
        "the result of job tests.cli.test_jobs_command:mould.parts[1] is Mould, which has no JSON "
        "form: use a dataclass, a msgspec.Struct or a pydantic model, or pass a reference to it"
    )

    async def call() -> str:
        mux = Mux(Suite(name="shop", version="1", tools=[Moulds]), store=file_url, secret="s" * 16)
        async with connect(mux) as client:
            handle = await client.call_task("mould")
            assert message in (await handle.wait()).text
        await mux.aclose()
        assert handle.id is not None
        return handle.id

    id = asyncio.run(call())
    _, output, _ = run("jobs", "show", id, "--store", file_url)

    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert message in lines["reason"]
    assert lines["state"] == "failed"


def test_empty_list_says_where_it_has_looked(run: RunCommand, file_url: str) -> None:
    """On standard error: the output of a script stays empty."""
    listing = ("jobs", "list", "--store", file_url)
    assert run(*listing) == (0, "", "no tasks found; services: none\n")
    assert run(*listing, "--service", "shop") == (0, "", "no tasks found; services: shop\n")


def test_unknown_task_is_an_error(run: RunCommand, file_url: str) -> None:
    """Also an id that could not be one."""
    setup(file_url, queued("t1"))
    for id in ("t2", "t1#call", "../etc"):
        for command in ("show", "cancel", "drop"):
            status, output, errors = run("jobs", command, id, "--store", file_url)
            assert (status, output) == (1, "")
            assert "Unknown task" in errors
            assert "another store or --service" in errors


def test_failure_without_a_single_job_is_not_retried(run: RunCommand, file_url: str) -> None:
    """The message says why, and not only that the task has failed."""
    setup(file_url, queued("fails"))
    status, _, errors = run("jobs", "retry", "fails", "--store", file_url)

    assert status == 1
    assert "task fails is failed, and cannot be retried" in errors


def test_cancelled_task_may_be_dropped(run: RunCommand, url: str) -> None:
    """An open task is cancelled before it is dropped; then nothing of it is left."""
    setup(url, queued("t1", "ann"), queued("t2", "ann"))

    status, _, errors = run("jobs", "drop", "t1", "--store", url)
    assert status == 1
    assert "task t1 is queued: cancel it first" in errors
    assert run("jobs", "cancel", "t1", "--store", url)[:2] == (0, "t1: cancelled\n")
    assert run("jobs", "cancel", "t1", "--store", url)[:2] == (1, "t1: cancelled before\n")
    assert run("jobs", "drop", "t1", "--store", url)[0] == 0

    status, _, errors = run("jobs", "show", "t1", "--store", url)
    assert status == 1
    _, output, _ = run("jobs", "list", "--owner", "ann", "--store", url, "--json")
    assert [task["id"] for task in json.loads(output)] == ["t2"]


@pytest.mark.parametrize("id", ["-h3fTq0cL8Wb21xPzAqqqqqqqqq", "--3fTq0cL8Wb21xPzAqqqqqqqqq"])
def test_id_may_begin_with_a_dash(id: str, run: RunCommand, file_url: str) -> None:
    """Ids are random characters of URL-safe base64, and not options."""
    setup(file_url, queued(id), queued("t2"))

    assert f"id         {id}" in run("jobs", "show", id, "--store", file_url)[1]
    status, output, _ = run("jobs", "cancel", "t2", id, "--store", file_url)
    assert (status, output) == (0, f"t2: cancelled\n{id}: cancelled\n")


async def command(*arguments: str) -> tuple[int | None, str]:
    """Run a command in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "genmcp", *arguments, stdout=PIPE, stderr=PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, (output + errors).decode()


async def test_cancel_stops_the_running_job(url: str) -> None:
    """The worker is another process than the command, and shows progress until then."""
    stopped = print_pages_stopped["event"] = asyncio.Event()
    async with service(url, queues=["press"]) as jobs:
        await jobs.create(queued("t1"), b"{}")
        await until(jobs, lambda task: task.message == "warming up")
        _, output = await command("jobs", "list", "--store", url)
        assert "1/3, warming up" in output
        _, output = await command("store", "stats", "--store", url)
        assert "service: shop (1 processes)" in output
        assert "tasks: 1 working" in output
        assert ["press", "yes", "0", "1", "-"] in [line.split() for line in output.splitlines()]

        assert await command("jobs", "cancel", "t1", "--store", url) == (0, "t1: cancelled\n")
        async with asyncio.timeout(BOUND):
            await stopped.wait()


@job(queue="press")
async def count_pages(run: Run, pages: int) -> int:
    return pages


async def test_retry_repeats_the_job_as_a_new_task(url: str) -> None:
    """The call continues from the step that has failed. The failed task stays as its client saw it.

    The command is a process that has neither the job nor the tool.
    """
    resumed = Resumed(Finished(error=b'{"code": -32603, "message": "no paper"}'))
    async with service(url, queues=["press"], resume=resumed) as jobs:
        fields = {"owner": "ann", "tool": "print", "ttl": 600.0, "step": 2, "continuation": b"at 2"}
        await jobs.create(made(Working(count_pages.job(pages=3)), **fields), b"the call")
        failed = await ended(jobs, "t1", "ann")
        assert failed.end == "failed"

        _, output = await command("jobs", "show", "t1", "--store", url)
        assert "count_pages\n" in output
        assert 'arguments  {"pages":3}' in output
        status, output = await command("jobs", "retry", "t1", "--store", url)
        assert status == 0, output
        id = output.removeprefix("t1: retried as ").strip()
        task = await ended(jobs, id, "ann")
        assert (task.result, task.tool, task.retries) == (b"3", "print", "t1")
        assert resumed.seen[0] == resumed.seen[1] == (2, b"the call", Done(3))
        assert (await jobs.get("t1", "ann")).error == failed.error

        status, output = await command("jobs", "retry", id, "--store", url)
        assert status == 1
        assert f"task {id} is completed, and cannot be retried" in output


@pytest.mark.parametrize(
    ("finished", "state", "reason"),
    [
        (Finished(error=b'{"code": 1, "message": "gone"}'), "failed", "gone"),
        (Finished(error=b"[1]"), "failed", "[1]"),
        (
            Finished(result=b'{"content": [{"type": "text", "text": "No ink."}]}', raised=True),
            "failed",
            "No ink.",
        ),
        (Finished(result=b'{"content": []}', raised=True), "failed", '{"content": []}'),
        (Finished(result=b'{"content": []}'), "completed", None),
    ],
)
def test_task_has_failed_if_its_hook_raised(
    finished: Finished, state: str, reason: str | None
) -> None:
    """The client of a hook that raised gets a completed call; for an operator it has failed."""
    summary = TaskSummary.of(queued("t1").finish(finished, 2.0), "shop")

    assert (summary.state, summary.reason) == (state, reason)


# The store


def test_stats_count_tasks_queues_and_owners(run: RunCommand, url: str) -> None:
    """A queue that no process serves is seen by its backlog."""
    setup(url, queued("t1", "ann"), queued("t2", "ann"), asking("t3"), queued("fails"))
    _, output, _ = run("store", "stats", "--store", url)
    assert "tasks: 2 queued, 1 input_required, 1 failed" in output
    assert "open tasks by owner: ann 2, anonymous 1" in output

    _, output, _ = run("store", "stats", "--store", url, "--json")
    stats = json.loads(output)
    (shop,) = stats["services"]
    (press,) = [queue for queue in shop["queues"] if queue["name"] == "press"]
    assert press["backlog"][0] >= 2
    assert press["served"] is False
    if stats["totals"] is not None:
        assert stats["totals"]["entries"] > 4


def test_check_measures_any_store(run: RunCommand, url: str) -> None:
    """The times and the offset of the clock are those of the server."""
    setup(url, queued("t1"))
    _, output, _ = run("store", "check", "--store", url, "--json")
    checked = json.loads(output)
    assert 0 < checked["read_seconds"] < 10
    assert 0 < checked["write_seconds"] < 10
    assert abs(checked["clock_offset_seconds"]) < 5
    assert "durable" in checked


def test_check_reports_a_healthy_store(run: RunCommand, file_url: str) -> None:
    """Nothing is left of the check itself."""
    status, output, _ = run("store", "check", "--store", file_url, "--json")
    checked = json.loads(output)

    assert status == 0
    assert checked["problems"] == []
    assert checked["durable"] is True
    assert checked["totals"]["entries"] == 0


def test_check_reports_problems(
    run: RunCommand, path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the store, and those that any store may have."""

    class Troubled(SQLiteStore):
        durable = False

        def now(self) -> float:
            return super().now() - 60

        async def problems(self) -> list[str]:
            return ["maxmemory-policy is allkeys-lru: set it to noeviction"]

    monkeypatch.setattr("genmcp.cli.operate.open_store", lambda url: Troubled(path))
    status, output, _ = run("store", "check", "--store", file_url)

    assert status == 1
    problems = [line for line in output.splitlines() if line.startswith("problem: ")]
    assert "set it to noeviction" in problems[0]
    assert "not durable" in problems[1]
    assert "-60.0 seconds" in problems[2]


def test_check_reports_a_full_store(
    run: RunCommand, path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once only the reserve is left, new work is rejected: the operator learns of it here."""

    async def fill() -> None:
        store = SQLiteStore(path, max_bytes=200_000)
        with suppress(StoreFull):
            for number in range(20):
                await store.apply(Put(f"{number}", b"x" * 5_000, new=True))
        await store.apply(Put("accepted", b"x" * 5_000))
        await store.aclose()

    asyncio.run(fill())
    monkeypatch.setattr(
        "genmcp.cli.operate.open_store", lambda url: SQLiteStore(path, max_bytes=200_000)
    )
    status, output, _ = run("store", "check", "--store", file_url)
    assert status == 1
    assert "only the reserve of the store is left" in output


def test_check_of_a_store_that_accepts_no_writes_fails(
    run: RunCommand, path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a read-only replica: the message is that of the store."""

    class ReadOnly(SQLiteStore):
        async def apply(self, *ops: Op) -> None:
            raise StoreUnavailable("the server is a read-only replica")

    monkeypatch.setattr("genmcp.cli.operate.open_store", lambda url: ReadOnly(path))
    status, _, errors = run("store", "check", "--store", file_url)
    assert status == 1
    assert "read-only replica" in errors


def test_migrate_shows_statements_only_in_a_dry_run(
    run: RunCommand, path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without its schema is migrated without reading services from it."""

    class Unmigrated(SQLiteStore):
        async def find(self, *where: Any) -> Any:
            raise StoreUnavailable("the schema is missing")

        async def migrate(self, *, dry_run: bool = False) -> str:
            return "CREATE TABLE records"

    assert run("store", "migrate", "--store", file_url)[1] == "there is nothing to migrate\n"
    monkeypatch.setattr("genmcp.cli.operate.open_store", lambda url: Unmigrated(path))
    assert run("store", "migrate", "--store", file_url)[1].startswith("migrated <SQLiteStore")
    assert run("store", "migrate", "--store", file_url, "--dry-run")[1] == "CREATE TABLE records\n"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "give --store URL or --app"),
        (["--store", "memory://"], "is not shared"),
        (["--store", "mysql://a:b@c/d"], "'mysql://***@c/d' is not supported"),
        (["--store", "sqlite:////nowhere/at/all.db"], "nowhere"),
        (["--store", "sqlite:///x.db", "--app", "a:b"], "--app cannot be combined"),
    ],
)
def test_store_that_cannot_be_used_is_a_usage_error(
    options: list[str],
    error: str,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Status 2, and how to name a store."""
    monkeypatch.delenv("GENMCP_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    status, output, errors = run("jobs", "list", *options)
    assert (status, output) == (2, "")
    assert error in errors


def test_app_names_the_store_and_cancels_with_its_tool(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the application, a cancellation reaches `Tool.on_cancel`."""
    tmp_path.joinpath("cancelling_app.py").write_text(
        "from genmcp import Continue, JobOptions, Mux, Suite, Tool\n"
        "from tests.cli.test_jobs_command import print_pages\n"
        "class Print(Tool):\n"
        "    name = 'print'\n"
        "    async def call(self, request, channel):\n"
        "        return Continue('printed', print_pages.job(pages=3))\n"
        "    async def continue_(self, tag, outcome, channel): ...\n"
        "    async def on_cancel(self, channel):\n"
        "        print('the press is stopped')\n"
        "mux = Mux(Suite(name='shop', version='1', tools=[Print]), secret='a secret of 16 bytes',\n"
        f"          store='sqlite:///{tmp_path}/app.db', jobs=JobOptions(queues=['none']))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def call() -> str:
        mux = importlib.import_module("cancelling_app").mux
        async with connect(mux) as client:
            handle = await client.call_task("print")
        await mux.aclose()
        assert handle.id is not None
        return handle.id

    id = asyncio.run(call())
    for command, expected in (("list", id), ("cancel", f"{id}: cancelled")):
        sys.modules.pop("cancelling_app")  # each command is a process that imports it
        ids = [id] if command == "cancel" else []
        status, output, errors = run("jobs", command, *ids, "--app", "cancelling_app:mux")
        assert status == 0, errors
        assert expected in output
    assert "the press is stopped" in errors


def test_events_of_another_kind_are_no_messages(run: RunCommand, file_url: str) -> None:
    """The log of a task also has its changes."""
    setup(file_url, queued("t1"))

    async def change() -> None:
        async with service(file_url) as jobs:
            await jobs.records.store.apply(Append("shop/task:t1", b"c7", ttl=60))

    asyncio.run(change())
    _, output, _ = run("jobs", "show", "t1", "--store", file_url, "--json")
    assert json.loads(output)["messages"] == []
