"""Who speaks: the software at either end, and the icons it and its offers are shown with."""

from collections.abc import Sequence
from typing import Literal

from genmcp.protocol.value import Value

__all__ = ["Icon", "Implementation"]


class Icon(Value):
    """A picture for display: 2026-07-28, basic, "Icons".

    *src* is an `https:` or `data:` URI; *sizes* are `"48x48"` or `"any"`.
    """

    src: str
    mime_type: str | None = None
    sizes: Sequence[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Value):
    """The name and version of a client or server, for display and logs only."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None
