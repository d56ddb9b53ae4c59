"""A call that waits for a job leaves nothing to the garbage collector."""

import asyncio
import gc
import json
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    Outcome,
    Run,
    Tool,
    ToolError,
    ToolRequest,
    job,
)
from tests.support.asgi import TASKS, Client, serving
from tests.support.garbage import kinds, no_collections

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

__all__ = ["no_collections"]

AT_ONCE = 20


@job(name="garbage.double")
async def double(run: Run, n: int, fails: bool) -> int:
    await run.progress(1)
    if fails:
        raise ToolError("no luck")
    return 2 * n


class Doubles(Tool):
    """Has a job double a number."""

    name = "doubles"

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("doubled", double.job(**request.arguments))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        await channel.progress(2)
        return str(outcome.value if isinstance(outcome, Done) else outcome.error)


class ContinuesInMethod(Tool):
    """The same, which continues in a method; a job that fails is its `isError` result."""

    name = "doubles"

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return double.job(**request.arguments).then(self.doubled)

    async def doubled(self, request: ToolRequest, number: int, channel: Channel) -> str:
        await channel.progress(2)
        return str(number)


async def answer(app: Endpoint, client: Client, message: Any) -> Any:
    """Return the result of *message*, sent with nothing that could be in a reference cycle."""
    headers = client.open(message)._scope["headers"]
    body, sent = [json.dumps(message).encode()], list[bytes]()

    async def receive() -> dict[str, Any]:
        if not body:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body.pop()}

    async def send(event: Any) -> None:
        sent.append(event.get("body", b""))

    await app({"type": "http", "method": "POST", "headers": headers, "client": None}, receive, send)
    lines = [line.removeprefix(b"data: ") for line in b"".join(sent).splitlines()]
    *_, last = [line for line in lines if line.startswith(b"{")]
    return json.loads(last)["result"]


async def ended(app: Endpoint, client: Client, n: int, *, fails: bool) -> str:
    """Call the tool, follow its task if it is one, and return the text of the result."""
    message = client.call("doubles", {"n": n, "fails": fails}, id=n, progressToken=n)
    result = await answer(app, client, message)
    if "taskId" in result:
        asked = client.request("tasks/get", {"taskId": result["taskId"]}, id=n)
        while "content" not in result:
            await asyncio.sleep(0.005)
            result = (await answer(app, client, asked)).get("result", {})
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize("capabilities", [TASKS, {}], ids=["task", "held"])
@pytest.mark.parametrize(
    ("tool", "fails", "jobs"),
    [(Doubles, False, 60), (Doubles, True, 20), (ContinuesInMethod, True, 20)],
)
async def test_job_leaves_no_cyclic_garbage(
    tool: type[Tool], capabilities: dict[str, Any], fails: bool, jobs: int, no_collections: None
) -> None:
    """Reference counts free all of a job, so that none causes a pause of the collector."""
    app = serving(tool)
    client = Client(app, capabilities=capabilities)

    async def garbage(count: int) -> int:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            calls = [ended(app, client, n, fails=fails) for n in numbers]
            texts = await asyncio.gather(*calls)
            assert ["no luck" if fails else f"{2 * n}" for n in numbers] == texts
        await asyncio.sleep(0.02)  # work after the response has no event to wait for
        return gc.collect()

    try:
        await garbage(AT_ONCE)
        few, many = await garbage(jobs), await garbage(2 * jobs)

        assert many <= few, await kinds(garbage)
    finally:
        await app.mux.aclose()
