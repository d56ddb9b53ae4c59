"""The address that an anonymous request counts for."""

import inspect
from collections.abc import Callable
from typing import TypedDict

from genmcp.core.client_key import address_of
from genmcp.errors import ConfigurationError
from genmcp.transports.asgi import Scope

__all__ = ["IN_PROCESS", "FindClientKey", "Settings", "check_settings", "find_address"]

FindClientKey = Callable[[Scope], str | None]
"""Finds what an anonymous request counts for in its ASGI scope; None: its peer address."""

IN_PROCESS = "genmcp.in_process"
"""The ASGI extension that a client in the same process adds to its scopes: it has no address."""


class Settings(TypedDict, total=False):
    """The settings of an endpoint that few deployments change; `Endpoint` documents them."""

    heartbeat: float
    grace: float
    client_key: FindClientKey | None


def check_settings(settings: Settings) -> None:
    """Check the values of *settings*, and that there are no others.

    Raises:
        TypeError: a keyword that `Endpoint` does not take.
        ConfigurationError: a value is wrong.
    """
    if unknown := settings.keys() - Settings.__annotations__.keys():
        raise TypeError(f"Endpoint() got an unexpected keyword argument {min(unknown)!r}")
    if settings.get("heartbeat", 1) <= 0 or settings.get("grace", 0) < 0:
        raise ConfigurationError("heartbeat must be positive, grace not negative")
    find = settings.get("client_key")
    if find is not None and (not callable(find) or inspect.iscoroutinefunction(find)):
        raise ConfigurationError(f"client_key takes a plain function, not {find!r}")


def find_address(scope: Scope, find: FindClientKey | None) -> str | None:
    """Return the address that a request with *scope* counts for, empty if it is unknown.

    None for a client in this process. *find* is the setting `client_key`.

    Raises:
        ConfigurationError: *find* returned something else than a text or None.
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
