"""Authorization of a client: access tokens, logins, and where their tokens are stored."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from genmcp.client.auth.base import Auth, Authorization, Authorizer, RejectedRequest, TokenSource

if TYPE_CHECKING:
    from genmcp.client.auth.credentials import ClientCredentials
    from genmcp.client.auth.files import FileTokens
    from genmcp.client.auth.oauth import OAuth
    from genmcp.client.auth.tokens import MemoryTokens, TokenStorage, TokensUnavailable
else:
    # Imported at the first access: the transports import this package for every client, and most
    # clients have no login.
    _LATER: Final = {
        "ClientCredentials": "credentials",
        "FileTokens": "files",
        "MemoryTokens": "tokens",
        "OAuth": "oauth",
        "TokenStorage": "tokens",
        "TokensUnavailable": "tokens",
    }

    def __getattr__(name: str) -> Any:
        """Import the value of *name* at its first access (PEP 562)."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_LATER[name]}")
        value = globals()[name] = getattr(module, name)
        return value


__all__ = [
    "Auth",
    "Authorization",
    "Authorizer",
    "ClientCredentials",
    "FileTokens",
    "MemoryTokens",
    "OAuth",
    "RejectedRequest",
    "TokenSource",
    "TokenStorage",
    "TokensUnavailable",
]
