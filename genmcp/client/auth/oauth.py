"""`OAuth`: a person logs in."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from genmcp._core.auth.flow import rejected
from genmcp._core.auth.metadata import check_public_url
from genmcp._core.auth.record import record_key
from genmcp._core.auth.steps import FlowFinding, FlowOptions
from genmcp.client.auth.asking import CALLBACK, DEFAULT_LOGIN_TIMEOUT, AskFunction, UserPrompt
from genmcp.client.auth.base import Authorization
from genmcp.client.auth.dpop import DpopKeys
from genmcp.client.auth.fetcher import DEFAULT_FETCH_TIMEOUT, Fetcher
from genmcp.client.auth.flows import FlowAuthorization, SharedFlows
from genmcp.client.auth.runner import FlowRunner
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage
from genmcp.client.options import HttpOptions
from genmcp.errors import ConfigurationError

logger = logging.getLogger("genmcp.client.auth")

_MAX_PORT: Final = 65535


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
        port: the port of the redirect URI. Default: any that is free.
        redirect_uri: the redirect URI as it is registered. Default: http://127.0.0.1/callback with
            `port`, and for a client that registers itself with a path for each authorization server
            that does not identify itself in the redirect. Without `ask`, its host must be this
            machine.
        ask: a function, `async` or not, that is called with the authorization URL, and returns the
            URL to which the browser was redirected. It replaces both the browser and the listener
            for the redirect. Default: open a browser, and print the URL.
        tokens: stores the tokens. Default: the memory of this process.
        assume_pkce: whether to use an authorization server that does not list the PKCE method S256
            in its metadata. Default: False.
        dpop: whether the tokens are bound to a key of this client, with a proof for each request
            (RFC 9449). The authorization server must support it. Needs the extra `auth`. Default:
            False.
        allow_private: whether the server may name URLs with private addresses. Set it to False
            in a service that connects to servers of others. Default: True.
        login_timeout: seconds for the user to log in. Default: 300.
        fetch_timeout: seconds for each request to an authorization server. Default: 10.
        max_document: bytes of each of its responses. Default: 256 KiB.

    Raises:
        ConfigurationError: A value is invalid, or two of them exclude each other.
    """

    name: str
    client_id: str | None = None
    secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] | None = None
    issuer: str | None = None
    resource: str | None = ""
    port: int = 0
    ask: AskFunction | None = None
    tokens: TokenStorage = field(default_factory=MemoryTokens)
    assume_pkce: bool = False
    dpop: bool = False
    redirect_uri: str | None = None
    allow_private: bool = True
    login_timeout: float = DEFAULT_LOGIN_TIMEOUT
    fetch_timeout: float = DEFAULT_FETCH_TIMEOUT
    max_document: int = 256 * 1024
    _shared: SharedFlows = field(default_factory=SharedFlows, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value."""
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError(f"OAuth.name must be a name for users, not {self.name!r}")
        if self.secret is not None and self.client_id is None:
            raise ConfigurationError("OAuth.secret needs the client_id that it belongs to")
        if self.secret is not None:
            check_issuer("OAuth", self.issuer)
        if isinstance(self.scopes, str):
            raise ConfigurationError("OAuth.scopes must be a list of strings, not a string")
        if self.issuer is not None:
            check_public_url("OAuth.issuer", self.issuer)
        if self.ask is not None and not callable(self.ask):
            raise ConfigurationError("OAuth.ask must be a function")
        if not isinstance(self.tokens, TokenStorage):
            raise ConfigurationError(
                f"OAuth.tokens must be a TokenStorage such as MemoryTokens(), not {self.tokens!r}"
            )
        for name in ("login_timeout", "fetch_timeout", "max_document"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"OAuth.{name} must be positive")
        self._check_redirect()

    def _check_redirect(self) -> None:
        if not 0 <= self.port <= _MAX_PORT:
            raise ConfigurationError(f"OAuth.port must be from 0 to 65535, not {self.port!r}")
        if self.redirect_uri is None:
            return
        if self.port:
            raise ConfigurationError("OAuth: give either port or redirect_uri, which has a port")
        check_public_url("OAuth.redirect_uri", self.redirect_uri)
        parts = urlsplit(self.redirect_uri)
        is_ours = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
        if self.ask is None and not is_ours:
            raise ConfigurationError(
                "OAuth.redirect_uri must begin with http://127.0.0.1 or http://localhost, where "
                "this client listens; for another one give ask= as well"
            )

    def authorization(self, url: str, http: HttpOptions | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*.

        Args:
            url: the URL of the server.
            http: the options of the connection. The flow uses its `tls`.
        """
        options = flow_options(self, url)
        tls = None if http is None else http.tls
        key = record_key(url, self.name)

        def runner(asks: bool) -> FlowRunner:
            prompt = (
                UserPrompt(
                    redirect_uri_of(self), self.ask, self.login_timeout, turn=self._shared.turn
                )
                if asks
                else None
            )
            return FlowRunner(key, self.tokens, Fetcher(self.fetch_timeout, tls), prompt)

        return FlowAuthorization(options, runner, self._shared, rejected)


def redirect_uri_of(oauth: OAuth) -> str:
    """Return the redirect URI, without a port if any free one is used."""
    if oauth.redirect_uri is not None or not oauth.port:
        return oauth.redirect_uri or CALLBACK
    parts = urlsplit(CALLBACK)
    return parts._replace(netloc=f"{parts.netloc}:{oauth.port}").geturl()


def flow_options(
    oauth: OAuth, url: str, observe: Callable[[FlowFinding], None] | None = None
) -> FlowOptions:
    """Return the options of a flow of *oauth* for the server at *url*.

    Args:
        oauth: the settings.
        url: the URL of the server.
        observe: called with each finding. Default: it is logged.
    """
    return FlowOptions(
        url=url,
        now=time.time,
        random=lambda: secrets.token_urlsafe(32),
        client_name=oauth.name,
        client_id=oauth.client_id,
        client_secret=oauth.secret,
        fixed_redirect=oauth.redirect_uri is not None,
        scopes=oauth.scopes,
        issuer=oauth.issuer,
        resource=oauth.resource,
        assume_pkce=oauth.assume_pkce,
        allow_private=oauth.allow_private,
        max_document=oauth.max_document,
        prover=DpopKeys() if oauth.dpop else None,
        observe=observe or log_finding,
    )


def check_issuer(name: str, issuer: str | None) -> None:
    """Check that *issuer*, the server that gets a secret of the class *name*, is given.

    2026-07-28, client registration, "Authorization Server Binding".

    Raises:
        ConfigurationError: It is not.
    """
    if issuer is None:
        raise ConfigurationError(
            f"{name} with a secret or a key needs issuer='https://...', the authorization server "
            "that issued it, exactly as in its metadata: an MCP server must not choose who gets it"
        )
    check_public_url(f"{name}.issuer", issuer)


def log_finding(finding: FlowFinding) -> None:
    """Write a finding of a flow to the log."""
    level = logging.DEBUG if finding.ok else logging.WARNING
    advice = f" ({finding.advice})" if finding.advice else ""
    logger.log(level, "%s: %s%s", finding.topic, finding.text, advice)
