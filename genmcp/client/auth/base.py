"""The interface between the HTTP transports and authorization, and authorization by a given token.

A transport asks an `Authorization` for the headers of each request, and passes it each 401 and 403.
`Authorizer` is what a user gives as `auth=`: it makes one `Authorization` for each connection.
"""

import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from genmcp.client.transports.base import OnWait
from genmcp.errors import ConfigurationError

# RFC 6750, 2.1: the characters of an access token.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class RejectedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the server answered with 401 or 403. It did not process the request.

    Args:
        method: the HTTP method.
        url: the URL.
        sent: the headers that `Authorization.headers` returned for this request. Another request
            may have renewed the token since.
        status: the HTTP status, 401 or 403.
        headers: the headers of the response, with names in lower case.
        attempt: how often this request was rejected so far, 1 for the first time.
        foreground: whether a caller waits for the response. Otherwise no login should begin: the
            stream for notifications is opened again, and sessions end, at any time.
        on_wait: is called with True before a person is asked, and with False after: the timeouts of
            the request are paused meanwhile.
    """

    method: str
    url: str
    sent: Mapping[str, str]
    status: int
    headers: Sequence[tuple[str, str]]
    attempt: int = 1
    foreground: bool = True
    on_wait: OnWait = lambda waiting: None

    def __repr__(self) -> str:
        # Without `sent`, which has the token, and without the query, which may have secrets.
        url = self.url.partition("?")[0]
        return f"RejectedRequest({self.method} {url}: {self.status}, attempt {self.attempt})"


class Authorization(ABC):
    """Authorizes the requests of one connection to a server. Owned by its transport.

    The methods are called by several tasks at once: requests, the notification stream and the end
    of the session. An implementation holds no lock while a request is in flight, since it never
    sends one itself.

    Attributes:
        pauses_timeouts: whether the timeouts of a request are paused during `headers` and
            `rejected`, since all that these wait for is a person. Otherwise
            `RejectedRequest.on_wait` pauses them.
    """

    pauses_timeouts: bool = False

    @abstractmethod
    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers that authorize the next request; renew a token that expires soon.

        Raises:
            ClientError: no token can be had, and without one the request is not worth sending.
        """

    @abstractmethod
    async def rejected(self, request: RejectedRequest) -> bool:
        """Handle a 401 or 403; return whether to send the request once more.

        Otherwise the caller gets `Unauthorized` or `Forbidden`.

        Raises:
            ClientError: authorization failed.
        """

    def answered(self, url: str, headers: Mapping[str, str]) -> None:  # noqa: B027
        """Handle the headers of any response, with names in lower case, such as `DPoP-Nonce`."""

    async def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Release the resources of the connection. May be called repeatedly."""


@runtime_checkable
class Authorizer(Protocol):
    """Settings that authorize connections, such as `OAuth`. May be shared by several clients.

    If it has an attribute `extension` that is not None, the client declares that extension.
    """

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*.

        Args:
            url: the URL of the server.
            tls: the TLS context of the connection, as for `ClientOptions`.

        Raises:
            ConfigurationError: the server cannot be authorized for in this way.
        """
        ...


TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
"""A function, `async` or not, that returns an access token. It is called again after a 401."""

Auth: TypeAlias = str | TokenSource | Authorizer
"""The values of `auth=`: an access token, a function that returns one, or an `Authorizer`."""


class BearerToken(Authorization):
    """Sends an access token that the user gives. Owned by its transport.

    Args:
        source: the token, or a function that returns it.
    """

    def __init__(self, source: str | TokenSource) -> None:
        self._source = source
        self._headers = None if callable(source) else bearer_header(source)

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the token; call the function for the first request."""
        return self._headers or await self._renew()

    async def rejected(self, request: RejectedRequest) -> bool:
        """Call the function again after the first 401, unless another request already has."""
        if request.status != 401 or not callable(self._source) or request.attempt > 1:
            return False
        if self._headers == request.sent:
            return await self._renew() != request.sent
        return True

    async def _renew(self) -> Mapping[str, str]:
        # Without a lock: a second call by another request does no harm, and a function that hangs
        # holds up no other request.
        assert callable(self._source)
        token = self._source()
        self._headers = bearer_header(await token if isawaitable(token) else token)
        return self._headers


def bearer_header(token: str) -> Mapping[str, str]:
    """Return the header for *token* (RFC 6750, 2.1).

    Raises:
        ConfigurationError: *token* is not an access token. The message does not contain it.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "auth: an access token must be ASCII letters, digits and -._~+/ with = at its end, "
            "without the scheme `Bearer`"
        )
    return {"Authorization": f"Bearer {token}"}


def check_auth(auth: object) -> None:
    """Check the value of an option `auth=`.

    Raises:
        ConfigurationError: it is neither a token, nor a function, nor an `Authorizer`.
    """
    if isinstance(auth, str):
        bearer_header(auth)
    elif not callable(auth) and not isinstance(auth, Authorizer):
        raise ConfigurationError(
            "auth must be an access token, a function that returns one, or an authorizer such as "
            f"OAuth(...), not a {type(auth).__name__}"
        )


def authorization_for(auth: Auth, url: str, tls: ssl.SSLContext | None = None) -> Authorization:
    """Return the authorization of a new connection to the server at *url*.

    Raises:
        ConfigurationError: *auth* cannot be used for it.
    """
    check_auth(auth)
    return auth.authorization(url, tls) if isinstance(auth, Authorizer) else BearerToken(auth)
