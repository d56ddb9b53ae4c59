"""Judging an HTTP head: accepted, or refused with the status the specification gives.

Everything here looks at bytes of a head and answers; nothing is read or sent. The verdicts on
single header values are remembered, since clients repeat themselves.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from genmcp.errors import ConfigurationError, Refused

__all__ = ["Gate", "Head", "Security", "cors_headers", "preflight_headers"]

Headers = Iterable[tuple[bytes, bytes]]

_ONCE = (
    b"content-length",
    b"content-type",
    b"host",
    b"last-event-id",
    b"mcp-method",
    b"mcp-name",
    b"mcp-protocol-version",
    b"mcp-session-id",
    b"origin",
)

_EXPOSED = b"mcp-session-id, mcp-protocol-version, retry-after, www-authenticate"
_ALLOWED = (
    b"accept, authorization, content-type, last-event-id, mcp-method, mcp-name, "
    b"mcp-protocol-version, mcp-session-id"
)


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Who may talk to an endpoint, judged by `Origin` and `Host`.

    allowed_origins: origins of web pages that may call (`"https://app.example.com"`), or
        `"*"` for any. A loopback origin on a loopback connection is always allowed.
    allowed_hosts: host names this endpoint answers to, with or without a port
        (`"mcp.example.com"`, `"*.example.com"`), or `"*"` for any. None: the names of this
        machine on loopback connections, any name elsewhere.

    2026-07-28, Streamable HTTP, "Security & Endpoint".
    """

    allowed_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the values, naming the wrong one."""
        for name, values in (
            ("allowed_origins", self.allowed_origins),
            ("allowed_hosts", self.allowed_hosts or ()),
        ):
            if isinstance(values, str):
                raise ConfigurationError(
                    f"{name} takes a list of strings, not the string {values!r}"
                )
        for origin in self.allowed_origins:
            if origin not in ("*", "null") and ("://" not in origin or origin.endswith("/")):
                raise ConfigurationError(
                    f"allowed_origins: {origin!r} is not an origin "
                    f'("https://app.example.com", no path, no slash at the end)'
                )


class Head(msgspec.Struct, frozen=True):
    """An accepted HTTP head.

    `json` and `stream` say which media types the client takes; `origin` is the page that
    asks, if one does.
    """

    headers: dict[bytes, bytes]
    json: bool = True
    stream: bool = True

    @property
    def origin(self) -> bytes | None:
        """The origin of the web page that makes the request."""
        return self.headers.get(b"origin")

    def text(self, name: bytes) -> str | None:
        """Return header *name* as text, or None if it is absent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Gate:
    """Judges heads by one `Security`."""

    def __init__(self, security: Security) -> None:
        self._origins = frozenset(origin.lower() for origin in security.allowed_origins)
        hosts = security.allowed_hosts
        self._hosts = None if hosts is None else tuple(host.lower() for host in hosts)
        self._origin_verdict = lru_cache(maxsize=256)(self._judge_origin)
        self._host_verdict = lru_cache(maxsize=256)(self._judge_host)

    def admit(self, headers: Headers, peer: str | None) -> dict[bytes, bytes]:
        """Return *headers* as a table, once origin and host are found good.

        *peer* is the address the connection comes from, None if that is not known.

        Raises:
            Refused: 400 for a header sent twice, 403 for the origin, 421 for the host.
        """
        pairs = list(headers)
        table = dict(pairs)
        if len(table) != len(pairs):
            _refuse_twice(pairs)
        loopback = _is_loopback(peer)
        origin = table.get(b"origin")
        if origin is not None and not self._origin_verdict(origin, loopback):
            raise Refused(
                f"Origin not allowed: {origin.decode('latin-1')}. "
                f"Add it to allowed_origins to let this page call the server.",
                status=403,
            )
        if (loopback or self._hosts is not None) and not self._host_verdict(
            table.get(b"host", b""), loopback
        ):
            raise Refused(
                f"Host not allowed: {table.get(b'host', b'').decode('latin-1')}. "
                f"Add it to allowed_hosts if this server is meant to answer to that name.",
                status=421,
            )
        return table

    def _judge_origin(self, origin: bytes, loopback: bool) -> bool:
        text = origin.decode("latin-1").lower()
        if "*" in self._origins or text in self._origins:
            return True
        return loopback and _is_local_name(_host_name(text.partition("://")[2]))

    def _judge_host(self, host: bytes, loopback: bool) -> bool:
        text = host.decode("latin-1").lower()
        name = _host_name(text)
        if loopback and _is_local_name(name):
            return True
        for allowed in self._hosts or ():
            if allowed in ("*", text, name):
                return True
            if allowed.startswith("*.") and name.endswith(allowed[1:]):
                return True
        return False


def judge_post(table: dict[bytes, bytes]) -> Head:
    """Return the head of a POST that carries a message.

    Raises:
        Refused: 415 unless the body is JSON, 406 unless the client takes JSON.
    """
    if not _is_json(table.get(b"content-type", b"")):
        given = table.get(b"content-type", b"(none)").decode("latin-1")
        raise Refused(f"Content-Type must be application/json, not {given}", status=415)
    json, stream = _accepted(table.get(b"accept", b"*/*"))
    if not json:
        raise Refused("Accept must list both application/json and text/event-stream", status=406)
    return Head(table, json, stream)


def judge_get(table: dict[bytes, bytes]) -> Head:
    """Return the head of a GET that opens a stream (revisions before 2026-07-28).

    Raises:
        Refused: 406 unless the client takes event streams.
    """
    json, stream = _accepted(table.get(b"accept", b"*/*"))
    if not stream:
        raise Refused("Accept must list text/event-stream", status=406)
    return Head(table, json, stream)


def cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return what an allowed page needs in order to read an answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]


def preflight_headers(table: dict[bytes, bytes], origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the answer to a CORS preflight: the headers of every revision, and `Mcp-Param-*`."""
    wanted = table.get(b"access-control-request-headers", b"").lower()
    mirrored = [
        name
        for name in (part.strip() for part in wanted.split(b","))
        if name.startswith(b"mcp-param-")
    ]
    return [
        *cors_headers(origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b", ".join([_ALLOWED, *mirrored])),
        (b"access-control-max-age", b"600"),
    ]


@lru_cache(maxsize=256)
def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"


@lru_cache(maxsize=256)
def _accepted(accept: bytes) -> tuple[bool, bool]:
    """Whether JSON and whether event streams are taken. A quality of 0 refuses a type."""
    ranges = set()
    for part in accept.lower().split(b","):
        media, *parameters = (piece.strip() for piece in part.split(b";"))
        if not any(p.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00") for p in parameters):
            ranges.add(media)
    anything = b"*/*" in ranges
    return (
        anything or not ranges.isdisjoint((b"application/json", b"application/*")),
        anything or not ranges.isdisjoint((b"text/event-stream", b"text/*")),
    )


def _refuse_twice(pairs: list[tuple[bytes, bytes]]) -> None:
    """Refuse a header given twice, which two readers could take for two things."""
    seen = set()
    for name, _ in pairs:
        if name in seen and (name in _ONCE or name.startswith(b"mcp-param-")):
            raise Refused(f"The {name.decode('latin-1')} header is given more than once")
        seen.add(name)


@lru_cache(maxsize=1024)
def _is_loopback(peer: str | None) -> bool:
    try:
        return peer is not None and ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _is_local_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _host_name(text: str) -> str:
    """Return the host of `host`, `host:port` or `[v6]:port`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
