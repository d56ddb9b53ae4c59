"""The prompts the official suite expects."""

from typing import Any

from genmcp import Image, embedded, prompt
from tests.conformance.tools import png

__all__ = ["PROMPTS"]


@prompt(name="test_simple_prompt")
async def simple() -> str:
    """Says something simple."""
    return "This is a simple prompt for testing."


@prompt(
    name="test_prompt_with_arguments",
    completions={"arg1": ["test", "testing"], "arg2": ["value"]},
)
async def with_arguments(arg1: str, arg2: str) -> str:
    """Says its arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt(name="test_prompt_with_embedded_resource")
async def with_embedded_resource(resourceUri: str) -> Any:  # noqa: N803  # the suite's own name
    """Says a resource."""
    text = "Embedded resource content for testing."
    return [
        embedded(resourceUri, text, "text/plain"),
        "Please process the embedded resource above.",
    ]


@prompt(name="test_prompt_with_image")
async def with_image() -> Any:
    """Shows a picture."""
    return [Image(png()), "Please analyze the image above."]


PROMPTS = [
    simple,
    with_arguments,
    with_embedded_resource,
    with_image,
]
