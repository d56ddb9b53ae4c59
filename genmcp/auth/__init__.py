"""Authorization of a server: verification of the access tokens that clients send (OAuth 2.1)."""

from genmcp._core.access import AuthorizationUnavailable, InvalidToken
from genmcp.auth.bearer import Bearer, Verifier

__all__ = ["AuthorizationUnavailable", "Bearer", "InvalidToken", "Verifier"]
