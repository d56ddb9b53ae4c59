"""The mux: its parts, and its routing."""

import logging
from typing import Any

import pytest

from genmcp import ConfigurationError, Endpoint, Limits, McpError, Mux, Server, Suite, tool
from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.errors import StoreUnavailable
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.prompts import CompleteResult, Completion
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route
from genmcp.stores.memory import MemoryStore
from tests.support.asgi import Client


@tool
async def greet() -> str:
    """Greets."""
    return "hello"


def suite() -> Suite:
    return Suite(name="test", version="1", tools=[greet])


class Own(Server):
    """A server that is not a suite, with the responses that a test sets."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    @property
    def info(self) -> Implementation:
        return Implementation(name="own", version="1")

    @property
    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(completions={})

    @property
    def methods(self) -> set[str]:
        return {"completion/complete", "tools/list"}

    def find(self, method: str, key: str) -> Route | None:
        return None

    async def handle(self, request: Request, channel: Channel) -> Result:
        if isinstance(self.answer, Exception):
            raise self.answer
        result: Result = self.answer
        return result

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        raise McpError(f"{method} {cursor}", code=-32001)


COMPLETE = {
    "ref": {"type": "ref/prompt", "name": "x"},
    "argument": {"name": "a", "value": "b"},
}


async def test_mux_gives_every_other_method_to_the_server() -> None:
    """A method that is neither built in nor a list is handled, with or without a route."""
    client = Client(Endpoint(Own(CompleteResult(completion=Completion(values=["bc"])))))
    client.asked[1] = "completion/complete"

    async with client.open(client.request("completion/complete", COMPLETE)) as connection:
        client.check = lambda message: None  # type: ignore[method-assign]
        await connection.over()

    assert connection.json["result"]["completion"]["values"] == ["bc"]


async def test_mux_lists_by_method_and_cursor() -> None:
    """A list is requested by method and cursor; the first page has no cursor."""
    client = Client(Endpoint(Own()))

    answer = await client.send(client.request("tools/list", {}))

    assert answer.json["error"]["message"] == "tools/list None"


@pytest.mark.parametrize("answer", [None, "text", {"a": 1}])
async def test_mux_takes_nothing_but_results(answer: Any, caplog: Any) -> None:
    """A server that answers with something else costs one request, and is named."""
    client = Client(Endpoint(Own(answer)))

    said = await client.send(client.request("completion/complete", COMPLETE))

    assert (said.status, said.json["error"]["code"]) == (500, -32603)
    assert "Own answered completion/complete with" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        CompleteResult(completion=object()),  # type: ignore[arg-type]
        McpError("odd", object()),
        McpError("odd", {"\ud800": 1}),
    ],
)
async def test_mux_survives_results_that_cannot_be_encoded(answer: Any, caplog: Any) -> None:
    """A result or an error that is not JSON is an internal error with a reference."""
    client = Client(Endpoint(Own(answer)))

    said = await client.send(client.request("completion/complete", COMPLETE))

    assert (said.status, said.json["error"]["code"]) == (500, -32603)
    assert said.json["error"]["data"]["reference"] in caplog.text


async def test_mux_offers_levels_only_where_the_server_logs() -> None:
    """logging/setLevel is not found without the capability."""
    client = await Client.begin(Endpoint(Own()), "2025-11-25")

    answer = await client.send(client.request("logging/setLevel", {"level": "info"}))

    assert answer.json["error"]["code"] == -32601


@pytest.mark.parametrize("field", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_positive(field: str, value: Any) -> None:
    """An invalid limit is rejected, by name."""
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


@pytest.mark.parametrize("server", [None, Suite, "suite", [suite]])
def test_mux_serves_servers(server: Any) -> None:
    """An object that is not a server is rejected when the mux is made."""
    with pytest.raises(ConfigurationError, match="must be an instance of a Server"):
        Mux(server)


def test_mux_secret_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """GENMCP_SECRET counts unless a secret is given; one that is too short is refused."""
    monkeypatch.setenv("GENMCP_SECRET", "short")

    with pytest.raises(ConfigurationError, match="too few"):
        Mux(suite())
    Mux(suite(), secret="a secret that is long enough")


def test_mux_with_a_shared_store_needs_a_secret() -> None:
    """A random one would be another one in the next process."""

    store = MemoryStore()
    Mux(suite(), store=store)
    store.shared = True
    with pytest.raises(ConfigurationError, match="GENMCP_SECRET"):
        Mux(suite(), store=store)
    Mux(suite(), store=store, secret="a secret that is long enough")


@pytest.mark.parametrize(("workers", "warned"), [("4", True), ("1", False), ("many", False)])
def test_mux_warns_of_several_workers_without_a_secret(
    workers: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each would reject the other's sessions."""
    monkeypatch.setenv("WEB_CONCURRENCY", workers)

    Mux(suite())

    assert warned == ("there are 4 workers" in caplog.text)


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        (["uvicorn", "app:app", "--workers", "4"], True),
        (["uvicorn", "app:app", "--workers=4"], True),
        (["gunicorn", "-w", "4", "app:app"], True),
        (["uvicorn", "app:app", "--workers", "1"], False),
        (["uvicorn", "app:app", "--workers"], False),
    ],
)
def test_mux_sees_the_workers_of_a_command(
    command: list[str],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker has the command line of the process that started it."""
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    monkeypatch.setattr("sys.argv", command)

    Mux(suite())

    assert warned == ("there are 4 workers" in caplog.text)


async def test_mux_closes_the_store_it_was_given() -> None:
    """A store that the mux made itself stays usable."""
    given = MemoryStore()
    own, other = Mux(suite()), Mux(suite(), store=given)

    await own.aclose()
    await other.aclose()

    assert await own.store.get("x") is None
    with pytest.raises(StoreUnavailable):
        await given.get("x")


async def test_mux_tells_how_much_is_open() -> None:
    """Its repr names the server."""
    assert "test" in repr(Mux(suite()))


async def test_closed_mux_fails_calls_that_need_its_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session's level cannot be kept in a store that is closed: an error, with a reference."""
    mux = Mux(suite(), store=MemoryStore())
    client = await Client.begin(Endpoint(mux), "2025-11-25")
    await mux.aclose()

    answer = await client.send(client.request("logging/setLevel", {"level": "info"}))

    assert answer.json["error"]["code"] == -32603
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
