"""`Workload`: the identity that a platform gives (Workload Identity Federation, SEP-1933)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from genmcp._core.auth.metadata import check_public_url
from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import Call, FlowFailed, Grant, Steps
from genmcp.client.auth.credentials import ServiceOptions
from genmcp.client.auth.flows import FlowAuthorization
from genmcp.client.options import HttpOptions
from genmcp.errors import ConfigurationError

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

Supply: TypeAlias = Callable[[], object]
"""A function of the user, `async` or not, that returns an assertion."""


@dataclass(frozen=True)
class Workload(ServiceOptions):
    """Authorization of a workload by an assertion of its platform, such as Kubernetes (SEP-1933).

        token = Path("/var/run/secrets/tokens/mcp")
        auth = Workload(token.read_text, issuer="https://login.example.com")

    If the authorization server refuses the assertion, the request fails: there is no second attempt
    and no other grant.

    Args:
        assertion: a function, `async` or not, that returns a JWT of the platform for the
            authorization server. It is called for each token.
        issuer: the authorization server, exactly as in its metadata. No other gets the assertion,
            whatever a server names.
        client_id: the id of the workload at the authorization server. Default: none; the assertion
            identifies it.
        scopes: as for `ServiceOptions`.
        resource: as for `ServiceOptions`.

    Raises:
        ConfigurationError: A value is invalid.
    """

    assertion: Supply = field(repr=False)
    issuer: str
    client_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_function("Workload.assertion", self.assertion)
        check_public_url("Workload.issuer", self.issuer)

    def authorization(self, url: str, http: HttpOptions | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        grant = by_assertion(self.assertion)
        return self.authorized(url, http, grant, client_id=self.client_id, issuer=self.issuer)


def by_assertion(assertion: Supply) -> Grant:
    """Return the grant of a workload, with an assertion of its platform (RFC 7523, 2.1)."""

    def grant(record: Record, scopes: Sequence[str]) -> Steps[Mapping[str, str]]:
        text = yield from supplied(assertion, "assertion")
        return {"grant_type": JWT_BEARER, "assertion": text}

    return grant


def supplied(supply: Supply, option: str) -> Steps[str]:
    """Return the text of a function of the user, the value of *option*.

    Raises:
        FlowFailed: It returned no text.
    """
    text: object = yield Call(supply)
    if not isinstance(text, str) or not text.strip():
        raise FlowFailed(f"the function {option} must return a text, not {type(text).__name__}")
    return text.strip()


def check_function(option: str, value: object) -> None:
    """Check that the value of *option* is a function.

    Raises:
        ConfigurationError: It is not. A token in its place is not in the message.
    """
    if not callable(value):
        raise ConfigurationError(f"{option} must be a function, not a {type(value).__name__}")
