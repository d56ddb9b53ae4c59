"""The client's machine against the server's, through bytes, in an order that Hypothesis chooses.

Both halves of the core get only the events of a transport. The test plays the two
transports and the server's hooks: it delivers messages early or late, ends calls, asks questions,
cancels, advances the time and closes.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import DataObject, booleans, data, sampled_from

from genmcp.client.transports.http_messages import message_headers
from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, DispatchOptions
from genmcp.core.client.events import (
    Answered,
    CloseResponse,
    ConnectionFailed,
    Outcome,
    ProgressReceived,
    ReceivedRequestCancelled,
    RequestFailed,
    RequestReceived,
    RequestRejected,
    RequestTimedOut,
    SendMessage,
)
from genmcp.core.request import Request
from genmcp.core.server import (
    CancelRequest,
    DeliverResponse,
    OpenSession,
    Reject,
    ServerConnection,
    StartRequest,
)
from genmcp.core.server_dispatch import (
    SESSION_HEADER,
    Era,
    discover_result,
    era_of,
    plain_request,
)
from genmcp.core.session import Session, new_session
from genmcp.errors import InternalError, McpError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation, ServerCapabilities
from genmcp.protocol.client_features import ListRootsRequestParams
from genmcp.protocol.params import (
    CancelledNotificationParams,
    ProgressNotificationParams,
    RequestId,
)
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.tools import CallToolResult, ListToolsResult
from genmcp.protocol.value import Result, Value
from genmcp.wire import jsonrpc
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import Message
from tests.core.test_server import Offer

pytestmark = pytest.mark.slow

CALL: dict[str, Any] = {"name": "add", "arguments": {}}
UNKNOWN: dict[str, Any] = {"name": "no", "arguments": {}}


class Server:
    """The server's name and version."""

    info = Implementation("server", "1")
    capabilities = ServerCapabilities(tools={})  # type: ignore[arg-type]
    instructions = None
    methods = ()
    changes = None


def result_of(request: Request) -> Value:
    match request.method:
        case "server/discover":
            return discover_result(ServerCapabilities(), None)
        case "tools/list":
            return ListToolsResult(tools=[], ttl_ms=0, cache_scope="private")
        case "tools/call":
            return CallToolResult(content=[])
        case _:
            return Result()


class Pair(RuleBasedStateMachine):
    """A client and a server, with the messages in transit between them."""

    @initialize(revision=sampled_from([None, *REVISIONS]), http=booleans(), opened=booleans())
    def connect(self, revision: str | None, http: bool, opened: bool) -> None:
        """Begin to connect, over a pipe or by POSTs that overtake each other."""
        self.http = http
        self.now = 0.0
        self.client = ClientDispatch(
            Implementation("client", "1"),
            ClientCapabilities(roots={}),
            per_message=http,
            options=DispatchOptions(revision=revision),
        )
        self.encoder = Encoder(Server.info)
        self.pipe = ServerConnection(Offer())
        self.session: Session | None = None
        self.welcomed = False
        self.up: list[SendMessage] = []
        self.down: list[tuple[bytes, RequestId | None, int]] = []
        self.running: dict[RequestId, Request] = {}
        self.asked: set[RequestId] = set()
        self.withdrawn: set[RequestId] = set()
        self.questions: list[RequestId] = []
        self.ends: dict[int, str | None] = {}
        self.cancelled: set[RequestId] = set()
        self.hung: set[RequestId] = set()
        self.count = 0
        self.take(self.client.begin(self.now))
        while opened and self.client.state is not ConnectionState.READY:
            self.exchange()

    # The client's side.

    def take(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            match each:
                case SendMessage():
                    self.up.append(each)
                case CloseResponse(id=id):
                    self.hang_up(id)
                case (
                    Answered(id=id)
                    | RequestRejected(id=id)
                    | RequestFailed(id=id)
                    | RequestTimedOut(id=id)
                ):
                    assert self.ends[id] is None, f"request {id} ended twice: {each}"
                    self.ends[id] = type(each).__name__
                case ProgressReceived(id=id):
                    assert self.ends[id] is None
                case RequestReceived(id=id):
                    self.questions.append(id)
                case ReceivedRequestCancelled(id=id):
                    self.questions.remove(id)
                case ConnectionFailed():
                    assert ConnectionState.FAILED is self.client.state

    def hang_up(self, id: int) -> None:
        """Close the connection of a POST: nothing more comes on it."""
        self.hung.add(id)
        self.down = [each for each in self.down if each[1] != id]
        request = self.running.get(id)
        if request is not None and request.revision.modern:
            del self.running[id]  # 2026-07-28: a disconnect cancels

    @precondition(lambda self: self.client.state is ConnectionState.READY)
    @rule(params=sampled_from([CALL, CALL, UNKNOWN, None]), progress=booleans(), quick=booleans())
    def request(self, params: dict[str, Any] | None, progress: bool, quick: bool) -> None:
        """Send a request; a quick one arrives before anything else happens."""
        method = "tools/list" if params is None else "tools/call"
        id, outcomes = self.client.request(method, params, now=self.now, progress=progress)
        self.ends[id] = None
        self.take(outcomes)
        while quick and self.up:
            self.next_to_server(0)

    @precondition(
        lambda self: self.client.state is ConnectionState.INITIALIZING or self.speaks_ping()
    )
    @rule()
    def ping(self) -> None:
        """Pings may precede the response to `initialize`: 2025-11-25, lifecycle."""
        id, outcomes = self.client.request("ping", now=self.now)
        self.ends[id] = None
        self.take(outcomes)

    def speaks_ping(self) -> bool:
        return self.client.state is ConnectionState.READY and self.client.supports("ping")

    @precondition(lambda self: self.open())
    @rule(choice=data(), sure=booleans())
    def cancel(self, choice: DataObject, sure: bool) -> None:
        if not sure:
            return
        id = choice.draw(sampled_from(self.open()))
        self.ends[id] = "cancelled"
        self.take(self.client.cancel(id, "no longer needed"))

    def open(self) -> list[int]:
        return [id for id, end in self.ends.items() if end is None]

    @precondition(lambda self: self.questions)
    @rule(choice=data(), refuses=booleans())
    def reply(self, choice: DataObject, refuses: bool) -> None:
        id = choice.draw(sampled_from(self.questions))
        self.questions.remove(id)
        error = InternalError("no")
        client = self.client
        self.take(client.refuse(id, error) if refuses else client.answer(id, {"roots": []}))

    @rule(seconds=sampled_from([1.0, 1.0, 1.0, 6.0, 31.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass, so that requests time out, those that open the connection too."""
        self.now += seconds
        self.take(self.client.check_timeouts(self.now))

    @precondition(lambda self: self.down)
    @rule(choice=data())
    def deliver_to_client(self, choice: DataObject) -> None:
        """The next message of the pipe, or of the response to any POST."""
        streams = list(dict.fromkeys(about for _, about, _ in self.down))
        about = choice.draw(sampled_from(streams)) if self.http else None
        self.next_to_client(about)

    def next_to_client(self, about: RequestId | None) -> None:
        index = next(i for i, each in enumerate(self.down) if not self.http or each[1] == about)
        message, about, status = self.down.pop(index)
        if b'"protocolVersion"' in message:
            self.welcomed = True
        self.take(
            self.client.received(
                message, self.now, about=about if self.http else None, status=status
            )
        )

    # The server's side.

    @precondition(lambda self: self.up)
    @rule(choice=data())
    def deliver_to_server(self, choice: DataObject) -> None:
        """The next message of the pipe, or any POST."""
        self.next_to_server(choice.draw(sampled_from(range(len(self.up)))) if self.http else 0)

    def next_to_server(self, index: int) -> None:
        send = self.up.pop(index)
        try:
            if self.http:
                self.post(send)
            else:
                message = jsonrpc.decode(send.message)
                assert isinstance(message, Message)
                self.perform(self.pipe, self.pipe.receive(message), send)
        except McpError as error:
            self.respond(send.id, jsonrpc.encode_error(send.id, error), error.status)
        assert send.withdraws not in self.running, "a cancellation had no effect"

    def post(self, send: SendMessage) -> None:
        """As the endpoint does."""
        headers = {name.lower(): value for name, value in message_headers(send)}
        if self.welcomed:
            headers[SESSION_HEADER] = b"s"
        request = plain_request(headers, send.message, Offer())
        if request is not None:
            self.perform(self.pipe, StartRequest(request), send)
            return
        message = jsonrpc.decode(send.message)
        assert isinstance(message, Message)
        era = era_of(headers, message)
        session = self.session if era is Era.SESSION else None
        connection = ServerConnection(Offer(), session, headers=headers)
        self.perform(connection, connection.receive(message, era), send)

    def perform(self, connection: ServerConnection, action: Any, send: SendMessage) -> None:
        match action:
            case StartRequest(request=request):
                assert request.id not in self.running
                if request.id not in self.hung or not request.revision.modern:
                    self.running[request.id] = request
            case OpenSession(id=id, params=params):
                session = new_session(params, key="s", now=0.0)
                connection.session = self.session = session
                result = session.initialize_result(Server())
                self.respond(id, self.encoder.response(session.revision, id, result))
            case CancelRequest(id=id):
                # Over HTTP it may overtake the request, which then runs without a caller.
                if self.running.pop(id, None) is not None:
                    self.cancelled.add(id)
            case DeliverResponse(response=message):
                assert message.id in self.asked | self.withdrawn
                self.asked.discard(message.id)
            case Reject(error=error):
                # The server rejects only requests for features that it does not offer,
                # and a ping by POST, which has no session yet.
                early = self.http and send.method == "ping"
                assert early or (send.method == "tools/call" and "Unknown tool" in str(error))
                self.respond(send.id, jsonrpc.encode_error(send.id, error))

    def respond(self, about: RequestId | None, message: bytes, status: int = 200) -> None:
        if about not in self.hung:
            self.down.append((message, about, status))

    @precondition(lambda self: self.running)
    @rule(choice=data(), fails=booleans())
    def finish(self, choice: DataObject, fails: bool) -> None:
        self.end(choice.draw(sampled_from(list(self.running))), fails)

    def end(self, id: RequestId, fails: bool = False) -> None:
        """Let a hook return or fail; it responds once, and never after a cancellation."""
        request = self.running.pop(id)
        assert id not in self.cancelled
        if fails and request.method == "tools/call":
            body = self.encoder.error(request.revision, id, InternalError("failed"))
        else:
            body = self.encoder.response(request.revision, id, result_of(request))
        self.respond(id, body)

    @precondition(lambda self: self.calls())
    @rule(choice=data(), method=sampled_from(["roots/list", "ping", "elicitation/create"]))
    def ask(self, choice: DataObject, method: str) -> None:
        """Send a request to the client within a call, also for undeclared capabilities."""
        request = choice.draw(sampled_from(self.calls()))
        self.count += 1
        id = f"asked {self.count}"
        self.asked.add(id)
        params = ListRootsRequestParams()
        self.respond(request.id, self.encoder.request(request.revision, id, method, params))

    def calls(self) -> list[Request]:
        running = self.running.values()
        return [each for each in running if each.session and each.method == "tools/call"]

    @precondition(lambda self: self.calls() and self.asked)
    @rule(choice=data())
    def withdraw(self, choice: DataObject) -> None:
        """Cancel a question, while its response may be in transit."""
        id = choice.draw(sampled_from(sorted(map(str, self.asked))))
        request = choice.draw(sampled_from(self.calls()))
        self.asked.discard(id)
        self.withdrawn.add(id)
        params = CancelledNotificationParams(request_id=id)
        method = "notifications/cancelled"
        self.respond(request.id, self.encoder.notification(request.revision, method, params))

    @precondition(lambda self: self.running)
    @rule(choice=data())
    def report(self, choice: DataObject) -> None:
        """Report progress of a request that has a progress token."""
        request = choice.draw(sampled_from(list(self.running.values())))
        token = request.progress_token
        if token is not None:
            params = ProgressNotificationParams(progress_token=token, progress=1.0)
            method = "notifications/progress"
            self.respond(request.id, self.encoder.notification(request.revision, method, params))

    # The end.

    @rule(sure=sampled_from([False] * 15 + [True]))
    def close(self, sure: bool) -> None:
        """End the connection; messages in transit arrive or are lost."""
        if not sure:
            return
        self.take(self.client.close())
        self.take(self.client.closed())
        assert not self.open()

    def exchange(self) -> None:
        """Let everything arrive, end and be answered."""
        while self.up:
            self.next_to_server(0)
        while self.running:
            self.end(next(iter(self.running)))
        while self.down:
            self.next_to_client(self.down[0][1])
        while self.questions:
            self.take(self.client.answer(self.questions.pop(), {"roots": []}))

    def teardown(self) -> None:
        """Let everything arrive and end: each request has then ended, exactly once."""
        if not hasattr(self, "client"):
            return
        while self.up or self.down or self.running or self.questions:
            self.exchange()
        assert not self.open(), f"{self.client}: {self.ends}"
        if self.client.state is ConnectionState.READY and not self.http:
            assert not self.asked, "a question got no response"
        assert self.client.state is not ConnectionState.PROBING
        assert self.client.state is not ConnectionState.INITIALIZING


Pair.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestPair = Pair.TestCase
