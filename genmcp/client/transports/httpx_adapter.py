"""HTTP by httpx: for what a proxy, HTTP/2 or an authentication of its own is needed for."""

import asyncio
import ssl
from urllib.parse import SplitResult

import httpx

from genmcp.client.errors import ClientError, ConnectError, ConnectionLost, ConnectionRefused
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse

__all__ = ["HttpxAdapter"]


class HttpxAdapter(HttpRequester):
    """Makes its requests through *client*, or through one of its own, which it closes.

    most: how many of the requests that wait there may be at once. tls: for a client of its own.
    """

    def __init__(
        self,
        url: SplitResult,
        where: str,
        *,
        connect_timeout: float,
        most: int,
        tls: ssl.SSLContext | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self.where = where
        self._origin = f"{url.scheme}://{url.netloc}"
        self._timeout = httpx.Timeout(None, connect=connect_timeout, pool=connect_timeout)
        self._owned = client is None
        self._slots = asyncio.Semaphore(most)
        # The bound is that of the slots: some requests must not wait for any other.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=most)
        self._client = client or httpx.AsyncClient(verify=tls or True, limits=limits)

    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        counts_against_limit: bool = True,
    ) -> HttpResponse:
        """Send a request and return the head of its response."""
        request = self._client.build_request(
            method, self._origin + path, headers=list(headers), content=body, timeout=self._timeout
        )
        if counts_against_limit:
            await self._slots.acquire()
        try:
            response = await self._client.send(request, stream=True, follow_redirects=False)
        except BaseException as error:
            if counts_against_limit:
                self._slots.release()
            if isinstance(error, httpx.HTTPError | OSError):
                raise self._cause(error) from error
            raise
        return _HttpxResponse(self, response, self._slots if counts_against_limit else None)

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        if self._owned:
            await self._client.aclose()

    def _cause(self, error: Exception) -> ClientError:
        reason = str(error) or type(error).__name__
        if _refused(error):
            return ConnectionRefused(self.where)
        if isinstance(
            error,
            httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError,
        ):
            return ConnectError(self.where, reason)
        return ConnectionLost(self.where, reason)


class _HttpxResponse(HttpResponse):
    def __init__(
        self,
        requester: HttpxAdapter,
        response: httpx.Response,
        slots: asyncio.Semaphore | None,
    ) -> None:
        super().__init__(requester.where)
        self._slots = slots  # where it has one, until it is left
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._chunks = response.aiter_bytes()

    async def chunk(self) -> bytes:
        """Return the next piece of the body."""
        try:
            return await anext(self._chunks, b"")
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise ConnectionLost(self.where, str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Give the connection back."""
        slots, self._slots = self._slots, None
        try:
            await self._response.aclose()
        finally:
            if slots is not None:
                slots.release()


def _refused(error: BaseException | None) -> bool:
    """Whether a refused connection is at the bottom of it: httpx only says so in its causes."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None
