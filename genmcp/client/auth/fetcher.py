"""The HTTP requests of a flow: bounded, without redirects, and to public addresses if demanded.

httpx sends them, and not the pool of the transports: they go to several origins, may need a proxy,
and are few. httpx is imported with the first one.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from genmcp._core.auth.fetching import is_private_address
from genmcp._core.auth.steps import Fetch, Fetched
from genmcp.client.options import USER_AGENT
from genmcp.client.transports.http_pool import trusted_context

if TYPE_CHECKING:
    import httpx

DEFAULT_FETCH_TIMEOUT: Final = 10.0
"""Seconds for one request of a flow, from the connection to the end of the response."""

_TOTAL: Final = 6
"""How many times the timeout all requests of a flow may take. The timeouts of a call are paused
meanwhile, and a server can name many slow URLs, and redirect each of them."""

_MAX_ADDRESSES: Final = 4  # of a host name, tried one after the other


class Fetcher:
    """Sends the requests of one flow. Owned by its `FlowRunner`.

    Args:
        timeout: seconds for each request; six times as many for all of them.
        tls: the TLS context; None trusts the certificates of the system.
    """

    def __init__(
        self, timeout: float = DEFAULT_FETCH_TIMEOUT, tls: ssl.SSLContext | None = None
    ) -> None:
        self._timeout = timeout
        self._left = _TOTAL * timeout
        self._tls = tls
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def fetch(self, step: Fetch) -> Fetched:
        """Send a request and return the response; after a failure of the network, status 0."""
        import httpx

        loop = asyncio.get_running_loop()
        begun, limit = loop.time(), min(self._timeout, self._left)
        try:
            async with asyncio.timeout(limit):
                return await self._fetch(step)
        except TimeoutError:
            text = f"no response within {limit:.3g} s"
            if limit < self._timeout:
                text += f", since the requests before took {_TOTAL * self._timeout - limit:.3g} s"
            return Fetched(0, error=f"{text} (fetch_timeout)")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            return Fetched(0, error=str(error) or type(error).__name__)
        finally:
            self._left = max(0.0, self._left - (loop.time() - begun))

    async def close(self) -> None:
        """Close the connections."""
        clients = [*self._clients.values()]
        self._clients.clear()
        for client in clients:
            await client.aclose()

    async def _fetch(self, step: Fetch) -> Fetched:
        import httpx

        url = httpx.URL(step.url)
        if not step.public_only:
            return await self._send(step, url)
        # The request goes to an address that was checked. A second resolution could return another
        # one (DNS rebinding).
        addresses = await _public_addresses(url.host, url.port or 443)
        for address in addresses[:-1]:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._send(step, url, address)
        return await self._send(step, url, addresses[-1])

    async def _send(self, step: Fetch, url: "httpx.URL", address: str | None = None) -> Fetched:
        headers, extensions = [*step.headers], {}
        client = self._client(proxied=address is None)
        if address is not None:
            headers.append(("Host", url.netloc.decode("ascii")))
            extensions["sni_hostname"] = url.host  # also the name that the certificate must have
            url = url.copy_with(host=address)
        async with client.stream(
            step.method, url, headers=headers, content=step.body, extensions=extensions
        ) as response:
            body = bytearray()
            # Not decoded: a small compressed body may be a huge one.
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > step.limit:
                    break
            found = [(name.lower(), value) for name, value in response.headers.multi_items()]
            return Fetched(response.status_code, found, bytes(body[: step.limit + 1]))

    def _client(self, *, proxied: bool) -> "httpx.AsyncClient":
        """Return an HTTP client. A proxy resolves names itself, so that it would undo the check."""
        import httpx

        if proxied not in self._clients:
            options: dict[str, Any] = {"verify": self._tls or trusted_context()}
            self._clients[proxied] = httpx.AsyncClient(
                **options,
                trust_env=proxied,
                timeout=self._timeout,
                follow_redirects=False,
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            )
        return self._clients[proxied]


async def _public_addresses(host: str, port: int) -> Sequence[str]:
    """Return addresses of *host*.

    Raises:
        OSError: It has none, or one that is not public.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not addresses or any(is_private_address(each) for each in addresses):
        raise OSError(f"{host} has an address that is not public (allow_private)")
    return addresses[:_MAX_ADDRESSES]
