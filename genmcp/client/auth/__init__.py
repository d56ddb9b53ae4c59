"""Authorization of a client: access tokens, logins, and where their tokens are stored."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from genmcp.client.auth.base import Auth as Auth
from genmcp.client.auth.base import Authorization as Authorization
from genmcp.client.auth.base import Authorizer as Authorizer
from genmcp.client.auth.base import RejectedRequest as RejectedRequest
from genmcp.client.auth.base import TokenSource as TokenSource

if TYPE_CHECKING:
    from genmcp.client.auth.files import FileTokens as FileTokens
    from genmcp.client.auth.oauth import ClientCredentials as ClientCredentials
    from genmcp.client.auth.oauth import OAuth as OAuth
    from genmcp.client.auth.tokens import MemoryTokens as MemoryTokens
    from genmcp.client.auth.tokens import TokenStorage as TokenStorage
    from genmcp.client.auth.tokens import TokensUnavailable as TokensUnavailable

# Imported at the first access: the transports import this package for every client, and most
# clients have no login.
_LATER: Final = {
    "ClientCredentials": "oauth",
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
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
