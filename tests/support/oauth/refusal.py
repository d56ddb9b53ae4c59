"""Requests of the issuer, and the error responses of OAuth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class IssuerRequest:
    """A request that the issuer received.

    Its repr shows neither parameters nor headers, which contain secrets.

    Attributes:
        endpoint: "metadata" (RFC 8414), "openid" (OpenID Connect Discovery), "jwks", "register",
            "authorize", "token", "introspect" or "revoke".
        method: the HTTP method.
        path: the path of the URL.
        params: the parameters of the query or the form, or the members of a registration. The
            first value, if a parameter is repeated.
        headers: the headers, with names in lower case.
        status: the status of the response; 0 until it is sent.
        error: the OAuth error of the response, such as "invalid_grant".
        pairs: all parameters in their order, also repeated ones.
    """

    endpoint: str
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    status: int = 0
    error: str | None = None
    pairs: Sequence[tuple[str, str]] = field(default=(), repr=False)

    def values(self, name: str) -> list[str]:
        """Return all values of a parameter that may be repeated, such as `resource`."""
        return [value for key, value in self.pairs if key == name and value]

    def required(self, name: str) -> str:
        """Return the value of a parameter.

        Raises:
            OAuthRefusal: it is missing.
        """
        if value := self.params.get(name):
            return value
        raise OAuthRefusal("invalid_request", f"{name} is missing")

    def check_repeated(self) -> None:
        """Refuse a repeated parameter (RFC 6749, 3.1).

        `resource` (RFC 8707, 2) and `audience` (RFC 8693, 2.1) may be repeated.
        """
        names = [name for name, _ in self.pairs if name not in ("resource", "audience")]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise OAuthRefusal("invalid_request", f"repeated: {' '.join(sorted(repeated))}")


class OAuthRefusal(Exception):
    """An error response of the issuer.

    Args:
        error: the code, such as "invalid_grant".
        description: which check failed.
        status: the HTTP status.
        headers: further headers of the response.
    """

    def __init__(
        self,
        error: str,
        description: str,
        *,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{error}: {description}")
        self.error = error
        self.description = description
        self.status = status
        self.headers = dict(headers or {})
