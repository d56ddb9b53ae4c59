"""The output of tools, resources and prompts."""

from typing import Any

import pytest

from genmcp.cli.output import BinaryContent, content_of, text_of
from genmcp.protocol.content import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

TEXT = ResourceContents("a://b", text="text")
BLOB = ResourceContents("a://b", blob="AAE=")


@pytest.mark.parametrize(
    ("content", "piece"),
    [
        (TextContent("text"), "text"),
        (TEXT, "text"),
        (EmbeddedResource(TEXT), "text"),
        (EmbeddedResource(BLOB), BinaryContent("application/octet-stream", b"\x00\x01")),
        (ImageContent("AAE=", "image/png"), BinaryContent("image/png", b"\x00\x01")),
        (AudioContent("AAE=", "audio/wav"), BinaryContent("audio/wav", b"\x00\x01")),
        (ResourceLink("a://b", "name"), "a://b (name)"),
        (ImageContent("AAE", "image/png"), "[image/png with malformed base64: Incorrect padding]"),
        ({"type": "new"}, '{"type":"new"}'),
    ],
)
def test_content_is_text_or_bytes(content: Any, piece: Any) -> None:
    """In any kind of content; unknown kinds are shown as JSON."""
    assert piece == content_of(content)


def test_bytes_among_other_contents_are_described() -> None:
    """They would spoil the text around them."""
    assert text_of(BinaryContent("image/png", b"ab")) == "[image/png, 2 bytes; --json shows them]"
