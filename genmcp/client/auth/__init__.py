"""Authorization of a client: access tokens, logins, and where their tokens are stored."""

from genmcp.client.auth.base import Auth, Authorization, Authorizer, RejectedRequest, TokenSource
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage, TokensUnavailable

__all__ = [
    "Auth",
    "Authorization",
    "Authorizer",
    "MemoryTokens",
    "RejectedRequest",
    "TokenSource",
    "TokenStorage",
    "TokensUnavailable",
]
