"""Content for a model or a user: 2026-07-28, server/tools, "Tool Result"."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from genmcp.protocol.capabilities import Icon
from genmcp.protocol.value import Value

__all__ = [
    "Annotations",
    "AudioContent",
    "ContentBlock",
    "EmbeddedResource",
    "ImageContent",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceLink",
    "Role",
    "TextContent",
]


Role = Literal["user", "assistant"]


class Annotations(Value):
    """The audience of content, its priority (0 to 1), and its last change (ISO 8601)."""

    audience: Sequence[Role] | None = None
    priority: int | float | None = None
    last_modified: str | None = None


class TextContent(Value, tag_field="type", tag="text"):
    """Text."""

    text: str
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class ImageContent(Value, tag_field="type", tag="image"):
    """An image; *data* is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class AudioContent(Value, tag_field="type", tag="audio"):
    """Audio; *data* is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class ResourceContents(Value):
    """The contents of a resource: either *text*, or *blob*, which is base64.

    The schema's TextResourceContents and BlobResourceContents.

    Raises:
        ValueError: not exactly one of *text* and *blob* is given.
    """

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None
    meta: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.blob is None):
            raise ValueError("resource contents have either `text` or `blob`")


class EmbeddedResource(Value, tag_field="type", tag="resource"):
    """The contents of a resource, within a message."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class ResourceDefinition(Value):
    """A resource as it is listed; the schema's Resource. *size* is in bytes."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: Sequence[Icon] | None = None
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None


class ResourceLink(ResourceDefinition, tag_field="type", tag="resource_link"):
    """A resource that the client may read; it need not be in the list of resources."""


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
