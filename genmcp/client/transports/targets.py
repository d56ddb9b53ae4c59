"""The targets of a client, and the transport for each kind."""

from hashlib import sha256
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp._wire.lines import MAX_MESSAGE
from genmcp.client.auth.base import Auth
from genmcp.client.options import Command, HttpOptions, StdioOptions, mask_url
from genmcp.client.transports.base import HttpRequester, Transport
from genmcp.client.transports.http import HttpTransport
from genmcp.client.transports.http_pool import HttpPool
from genmcp.client.transports.memory import MemoryTransport, in_process_name
from genmcp.client.transports.stdio import StdioTransport
from genmcp.errors import ConfigurationError
from genmcp.server import Server

Target = str | Command | Server | Mux | Endpoint | Transport
"""A URL, the command of a server over stdio, a server in this process, or a custom transport."""


def transport_to(
    target: Target,
    *,
    max_message: int = MAX_MESSAGE,
    http: HttpOptions | None = None,
    stdio: StdioOptions | None = None,
    auth: Auth | None = None,
) -> Transport:
    """Return a transport to *target*; a transport is returned as it is.

    Args:
        target: the server.
        max_message: maximum size of a message of the server in bytes. Default: 64 MiB.
        http: options for a URL, and for a server in this process.
        stdio: options for a command.
        auth: authorizes the requests to a URL or an `Endpoint`. Default: none.

    Raises:
        ConfigurationError: *target* is not a valid target, or cannot be used with *auth*.
    """
    if auth is not None and not isinstance(target, str | Endpoint):
        raise ConfigurationError(
            "auth= is for a server over HTTP: a URL or an Endpoint; a server over stdio takes its "
            "credentials from its environment, Command(env=...)"
        )
    match target:
        case str():
            url, options = _parsed(target), http or HttpOptions()
            requester = _http_requester(url, options)
            if auth is not None:
                requester = _authorized(url, requester, options, auth)
            return HttpTransport(url, requester, options, max_message=max_message)
        case Command():
            return StdioTransport(target, stdio, max_message=max_message)
        case Server() | Mux() | Endpoint():
            return MemoryTransport(target, http, max_message=max_message, auth=auth)
        case Transport():
            return target
    raise ConfigurationError(
        "the target of a client must be a URL, a Command, a Server, Mux or Endpoint, "
        f"or a Transport, not {target!r}"
    )


def _authorized(
    url: SplitResult, requester: HttpRequester, options: HttpOptions, auth: Auth
) -> HttpRequester:
    from genmcp.client.transports.authorized import authorized  # most clients do without it

    return authorized(url, requester, options, auth)


def target_name(target: Target) -> str:
    """Return the name of *target* for messages, with secrets masked."""
    match target:
        case Transport():
            return target.server_name
        case Server() | Mux() | Endpoint():
            return in_process_name(target)
        case str():
            return mask_url(target)
        case _:
            return str(target)


def server_key(target: Target, server_name: str) -> str:
    """Return the key for `REVISION_CACHE`: the URL without query, or a hash of the command.

    Empty for a server in this process and a custom transport.
    """
    if isinstance(target, Command):
        # Hashed: a command may contain secrets, and the cache lives as long as the process.
        known = (target.command, [*target.args], sorted((target.env or {}).items()), target.cwd)
        return sha256(repr(known).encode()).hexdigest()
    parts = urlsplit(server_name)
    if parts.scheme not in ("http", "https"):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


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
            "the URL must not contain credentials; "
            "set an authorization header in HttpOptions.headers"
        )
    return url._replace(fragment="")


def _http_requester(url: SplitResult, options: HttpOptions) -> HttpRequester:
    """Return the HTTP client: httpx, which is slower, only if a proxy or the user requires it."""
    proxies = getproxies()
    is_proxied = (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.netloc)
    if options.client is None and not is_proxied:
        return HttpPool(url, mask_url(url.geturl()), options)
    from genmcp.client.transports.httpx_adapter import HttpxAdapter  # the import takes 0.1 s

    return HttpxAdapter(url, mask_url(url.geturl()), options)
