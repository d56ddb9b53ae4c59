"""Identities that others vouch for: `Workload` by a platform, `Enterprise` by a company."""

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from genmcp.client.auth.flows import FlowAuthorization
from genmcp.client.auth.oauth import (
    PrivateKey,
    ServiceOptions,
    by_credentials,
    check_text,
    flow_options,
    signer,
)
from genmcp.core.auth.discovery import find_server
from genmcp.core.auth.fetching import shown
from genmcp.core.auth.metadata import ServerMetadata, check_public_url
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.registration import own_client
from genmcp.core.auth.steps import Call, FlowFailed, FlowOptions, Grant, Steps
from genmcp.core.auth.token_request import request_token
from genmcp.errors import ConfigurationError

ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"

_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"
_SAML2: Final = "urn:ietf:params:oauth:token-type:saml2"

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
        ConfigurationError: a value is invalid.
    """

    assertion: Supply = field(repr=False)
    issuer: str
    client_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        _check_function("Workload.assertion", self.assertion)
        check_public_url("Workload.issuer", self.issuer)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        grant = by_assertion(self.assertion)
        return self.authorized(url, tls, grant, client_id=self.client_id, issuer=self.issuer)


def by_assertion(assertion: Supply) -> Grant:
    """Return the grant of a workload, with an assertion of its platform (RFC 7523, 2.1)."""

    def grant(record: Record, scopes: Sequence[str]) -> Steps[Mapping[str, str]]:
        text = yield from _supplied(assertion, "assertion")
        return {"grant_type": _JWT_BEARER, "assertion": text}

    return grant


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
    not asked. The tokens are in the memory of this object: make one for each user.

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
        scopes: as for `ServiceOptions`.
        resource: as for `ServiceOptions`.

    Raises:
        ConfigurationError: a value is invalid.
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

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        for name in ("issuer", "idp", "idp_token_endpoint"):
            if (url := getattr(self, name)) is not None:
                check_public_url(f"Enterprise.{name}", url)
        _check_function("Enterprise.id_token", self.id_token)
        check_text("Enterprise.client_id", self.client_id)
        if self.secret is not None and self.key is not None:
            raise ConfigurationError("Enterprise takes either a secret or a key, not both")
        if self.idp_secret is not None and self.idp_client_id is None:
            raise ConfigurationError("Enterprise.idp_secret needs idp_client_id")
        signer(self.key)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        idp = flow_options(
            self.idp,
            issuer=self.idp,
            client_id=self.idp_client_id,
            client_secret=self.idp_secret,
            grant=by_credentials,  # metadata without an authorization endpoint will do
        )
        return self.authorized(
            url,
            tls,
            by_exchange(idp, self.idp_token_endpoint, self.id_token),
            client_id=self.client_id,
            client_secret=self.secret,
            sign=signer(self.key),
            issuer=self.issuer,
        )


def by_exchange(idp: FlowOptions, token_endpoint: str | None, subject: Supply) -> Grant:
    """Return the grant of an employee who is signed in at the identity provider of a company.

    Enterprise-Managed Authorization, 4 and 5: the identity provider exchanges the assertion of the
    sign-in for another one, an ID-JAG, which the authorization server takes as a grant.

    Args:
        idp: the options of the client at the identity provider, whose issuer is their `url`.
        token_endpoint: its token endpoint; None: that of its metadata.
        subject: returns the ID token or SAML assertion.
    """

    def grant(record: Record, scopes: Sequence[str]) -> Steps[Mapping[str, str]]:
        text = yield from _supplied(subject, "id_token")
        params = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": record.issuer,
            "resource": record.resource or "",
            "scope": " ".join(scopes),
            "subject_token": text,
            # The parts of a JWT have dots between them; a SAML assertion is XML in base64.
            "subject_token_type": _ID_TOKEN if "." in text else _SAML2,
        }
        try:
            at_provider = yield from _at_provider(idp, token_endpoint)
            response = yield from request_token(idp, at_provider, params)
            kind = response.issued_token_type
            if (response.token_type.lower(), kind) != ("n_a", ID_JAG):
                raise FlowFailed(f"it issued a token of the type {shown(kind)}, not an ID-JAG")
        except FlowFailed as failed:
            message = f"the identity provider {shown(idp.url)} gave no ID-JAG: {failed}"
            raise FlowFailed(message, failed.failure, error=failed.error) from None
        return {"grant_type": _JWT_BEARER, "assertion": response.access_token}

    return grant


def _at_provider(idp: FlowOptions, token_endpoint: str | None) -> Steps[Record]:
    """Return a record for requests to the identity provider."""
    if token_endpoint is None:
        server = yield from find_server(idp, None)
        assert server is not None  # since its issuer is given
    else:
        server = ServerMetadata(issuer=idp.url, token_endpoint=token_endpoint)
    client = own_client(idp, server) or RegisteredClient(id="")
    return Record(issuer=idp.url, token_endpoint=server.token_endpoint or "", client=client)


def _supplied(supply: Supply, option: str) -> Steps[str]:
    """Return the text of a function of the user, the value of *option*."""
    text: object = yield Call(supply)
    if not isinstance(text, str) or not text.strip():
        raise FlowFailed(f"the function {option} must return a text, not {type(text).__name__}")
    return text.strip()


def _check_function(option: str, value: object) -> None:
    if not callable(value):
        # A token in place of the function would be in the message.
        raise ConfigurationError(f"{option} must be a function, not a {type(value).__name__}")
