"""Authorization of a server: verification of the access tokens that clients send (OAuth 2.1)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from genmcp.auth.bearer import Bearer as Bearer
    from genmcp.auth.bearer import Verifier as Verifier
    from genmcp.auth.introspection import Introspection as Introspection
    from genmcp.auth.jwt import Jwt as Jwt
    from genmcp.core.access import AuthorizationUnavailable as AuthorizationUnavailable
    from genmcp.core.access import InvalidToken as InvalidToken

# Imported at the first access: `Jwt` needs an extra, and a client with a login needs none of the
# server, but other modules of this folder.
_LATER: Final = {
    "AuthorizationUnavailable": "genmcp.core.access",
    "Bearer": "genmcp.auth.bearer",
    "Introspection": "genmcp.auth.introspection",
    "InvalidToken": "genmcp.core.access",
    "Jwt": "genmcp.auth.jwt",
    "Verifier": "genmcp.auth.bearer",
}


def __getattr__(name: str) -> Any:
    """Import the value of *name* at its first access (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value
