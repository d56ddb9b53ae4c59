"""The targets of a client, and the transport for each kind."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from genmcp.client.auth.base import Auth
from genmcp.client.options import USER_AGENT, ClientOptions, Command, mask_url
from genmcp.client.transports.base import HttpRequester, Transport
from genmcp.client.transports.http import HttpTransport
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.client.transports.http_pool import HttpPool
from genmcp.client.transports.stdio import StdioTransport
from genmcp.errors import ConfigurationError

if TYPE_CHECKING:  # a client of other servers does not load those of this process
    from genmcp._mux.mux import Mux
    from genmcp._transports.endpoint import Endpoint
    from genmcp.server import Server

_DEFAULTS = ClientOptions()

Target: TypeAlias = "str | Command | Server | Mux | Endpoint | Transport"
"""A URL, the command of a server over stdio, a server in this process, or a custom transport."""


def transport_to(
    target: Target,
    headers: Mapping[str, str] = NO_HEADERS,
    auth: Auth | None = None,
    options: ClientOptions = _DEFAULTS,
) -> Transport:
    """Return a transport to *target*; a transport is returned as it is.

    Args:
        target: the server.
        headers: the headers of every request to a URL, and to a server in this process.
        auth: authorizes the requests to a URL or an `Endpoint`. Default: none.
        options: the other options.

    Raises:
        ConfigurationError: *target* is not a valid target, or cannot be used with *auth*.
    """
    match target:
        case Command() | Transport() if headers:
            raise ConfigurationError(
                "headers= is for a server over HTTP, and for one in this process"
            )
        case Command() | Transport() if auth is not None:
            raise ConfigurationError(
                "auth= is for a server over HTTP: a URL or an Endpoint; a server over stdio takes "
                "its credentials from its environment, Command(env=...)"
            )
    if auth is not None:
        if any(name.lower() == "authorization" for name in headers):
            raise ConfigurationError("give either auth= or an Authorization header, not both")
        if options.http_client is not None and options.http_client.auth is not None:
            raise ConfigurationError("give either auth= or an http_client that has auth")
    match target:
        case str():
            return _http_transport(_parsed(target), headers, auth, options)
        case Command():
            return StdioTransport(target, options.stderr)
        case Transport():
            return target
        case _:
            from genmcp.client.transports.memory import memory_transport

            return memory_transport(target, headers, auth)


def target_name(target: Target) -> str:
    """Return the name of *target* for messages, with secrets masked."""
    match target:
        case Transport():
            return target.server_name
        case str():
            return mask_url(target)
        case Command():
            return str(target)
        case _:
            from genmcp.client.transports.memory import in_process_name

            return in_process_name(target)


def _parsed(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        # Each of these raises ValueError, of which UnicodeError is a kind, or is falsy.
        host = (url.hostname or "").encode("idna")
        valid = url.scheme in ("http", "https") and host and (url.port is None or url.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{mask_url(text)!r} is not a URL such as http://host/mcp or https://host/mcp; "
            "for a server over stdio use Command(command, args)"
        )
    if url.username is not None:
        raise ConfigurationError(
            "the URL must not contain credentials; give an authorization header with headers="
        )
    return url._replace(fragment="")


def _http_transport(
    url: SplitResult, headers: Mapping[str, str], auth: Auth | None, options: ClientOptions
) -> Transport:
    """Return the transport to a URL: httpx, which is slower, only if it is required."""
    name, client, tls = mask_url(url.geturl()), options.http_client, options.tls
    proxies = getproxies()
    is_proxied = (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.netloc)
    requester: HttpRequester
    if client is None and not is_proxied:
        requester = HttpPool(url, name, tls)
    else:
        from genmcp.client.transports.httpx_adapter import HttpxAdapter  # the import takes 0.1 s

        requester = HttpxAdapter(url, name, client, tls)
    if auth is not None:
        from genmcp.client.transports.authorized import authorized  # most clients do without it

        requester = authorized(url, requester, auth, tls)
    # RFC 9110, section 10.1.5. Some firewalls reject a request without.
    if client is None and not any(each.lower() == "user-agent" for each in headers):
        headers = {"User-Agent": USER_AGENT, **headers}
    return HttpTransport(url, requester, headers)
