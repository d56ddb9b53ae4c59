"""Who a request was authenticated as, by the host application's own authentication."""

from collections.abc import Callable

from genmcp.errors import ConfigurationError
from genmcp.transports.asgi import Scope

__all__ = ["Principal", "authenticated", "principal_of"]

Principal = Callable[[Scope], str | None]
"""Finds the identity a request was authenticated as in its ASGI scope; None for nobody."""


def principal_of(scope: Scope, find: Principal) -> str | None:
    """Return the identity *find* finds in *scope*, None for nobody.

    Raises:
        ConfigurationError: what it found cannot tell users apart.
    """
    identity = find(scope)
    if identity is None or (isinstance(identity, str) and identity):
        return identity
    raise ConfigurationError(
        f"principal= of Endpoint gave {identity!r}: it must return the identity a request was "
        f"authenticated as, a text that is not empty, or None for nobody"
    )


def authenticated(scope: Scope) -> str | None:
    """Return the identity of `scope["user"]` if it is authenticated (Starlette's convention).

    Raises:
        ConfigurationError: there is a user, but none that tells who it is.
    """
    user = scope.get("user")
    if user is None:
        return None
    try:
        if not user.is_authenticated:
            return None
        identity = user.identity
    except (AttributeError, NotImplementedError):
        identity = None
    if not isinstance(identity, str) or not identity:
        raise ConfigurationError(
            f"scope['user'] is a {type(user).__name__} without an identity: give it the "
            f"properties `is_authenticated` and `identity` (a text that is not empty), or pass "
            f"principal= to Endpoint"
        )
    return identity
