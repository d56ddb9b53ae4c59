"""Questions to clients of 2026-07-28, which answer by sending the request again (MRTR)."""

import asyncio
import gc
import tracemalloc
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest

from genmcp import (
    Accepted,
    Cancelled,
    CapabilityMissing,
    Channel,
    Continue,
    Declined,
    Done,
    Failed,
    InvalidParams,
    Outcome,
    Tool,
    ToolRequest,
    elicit,
    elicit_url,
    roots,
    sample,
)
from tests.support.asgi import Connection, serving
from tests.support.asking import (
    ROOTS,
    SAMPLED,
    YES,
    AnsweringClient,
    Waits,
    failure_of,
    muxed,
    text_of,
)

pytestmark = pytest.mark.slow


class Person(msgspec.Struct):
    name: str
    size: Literal["small", "large"] = "small"


ADA = {"action": "accept", "content": {"name": "Ada"}}


def questions_in(answer: Connection) -> Mapping[str, Any]:
    """Return the questions of a result, by name."""
    result = answer.json["result"]
    assert (answer.status, result["resultType"]) == (200, "input_required")
    requests: Mapping[str, Any] = result["inputRequests"]
    return requests


async def test_question_is_answered_by_the_call_sent_again() -> None:
    """The question has the form of the specification; the answer has the requested type."""
    waits = Waits(lambda arguments: elicit("Who are you?", Person))
    client = AnsweringClient(serving(waits))

    pending = await client.send(client.call("wait", {"x": 1}))
    answered = await client.send(client.retry(pending, waited=ADA))

    ((name, question),) = questions_in(pending).items()
    assert name == "waited"
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "Who are you?"
    assert list(question["params"]["requestedSchema"]["properties"]) == ["name", "size"]
    assert answered.json["result"]["resultType"] == "complete"
    assert waits.outcomes == [Done(Accepted(Person("Ada")))]


@pytest.mark.parametrize(
    ("question", "answer", "value"),
    [
        (elicit("Sure?"), YES, "Accepted(content={})"),
        (elicit("Sure?"), {"action": "decline"}, str(Declined())),
        (elicit("Sure?"), {"action": "cancel"}, str(Cancelled())),
        (elicit_url("Go there", "https://a.example/"), {"action": "accept"}, str(Accepted())),
        (roots(), ROOTS, "Root(uri='file:///home'"),
        (sample("Capital?"), SAMPLED, "Paris"),
    ],
)
async def test_question_of_any_kind_returns_its_answer(
    question: Any, answer: Any, value: str
) -> None:
    """ "decline" and "cancel" are answers, too."""
    client = AnsweringClient(serving(Waits(lambda arguments: question)))

    pending = await client.send(client.call("wait"))
    answered = await client.send(client.retry(pending, waited=answer))

    assert value in text_of(answered)


@pytest.mark.parametrize(
    "answer",
    [
        3,
        None,
        [],
        {},
        {"action": "perhaps"},
        {"action": "accept"},
        {"action": "accept", "content": {"name": 3}},
        {"action": "accept", "content": {"name": "Ada", "size": "medium"}},
    ],
)
async def test_question_with_an_invalid_answer_is_asked_again(answer: Any) -> None:
    """MRTR, "Error Handling". The new state accepts a valid answer."""
    waits = Waits(lambda arguments: elicit("Who are you?", Person))
    client = AnsweringClient(serving(waits))

    pending = await client.send(client.call("wait"))
    retried = await client.send(client.retry(pending, waited=answer))
    assert questions_in(retried) == questions_in(pending)
    assert not waits.outcomes
    await client.send(client.retry(retried, waited=ADA))

    assert waits.outcomes == [Done(Accepted(Person("Ada")))]


def several(arguments: Any) -> dict[str, Any]:
    return {"who": elicit("Who are you?", Person), "where": roots(), "what": sample("Capital?")}


async def test_questions_asked_at_once_are_answered_at_once() -> None:
    """A dict of questions returns a dict of answers, with the tool's keys."""
    waits = Waits(several)
    client = AnsweringClient(serving(waits))

    pending = await client.send(client.call("wait"))
    answered = await client.send(client.retry(pending, who=ADA, where=ROOTS, what=SAMPLED))

    methods = {key: question["method"] for key, question in questions_in(pending).items()}
    assert methods == {
        "who": "elicitation/create",
        "where": "roots/list",
        "what": "sampling/createMessage",
    }
    assert answered.json["result"]["resultType"] == "complete"
    (outcome,) = waits.outcomes
    assert isinstance(outcome, Done)
    assert list(outcome.value) == ["who", "where", "what"]
    assert outcome.value["who"] == Accepted(Person("Ada"))


async def test_questions_that_are_not_answered_are_asked_again() -> None:
    """MRTR, "Error Handling". Answers to the others are kept."""
    waits = Waits(several)
    client = AnsweringClient(serving(waits))

    pending = await client.send(client.call("wait"))
    none = await client.send(client.retry(pending))
    one = await client.send(client.retry(none, where=ROOTS))
    two = await client.send(client.retry(one, what=SAMPLED, where="too late, and wrong"))
    await client.send(client.retry(two, who=ADA))

    assert list(questions_in(none)) == ["who", "where", "what"]
    assert list(questions_in(one)) == ["who", "what"]
    assert list(questions_in(two)) == ["who"]
    (outcome,) = waits.outcomes
    assert isinstance(outcome, Done)
    assert outcome.value["where"][0].uri == "file:///home"


async def test_answer_that_was_not_asked_for_is_ignored() -> None:
    """MRTR, "Error Handling": answers that the server does not recognize or need."""
    waits = Waits(lambda arguments: elicit("Sure?"))
    client = AnsweringClient(serving(waits))

    pending = await client.send(client.call("wait"))
    answered = await client.send(client.retry(pending, waited=YES, other={"deep": [1]}))

    assert text_of(answered) == "Accepted(content={})"


@pytest.mark.parametrize("responses", [[], "text", 3])
async def test_answers_that_are_no_object_are_refused(responses: Any) -> None:
    """They are invalid params."""
    client = AnsweringClient(serving(Waits(lambda arguments: elicit("Sure?"))))

    pending = await client.send(client.call("wait"))
    retried = client.retry(pending)
    retried["params"]["inputResponses"] = responses
    refused = await client.send(retried)

    assert (refused.status, refused.json["error"]["code"]) == (400, -32602)


class Escapes(Waits):
    """Does not handle the failure."""

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        assert isinstance(outcome, Failed)
        raise outcome.error


LACKING = [
    (elicit("Sure?"), {}, {"elicitation": {}}),
    (elicit("Sure?"), {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
    (elicit_url("Go", "https://a.example/"), {"elicitation": {}}, {"elicitation": {"url": {}}}),
    (sample("Capital?"), {}, {"sampling": {}}),
    (roots(), {"elicitation": {}}, {"roots": {}}),
    (several({}), {"roots": {}}, {"elicitation": {}, "sampling": {}}),
]


@pytest.mark.parametrize(("question", "capabilities", "lacking"), LACKING)
async def test_question_without_the_capability_is_not_sent(
    question: Any, capabilities: Any, lacking: Any
) -> None:
    """MRTR, "Server Requirements", point 7: MUST NOT. The tool gets a failure, and continues."""
    waits = Waits(lambda arguments: question)
    client = AnsweringClient(serving(waits), capabilities=capabilities)

    answer = await client.send(client.call("wait"))

    assert waits.outcomes == [Failed(CapabilityMissing(lacking))]
    assert text_of(answer).startswith("CapabilityMissing: the client did not declare")


@pytest.mark.parametrize(("question", "capabilities", "lacking"), LACKING)
async def test_missing_capability_that_is_not_handled_is_an_error(
    question: Any, capabilities: Any, lacking: Any
) -> None:
    """If the tool does not handle it: -32021 with the capabilities (2026-07-28, basic, "_meta")."""
    client = AnsweringClient(
        serving(Escapes(lambda arguments: question)), capabilities=capabilities
    )

    answer = await client.send(client.call("wait"))

    error = answer.json["error"]
    assert (answer.status, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": lacking}


async def test_capability_of_an_earlier_request_does_not_count() -> None:
    """Capabilities are those of the current request, not of an earlier one (basic, "_meta")."""
    waits = Waits(several)
    client = AnsweringClient(serving(waits))
    pending = await client.send(client.call("wait"))

    retried = client.retry(pending, where=ROOTS)
    retried["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"sampling": {}}
    await client.send(retried)

    assert waits.outcomes == [Failed(CapabilityMissing({"elicitation": {}}))]


class Chain(Tool):
    """Asks several questions in turn under one tag, and waits in between."""

    name = "chain"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        channel.assigns["names"] = []
        return Continue("name", elicit("Who?", Person))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        names = channel.assigns["names"]
        match tag, outcome:
            case "name", Done(Accepted(person)):
                names.append(person.name)
                return Continue("thought", self.think())
            case "thought", _ if len(names) < request_of(channel):
                return Continue("name", elicit("Who else?", Person))
            case "thought", _:
                return " and ".join(names)
        return None

    async def think(self) -> None:
        """Wait for something in this process."""


def request_of(channel: Channel) -> int:
    """Return the number of names to ask for."""
    found: int = channel.request.arguments["count"]
    return found


async def test_consecutive_questions_have_different_names() -> None:
    """A name is never used twice in a call. Assigns set by the tool are passed on.

    Each request reaches another process, which shares only the secret.
    """
    endpoints = [muxed(Chain, secret="s" * 32) for _ in range(4)]
    client = AnsweringClient(endpoints[0])
    answer = await client.send(client.call("chain", {"count": 3}))
    names = []
    for endpoint, name in zip(endpoints[1:], ["Ada", "Bob", "Eve"], strict=True):
        client.app = endpoint
        (key,) = questions_in(answer)
        names.append(key)
        given = {key: {"action": "accept", "content": {"name": name}}}
        answer = await client.send(client.retry(answer, **given))

    assert text_of(answer) == "Ada and Bob and Eve"
    assert len(set(names)) == 3
    assert all(name.split(".")[0] == "name" for name in names)


async def test_copied_assigns_are_those_of_the_current_request() -> None:
    """Assigns set by hooks are passed on; copied ones come from the current request."""

    class Shows(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            channel.assigns["own"] = {"n": [1, None, "x"]}
            return await super().call(request, channel)

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            own = channel.context.own_assigns
            return f"{channel.assigns['user']} {channel.assigns['own']} {own}"

    shows = Shows(lambda arguments: elicit("Sure?"))
    client = AnsweringClient(serving(shows, copy_assigns=["user"]), state={"user": "before"})

    pending = await client.send(client.call("wait"))
    client.scope = {"state": {"user": "now"}}
    answered = await client.send(client.retry(pending, waited=YES))

    own = {"n": [1, None, "x"]}
    assert text_of(answered) == f"now {own} { {'own': own} }"


async def test_validate_runs_again_and_may_refuse() -> None:
    """On a retry `validate` gets the raw arguments; if it rejects them, the call ends."""
    seen: list[Any] = []

    class Validates(Waits):
        def validate(self, request: ToolRequest, channel: Channel) -> ToolRequest:
            seen.append(request.arguments)
            if len(seen) > 2:
                raise InvalidParams("not any more")
            return request.replace({"x": request.arguments["x"] * 2})

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return str(channel.request.arguments)

    validates = Validates(lambda arguments: elicit("Sure?"))
    client = AnsweringClient(serving(validates))

    pending = await client.send(client.call("wait", {"x": 2}))
    first = await client.send(client.retry(pending, waited=YES))
    second = await client.send(client.retry(pending, waited=YES))

    assert str({"x": 4}) == text_of(first)
    assert "not any more" in failure_of(second)
    assert seen == [{"x": 2}] * 3


async def test_continuation_that_returns_none_is_an_error(caplog: Any) -> None:
    """A `match` without a matching case is an error, logged with tag and outcome."""

    class Forgets(Waits):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            match tag:
                case "other":
                    return "never"

    client = AnsweringClient(serving(Forgets(lambda arguments: elicit("Sure?"))))

    pending = await client.send(client.call("wait"))
    answer = await client.send(client.retry(pending, waited={"action": "decline"}))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert "'wait'" in caplog.text
    assert "tag 'waited' and Done" in caplog.text


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"items": [1, {"x": object()}]}, "channel.assigns.mine.items[1].x is object"),
        (asyncio.Event(), "channel.assigns.mine: Event has no JSON form"),
        (float("nan"), "channel.assigns.mine is nan"),
        ({3: 1}, "channel.assigns.mine has the key 3"),
    ],
)
async def test_assigns_that_are_not_json_are_named(value: Any, fault: str, caplog: Any) -> None:
    """They must be JSON to be in the state. The client gets a reference, the log the path."""

    class Sets(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            channel.assigns["mine"] = value
            return await super().call(request, channel)

    client = AnsweringClient(serving(Sets(lambda arguments: elicit("Sure?"))))

    answer = await client.send(client.call("wait"))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert fault in caplog.text


async def test_parked_questions_cost_the_server_nothing() -> None:
    """1,000 questions take less than 64 KiB in all: their state is with the clients."""
    endpoint = serving(Waits(lambda arguments: elicit("Who are you?", Person)))

    async def ask(id: int) -> int:
        client = AnsweringClient(endpoint)
        answer = await client.send(client.call("wait", {"x": id}))
        return len(answer.json["result"]["requestState"])

    for id in range(
        100
    ):  # exclude objects that are created once, and the caches of the test client
        await ask(id)
    gc.collect()
    tracemalloc.start()
    try:
        for id in range(1_000):
            assert await ask(id) > 100
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert used < 64 * 1024
