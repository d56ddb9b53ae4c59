"""Log records that are forwarded to the client of the request they are logged in."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genmcp import Channel, ClientLogHandler, ConfigurationError, Endpoint, Mux, Suite, tool
from genmcp.errors import StoreUnavailable
from genmcp.protocol.params import LoggingLevel
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import StoreEntry
from tests.support.asgi import ALL, LEGACIES, MODERN, Client, Connection, serving

LEVEL = "io.modelcontextprotocol/logLevel"
INFO: dict[str, Any] = {LEVEL: "info"}

shop = logging.getLogger("tests.shop")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ClientLogHandler]]:
    """Put a handler on the logger `tests.shop`."""
    monkeypatch.setattr(ClientLogHandler, "created", False)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    shop.setLevel(1)
    handlers: list[logging.Handler] = []

    def installed(handler: ClientLogHandler | None = None) -> ClientLogHandler:
        handler = handler or ClientLogHandler()
        shop.addHandler(handler)
        handlers.append(handler)
        return handler

    yield installed
    for handler in handlers:
        shop.removeHandler(handler)


async def call(client: Client, name: str, level: LoggingLevel | None = "debug") -> Connection:
    """Call a tool with the log level *level*."""
    meta: dict[str, Any] = {LEVEL: level} if client.version == MODERN and level else {}
    if client.version != MODERN and level:
        await client.send(client.request("logging/setLevel", {"level": level}))
    return await client.send(client.call(name, **meta))


def logged(connection: Connection) -> list[tuple[str, str]]:
    """Return the level and the message of each log message."""
    return [
        (said["params"]["level"], said["params"]["data"]["message"])
        for said in connection.messages
        if said.get("method") == "notifications/message"
    ]


def data(connection: Connection) -> Any:
    """Return the data of the only log message."""
    (said,) = (m for m in connection.messages if "method" in m)
    return said["params"]["data"]


@pytest.mark.parametrize("version", ALL)
async def test_log_handler_forwards_records_of_a_hook(version: str, install: Any) -> None:
    """Before the answer, in order, with the logger's name; also without a single await."""

    @tool
    async def buy() -> str:
        """Buys."""
        shop.info("bought %s", "it")
        shop.error("lost it")
        return "done"

    install()
    client = await Client.begin(serving(buy), version)

    answer = await call(client, "buy")

    assert logged(answer) == [("info", "bought it"), ("error", "lost it")]
    assert {m["params"]["logger"] for m in answer.messages if "method" in m} == {"tests.shop"}
    assert "result" in answer.messages[-1]


async def test_log_handler_sends_while_the_hook_still_runs(install: Any) -> None:
    """A record does not wait for the end of a long call."""
    go = asyncio.Event()

    @tool
    async def buy() -> str:
        """Buys."""
        shop.info("begun")
        await go.wait()
        return "done"

    install()
    client = Client(serving(buy))

    async with client.open(client.call("buy", **INFO)) as connection:
        message = await connection.message()
        assert not connection.complete
        go.set()
        await connection.over()

    assert message["params"]["data"] == {"message": "begun"}


async def test_log_handler_forwards_from_threads_and_tasks(install: Any) -> None:
    """Work in a copy of the hook's context belongs to its request."""

    @tool
    def in_thread() -> str:
        """Logs in a thread."""
        shop.info("from the thread of a def")
        return "done"

    @tool
    async def in_others() -> str:
        """Logs elsewhere."""

        async def other() -> None:
            shop.info("from a task")

        await asyncio.create_task(other())
        await asyncio.to_thread(shop.info, "from a thread")
        return "done"

    install()
    client = Client(serving(in_thread, in_others))

    assert logged(await call(client, "in_thread")) == [("info", "from the thread of a def")]
    assert logged(await call(client, "in_others")) == [
        ("info", "from a task"),
        ("info", "from a thread"),
    ]


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (5, "debug"),
        (logging.DEBUG, "debug"),
        (logging.INFO, "info"),
        (25, "notice"),
        (logging.WARNING, "warning"),
        (logging.ERROR, "error"),
        (logging.CRITICAL, "critical"),
        (60, "alert"),
        (99, "emergency"),
    ],
)
async def test_log_handler_translates_levels(number: int, level: str, install: Any) -> None:
    """RFC 5424 has more levels than Python: those between and above mean them."""

    @tool
    async def log() -> str:
        """Logs."""
        shop.log(number, "said")
        return "done"

    install()

    assert [(level, "said")] == logged(await call(Client(serving(log)), "log"))


@tool
async def both() -> str:
    """Logs on two levels."""
    shop.info("minor")
    shop.error("major")
    return "done"


@pytest.mark.parametrize("version", ALL)
async def test_log_handler_sends_no_more_than_the_client_wants(version: str, install: Any) -> None:
    """The level of the request counts on 2026-07-28, that of the session before."""
    install()
    client = await Client.begin(serving(both), version)

    assert logged(await call(client, "both", "warning")) == [("error", "major")]


async def test_log_handler_respects_the_requested_level(install: Any) -> None:
    """A request of 2026-07-28 without a level is answered with one JSON body."""
    install()

    answer = await call(Client(serving(both)), "both", None)

    assert not answer.is_stream


async def test_log_handler_has_a_level_of_its_own(install: Any) -> None:
    """The level of the handler limits that of the client."""
    install(ClientLogHandler("ERROR"))

    assert logged(await call(Client(serving(both)), "both")) == [("error", "major")]


@tool
async def crash() -> str:
    """Logs an exception."""
    try:
        raise KeyError("a secret")
    except KeyError:
        shop.exception("crashed", stack_info=True)
    return "done"


async def test_log_handler_names_an_exception_and_keeps_its_text(install: Any) -> None:
    """The type is sent, but not the text or traceback, even if other handlers cached it."""
    other = logging.StreamHandler()  # formats the traceback, and keeps it in the record
    shop.addHandler(other)
    install()

    try:
        said = data(await call(Client(serving(crash)), "crash"))
    finally:
        shop.removeHandler(other)

    assert said == {"message": "crashed", "exception": "KeyError"}


async def test_log_handler_sends_tracebacks_on_request(install: Any) -> None:
    """With traceback=True the traceback is sent."""
    install(ClientLogHandler(traceback=True))

    said = data(await call(Client(serving(crash)), "crash"))

    assert "KeyError: 'a secret'" in said["traceback"]
    assert said["message"] == "crashed"


async def test_log_handler_formats_with_its_formatter(install: Any) -> None:
    """A formatter makes the message, and adds no traceback."""
    install().setFormatter(logging.Formatter("%(funcName)s: %(message)s"))

    said = data(await call(Client(serving(crash)), "crash"))

    assert said["message"] == "crash: crashed"


async def test_log_handler_truncates_messages(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is truncated, and lone surrogates are replaced."""
    # The record must not become part of a test report, which is sent as UTF-8 between processes.
    monkeypatch.setattr(shop, "propagate", False)

    @tool
    async def log() -> str:
        """Logs."""
        shop.info("\ud800" + "x" * 100_000)
        return "done"

    install()

    said = data(await call(Client(serving(log)), "log"))

    assert said["message"].startswith("?xxx")
    assert len(said["message"]) < 20_000


async def test_log_handler_reports_dropped_records(install: Any) -> None:
    """Beyond the limit, records are dropped, and the client gets their number."""

    @tool
    async def log() -> str:
        """Logs."""
        for number in range(10):
            shop.info("%s", number)
        return "done"

    install(ClientLogHandler(pending=3))

    said = logged(await call(Client(serving(log)), "log"))

    assert said[:3] == [("info", "0"), ("info", "1"), ("info", "2")]
    assert said[3:] == [("warning", "7 log records were dropped: the client did not keep up")]


async def test_log_handler_ignores_records_of_forwarding(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message or store that logs, or a logger of this package, causes no loop."""

    class Talkative(MemoryStore):
        async def get(self, key: str) -> StoreEntry | None:
            shop.info("looking for %s", key)
            return await super().get(key)

    class Thing:
        def __str__(self) -> str:
            shop.info("formatting")
            return "thing"

    @tool
    async def log() -> str:
        """Logs."""
        shop.info("%s", Thing())
        logging.getLogger("genmcp.own").error("ours")
        return "done"

    monkeypatch.setattr(shop, "propagate", False)  # another handler that formats would log, too
    ours = logging.getLogger("genmcp")
    handler = install()
    ours.addHandler(handler)
    suite = Suite(name="test", version="1", tools=[log])
    client = await Client.begin(Endpoint(Mux(suite, store=Talkative())), LEGACIES[0])

    try:
        said = logged(await call(client, "log", "info"))
    finally:
        ours.removeHandler(handler)

    assert said == [("info", "thing")]


async def test_log_handler_drops_records_after_the_response(install: Any) -> None:
    """Records of an asyncio.Task that is still running are dropped without an error."""
    go = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @tool
    async def leave() -> str:
        """Leaves something running."""

        async def later() -> None:
            await go.wait()
            shop.info("too late")

        left.append(asyncio.create_task(later()))
        return "done"

    install()
    for version in (MODERN, LEGACIES[0]):
        client = await Client.begin(serving(leave), version)

        answer = await call(client, "leave")
        go.set()
        await asyncio.wait_for(left.pop(), 5)

        assert logged(answer) == []


async def test_log_handler_stops_after_a_disconnect(install: Any) -> None:
    """Nothing waits for a client that reads nothing any more."""
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        """Waits."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            shop.info("cancelled")

    install()
    client = Client(serving(wait))

    async with client.open(client.call("wait", **INFO)) as connection:
        await asyncio.wait_for(begun.wait(), 5)
        connection.disconnect()
        await connection.over()

    assert connection.events == []


async def test_log_handler_flush_is_bounded(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are not sent within `flush_timeout` are dropped: the response does not wait."""
    given: list[Channel] = []

    @tool
    async def log(channel: Channel) -> str:
        """Logs."""
        given.append(channel)
        shop.info("said")
        return "done"

    async def stuck(self: Channel, *arguments: Any) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(Channel, "log", stuck)
    install(ClientLogHandler(flush_timeout=0.01))

    answer = await call(Client(serving(log)), "log")

    assert logged(answer) == []
    assert answer.json["result"]["content"][0]["text"] == "done"


async def test_log_handler_survives_an_unavailable_store(install: Any, caplog: Any) -> None:
    """A store that fails costs the records, not the call, and is logged once."""

    class Broken(MemoryStore):
        async def get(self, key: str) -> StoreEntry | None:
            raise StoreUnavailable("gone")

    install()
    suite = Suite(name="test", version="1", tools=[both])
    client = await Client.begin(Endpoint(Mux(suite, store=Broken())), LEGACIES[0])

    answer = await client.send(client.call("both"))

    assert answer.json["result"]["content"][0]["text"] == "done"
    assert caplog.text.count("cannot be forwarded") == 1


async def test_log_handler_reports_formatting_errors(
    install: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every handler does: on standard error, not in the call."""

    @tool
    async def log() -> str:
        """Logs."""
        shop.info("%d", "no number")
        return "done"

    install()

    answer = await call(Client(serving(log)), "log")

    assert not answer.is_stream
    assert "no number" in capsys.readouterr().err


async def test_log_handler_forwards_nothing_outside_of_requests(install: Any) -> None:
    """Outside of requests nothing is sent; without a handler, calls skip the preparation."""
    assert not ClientLogHandler.created
    install()

    shop.info("to nobody")

    assert ClientLogHandler.created


def test_log_handler_has_a_bound() -> None:
    """Room for no record is refused when it is made."""
    with pytest.raises(ConfigurationError, match="pending"):
        ClientLogHandler(pending=0)
