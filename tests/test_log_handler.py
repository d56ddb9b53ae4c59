"""Log records are forwarded to the client whose request they are logged in."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genmcp import Channel, ClientLogHandler, Endpoint, Mux, Suite, tool
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
    """Add a handler to the logger `tests.shop`."""
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
        (notification["params"]["level"], notification["params"]["data"]["message"])
        for notification in connection.messages
        if notification.get("method") == "notifications/message"
    ]


def data(connection: Connection) -> Any:
    """Return the data of the only log message."""
    (notification,) = (m for m in connection.messages if "method" in m)
    return notification["params"]["data"]


@pytest.mark.parametrize("version", ALL)
async def test_log_handler_forwards_records_of_a_hook(version: str, install: Any) -> None:
    """Before the response, in order, with the logger's name; also if the hook never awaits."""

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
    """A record is not delayed until a long call ends."""
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
    """Records from a copy of the hook's context belong to its request."""

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
    """RFC 5424 has more levels than Python: those between and above Python's are mapped."""

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
    """The level is that of the request on 2026-07-28, and that of the session before."""
    install()
    client = await Client.begin(serving(both), version)

    assert logged(await call(client, "both", "warning")) == [("error", "major")]


async def test_log_handler_respects_the_requested_level(install: Any) -> None:
    """A request of 2026-07-28 without a level gets one JSON response."""
    install()

    answer = await call(Client(serving(both)), "both", None)

    assert not answer.is_stream


async def test_log_handler_has_a_level_of_its_own(install: Any) -> None:
    """The handler's level applies in addition to that of the client."""
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
    """Only the type is sent, not the text or traceback, even if another handler has cached them."""
    other = logging.StreamHandler()  # formats the traceback, and caches it in the record
    shop.addHandler(other)
    install()

    try:
        record = data(await call(Client(serving(crash)), "crash"))
    finally:
        shop.removeHandler(other)

    assert record == {"message": "crashed", "exception": "KeyError"}


async def test_log_handler_formats_with_its_formatter(install: Any) -> None:
    """A formatter makes the message, without a traceback."""
    install().setFormatter(logging.Formatter("%(funcName)s: %(message)s"))

    record = data(await call(Client(serving(crash)), "crash"))

    assert record["message"] == "crash: crashed"


async def test_log_handler_truncates_messages(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long messages are truncated, and lone surrogates replaced."""
    # Without propagation pytest does not put the record into a report, which must be UTF-8.
    monkeypatch.setattr(shop, "propagate", False)

    @tool
    async def log() -> str:
        """Logs."""
        shop.info("\ud800" + "x" * 100_000)
        return "done"

    install()

    record = data(await call(Client(serving(log)), "log"))

    assert record["message"].startswith("?xxx")
    assert len(record["message"]) < 20_000


async def test_log_handler_reports_dropped_records(install: Any) -> None:
    """Records over the limit are dropped; the client gets their number."""

    @tool
    async def log() -> str:
        """Logs."""
        for number in range(263):
            shop.info("%s", number)
        return "done"

    install()

    records = logged(await call(Client(serving(log)), "log"))

    assert records[:256] == [("info", str(number)) for number in range(256)]
    assert records[256:] == [("warning", "7 log records were dropped: the client did not keep up")]


async def test_log_handler_ignores_records_of_forwarding(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records logged while another is sent, or by this package, cause no loop."""

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

    monkeypatch.setattr(
        shop, "propagate", False
    )  # any other handler would format, and so log again
    ours = logging.getLogger("genmcp")
    handler = install()
    ours.addHandler(handler)
    suite = Suite(name="test", version="1", tools=[log])
    client = await Client.begin(Endpoint(Mux(suite, store=Talkative())), LEGACIES[0])

    try:
        records = logged(await call(client, "log", "info"))
    finally:
        ours.removeHandler(handler)

    assert records == [("info", "thing")]


async def test_log_handler_drops_records_after_the_response(install: Any) -> None:
    """Records of an asyncio.Task that outlives the call are dropped without an error."""
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
    """Forwarding does not wait for a client that has disconnected."""
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        """Waits."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            shop.info("cancelled")

    install()
    client = Client(serving(wait))

    async with client.open(client.call("wait", **INFO)) as connection:
        await asyncio.wait_for(started.wait(), 5)
        connection.disconnect()
        await connection.over()

    assert connection.events == []


async def test_log_handler_flush_is_bounded(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response does not wait longer than a second; unsent records are dropped."""
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
    install()

    answer = await call(Client(serving(log)), "log")

    assert logged(answer) == []
    assert answer.json["result"]["content"][0]["text"] == "done"


async def test_log_handler_survives_an_unavailable_store(install: Any, caplog: Any) -> None:
    """If the store fails, records are lost, but the call succeeds. The failure is logged once."""

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
    """On standard error, as every handler does; the call is not affected."""

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
