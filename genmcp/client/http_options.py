"""How a client makes its HTTP requests."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp.client.masking import masked_values, shown
from genmcp.errors import ConfigurationError

__all__ = ["HttpOptions"]

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to know of HTTP; times in seconds.

    headers: sent with every request, `{"authorization": "Bearer ..."}`.
    connect_timeout: how long a connection may take to come about.
    connections: how many requests there may be at once; one past them waits. The streams on which
        a server speaks unasked, notifications, and answers to its questions are not counted.
    listen: whether the stream is opened on which a server of a revision before 2026-07-28 says
        what belongs to no request.
    resumptions: how often in a row a broken stream of such a revision is taken up again in vain.
    listen_interval: after how many seconds the stream of the server is then asked for again; a
        request whose response is a broken stream fails.
    close_timeout: how long the end of a session may take.
    tls: certificates; None: those the system trusts.
    client: an `httpx.AsyncClient` that makes the requests instead, with its own proxies,
        certificates, authentication and HTTP/2; it is not closed.

    Raises:
        ConfigurationError: an option has a value that means nothing.
    """

    headers: Mapping[str, str] = {}
    connect_timeout: float = 10.0
    connections: int = 100
    listen: bool = True
    resumptions: int = 5
    listen_interval: float = 60.0
    close_timeout: float = 2.0
    tls: ssl.SSLContext | None = None
    client: Any = None

    def __repr__(self) -> str:
        """Return the options with the values of the headers masked."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return shown("HttpOptions", {**values, "headers": masked_values(self.headers)})

    def __post_init__(self) -> None:
        """Check the values, naming the wrong one."""
        for name in ("connect_timeout", "connections", "listen_interval", "close_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be positive, not {getattr(self, name)!r}")
        if self.resumptions < 0:
            raise ConfigurationError(f"resumptions must not be negative, not {self.resumptions!r}")
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ConfigurationError(f"headers: {name!r} cannot be sent as it is")
