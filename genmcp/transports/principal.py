"""Who a request was authenticated as, by the host application's own authentication."""

from collections.abc import Callable

from genmcp.errors import ConfigurationError
from genmcp.transports.asgi import Scope

__all__ = ["Principal", "authenticated"]

Principal = Callable[[Scope], str | None]
"""Finds the identity a request was authenticated as in its ASGI scope; None for nobody."""


def authenticated(scope: Scope) -> str | None:
    """Return the identity of `scope["user"]` if it is authenticated (Starlette's convention).

    Raises:
        ConfigurationError: the user is authenticated, but has no identity to tell users apart.
    """
    user = scope.get("user")
    if user is None or not user.is_authenticated:
        return None
    try:
        identity = user.identity
    except NotImplementedError:
        identity = None
    if not isinstance(identity, str) or not identity:
        raise ConfigurationError(
            f"{type(user).__name__} is authenticated but has no identity: give it one (a property "
            f"`identity` that returns a str), or pass principal= to Endpoint"
        )
    return identity
