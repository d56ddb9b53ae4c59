"""Policies of long calls apply to a provider's tools, too."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Access, Continue, Endpoint, Mux, Provider, Run, Suite, Tool, elicit, job
from genmcp.testing import connect
from tests.support.asgi import MODERN, PATIENCE, TASKS, Client, until
from tests.support.asking import YES, AnsweringClient

LEGACY = "2025-11-25"


@job(name="extensions.work")
async def work(run: Run) -> int:
    await until(lambda: not Works.closed, pause=0.005)
    return 1


class Waits(Tool):
    """Waits to be cancelled, or for its end."""

    name = "waits"

    def __init__(self) -> None:
        self.saw: list[str] = []
        self.end = asyncio.Event()

    async def call(self, request: Any, channel: Any) -> None:
        self.saw.append("begun")
        await self.end.wait()

    def on_cancel(self, channel: Any) -> None:
        self.saw.append("on_cancel")


class Works(Tool):
    """Waits for a job, which continues while the works are closed."""

    name = "works"
    closed = False

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("done", work.job())

    def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return f"{tag} {outcome.value}"


class AtOnce(Provider):
    """Has the tools it is made with."""

    def __init__(self, *tools: Tool) -> None:
        self.there = list(tools)

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return self.there


class Slowly(AtOnce):
    """Has to wait before it knows."""

    async def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        await asyncio.sleep(0.01)
        return self.there


@asynccontextmanager
async def serving(*extensions: Provider) -> AsyncIterator[Endpoint]:
    mux = Mux(Suite(name="test", version="1", providers=extensions))
    try:
        yield Endpoint(mux)
    finally:
        await mux.aclose()


both = pytest.mark.parametrize("extension", [AtOnce, Slowly])


@both
async def test_single_use_of_a_provider_tool(extension: Any) -> None:
    """An answer that is sent again is rejected."""

    class Pays(Tool):
        """Pays."""

        name = "pays"
        single_use = True
        calls = 0

        def call(self, request: Any, channel: Any) -> Continue:
            return Continue("sure", elicit("Sure?"))

        def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
            self.calls += 1
            return "paid"

    async with serving(extension(tool := Pays())) as app:
        client = AnsweringClient(app)
        request = await client.send(client.call("pays"))
        answers = [await client.send(client.retry(request, sure=YES)) for _ in range(2)]

    assert answers[0].json["result"]["content"][0]["text"] == "paid"
    assert "used already" in answers[1].json["error"]["message"]
    assert tool.calls == 1


@both
async def test_provider_tool_may_require_tasks(extension: Any) -> None:
    """Its handle has the time for which a result is kept."""

    class Strict(Works):
        """Works."""

        requires_tasks = True
        result_ttl = 77.0

    async with serving(extension(Strict())) as app:
        without, able = Client(app), Client(app, capabilities=TASKS)
        refused = await without.send(without.call("works"))
        begun = await able.send(able.call("works"))

    assert refused.json["error"]["code"] == -32021
    assert 77000 <= begun.json["result"]["ttlMs"] < 78000


@both
@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_max_hold_of_a_provider_tool(extension: Any, version: str) -> None:
    """A client with tasks gets the handle; another one gets the id of the continuing call."""

    class Impatient(Waits):
        """Waits."""

        promote_after = max_hold = 0.02

    async with serving(extension(tool := Impatient())) as app:
        knows = TASKS if version == MODERN else {}
        client = await Client.begin(app, version, capabilities=knows)
        async with client.open(client.call("waits")) as call:
            await until(lambda: call.complete, pause=0.005)
            result = call.messages[-1]["result"]
            tool.end.set()
            await call.over()

    assert (result.get("resultType") == "task") is (version == MODERN)
    assert result.get("isError", False) is (version == LEGACY)


@both
async def test_provider_tool_may_be_a_task_at_once(extension: Any) -> None:
    """Its client has the handle before it runs."""

    class Always(Waits):
        """Waits."""

        task = "always"

    async with serving(extension(tool := Always())) as app:
        client = Client(app, capabilities=TASKS)
        async with client.open(client.call("waits")) as call:
            await until(lambda: call.complete)
            id = call.json["result"]["taskId"]
            await client.send(client.request("tasks/cancel", {"taskId": id}))
            await call.over()

    assert tool.saw[-1] == "on_cancel"


@both
async def test_disconnect_cancels_a_provider_tool(extension: Any) -> None:
    """In a session too, where other calls continue."""

    class Fleeting(Waits):
        """Waits."""

        on_disconnect = "cancel"

    async with serving(extension(tool := Fleeting())) as app:
        client = await Client.begin(app, LEGACY)
        async with client.open(client.call("waits")) as call:
            await until(lambda: tool.saw)
            call.disconnect()
            await call.over()

    assert tool.saw == ["begun", "on_cancel"]


class Zoned(Tool):
    """Returns its zone."""

    name = "zoned"
    input_schema = {
        "type": "object",
        "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}},
    }

    def call(self, request: Any, channel: Any) -> str:
        return str(request.arguments["zone"])


@both
@pytest.mark.parametrize(("header", "status"), [("eu", 200), ("us", 400), (None, 400)])
async def test_headers_of_a_provider_tool_are_checked(
    extension: Any, header: str | None, status: int
) -> None:
    """A header that differs from its argument is rejected."""
    async with serving(extension(Zoned())) as app:
        client = Client(app)
        call = client.call("zoned", {"zone": "eu"})
        answer = await client.send(call, headers={"mcp-param-zone": header})

    assert status == answer.status
    assert ("result" in answer.json) is (status == 200)


async def test_testing_client_sends_headers_of_provider_tools() -> None:
    """It reads them from the list, as any client does."""
    async with serving(AtOnce(Zoned())) as app, connect(app) as client:
        assert (await client.call("zoned", {"zone": "eu"})).content[0].text == "eu"  # type: ignore[union-attr]


@both
@pytest.mark.parametrize("goes", [False, True])
async def test_removed_provider_tool_fails_its_call(
    extension: Any, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job ends without a request; a tool that is no longer provided has failed."""
    there = extension(Works())
    monkeypatch.setattr(Works, "closed", True)
    async with serving(there) as app, asyncio.timeout(PATIENCE):
        client = Client(app, capabilities=TASKS)
        begun = await client.send(client.call("works"))
        if goes:
            there.there = []
        Works.closed = False
        task = begun.json["result"]
        while task["status"] == "working":
            await asyncio.sleep(0.005)
            request = client.request("tasks/get", {"taskId": task["taskId"]})
            task = (await client.send(request)).json["result"]

    if goes:
        assert task["error"]["message"] == "Unknown tool: works"
    else:
        assert task["result"]["content"][0]["text"] == "done 1"


async def test_on_cancel_of_a_provider_tool_is_called() -> None:
    """Also where the call lives in the store only."""

    class Asks(Waits):
        """Asks."""

        name = "asks"
        task = "always"

        async def call(self, request: Any, channel: Any) -> Any:
            return Continue("sure", elicit("Sure?"))

        def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
            return "sure"

    async with serving(Slowly(tool := Asks())) as app:
        able = {**TASKS, "elicitation": {"form": {}}}
        client = Client(app, capabilities=able)
        begun = await client.send(client.call("asks"))
        id = begun.json["result"]["taskId"]
        await client.send(client.request("tasks/cancel", {"taskId": id}))

    assert tool.saw == ["on_cancel"]
