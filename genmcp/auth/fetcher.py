"""HTTP requests to authorization servers, of flows and verifiers: bounded, without redirects.

httpx sends them, and not the pool of the client's transports: they go to several origins, may need
a proxy, and are few. It is imported with the first one.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from genmcp.core.auth.fetching import MAX_DOCUMENT, is_private_address
from genmcp.core.auth.metadata import is_loopback_url
from genmcp.core.auth.steps import Fetch, Fetched, Steps
from genmcp.tls import trusted_context
from genmcp.version import __version__

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

VERIFIER_TIMEOUT: Final = 5.0
"""Seconds for the requests of a verifier, for which a client of the server waits."""

_TOTAL: Final = 6
"""How many times the timeout all requests of a flow may take. The timeouts of a call are paused
meanwhile, and a server can name many slow URLs, and redirect each of them."""

_MAX_ADDRESSES: Final = 4  # of a host name, tried one after the other


class Fetcher:
    """Sends the requests of one flow. Owned by its runner.

    Args:
        timeout: seconds for each request, from the connection to the end of the response; six times
            as many for all of them.
        tls: returns the TLS context, for the first request.
    """

    def __init__(
        self, timeout: float = 10.0, tls: Callable[[], ssl.SSLContext] = trusted_context
    ) -> None:
        self._timeout = timeout
        self._left = _TOTAL * timeout
        self._tls = tls
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Perform *steps*, each of which is a `Fetch`, and close the connections."""
        outcome: Fetched | None = None
        try:
            while True:
                outcome = await self.fetch(steps.send(outcome))  # type: ignore[arg-type]
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            await self.close()

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
            return Fetched(0, error=text)
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
        # A proxy resolves names itself, so that it would undo the check; none is for this machine.
        client = self._client(proxied=address is None and not is_loopback_url(step.url))
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
                if len(body) > MAX_DOCUMENT:
                    break
                await asyncio.sleep(0)  # a chunk may be one byte, and 10,000 be received at once
            found = [(name.lower(), value) for name, value in response.headers.multi_items()]
            return Fetched(response.status_code, found, bytes(body[: MAX_DOCUMENT + 1]))

    def _client(self, *, proxied: bool) -> "httpx.AsyncClient":
        """Return an HTTP client, by the environment's proxies or without."""
        import httpx

        if proxied not in self._clients:
            self._clients[proxied] = httpx.AsyncClient(
                verify=self._tls(),
                trust_env=proxied,
                timeout=self._timeout,
                follow_redirects=False,
                headers={"User-Agent": f"genmcp/{__version__}", "Accept-Encoding": "identity"},
            )
        return self._clients[proxied]


async def _public_addresses(host: str, port: int) -> Sequence[str]:
    """Return addresses of *host*.

    Raises:
        OSError: it has none, or one that is not public.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not addresses or any(is_private_address(each) for each in addresses):
        raise OSError(f"{host} has an address that is not public")
    return addresses[:_MAX_ADDRESSES]
