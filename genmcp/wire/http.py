"""Checks of HTTP request headers, with the status codes of the specification for rejections.

This module does no I/O. The result for a header value is cached, since all requests of a client
have the same values.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from genmcp.errors import ConfigurationError, HttpRejected

Headers = Iterable[tuple[bytes, bytes]]

# Headers that are rejected if they occur twice: a proxy and this server could use different ones.
# Any other header that occurs twice is a list (RFC 9110, section 5.3).
_SINGLE = (
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

_EXPOSED = b"dpop-nonce, mcp-session-id, mcp-protocol-version, retry-after, www-authenticate"
_ALLOWED = (
    b"accept, authorization, content-type, dpop, last-event-id, mcp-method, mcp-name, "
    b"mcp-protocol-version, mcp-session-id"
)

# An origin of RFC 6454: a scheme and an authority, without a path.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", re.IGNORECASE)
_ALLOWED_HOST = re.compile(r"(\*\.)?(\[[0-9a-f:.]+\]|[^/?#@*:\s\[\]]+)(:[0-9]+)?", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\[\]/@]*\]|[^:/@\[\]]*)(:[0-9]*)?")
_PARAM_HEADER = re.compile(rb"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]+")
_EXCLUDED_RANGE = re.compile(rb"q=0(\.0*)?")
_QUALITY = re.compile(rb"\s*([a-z0-9*+./-]+)\s*(?:;\s*q=([01](?:\.[0-9]{0,3})?))?\s*")


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """The origins and hosts that an endpoint accepts: 2026-07-28, "Security & Endpoint".

    Args:
        allowed_origins: origins of web pages that may send requests
            (`"https://app.example.com"`), or `"*"` for any; default: none. A loopback origin on a
            loopback connection is always allowed.
        allowed_hosts: host names of this endpoint, with or without a port (`"mcp.example.com"`,
            `"*.example.com"`), or `"*"` for any. Default: the names of this machine on loopback
            connections, any name on others. The host of `Bearer(resource)` is always allowed.

    Raises:
        ConfigurationError: a value is not an origin or a host; the message names the option.
    """

    allowed_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, values in (
            ("allowed_origins", self.allowed_origins),
            ("allowed_hosts", self.allowed_hosts or ()),
        ):
            if isinstance(values, str):
                raise ConfigurationError(
                    f"{name} takes a list of strings, not the string {values!r}"
                )
        for origin in self.allowed_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"allowed_origins: {origin!r} is not an origin "
                    f'("https://app.example.com", no path, no slash at the end), "null" or "*"'
                )
        for host in self.allowed_hosts or ():
            if host != "*" and not _ALLOWED_HOST.fullmatch(host):
                raise ConfigurationError(
                    f"allowed_hosts: {host!r} is not a host "
                    f'("mcp.example.com", "*.example.com", "[::1]:8000"; no scheme, no path) or "*"'
                )


class HeaderPolicy:
    """Checks `Origin` and `Host` of requests. Owned by an endpoint.

    Args:
        security: the accepted origins and hosts.
        resource: the URL of the endpoint as its clients use it, or None. Its host is accepted: an
            attacker who binds names to a loopback address has names of his own only.
    """

    def __init__(self, security: Security, resource: str | None = None) -> None:
        self._own_host = urlsplit(resource).hostname if resource else None
        self._origins = frozenset(origin.lower() for origin in security.allowed_origins)
        hosts = security.allowed_hosts
        self._hosts = None if hosts is None else tuple(host.lower() for host in hosts)
        self._cached_check = lru_cache(maxsize=256)(self._check_origin_and_host)

    def check(self, headers: Headers, peer: str | None) -> dict[bytes, bytes]:
        """Return *headers* as a dict if origin and host are accepted.

        Names are in lower case, as ASGI has them. Values may have surrounding whitespace, since not
        every ASGI server strips it. *peer* is the address of the client, None if unknown.

        Raises:
            HttpRejected: 400 for a repeated header, 403 for the origin, 421 for the host, 431 for a
                header that is too large.
        """
        pairs = headers if isinstance(headers, list) else list(headers)
        table = dict(pairs)
        # Fewer names than headers: at least one is repeated.
        if len(table) != len(pairs):
            table = _join_repeated(pairs)
        self._cached_check(table.get(b"origin"), table.get(b"host", b""), peer)
        return table

    def _check_origin_and_host(self, origin: bytes | None, host: bytes, peer: str | None) -> None:
        """Check one combination of values. `_cached_check` caches the accepted combinations.

        Raises:
            HttpRejected: 403 for the origin, 421 for the host.
        """
        _check_sizes(origin=origin, host=host)
        # DNS rebinding: a page of another site can send requests to a loopback address, but its
        # `Host` is then not a local name.
        loopback = is_loopback(peer)
        if origin is not None and not self._is_allowed_origin(origin, loopback):
            raise HttpRejected(
                f"Origin not allowed: {origin.decode('latin-1')}. "
                f"Add it to allowed_origins to let this page call the server.",
                status=403,
            )
        if (loopback or self._hosts is not None) and not self._is_allowed_host(host, loopback):
            raise HttpRejected(
                f"Host not allowed: {host.decode('latin-1')}. "
                "Add it to allowed_hosts (--allowed-host) if this server answers to that name.",
                status=421,
            )

    def _is_allowed_origin(self, origin: bytes, loopback: bool) -> bool:
        text = origin.strip().decode("latin-1").lower()
        if "*" in self._origins or text in self._origins:
            return True
        return loopback and _is_local_name(_host_name(text.partition("://")[2]))

    def _is_allowed_host(self, host: bytes, loopback: bool) -> bool:
        text = host.strip().decode("latin-1").lower()
        name = _host_name(text)
        if (loopback and _is_local_name(name)) or name.strip("[]") == self._own_host:
            return True
        for allowed in self._hosts or ():
            if allowed in ("*", text, name):
                return True
            if allowed.startswith("*.") and any(
                name and each.endswith(allowed[1:]) for each in (name, text)
            ):
                return True
        return False


@lru_cache(maxsize=128)
def check_post_headers(content_type: bytes, accept: bytes) -> bool:
    """Check the headers of a POST, and return whether the client accepts event streams.

    Raises:
        HttpRejected: 415 unless the body is JSON, 406 unless the client accepts JSON, 431 if a
            header is too large.
    """
    _check_sizes(content_type=content_type, accept=accept)
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        given = content_type.decode("latin-1") or "(none)"
        raise HttpRejected(f"Content-Type must be application/json, not {given}", status=415)
    json, stream = _parse_accept(accept)
    if not json:
        wanted = "application/json, and should list text/event-stream"
        raise HttpRejected(f"Accept must list {wanted}", status=406)
    return stream


_MAX_BYTES: Final = 8 * 1024
"""The maximum size of a header that determines how a request is handled."""


def _check_sizes(**headers: bytes | None) -> None:
    for name, value in headers.items():
        if value is not None and len(value) > _MAX_BYTES:
            label = name.replace("_", "-")
            raise HttpRejected(f"The {label} header is larger than {_MAX_BYTES} bytes", status=431)


def check_get_headers(table: dict[bytes, bytes]) -> None:
    """Check the headers of a GET that opens a stream (revisions before 2026-07-28).

    Raises:
        HttpRejected: 406 unless the client accepts event streams.
    """
    _, stream = _parse_accept(table.get(b"accept", b"*/*"))
    if not stream:
        raise HttpRejected("Accept must list text/event-stream", status=406)


@lru_cache(maxsize=128)
def prefers_html(accept: bytes) -> bool:
    """Return whether a GET is that of a browser which opens a page, and not that of an MCP client.

    A browser lists HTML, no event streams, and JSON with a lower quality if at all.
    """
    found = map(_QUALITY.fullmatch, accept.lower().split(b","))
    quality = {each[1]: float(each[2] or 1) for each in found if each}
    html = quality.get(b"text/html", 0.0)
    return html > quality.get(b"application/json", 0.0) and b"text/event-stream" not in quality


def cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of a response to a page of an allowed origin."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]


def preflight_headers(table: dict[bytes, bytes], origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of the response to a CORS preflight; they allow `Mcp-Param-*`, too."""
    wanted = table.get(b"access-control-request-headers", b"").lower()
    names = (name.strip() for name in wanted.split(b","))
    params = [name for name in names if _PARAM_HEADER.fullmatch(name)]
    return [
        *cors_headers(origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b", ".join([_ALLOWED, *params])),
        (b"access-control-max-age", b"600"),
    ]


@lru_cache(maxsize=128)
def _parse_accept(accept: bytes) -> tuple[bool, bool]:
    """Return whether JSON and whether event streams are accepted.

    A quality of 0 excludes a type, and the most specific range counts (RFC 9110, 12.5.1).
    """
    ranges: dict[bytes, bool] = {}
    for part in accept.lower().split(b","):
        media, *parameters = (piece.strip() for piece in part.split(b";"))
        is_accepted = not any(_EXCLUDED_RANGE.fullmatch(piece) for piece in parameters)
        ranges[media] = is_accepted or ranges.get(media, False)
    anything = ranges.get(b"*/*", False)
    return (
        ranges.get(b"application/json", ranges.get(b"application/*", anything)),
        ranges.get(b"text/event-stream", ranges.get(b"text/*", anything)),
    )


def _join_repeated(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return *pairs*, with the values of repeated names joined."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        given = values.setdefault(name, [])
        if given and (name in _SINGLE or name.startswith(b"mcp-param-")):
            raise HttpRejected(f"The {name.decode('latin-1')} header is given more than once")
        given.append(value.strip())
    return {name: b", ".join(given) for name, given in values.items()}


@lru_cache(maxsize=256)
def is_loopback(peer: str | None) -> bool:
    """Return whether *peer* is a loopback address."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    # A socket that listens for both families sees IPv4 peers as ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name.strip("[]"))


def _host_name(text: str) -> str:
    """Return the host of `host`, `host:port` or `[v6]:port`; empty for other texts."""
    found = _HOST.fullmatch(text)
    return found[1] if found else ""
