"""Authorization of a server: verification of the access tokens that clients send (OAuth 2.1)."""

from typing import TYPE_CHECKING, Any

from genmcp._core.access import AuthorizationUnavailable, InvalidToken
from genmcp.auth.bearer import Bearer, Verifier
from genmcp.auth.dpop import Dpop
from genmcp.auth.introspection import AnyOf, Introspection

if TYPE_CHECKING:
    from genmcp.auth.jwt import Jwt
else:

    def __getattr__(name: str) -> Any:
        """Import `Jwt` at its first access: it needs an extra."""
        if name != "Jwt":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from genmcp.auth.jwt import Jwt

        return Jwt


__all__ = [
    "AnyOf",
    "AuthorizationUnavailable",
    "Bearer",
    "Dpop",
    "Introspection",
    "InvalidToken",
    "Jwt",
    "Verifier",
]
