"""What a client may be a client of, and the way there."""

from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from genmcp.client.options import Command, HttpOptions, StdioOptions, mask_url
from genmcp.client.transports.base import HttpRequester, Transport
from genmcp.client.transports.http import HttpTransport
from genmcp.client.transports.http_pool import HttpPool
from genmcp.client.transports.memory import MemoryTransport, name_of
from genmcp.client.transports.stdio import StdioTransport
from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint
from genmcp.wire.lines import MAX_MESSAGE

__all__ = ["Target", "transport_to", "where"]

Target = str | Command | Server | Mux | Endpoint | Transport
"""A URL, the command of a server over stdio, a server in this process, or any other way to one."""

_SCHEMES: Final = ("http", "https")


def transport_to(
    target: Target,
    *,
    max_message: int = MAX_MESSAGE,
    http: HttpOptions | None = None,
    stdio: StdioOptions | None = None,
) -> Transport:
    """Return the way to *target*; a transport is its own.

    max_message: the most bytes a message of the server may have.

    Raises:
        ConfigurationError: *target* is nothing that a client can talk to.
    """
    if isinstance(target, str):
        url, options = _parsed(target), http or HttpOptions()
        requester = _http_requester(url, options)
        return HttpTransport(url, requester, options, max_message=max_message)
    if isinstance(target, Command):
        return StdioTransport(target, stdio, max_message=max_message)
    if isinstance(target, Server | Mux | Endpoint):
        return MemoryTransport(target, http, max_message=max_message)
    if isinstance(target, Transport):
        return target
    raise ConfigurationError(
        f"a client takes a URL, a Command, or a server in this process, not {target!r}"
    )


def where(target: Target) -> str:
    """Return a description of *target* for messages, with secrets masked."""
    match target:
        case Transport():
            return target.where
        case Server() | Mux() | Endpoint():
            return name_of(target)
        case str():
            return mask_url(target)
        case _:
            return str(target)


def _parsed(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        name = (url.hostname or "").encode("idna")  # or UnicodeError, which is a ValueError
        valid = url.scheme in _SCHEMES and name and (url.port is None or url.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{mask_url(text)!r} is not a URL (http://host/mcp, https://host/mcp); "
            "for a server over stdio give Command(command, args)"
        )
    if url.username is not None:
        raise ConfigurationError("a URL must not hold a user name: give an authorization header")
    return url._replace(fragment="")


def _http_requester(url: SplitResult, options: HttpOptions) -> HttpRequester:
    """Return what makes the requests: httpx, which is slower, for what it alone can do."""
    timeout, where = options.connect_timeout, mask_url(url.geturl())
    if options.client is not None or _is_proxied(url):
        from genmcp.client.transports.httpx_adapter import HttpxAdapter

        return HttpxAdapter(
            url,
            where,
            connect_timeout=timeout,
            most=options.max_connections,
            tls=options.tls,
            client=options.client,
        )
    return HttpPool(
        url, where, connect_timeout=timeout, most=options.max_connections, tls=options.tls
    )


def _is_proxied(url: SplitResult) -> bool:
    proxies = getproxies()
    wanted = proxies.get(url.scheme) or proxies.get("all")
    return bool(wanted) and not proxy_bypass(url.netloc)
