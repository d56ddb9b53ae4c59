"""Results: the values that hooks may return, and the content that is sent for them.

| a tool returns | content | structuredContent |
|---|---|---|
| str | a text block | - |
| None | - | - |
| content, `Image`, `Audio`, `(bytes, mime type)`, lists of these | unchanged | - |
| dict, struct, dataclass, pydantic model | its JSON as text | the object |
| list, number, bool | its JSON as text | the value, if the tool has an output schema |
| date, UUID, Decimal, enum of texts: a JSON string | the string as text | likewise |
| `CallToolResult`, `result(...)` | unchanged | unchanged |

| a prompt returns | messages |
|---|---|
| str, content, `Image`, `Audio`, `(bytes, mime type)` | one, of the user |
| `user(...)`, `assistant(...)`, a PromptMessage | one, unchanged |
| a list of these | one after another |
| `GetPromptResult` | unchanged |

| `read` of a resource returns | contents | media type, if none is declared |
|---|---|---|
| str | text | by the URI's suffix, else text/plain |
| bytes | blob | by the URI's suffix, else application/octet-stream |
| `(bytes, mime type)` | blob | as given |
| dict, struct, dataclass, pydantic model, number, bool | its JSON as text | application/json |
| date, UUID, Decimal, enum of texts: a JSON string | as a str, or JSON if declared | as a str |
| `ResourceContents` | unchanged | - |
| a list of these | one after another; a list within it is JSON | each its own |
| `ReadResourceResult` | unchanged | - |
"""

import base64
import mimetypes
import posixpath
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from genmcp.binding import BoundValue
from genmcp.core.outcome import Done, Failed
from genmcp.core.waiting import ExternalJob, Job, JobGroup, returned
from genmcp.errors import ContractError
from genmcp.protocol.client_features import (
    CreateMessageRequest,
    ElicitRequest,
    ListRootsRequest,
    SamplingMessage,
)
from genmcp.protocol.content import (
    Annotations,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    Role,
    TextContent,
)
from genmcp.protocol.prompts import GetPromptResult, PromptMessage
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.question.question import Question
from genmcp.tasks.values import json_form

_BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)


class Image(msgspec.Struct, frozen=True):
    """An image. Its bytes are encoded to base64 when it is sent."""

    data: bytes
    mime_type: str = "image/png"
    annotations: Annotations | None = None

    def block(self) -> ImageContent:
        """Return the content block."""
        return ImageContent(_base64(self.data), self.mime_type, self.annotations)


class Audio(msgspec.Struct, frozen=True):
    """Audio. Its bytes are encoded to base64 when it is sent."""

    data: bytes
    mime_type: str = "audio/wav"
    annotations: Annotations | None = None

    def block(self) -> AudioContent:
        """Return the content block."""
        return AudioContent(_base64(self.data), self.mime_type, self.annotations)


CONTENT: Final = (*_BLOCKS, Image, Audio, CallToolResult)
"""The types of values that are content. Values of other types are data, which is sent as JSON."""


def resource_link(uri: str, name: str, **members: Any) -> ResourceLink:
    """Return a link to a resource that the client may read.

    Args:
        uri: that of the resource.
        name: that of the resource.
        members: further members of `ResourceLink`.
    """
    return ResourceLink(uri, name, **members)


def embedded_resource(
    uri: str, data: str | bytes, mime_type: str | None = None
) -> EmbeddedResource:
    """Return a resource with its contents: text if *data* is a str, else base64."""
    if isinstance(data, str):
        return EmbeddedResource(ResourceContents(uri, text=data, mime_type=mime_type))
    return EmbeddedResource(ResourceContents(uri, blob=_base64(data), mime_type=mime_type))


def result(
    *content: Any,
    data: Any = msgspec.UNSET,
    as_text: bool = True,
    error: bool | str = False,
    meta: Mapping[str, Any] | None = None,
) -> CallToolResult:
    """Return the result of a tool, composed of several parts.

        result("Three orders found.", data={"orders": [1, 2, 3]})
        result(error="The warehouse does not answer.")

    Args:
        content: texts, content blocks, `Image`, `Audio` or `(bytes, mime type)`. One of them may be
            a dict, which becomes the structured content. Its JSON is also sent as a text block, at
            the position of the dict among the blocks.
        data: the structured content.
        as_text: whether the JSON of *data* is also sent as a text block, for clients that do not
            read structured content.
        error: True if the call failed, or a text that explains the failure.
        meta: the `_meta` of the result.

    Raises:
        ContractError: more than one structured content is passed, or a part is not content.
    """
    blocks: list[Any] = []
    structured = [part for part in content if isinstance(part, Mapping)]
    for part in content:
        blocks += [_text_of(json_of(part))] if isinstance(part, Mapping) else _blocks(part)
    if data is not msgspec.UNSET:
        structured.append(data)
        blocks += [_text_of(json_of(data))] if as_text else []
    if len(structured) > 1:
        raise ContractError("a result has one structured content; two were given")
    if not isinstance(error, bool | str | None):
        raise ContractError(f"error must be True or a text, not {error!r}")
    if error and isinstance(error, str):
        blocks.append(TextContent(error))
    return CallToolResult(
        content=blocks,
        structured_content=msgspec.Raw(json_of(structured[0])) if structured else msgspec.UNSET,
        # `error=""` is an error, too: `str(exception)` is empty for an exception without a message.
        is_error=bool(error) or error == "",
        meta=meta,
    )


def to_result(value: Any, *, structured: bool) -> CallToolResult:
    """Convert *value*, which a hook of a tool returned, to the result of the call.

    Args:
        value: the value that the hook returned.
        structured: whether the tool has an output schema. If it has, any JSON value is sent as
            structured content; if not, only objects are.

    Raises:
        ContractError: a tool must not return such a value.
    """
    if isinstance(value, BoundValue):
        value = value.id
    if isinstance(value, CallToolResult):
        given = value.structured_content
        if given is msgspec.UNSET or isinstance(given, msgspec.Raw):
            return value
        return msgspec.structs.replace(value, structured_content=msgspec.Raw(json_of(given)))
    if not (structured and isinstance(value, str | None)):
        blocks = _blocks_or_none(value)
        if blocks is not None:
            return CallToolResult(content=blocks)
    # The data is encoded once and kept as `msgspec.Raw`, so that the bytes that are validated are
    # the bytes that are sent.
    text = json_of(value)
    kept = structured or text.startswith(b"{")
    return CallToolResult(
        content=[_text_of(text)],
        structured_content=msgspec.Raw(text) if kept else msgspec.UNSET,
    )


def json_of(data: Any) -> bytes:
    """Encode *data*, which may contain structs, dataclasses, dates and pydantic models, as JSON.

    Raises:
        ContractError: *data* contains a value without a JSON form; or it is not data, but a
            question, a job, an outcome, or a result of another protocol method.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        raise ContractError(
            "bytes need a type: Image, Audio, (bytes, mime type) or embedded_resource(...)"
        )
    _check_is_data(data)
    try:
        return _json.encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"it is not JSON: {error}") from error


# A hook must return these in a Continue. Each of these types has a JSON form: without the check, a
# forgotten Continue would appear to succeed, and send the arguments of a job to the client.
_WAITED_FOR: Final = (
    Question,
    Job,
    ExternalJob,
    JobGroup,
    CreateMessageRequest,
    ElicitRequest,
    ListRootsRequest,
)


# The check intersects this set with the bases of a type. `isinstance` with a tuple of these classes
# checks each in turn, which took 2 us.
_NOT_DATA: Final = frozenset({*_WAITED_FOR, Done, Failed, PromptMessage, SamplingMessage, Result})


def _check_is_data(data: Any) -> None:
    """Reject a value that is not data, such as a question, a job or an outcome.

    Only the first value of a dict or a list is examined, so that the cost does not grow with the
    data. That is enough for a dict of questions, all values of which are questions.

    Raises:
        ContractError: *data* is, or contains, such a value.
    """
    kind = type(data)
    if kind is dict:
        data = next(iter(data.values()), None)
    elif (kind is list or kind is tuple) and data:
        data = data[0]
    if _NOT_DATA.isdisjoint(type(data).__mro__):
        return
    name = type(data).__name__
    if isinstance(data, _WAITED_FOR):
        raise ContractError(f"{name} is not data: {returned(data)}")  # type: ignore[arg-type]
    if isinstance(data, CallToolResult):
        raise ContractError("CallToolResult is not data: return it by itself")
    raise ContractError(
        f"{name} is not data: return what it holds, or put a question into a Continue"
    )


def _blocks_or_none(value: Any) -> list[Any] | None:
    """Return the content blocks of *value*, or None if it is data."""
    if isinstance(value, str):
        return [TextContent(value)]
    if value is None:
        return []
    if isinstance(value, _BLOCKS):
        return [value]
    if isinstance(value, Image | Audio):
        return [value.block()]
    if _is_bytes_and_mime_type(value):
        return [_block_of_bytes(*value)]
    if isinstance(value, list | tuple) and any(map(_is_content, value)):
        return [block for item in value for block in _blocks(item)]
    return None


def _is_content(value: Any) -> bool:
    return isinstance(value, (*_BLOCKS, Image, Audio)) or _is_bytes_and_mime_type(value)


def _is_bytes_and_mime_type(value: Any) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [bytes, str]


def _block_of_bytes(data: bytes, mime_type: str) -> ImageContent | AudioContent:
    if mime_type.startswith("image/"):
        return Image(data, mime_type).block()
    if mime_type.startswith("audio/"):
        return Audio(data, mime_type).block()
    raise ContractError(
        f"{mime_type!r} is neither image nor audio; use embedded_resource(uri, bytes, type)"
    )


def _blocks(part: Any) -> list[Any]:
    blocks = _blocks_or_none(part)
    if blocks is None:
        raise ContractError(f"{type(part).__name__} is not content; give data with data=")
    return blocks


def _text_of(json: bytes) -> TextContent:
    """Return the text block of *json*: of a JSON string, such as a date, without its quotes."""
    return TextContent(msgspec.json.decode(json) if json.startswith(b'"') else json.decode())


_json = msgspec.json.Encoder(enc_hook=partial(json_form, round_trip=False))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def user(content: Any) -> PromptMessage:
    """Return a prompt message with the role "user"; *content* is a text or other content.

    Raises:
        ContractError: *content* is not content, or is more than one block.
    """
    return _message(content, "user")


def assistant(content: Any) -> PromptMessage:
    """Return a prompt message with the role "assistant"; *content* is a text or other content.

    Raises:
        ContractError: *content* is not content, or is more than one block.
    """
    return _message(content, "assistant")


def prompt_result(value: Any, description: str | None = None) -> GetPromptResult:
    """Convert *value*, which a hook of a prompt returned, to the result that is sent.

    *description* is that of the prompt, which a `GetPromptResult` has by itself.

    Raises:
        ContractError: a prompt must not return such a value.
    """
    if isinstance(value, GetPromptResult):
        return value
    # A tuple that begins with bytes is not a list of messages but one content: (bytes, mime type).
    is_list = isinstance(value, list | tuple) and not (value and isinstance(value[0], bytes))
    parts = value if is_list else [value]
    messages = [part if isinstance(part, PromptMessage) else user(part) for part in parts]
    return GetPromptResult(messages=messages, description=description)


def _message(content: Any, role: Role) -> PromptMessage:
    if not isinstance(content, (str, tuple, *CONTENT)) or isinstance(content, CallToolResult):
        raise ContractError(
            f"{type(content).__name__} is no message: return a text, content, user(...) or "
            f"assistant(...), or a list of these"
        )
    blocks = result(content).content
    if len(blocks) != 1:
        raise ContractError(f"a message has one content, not {len(blocks)}")
    return PromptMessage(role, blocks[0])


# The table built into Python, not the files of the machine, so that all servers send the same type.
# Some types are added that only later versions of Python have.
_TYPES: Final[Mapping[str, str]] = {
    **mimetypes.MimeTypes(filenames=()).types_map[True],
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


_QUERY = re.compile(r"[?#]")


def guessed_type(path: str) -> str | None:
    """Return the media type for the suffix of *path*; None if the suffix is unknown."""
    return _TYPES.get(posixpath.splitext(path)[1].lower())


def contents_of(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """Convert *value*, which a hook has returned for the resource *uri*, to its contents.

    *mime_type* is the declared media type of the resource, or None.

    Raises:
        ContractError: a hook must not return such a value.
    """
    if isinstance(value, list) or (isinstance(value, tuple) and not _is_bytes_and_mime_type(value)):
        return [_contents(each, uri, mime_type) for each in value]
    return [_contents(value, uri, mime_type)]


def size_of(contents: Sequence[ResourceContents]) -> int:
    """Return the size of *contents* in bytes: of texts in UTF-8, of blobs without base64."""
    return sum(
        len((each.text or "").encode()) + len(b64decode(each.blob or "")) for each in contents
    )


def _contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        if value.mime_type is not None or mime_type is None:
            return value
        return msgspec.structs.replace(value, mime_type=mime_type)
    if isinstance(value, str):
        return ResourceContents(uri, text=value, mime_type=mime_type or _guessed(uri, "text/plain"))
    if _is_bytes_and_mime_type(value):
        value, mime_type = value
    if isinstance(value, bytes | bytearray | memoryview):
        return ResourceContents(
            uri,
            blob=b64encode(value).decode("ascii"),
            mime_type=mime_type or _guessed(uri, "application/octet-stream"),
        )
    text = json_of(value)
    if text.startswith(b'"') and "json" not in (mime_type or _guessed(uri, "text/plain")):
        return _contents(msgspec.json.decode(text), uri, mime_type)
    return ResourceContents(uri, text=text.decode(), mime_type=mime_type or "application/json")


def _guessed(uri: str, default: str) -> str:
    return guessed_type(_QUERY.split(uri, maxsplit=1)[0]) or default
