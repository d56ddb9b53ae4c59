"""`Tool.max_hold`: how long clients without tasks wait, and how they get the result later."""

import asyncio
import re
from typing import Any

import pytest

from genmcp import (
    Channel,
    ConfigurationError,
    Continue,
    Done,
    Endpoint,
    McpError,
    Mux,
    Run,
    Suite,
    Tool,
    elicit,
    job,
    tool,
)
from genmcp.errors import StoreUnavailable
from genmcp.suite.collection import TOOLS
from tests.support.asgi import MODERN, PATIENCE, TASKS, Client, Connection, until
from tests.support.channels import promote

VERSIONS = ["2025-11-25", MODERN]
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


class Holds(Tool):
    """Runs until the test ends it; its client waits for a moment."""

    name = "holds"
    max_hold = 0.02

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.saw: list[str] = []
        self.channels: list[Channel] = []

    async def call(self, request: Any, channel: Channel) -> Any:
        self.channels.append(channel)
        return await self.works()

    async def works(self) -> Any:
        await self.go.wait()
        self.saw.append("ended")
        if self.error is not None:
            raise self.error
        return {"said": "done"}

    def on_cancel(self, channel: Channel) -> None:
        self.saw.append("cancelled")


@job(name="held.work")
async def work(run: Run) -> dict[str, str]:
    await run.progress(3, 10, "cutting")
    found: dict[str, str] = await holding.works()
    return found


class HoldsForJob(Holds):
    """Has a job done."""

    async def call(self, request: Any, channel: Channel) -> Any:
        self.channels.append(channel)
        return Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
        if isinstance(outcome, Done):
            return outcome.value
        raise outcome.error


holding: Holds


def serving(tool: Holds, *more: Any, result_tool: bool = True) -> Endpoint:
    global holding
    holding = tool
    suite = Suite(name="test", version="1", tools=[tool, *more], result_tool=result_tool)
    return Endpoint(Mux(suite), principal=lambda scope: scope.get("who"))


async def said(client: Client, name: str, **arguments: Any) -> tuple[bool, str]:
    """Call a tool; return whether it failed, and its text."""
    return read(await client.send(client.call(name, arguments)))


async def result_of(client: Client, id: str) -> str:
    """Ask for the result of a call until it is there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            failed, text = await said(client, "get_call_result", id=id)
            if not failed:
                return text
            assert "has no result yet" in text
            await asyncio.sleep(0.01)


def read(answer: Connection) -> tuple[bool, str]:
    result = answer.messages[-1]["result"]
    return result.get("isError", False), result["content"][0]["text"]


def id_in(text: str) -> str:
    found = re.search(r"as call ([\w-]+)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [Holds, HoldsForJob])
async def test_call_that_was_held_over_is_asked_for_later(kind: type[Holds], version: str) -> None:
    """A call that runs and one that waits for a job, on a revision of each era."""
    app = serving(tool := kind())
    client = await Client.begin(app, version)
    async with client.open(client.call("holds")) as call:
        await until(lambda: call.complete, pause=0.01)
        failed, text = read(call)
        assert failed
        assert "It continues as call" in text
        assert text.endswith("the tool get_call_result returns its result.")
        failed, later = await said(client, "get_call_result", id=id_in(text))
        assert failed
        assert "has no result yet" in later
        tool.go.set()

    assert await result_of(client, id_in(text)) == '{"said":"done"}'
    assert tool.saw == ["ended"]
    assert len(app.mux.waiting_calls) == 0
    await app.mux.aclose()


async def test_call_that_still_runs_tells_how_far_it_is() -> None:
    """The progress of its work is in the answer."""
    app = serving(HoldsForJob())
    client = Client(app)
    _, text = await said(client, "holds")
    wanted = f"Call {id_in(text)} has no result yet: 3 of 10 done (cutting)."
    found = ""
    while found != wanted:
        failed, found = await said(client, "get_call_result", id=id_in(text))
        assert failed
        await asyncio.sleep(0.01)
    holding.go.set()
    await app.mux.aclose()


async def test_store_that_fails_keeps_its_client_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response on its way cannot be replaced; the call's own result is sent."""
    app = serving(tool := HoldsForJob())
    asked: list[str] = []

    async def get(id: str, owner: str | None) -> Any:
        asked.append(id)
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(app.mux.tasks.service, "get", get)
    client = Client(app)
    async with client.open(client.call("holds")) as call:
        await until(lambda: bool(asked), pause=0.01)
        tool.go.set()
        await call.over()

    assert read(call) == (False, '{"said":"done"}')
    await app.mux.aclose()


async def test_client_is_told_of_no_tool_that_is_not_there() -> None:
    """The text states that the call continues, and its id."""
    app = serving(tool := Holds(), result_tool=False)
    client = Client(app)
    async with client.open(client.call("holds")) as call:
        await until(lambda: call.complete, pause=0.01)
        assert re.search(r"as call [\w-]+\.$", read(call)[1])
        tool.go.set()

    listed = await client.send(client.request("tools/list"))
    assert [each["name"] for each in listed.json["result"]["tools"]] == ["holds"]
    await app.mux.aclose()


async def test_client_with_tasks_is_not_held_over() -> None:
    """It gets the handle, after its own time."""
    tool = Holds()
    tool.promote_after = 0.03
    app = serving(tool)
    client = Client(app, capabilities=TASKS)
    async with client.open(client.call("holds")) as call:
        await until(lambda: call.complete, pause=0.01)
        assert call.json["result"]["resultType"] == "task"
        tool.go.set()
    await app.mux.aclose()


async def test_result_is_given_to_whose_call_it_was() -> None:
    """For every other client the call does not exist, as if the id were made up."""
    app = serving(tool := Holds())
    ann, bob = Client(app, who="ann"), Client(app, who="bob")
    async with ann.open(ann.call("holds")) as call:
        await until(lambda: call.complete, pause=0.01)
        id = id_in(read(call)[1])
        tool.go.set()

    failed, text = await said(bob, "get_call_result", id=id)
    assert (failed, text) == (True, f"There is no call {id}, or its result has expired.")
    assert (True, text.replace(id, "x")) == await said(bob, "get_call_result", id="x")
    assert not (await said(ann, "get_call_result", id=id))[0]
    await app.mux.aclose()


async def test_call_that_came_to_nothing_says_why() -> None:
    """An error and a cancellation are worded for a model."""
    app = serving(tool := Holds())
    tool.error = McpError("no more wood")
    client = Client(app)
    ids = []
    for cancels in (False, True):
        tool.go.clear()
        async with client.open(client.call("holds")) as call:
            await until(lambda call=call: call.complete, pause=0.01)  # type: ignore[misc]
            ids.append(id_in(read(call)[1]))
            if cancels:
                await app.mux.continuations.cancel(ids[-1], None)
            else:
                tool.go.set()

    assert [await said(client, "get_call_result", id=id) for id in ids] == [
        (True, f"There is no result of call {ids[0]}: no more wood"),
        (True, f"There is no result of call {ids[1]}: The call was cancelled"),
    ]
    await app.mux.aclose()


async def test_call_that_asks_when_nobody_waits_says_so() -> None:
    """A question to a client that has disconnected is another reason for a missing result."""

    class Asks(HoldsForJob):
        async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
            return Continue("named", elicit("Who?", NAME))

    app = serving(tool := Asks())
    client = Client(app, capabilities={"elicitation": {"form": {}}})
    _, text = await said(client, "holds")
    tool.go.set()
    wanted = f"Call {id_in(text)} has no result yet: it waits for answers."
    found = ""
    while found != wanted:
        await asyncio.sleep(0.01)
        _, found = await said(client, "get_call_result", id=id_in(text))
    await app.mux.aclose()


async def test_held_over_call_that_asks_fails_with_capability_missing() -> None:
    """It fails with CapabilityMissing: its client got another answer, and would never respond."""

    class Asks(Holds):
        async def call(self, request: Any, channel: Channel) -> Any:
            return Continue("went", self.go.wait())

        async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
            if tag == "went":
                return Continue("named", elicit("Who?", NAME))
            return f"{tag}: {type(outcome.error).__name__}"

    app = serving(tool := Asks())
    client = Client(app, capabilities={"elicitation": {"form": {}}})
    async with client.open(client.call("holds")) as call:
        await until(lambda: call.complete)
        tool.go.set()
        await call.over()
    _, text = read(call)
    _, found = await said(client, "get_call_result", id=id_in(text))
    await app.mux.aclose()

    assert found == "named: CapabilityMissing"


async def test_result_tool_may_be_asked_from_within_a_task() -> None:
    """A hook of any transport can fetch the result of another call."""

    @tool
    async def asks(id: str, channel: Channel) -> Any:
        await promote(channel)
        return await channel.context.services.result_of(id, channel.principal)

    app = serving(Holds(), asks)
    client = Client(app, capabilities=TASKS)
    answer = await client.send(client.call("asks", {"id": "x"}))
    get = client.request("tasks/get", {"taskId": answer.json["result"]["taskId"]})
    task = (await client.send(get)).json["result"]

    assert "There is no call x" in task["result"]["content"][0]["text"]
    await app.mux.aclose()


@pytest.mark.parametrize("kind", [Holds, HoldsForJob])
async def test_call_of_a_batch_is_held_over_once(kind: type[Holds]) -> None:
    """It gets the present progress; when it ends, the others are still followed."""
    go = asyncio.Event()

    @tool
    async def slow() -> str:
        await go.wait()
        return "slow"

    app = serving(holds := kind(), slow)

    def one_left() -> bool:
        return len(app.mux.waiting_calls) == 1 and bool(holds.channels)

    client = await Client.begin(app, "2025-03-26")
    batch = [client.call("holds", id=1), client.call("slow", id=2)]
    async with client.open(batch) as call:
        await until(
            lambda: any(each.context.promoted for each in holds.channels) or one_left(), pause=0.01
        )
        holds.go.set()
        await until(one_left, pause=0.01)
        assert not call.complete
        go.set()
        await call.over()

    assert {each["id"]: each["result"].get("isError", False) for each in call.messages} == {
        1: True,
        2: False,
    }
    await app.mux.aclose()


def test_result_tool_has_a_name_of_its_own() -> None:
    """A tool that is called so cannot be there as well."""

    @tool(name="get_call_result")
    async def mine() -> str:
        return "mine"

    with pytest.raises(ConfigurationError, match="two tools are called 'get_call_result'"):
        Suite(name="test", version="1", tools=[Holds, mine], result_tool=True)

    suite = Suite(name="test", version="1", tools=[Holds, mine])
    assert listed(suite) == ["holds", "get_call_result"]  # it is not offered, and does not hide


def listed(suite: Suite) -> list[str]:
    return [each.definition.name for each in suite._snapshot.collections[TOOLS].routes]


class Continues(Tool):
    """Continues in steps, without a `max_hold` of its own."""

    name = "continues"

    async def call(self, request: Any, channel: Channel) -> Any:
        return Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
        return outcome.value


class Never(Continues):
    max_hold = None


@tool
async def plain() -> str:
    """A tool that cannot wait."""
    return "plain"


@pytest.mark.parametrize(
    ("tools", "offered", "names", "hold"),
    [
        ([plain, Continues], None, ["plain", "continues", "get_call_result"], 50.0),
        ([plain, Continues], False, ["plain", "continues"], None),
        ([plain], None, ["plain"], None),
        ([plain], True, ["plain"], None),
        ([plain, Never], True, ["plain", "continues"], None),
        ([plain, Holds], None, ["plain", "holds", "get_call_result"], None),
    ],
)
def test_result_tool_is_listed_where_a_call_can_be_held_over(
    tools: Any, offered: bool | None, names: list[str], hold: float | None
) -> None:
    """Where it is offered, tools that continue in steps are held for 50 seconds by default."""
    suite = Suite(name="test", version="1", tools=tools, result_tool=offered)

    assert names == listed(suite)
    route = suite.find("tools/call", "continues")
    assert hold == (route.policy.max_hold if route else None)


def test_result_tool_comes_and_goes_with_the_tools_that_need_it() -> None:
    """A tool that is added can be held over; when it is removed, nothing can."""
    suite = Suite(name="test", version="1", tools=[plain])
    suite.add(Continues)
    assert listed(suite) == ["plain", "continues", "get_call_result"]
    suite.remove("continues")
    assert listed(suite) == ["plain"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_client_gets_the_result_later_by_default(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing but defaults: only their 50 seconds are shorter here."""
    monkeypatch.setattr("genmcp.suite.suite.HOLD", 0.02)
    global holding
    holding = Holds()
    app = Endpoint(Mux(Suite(name="test", version="1", tools=[Continues])))
    client = await Client.begin(app, version)
    failed, text = await said(client, "continues")
    assert failed and "the tool get_call_result returns its result" in text
    holding.go.set()

    assert await result_of(client, id_in(text)) == '{"said":"done"}'
    await app.mux.aclose()


async def test_result_of_a_task_is_kept_for_a_day() -> None:
    """A result is kept for the `result_ttl`."""
    app = Endpoint(Mux(Suite(name="test", version="1", tools=[Continues])))
    global holding
    holding = Holds()
    client = Client(app, capabilities=TASKS)
    handle = (await client.send(client.call("continues"))).json["result"]

    assert handle["ttlMs"] == 24 * 3600 * 1000
    holding.go.set()
    await app.mux.aclose()


async def test_call_is_not_held_over_while_its_client_is_asked() -> None:
    """A form may take longer than `max_hold`: the answer continues the call."""

    class Asks(Continues):
        name = "asks"
        max_hold = 0.02

        async def call(self, request: Any, channel: Channel) -> Any:
            return Continue("named", elicit("Who?", NAME))

    app = Endpoint(Mux(Suite(name="test", version="1", tools=[Asks])))
    client = await Client.begin(app, "2025-11-25", capabilities={"elicitation": {}})
    async with client.open(client.call("asks")) as call:
        question = await call.message()
        for _ in range(3):  # in each of these it would have been held over
            await asyncio.sleep(0.05)
            assert not call.complete
        answer = {"action": "accept", "content": {"name": "Ann"}}
        await client.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        await call.over()

    assert "Ann" in str(call.messages[-1]["result"]["content"])
    await app.mux.aclose()
