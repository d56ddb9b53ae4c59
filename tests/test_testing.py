"""`genmcp.testing`: a client in memory."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Access,
    Channel,
    ClientHandler,
    Endpoint,
    InvalidParams,
    Mux,
    OutcomeUnknown,
    ServerError,
    Suite,
    Tool,
    ToolRequest,
    tool,
)
from genmcp.protocol.capabilities import ClientCapabilities, SamplingCapability
from genmcp.protocol.params import NotificationParams
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.testing import Notification, connect


class Agreeing(ClientHandler):
    """Accepts every form."""

    async def handle_elicitation_create(self, message: str, schema: Any) -> Any:
        return Accepted({})


@tool
async def greet(name: str, channel: Channel) -> str:
    """Returns a greeting."""
    await channel.progress(1, 2)
    await channel.log("debug", name)
    await channel.notify("notifications/tools/list_changed", NotificationParams())
    return f"Hello, {name}."


SUITE = Suite(name="test", version="1", tools=[greet])


async def test_testing_client_discovers_lists_and_calls() -> None:
    """Results are values of `genmcp.protocol`."""
    async with connect(SUITE) as client:
        discovered = await client.request("server/discover")
        (listed,) = await client.tools()
        answer = await client.call("greet", {"name": "Ada"})

    assert discovered.supported_versions[0] == "2026-07-28"
    assert (listed.name, listed.description) == ("greet", "Returns a greeting.")
    assert answer.content[0].text == "Hello, Ada."  # type: ignore[union-attr]


async def test_testing_client_records_notifications() -> None:
    """Progress, log messages and other notifications are recorded in order."""
    async with connect(SUITE) as client:
        await client.call("greet", {"name": "Ada"})

    assert [(each.progress, each.total) for each in client.progress] == [(1, 2)]
    assert [(each.level, each.data) for each in client.logs] == [("debug", "Ada")]
    methods = [each.method for each in client.notifications]
    assert methods[:2] == ["notifications/progress", "notifications/message"]
    assert (
        Notification("notifications/tools/list_changed", NotificationParams())
        == (client.notifications[2])
    )


async def test_testing_client_raises_the_errors_of_the_client() -> None:
    """An error response is a ServerError with its code, data and HTTP status."""

    @tool
    async def refuse() -> None:
        raise InvalidParams("never", {"a": 1})

    async with connect(Suite(name="test", version="1", tools=[refuse])) as client:
        with pytest.raises(ServerError, match="never") as refused:
            await client.call("refuse")
        with pytest.raises(ServerError) as unknown:
            await client.request("no/such/method")

    error = refused.value
    assert (error.code, error.data, error.status) == (-32602, {"a": 1}, 200)
    assert (unknown.value.code, unknown.value.status) == (-32601, 404)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_testing_client_speaks_every_revision(revision: str) -> None:
    async with connect(SUITE, revision=revision) as client:
        result = await client.call("greet", {"name": "Ada"})
        assert client.revision == revision

    assert result.data == "Hello, Ada."
    assert [each.progress for each in client.progress] == [1]
    assert [each.data for each in client.logs] == ["Ada"]


async def test_testing_client_declares_capabilities() -> None:
    """Those of its handler, or explicit ones even without a handler."""
    declared: list[ClientCapabilities | None] = []

    @tool
    async def look(channel: Channel) -> None:
        declared.append(channel.client.capabilities)

    suite = Suite(name="test", version="1", tools=[look])
    sampling = ClientCapabilities(sampling=SamplingCapability())
    for options in ({}, {"handler": Agreeing()}, {"capabilities": sampling}):
        async with connect(suite, **options) as client:
            await client.call("look")

    found = [(bool(each and each.elicitation), bool(each and each.sampling)) for each in declared]
    assert found == [(False, False), (True, False), (False, True)]


async def test_testing_client_sets_access_and_state() -> None:
    @tool
    async def who(channel: Channel) -> str:
        assert channel.access is not None
        granted = sorted(channel.access.scopes)
        return f"{channel.principal} {channel.assigns['team']} {granted}"

    suite = Suite(name="test", version="1", tools=[who])
    endpoint = Endpoint(suite, copy_assigns=["team"])
    access = Access(subject="ann", scopes=frozenset({"read"}))
    async with connect(endpoint, access=access, state={"team": "red"}) as client:
        result = await client.call("who")
    await endpoint.aclose()

    assert result.data == "ann red ['read']"


async def test_testing_client_streams_notifications_as_they_arrive() -> None:
    """The tool waits until the test has seen its first notification."""
    seen = asyncio.Event()

    @tool
    async def steps(channel: Channel) -> str:
        await channel.progress(1)
        await seen.wait()
        await channel.log("info", "going on")
        return "done"

    async with connect(Suite(name="test", version="1", tools=[steps])) as client:
        call = asyncio.create_task(client.call("steps"))
        methods = []
        async for notification in client.stream():
            methods.append(notification.method)
            seen.set()
            if len(methods) == 2:
                break
        assert (await call).data == "done"

    assert methods == ["notifications/progress", "notifications/message"]
    assert [each async for each in client.stream()] == client.notifications


async def test_testing_client_cancels_a_call() -> None:
    await _leave(lambda client, call: call.cancel(), asyncio.CancelledError)


async def test_testing_client_disconnects_in_the_middle_of_a_call() -> None:
    """The server sees `http.disconnect`; the client raises that the outcome is unknown."""
    await _leave(lambda client, call: client.disconnect(), OutcomeUnknown)


async def _leave(leave: Callable[..., Any], error: type[BaseException]) -> None:
    """Disconnect during a call with *leave*: the hook is cancelled, and the client stays usable."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    suite = Suite(name="test", version="1", tools=[wait, greet])
    async with connect(suite) as client, asyncio.timeout(10):
        call = asyncio.create_task(client.call("wait"))
        await started.wait()
        if isawaitable(left := leave(client, call)):
            await left
        with pytest.raises(error):
            await call
        await cancelled.wait()
        assert (await client.call("greet", {"name": "Ada"})).data == "Hello, Ada."


async def test_testing_client_mirrors_arguments_in_headers() -> None:
    """2026-07-28: an argument with `x-mcp-header` is also sent as a header."""

    class Query(Tool):
        name = "query"
        input_schema = {
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "limit": {"type": "integer", "x-mcp-header": "Limit"},
                "where": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "x-mcp-header": "City"}},
                },
            },
        }

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return request.arguments

    arguments = {"region": "north", "limit": 5, "where": {"city": "Tromsø"}}
    async with connect(Suite(name="test", version="1", tools=[Query])) as client:
        whole = await client.call("query", arguments)
        less = await client.call("query", {"region": "north"})

    assert arguments == whole.structured_content
    assert less.structured_content == {"region": "north"}


async def test_testing_client_takes_a_server_a_mux_or_an_endpoint() -> None:
    """A server, a mux, or an endpoint with options. The last two are not closed with the client."""
    mux = Mux(SUITE)
    for target in (SUITE, mux, Endpoint(mux)):
        async with connect(target) as client:
            assert not (await client.call("greet", {"name": "Ada"})).is_error
    await mux.aclose()


async def test_testing_client_ignores_variables_of_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test on a machine with these settings must not write into the store that they name."""
    file = tmp_path / "production.db"
    monkeypatch.setenv("GENMCP_STORE", f"sqlite:///{file}")
    monkeypatch.setenv("GENMCP_SECRET", "the secret of a deployment")
    monkeypatch.setenv("GENMCP_ENGINE", "unknown")

    async with connect(SUITE) as client:
        assert (await client.call("greet", {"name": "Ada"})).data == "Hello, Ada."

    assert not file.exists()
