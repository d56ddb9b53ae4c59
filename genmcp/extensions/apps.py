"""`App`: a page that hosts show for the results of tools (SEP-1865, MCP Apps)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.component import instance_of
from genmcp.core.request import Request
from genmcp.decorator import FunctionTool, function_component
from genmcp.errors import ConfigurationError
from genmcp.extensions.extension import Extension
from genmcp.protocol.content import ResourceContents
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import Result, Value
from genmcp.resources.resource import Resource
from genmcp.tools import Tool

UI: Final = "io.modelcontextprotocol/ui"
MIME_TYPE: Final = "text/html;profile=mcp-app"

_URI: Final = re.compile(r"ui://[A-Za-z0-9][A-Za-z0-9._~/-]*")
# One origin. A space or semicolon would add a source or a directive to the policy of the host.
_ORIGIN: Final = re.compile(r"(?:https?|wss?)://(?:\*\.)?[A-Za-z0-9.-]+(?::[0-9]{1,5})?")

Permission = Literal["camera", "microphone", "geolocation", "clipboardWrite"]
_PERMISSIONS: Final = ("camera", "microphone", "geolocation", "clipboardWrite")


class Csp(Value, kw_only=True):
    """The origins that the page of an app may use, such as `https://*.example.com`.

    Without this, a host lets it load nothing from elsewhere.

    Args:
        connect_domains: for requests of its scripts.
        resource_domains: for scripts, styles, images, fonts and media.
        frame_domains: for frames in the page.
        base_uri_domains: for its base URI.

    Raises:
        ConfigurationError: one is not an origin.
    """

    connect_domains: Sequence[str] | None = None
    resource_domains: Sequence[str] | None = None
    frame_domains: Sequence[str] | None = None
    base_uri_domains: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check every origin."""
        for name in self.__struct_fields__:
            domains = getattr(self, name)
            if isinstance(domains, str):
                raise ConfigurationError(f"Csp.{name} must be a list of origins, not {domains!r}")
            for each in domains or ():
                if not isinstance(each, str) or not _ORIGIN.fullmatch(each):
                    raise ConfigurationError(f"Csp.{name}: {each!r} is not an origin")


class App(Extension):
    """A page that a host shows beside the result of a tool, in a frame that cannot reach the host.

        App("ui://shop/stock", Path("stock.html"), tools=[show_stock], app_tools=[reorder])

    Hosts without the extension use the tools as any other: their results need a text as well.

    Args:
        uri: the URI of the page, which begins with `ui://`.
        html: the HTML document, or the path of its file, or of a folder with an `index.html`.
            A file is read for each request.
        tools: the tools whose results it shows, as a suite accepts them.
        app_tools: tools that the page calls, and no model. They are listed for clients with the
            extension only, which hide them from the model. That is no access control.
        csp: the origins that the page may use. Default: none.
        permissions: what the page asks the browser for. Default: nothing.
        prefers_border: whether the host should draw a border. Default: it decides.
        title: as listed. Default: none.
        description: as listed. Default: none.

    Raises:
        ConfigurationError: an argument is invalid, or the file does not exist.
    """

    name = UI
    several = True

    def __init__(
        self,
        uri: str,
        html: str | Path,
        *,
        tools: Iterable[object] = (),
        app_tools: Iterable[object] = (),
        csp: Csp | None = None,
        permissions: Iterable[Permission] = (),
        prefers_border: bool | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            raise ConfigurationError(f"App: the URI must begin with ui://, and be one: {uri!r}")
        if not isinstance(csp, Csp | None):
            raise ConfigurationError(f"App: csp must be a Csp(...), not {csp!r}")
        wanted = [*permissions]
        if unknown := [each for each in wanted if each not in _PERMISSIONS]:
            raise ConfigurationError(f"App: {unknown[0]!r} is none of {', '.join(_PERMISSIONS)}")
        self.uri = uri
        self._html = _checked(html)
        ui: dict[str, Any] = {
            "csp": None if csp is None else msgspec.to_builtins(csp),
            "permissions": {each: {} for each in wanted} or None,
            "prefersBorder": prefers_border,
        }
        self._meta = {"ui": {key: value for key, value in ui.items() if value is not None}}
        page = Resource(uri, self._contents, name=uri.rpartition("/")[2], mime_type=MIME_TYPE)
        page.title, page.description, page.meta = title, description, self._meta
        self.resources = (page,)
        shown: dict[str, Any] = {"resourceUri": uri}
        opening = [_with_ui(each, shown) for each in tools]
        hidden = [_with_ui(each, {**shown, "visibility": ["app"]}) for each in app_tools]
        self.tools = (*opening, *hidden)
        self._hidden = frozenset(each.name for each in hidden)

    def shown_by(self, channel: Channel) -> bool:
        """Return whether the client of *channel* shows apps: otherwise a result needs its text."""
        settings = self.declared_by(channel.client)
        types = None if settings is None else settings.get("mimeTypes")
        return isinstance(types, list | tuple) and MIME_TYPE in types

    def extend(self, request: Request, result: Result, channel: Channel) -> Result:
        """Return a list of tools without those of the page, for a client without the extension."""
        if not self._hidden or not isinstance(result, ListToolsResult) or self.shown_by(channel):
            return result
        # A client that does not know `visibility` would offer them to its model.
        return replace(
            result, tools=[each for each in result.tools if each.name not in self._hidden]
        )

    def _contents(self) -> ResourceContents:
        html = self._html
        text = html if isinstance(html, str) else html.read_text("utf-8")
        return ResourceContents(self.uri, text=text, mime_type=MIME_TYPE, meta=self._meta)


def _checked(html: object) -> str | Path:
    """Return the HTML document, or the path of its file."""
    if isinstance(html, Path):
        path = html / "index.html" if html.is_dir() else html
        if not path.is_file():
            raise ConfigurationError(f"App: there is no file {path}")
        return path
    if not isinstance(html, str) or not html.lstrip().startswith("<"):
        raise ConfigurationError(f"App: html must be a document, or the Path of one: {html!r:.80}")
    return html


def _with_ui(given: object, ui: Mapping[str, Any]) -> Tool[Any]:
    """Return a copy of the tool *given* with *ui* in the `_meta` of its list entry.

    A copy, since the user's own may be a tool of other servers as well.
    """
    tool = copy(instance_of(given, Tool))
    if tool is None:
        found = function_component(FunctionTool, given)
        tool = FunctionTool(found._function, found._options, found.function_steps)
    if "ui" in (tool.meta or {}):
        raise ConfigurationError(f"App: the tool {tool.name} belongs to another app")
    tool.meta = {**(tool.meta or {}), "ui": ui}
    return tool
