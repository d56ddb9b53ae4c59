"""The steps of a flow, which it yields to its runner, and their outcomes.

A flow is a generator that does no I/O. Its runner performs each step and sends the outcome:

    ==========  ===================================================================
    `Fetch`     `Fetched`; after a failure of the network one with status 0
    `Listen`    the redirect URI, with a port that is open now
    `Ask`       the URL to which the browser was redirected
    `Load`      the stored `Record`, or None
    `Swap`      whether the stored record was `old`, and is `new` now
    `Lock`      None, once no other process has the lock of this record
    `Unlock`    None
    `Call`      the result of the user's function
    ==========  ===================================================================

The runner releases the lock also where the flow ends in between: a generator that is closed cannot
yield.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from genmcp._core.auth.record import Record
from genmcp.errors import GenmcpError

T = TypeVar("T")
Headers: TypeAlias = Sequence[tuple[str, str]]


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Step: send an HTTP request, without following redirects.

    Args:
        url: the URL, which has passed the checks of its text. A runner that refuses private
            addresses also checks those that the host's name has: `is_private_address`.
        method: `GET` or `POST`.
        headers: the headers.
        body: the body of a POST.
        limit: bytes of the response's body to read. A longer body is cut off after it exceeds the
            limit, so that the flow sees that it does.
        public_only: whether the host must not have a private address.
    """

    url: str
    method: str = "GET"
    headers: Headers = ()
    body: bytes | None = None
    limit: int = 262_144
    public_only: bool = False

    def __repr__(self) -> str:
        return f"Fetch({self.method} {self.url!r})"


class Fetched(msgspec.Struct, frozen=True):
    """The outcome of `Fetch`: a response, or status 0 with the reason in `error`."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    error: str = ""

    def __repr__(self) -> str:
        return f"Fetched({self.status})"

    def header(self, name: str) -> str | None:
        """Return the first header *name*, in any case, or None."""
        name = name.lower()
        return next((value for key, value in self.headers if key.lower() == name), None)


class Listen(msgspec.Struct, frozen=True):
    """Step: open the port of the redirect URI.

    Args:
        preferred: the redirect URI of an earlier login, with the port to try first. Another port
            costs a dynamically registered client a new registration.
        segment: is added to the path of the redirect URI.
    """

    preferred: str | None = None
    segment: str = ""


class Load(msgspec.Struct, frozen=True):
    """Step: read the stored record."""


class Swap(msgspec.Struct, frozen=True):
    """Step: replace the stored record *old* by *new*, if *old* is still stored. None: no record."""

    old: Record | None
    new: Record | None


class Ask(msgspec.Struct, frozen=True):
    """Step: open *url* in a browser, and wait for the redirect to *redirect_uri*.

    Args:
        url: the authorization URL.
        redirect_uri: the redirect URI.
        unanswered: performed by the runner if there is no redirect: after a timeout, and also if
            the wait is cancelled, as by Ctrl+C.
    """

    url: str
    redirect_uri: str
    unanswered: Swap | None = None

    def __repr__(self) -> str:
        return f"Ask(redirect_uri={self.redirect_uri!r})"


class Lock(msgspec.Struct, frozen=True):
    """Step: acquire the lock of the record, which excludes other processes."""


class Unlock(msgspec.Struct, frozen=True):
    """Step: release the lock of the record."""


class Call(msgspec.Struct, frozen=True):
    """Step: call a function of the user, `async` or not, such as one that returns an ID token."""

    function: Callable[[], object]


Step: TypeAlias = Fetch | Listen | Ask | Load | Swap | Lock | Unlock | Call
Steps: TypeAlias = Generator[Step, Any, T]


class FlowFinding(msgspec.Struct, frozen=True):
    """A step of a flow as its observer sees it. It has no secret.

    Args:
        topic: the part of the flow: `challenge`, `resource metadata`, `authorization server`,
            `server metadata`, `registration`, `scopes`, `authorization`, `token`.
        text: the request and its outcome.
        url: the URL of the request, if there was one.
        ok: whether it is as it should be.
        advice: the option that helps if it is not.
    """

    topic: str
    text: str
    url: str = ""
    ok: bool = True
    advice: str = ""


class Failure(Enum):
    """Why a flow failed. A client has an error class for each."""

    ISSUER = "issuer"
    RESOURCE = "resource"
    PKCE = "pkce"
    REGISTRATION = "registration"
    DENIED = "denied"
    UNAVAILABLE = "unavailable"  # a network error or HTTP 5xx: tokens and registration may be good
    OTHER = "other"


class FlowFailed(GenmcpError):
    """A flow failed. The message has no secret, and names the option that helps, if there is one.

    Args:
        message: the outcome, and the expected one.
        failure: the cause, which decides on the class of the client's error.
        advice: the option that helps.
        error: the error code of the authorization server, such as `invalid_grant`.
    """

    def __init__(
        self,
        message: str,
        failure: Failure = Failure.OTHER,
        *,
        advice: str = "",
        error: str = "",
    ) -> None:
        super().__init__(f"{message} ({advice})" if advice else message)
        self.failure = failure
        self.advice = advice
        self.error = error


class Prover(Protocol):
    """The proofs of possession of one key (RFC 9449). `_core.auth.dpop` has the claims."""

    @property
    def key(self) -> str:
        """The private key as a JWK in JSON, for the record."""

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key (RFC 7638)."""

    def use(self, key: str | None) -> None:
        """Use the private key of a record; None: the present one."""

    def proof(self, method: str, url: str) -> str:
        """Return a new proof for a request without an access token, with the nonce if known."""

    def answered(self, url: str, headers: Headers) -> object:
        """Keep the nonce of a response (`DPoP-Nonce`)."""


def _ignore(finding: FlowFinding) -> None: ...


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a flow, and its sources of time and chance.

    Args:
        url: the URL of the MCP server.
        now: returns the Unix time.
        random: returns a new random text of 43 or more characters that a URL allows, made of 32 or
            more random bytes.
        client_name: the name of the client, which the user sees at the authorization server.
        client_id: the id of a client that is registered already. An https URL with a path is that
            of a client id metadata document.
        client_secret: the secret of that client.
        method: how that client authenticates with its secret, `client_secret_basic` or
            `client_secret_post`; None: as the metadata of the authorization server lists it.
        sign: returns a signed JWT with the given claims, for `private_key_jwt`.
        fixed_redirect: whether the redirect URI is one that the user has registered.
        scopes: the scopes to request; None: those that the server names.
        issuer: the authorization server to use, exactly as in its metadata.
        resource: the value of `resource`, exactly as in the server's metadata. None leaves the
            parameter out of all requests; "" takes it from the metadata.
        assume_pkce: whether a server that does not list S256 is used all the same.
        allow_private: whether a server may name a URL with a private address.
        max_document: bytes of a response of a server, at most.
        protocol_version: the value of `MCP-Protocol-Version` in discovery.
        prover: the key of DPoP, for tokens that are bound to it.
        observe: is called with each finding.
    """

    url: str
    now: Callable[[], float]
    random: Callable[[], str]
    client_name: str = "genmcp"
    client_id: str | None = None
    client_secret: str | None = None
    method: str | None = None
    sign: Callable[[Mapping[str, Any]], str] | None = None
    fixed_redirect: bool = False
    scopes: Sequence[str] | None = None
    issuer: str | None = None
    resource: str | None = ""
    assume_pkce: bool = False
    allow_private: bool = True
    max_document: int = 262_144
    protocol_version: str = "2026-07-28"
    prover: Prover | None = None
    observe: Callable[[FlowFinding], None] = _ignore

    def __repr__(self) -> str:
        url = self.url.partition("?")[0]  # the query may have the key of a user
        return f"FlowOptions(url={url!r}, client_id={self.client_id!r})"
