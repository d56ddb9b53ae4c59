"""Sealed and stored data belong to the issuer and subject of the token that they were made with."""

import asyncio
from typing import Any

import pytest

from genmcp import Channel, Continue, Endpoint, Limits, Mux, Run, Suite, Tool, elicit, job, tool
from genmcp.auth import Bearer
from genmcp.core.access import Access
from tests.support.asgi import LEGACIES, MODERN, TASKS, until
from tests.support.tokens import ISSUER, RESOURCE, Holder, Tokens, whoami

KEY = "io.genmcp/idempotencyKey"
ABLE: dict[str, Any] = {**TASKS, "elicitation": {"form": {}}}

# Ada with a client that registered again, with another token; somebody else of the same name.
SAME = Access(issuer=ISSUER, subject="ada", client_id="app registered again")
NAMESAKE = Access(issuer="https://other.example.com", subject="ada", client_id="app")
CLIENT = Access(issuer=ISSUER, client_id="ada")
OTHERS = ["bob", "namesake", "client"]


@tool
async def other() -> str:
    """Makes a second page."""
    return "other"


class Holds(Tool):
    """Waits until it is cancelled."""

    name = "holds"

    async def call(self, request: Any, channel: Channel) -> str:
        await asyncio.Event().wait()
        return ""


@job
async def endless(run: Run) -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


class Works(Tool):
    """Works as a task."""

    name = "works"

    def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("done", endless.job())

    def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "worked"


class Counts(Tool):
    """Counts its calls."""

    name = "counts"
    calls = 0

    async def call(self, request: Any, channel: Channel) -> str:
        self.calls += 1
        return f"call {self.calls}"


class Asks(Tool):
    """Asks a question."""

    name = "asks"

    def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("why", elicit("Why?"))

    def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "asked"


@pytest.fixture
async def endpoint() -> Any:
    tokens = Tokens(again=SAME, namesake=NAMESAKE, client=CLIENT)
    suite = Suite(
        name="test",
        version="1",
        tools=[whoami, other, Holds(), Works(), Counts(), Asks()],
        page_size=2,
    )
    mux = Mux(suite, limits=Limits(max_waiting_calls=4))
    yield Endpoint(mux, auth=Bearer(RESOURCE, issuers=[ISSUER], verify=tokens))
    await mux.aclose()


@pytest.mark.parametrize("version", LEGACIES)
async def test_session_of_another_is_404(version: str, endpoint: Endpoint) -> None:
    """For each method. The same user continues with another token, of another client."""
    client = await Holder.having(endpoint, "ada", version)

    for client.token in OTHERS:
        refused = [
            await client.send(client.request("ping")),
            await client.send(method="GET"),
            await client.send(method="GET", headers={"last-event-id": "1/1"}),
            await client.send(method="DELETE"),
        ]
        assert [each.status for each in refused] == [404] * 4
    client.token = "again"

    assert (await client.send(client.request("ping"))).status == 200


async def test_cursor_of_another_is_invalid(endpoint: Endpoint) -> None:
    """-32602, as a cursor that was never given out."""
    client = await Holder.having(endpoint, "ada")
    first = await client.send(client.request("tools/list"))
    more = client.request("tools/list", {"cursor": first.json["result"]["nextCursor"]})

    for client.token in OTHERS:
        assert (await client.send(more)).json["error"]["message"] == "Invalid cursor"
    client.token = "again"

    assert "result" in (await client.send(more)).json


async def test_task_of_another_is_unknown(endpoint: Endpoint) -> None:
    """It is the answer for an id that never existed; the task continues."""
    client = await Holder.having(endpoint, "ada", capabilities=ABLE)
    id = (await client.send(client.call("works"))).json["result"]["taskId"]
    never = await client.send(client.request("tasks/get", {"taskId": id[:-1]}))

    for client.token in OTHERS:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            params = {"taskId": id, "inputResponses": {}}
            refused = (await client.send(client.request(method, params))).json["error"]
            assert refused["code"] == never.json["error"]["code"]
    client.token = "again"
    seen = await client.send(client.request("tasks/get", {"taskId": id}))

    assert seen.json["result"]["status"] == "working"


async def test_task_of_another_is_not_listened_to(endpoint: Endpoint) -> None:
    """The acknowledgement of `subscriptions/listen` leaves it out."""
    client = await Holder.having(endpoint, "ada", capabilities=ABLE)
    id = (await client.send(client.call("works"))).json["result"]["taskId"]
    listen = client.request("subscriptions/listen", {"notifications": {"taskIds": [id]}}, id="s")

    for client.token, expected in (("bob", {}), ("again", {"taskIds": [id]})):
        async with client.open(listen) as stream:
            assert (await stream.message())["params"]["notifications"] == expected


async def test_request_state_of_another_is_refused(endpoint: Endpoint) -> None:
    """Only the user of the call can answer its question."""
    client = await Holder.having(endpoint, "ada", capabilities=ABLE)
    asked = (await client.send(client.call("asks"))).json["result"]
    (key,) = asked["inputRequests"]
    again = client.call("asks")
    again["params"] |= {
        "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {}}},
    }

    for client.token in OTHERS:
        refused = (await client.send(again)).json["error"]
        assert refused["message"].startswith("Invalid requestState")
    client.token = "again"
    answered = await client.send(again)

    assert answered.json["result"]["content"][0]["text"] == "asked"


async def test_idempotency_key_of_another_is_a_key_of_its_own(endpoint: Endpoint) -> None:
    """A guessed key does not give the result of another user's call."""
    client = await Holder.having(endpoint, "ada")
    key: dict[str, Any] = {KEY: "k"}
    texts = {}
    for client.token in ("ada", *OTHERS, "again"):
        answer = await client.send(client.call("counts", **key))
        texts[client.token] = answer.json["result"]["content"][0]["text"]

    assert texts.pop("again") == texts["ada"]
    assert len(set(texts.values())) == len(texts)


async def test_limits_count_by_identity(endpoint: Endpoint) -> None:
    """Two tokens of one user have one share; a namesake has another."""
    client = await Holder.having(endpoint, "ada")
    async with client.open(client.call("holds")):
        await until(lambda: len(endpoint.mux.waiting_calls) == 1)
        statuses = {}
        for client.token in ("again", *OTHERS):
            statuses[client.token] = (await client.send(client.call("whoami"))).status

    assert statuses == {"again": 429, "bob": 200, "namesake": 200, "client": 200}


async def test_principal_names_issuer_and_subject(endpoint: Endpoint) -> None:
    """Where a token names no user, it is the client; both kinds never coincide."""
    client = await Holder.having(endpoint, "ada", MODERN)
    names = {}
    for client.token in ("ada", "again", "namesake", "client"):
        answer = await client.send(client.call("whoami"))
        names[client.token] = answer.json["result"]["content"][0]["text"]

    assert names == {
        "ada": f"{ISSUER} sub ada",
        "again": f"{ISSUER} sub ada",
        "namesake": "https://other.example.com sub ada",
        "client": f"{ISSUER} client ada",
    }
