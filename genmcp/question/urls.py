"""The URLs that a user may be sent to (2026-07-28, client/elicitation, "Safe URL Handling")."""

import ipaddress
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import urlsplit

from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

HTTPS: Final = ("https",)
"""The schemes that are allowed by default. http is also allowed, to loopback addresses only."""

#: Schemes that MUST be rejected (Security Best Practices, "URL Scheme Validation").
_DANGEROUS: Final = frozenset({"javascript", "data", "file", "vbscript", "blob", "about"})
#: Accepts the URIs of RFC 3986. They have no spaces, backslashes or characters outside ASCII, which
#: browsers and URL parsers interpret differently.
_URI: Final = Schema({"type": "string", "format": "uri"}, origin="url")


def check_url(url: Any, schemes: Collection[str] = HTTPS) -> None:
    """Check that *url* is https, http to a loopback address, or has one of *schemes*.

    Other URLs are not safe to open (2026-07-28, client/elicitation, "Safe URL Handling").

    Raises:
        ConfigurationError: *url* is not an absolute URL, or its scheme is not allowed. The message
            does not contain the URL, which may be confidential.
    """
    if not isinstance(url, str) or not _URI.fits(url):
        raise ConfigurationError(
            "the user can only be sent to an absolute URL, such as https://..."
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"the user cannot be sent to a URL like that: {error}") from None
    scheme = parts.scheme
    if scheme in ("http", "https") and not host:
        raise ConfigurationError("the user can only be sent to a URL that names a host")
    if scheme in schemes or scheme == "https" or (scheme == "http" and _is_loopback(host or "")):
        return
    allowed = ", ".join(dict.fromkeys([*HTTPS, *schemes]))
    raise ConfigurationError(
        f"the user must not be sent to a URL of the scheme {scheme!r}: "
        f"allowed are {allowed}, and http to loopback"
    )


def check_schemes(option: str, schemes: Any) -> None:
    """Check *schemes*, the value of an option that lists allowed schemes.

    Raises:
        ConfigurationError: *schemes* is not a list of lower-case schemes, or contains a dangerous
            scheme, such as `javascript` or `file`. The message names *option*.
    """
    if isinstance(schemes, str) or not all(isinstance(each, str) for each in schemes):
        raise ConfigurationError(f"{option} takes a list of schemes, not {schemes!r}")
    for each in schemes:
        if each in _DANGEROUS or each != each.lower() or not each:
            raise ConfigurationError(f"{option}: {each!r} cannot be allowed")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # always loopback: RFC 6761, 6.3
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
