"""The requests of a flow: checks of URLs, and of responses that should be documents.

A server names most of the URLs that its clients fetch, and must not make them reach what only they
can reach: their own machine, or their network (security best practices, "Server-Side Request
Forgery").
"""

import json
import re
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, NoReturn
from urllib.parse import urljoin, urlsplit

import msgspec

from genmcp._core.auth.metadata import is_loopback_url, same_origin
from genmcp._core.auth.steps import Failure, Fetch, Fetched, FlowFailed, FlowOptions, Steps

_MAX_URL: Final = 2048
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = {301, 302, 303, 307, 308}
_UNPRINTABLE: Final = re.compile(r"[^\x21-\x7e]|\\")
# The forms of an IPv4 address that `inet_aton` reads, such as 127.1, 0x7f000001 or 2130706433.
_NUMERIC: Final = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
_NAT64: Final = 0x64_FF9B << 64  # RFC 6052, 2.1: the first 96 bits of 64:ff9b::/96
_SHOWN: Final = 200  # characters of a server's text in a message


class DocumentState(Enum):
    """The outcome of a request for a document."""

    DOCUMENT = "document"
    ABSENT = "absent"  # nothing, or a page for people
    BROKEN = "broken"  # meant to be a document, but not usable
    UNAVAILABLE = "unavailable"  # a failure of the network, or of the server


class FetchedDocument(msgspec.Struct, frozen=True):
    """A JSON object that was fetched, or the reason why it cannot be used."""

    url: str
    found: DocumentState
    members: dict[str, Any] = {}
    problem: str = ""


def check_url(options: FlowOptions, url: str, role: str) -> str:
    """Return *url*, which a server names as its *role*, if it may be fetched or opened.

    https is required, except on loopback for a server that is on loopback itself. The origin of
    the server, which the user named, may have a private address.

    Raises:
        FlowFailed: it must not.
    """
    reason = _unsafe(options, url)
    if reason:
        raise FlowFailed(f"the {role} {shown(url)} is not used: {reason}")
    return url


def is_private_address(address: str) -> bool:
    """Return whether the public cannot reach *address*, also if it is not an IP address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(found, IPv6Address):
        # Some have an IPv4 address inside, which a gateway or the system translates them to.
        found = found.ipv4_mapped or found.sixtofour or _nat64(found) or found
    return not found.is_global or found.is_multicast


def get_document(options: FlowOptions, url: str) -> Steps[FetchedDocument]:
    """Fetch a JSON object. Redirects are followed within the origin only."""
    headers = [
        ("Accept", "application/json"),
        # 2025-03-26, authorization, "Server Metadata Discovery Headers".
        ("MCP-Protocol-Version", options.protocol_version),
    ]
    asked = url
    for _ in range(1 + _MAX_REDIRECTS):
        response: Fetched = yield Fetch(
            url=asked,
            headers=headers,
            limit=options.max_document,
            public_only=is_public_only(options, asked),
        )
        if response.status not in _REDIRECTS:
            return _read(url, response, options.max_document)
        target = _target(asked, response.header("Location") or "")
        if _unsafe(options, target) or not same_origin(asked, target):
            problem = f"redirects to another origin or an unsafe URL, {shown(target)}"
            return FetchedDocument(url, DocumentState.BROKEN, problem=problem)
        asked = target
    return FetchedDocument(url, DocumentState.BROKEN, problem="redirects too often")


def is_public_only(options: FlowOptions, url: str) -> bool:
    """Return whether the runner must refuse a private address for *url*."""
    return not options.allow_private and not same_origin(options.url, url)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in *body*, without the members whose value is null.

    Raises:
        ValueError: it is something else, or not I-JSON (RFC 7493): of two members with one name
            each reader could take another one, and a lone surrogate cannot be sent in a form.
    """
    try:
        found = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    # RFC 8414, 3.2: absent and null mean the same; some servers send all members.
    return {name: value for name, value in found.items() if value is not None}


def shown(text: object) -> str:
    """Return *text* of a server as messages show it: short, printable, in quotes."""
    return ascii(text if isinstance(text, str) else str(text))[:_SHOWN]


def unavailable(peer: str, response: Fetched) -> FlowFailed | None:
    """Return the failure if *peer* did not respond, or may respond otherwise the next time."""
    if response.status == 0:
        return FlowFailed(f"{peer} cannot be reached: {response.error}", Failure.UNAVAILABLE)
    if response.status >= 500 or response.status == 429:
        return FlowFailed(f"{peer} answered HTTP {response.status}", Failure.UNAVAILABLE)
    return None


def _unsafe(options: FlowOptions, url: str) -> str:
    """Return why *url* is not safe, "" if it is."""
    if len(url) > _MAX_URL or _UNPRINTABLE.search(url):
        return "it is not a valid URL"
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return "it is not a valid URL"
    local = is_loopback_url(options.url)
    if not host or parts.scheme not in ("https", "http"):
        return "it must begin with https://"
    if parts.scheme == "http" and not (local and is_loopback_url(url)):
        return "it must begin with https://"
    if "@" in parts.netloc or "#" in url:
        return "it has a user name or a fragment"
    numeric = ":" not in host and _NUMERIC.fullmatch(host) is not None
    if numeric and not _is_ipv4(host):
        return "its host is a number"
    if is_public_only(options, url):
        literal = numeric or ":" in host
        name = host == "localhost" or host.endswith(".localhost")
        if name or (literal and is_private_address(host)):
            return "its address is private, and allow_private is off"
    return ""


def _read(url: str, response: Fetched, limit: int) -> FetchedDocument:
    if failure := unavailable("it", response):
        return FetchedDocument(url, DocumentState.UNAVAILABLE, problem=str(failure))
    if response.status != 200:
        return FetchedDocument(url, DocumentState.ABSENT, problem=f"HTTP {response.status}")
    if len(response.body) > limit:
        return FetchedDocument(url, DocumentState.BROKEN, problem=f"it has more than {limit} bytes")
    try:
        return FetchedDocument(url, DocumentState.DOCUMENT, decode_object(response.body))
    except ValueError as error:
        # A page for people at each path is common, and no attempt at a document.
        object = response.body.lstrip()[:1] == b"{"
        return FetchedDocument(
            url, DocumentState.BROKEN if object else DocumentState.ABSENT, problem=str(error)
        )


def _target(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has two members of one name")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _nat64(address: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(address) & 0xFFFFFFFF) if int(address) >> 32 == _NAT64 else None
