"""The tools of the official suite that ask their client. Each works in all revisions."""

import json
from typing import Any, Literal

import msgspec

from genmcp import (
    Accepted,
    CapabilityMissing,
    Channel,
    Continue,
    Declined,
    Done,
    Failed,
    Outcome,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    roots,
    sample,
)

__all__ = ["QUESTIONS", "Name", "filled", "given"]


class Name(msgspec.Struct):
    """Who the user is."""

    name: str


class Account(msgspec.Struct):
    """The owner of the account."""

    username: str
    email: str


class Colour(msgspec.Struct):
    """The preferences of the user."""

    color: str


class Agreement(msgspec.Struct):
    """Whether the user agrees."""

    ok: bool


class Defaults(msgspec.Struct):
    """A property of every kind, each with a default."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [
                {"const": "value1", "title": "First Option"},
                {"const": "value2", "title": "Second Option"},
                {"const": "value3", "title": "Third Option"},
            ],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array",
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": "value1", "title": "First Choice"},
                    {"const": "value2", "title": "Second Choice"},
                    {"const": "value3", "title": "Third Choice"},
                ]
            },
        },
    },
}


def given(outcome: Outcome) -> Any:
    """Return the client's answer, or raise the error of a failed wait."""
    match outcome:
        case Done(value):
            return value
        case Failed(error):
            raise error


def filled(answer: Any) -> Any:
    """Return the content of the form. Raises if the user did not accept."""
    if isinstance(answer, Accepted):
        return answer.content
    raise ToolError("The user did not say.")


def text_of(outcome: Outcome) -> str:
    """Return the user's action and the content as text."""
    match given(outcome):
        case Accepted(content):
            return f"action=accept, content={json.dumps(msgspec.to_builtins(content))}"
        case Declined():
            return "action=decline, content=null"
        case _:
            return "action=cancel, content=null"


class Message(msgspec.Struct):
    """The message for the user."""

    message: str


class Prompt(msgspec.Struct):
    """The prompt for the model."""

    prompt: str


class Sampling(Tool[Prompt]):
    """Asks the client's model."""

    name = "test_sampling"

    async def call(self, request: ToolRequest[Prompt], channel: Channel) -> Continue:
        return Continue("said", sample(request.arguments.prompt, max_tokens=100))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"LLM response: {given(outcome).content.text}"


class Elicitation(Tool[Message]):
    """Asks the user for an account."""

    name = "test_elicitation"

    async def call(self, request: ToolRequest[Message], channel: Channel) -> Continue:
        return Continue("account", elicit(request.arguments.message, Account))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"User response: {text_of(outcome)}"


class Form(Tool):
    """Asks the user to fill in a form."""

    def __init__(self, name: str, form: Any) -> None:
        self.name = name
        self.form = form

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("form", elicit("Please fill in the form", self.form))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"Elicitation completed: {text_of(outcome)}"


class Greeting(Tool):
    """Asks who the user is."""

    name = "test_input_required_result_elicitation"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("user_name", elicit("What is your name?", Name))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"Hello, {filled(given(outcome)).name}!"


class Capital(Tool):
    """Samples the client's model."""

    name = "test_input_required_result_sampling"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        question = sample("What is the capital of France?", max_tokens=100)
        return Continue("capital_question", question)

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"The model says: {given(outcome).content.text}"


class Roots(Tool):
    """Asks for the client's roots."""

    name = "test_input_required_result_list_roots"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("client_roots", roots())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"Roots: {', '.join(root.uri for root in given(outcome))}"


class Remembering(Tool):
    """Asks the user to agree, and remembers something meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        channel.assigns["remembered"] = "state-ok"
        return Continue("confirm", elicit("Please confirm", Agreement))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"{channel.assigns['remembered']}, {text_of(outcome)}"


class AllAtOnce(Tool):
    """Asks the user, the model, and for roots, at once."""

    name = "test_input_required_result_multiple_inputs"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        questions = {
            "user_name": elicit("What is your name?", Name),
            "greeting": sample("Generate a greeting", max_tokens=50),
            "client_roots": roots(),
        }
        return Continue("asked", questions)

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        answers = given(outcome)
        user = filled(answers["user_name"]).name
        return f"{answers['greeting'].content.text} {user}, {len(answers['client_roots'])} roots"


class Rounds(Tool):
    """Asks one thing after the other."""

    name = "test_input_required_result_multi_round"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("step1", elicit("Step 1: What is your name?", Name))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str | Continue:
        if tag == "step1":
            channel.assigns["name"] = filled(given(outcome)).name
            return Continue("step2", elicit("Step 2: What is your favorite color?", Colour))
        return f"{channel.assigns['name']} likes {filled(given(outcome)).color}."


class WhoeverAnswers(Tool):
    """Asks the user, or the model if the client has no forms."""

    name = "test_input_required_result_capabilities"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("user", elicit("What is your name?", Name))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str | Continue:
        match tag, outcome:
            case "user", Failed(CapabilityMissing()):
                return Continue("model", sample("What is your name?", max_tokens=50))
            case "user", _:
                return f"Hello, {filled(given(outcome)).name}!"
            case _:
                return f"Hello, {given(outcome).content.text}!"


QUESTIONS: list[Any] = [
    Sampling,
    Elicitation,
    Form("test_elicitation_sep1034_defaults", Defaults),
    Form("test_elicitation_sep1330_enums", CHOICES),
    Greeting,
    Capital,
    Roots,
    Remembering("test_input_required_result_request_state"),
    Remembering("test_input_required_result_tampered_state"),
    AllAtOnce,
    Rounds,
    WhoeverAnswers,
]
