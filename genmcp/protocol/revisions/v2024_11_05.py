"""Revision 2024-11-05, where it differs from 2025-03-26: no audio, and HTTP with SSE."""

from typing import Final

from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.content import AudioContent, TextContent
from genmcp.protocol.params import ProgressNotificationParams
from genmcp.protocol.revisions import v2025_03_26
from genmcp.protocol.revisions.revision import Conversion, without
from genmcp.protocol.tools import ToolDefinition


def _audio_as_text(audio: AudioContent) -> TextContent:
    return TextContent(f"[{audio.mime_type}]", audio.annotations)


_DOWN: Final[dict[type, Conversion]] = {
    AudioContent: _audio_as_text,
    ToolDefinition: without("annotations"),
    ServerCapabilities: without("completions"),
    ProgressNotificationParams: without("message"),
}

REVISION: Final = v2025_03_26.REVISION.older(
    "2024-11-05",
    batches=False,
    down=_DOWN,
    up={},
)
