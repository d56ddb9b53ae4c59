"""Authorization of a client: access tokens, logins, and where their tokens are stored."""

from genmcp.client.auth.base import Auth, Authorization, Authorizer, RejectedRequest, TokenSource
from genmcp.client.auth.files import FileTokens
from genmcp.client.auth.keyring_tokens import KeyringTokens
from genmcp.client.auth.store_tokens import StoreTokens
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage, TokensUnavailable

__all__ = [
    "Auth",
    "Authorization",
    "Authorizer",
    "FileTokens",
    "KeyringTokens",
    "MemoryTokens",
    "RejectedRequest",
    "StoreTokens",
    "TokenSource",
    "TokenStorage",
    "TokensUnavailable",
]
