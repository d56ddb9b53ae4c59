"""The methods of the tasks extension, by hand: SEP-2663."""

import time
from typing import Any

import pytest

from genmcp import Channel, Continue, Endpoint, MemoryStore, Mux, Suite, Tool, elicit
from genmcp.question.sampling import roots
from tests.support.asgi import TASKS, Client


class Quick(Tool):
    """Is a task although it takes no time."""

    name = "quick"
    task = "always"

    def call(self, request: Any, channel: Channel) -> str:
        return "done"


class Asks(Quick):
    """Waits for an answer."""

    name = "asks"

    def call(self, request: Any, channel: Channel) -> Any:
        return Continue("asked", elicit("Go on?"))

    def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "went on"


class AsksForRoots(Asks):
    """Waits for the roots of the client."""

    name = "asks_for_roots"

    def call(self, request: Any, channel: Channel) -> Any:
        return Continue("asked", roots())


METHODS: dict[str, dict[str, Any]] = {
    "tasks/get": {},
    "tasks/update": {"inputResponses": {}},
    "tasks/cancel": {},
}


@pytest.mark.parametrize("method", METHODS)
async def test_task_methods_take_a_name_header_or_none(method: str) -> None:
    """Clients MUST send `Mcp-Name`, but some do not; another task's is a mismatch."""
    mux = Mux(Suite(name="test", version="1", tools=[Quick]))
    client = Client(Endpoint(mux), capabilities=TASKS)
    try:
        id = (await client.send(client.call("quick"))).json["result"]["taskId"]
        asked = client.request(method, {"taskId": id, **METHODS[method]}, id=2)

        without = await client.send(asked, headers={"mcp-name": None})
        other = await client.send(asked, headers={"mcp-name": "another"})
    finally:
        await mux.aclose()

    assert without.json["result"]["resultType"] == "complete"
    assert (other.status, other.json["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("method", METHODS)
async def test_task_methods_want_the_capability_and_a_task(method: str) -> None:
    """-32021 without the extension, -32602 for an unknown id; both name the requirement."""
    mux = Mux(Suite(name="test", version="1", tools=[Quick]))
    endpoint = Endpoint(mux)
    without, client = Client(endpoint), Client(endpoint, capabilities=TASKS)
    params = {"taskId": "nobody's", **METHODS[method]}

    refused = await without.send(without.request(method, params))
    unknown = await client.send(client.request(method, params))
    await mux.aclose()

    assert (refused.status, refused.json["error"]["code"]) == (400, -32021)
    assert refused.json["error"]["data"]["requiredCapabilities"] == TASKS
    assert (
        unknown.json["error"]["code"],
        unknown.json["error"]["data"],
    ) == (-32602, {"taskId": "nobody's"})


@pytest.mark.parametrize("method", METHODS)
async def test_task_id_names_no_other_record(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Records beside a task have keys that begin with its id: they are unknown tasks."""
    suite = Suite(name="test", version="1", tools=[Asks], result_tool=True)
    mux = Mux(suite)
    client = Client(Endpoint(mux), capabilities={**TASKS, "elicitation": {}})
    try:
        task = (await client.send(client.call("asks"))).json["result"]["taskId"]
        id = f"{task}#call"  # its request, kept for as long as it waits
        params = {"taskId": id, **METHODS[method]}

        answer = await client.send(client.request(method, params, id=2))
        called = await client.send(client.call("get_call_result", {"id": id}, id=3))
    finally:
        await mux.aclose()

    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)
    assert "There is no call" in called.json["result"]["content"][0]["text"]
    assert not caplog.records


async def test_task_methods_are_not_there_before_2026() -> None:
    """A session of 2025-11-25 that declares the extension has none (SEP-2663, compatibility)."""
    mux = Mux(Suite(name="test", version="1", tools=[Quick]))
    client = await Client.begin(Endpoint(mux), "2025-11-25", capabilities=TASKS)
    answer = await client.send(client.call("quick"))
    refused = await client.send(client.request("tasks/get", {"taskId": "x"}, id=2))
    await mux.aclose()

    assert answer.messages[-1]["result"]["content"][0]["text"] == "done"
    assert refused.json["error"]["code"] == -32601


async def test_times_of_a_task_are_of_the_clock_of_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machines of two processes may differ by an hour; times of one task are compared."""
    wall, store = time.time, MemoryStore(clock=lambda: 1000.0)
    muxes = [Mux(Suite(name="test", version="1", tools=[Asks]), store=store) for _ in range(2)]
    one, two = [Client(Endpoint(m), capabilities={**TASKS, "elicitation": {}}) for m in muxes]
    id = (await one.send(one.call("asks"))).json["result"]["taskId"]
    monkeypatch.setattr(time, "time", lambda: wall() + 3600.0)
    first = (await one.send(one.request("tasks/get", {"taskId": id}, id=2))).json["result"]
    await two.send(two.request("tasks/cancel", {"taskId": id}, id=3))
    last = (await two.send(two.request("tasks/get", {"taskId": id}, id=4))).json["result"]
    for mux in muxes:
        await mux.aclose()

    assert "1970-01-01T00:16:40.000Z" == first["createdAt"] == last["lastUpdatedAt"]
    assert ("cancelled", first["ttlMs"]) == (last["status"], last["ttlMs"])


@pytest.mark.parametrize("tool", [Asks, AsksForRoots])
async def test_wrong_answer_to_a_task_leaves_its_question_open(tool: type[Tool]) -> None:
    """SEP-2663, "Splitting Reads": the error states that the answer does not fit."""
    mux = Mux(Suite(name="test", version="1", tools=[tool]))
    able = {**TASKS, "roots": {}, "elicitation": {}}
    client = Client(Endpoint(mux), capabilities=able)
    try:
        task = {"taskId": (await client.send(client.call(tool.name))).json["result"]["taskId"]}
        while await status(client, task) != "input_required":
            pass
        answers = {**task, "inputResponses": {"asked": {"roots": 1, "action": 1}}}
        refused = await client.send(client.request("tasks/update", answers))
        still = await status(client, task)
    finally:
        await mux.aclose()

    assert refused.json["error"]["code"] == -32602
    assert "'asked' does not fit" in refused.json["error"]["message"]
    assert still == "input_required"


async def status(client: Client, task: dict[str, str]) -> str:
    """Return the status of *task*."""
    return str((await client.send(client.request("tasks/get", task))).json["result"]["status"])
