"""Runs cases against the endpoint, and reports violations."""

import asyncio
import gc
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from genmcp import Endpoint, Limits, Mux, Security, Suite
from tests.fuzz.case import Case
from tests.fuzz.generation import BODY_LIMIT, ORIGINS, Known
from tests.fuzz.tools import Deliberate, suite
from tests.support.asgi import LEGACIES, MODERN, Client

SECRET = "z" * 32

STATUSES = {
    200: "an answer, or an event stream",
    202: "notifications and responses are accepted",
    204: "DELETE of a session; a CORS preflight",
    400: "no message, wrong params or headers, an unknown revision",
    403: "Origin not allowed",
    404: "the session is gone; the method is not found (2026-07-28)",
    405: "the method, or the stream, is not offered",
    406: "the client takes neither of the two media types",
    408: "Limits.body_timeout",
    413: "Limits.max_body_bytes",
    415: "the body is no JSON",
    421: "Host not allowed",
    431: "head too large",
    499: "the client has left; nobody reads it",
    500: "a hook failed; only with a reference, which is in the log",
}
# -32002: resource not found, before 2026-07-28.
CODES = {-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022}
TEXT = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
REFERENCE = re.compile(r"\(reference ([0-9a-f]{12})\)")
LOGGED = re.compile(r"\[([0-9a-f]{12})\]")


class Wrong(Exception):
    """A violation that no request may cause."""


class Answer:
    """The outcome of a case, and the client's side of its ASGI connection."""

    def __init__(self, case: Case) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False
        self.listens = False
        self.faults: list[str] = []
        self._case = case
        self._parts = list(case.parts)
        self._sent = 0
        self._over = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, and then the disconnect of the client."""
        case = self._case
        if self._parts:
            part = self._parts.pop(0)
            more = bool(self._parts) or case.ending != "whole"
            return {"type": "http.request", "body": part, "more_body": more}
        if case.stays:
            await (self._over if case.ending == "whole" else asyncio.Event()).wait()
        for _ in range(case.leaves or 0):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Accept a message, as an ASGI server does."""
        if self._case.fails is not None and self._sent >= self._case.fails:
            raise OSError("the client has left")
        self._sent += 1
        if message["type"] == "http.response.start":
            self._expect(not self.status, "two beginnings")
            self.status = message["status"]
            self._take_headers(message["headers"])
        elif message["type"] == "http.response.body":
            self._expect(bool(self.status), "a body before the beginning")
            self._expect(not self.complete, "something behind the end")
            self.body += message.get("body", b"")
            self.complete = not message.get("more_body", False)
            # A subscription does not end by itself, so the client disconnects.
            self.listens = self.listens or b"subscriptions/acknowledged" in self.body
            if self.complete or self.listens:
                self._over.set()
        else:
            self._expect(False, f"a message of type {message['type']}")

    def _take_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            self._expect(name not in self.headers, f"header {name!r} twice")
            self._expect(name == name.lower(), f"header {name!r}, not in lower case")
            self._expect(bool(TEXT.fullmatch(value)), f"header {name!r} with control characters")
            self.headers[name] = value

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)

    @property
    def is_stream(self) -> bool:
        """Whether the response is an event stream."""
        return self.headers.get(b"content-type") == b"text/event-stream"


class Log(logging.Handler):
    """Collects logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def take(self) -> list[logging.LogRecord]:
        """Return the records so far, and clear them."""
        records, self.records = self.records, []
        return records


@contextmanager
def listening() -> Iterator[Log]:
    """Collect records of level ERROR, and hide them from other handlers."""
    log, root, ours = Log(), logging.getLogger(), logging.getLogger("genmcp")
    before, root.handlers, level = root.handlers, [log], ours.level
    ours.setLevel(logging.ERROR)
    try:
        yield log
    finally:
        root.handlers = before
        ours.setLevel(level)


class World:
    """An endpoint with sessions, and with streams that can be resumed."""

    def __init__(self, log: Log, served: Suite = suite) -> None:
        limits = Limits(max_body_bytes=BODY_LIMIT, body_timeout=0.02)
        self.mux = Mux(served, secret=SECRET, limits=limits)
        self.endpoint = Endpoint(
            self.mux,
            security=Security(allowed_origins=[ORIGINS[0].decode()]),
            heartbeat=0.002,
        )
        self.known = Known({}, {})
        self.timeout = 5.0  # seconds for a case, which takes a millisecond
        self._log = log

    @classmethod
    async def make(cls, log: Log, served: Suite = suite) -> "World":
        """Return a world with sessions and ids of each kind, around the server *served*."""
        world = cls(log, served)
        foreign = Endpoint(Mux(suite, secret="f" * 32))
        elsewhere = Endpoint(Mux(suite, secret=SECRET, audience="elsewhere"))
        mux = Mux(suite, secret=SECRET, limits=Limits(session_ttl=1e-9))
        for name, app in ("foreign", foreign), ("elsewhere", elsewhere), ("old", Endpoint(mux)):
            client = await Client.begin(app, LEGACIES[0])
            world.known.worthless[name] = client.session or ""  # type: ignore[index]
        await world.begin()
        return world

    async def begin(self) -> None:
        """Initialize a session per revision, each with a stream."""
        for version in LEGACIES:
            client = await Client.begin(self.endpoint, version)
            self.known.sessions[version] = client.session or ""  # type: ignore[index]
            response = await client.send(client.call("speaks", {}, progressToken=1))
            self.known.events[version] = response.ids

    @property
    def names(self) -> Mapping[bytes, bytes]:
        """Placeholders for ids that differ between runs."""
        known = {**self.known.sessions, **self.known.worthless}
        named = {id.encode(): f"<session {name}>".encode() for name, id in known.items()}
        for version, ids in self.known.events.items():
            named |= {id.encode(): f"<{version} event {n}>".encode() for n, id in enumerate(ids)}
        return named

    async def run(self, case: Case) -> Answer:
        """Run *case*, and check the response and the server.

        Raises:
            Wrong: a check fails.
        """
        answer = Answer(case)
        began = time.thread_time()
        try:
            async with asyncio.timeout(self.timeout):
                await self.endpoint(_scope(case), answer.receive, answer.send)
        except TimeoutError:
            raise Wrong("it hangs") from None
        except Exception as error:
            raise Wrong(f"{type(error).__name__} escaped: {error}") from error
        if (took := time.thread_time() - began) > 1:
            raise Wrong(f"it took {took:.1f} s of CPU time")
        for _ in range(3):  # state that listeners share ends after the last of them
            await asyncio.sleep(0)
        self._check(case, answer)
        if case.method == "DELETE" and answer.status in (0, 204):
            await self.begin()
        return answer

    def _check(self, case: Case, answer: Answer) -> None:
        faults = list(answer.faults)
        if left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            faults.append(f"left running: {left}")
        if case.stays and not answer.complete and not answer.listens:
            faults.append("not answered to the end")
        if case.stays and answer.status == 499:
            faults.append("a connected client was treated as a disconnected one")
        if answer.status and answer.status not in STATUSES:
            faults.append(f"status {answer.status}")
        if answer.complete and not faults:
            try:
                faults += self._faults_of_body(case, answer)
            except (AssertionError, ValueError, LookupError, TypeError) as error:
                faults.append(f"{type(error).__name__}: {error}")
        faults += _faults_of_log(case, answer, self._log.take())
        if faults:
            raise Wrong("; ".join(faults))

    def _faults_of_body(self, case: Case, answer: Answer) -> Iterator[str]:
        if answer.is_stream:
            messages = [each for each in map(_event, _blocks(answer.body)) if each is not None]
        else:
            if int(answer.headers[b"content-length"]) != len(answer.body):
                yield "another content-length"
            if not answer.body:
                return
            if answer.headers.get(b"content-type") != b"application/json":
                yield "no content-type"
            body = json.loads(answer.body, parse_constant=_no_constant)
            messages = body if isinstance(body, list) else [body]
        judge = Judge(_revision_of(case, self.known) or "", case)
        for message in messages:
            yield from judge.faults(message)
        if answer.status == 500 and "reference" not in str(messages):
            yield "500 without a reference"


class Judge:
    """Checks the messages in the response to *case*, by the schema of *version* if there is one."""

    def __init__(self, version: str, case: Case) -> None:
        self._client = Client(None, version)
        self._requests: dict[Any, list[Any]] = {}
        # A resumed stream repeats responses to earlier requests.
        requests = [(1, "tools/call")] if case.method == "GET" else _requests_in(case.body)
        for id, method in requests:
            self._requests.setdefault(id, []).append(method)

    def faults(self, message: Any) -> Iterator[str]:
        """Yield the faults of *message*."""
        if "error" in message and message["error"]["code"] not in CODES:
            yield f"code {message['error']['code']}"
        if "id" in message and message["id"] not in self._requests:
            yield f"id {message['id']!r}, not {[*self._requests]}"
        elif "result" in message:
            yield from self._faults_of_result(message)
        else:
            self._client.check(message)

    def _faults_of_result(self, message: Any) -> Iterator[str]:
        """Yield a fault if *message* is not valid for any of the requests with its id."""
        client = self._client
        begun = client.version == "" and message["result"].get("protocolVersion")
        version = begun or client.version
        if not version:
            yield "a result in no revision"
        found = []
        for method in self._requests[message["id"]]:
            judge = Client(None, version)
            if method == "initialize":
                judge.version = message["result"].get("protocolVersion", "")
            judge.asked = {message["id"]: method}
            try:
                judge.check(message)
            except (AssertionError, LookupError, ValueError) as fault:
                found.append(f"{type(fault).__name__} {fault}")
            else:
                return
        yield from found


def _scope(case: Case) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": case.method,
        "scheme": "http",
        "path": case.path,
        "query_string": b"",
        "root_path": "",
        "client": None if case.peer is None else (case.peer, 1),
        "server": ("test", 80),
        "headers": list(case.headers),
    }


def _faults_of_log(
    case: Case, answer: Answer, records: Sequence[logging.LogRecord]
) -> Iterator[str]:
    """Yield faults for records not caused by `crash`, and references without a record."""
    logged = set()
    for record in records:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, Deliberate):
            yield f"logged: {record.getMessage()} ({error!r})"
        found = LOGGED.search(record.getMessage())
        logged.add(found[1] if found else "")
    if answer.complete:
        references = set(REFERENCE.findall(answer.body.decode("utf-8", "replace")))
        # After a released connection, the rest is sent on one that resumes.
        gave_up = answer.status == 499 or (answer.is_stream and b"retry: " in answer.body)
        if case.method != "GET" and (references - logged or (logged - references and not gave_up)):
            yield f"references {references}, logged {logged}"


def _blocks(body: bytes) -> Sequence[str]:
    *blocks, rest = body.decode().split("\n\n")
    if rest:
        raise ValueError(f"an event that does not end: {rest!r}")
    return blocks


def _event(block: str) -> Any:
    """Return the message of an event, or None."""
    lines = [line.split(": ", 1) for line in block.split("\n") if not line.startswith(":")]
    fields = dict(lines)
    if len(fields) != len(lines) or not {"id", "event", "data", "retry"} >= fields.keys():
        raise ValueError(f"not an event: {block!r}")
    data = fields.get("data")
    return json.loads(data, parse_constant=_no_constant) if data else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _requests_in(body: bytes) -> Iterator[tuple[Any, Any]]:
    """Yield id and method of each part of *body* that resembles a request, even if malformed.

    For duplicate members, either value may count.
    """
    try:
        found = json.loads(
            body.decode("utf-8", "replace"), object_pairs_hook=_Pairs, parse_int=_integer
        )
    except (ValueError, RecursionError):
        return
    for member in found if isinstance(found, list) else [found]:
        if isinstance(member, _Pairs):
            methods = [value for name, value in member.pairs if name == "method"]
            for name, value in member.pairs:
                if name == "id" and isinstance(value, int | float | str):
                    yield value, str(methods[-1]) if methods else ""


class _Pairs:
    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) < 4000 else digits


def _revision_of(case: Case, known: Known) -> str | None:
    """Return the negotiated revision, or None."""
    table = {name: value.strip().decode("latin-1") for name, value in case.headers}
    if table.get(b"mcp-protocol-version") == MODERN:
        return MODERN
    session = table.get(b"mcp-session-id")
    return next((version for version, id in known.sessions.items() if id == session), None)


def collect(log: Log) -> None:
    """Collect garbage, so that asyncio reports unawaited coroutines and lost exceptions.

    Raises:
        Wrong: it reported one.
    """
    gc.collect()
    if records := log.take():
        raise Wrong(f"logged: {[record.getMessage() for record in records]}")
