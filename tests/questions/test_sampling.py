"""Questions to the client's model, and for its roots."""

from typing import Any

import msgspec
import pytest

from genmcp.content import Image, assistant, resource_link, user
from genmcp.errors import ArgumentFaults, ContractError
from genmcp.protocol.capabilities import ClientCapabilities, SamplingCapability
from genmcp.protocol.client_features import (
    CreateMessageRequest,
    CreateMessageResult,
    ModelHint,
    ModelPreferences,
    Root,
    SamplingMessage,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)
from genmcp.protocol.content import ImageContent, TextContent
from genmcp.protocol.tools import ToolDefinition
from genmcp.question.packing import unpack
from genmcp.question.question import Question
from genmcp.question.sampling import roots, sample

WEATHER = ToolDefinition("weather", {"type": "object"})
USE = ToolUseContent("1", "weather", {"city": "Oslo"})
RESULT = ToolResultContent("1", [TextContent("18 degrees")])


def sent(question: Question) -> Any:
    """The request as the client gets it."""
    return msgspec.json.decode(msgspec.json.encode(question.request))


def faults(question: Question, answer: Any) -> tuple[str, ...]:
    with pytest.raises(ArgumentFaults) as refused:
        question.read(answer)
    return refused.value.faults


def messages(*given: Any) -> list[SamplingMessage]:
    request = sample(list(given)).request
    assert isinstance(request, CreateMessageRequest)
    return list(request.params.messages)


def test_text_is_one_message_of_the_user() -> None:
    """The specification's own example."""
    question = sample("What is the capital of France?", max_tokens=100)

    assert question.method == "sampling/createMessage"
    assert sent(question) == {
        "method": "sampling/createMessage",
        "params": {
            "messages": [
                {
                    "role": "user",
                    "content": {"type": "text", "text": "What is the capital of France?"},
                }
            ],
            "maxTokens": 100,
        },
    }


def test_every_option_is_sent() -> None:
    """As values or as mappings with the names of the wire."""
    preferences = ModelPreferences(hints=[ModelHint("claude")], cost_priority=0.3)
    question = sample(
        "?",
        system_prompt="Be brief.",
        model_preferences=preferences,
        temperature=0.1,
        stop_sequences=["."],
        include_context="thisServer",
        tools=[WEATHER],
        tool_choice={"mode": "none"},
        metadata={"a": 1},
    )

    assert sent(question)["params"] == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}],
        "maxTokens": 1024,
        "systemPrompt": "Be brief.",
        "modelPreferences": {"hints": [{"name": "claude"}], "costPriority": 0.3},
        "temperature": 0.1,
        "stopSequences": ["."],
        "includeContext": "thisServer",
        "tools": [{"name": "weather", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "none"},
        "metadata": {"a": 1},
    }
    assert sent(sample("?", model_preferences={"costPriority": 0.3}))["params"][
        "modelPreferences"
    ] == {"costPriority": 0.3}


def test_messages_are_converted() -> None:
    """Messages, pairs, the helpers of prompts, and earlier responses of the model."""
    answered = CreateMessageResult("assistant", TextContent("Paris"), model="m", stop_reason="x")
    picture = ImageContent("AA==", "image/png")

    assert messages(
        SamplingMessage("user", TextContent("a"), {"k": 1}),
        ("assistant", "b"),
        ("user", Image(b"\0")),
        ("user", (b"\0", "image/png")),
        ("user", ("c", Image(b"\0"))),
        user("d"),
        assistant("e"),
        answered,
    ) == [
        SamplingMessage("user", TextContent("a"), {"k": 1}),
        SamplingMessage("assistant", TextContent("b")),
        SamplingMessage("user", picture),
        SamplingMessage("user", picture),
        SamplingMessage("user", [TextContent("c"), picture]),
        SamplingMessage("user", TextContent("d")),
        SamplingMessage("assistant", TextContent("e")),
        SamplingMessage("assistant", TextContent("Paris")),
    ]


def test_tool_results_follow_tool_uses() -> None:
    """2026-07-28, client/sampling, "Multi-turn Tool Loop"."""
    assert messages(("user", "Weather?"), ("assistant", [USE]), ("user", [RESULT])) == [
        SamplingMessage("user", TextContent("Weather?")),
        SamplingMessage("assistant", [USE]),
        SamplingMessage("user", [RESULT]),
    ]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([], "messages must be a str or a list"),
        (None, "messages must be a str or a list"),
        (["hello"], "message 0 is not a message"),
        ([("system", "hello")], "message 0 is not a message"),
        (
            [user(resource_link("file:///a", "a"))],
            "message 0: ResourceLink cannot be content of a message",
        ),
        ([("user", [["a", "b"]])], "list cannot be content"),
        ([("user", {"a": 1})], "message 0: dict cannot be content"),
        ([("user", [])], "message 0 has no content"),
        ([("user", ())], "message 0 has no content"),
        ([("assistant", USE)], "the tool uses of the last message have no results: ['1']"),
        ([("assistant", USE), ("user", "no")], "message 1 must have the results"),
        ([("user", RESULT)], "message 0 must have the results of the tool uses before it, []"),
        (
            [("assistant", USE), ("user", [RESULT, "x"])],
            "must have the role user, and no other content",
        ),
        (
            [("assistant", USE), ("assistant", RESULT)],
            "must have the role user, and no other content",
        ),
    ],
)
def test_invalid_messages_are_rejected(given: Any, fault: str) -> None:
    """2026-07-28, client/sampling, "Message Content Constraints"."""
    with pytest.raises(ContractError) as refused:
        sample(given)

    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"colour": 1}, "sample: unknown options: colour"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": True}, "maxTokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"include_context": "all"}, "includeContext"),
        ({"tools": [{"name": "x"}]}, "inputSchema"),
        ({"metadata": {"a": object()}}, "object"),
        ({"model_preferences": {"speedPriority": 2}}, "speed_priority must be from 0 to 1"),
    ],
)
def test_unknown_option_of_sample_is_rejected(options: dict[str, Any], fault: str) -> None:
    """The error names it."""
    with pytest.raises(ContractError) as refused:
        sample("?", **options)

    assert fault in str(refused.value)


def test_answer_of_the_model_is_decoded() -> None:
    """With one content, or several."""
    answer = {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris."},
        "model": "m",
        "stopReason": "endTurn",
    }

    assert sample("?").read(answer) == CreateMessageResult(
        "assistant", TextContent("Paris."), model="m", stop_reason="endTurn"
    )
    use = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}}
    several = sample("?").read({**answer, "content": [use]})
    assert several.content == [USE]


@pytest.mark.parametrize("answer", [None, 3, {}, {"role": "assistant", "content": "x"}])
def test_invalid_answer_of_the_model_is_rejected(answer: Any) -> None:
    """The question is then sent again."""
    assert faults(sample("?"), answer)


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, {}),
        ({"include_context": "none"}, {}),
        ({"tools": [WEATHER]}, {"tools": {}}),
        ({"tool_choice": ToolChoice("auto")}, {"tools": {}}),
        ({"include_context": "allServers"}, {"context": {}}),
        ({"tools": [], "include_context": "thisServer"}, {"tools": {}, "context": {}}),
    ],
)
def test_options_need_the_capabilities_of_their_client(options: Any, needed: Any) -> None:
    """2026-07-28, client/sampling: tools MUST NOT, context SHOULD NOT be sent without."""
    question = sample("?", **options)
    plain, able = SamplingCapability(), SamplingCapability(context={}, tools={})

    assert question.missing_capabilities(ClientCapabilities()) == {"sampling": needed}
    wanted = {"sampling": needed} if needed else {}
    assert wanted == question.missing_capabilities(ClientCapabilities(sampling=plain))
    assert question.missing_capabilities(ClientCapabilities(sampling=able)) == {}


def test_roots_need_their_capability() -> None:
    """The request is sent to clients that declare roots."""
    question = roots()

    assert question.method == "roots/list"
    assert sent(question) == {"method": "roots/list", "params": {}}
    assert question.missing_capabilities(ClientCapabilities()) == {"roots": {}}
    assert question.missing_capabilities(ClientCapabilities(roots={})) == {}


def test_roots_are_read() -> None:
    """Each is a file URI; one that is not is refused."""
    given = {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "https://b"}]}

    assert roots().read({"roots": given["roots"][:1]}) == [Root("file:///a", "A")]
    assert roots().read({"roots": []}) == []
    assert faults(roots(), given) == (
        '/roots/1/uri: expected a URI with file://, got the string "https://b"',
    )
    assert faults(roots(), {}) == ('(root): missing required property "roots"',)


@pytest.mark.parametrize(
    "question",
    [roots(), sample([("assistant", USE), ("user", RESULT)], tools=[WEATHER], temperature=1)],
)
def test_packed_question_is_restored(question: Question) -> None:
    """It is equal, and has the same request."""
    assert question == unpack(question.pack())
    assert sent(question) == sent(unpack(question.pack()))
