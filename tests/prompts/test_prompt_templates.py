"""Prompt templates: braces, sections and values."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.content import Image, assistant
from genmcp.core.request import ClientInfo, PromptRequest
from genmcp.errors import ConfigurationError
from genmcp.prompts.prompt import PromptRoute
from genmcp.prompts.template import PromptTemplate, Template
from genmcp.protocol.content import TextContent
from genmcp.protocol.prompts import GetPromptRequestParams, PromptArgument
from genmcp.protocol.revisions.chain import LATEST


async def filled(prompt: PromptTemplate, **values: str) -> list[Any]:
    nothing: Any = None  # a template needs no channel
    request = PromptRequest(
        id=1,
        method="prompts/get",
        params=GetPromptRequestParams(name="filled"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
        arguments=values,
    )
    got = await prompt.get(request, nothing)
    return [
        message.content.text if isinstance(message.content, TextContent) else message.content
        for message in got.messages
    ]


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("", {}, ""),
        ("Hi {name}!", {"name": "Ann"}, "Hi Ann!"),
        ("{a}{b}", {"a": "1", "b": "2"}, "12"),
        ("Hi {name}!", {}, "Hi !"),
        ("{a}", {"a": "{b}", "b": "no"}, "{b}"),
        ("{a}", {"a": "{?b?x}{{c}}"}, "{?b?x}{{c}}"),
        ("a{?b? and {b}}.", {"b": "c"}, "a and c."),
        ("a{?b? and {b}}.", {}, "a."),
        ("a{?b? and {b}}.", {"b": ""}, "a."),
        ("{?a?1{?b?2}}", {"a": "x", "b": "x"}, "12"),
        ("{?a?1{?b?2}}", {"a": "x"}, "1"),
        ("{?a?1{?b?2}}", {"b": "x"}, ""),
        ("{?a?{x: {y}}}", {"a": "1", "y": "2"}, "{x: 2}"),
        ('{"a": {"b": 1}}', {}, '{"a": {"b": 1}}'),
        ("{{name}}", {"name": "no"}, "{name}"),
        ("{{{name}}}", {"name": "x"}, "{x}"),
        ("{{}}", {}, "{}"),
        ("{?a?{{a}}}", {"a": "x"}, "{a}"),
        ("{{ {a} { } }}", {"a": "x"}, "{ x { } }"),
        (":{ :} }}", {}, ":{ :} }}"),
        ("{ a } {?a} {1}", {"a": "x"}, "{ a } {?a} {1}"),
        ("{arg-1.x}", {"arg-1.x": "y"}, "y"),
        ("é{ñ}", {"ñ": "ü"}, "éü"),
    ],
)
def test_template_fills_places_and_sections(
    text: str, values: dict[str, str], expected: str
) -> None:
    """Placeholders are replaced once; other braces are kept."""
    assert expected == Template(text).fill(values)


@given(st.text(alphabet="ab{}?\n ", max_size=30), st.text(alphabet="{}?ab", min_size=1))
def test_placeholder_in_a_value_is_kept(text: str, value: str) -> None:
    """A value is inserted unchanged, also if it contains braces."""
    try:
        template = Template(text)
    except ConfigurationError:
        return
    marked = template.fill(dict.fromkeys(template.names, "\0"))

    assert marked.replace("\0", value) == template.fill(dict.fromkeys(template.names, value))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a {?b? c", "line 1: `{?b?` is never ended"),
        ("a\n{{b", "line 2: `{{` is never ended"),
        ("{{b}", "line 1: a brace where `}}` was to end its `{{`"),
        ("\n\n{{ } }}", "line 3: a brace where `}}` was to end its `{{`"),
        ("{?a? { }", "line 1: `{?a?` is never ended"),
        ("{ {?a? x", "line 1: `{?a?` is never ended"),
    ],
)
def test_unclosed_section_is_rejected(text: str, error: str) -> None:
    """An unclosed section or a doubled brace is reported with its line."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        Template(text)
    with pytest.raises(ConfigurationError, match=re.escape(f"PromptTemplate.messages: {error}")):
        PromptTemplate(name="x", messages=text)


def test_template_arguments_are_those_of_its_texts() -> None:
    """Without a list of its own: required where one stands outside all sections."""
    prompt = PromptTemplate(
        name="review",
        messages=[
            "{?language?In {language}: {dialect}}{code}",
            assistant("{code} {tone}"),
            "{{x}}",
        ],
    )

    assert PromptRoute.of(prompt).definition.arguments == [
        PromptArgument("language"),
        PromptArgument("dialect"),
        PromptArgument("code", required=True),
        PromptArgument("tone", required=True),
    ]


def test_template_does_not_use_the_docstring_of_its_class() -> None:
    """The docstring of the class is not the description of each prompt."""
    assert None is PromptRoute.of(PromptTemplate(name="x", messages="")).definition.description


async def test_template_fills_texts_only_and_keeps_roles() -> None:
    """Pictures pass through, and an assistant's text is filled in too."""
    picture = Image(b"x")
    prompt = PromptTemplate(name="x", messages=["{a}", picture, assistant("{a}!")])

    assert ["1", picture.block(), "1!"] == await filled(prompt, a="1")


async def test_template_may_be_a_subclass() -> None:
    """Attributes are those of the class, or given."""

    class Review(PromptTemplate):
        """Asks for a review."""

        name = "review"
        arguments = [PromptArgument("code", "The code", required=True)]
        messages = "Review {code}"

    route = PromptRoute.of(Review())

    assert route.definition.description == "Asks for a review."
    assert Review.arguments == route.definition.arguments
    assert await filled(Review(messages="Check {code}"), code="x") == ["Check x"]


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({}, "PromptTemplate.messages: NoneType is no message"),
        ({"messages": 5}, "PromptTemplate.messages: int is no message"),
        ({"messages": "", "text": ""}, "PromptTemplate takes no text"),
        (
            {"messages": "{a} {b}", "arguments": [PromptArgument("a")]},
            "messages: b is no argument; braces around a word of the text are written {{b}}",
        ),
        (
            {"messages": "{a}", "arguments": dict},
            "PromptTemplate.arguments must be a list of PromptArgument",
        ),
    ],
)
def test_invalid_prompt_template_is_rejected(attributes: dict[str, Any], error: str) -> None:
    """The error is raised where it is made."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        PromptTemplate(name="x", **attributes)
