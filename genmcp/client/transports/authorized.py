"""HTTP requests with authorization: the headers of each one, and what follows a 401 or 403."""

import asyncio
import logging
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, Final
from urllib.parse import SplitResult

from genmcp.cancellation import cancel_requested
from genmcp.client.auth.base import Auth, Authorization, RejectedRequest, authorization_for
from genmcp.client.auth.flows import FlowAuthorization
from genmcp.client.errors import AuthorizationFailed, ClientError, authorization_error
from genmcp.client.transports.base import (
    Headers,
    HttpRequester,
    HttpResponse,
    OnWait,
)
from genmcp.core.auth.metadata import is_loopback_url
from genmcp.core.auth.steps import FlowFailed
from genmcp.errors import ConfigurationError

logger = logging.getLogger("genmcp.client")

# How often a request is sent. It can be rejected for a nonce (DPoP), an expired token, and a
# missing scope, and each may happen again with the new token. Authorizations give up earlier, and
# by the same count (`RejectedRequest.attempt`) of rejections for any reason, so that their bounds
# do not add up: a flow obtains a token after the third rejection at the latest if that is a 401,
# and after the second if it is a 403 (`core/auth/flow.py`); a proof is made with a new nonce after
# the third (`client/auth/dpop.py`). This one bounds authorizations that never give up.
_MAX_ATTEMPTS: Final = 6
_MAX_BODY: Final = 64 * 1024  # bytes of the body of a 401 or 403 that an error may show
_BODY_TIMEOUT: Final = 5.0  # seconds to read it
_MIN_SECRET: Final = 6  # bytes; a shorter value may be part of any word


class AuthorizedRequester(HttpRequester):
    """Sends requests with authorization. Owned by its transport.

    No lock is held, and no connection is occupied, while a token is obtained.

    Args:
        url: a URL of the origin.
        requester: sends the requests; it is closed with this one.
        authorization: authorizes them; it is closed with this one.
    """

    waits: ClassVar[bool] = True

    def __init__(
        self, url: SplitResult, requester: HttpRequester, authorization: Authorization
    ) -> None:
        super().__init__(requester.server_name)
        self._origin = f"{url.scheme}://{url.netloc}"
        self._requester = requester
        self._authorization = authorization
        self._pauses_timeouts = authorization.pauses_timeouts

    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        counts_against_limit: bool = True,
        on_wait: OnWait | None = None,
    ) -> HttpResponse:
        """Send a request, and send it again if it was rejected and can be authorized.

        A 401 or 403 is the answer of a server that has not processed the request, so that sending
        it again is safe.

        Raises:
            ClientError: as for `HttpRequester.request`, or authorization failed.
        """
        url, given = self._origin + path, [*headers]
        authorization = self._authorization
        pause = on_wait if self._pauses_timeouts else None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            with _waiting(pause), self._as_client_error():
                sent = await authorization.headers(method, url)
                added = _encoded(sent)
            response = await self._requester.request(
                method,
                path,
                [*given, *added],
                body,
                counts_against_limit=counts_against_limit,
            )
            authorization.answered(url, response.headers)
            if response.status not in (401, 403):
                return response
            response = await _read(response, sent)
            if attempt == _MAX_ATTEMPTS:
                break
            rejected = RejectedRequest(
                method=method,
                url=url,
                sent=sent,
                status=response.status,
                headers=[*response.headers.items()],
                attempt=attempt,
                foreground=on_wait is not None,
                on_wait=on_wait or _ignored,
            )
            with _waiting(pause), self._as_client_error():
                if not await authorization.rejected(rejected):
                    break
        return response

    @contextmanager
    def _as_client_error(self) -> Iterator[None]:
        """Convert the exceptions of token functions and storages, which callers do not expect."""
        try:
            yield
        except ClientError:
            raise
        except FlowFailed as failed:
            raise authorization_error(failed, self.server_name) from failed
        except asyncio.CancelledError as error:
            if cancel_requested():
                raise
            reason = "it waited for something that was cancelled"
            raise AuthorizationFailed(self.server_name, reason) from error
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise AuthorizationFailed(self.server_name, reason) from error

    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        return await self.request(method, path, headers, body)

    async def close(self) -> None:
        """Close all connections, including those in use."""
        try:
            await self._authorization.close()
        finally:
            await self._requester.close()


class _ReadResponse(HttpResponse):
    """A response whose body was read, so that it occupies no connection."""

    def __init__(
        self, server_name: str, status: int, headers: Mapping[str, str], content: bytes
    ) -> None:
        super().__init__(server_name)
        self.status = status
        self.headers = headers
        self._content = content

    async def _chunk(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def _release(self) -> None:
        pass


@contextmanager
def _waiting(on_wait: OnWait | None) -> Iterator[None]:
    """Call *on_wait* before and after the block."""
    if on_wait is None:
        yield
        return
    on_wait(True)
    try:
        yield
    finally:
        on_wait(False)


def _ignored(waiting: bool) -> None:
    """Do nothing: no caller waits for the response."""


async def _read(response: HttpResponse, sent: Mapping[str, str]) -> HttpResponse:
    """Read and close a response; a body that is too long or too slow is ignored.

    Credentials that the server repeats are masked: the body becomes a part of the error.
    """
    content = b""
    try:
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_BODY_TIMEOUT):
                content = await response.read(_MAX_BODY)
    finally:
        await response.close()
    for value in sent.values():
        secret = value.rpartition(" ")[2].encode("latin-1")
        if len(secret) >= _MIN_SECRET:
            content = content.replace(secret, b"***")
    return _ReadResponse(response.server_name, response.status, response.headers, content)


def _encoded(headers: Mapping[str, str]) -> Sequence[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def authorized(
    url: SplitResult,
    requester: HttpRequester,
    auth: Auth,
    tls: ssl.SSLContext | None = None,
    *,
    in_process: bool = False,
) -> HttpRequester:
    """Return *requester* with authorization by *auth*.

    Raises:
        ConfigurationError: *auth* cannot be used for *url*. A server in this process has no URL at
            which a login could find it.
    """
    authorization = authorization_for(auth, url.geturl(), tls)
    if url.scheme != "https" and not is_loopback_url(url.geturl()):
        logger.warning("%s gets access tokens without TLS", requester.server_name)
    if in_process and isinstance(authorization, FlowAuthorization):
        raise ConfigurationError(
            f"{type(auth).__name__} needs the URL of a server; for one in this process, give an "
            "access token, such as one of genmcp.testing.Issuer"
        )
    return AuthorizedRequester(url, requester, authorization)
