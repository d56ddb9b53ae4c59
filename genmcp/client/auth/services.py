"""Authorization without a login: `ClientCredentials`, `Workload` and `Enterprise`."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from genmcp._core.auth.flow import RejectedAttempt
from genmcp._core.auth.grants import ID_TOKEN, SAML2
from genmcp._core.auth.metadata import check_public_url
from genmcp._core.auth.record import Record, record_key
from genmcp._core.auth.service_flow import (
    Grant,
    Supply,
    by_assertion,
    by_credentials,
    by_exchange,
    rejected_service,
    usable_service,
)
from genmcp._core.auth.steps import FlowOptions, Steps
from genmcp.client.auth.base import Authorization
from genmcp.client.auth.dpop import DpopKeys
from genmcp.client.auth.fetcher import DEFAULT_FETCH_TIMEOUT, Fetcher
from genmcp.client.auth.flows import FlowAuthorization, SharedFlows
from genmcp.client.auth.oauth import check_issuer, log_finding
from genmcp.client.auth.runner import FlowRunner
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage
from genmcp.client.options import HttpOptions
from genmcp.errors import ConfigurationError

PrivateKey = str | bytes | Mapping[str, Any]
"""A private key: PEM text, or a JWK as a mapping or as its JSON text."""

_SUBJECTS: Final = {"id_token": ID_TOKEN, "saml2": SAML2}
_METHODS: Final = ("client_secret_basic", "client_secret_post")


class _ServiceAuthorization(FlowAuthorization):
    """Authorizes a connection without a person, so that no timeout is paused."""

    interactive: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options that `ClientCredentials`, `Workload` and `Enterprise` have in common.

    Args:
        scopes: the scopes to ask for. Default: those that the server names.
        resource: the parameter `resource`, for a server whose metadata has another URL than it
            should. None leaves it out. Default: as in the metadata.
        dpop: whether the tokens are bound to a key of this client, with a proof for each request
            (RFC 9449). The authorization server must support it. Needs the extra `auth`. Default:
            False.
        tokens: stores the tokens. Default: the memory of this process, for this object only.
        allow_private: whether the server may name URLs with private addresses. Set it to False
            in a service that connects to servers of others. Default: True.
        fetch_timeout: seconds for each request to an authorization server. Default: 10.
        max_document: bytes of each of its responses. Default: 256 KiB.
    """

    extension: ClassVar[str | None] = None

    scopes: Sequence[str] | None = None
    resource: str | None = ""
    dpop: bool = False
    tokens: TokenStorage = field(default_factory=MemoryTokens)
    allow_private: bool = True
    fetch_timeout: float = DEFAULT_FETCH_TIMEOUT
    max_document: int = 256 * 1024
    _shared: SharedFlows = field(default_factory=SharedFlows, init=False, repr=False, compare=False)
    # Of tokens whose user or workload has no name: no other object may find them in a storage.
    _account: str = field(default_factory=lambda: _random(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        name = type(self).__name__
        if isinstance(self.scopes, str):
            raise ConfigurationError(f"{name}.scopes must be a list of strings, not a string")
        if not isinstance(self.tokens, TokenStorage):
            raise ConfigurationError(
                f"{name}.tokens must be a TokenStorage such as MemoryTokens(), not {self.tokens!r}"
            )
        for option in ("fetch_timeout", "max_document"):
            if not getattr(self, option) > 0:
                raise ConfigurationError(f"{name}.{option} must be positive")
        if self.dpop:
            DpopKeys()  # fails here without the extra, and not at the first request

    def _authorized(
        self, url: str, http: HttpOptions | None, account: str, grant: Grant, **options: Any
    ) -> Authorization:
        """Return the authorization of a connection.

        Args:
            url: the URL of the server.
            http: the options of the connection.
            account: whose tokens they are, for the name of the record.
            grant: the grant.
            options: further options of the flow.
        """
        flow = FlowOptions(
            url=url,
            now=time.time,
            random=_random,
            scopes=self.scopes,
            resource=self.resource,
            allow_private=self.allow_private,
            max_document=self.max_document,
            prover=DpopKeys() if self.dpop else None,
            observe=log_finding,
            **options,
        )
        key = record_key(url, f"{type(self).__name__} {account}")
        tls = None if http is None else http.tls

        def runner(_asks: bool) -> FlowRunner:
            return FlowRunner(key, self.tokens, Fetcher(self.fetch_timeout, tls))

        def usable(options: FlowOptions, held: Record | None) -> Steps[Record | None]:
            return usable_service(options, grant, held)

        def rejected(options: FlowOptions, rejection: RejectedAttempt) -> Steps[Record | None]:
            return rejected_service(options, grant, rejection)

        return _ServiceAuthorization(flow, runner, self._shared, rejected, usable=usable)


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
        key: its private key, as PEM or JWK. Needs the extra `auth`.
        algorithm: the algorithm of the key. Default: the usual one of its type, such as ES256.
        method: how the secret is sent: `client_secret_basic` or `client_secret_post`. Default: as
            the authorization server lists it.
        issuer: the authorization server, exactly as in its metadata. Required: no other gets the
            secret or an assertion, whatever a server names.

    The other arguments are those of `ServiceOptions`.

    Raises:
        ConfigurationError: A value is invalid, *issuer* is missing, or not exactly one of *secret*
            and *key* is given.
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/oauth-client-credentials"

    client_id: str
    secret: str | None = field(default=None, repr=False, kw_only=True)
    key: PrivateKey | None = field(default=None, repr=False, kw_only=True)
    algorithm: str | None = field(default=None, kw_only=True)
    method: Literal["client_secret_basic", "client_secret_post"] | None = field(
        default=None, kw_only=True
    )
    issuer: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        _check_text("ClientCredentials.client_id", self.client_id)
        if (self.secret is None) == (self.key is None):
            raise ConfigurationError("ClientCredentials takes either a secret or a key")
        if self.method is not None and (self.key is not None or self.method not in _METHODS):
            raise ConfigurationError(
                f"ClientCredentials.method is how a secret is sent: {' or '.join(_METHODS)}"
            )
        check_issuer("ClientCredentials", self.issuer)
        _signer(self.key, self.algorithm)

    def authorization(self, url: str, http: HttpOptions | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        return self._authorized(
            url,
            http,
            self.client_id,
            by_credentials,
            client_id=self.client_id,
            client_secret=self.secret,
            method=self.method,
            sign=_signer(self.key, self.algorithm),
            issuer=self.issuer,
        )


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

    The other arguments are those of `ServiceOptions`.

    Raises:
        ConfigurationError: A value is invalid.
    """

    assertion: Supply = field(repr=False)
    issuer: str
    client_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        _check_function("Workload.assertion", self.assertion)
        check_public_url("Workload.issuer", self.issuer)

    def authorization(self, url: str, http: HttpOptions | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        grant = by_assertion(self.assertion)
        account = self.client_id or self._account
        return self._authorized(
            url, http, account, grant, client_id=self.client_id, issuer=self.issuer
        )


@dataclass(frozen=True)
class Enterprise(ServiceOptions):
    """Authorization of a user who is signed in at the identity provider of a company (SEP-990).

        auth = Enterprise(
            "https://login.example.com",
            "https://idp.example.com",
            session.id_token,
            client_id="parts-agent",
            secret=SECRET,
            idp_client_id="0oa2b3c4",
        )

    The identity provider exchanges the ID token of the sign-in for an assertion that the
    authorization server of the MCP server accepts, if the company's policy allows it. The user is
    not asked.

    Args:
        issuer: the authorization server of the MCP server, exactly as in its metadata. No other
            gets an assertion, whatever a server names.
        idp: the identity provider: its issuer.
        id_token: a function, `async` or not, that returns the ID token of the user, or the SAML
            assertion. It is called for each token.
        client_id: the id of the client at the authorization server.
        secret: its secret there. Default: none.
        key: its private key there, as PEM or JWK. Needs the extra `auth`. Default: none.
        idp_client_id: the id of the client at the identity provider. Default: none.
        idp_secret: its secret there. Default: none.
        idp_token_endpoint: the token endpoint of the identity provider. Default: as in its
            metadata.
        subject_type: what *id_token* returns, `id_token` or `saml2`. Default: `id_token`.
        user: identifies the user in *tokens*. Required for storages other than `MemoryTokens`, in
            which several users may have tokens. Default: no other object gets them.

    The other arguments are those of `ServiceOptions`.

    Raises:
        ConfigurationError: A value is invalid.
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/enterprise-managed-authorization"

    issuer: str
    idp: str
    id_token: Supply = field(repr=False)
    client_id: str = field(kw_only=True)
    secret: str | None = field(default=None, repr=False, kw_only=True)
    key: PrivateKey | None = field(default=None, repr=False, kw_only=True)
    idp_client_id: str | None = field(default=None, kw_only=True)
    idp_secret: str | None = field(default=None, repr=False, kw_only=True)
    idp_token_endpoint: str | None = field(default=None, kw_only=True)
    subject_type: Literal["id_token", "saml2"] = field(default="id_token", kw_only=True)
    user: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_public_url("Enterprise.issuer", self.issuer)
        check_public_url("Enterprise.idp", self.idp)
        if self.idp_token_endpoint is not None:
            check_public_url("Enterprise.idp_token_endpoint", self.idp_token_endpoint)
        _check_function("Enterprise.id_token", self.id_token)
        _check_text("Enterprise.client_id", self.client_id)
        if self.secret is not None and self.key is not None:
            raise ConfigurationError("Enterprise takes either a secret or a key, not both")
        if self.idp_secret is not None and self.idp_client_id is None:
            raise ConfigurationError("Enterprise.idp_secret needs idp_client_id")
        if self.subject_type not in _SUBJECTS:
            raise ConfigurationError(
                f"Enterprise.subject_type must be id_token or saml2, not {self.subject_type!r}"
            )
        if not isinstance(self.tokens, MemoryTokens) and not self.user:
            raise ConfigurationError(
                "Enterprise.user must identify the user in a storage of tokens, so that no user "
                "gets the tokens of another"
            )
        _signer(self.key)

    def authorization(self, url: str, http: HttpOptions | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        idp = FlowOptions(
            url=self.idp,
            issuer=self.idp,
            now=time.time,
            random=_random,
            client_id=self.idp_client_id,
            client_secret=self.idp_secret,
            max_document=self.max_document,
            observe=log_finding,
        )
        subject_type = _SUBJECTS[self.subject_type]
        return self._authorized(
            url,
            http,
            f"{self.client_id} {self.user or self._account}",
            by_exchange(idp, self.idp_token_endpoint, self.id_token, subject_type),
            client_id=self.client_id,
            client_secret=self.secret,
            sign=_signer(self.key),
            issuer=self.issuer,
        )


def _signer(
    key: PrivateKey | None, algorithm: str | None = None
) -> Callable[[Mapping[str, Any]], str] | None:
    """Return the function that signs assertions with *key*, None without a key.

    Raises:
        ConfigurationError: The extra `auth` is missing, or the key cannot sign.
    """
    if key is None:
        return None
    from genmcp.auth import jose  # needs an extra

    read = jose.read_key(key)
    header = {"typ": "JWT"} | ({} if read.kid is None else {"kid": read.kid})
    jose.sign({}, read, header=header, algorithm=algorithm)  # fails now if it cannot
    return lambda claims: jose.sign(claims, read, header=header, algorithm=algorithm)


def _random() -> str:
    return secrets.token_urlsafe(32)


def _check_text(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{option} must be a text that is not empty, not {value!r}")


def _check_function(option: str, value: object) -> None:
    if not callable(value):
        # A token in place of the function would be in the message.
        raise ConfigurationError(f"{option} must be a function, not a {type(value).__name__}")
