"""Questions to clients of revisions before 2026-07-28: requests from the server.

2025-11-25, transports, "Sending Messages to the Server": they are sent on the stream of the call,
and each response comes in a POST of its own.
"""

from typing import Any, Literal

import msgspec
import pytest

from genmcp import (
    Accepted,
    CapabilityMissing,
    Channel,
    Done,
    Failed,
    Limits,
    Outcome,
    WaitTimedOut,
    WorkRaised,
    elicit,
    elicit_url,
    roots,
    sample,
)
from tests.support.asgi import serving
from tests.support.asking import (
    ROOTS,
    SAMPLED,
    AnsweringClient,
    Waits,
    failure_of,
    muxed,
    text_of,
)

ELICITING = ["2025-11-25", "2025-06-18"]
LEGACY = [*ELICITING, "2025-03-26"]


class Person(msgspec.Struct):
    name: str


def ask_roots(arguments: Any) -> Any:
    """Return a question that clients of every revision can answer."""
    return roots()


def several(arguments: Any) -> Any:
    return {"where": roots(), "what": sample("Capital?")}


@pytest.fixture(params=LEGACY)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_question_comes_on_the_stream_of_its_call(version: str) -> None:
    """The answer is accepted with 202. The result follows on the stream, which then ends."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait", id="call")) as call:
        question = await call.message()
        accepted = await client.respond(question, ROOTS)
        await call.over()

    assert call.is_stream
    assert question["method"] == "roots/list"
    assert (accepted.status, accepted.body) == (202, b"")
    assert call.messages[-1]["id"] == "call"
    assert "file:///home" in text_of(call)


@pytest.mark.parametrize("version", ELICITING)
async def test_question_for_a_form_is_translated_to_the_revision(version: str) -> None:
    """2025-06-18 has no `mode`. The answer is converted to the requested type."""
    waits = Waits(lambda arguments: elicit("Who are you?", Person))
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        await client.respond(question, {"action": "accept", "content": {"name": "Ada"}})
        await call.over()

    assert question["params"]["message"] == "Who are you?"
    assert list(question["params"]["requestedSchema"]["properties"]) == ["name"]
    assert (version == "2025-11-25") is ("mode" in question["params"])
    assert waits.outcomes == [Done(Accepted(Person("Ada")))]


async def test_questions_asked_at_once_are_answered_in_any_order(version: str) -> None:
    """Each question has its own id, to which the answer refers."""
    waits = Waits(several)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as call:
        questions = [await call.message(), await call.message()]
        await client.respond(questions[1], SAMPLED)
        assert not waits.outcomes
        await client.respond(questions[0], ROOTS)
        await call.over()

    assert [each["method"] for each in questions] == ["roots/list", "sampling/createMessage"]
    (outcome,) = waits.outcomes
    assert isinstance(outcome, Done)
    assert list(outcome.value) == ["where", "what"]


async def test_error_of_the_client_is_a_failure(version: str) -> None:
    """Its text is shown, since it came from the client."""
    waits = Waits(several)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        await client.refuse(question, "no folders here")
        await call.over()

    assert text_of(call) == "WorkRaised: no folders here"
    (outcome,) = waits.outcomes
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WorkRaised)


async def test_question_without_an_answer_times_out(version: str) -> None:
    """After `Limits.input_timeout` the wait fails, and the client gets `notifications/cancelled`.

    2025-11-25, lifecycle, "Timeouts": SHOULD.
    """
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(muxed(waits, limits=Limits(input_timeout=0.01)), version)
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        cancelled = await call.message()
        await call.over()
    late = await client.respond(question, ROOTS)

    assert waits.outcomes == [Failed(WaitTimedOut())]
    assert cancelled["method"] == "notifications/cancelled"
    assert question["id"] == cancelled["params"]["requestId"]
    assert (late.status, late.json["error"]["code"]) == (400, -32600)


async def test_invalid_answer_is_a_failure_with_the_reason(version: str) -> None:
    """The error has the place in the answer and the expected type."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        answered = await client.respond(question, {"roots": [{"uri": "https://a.example"}]})
        await call.over()

    assert answered.status == 202
    (outcome,) = waits.outcomes
    assert isinstance(outcome, Failed)
    assert "/roots/0/uri" in str(outcome.error)
    assert "file://" in text_of(call)


@pytest.mark.parametrize("result", [None, 3, "text", [], {}])
async def test_answer_of_another_shape_is_a_failure(result: Any) -> None:
    """Any JSON value ends the wait with a failure."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), LEGACY[0])
    async with client.open(client.call("wait")) as call:
        await client.respond(await call.message(), result)
        await call.over()

    assert text_of(call).startswith("WorkRaised: ")


async def test_answer_without_result_or_error_is_rejected() -> None:
    """A response needs a result or an error; without either, the question stays open."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), LEGACY[0])
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        empty = await client.send({"jsonrpc": "2.0", "id": question["id"]})
        assert not call.complete
        await client.respond(question, ROOTS)
        await call.over()

    assert (empty.status, empty.json["error"]["code"]) == (400, -32600)
    assert "file:///home" in text_of(call)


async def test_answer_of_another_session_or_principal_is_rejected(version: str) -> None:
    """An answer of another session or principal is rejected, and the question stays open."""
    endpoint = muxed(waits := Waits(ask_roots))
    client = await AnsweringClient.begin(endpoint, version, who="ada")
    others = [
        await AnsweringClient.begin(endpoint, version, who=who) for who in ("ada", "bob", None)
    ]
    thief = AnsweringClient(endpoint, version, who="bob")
    thief.session = client.session
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        refused = [await other.respond(question, ROOTS) for other in others]
        stolen = await thief.respond(question, ROOTS)
        assert not waits.outcomes
        await client.respond(question, ROOTS)
        await call.over()

    assert [each.status for each in refused] == [400] * 3
    assert stolen.status == 404
    assert len(waits.outcomes) == 1


@pytest.mark.parametrize("id", ["forged", 1, None, "g1" + "A" * 200])
async def test_answer_to_an_unknown_question_is_rejected(id: Any) -> None:
    """An answer to an unknown question has no effect."""
    client = await AnsweringClient.begin(serving(Waits(ask_roots)), LEGACY[0])

    answer = await client.send({"jsonrpc": "2.0", "id": id, "result": {}})

    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)


async def test_answer_that_comes_again_is_dropped(version: str) -> None:
    """A repeated answer does not continue the call a second time."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as call:
        question = await call.message()
        first, second = [await client.respond(question, ROOTS) for _ in range(2)]
        await call.over()
    third = await client.respond(question, ROOTS)

    assert [first.status, second.status, third.status] == [202] * 3
    assert len(waits.outcomes) == 1


class Cancellable(Waits):
    """Records that it was cancelled."""

    async def on_cancel(self, channel: Channel) -> None:
        self.outcomes.append(Done("cancelled"))


@pytest.mark.parametrize("ends", ["notification", "delete"])
async def test_question_of_a_cancelled_call_is_closed(ends: str, version: str) -> None:
    """The stream ends without a response, `on_cancel` runs, and a late answer has no effect."""
    waits = Cancellable(several)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait", id=9)) as call:
        questions = [await call.message(), await call.message()]
        if ends == "delete":
            await client.send(method="DELETE")
        else:
            await client.send(client.notification("notifications/cancelled", requestId=9))
        await call.over()
    late = await client.respond(questions[0], ROOTS)

    assert call.complete
    assert questions == [each for each in call.messages if "id" in each]
    assert waits.outcomes == [Done("cancelled")]
    assert (404 if ends == "delete" else 202) == late.status


async def test_question_is_redelivered_on_a_resumed_stream() -> None:
    """A disconnect is no cancellation: 2025-11-25, transports, "Resumability and Redelivery".

    The question is redelivered and answered; the result follows.
    """
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), "2025-11-25")
    async with client.open(client.call("wait")) as call:
        primed = await call.event()
        question = await call.message()
        call.disconnect()
        async with client.listen(after=primed.id) as resumed:
            assert question == await resumed.message()
            await client.respond(question, ROOTS)
            await resumed.over()

    assert "file:///home" in text_of(resumed)


async def test_client_without_event_streams_cannot_be_asked(version: str) -> None:
    """The question needs a stream. The tool gets a failure, and its result is one JSON body."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), version)

    answer = await client.send(client.call("wait"), headers={"accept": "application/json"})

    assert not answer.is_stream
    assert waits.outcomes == [Failed(CapabilityMissing({"streams": {}}))]
    assert text_of(answer).startswith("CapabilityMissing: ")


class Escapes(Waits):
    """Does not handle the failure."""

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        assert isinstance(outcome, Failed)
        raise outcome.error


TOOL = {"name": "add", "inputSchema": {"type": "object"}}


class Choices(msgspec.Struct):
    colours: list[Literal["red", "blue"]]


UNABLE: list[tuple[str, Any, dict[str, Any], dict[str, Any] | None]] = [
    ("2025-11-25", elicit("Sure?"), {}, {"elicitation": {}}),
    ("2025-11-25", sample("Capital?"), {"roots": {}}, {"sampling": {}}),
    ("2025-11-25", several({}), {"roots": {}}, {"sampling": {}}),
    ("2025-11-25", elicit_url("Go", "https://a.example/"), {"elicitation": {}}, None),
    ("2025-06-18", elicit_url("Go", "https://a.example/"), {"elicitation": {"url": {}}}, None),
    ("2025-06-18", elicit("Which?", Choices), {"elicitation": {}}, {"elicitation": {}}),
    ("2025-06-18", sample("?", tools=[TOOL]), {"sampling": {"tools": {}}}, None),
    ("2025-03-26", elicit("Sure?"), {"elicitation": {}}, {"elicitation": {}}),
]


@pytest.mark.parametrize(("version", "question", "capabilities", "lacking"), UNABLE)
async def test_question_without_the_capability_is_not_sent(
    version: str, question: Any, capabilities: Any, lacking: Any
) -> None:
    """The client has not declared the capability, or its revision does not have it."""
    waits = Waits(lambda arguments: question)
    client = await AnsweringClient.begin(serving(waits), version, capabilities=capabilities)

    answer = await client.send(client.call("wait"))

    (outcome,) = waits.outcomes
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CapabilityMissing)
    assert outcome.error.capabilities == lacking or lacking is None
    assert len(answer.messages) == 1


@pytest.mark.parametrize(("version", "question", "capabilities", "lacking"), UNABLE)
async def test_missing_capability_is_an_error_result(
    version: str, question: Any, capabilities: Any, lacking: Any
) -> None:
    """Before 2026-07-28 there is no error code for a missing capability."""
    client = await AnsweringClient.begin(
        serving(Escapes(lambda arguments: question)), version, capabilities=capabilities
    )

    answer = await client.send(client.call("wait"))

    assert (answer.status, "a capability this needs: " in failure_of(answer)) == (200, True)
    assert ("elicitation" in failure_of(answer)) or ("sampling" in failure_of(answer))


async def test_calls_of_one_session_have_their_own_questions(version: str) -> None:
    """Two calls with the same question each get their own answer."""
    waits = Waits(ask_roots)
    client = await AnsweringClient.begin(serving(waits), version)
    async with client.open(client.call("wait")) as one, client.open(client.call("wait")) as two:
        first, second = await one.message(), await two.message()
        await client.respond(second, ROOTS)
        await two.over()
        assert not one.complete
        await client.respond(first, {"roots": []})
        await one.over()

    assert "file:///home" in text_of(two)
    assert text_of(one) == "[]"
