"""HTTP by httpx: for proxies, and the user's own `httpx.AsyncClient`."""

import ssl
from urllib.parse import SplitResult

import httpx

from genmcp.client.errors import ClientError, ConnectError, ConnectionLost
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse
from genmcp.client.transports.http_pool import (
    CONNECT_TIMEOUT,
    KEEPALIVE_TIMEOUT,
    MAX_CONNECTIONS,
)
from genmcp.tls import trusted_context


class HttpxAdapter(HttpRequester):
    """Sends requests through the user's httpx client, or through one of its own.

    Args:
        url: a URL of the origin.
        server_name: the server as errors name it.
        client: the user's client, which is not closed; None: one of its own.
        tls: the TLS context of its own client; None: `trusted_context()`.
    """

    def __init__(
        self,
        url: SplitResult,
        server_name: str,
        client: httpx.AsyncClient | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(server_name, MAX_CONNECTIONS)
        self._origin = f"{url.scheme}://{url.netloc}"
        self._timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT)
        self._owned: httpx.AsyncClient | None = None
        if client is None:
            # The slots bound the connections: httpx would count requests that must not wait.
            limits = httpx.Limits(
                max_connections=None,
                max_keepalive_connections=MAX_CONNECTIONS,
                keepalive_expiry=KEEPALIVE_TIMEOUT,
            )
            client = self._owned = httpx.AsyncClient(verify=tls or trusted_context(), limits=limits)
        self._client = client

    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        # Instead of what the client accepts: see `_HttpxResponse`.
        given = [*headers, (b"Accept-Encoding", b"identity")]
        request = self._client.build_request(
            method, self._origin + path, headers=given, content=body, timeout=self._timeout
        )
        try:
            response = await self._client.send(request, stream=True, follow_redirects=False)
        except (httpx.HTTPError, OSError) as error:
            raise self._client_error(error) from error
        return _HttpxResponse(self.server_name, response)

    async def close(self) -> None:
        """Close the client if it is not the user's."""
        if self._owned is not None:
            await self._owned.aclose()

    def _client_error(self, error: Exception) -> ClientError:
        before_sending = (
            httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError
        )
        kind = ConnectError if isinstance(error, before_sending) else ConnectionLost
        return kind(self.server_name, str(error) or type(error).__name__)


class _HttpxResponse(HttpResponse):
    def __init__(self, server_name: str, response: httpx.Response) -> None:
        super().__init__(server_name)
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        # Not decoded: httpx expands a compressed chunk of 64 KiB to any size. A hook of the user's
        # client may have read the response before; then only its content is left.
        self._chunks = (
            response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw()
        )

    async def _chunk(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise ConnectionLost(self.server_name, str(error) or type(error).__name__) from error

    async def _release(self) -> None:
        await self._response.aclose()
