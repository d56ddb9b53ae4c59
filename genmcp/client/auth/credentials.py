"""Authorization without a user: the base of it, and `ClientCredentials`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from genmcp._core.auth.metadata import is_loopback_url
from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import Grant, Steps
from genmcp.auth.fetcher import Fetcher
from genmcp.client.auth.flows import FlowAuthorization, SharedFlows
from genmcp.client.auth.oauth import check_issuer, check_scopes, flow_options
from genmcp.client.auth.runner import FlowRunner
from genmcp.client.auth.tokens import MemoryTokens
from genmcp.client.options import HttpOptions
from genmcp.client.transports.http_pool import trusted_context
from genmcp.errors import ConfigurationError

PrivateKey = str | bytes | Mapping[str, Any]
"""A private key: PEM text, or a JWK as a mapping or as its JSON text."""

_METHODS: Final = ("client_secret_basic", "client_secret_post")


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options of each authorization without a user.

    Its tokens are in the memory of this object: a new one costs one request.

    Args:
        scopes: the scopes to ask for. Default: those that the server names.
        resource: the parameter `resource`, for a server whose metadata has another URL than it
            should. None leaves it out. Default: as in the metadata.
    """

    extension: ClassVar[str | None] = None

    scopes: Sequence[str] | None = None
    resource: str | None = ""
    _tokens: MemoryTokens = field(
        default_factory=MemoryTokens, init=False, repr=False, compare=False
    )
    _shared: SharedFlows = field(default_factory=SharedFlows, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_scopes(type(self).__name__, self.scopes)

    def authorized(
        self, url: str, http: HttpOptions | None, grant: Grant, **options: Any
    ) -> FlowAuthorization:
        """Return the authorization of a connection.

        Args:
            url: the URL of the server.
            http: the options of the connection.
            grant: the grant.
            options: further options of the flow.
        """
        tls = (None if http is None else http.tls) or trusted_context()
        flow = flow_options(
            url,
            grant=grant,
            scopes=self.scopes,
            resource=self.resource,
            public_only=not is_loopback_url(url),
            **options,
        )

        def runner(_asks: bool) -> FlowRunner:
            return FlowRunner(url, self._tokens, Fetcher(tls=tls))

        return FlowAuthorization(flow, runner, self._shared)


@dataclass(frozen=True)
class ClientCredentials(ServiceOptions):
    """Authorization of a service by its own credentials, without a user (RFC 6749, 4.4).

        key = Path("reports.pem").read_text()
        auth = ClientCredentials("reports", key=key, issuer="https://login.example.com")
        async with Client("https://mcp.example.com/mcp", auth=auth) as client:
            ...

    With a key, the service signs an assertion for each token request (`private_key_jwt`, RFC 7523),
    so that no secret leaves this process.

    Args:
        client_id: the id of the client at the authorization server.
        secret: its secret.
        key: its private key, as PEM or JWK. Needs the extra `auth`. The algorithm is the `alg` of a
            JWK, else the usual one of its type, such as ES256.
        method: how the secret is sent: `client_secret_basic` or `client_secret_post`. Default: as
            the authorization server lists it.
        issuer: the authorization server, exactly as in its metadata. Required: no other gets the
            secret or an assertion, whatever a server names.
        scopes: as for `ServiceOptions`.
        resource: as for `ServiceOptions`.

    Raises:
        ConfigurationError: A value is invalid, *issuer* is missing, or not exactly one of *secret*
            and *key* is given.
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/oauth-client-credentials"

    client_id: str
    secret: str | None = field(default=None, repr=False, kw_only=True)
    key: PrivateKey | None = field(default=None, repr=False, kw_only=True)
    method: Literal["client_secret_basic", "client_secret_post"] | None = field(
        default=None, kw_only=True
    )
    issuer: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_text("ClientCredentials.client_id", self.client_id)
        if (self.secret is None) == (self.key is None):
            raise ConfigurationError("ClientCredentials takes either a secret or a key")
        if self.method is not None and (self.key is not None or self.method not in _METHODS):
            raise ConfigurationError(
                f"ClientCredentials.method is how a secret is sent: {' or '.join(_METHODS)}"
            )
        check_issuer("ClientCredentials", self.issuer)
        signer(self.key)

    def authorization(self, url: str, http: HttpOptions | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        return self.authorized(
            url,
            http,
            by_credentials,
            client_id=self.client_id,
            client_secret=self.secret,
            method=self.method,
            sign=signer(self.key),
            issuer=self.issuer,
        )


def by_credentials(record: Record, scopes: Sequence[str]) -> Steps[Mapping[str, str]]:
    """Return the grant of a service: its authentication is all that is needed (RFC 6749, 4.4)."""
    yield from ()
    return {"grant_type": "client_credentials"}


def signer(key: PrivateKey | None) -> Callable[[Mapping[str, Any]], str] | None:
    """Return the function that signs assertions with *key*, None without a key.

    Raises:
        ConfigurationError: The extra `auth` is missing, or the key cannot sign.
    """
    if key is None:
        return None
    from genmcp.auth import jose  # needs an extra

    read = jose.read_key(key)
    header = {"typ": "JWT"} | ({} if read.kid is None else {"kid": read.kid})
    jose.sign({}, read, header=header)  # fails now if it cannot
    return lambda claims: jose.sign(claims, read, header=header)


def check_text(option: str, value: object) -> None:
    """Check that the value of *option* is a text that is not empty.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{option} must be a text that is not empty, not {value!r}")
