"""The console: the page that an endpoint serves at its own URL to browsers, and a frame for apps.

The page is one document without data of the server: what it shows, it asks the endpoint for, as an
MCP client that logs in like any other. Its script is the files in `genmcp/console/page`, one after
another, so that the page needs no other URL than that of the endpoint. A frame for an app of the
server (SEP-1865) is a document of its own at that URL, with `?app`: a document without a URL would
have the policy of the page, under which no script of an app runs.
"""

import gzip
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from genmcp._transports.request import ClientLeft, HttpRequest
from genmcp._transports.writing import START, write

# One module in one scope: a document cannot import modules that have no URL of their own, and an
# endpoint has one URL, which a proxy may have renamed. `tsc` checks the files in the same scope.
_SCRIPTS: Final = (
    *("json", "storage", "dom", "schema", "challenges", "mcp", "login", "form", "results"),
    *("questions", "tasks", "task_view", "calls", "events", "activity", "resources", "apps"),
    *("skills", "views"),
    "app",  # starts the page
)


# The page of an app comes from the console, with a policy for it that allows what the server has
# declared. The sandbox takes its origin, also where a browser opens the URL itself.
_FRAME_POLICY: Final = (
    "sandbox allow-scripts allow-forms",
    "default-src * data: blob: 'unsafe-inline'",
    "object-src 'none'",
    "form-action 'none'",
    "frame-ancestors 'self'",
)


class Console:
    """The page and the frame, as an endpoint serves them.

    Args:
        origins: the origins, besides its own, that the page may send requests to: those of the
            authorization servers where it logs in.
    """

    def __init__(self, origins: Iterable[str] = ()) -> None:
        page, script, style = _page()
        policy = [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            " ".join(("connect-src 'self'", *origins)),
            "img-src data:",
            "media-src data:",
            "frame-src 'self'",  # a frame can be navigated to no other host
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
        self._page = _HtmlPage(page, policy)
        frame = (files("genmcp.console") / "page" / "frame.html").read_bytes()
        self._frame = _HtmlPage(frame, _FRAME_POLICY)

    async def serve(self, http: HttpRequest) -> None:
        """Respond with the page, or a frame. They are public, and the same for everyone."""
        shown = self._frame if http.scope.get("query_string") == b"app" else self._page
        await shown.serve(http)


class _HtmlPage:
    """An HTML document with its Content-Security-Policy."""

    def __init__(self, page: bytes, policy: Iterable[str]) -> None:
        self._page = page
        self._zipped = gzip.compress(page, mtime=0)
        etag = b'"%s"' % sha256(page).hexdigest()[:16].encode()
        self._etag = etag
        self._headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", "; ".join(policy).encode()),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-cache"),
            (b"etag", etag),
            (b"vary", b"accept, accept-encoding"),
        ]

    async def serve(self, http: HttpRequest) -> None:
        """Respond with the document, or that the browser has it already."""
        status, headers, body = 200, self._headers, self._page
        if http.table.get(b"if-none-match") == self._etag:
            status, body = 304, b""
        elif b"gzip" in http.table.get(b"accept-encoding", b""):
            headers, body = [*headers, (b"content-encoding", b"gzip")], self._zipped
        length = [(b"content-length", b"%d" % len(body))] if status == 200 else []
        with suppress(ClientLeft):
            start = {"type": START, "status": status, "headers": [*headers, *length]}
            await write(http, start, body)


@cache
def _page() -> tuple[bytes, str, str]:
    """Return the document, and its script and style, whose hashes its policy contains."""
    folder = files("genmcp.console") / "page"
    script = "\n" + "\n".join((folder / f"{each}.js").read_text("utf-8") for each in _SCRIPTS)
    style = (folder / "console.css").read_text("utf-8")
    page = (folder / "index.html").read_text("utf-8")
    for tag, text in (("style", style), ('script type="module"', script)):
        page = page.replace(f"<{tag}>", f"<{tag}>{text}")
    return page.encode(), script, style


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
