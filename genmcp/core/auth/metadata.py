"""Metadata documents: where they are found, and the checks before they are used.

The protected resource metadata names the authorization servers of an endpoint (RFC 9728). The
metadata of an authorization server has its endpoints (RFC 8414, OpenID Connect Discovery 1.0).
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from genmcp.errors import ConfigurationError

_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Protected resource metadata (RFC 9728, 2). Unknown members are ignored."""

    resource: str
    authorization_servers: Sequence[str] = ()
    scopes_supported: Sequence[str] | None = None
    bearer_methods_supported: Sequence[str] | None = None
    dpop_signing_alg_values_supported: Sequence[str] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of an authorization server (RFC 8414, 2). Unknown members are ignored."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: Sequence[str] | None = None
    grant_types_supported: Sequence[str] | None = None
    token_endpoint_auth_methods_supported: Sequence[str] | None = None
    code_challenge_methods_supported: Sequence[str] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


def resource_metadata_path(path: str) -> str:
    """Return the path of the metadata of the resource at *path* of its host (RFC 9728, 3.1)."""
    return _RESOURCE + ("" if path == "/" else path.rstrip("/"))


def resource_metadata_urls(url: str) -> list[str]:
    """Return the URLs of the metadata of the resource at *url*, in the order to ask them.

    2025-11-25, authorization, "Protected Resource Metadata Discovery Requirements": with the path
    of the resource first, then at the root.
    """
    paths = dict.fromkeys((resource_metadata_path(urlsplit(url).path), _RESOURCE))
    return [origin_of(url) + path for path in paths]


def server_metadata_urls(issuer: str) -> list[str]:
    """Return the URLs of the metadata of *issuer*, in the order to ask them.

    2025-11-25, authorization, "Authorization Server Metadata Discovery": three URLs for an issuer
    with a path, two for one without.
    """
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return [origin + _SERVER, origin + _OPENID]
    return [origin + _SERVER + path, origin + _OPENID + path, origin + path + _OPENID]


def fallback_metadata(url: str) -> ServerMetadata:
    """Return the endpoints of an authorization server without metadata (2025-03-26).

    2025-03-26, authorization, "Fallbacks for Servers without Metadata Discovery": fixed paths at
    the origin of the server at *url*.
    """
    origin = origin_of(url)
    return ServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=["S256"],
    )


def covers(resource: str, url: str) -> bool:
    """Return whether *resource* is *url*, or a parent of it by whole segments of the path.

    RFC 9728, 3.3, demands the same URL. Servers that publish one document for their host name a
    parent, which official clients accept as well.
    """
    try:
        has, asked = urlsplit(resource), urlsplit(url)
        same = same_origin(resource, url) and has.query in ("", asked.query)
    except ValueError:
        return False
    if not same or "@" in has.netloc or "#" in resource:
        return False
    parent, path = has.path.rstrip("/"), asked.path.rstrip("/")
    return path == parent or path.startswith(f"{parent}/")


def check_public_url(option: str, url: str) -> None:
    """Check that *url* can identify a resource or an issuer: HTTPS, or HTTP on loopback.

    Raises:
        ConfigurationError: it cannot; the message names *option*.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if host is None or parts.username is not None:
        raise ConfigurationError(f"{option}: {url!r} is not the URL of a host")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise ConfigurationError(
            f"{option}: {url!r} must begin with https://, or with http:// and a loopback address"
        )
    if parts.fragment or "#" in url:
        raise ConfigurationError(f"{option}: {url!r} must have no fragment (RFC 8707, 2)")


def is_loopback_url(url: str) -> bool:
    """Return whether the host of *url* is this machine."""
    return urlsplit(url).hostname in _LOOPBACK


def origin_of(url: str) -> str:
    """Return scheme, host and port of *url* in lower case, without a default port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + ("" if port in (None, default) else f":{port}")


def same_origin(one: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return origin_of(one) == origin_of(other)
