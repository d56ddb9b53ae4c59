"""`subscriptions/listen`, and notifications of sessions before 2026-07-28."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from genmcp import Access, Channel, Endpoint, Limits, Middleware, Mux, Resource, Suite, prompt, tool
from genmcp.resources import ResourceRepo
from genmcp.stores.memory import MemoryStore
from tests.support.asgi import LEGACIES, Client, Connection, until

ID = "io.modelcontextprotocol/subscriptionId"
NOTE = "note://today"
TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
SECRET = "a secret of more than sixteen bytes"


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def subtract(a: int, b: int) -> int:
    """Subtracts."""
    return a - b


@prompt
def review(code: str) -> str:
    """Reviews."""
    return code


class Private(Resource):
    """A resource that only Ada sees."""

    def visible(self, access: Access | None) -> bool:
        return access is not None and access.subject == "ada"


def suite_of() -> Suite:
    resources = [
        Resource(NOTE, content="Rain."),
        Resource("note://other", content="Sun."),
        Private("note://ada", content="Hers."),
    ]
    return Suite(name="test", version="1", tools=[add], prompts=[review], resources=resources)


@asynccontextmanager
async def listening(
    client: Client, *, id: Any = 7, **wanted: Any
) -> AsyncIterator[tuple[Connection, Any]]:
    """Yield an open stream, and its acknowledgement."""
    request = client.request("subscriptions/listen", {"notifications": wanted}, id=id)
    async with client.open(request) as connection:
        first = await connection.message()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert {ID: id} == first["params"]["_meta"]
        yield connection, first["params"]["notifications"]


async def test_listener_is_acknowledged_what_the_server_can_give() -> None:
    """Unknown and invisible resources are left out; the rest is acknowledged."""
    client = Client(Endpoint(suite_of()))
    uris = [NOTE, "note://none", "note://ada", NOTE]

    async with listening(
        client, toolsListChanged=True, promptsListChanged=False, resourceSubscriptions=uris
    ) as (_, received):
        assert received == {"toolsListChanged": True, "resourceSubscriptions": [NOTE]}


async def test_listener_for_missing_features_gets_an_empty_ack() -> None:
    """A suite without resources and prompts announces no changes of them."""
    client = Client(Endpoint(Suite(name="test", version="1")))

    async with listening(
        client, promptsListChanged=True, resourcesListChanged=True, resourceSubscriptions=[NOTE]
    ) as (_, received):
        assert received == {}


@pytest.mark.parametrize("id", [7, "seven"])
async def test_listener_hears_what_it_asked_for(id: Any) -> None:
    """Nothing else comes, and everything has the id of the request."""
    suite = suite_of()
    client = Client(Endpoint(suite))
    wanted = {"toolsListChanged": True, "resourceSubscriptions": [NOTE]}

    async with listening(client, id=id, **wanted) as (connection, _):
        suite.remove(review)
        suite.resource_updated("note://other")
        suite.add(subtract)
        response = await connection.message()
        suite.resource_updated(NOTE)
        updated = await connection.message()

    assert (TOOLS, {"_meta": {ID: id}}) == (response["method"], response["params"])
    assert (UPDATED, {"_meta": {ID: id}, "uri": NOTE}) == (updated["method"], updated["params"])


async def test_listener_hears_of_a_tool_that_a_thread_adds() -> None:
    """`add` may be called without an event loop."""
    suite = suite_of()

    async with listening(Client(Endpoint(suite)), toolsListChanged=True) as (connection, _):
        await asyncio.to_thread(suite.add, subtract)
        assert (await connection.message())["method"] == TOOLS


async def test_listener_gets_changes_of_other_replicas() -> None:
    """Two muxes on one store are one server to their clients."""
    store = MemoryStore()
    here, there = suite_of(), suite_of()
    for suite in (here, there):
        suite.remove("note://ada")
    client = Client(Endpoint(Mux(here, store=store, secret=SECRET)))
    other = Client(Endpoint(Mux(there, store=store, secret=SECRET)))

    async with (
        listening(client, toolsListChanged=True) as (first, _),
        listening(other, toolsListChanged=True) as (second, _),
    ):
        there.add(subtract)
        assert [(await each.message())["method"] for each in (first, second)] == [TOOLS, TOOLS]


async def test_listeners_of_each_mux_of_one_suite_hear_of_it() -> None:
    """A suite may be mounted more than once."""
    suite = suite_of()
    clients = [Client(Endpoint(Mux(suite, audience=name))) for name in ("a", "b")]

    async with (
        listening(clients[0], toolsListChanged=True) as (first, _),
        listening(clients[1], toolsListChanged=True) as (second, _),
    ):
        suite.add(subtract)
        assert [(await each.message())["method"] for each in (first, second)] == [TOOLS, TOOLS]


async def test_listener_hears_nothing_of_before() -> None:
    """Changes before the acknowledgement are not sent."""
    suite = suite_of()
    endpoint = Endpoint(suite)
    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        suite.add(subtract)
        await connection.message()

    async with listening(Client(endpoint), resourceSubscriptions=[NOTE]) as (connection, _):
        suite.resource_updated(NOTE)
        assert (await connection.message())["method"] == UPDATED


async def test_slow_listener_is_told_once_and_holds_nobody_up() -> None:
    """Pending changes are a set: a thousand changes become one for each kind and URI."""
    suite = suite_of()
    endpoint = Endpoint(suite)
    wanted = {"toolsListChanged": True, "resourceSubscriptions": [NOTE]}
    async with (
        listening(Client(endpoint), **wanted) as (slow, _),
        listening(Client(endpoint), **wanted) as (quick, _),
    ):
        slow.reading.clear()
        suite.resource_updated(NOTE)
        await quick.message()
        for _ in range(300):
            suite.resource_updated(NOTE)
            await asyncio.sleep(0)
            suite.changes.tools_list_changed()
        await until(lambda: TOOLS in [each["method"] for each in quick.messages[1:]])
        slow.reading.set()
        response = [(await slow.message())["method"] for _ in range(3)]
        suite.add(subtract)
        response.append((await slow.message())["method"])

    assert [response[0], *sorted(response[1:3]), response[3]] == [UPDATED, UPDATED, TOOLS, TOOLS]
    assert len(slow.messages) <= 7


async def test_sender_that_is_ahead_of_the_log_tells_everything() -> None:
    """Past the bound the changes are unknown: each subscriber gets all its subscriptions, once."""
    suite = suite_of()
    mux = Mux(suite, limits=Limits(max_replay_events=5))
    wanted = {"toolsListChanged": True, "resourceSubscriptions": [NOTE]}

    async with listening(Client(Endpoint(mux)), **wanted) as (connection, _):
        for number in range(20):
            suite.resource_updated(f"note://{number}")
        response = [(await connection.message())["method"] for _ in range(2)]

    assert sorted(response, reverse=True) == [TOOLS, UPDATED]


async def test_listener_is_told_at_shutdown_that_this_is_the_end() -> None:
    """The stream ends with the result of the request: graceful closure."""
    endpoint = Endpoint(suite_of())
    client = Client(endpoint)

    async with listening(client, toolsListChanged=True) as (connection, _):
        await endpoint.aclose()
        await connection.over()

    last = connection.messages[-1]
    assert (
        last["id"],
        last["result"]["resultType"],
        last["result"]["_meta"][ID],
    ) == (7, "complete", 7)
    assert connection.complete


async def test_last_event_is_sent_when_aclose_returns() -> None:
    """A host may end its process then: 2026-07-28, subscriptions, "Graceful Closure"."""
    endpoint = Endpoint(suite_of())

    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        await endpoint.aclose()

        assert connection.complete
        assert connection.messages[-1]["id"] == 7


async def test_listener_that_leaves_leaves_nothing_behind() -> None:
    """No asyncio.Task, no place, no follower of the log, no reference."""
    suite = suite_of()
    mux = Mux(suite)
    before = asyncio.all_tasks()

    async with listening(
        Client(Endpoint(mux)), toolsListChanged=True, resourceSubscriptions=[NOTE]
    ):
        assert len(mux.streams) == 1
    await until(lambda: asyncio.all_tasks() == before)

    assert len(mux.streams) == 0
    assert "0 logs" in repr(mux.store)


async def test_listener_hears_a_heartbeat() -> None:
    """A silent stream is kept open by comments."""
    endpoint = Endpoint(suite_of(), heartbeat=0.01)

    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        await until(lambda: connection.comments)


async def test_change_during_a_comment_follows_it() -> None:
    """A comment and a change are written by two tasks, of which one waits for the other."""
    suite = suite_of()
    endpoint = Endpoint(suite, heartbeat=0.01)

    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        connection.reading.clear()
        before = asyncio.all_tasks()
        await until(lambda: asyncio.all_tasks() > before)  # the comment waits for the client
        suite.add(subtract)
        await asyncio.sleep(0.1)
        connection.reading.set()
        assert (await connection.message())["method"] == TOOLS


async def test_comment_waits_for_a_change_that_is_not_read() -> None:
    """Two writes at once would mix their bytes. Another stream shows that a comment was due."""
    suite = suite_of()
    client = Client(Endpoint(suite, heartbeat=0.01))

    async with (
        listening(client, toolsListChanged=True) as (slow, _),
        listening(client, id=8) as (quick, _),
    ):
        slow.reading.clear()
        suite.add(subtract)
        before = len(quick.comments)
        await until(lambda: len(quick.comments) > before + 3)
        slow.reading.set()
        assert (await slow.message())["method"] == TOOLS
        suite.remove(subtract)
        assert (await slow.message())["method"] == TOOLS


async def test_comment_that_fails_ends_the_stream() -> None:
    """The client has left, although its server has not reported that."""
    endpoint = Endpoint(suite_of(), heartbeat=0.01)

    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        connection.fails = BrokenPipeError()
        await connection.over()


async def test_defect_of_the_host_in_a_comment_is_raised() -> None:
    """It is not taken for a client that has left."""
    endpoint = Endpoint(suite_of(), heartbeat=0.01)

    with pytest.raises(ZeroDivisionError):
        async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
            connection.fails = ZeroDivisionError()
            await connection.over()


class Interrupted(asyncio.Event):
    """The `reading` of a client that reads again only after a message to it was interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = asyncio.Event()

    async def wait(self) -> Any:
        self.requested.set()
        try:
            return await super().wait()
        finally:
            self.set()


async def test_nothing_follows_an_interrupted_event() -> None:
    """Its client may have a part of it: the closing response would continue that."""
    suite = suite_of()
    endpoint = Endpoint(suite)

    async with listening(Client(endpoint), toolsListChanged=True) as (connection, _):
        connection.reading = reading = Interrupted()
        suite.add(subtract)
        await reading.requested.wait()
        await endpoint.aclose()
        await connection.over()

    assert (len(connection.messages), connection.complete) == (1, False)


async def test_change_costs_no_task_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is written to thousands of streams at once."""
    suite = suite_of()
    client, loop = Client(Endpoint(suite)), asyncio.get_running_loop()
    made: list[str] = []

    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(client, id=id, toolsListChanged=True))
            for id in range(20)
        ]
        for name in ("create_task", "call_at"):
            function = getattr(loop, name)

            def counted(*args: Any, _name: str = name, _call: Any = function, **more: Any) -> Any:
                made.append(_name)
                return _call(*args, **more)

            monkeypatch.setattr(loop, name, counted)
        suite.add(subtract)
        await until(lambda: all(TOOLS in each.body.decode() for each, _ in streams))
        monkeypatch.undo()

    assert len(made) < 10, made


async def test_listeners_are_bounded() -> None:
    """Bounds on streams, and on resources of one; past them the error names the limit."""
    limits = Limits(max_streams=1, max_subscriptions=1)
    client = Client(Endpoint(Mux(suite_of(), limits=limits)))
    ask = client.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    two = {"notifications": {"resourceSubscriptions": [NOTE, "note://other"]}}

    many = await client.send(client.request("subscriptions/listen", two))
    async with listening(client, toolsListChanged=True):
        refused = await client.send(ask)

    assert (many.status, many.json["error"]["message"][-14:-1]) == (429, "subscriptions")
    assert (refused.status, refused.json["error"]["code"]) == (503, -32603)


async def test_server_that_announces_nothing_has_no_listeners() -> None:
    """Without a ChangeNotifier the method does not exist."""

    class Silent(Suite):
        changes = None  # type: ignore[assignment]

    client = Client(Endpoint(Silent(name="test", version="1")))
    ask = client.request("subscriptions/listen", {"notifications": {}})

    answer = await client.send(ask)

    assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


async def test_tool_announcement_without_changes_is_dropped() -> None:
    """A tool may announce changes at any time; a wrapper announces those of the inner server."""

    class Silent(Middleware):
        changes = None

    @tool
    def write(channel: Channel) -> str:
        """Writes."""
        channel.changes.resource_updated(NOTE)
        return "written"

    suite = suite_of()
    suite.add(write)
    silent = Client(Endpoint(Silent(suite)))
    async with listening(Client(Endpoint(Middleware(suite))), resourceSubscriptions=[NOTE]) as (
        connection,
        _,
    ):
        assert (await silent.send(silent.call("write"))).status == 200
        suite.resource_updated(NOTE)
        assert (await connection.message())["method"] == UPDATED


# Before 2026-07-28.


@asynccontextmanager
async def stream(client: Client) -> AsyncIterator[Connection]:
    """Give the session's own stream, once it has begun."""
    async with client.listen() as connection:
        await connection.started()
        yield connection


@pytest.mark.parametrize("version", LEGACIES)
async def test_session_hears_which_lists_have_changed(version: str) -> None:
    """They come on its own stream, with an id to resume behind."""
    suite = suite_of()
    client = await Client.begin(Endpoint(suite), version)

    async with stream(client) as connection:
        suite.add(subtract)
        suite.remove(review)
        response = [await connection.event() for _ in range(2)]

    assert [each.message["method"] for each in response] == [
        TOOLS,
        "notifications/prompts/list_changed",
    ]
    assert all(each.id for each in response)


@pytest.mark.parametrize("version", LEGACIES)
async def test_session_hears_of_the_resources_it_subscribed_to(version: str) -> None:
    """Before or after the stream was opened, and until it unsubscribes."""
    suite = suite_of()
    client = await Client.begin(Endpoint(suite), version)

    async def ask(what: str, uri: str) -> None:
        answer = await client.send(client.request(f"resources/{what}", {"uri": uri}))
        assert answer.json["result"] == {}

    await ask("subscribe", NOTE)
    await ask("subscribe", NOTE)
    async with stream(client) as connection:
        await ask("subscribe", "note://other")
        suite.resource_updated("note://other")
        first = await connection.message()
        suite.resource_updated(NOTE)
        second = await connection.message()
        await ask("unsubscribe", NOTE)
        await ask("unsubscribe", NOTE)
        suite.resource_updated(NOTE)
        suite.resource_updated("note://other")
        third = await connection.message()

    response = [first, second, third]
    assert [each["params"]["uri"] for each in response] == ["note://other", NOTE, "note://other"]


async def test_session_record_exists_while_something_is_subscribed() -> None:
    """The store holds nothing of a session before, nor behind its last unsubscribe, nor its end."""
    mux = Mux(suite_of())
    client = await Client.begin(Endpoint(mux), LEGACIES[0])

    async def records(what: str) -> str:
        await client.send(client.request(f"resources/{what}", {"uri": NOTE}))
        return repr(mux.store).split()[1]

    assert [await records(what) for what in ("subscribe", "unsubscribe", "subscribe")] == [
        "1",
        "0",
        "1",
    ]
    await client.send(method="DELETE")
    assert repr(mux.store).split()[1] == "0"


@pytest.mark.parametrize(
    ("uri", "code"), [("note://none", -32002), ("note://ada", -32002), ("note://other", -32603)]
)
async def test_session_subscribes_to_so_many_resources_that_are_there(uri: str, code: int) -> None:
    """An invisible resource is not found; past `Limits.max_subscriptions` the error names it."""
    client = await Client.begin(
        Endpoint(Mux(suite_of(), limits=Limits(max_subscriptions=1))), LEGACIES[0]
    )
    await client.send(client.request("resources/subscribe", {"uri": NOTE}))

    answer = await client.send(client.request("resources/subscribe", {"uri": uri}))

    assert code == answer.json["error"]["code"]


async def test_slow_session_is_told_once() -> None:
    """A change that is pending for a slow stream is not queued twice."""
    suite = suite_of()
    endpoint = Endpoint(suite)
    client = await Client.begin(endpoint, LEGACIES[0])

    async with stream(client) as connection:
        connection.reading.clear()
        for _ in range(50):
            suite.changes.tools_list_changed()
            await asyncio.sleep(0)
        for _ in range(50):  # everything written by now is complete
            await asyncio.sleep(0)
        connection.reading.set()
        suite.remove(review)
        response = []
        while "notifications/prompts/list_changed" not in response:
            response.append((await connection.message())["method"])

    assert response.count(TOOLS) <= 3


def test_sessions_are_told_what_there_is_to_hear() -> None:
    """The capabilities declare it."""
    said = suite_of().capabilities
    assert said.tools and said.prompts and said.resources

    assert (said.tools.list_changed, said.prompts.list_changed) == (True, True)
    assert (said.resources.list_changed, said.resources.subscribe) == (True, True)


def many(count: int, size: int) -> list[str]:
    """Return *count* URIs of *size* bytes that there are."""
    return [f"note://{number}/".ljust(size, "x") for number in range(count)]


class Notes(ResourceRepo):
    """A note for every URI."""

    name = "notes"
    template = "note://{+path}"

    async def read(self, key: dict[str, str], channel: Channel) -> str | None:
        return key["path"]


def notes(**limits: Any) -> Endpoint:
    suite = Suite(name="test", version="1", resources=[Notes()])
    return Endpoint(Mux(suite, limits=Limits(**limits)))


@pytest.mark.parametrize(
    ("uris", "status", "setting"),
    [
        (many(1, 2049), 400, "2048 bytes"),
        (many(1001, 100), 429, "1000 resources (limit: max_subscriptions)"),
        (many(300, 2000), 429, "524288 bytes"),
    ],
)
async def test_listener_has_bounds(uris: list[str], status: int, setting: str) -> None:
    """Each URI, their number and their bytes; the error names the setting."""
    client = Client(notes())
    wanted = {"notifications": {"resourceSubscriptions": uris}}

    answer = await client.send(client.request("subscriptions/listen", wanted))

    assert status == answer.status
    assert setting in answer.json["error"]["message"]
    assert 0 == len(client.app.mux.streams) == len(client.app.mux.subscribed_bytes)


async def test_listeners_of_one_client_have_a_share() -> None:
    """All streams of an address together; other addresses have their own, and it comes back."""
    app = notes(client_share=1.5e-5, max_streams=10**6)  # 1006 bytes
    one, other = (Client(app, client=(f"192.0.2.{number}", 1)) for number in (1, 2))
    wanted: dict[str, Any] = {"resourceSubscriptions": many(1, 500)}
    async with listening(one, **wanted):
        refused = await one.send(one.request("subscriptions/listen", {"notifications": wanted}))
        async with listening(other, **wanted):
            pass

    assert refused.status == 429
    assert (
        "subscribed bytes of one address: 1006 (limit: client_share)"
        in refused.json["error"]["message"]
    )
    async with listening(one, **wanted):
        pass


async def test_listener_does_not_keep_its_body() -> None:
    """A stream may be open for days: it holds its subscriptions, and no more."""
    client = Client(notes())
    request = client.request(
        "subscriptions/listen",
        {"notifications": {"resourceSubscriptions": many(1, 100)}, "padding": "x" * 3_000_000},
    )
    body = [json.dumps(request).encode()]
    tracemalloc.start()
    try:
        async with AsyncExitStack() as stack:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(5):
                connection = client.open(request, body=[body[0][:1], body[0][1:]])
                await stack.enter_async_context(connection)
                await connection.message()
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    # The connections of the test keep two pieces of a body no longer than it takes to send them.
    assert after - before < 1_000_000


async def test_streams_of_one_client_without_uris_end() -> None:
    """They have no size, and count towards one share: the end of the first leaves the other."""
    app = notes()
    client = Client(app, client=("192.0.2.1", 1))
    wanted = {"notifications": {"resourcesListChanged": True}}
    async with (
        client.open(client.request("subscriptions/listen", wanted, id=1)) as first,
        client.open(client.request("subscriptions/listen", wanted, id=2)) as second,
    ):
        for stream in (first, second):
            await stream.event()
        for stream in (first, second):
            stream.disconnect()
            await stream.over()

    assert len(app.mux.streams) == 0
