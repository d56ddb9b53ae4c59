"""The address that an anonymous request counts towards."""

from collections.abc import Callable

from genmcp.core.client_key import address_of
from genmcp.errors import ConfigurationError
from genmcp.transports.asgi import Scope

__all__ = ["IN_PROCESS", "FindClientKey", "find_address"]

FindClientKey = Callable[[Scope], str | None]
"""Returns the key of an anonymous client from an ASGI scope; None stands for the peer address."""

IN_PROCESS = "genmcp.in_process"
"""The ASGI extension in the scopes of a client in the same process, which has no peer address."""


def find_address(scope: Scope, find: FindClientKey | None) -> str | None:
    """Return the address that a request with *scope* counts towards; empty if it is unknown.

    Returns None for a client in this process. *find* is the setting `Endpoint(client_key=)`.

    Raises:
        ConfigurationError: *find* returned neither a str nor None.
    """
    if find is not None:
        found = find(scope)
        if found is not None and not isinstance(found, str):
            raise ConfigurationError(
                f"client_key= of Endpoint returned {found!r}: it must return a text, or None to "
                f"count the request for its peer address"
            )
        if found is not None:
            return address_of(found)
    if IN_PROCESS in scope.get("extensions", ()):
        return None
    peer = scope.get("client")
    return address_of(peer[0]) if peer else ""
