"""Values that a revision cannot express are translated; the facts of each revision."""

from typing import Any

import msgspec
import pytest

from genmcp.errors import MissingCapability
from genmcp.protocol import protocol_version, resources, tools
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    ElicitationCapability,
    Icon,
    Implementation,
    SamplingCapability,
    ServerCapabilities,
)
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ListRootsResult,
    Root,
    SamplingMessage,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)
from genmcp.protocol.content import (
    Annotations,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceDefinition,
    ResourceLink,
    TextContent,
)
from genmcp.protocol.params import ProgressNotificationParams, RequestMeta
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    ListPromptsResult,
    PromptArgument,
    PromptDefinition,
    PromptMessage,
    PromptReference,
)
from genmcp.protocol.revisions import v2025_11_25
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.tools import (
    CallToolRequestParams,
    CallToolResult,
    ToolAnnotations,
    ToolDefinition,
)

V2025_11_25, V2025_06_18, V2025_03_26, V2024_11_05 = LEGACY
ICON = Icon("https://a.b/icon.png")
OBJECT = {"type": "object"}


def test_revisions_are_listed_newest_first() -> None:
    """Exactly one is modern, the newest."""
    assert sorted(REVISIONS, reverse=True) == [*REVISIONS]
    assert (LATEST,) == MODERN
    assert [*REVISIONS.values()] == [*MODERN, *LEGACY]
    assert protocol_version() == next(iter(REVISIONS)) == "2026-07-28"


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        ("modern", [True, False, False, False, False]),
        ("priming_event", [False, True, False, False, False]),
        ("batches", [False, False, False, True, False]),
    ],
)
def test_revisions_differ_in_these_facts(fact: str, values: list[object]) -> None:
    """Newest first, as the changelog of each revision states them."""
    assert values == [getattr(revision, fact) for revision in REVISIONS.values()]


LINK = ResourceLink("file:///a", "a", icons=[ICON], annotations=Annotations(priority=1))
SOUND = AudioContent("aGk=", "audio/wav", Annotations(["user"], 1, "2026-01-01T00:00:00Z"), {})
TITLED_TOOL = ToolDefinition(
    "add", OBJECT, "Adds", icons=[ICON], output_schema=OBJECT, meta={"a.b/c": 1}
)


def result(*content: Any, **more: Any) -> CallToolResult:
    return CallToolResult([*content], **more)


def asks(**schema: Any) -> ElicitRequestParams:
    return ElicitRequestParams("?", {"type": "object", "properties": {"a": schema}})


def wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}


def converses(*messages: SamplingMessage, **more: Any) -> CreateMessageRequestParams:
    return CreateMessageRequestParams(messages=[*messages], max_tokens=9, **more)


@pytest.mark.parametrize(
    ("value", "version", "becomes"),
    [
        # 2025-11-25
        (
            result(structured_content=[1]),
            "2025-11-25",
            result(structured_content={"result": [1]}),
        ),
        (
            result(structured_content=None),
            "2025-11-25",
            result(structured_content={"result": None}),
        ),
        (
            result(structured_content=msgspec.Raw(b" 1")),
            "2025-11-25",
            result(structured_content=msgspec.Raw(b'{"result": 1}')),
        ),
        (
            ToolResultContent("1", [], "text"),
            "2025-11-25",
            ToolResultContent("1", []),
        ),
        (
            ToolDefinition("a", OBJECT, output_schema={"type": "array"}),
            "2025-11-25",
            ToolDefinition("a", OBJECT, output_schema=wrapped({"type": "array"})),
        ),
        (
            ToolDefinition(
                "a",
                OBJECT,
                output_schema={
                    "anyOf": [{"type": ["integer", "string"]}, {"type": "null"}],
                    "$defs": {},
                },
            ),
            "2025-11-25",
            ToolDefinition(
                "a",
                OBJECT,
                output_schema={
                    "$defs": {},
                    **wrapped({"anyOf": [{"type": ["integer", "string"]}, {"type": "null"}]}),
                },
            ),
        ),
        (
            ToolDefinition("a", OBJECT, output_schema={"anyOf": [{"type": "object"}, {}]}),
            "2025-11-25",
            ToolDefinition("a", OBJECT),
        ),
        (
            ToolDefinition("a", OBJECT, output_schema={"anyOf": [True, {"type": "null"}]}),
            "2025-11-25",
            ToolDefinition("a", OBJECT),
        ),
        (
            ToolDefinition("a", OBJECT, output_schema={"$id": "a:b", "type": "array"}),
            "2025-11-25",
            ToolDefinition("a", OBJECT),
        ),
        (
            ServerCapabilities(extensions={TASKS: {}, "a.b/c": {}}),
            "2025-11-25",
            ServerCapabilities(extensions={"a.b/c": {}}),
        ),
        (ClientCapabilities(extensions={TASKS: {}}), "2025-11-25", ClientCapabilities()),
        (
            CallToolRequestParams(
                "a",
                request_state="s",
                meta=RequestMeta(progress_token=1, protocol_version="2026-07-28"),
            ),
            "2025-11-25",
            CallToolRequestParams("a", meta=RequestMeta(progress_token=1)),
        ),
        (
            tools.ListToolsResult([TITLED_TOOL], ttl_ms=1, cache_scope="public", next_cursor="c"),
            "2025-11-25",
            v2025_11_25.ListToolsResult([TITLED_TOOL], "c"),
        ),
        # 2025-06-18
        (
            Implementation("a", "1", "A", "An a.", "https://a.b/", [ICON]),
            "2025-06-18",
            Implementation("a", "1", "A"),
        ),
        (
            resources.ListResourcesResult(
                [ResourceDefinition("a:b", "b", icons=[ICON])], ttl_ms=1, cache_scope="public"
            ),
            "2025-06-18",
            v2025_11_25.ListResourcesResult([ResourceDefinition("a:b", "b")]),
        ),
        (
            resources.ResourceTemplateDefinition("a:{b}", "b", icons=[ICON]),
            "2025-06-18",
            resources.ResourceTemplateDefinition("a:{b}", "b"),
        ),
        (
            ListPromptsResult(
                [PromptDefinition("a", icons=[ICON])], ttl_ms=1, cache_scope="public"
            ),
            "2025-06-18",
            v2025_11_25.ListPromptsResult([PromptDefinition("a")]),
        ),
        (result(LINK), "2025-06-18", result(msgspec.structs.replace(LINK, icons=None))),
        (
            ClientCapabilities(
                sampling=SamplingCapability(tools={}), elicitation=ElicitationCapability({}, {})
            ),
            "2025-06-18",
            ClientCapabilities(sampling=SamplingCapability(), elicitation=ElicitationCapability()),
        ),
        (
            ClientCapabilities(elicitation=ElicitationCapability(url={})),
            "2025-06-18",
            ClientCapabilities(),
        ),
        (
            converses(
                SamplingMessage("user", [TextContent("a"), SOUND], {}),
                SamplingMessage("assistant", ToolUseContent("1", "add", {"a": 1})),
                SamplingMessage("user", [ToolResultContent("1", [TextContent("2"), LINK])]),
                tools=[TITLED_TOOL],
                tool_choice=ToolChoice("auto"),
            ),
            "2025-06-18",
            converses(
                SamplingMessage("user", TextContent("a")),
                SamplingMessage("user", SOUND),
                SamplingMessage("assistant", TextContent('[call of the tool add: {"a":1}]')),
                SamplingMessage("user", TextContent("2\n[resource_link]")),
            ),
        ),
        (
            CreateMessageResult("assistant", [SOUND], model="m"),
            "2025-06-18",
            CreateMessageResult("assistant", SOUND, model="m"),
        ),
        (
            CreateMessageResult("assistant", [TextContent("a"), SOUND], model="m"),
            "2025-06-18",
            CreateMessageResult("assistant", TextContent("a\n[audio]"), model="m"),
        ),
        (
            asks(type="string", oneOf=[{"const": "r", "title": "Red"}], default="r"),
            "2025-06-18",
            asks(type="string", enum=["r"], enumNames=["Red"]),
        ),
        (
            asks(type="boolean", default=True),
            "2025-06-18",
            asks(type="boolean", default=True),
        ),
        (
            ElicitRequestParams("?", {"$schema": "x", "properties": {}}, mode="form"),
            "2025-06-18",
            ElicitRequestParams("?", {"properties": {}}),
        ),
        # 2025-03-26
        (Implementation("a", "1", "A"), "2025-03-26", Implementation("a", "1")),
        (
            TITLED_TOOL,
            "2025-03-26",
            ToolDefinition("add", OBJECT, annotations=ToolAnnotations(title="Adds")),
        ),
        (
            ToolDefinition("a", OBJECT, "A", annotations=ToolAnnotations(title="B")),
            "2025-03-26",
            ToolDefinition("a", OBJECT, annotations=ToolAnnotations(title="B")),
        ),
        (
            result(LINK, TextContent("a", meta={}), structured_content={"a": 1}),
            "2025-03-26",
            result(TextContent("a: file:///a", Annotations(priority=1)), TextContent("a")),
        ),
        (
            GetPromptResult([PromptMessage("user", ImageContent("aGk=", "image/png", None, {}))]),
            "2025-03-26",
            GetPromptResult([PromptMessage("user", ImageContent("aGk=", "image/png"))]),
        ),
        (
            EmbeddedResource(ResourceContents("a:b", "c", meta={}), meta={}),
            "2025-03-26",
            EmbeddedResource(ResourceContents("a:b", "c")),
        ),
        (
            SOUND,
            "2025-03-26",
            AudioContent("aGk=", "audio/wav", Annotations(["user"], 1)),
        ),
        (
            ResourceDefinition("a:b", "b", "B", meta={}),
            "2025-03-26",
            ResourceDefinition("a:b", "b"),
        ),
        (
            resources.ResourceTemplateDefinition("a:{b}", "b", "B", meta={}),
            "2025-03-26",
            resources.ResourceTemplateDefinition("a:{b}", "b"),
        ),
        (
            PromptDefinition("a", "A", arguments=[PromptArgument("b", "B")], meta={}),
            "2025-03-26",
            PromptDefinition("a", arguments=[PromptArgument("b")]),
        ),
        (
            CompleteRequestParams(
                PromptReference("a", "A"), CompletionArgument("b", ""), CompletionContext({})
            ),
            "2025-03-26",
            CompleteRequestParams(PromptReference("a"), CompletionArgument("b", "")),
        ),
        (
            ClientCapabilities(elicitation=ElicitationCapability()),
            "2025-03-26",
            ClientCapabilities(),
        ),
        (
            ListRootsResult([Root("file:///a", meta={})]),
            "2025-03-26",
            ListRootsResult([Root("file:///a")]),
        ),
        # 2024-11-05
        (
            result(SOUND),
            "2024-11-05",
            result(TextContent("[audio/wav]", Annotations(["user"], 1))),
        ),
        (TITLED_TOOL, "2024-11-05", ToolDefinition("add", OBJECT)),
        (ServerCapabilities(completions={}), "2024-11-05", ServerCapabilities()),
        (
            ProgressNotificationParams(1, 0.5, message="half"),
            "2024-11-05",
            ProgressNotificationParams(1, 0.5),
        ),
    ],
)
def test_revisions_translate_newer_features(value: Any, version: str, becomes: Any) -> None:
    """A feature that an older revision lacks is left out or translated."""
    assert becomes == REVISIONS[version].down(value)
    assert value is LATEST.down(value) is LATEST.up(value)


@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.parametrize(
    "value",
    [
        result(TextContent("hi")),
        GetPromptResult([PromptMessage("user", TextContent("hi"))]),
        CallToolRequestParams("add"),
        ServerCapabilities(),
        {"a": 1},
        [TextContent("hi")],
        None,
    ],
)
def test_revisions_copy_no_value_without_differences(version: str, value: object) -> None:
    """A value that needs no translation stays the same object, up and down."""
    assert value is REVISIONS[version].down(value) is REVISIONS[version].up(value)


@pytest.mark.parametrize("content", [{}, {"a": 1}, msgspec.Raw(b'{"a": 1}'), msgspec.UNSET])
def test_revisions_of_2025_have_structured_objects(content: object) -> None:
    """Structured content that is an object is kept, encoded or not."""
    value = result(structured_content=content)

    assert value is V2025_11_25.down(value) is V2025_06_18.down(value)


def test_results_of_revisions_before_2026_are_not_cacheable() -> None:
    """Their results have no time to live: they must neither be cached nor shared."""
    old = v2025_11_25.ListToolsResult([TITLED_TOOL], "c", meta={"a.b/c": 1})

    new = tools.ListToolsResult(
        [TITLED_TOOL], ttl_ms=0, cache_scope="private", next_cursor="c", meta={"a.b/c": 1}
    )
    assert new == V2024_11_05.up(old)
    assert old == V2025_11_25.down(new)


def test_revisions_before_2026_ignore_members_of_newer_ones() -> None:
    """Answers, capabilities and a log level are ignored in a request of a revision without them."""
    smuggled = CallToolRequestParams(
        "a",
        input_responses={"a": {}},
        request_state="s",
        meta=RequestMeta(client_capabilities=ClientCapabilities(), log_level="debug"),
    )

    for revision in LEGACY:
        assert revision.up(smuggled) == CallToolRequestParams("a")


def test_revision_2025_11_25_adds_an_id_to_a_url() -> None:
    """The id is derived from the URL, and removed in 2026-07-28."""
    question = ElicitRequestParams("Sign in", url="https://a.b/?token=1", mode="url")
    other = ElicitRequestParams("Sign in", url="https://a.b/?token=2", mode="url")

    translated = V2025_11_25.down(question)

    assert translated == V2025_11_25.down(question)
    assert translated.elicitation_id != V2025_11_25.down(other).elicitation_id
    assert b'"elicitationId":"' in msgspec.json.encode(translated)
    assert question == V2025_11_25.up(translated)


@pytest.mark.parametrize(
    "question",
    [
        ElicitRequestParams("Sign in", url="https://a.b/", mode="url"),
        asks(type="array", items={"type": "string", "enum": ["a"]}),
    ],
)
def test_revisions_before_2025_11_25_lack_some_questions(question: ElicitRequestParams) -> None:
    """A URL and a choice of several values cannot be translated."""
    for revision in (V2025_06_18, V2025_03_26, V2024_11_05):
        with pytest.raises(MissingCapability) as refused:
            revision.down(question)
        assert "elicitation" in refused.value.data["requiredCapabilities"]


def test_revisions_translate_subclasses_of_a_value() -> None:
    """A user's subclass of a value is translated like the value."""

    class Greeting(TextContent, tag="text"):
        """A text."""

    assert V2025_03_26.down(Greeting("hi", meta={})) == Greeting("hi")
