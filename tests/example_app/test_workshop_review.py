"""The workshop's long-running tool: its job, its question, and its restart after a crash."""

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, TextContent

from example_app.application import secret_for
from example_app.database import Database
from example_app.seed import fill
from tests.example_app.connecting import PATIENCE, Mode, command, connected, url_of

pytestmark = pytest.mark.slow

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
ABLE: dict[str, Any] = {"elicitation": {}, "extensions": {f"{META}tasks": {}}}

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path at which the workshop creates its database."""
    return tmp_path / "workshop.db"


def minimums(database: Path) -> dict[str, int]:
    """Return the minimum stock of each part."""
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT number, minimum FROM parts"))


class Asked:
    """Answers questions with *answer*, and records them."""

    def __init__(self, action: Any, **content: Any) -> None:
        self.answer = ElicitResult(action=action, content=content or None)
        self.questions: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params)
        return self.answer


@MODES
async def test_workshop_review_applies_approved_changes(database: Path, mode: Mode) -> None:
    """A job with progress, a question with a form, and changes in the user's name."""
    user = Asked("accept", change="those that rise")
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with connected(database, mode, user="tomasz", elicitation_callback=user) as client:
        before = minimums(database)
        result = await client.call_tool(
            "review_minimums",
            {"category": "brakes", "simulations": 100},
            progress_callback=step,
        )

    review = result.structured_content
    assert isinstance(review, dict)
    (question,) = user.questions
    assert question.message.endswith("Change them?")
    choices = question.requested_schema["properties"]["change"]["enum"]
    assert choices == ["all", "those that rise", "those that fall"]
    assert steps == sorted(steps)
    assert steps[-1] == 45
    assert review["user"] == "tomasz"
    assert review["changes"]
    assert all(change["minimum"] > change["was"] for change in review["changes"])
    changed = {change["number"]: change["minimum"] for change in review["changes"]}
    assert minimums(database) == {**before, **changed}


@MODES
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_workshop_review_changes_nothing_without_a_yes(
    database: Path, mode: Mode, action: str
) -> None:
    """If the user declines or cancels, the result has no changes."""
    async with connected(database, mode, elicitation_callback=Asked(action)) as client:
        before = minimums(database)
        result = await client.call_tool(
            "review_minimums", {"category": "lights", "simulations": 100}
        )

    assert result.structured_content == {"changes": [], "user": "ines"}
    assert minimums(database) == before


@MODES
async def test_workshop_review_without_changes_asks_nothing(database: Path, mode: Mode) -> None:
    """A second review finds nothing to change."""
    user = Asked("accept", change="all")
    async with connected(database, mode, elicitation_callback=user) as client:
        for _ in range(2):
            result = await client.call_tool(
                "review_minimums", {"category": "lights", "simulations": 100}
            )

    assert result.structured_content == {"changes": [], "user": "ines"}
    assert len(user.questions) == 1


@MODES
async def test_workshop_review_requires_elicitation(database: Path, mode: Mode) -> None:
    """The missing capability is an error on 2026-07-28, and a text before."""
    arguments = {"category": "lights", "simulations": 100}
    async with connected(database, mode) as client:
        if mode != "legacy":
            with pytest.raises(MCPError, match=r"did not declare a capability.*: elicitation"):
                await client.call_tool("review_minimums", arguments)
            return
        result = await client.call_tool("review_minimums", arguments)

    (block,) = result.content
    assert result.is_error
    assert isinstance(block, TextContent)
    assert block.text == "the client did not declare a capability this needs: elicitation"


class Speaker:
    """A minimal client of 2026-07-28 with tasks."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    def posted(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the headers and the body of a request."""
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            "x-forwarded-user": "tomasz",
        }
        if name := params.get("name") or params.get("taskId"):
            headers["mcp-name"] = name
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": ABLE}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return {"json": body, "headers": headers}

    async def request(self, method: str, **params: Any) -> Any:
        """Send a request, and return its result."""
        response = await self.http.post("/mcp", **self.posted(method, params))
        return response.json()["result"]

    async def until(self, id: str, *statuses: str) -> Any:
        """Listen until a task has one of these statuses; return it."""
        wanted = self.posted("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        async with (
            asyncio.timeout(PATIENCE),
            self.http.stream("POST", "/mcp", **wanted) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    task = json.loads(line.removeprefix("data: ")).get("params", {})
                    if task.get("status") in statuses:
                        return task
        raise AssertionError("the stream ended")


@asynccontextmanager
async def process_in(folder: Path) -> AsyncIterator[tuple[Speaker, Callable[[], Awaitable[int]]]]:
    """Run the workshop in a process; yield a client and a function that kills the process."""
    async with command(folder, PORT="0") as process:
        url = httpx.URL(await url_of(process)).copy_with(path="/")

        async def kill() -> int:
            process.kill()
            return await asyncio.wait_for(process.wait(), PATIENCE)

        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
            yield Speaker(http), kill


async def test_workshop_review_outlives_its_process(tmp_path: Path) -> None:
    """Killed during its job and during its question, it continues in the next process."""
    async with process_in(tmp_path) as (client, kill):
        task = await client.request(
            "tools/call", name="review_minimums", arguments={"simulations": 2000}
        )
        before = minimums(tmp_path / "example.db")
        assert task["status"] == "working"
        await kill()
    async with process_in(tmp_path) as (client, kill):
        task = await client.until(task["taskId"], "input_required", "completed", "failed")
        (name,) = task["inputRequests"]
        await kill()
    async with process_in(tmp_path) as (client, _):
        answer = {name: {"action": "accept", "content": {"change": "all"}}}
        await client.request("tasks/update", taskId=task["taskId"], inputResponses=answer)
        task = await client.until(task["taskId"], "completed", "failed")

    review = task["result"]["structuredContent"]
    changed = {change["number"]: change["minimum"] for change in review["changes"]}
    assert review["user"] == "tomasz"
    assert changed
    assert minimums(tmp_path / "example.db") == {**before, **changed}


async def test_workshop_review_can_be_cancelled(tmp_path: Path) -> None:
    """A long review ends at once when its client cancels it."""
    async with process_in(tmp_path) as (client, _):
        task = await client.request(
            "tools/call", name="review_minimums", arguments={"simulations": 1_000_000}
        )
        await client.request("tasks/cancel", taskId=task["taskId"])
        task = await client.until(task["taskId"], "cancelled")

    assert "result" not in task


def test_workshop_processes_share_one_secret(database: Path) -> None:
    """The first process creates it, readable by its owner only, without a temporary file."""
    with ThreadPoolExecutor(8) as pool:
        (secret,) = set(pool.map(lambda _: secret_for(database), range(8)))

    (file,) = database.parent.iterdir()
    assert len(secret) >= 32
    assert file.read_text("ascii") == secret
    assert file.stat().st_mode & 0o077 == 0


def test_workshop_database_is_for_its_owner(database: Path) -> None:
    """No other user of the machine can read the customers' data."""
    Database(database).create(fill)

    assert database.stat().st_mode & 0o777 == 0o600


def test_workshop_secret_is_that_of_the_environment(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in the environment is not written to a file."""
    monkeypatch.setitem(os.environ, "GENMCP_SECRET", "set at deployment")

    assert secret_for(database) == "set at deployment"
    assert not [*database.parent.iterdir()]


@MODES
@pytest.mark.parametrize(
    ("action", "text"),
    [("accept", "Booked 1500 pieces"), ("decline", "Nothing was booked"), ("cancel", "Nothing")],
)
async def test_workshop_asks_before_it_books_a_large_delivery(
    database: Path, mode: Mode, action: str, text: str
) -> None:
    """`call` returns the question, and `continue_` gets its outcome; a small one is booked."""
    user = Asked(action)
    async with connected(database, mode, elicitation_callback=user) as client:
        for quantity in (20, 1500):
            note = f"number,quantity\nCH-103,{quantity}"
            arguments = {"supplier": "Albatros", "csv": note}
            result = await client.call_tool("book_delivery", arguments)

    (content,) = result.content
    assert isinstance(content, TextContent)
    assert content.text.startswith(text)
    assert [each.message for each in user.questions] == ["Book 1500 pieces from Albatros?"]
