"""Authorization of a client: access tokens, logins, and where their tokens are stored."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from genmcp.client.auth.base import Auth, Authorization, Authorizer, RejectedRequest, TokenSource

if TYPE_CHECKING:
    from genmcp.client.auth.files import FileTokens
    from genmcp.client.auth.keyring_tokens import KeyringTokens
    from genmcp.client.auth.oauth import OAuth
    from genmcp.client.auth.services import ClientCredentials, Enterprise, Workload
    from genmcp.client.auth.store_tokens import StoreTokens
    from genmcp.client.auth.tokens import MemoryTokens, TokenStorage, TokensUnavailable
else:
    # Imported at the first access: the transports import this package for every client, and most
    # clients have no login.
    _LATER: Final = {
        "ClientCredentials": "services",
        "Enterprise": "services",
        "FileTokens": "files",
        "KeyringTokens": "keyring_tokens",
        "MemoryTokens": "tokens",
        "OAuth": "oauth",
        "StoreTokens": "store_tokens",
        "TokenStorage": "tokens",
        "TokensUnavailable": "tokens",
        "Workload": "services",
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
    "Enterprise",
    "FileTokens",
    "KeyringTokens",
    "MemoryTokens",
    "OAuth",
    "RejectedRequest",
    "StoreTokens",
    "TokenSource",
    "TokenStorage",
    "TokensUnavailable",
    "Workload",
]
