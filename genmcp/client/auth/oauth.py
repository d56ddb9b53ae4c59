"""`OAuth`, by which a person logs in, and `ClientCredentials`, by which a service does."""

import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from genmcp.auth.fetcher import Fetcher
from genmcp.client.auth.asking import CALLBACK, AskFunction, UserPrompt
from genmcp.client.auth.flows import FlowAuthorization, FlowRunner, SharedFlows
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage
from genmcp.core.auth.metadata import check_public_url, is_loopback_url
from genmcp.core.auth.record import Record, record_key
from genmcp.core.auth.registration import METHODS
from genmcp.core.auth.steps import FlowEvent, FlowOptions, Grant, Steps
from genmcp.errors import ConfigurationError
from genmcp.tls import trusted_context

logger = logging.getLogger("genmcp.client.auth")

_LISTENING: Final = ("127.0.0.1", "localhost")

PrivateKey = str | bytes | Mapping[str, Any]
"""A private key: PEM text, or a JWK as a mapping or as its JSON text."""


@dataclass(frozen=True)
class OAuth:
    """Authorization by a person, who logs in with a browser: the code flow of OAuth 2.1 with PKCE.

        async with Client("https://mcp.example.com/mcp", auth=OAuth("Parts agent")) as client:
            ...

    The login begins with the first response of the server that demands it, and again when the
    server demands further scopes. One OAuth can serve any number of servers: the tokens of each are
    separate.

    Args:
        name: the name of the client, which the user sees at the login.
        client_id: the id of a client that is registered at the authorization server. An https URL
            with a path is that of a client id metadata document, used where the server supports
            them. Default: the client registers itself.
        secret: the secret of that client; it needs *issuer*. Default: none.
        scopes: the scopes to ask for. Default: those that the server names.
        issuer: the authorization server to use, exactly as in its metadata. Default: the first that
            the server names.
        resource: the parameter `resource`, for a server with a wrong URL in its metadata. None
            leaves it out. Default: as in the metadata.
        redirect_uri: the redirect URI, such as that of a registered client, or one with a fixed
            port. Default: http://127.0.0.1/callback with any port that is free. A client that
            registers itself adds a path for each authorization server that does not identify itself
            in the redirect. Without `ask`, the host must be this machine.
        ask: a function, `async` or not, that is called with the authorization URL, and returns the
            URL to which the browser was redirected. It replaces both the browser and the listener
            for the redirect. Default: open a browser, and print the URL.
        tokens: stores the tokens. Default: the memory of this process.
        assume_pkce: whether to use an authorization server that does not list the PKCE method S256
            in its metadata. Default: False.

    Raises:
        ConfigurationError: a value is invalid, or two of them exclude each other.
    """

    name: str
    client_id: str | None = None
    secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] | None = None
    issuer: str | None = None
    resource: str | None = ""
    redirect_uri: str | None = None
    ask: AskFunction | None = None
    tokens: TokenStorage = field(default_factory=MemoryTokens)
    assume_pkce: bool = False
    _shared: SharedFlows = field(default_factory=SharedFlows, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_text("OAuth.name", self.name)
        if self.secret is not None and self.client_id is None:
            raise ConfigurationError("OAuth.secret needs the client_id that it belongs to")
        if self.secret is not None:
            check_issuer("OAuth", self.issuer)
        check_scopes("OAuth", self.scopes)
        if self.issuer is not None:
            check_public_url("OAuth.issuer", self.issuer)
        if self.ask is not None and not callable(self.ask):
            raise ConfigurationError("OAuth.ask must be a function")
        if not isinstance(self.tokens, TokenStorage):
            raise ConfigurationError(
                f"OAuth.tokens must be a TokenStorage such as MemoryTokens(), not {self.tokens!r}"
            )
        if self.redirect_uri is not None:
            check_public_url("OAuth.redirect_uri", self.redirect_uri)
            parts = urlsplit(self.redirect_uri)
            is_ours = parts.scheme == "http" and parts.hostname in _LISTENING
            if self.ask is None and not is_ours:
                raise ConfigurationError(
                    "OAuth.redirect_uri must begin with http://127.0.0.1 or http://localhost, "
                    "where this client listens; for another one give ask= as well"
                )

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*.

        Args:
            url: the URL of the server.
            tls: the TLS context of the connection, which the flow uses as well.
        """
        redirect_uri = self.redirect_uri or CALLBACK
        options = flow_options(
            url,
            client_name=self.name,
            client_id=self.client_id,
            client_secret=self.secret,
            # One that this client has chosen itself is registered with the path of the issuer.
            fixed_redirect=self.redirect_uri is not None
            and (self.client_id is not None or self.ask is not None),
            scopes=self.scopes,
            issuer=self.issuer,
            resource=self.resource,
            assume_pkce=self.assume_pkce,
            # A website: its users may choose hostile servers, which must not reach its network.
            public_only=not is_loopback_url(redirect_uri) and not is_loopback_url(url),
        )
        key = record_key(url, self.name)

        def runner(asks: bool) -> FlowRunner:
            shared, prompt = self._shared, None
            if asks:
                asking = partial(shared.asking, url)
                prompt = UserPrompt(redirect_uri, self.ask, turn=shared.turn, asking=asking)
            return FlowRunner(key, self.tokens, _fetcher(tls), prompt)

        return FlowAuthorization(options, runner, self._shared)


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
        self, url: str, tls: ssl.SSLContext | None, grant: Grant, **options: Any
    ) -> FlowAuthorization:
        """Return the authorization of a connection.

        Args:
            url: the URL of the server.
            tls: the TLS context of the connection.
            grant: the grant.
            options: further options of the flow.
        """
        flow = flow_options(
            url,
            grant=grant,
            scopes=self.scopes,
            resource=self.resource,
            public_only=not is_loopback_url(url),
            **options,
        )

        def runner(_asks: bool) -> FlowRunner:
            return FlowRunner(url, self._tokens, _fetcher(tls))

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
        ConfigurationError: a value is invalid, *issuer* is missing, or not exactly one of *secret*
            and *key* is given.
    """

    extension: ClassVar[str | None] = "io.modelcontextprotocol/oauth-client-credentials"

    client_id: str
    secret: str | None = field(default=None, repr=False, kw_only=True)
    key: PrivateKey | None = field(default=None, repr=False, kw_only=True)
    method: str | None = field(default=None, kw_only=True)
    issuer: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_text("ClientCredentials.client_id", self.client_id)
        if (self.secret is None) == (self.key is None):
            raise ConfigurationError("ClientCredentials takes either a secret or a key")
        if self.method not in (None, *METHODS):
            raise ConfigurationError(f"ClientCredentials.method is {' or '.join(METHODS)}")
        check_issuer("ClientCredentials", self.issuer)
        signer(self.key)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> FlowAuthorization:
        """Return the authorization of a new connection to the server at *url*."""
        return self.authorized(
            url,
            tls,
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
        ConfigurationError: the extra `auth` is missing, or the key cannot sign.
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
        ConfigurationError: it is not.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{option} must be a text that is not empty, not {value!r}")


def flow_options(url: str, **options: Any) -> FlowOptions:
    """Return the options of a flow for the server at *url*. Its events are logged."""
    return FlowOptions(
        url=url,
        now=time.time,
        random=lambda: secrets.token_urlsafe(32),
        on_event=log_event,
        **options,
    )


def check_issuer(name: str, issuer: str | None) -> None:
    """Check that *issuer*, the server that gets a secret of the class *name*, is given.

    2026-07-28, client registration, "Authorization Server Binding".

    Raises:
        ConfigurationError: it is not.
    """
    if issuer is None:
        raise ConfigurationError(
            f"{name} with a secret or a key needs issuer='https://...', the authorization server "
            "that issued it, exactly as in its metadata: an MCP server must not choose who gets it"
        )
    check_public_url(f"{name}.issuer", issuer)


def check_scopes(name: str, scopes: object) -> None:
    """Check that the *scopes* of the class *name* are a list.

    Raises:
        ConfigurationError: they are a string.
    """
    if isinstance(scopes, str):
        raise ConfigurationError(f"{name}.scopes must be a list of strings, not a string")


def log_event(event: FlowEvent) -> None:
    """Write an event of a flow to the log."""
    level = logging.DEBUG if event.ok else logging.WARNING
    logger.log(level, "%s: %s", event.topic, event.text)


def _fetcher(tls: ssl.SSLContext | None) -> Fetcher:
    """Return the fetcher of a flow, with the `tls` of a connection."""
    return Fetcher(tls=(lambda: tls) if tls else trusted_context)
