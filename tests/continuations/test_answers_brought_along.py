"""Answers in a request without `requestState`: 2026-07-28, basic/patterns, MRTR."""

from typing import Any

from genmcp import Accepted, Channel, Continue, Done, Outcome, Tool, ToolRequest, elicit
from tests.support.asgi import Connection, serving
from tests.support.asking import AnsweringClient, text_of

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Pair(Tool):
    """Asks for two names, the second under *second*."""

    name = "pair"

    def __init__(self, second: str = "second") -> None:
        self.second = second

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("name", elicit("Who?", NAME))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str | Continue:
        match outcome:
            case Done(Accepted({"name": name})) if "first" in channel.assigns:
                return f"{channel.assigns['first']} and {name}"
            case Done(Accepted({"name": name})):
                channel.assigns["first"] = name
                return Continue(self.second, elicit("And who?", NAME))
            case _:
                return "nobody"


def named(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


def call_with_answers(client: AnsweringClient, **responses: Any) -> dict[str, Any]:
    """Return a call that contains answers to questions not asked yet."""
    call = client.call("pair")
    return {**call, "params": {**call["params"], "inputResponses": responses}}


def questions_in(answered: Connection) -> list[str]:
    """Return the names of the questions in a result."""
    result = answered.json["result"]
    assert result["resultType"] == "input_required"
    return [*result["inputRequests"]]


async def test_answers_without_a_state_are_used_by_name() -> None:
    """A client that knows the question needs one request only; other answers are ignored."""
    client = AnsweringClient(serving(Pair()))

    answered = await client.send(
        call_with_answers(client, name=named("Ada"), second=named("Bob"), unknown=named("Eve"))
    )

    assert text_of(answered) == "Ada and Bob"


async def test_invalid_answers_without_a_state_are_asked_for() -> None:
    """An invalid answer or an unknown name does not count: the question is asked."""
    client = AnsweringClient(serving(Pair()))

    for responses in ({"name": 12345}, {"wrong": named("Ada")}, {}):
        assert questions_in(await client.send(call_with_answers(client, **responses))) == ["name"]


async def test_answer_without_a_state_is_used_once() -> None:
    """A second question under the same key gets another name, and so it is asked."""
    client = AnsweringClient(serving(Pair(second="name")))

    pending = await client.send(call_with_answers(client, name=named("Ada")))

    assert questions_in(pending) == ["name.2"]
    (call,) = client.sent
    state = pending.json["result"]["requestState"]
    more = {"requestState": state, "inputResponses": {"name.2": named("Bob")}}
    answered = await client.send({**call, "id": "again", "params": {**call["params"], **more}})
    assert text_of(answered) == "Ada and Bob"


async def test_answers_with_a_state_are_to_its_questions() -> None:
    """Only the questions in the state are answered; an answer to a later one is ignored."""
    client = AnsweringClient(serving(Pair()))

    pending = await client.send(client.call("pair"))
    retried = await client.send(client.retry(pending, name=named("Ada"), second=named("Eve")))

    assert questions_in(retried) == ["second"]
