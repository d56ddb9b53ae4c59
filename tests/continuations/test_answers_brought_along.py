"""Answers in a request without `requestState`: 2026-07-28, basic/patterns, MRTR."""

from typing import Any

from genmcp import Accepted, Channel, Continue, Done, Outcome, Tool, ToolRequest, elicit
from tests.continuations.asking import Asked, text_of
from tests.support.asgi import Connection, serving

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


def bringing(client: Asked, **responses: Any) -> dict[str, Any]:
    """Return a call that contains answers to questions not asked yet."""
    call = client.call("pair")
    return {**call, "params": {**call["params"], "inputResponses": responses}}


def asked_in(answered: Connection) -> list[str]:
    """Return the names of the questions in a result."""
    result = answered.json["result"]
    assert result["resultType"] == "input_required"
    return [*result["inputRequests"]]


async def test_answers_without_a_state_are_used_by_name() -> None:
    """A client that knows the question needs one request only; other answers are ignored."""
    client = Asked(serving(Pair()))

    answered = await client.send(
        bringing(client, name=named("Ada"), second=named("Bob"), unknown=named("Eve"))
    )

    assert text_of(answered) == "Ada and Bob"


async def test_invalid_answers_without_a_state_are_asked_for() -> None:
    """An invalid answer or an unknown name does not count: the question is asked."""
    client = Asked(serving(Pair()))

    for responses in ({"name": 12345}, {"wrong": named("Ada")}, {}):
        assert asked_in(await client.send(bringing(client, **responses))) == ["name"]


async def test_answer_without_a_state_is_used_once() -> None:
    """A second question under the same key gets another name, and so it is asked."""
    client = Asked(serving(Pair(second="name")))

    asked = await client.send(bringing(client, name=named("Ada")))

    assert asked_in(asked) == ["name.2"]
    (call,) = client.sent
    state = asked.json["result"]["requestState"]
    more = {"requestState": state, "inputResponses": {"name.2": named("Bob")}}
    answered = await client.send({**call, "id": "again", "params": {**call["params"], **more}})
    assert text_of(answered) == "Ada and Bob"


async def test_answers_with_a_state_are_to_its_questions() -> None:
    """Only the questions in the state are answered; an answer to a later one is ignored."""
    client = Asked(serving(Pair()))

    asked = await client.send(client.call("pair"))
    again = await client.send(client.again(asked, name=named("Ada"), second=named("Eve")))

    assert asked_in(again) == ["second"]
