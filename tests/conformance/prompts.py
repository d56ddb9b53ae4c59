"""The prompts that the official suite expects."""

from typing import Any

import msgspec

from genmcp import (
    Channel,
    Continue,
    Image,
    Outcome,
    Prompt,
    PromptRequest,
    elicit,
    embedded_resource,
    prompt,
)
from tests.conformance.questions import filled, given
from tests.conformance.tools import png

__all__ = ["PROMPTS"]


@prompt(name="test_simple_prompt")
async def simple() -> str:
    """Returns a fixed message."""
    return "This is a simple prompt for testing."


@prompt(
    name="test_prompt_with_arguments",
    completions={"arg1": ["test", "testing"], "arg2": ["value"]},
)
async def with_arguments(arg1: str, arg2: str) -> str:
    """Returns its arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt(name="test_prompt_with_embedded_resource")
async def with_embedded_resource(resourceUri: str) -> Any:  # noqa: N803  # the suite's own name
    """Returns a resource."""
    text = "Embedded resource content for testing."
    return [
        embedded_resource(resourceUri, text, "text/plain"),
        "Please process the embedded resource above.",
    ]


@prompt(name="test_prompt_with_image")
async def with_image() -> Any:
    """Shows a picture."""
    return [Image(png()), "Please analyze the image above."]


class Context(msgspec.Struct):
    """The topic of the prompt."""

    context: str


class Asking(Prompt):
    """Asks the user for the topic."""

    name = "test_input_required_result_prompt"

    async def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> Continue:
        question = elicit("What context should the prompt use?", Context)
        return Continue("user_context", question)

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"Use this context: {filled(given(outcome)).context}"


PROMPTS = [
    simple,
    with_arguments,
    with_embedded_resource,
    with_image,
    Asking,
]
