"""`genmcp call --detach` and `genmcp tasks`, at the example in a process of its own."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp import (
    Continue,
    Endpoint,
    JobOptions,
    Mux,
    SQLiteStore,
    Suite,
    ToolError,
    job,
    tool,
)
from genmcp import (
    Run as JobRun,
)
from genmcp.protocol.tasks import PROGRESS
from tests.cli.users import at_terminal
from tests.client.scripted import served
from tests.client.test_client_polls import WORKING, Oven
from tests.support.serving import serve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "command-line.md").read_text("utf-8")
SHORT = ("review_minimums", "category=brakes", "simulations=100")
LONG = ("review_minimums", "simulations=1000000")

Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.e2e


@contextmanager
def example(folder: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    """Run the example at *port*, with its database in *folder*."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, "-m", "example_app"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any('"mcpServers"' in line for line in process.stdout)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


@pytest.fixture
def url(tmp_path: Path, free_port: int) -> Iterator[str]:
    with example(tmp_path, free_port):
        yield f"http://127.0.0.1:{free_port}/mcp"


def ask(run: Run, url: str) -> str:
    """Start a review, wait until it asks, and return its id."""
    status, id, noise = run("call", url, *SHORT, "--detach")
    assert (status, noise) == (0, "")
    status, _, noise = run("tasks", "follow", url, id.strip())  # without a terminal
    assert status == 1
    assert "`genmcp tasks answer`" in noise
    return id.strip()


def test_detached_call_is_answered_by_another_command(url: str, run: Run) -> None:
    """The id is the only output; the question and its fields are shown; the result is kept."""
    id = ask(run, url)
    shown = run("tasks", "show", url, id)[1]
    whole = json.loads(run("tasks", "show", url, id, "--json")[1])
    wrong = run("tasks", "answer", url, id, "change=some")
    answered = run("tasks", "answer", url, id, "change=those that rise")
    followed = run("tasks", "follow", url, id)
    result = run("tasks", "follow", url, id)
    again = run("tasks", "answer", url, id, "--decline")

    assert re.search(r"^state +input_required$", shown, re.MULTILINE)
    assert re.search(r"^question +\d+ of 45 parts .* Change them\?$", shown, re.MULTILINE)
    assert "[change=all|those that rise|those that fall]" in shown
    assert (whole["taskId"], whole["status"]) == (id, "input_required")
    assert wrong[0] == 2
    assert 'change: expected "all", "those that rise"' in wrong[2]
    assert answered[:2] in [(0, f"{id}: {each}\n") for each in ("working", "completed")]
    assert followed[0] == result[0] == 0
    assert json.loads(followed[1])["changes"] == json.loads(result[1])["changes"] != []
    assert again == (1, "", "genmcp: the task asks nothing: it is completed\n")


def test_task_is_cancelled(url: str, run: Run) -> None:
    """With status 1 if it had ended before."""
    id = run("call", url, *LONG, "--detach")[1].strip()

    assert run("tasks", "cancel", url, id) == (0, f"{id}: cancelled\n", "")
    assert run("tasks", "cancel", url, id) == (1, f"{id}: cancelled before\n", "")
    assert run("tasks", "follow", url, id)[0] == 1


def test_user_follows_and_answers_a_task(url: str, run: Run) -> None:
    """At a terminal the question is prompted for by `follow`, and stays open if it is left."""
    id = ask(run, url)
    with at_terminal("tasks", "follow", url, id) as user:
        user.sees("those that fall")
        user.types("\x03")
        assert user.ends()[0] == 130
    with at_terminal("tasks", "follow", url, id) as user:
        user.sees("those that fall")
        user.types("those that fall\n")
        status, shown = user.ends()

    assert status == 0
    assert '"changes": [' in shown


def test_detached_task_survives_its_server(tmp_path: Path, free_port: int, run: Run) -> None:
    """The next process of the server continues it."""
    url = f"http://127.0.0.1:{free_port}/mcp"
    with example(tmp_path, free_port) as process:
        id = run("call", url, *SHORT, "--detach")[1].strip()
        process.kill()
    with example(tmp_path, free_port):
        assert run("tasks", "follow", url, id)[0] == 1  # it asks
        assert run("tasks", "answer", url, id, "--decline")[0] == 0
        assert json.loads(run("tasks", "follow", url, id)[1])["changes"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("call", "tests.cli.shop:suite", "add", "--detach"), 2, "--detach applies only to a URL"),
        (("tasks", "show", "http://127.0.0.1:9/mcp"), 2, "Missing argument 'ID'"),
        (("tasks", "answer", "URL", "no-task", "a=b", "--decline"), 2, "give one answer"),
        (("tasks", "answer", "URL", "no-task"), 2, "`genmcp tasks follow` prompts"),
        (("tasks", "show", "URL", "no-task"), 1, "genmcp: "),
        (("tasks", "answer", "URL", "no-task", "--accept"), 1, "genmcp: "),
    ],
)
def test_wrong_uses_of_tasks_are_reported(
    arguments: tuple[str, ...], status: int, error: str, url: str, run: Run
) -> None:
    """An unknown task is an error of the server."""
    found = run(*(url if each == "URL" else each for each in arguments))

    assert found[:2] == (status, "")
    assert error in found[2]


def test_call_that_becomes_no_task_is_not_detached(url: str, run: Run) -> None:
    """Its result is written, with a note."""
    status, shown, noise = run("call", url, "list_repairs", "--detach")

    assert (status, noise) == (0, "genmcp: the call has ended already, without a task\n")
    assert shown


def test_page_on_tasks_is_run(tmp_path: Path, free_port: int) -> None:
    """The commands of docs/how-to/command-line.md, at another port."""
    (block,) = re.findall(r"^```sh\n(url=.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with example(tmp_path, free_port):
        done = subprocess.run(
            ["sh", "-e", "-c", block.replace("8000", str(free_port))],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            text=True,
            timeout=50,
        )

    assert done.returncode == 0
    assert '"changes"' in done.stdout


@job(queue="unserved")
async def wait_for_worker(run: JobRun) -> str:
    return "done"


@tool
async def heavy() -> Continue:
    """Does heavy work."""
    return wait_for_worker.job().then(finished)


@heavy.step
def finished(text: str) -> str:
    return text


@tool(task="always")
async def reject() -> str:
    """Fails."""
    raise ToolError("There is no such part.")


async def test_show_tells_that_the_result_is_an_error(run: Run) -> None:
    """By the specification, a task whose tool has failed is completed."""
    async with serve(Endpoint(Suite(name="rejects", tools=reject))) as server:
        url = f"{server}/mcp"
        id = (await asyncio.to_thread(run, "call", url, "reject", "--detach"))[1].strip()
        followed = await asyncio.to_thread(run, "tasks", "follow", url, id)
        shown = await asyncio.to_thread(run, "tasks", "show", url, id)

    assert (followed[0], followed[1]) == (1, "There is no such part.\n")
    assert re.search(r"^state +completed \(the result is an error: ", shown[1], re.MULTILINE)


@pytest.mark.parametrize(
    ("members", "status", "said"),
    [
        ({"_meta": {PROGRESS: {"progress": 10**400}}}, 0, "working"),
        ({"_meta": {PROGRESS: {"progress": 1, "total": 2}}}, 0, "1/2"),
        ({"status": "completed", "result": []}, 0, "completed"),
        ({"status": "completed"}, 0, "completed"),
        ({"ttlMs": 10**400}, 1, "ttlMs"),
    ],
)
async def test_faulty_task_is_shown_or_refused(
    members: dict[str, Any], status: int, said: str, run: Run
) -> None:
    """A hostile server causes no traceback."""
    async with served(Oven(WORKING | members)) as url:
        shown = await asyncio.to_thread(run, "tasks", "show", url, "k")

    assert shown[0] == status
    assert said in shown[1] + shown[2]
    assert "Traceback" not in shown[2]


async def test_follow_shows_that_no_worker_is_there(tmp_path: Path, run: Run) -> None:
    """The server knows that no process serves the queue; the user would wait without a reason."""
    mux = Mux(
        Suite(name="heavy", tools=heavy),
        store=SQLiteStore(tmp_path / "jobs.db"),
        secret="a secret of at least 16 bytes",
        jobs=JobOptions(lease=1),
    )
    endpoint = Endpoint(mux)
    async with serve(Starlette(routes=[endpoint.route("/mcp")])) as server:
        url = f"{server}/mcp"
        id = (await asyncio.to_thread(run, "call", url, "heavy", "--detach"))[1].strip()
        followed = await asyncio.to_thread(run, "tasks", "follow", url, id, "--timeout", "8")
    await mux.aclose()

    assert followed[0] == 1
    assert "genmcp: Waiting for a worker\n" in followed[2]
