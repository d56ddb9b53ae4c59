"""The requests of a flow: checks of URLs, and of responses that should be documents.

A server names most of the URLs that its clients fetch, and must not make them reach what only they
can reach: their own machine, or their network (security best practices, "Server-Side Request
Forgery").
"""

import json
import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from genmcp.core.auth.metadata import is_loopback_url, same_origin
from genmcp.core.auth.steps import Failure, Fetch, Fetched, FlowFailed, FlowOptions, Headers, Steps
from genmcp.core.auth.strict_json import strict_object

T = TypeVar("T")

MAX_DOCUMENT: Final = 262_144
"""Bytes of a response of a server. Real documents have a few KiB. Of a longer one, the first that
exceed the limit are read, so that a flow sees that it is too long."""

_HEADERS: Final = (
    ("Accept", "application/json"),
    # 2025-03-26, authorization, "Server Metadata Discovery Headers".
    ("MCP-Protocol-Version", "2026-07-28"),
)
_MAX_URL: Final = 2048
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = {301, 302, 303, 307, 308}
_UNPRINTABLE: Final = re.compile(r"[^\x21-\x7e]|\\")
# The forms of an IPv4 address that `inet_aton` reads, such as 127.1, 0x7f000001 or 2130706433.
_NUMERIC: Final = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
_NAT64: Final = 0x64_FF9B << 64  # RFC 6052, 2.1: the first 96 bits of 64:ff9b::/96
# All that the registries have given to the public of the Internet (RFC 4291, 2.4). Only a network
# or a system that is set up for it routes any other address, such as fec0::/10 or 64:ff9b:1::/48.
_PUBLIC_IPV6: Final = IPv6Network("2000::/3")
_SHOWN: Final = 200  # characters of a server's text in a message


class NoDocument(FlowFailed):
    """There is no usable document at a URL.

    Attributes:
        problem: the reason.
        absent: whether nothing is there, or a page for people. Otherwise it is a document that is
            broken, or a server that does not respond, and the next one may be good.
    """

    def __init__(
        self, problem: str, url: str, failure: Failure = Failure.OTHER, *, absent: bool = False
    ) -> None:
        super().__init__(f"{url}: {problem}", failure)
        self.problem = problem
        self.absent = absent


def check_url(options: FlowOptions, url: str, role: str, *, vouched: bool = True) -> str:
    """Return *url*, which a server names as its *role*, if it may be fetched or opened.

    https is required, except on loopback for a server that is on loopback itself. The origin of
    the server, which the user named, may have a private address.

    Args:
        options: the options of the client.
        url: the URL.
        role: its name in the message.
        vouched: as for `is_public_only`.

    Raises:
        FlowFailed: it must not.
    """
    if reason := _unsafe(options, url, vouched=vouched):
        raise FlowFailed(f"the {role} {shown(url)} is not used: {reason}")
    return url


def is_public_only(options: FlowOptions, url: str, *, vouched: bool = True) -> bool:
    """Return whether the runner must refuse a private address for *url*.

    Args:
        options: the options of the client.
        url: the URL.
        vouched: whether the authorization server of the options, if they name one, vouches for the
            URL; not for one that the MCP server names.
    """
    trusted = vouched and options.issuer is not None
    return options.public_only and not trusted and not same_origin(options.url, url)


def is_private_address(address: str) -> bool:
    """Return whether the public cannot reach *address*, also if it is not an IP address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(found, IPv6Address):
        # Some have an IPv4 address inside, which a gateway or the system translates them to.
        found = found.ipv4_mapped or found.sixtofour or _nat64(found) or found
    if isinstance(found, IPv6Address) and found not in _PUBLIC_IPV6:
        return True
    return not found.is_global or found.is_multicast


def get_document(
    options: FlowOptions, url: str, kind: type[T], *, vouched: bool = True
) -> Steps[T]:
    """Fetch a JSON object of the type *kind*.

    Raises:
        NoDocument: there is none.
    """
    response = yield from get(options, url, vouched=vouched)
    try:
        members = decode_object(response.body)
    except ValueError as error:
        # A page for people at each path is common, and no attempt at a document.
        page = response.body.lstrip()[:1] != b"{"
        raise NoDocument(str(error), url, absent=page) from None
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        # A JSON object of another kind, such as {"detail": "Not Found"}, is no broken document.
        other = not members.keys() & {"resource", "authorization_servers", "issuer"}
        raise NoDocument(f"it is not valid: {error}", url, absent=other) from None


def get(options: FlowOptions, url: str, *, vouched: bool = True) -> Steps[Fetched]:
    """Fetch *url*, and return its response with HTTP 200.

    Redirects are followed within the origin only.

    Raises:
        NoDocument: there is none.
    """
    asked = url
    for _ in range(1 + _MAX_REDIRECTS):
        public_only = is_public_only(options, asked, vouched=vouched)
        response: Fetched = yield Fetch(url=asked, headers=_HEADERS, public_only=public_only)
        if response.status not in _REDIRECTS:
            if failed := unavailable("it", response):
                raise NoDocument(str(failed), url, failed.failure)
            if response.status != 200:
                raise NoDocument(f"no document (HTTP {response.status})", url, absent=True)
            return response
        target = _target(asked, response.header("Location") or "")
        if _unsafe(options, target, vouched=vouched) or not same_origin(asked, target):
            raise NoDocument(f"redirects to another origin or an unsafe URL, {shown(target)}", url)
        asked = target
    raise NoDocument("redirects too often", url)


def post(options: FlowOptions, url: str, role: str, headers: Headers, body: bytes) -> Fetch:
    """Return the step that sends *body* to the endpoint of a server, its *role*.

    Raises:
        FlowFailed: the URL must not be fetched.
    """
    return Fetch(
        url=check_url(options, url, role),
        method="POST",
        headers=[("Accept", "application/json"), *headers],
        body=body,
        public_only=is_public_only(options, url),
    )


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in *body*, without the members whose value is null.

    Raises:
        ValueError: it is too large, `strict_object` refuses it, or it has a lone surrogate, which
            can be neither stored nor sent in a form.
    """
    if len(body) > MAX_DOCUMENT:
        raise ValueError(f"it has more than {MAX_DOCUMENT} bytes")
    found = strict_object(body)
    json.dumps(found, ensure_ascii=False).encode()
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


def _unsafe(options: FlowOptions, url: str, *, vouched: bool) -> str:
    """Return why *url* is not safe, "" if it is."""
    if len(url) > _MAX_URL or _UNPRINTABLE.search(url):
        return "it is not a valid URL"
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return "it is not a valid URL"
    local = is_loopback_url(options.url) and is_loopback_url(url)
    if not host or parts.scheme not in (("https", "http") if local else ("https",)):
        return "it must begin with https://"
    if "@" in parts.netloc or "#" in url:
        return "it has a user name or a fragment"
    numeric = ":" not in host and _NUMERIC.fullmatch(host) is not None
    if numeric and not _is_ipv4(host):
        return "its host is a number"
    if is_public_only(options, url, vouched=vouched):
        literal = numeric or ":" in host
        name = host == "localhost" or host.endswith(".localhost")
        if name or (literal and is_private_address(host)):
            return "its address is private; issuer= names an authorization server with such a one"
    return ""


def _target(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _nat64(address: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(address) & 0xFFFFFFFF) if int(address) >> 32 == _NAT64 else None
