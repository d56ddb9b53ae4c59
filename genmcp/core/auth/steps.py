"""The steps of a flow, which it yields to its runner, and their outcomes.

A flow is a generator that does no I/O. Its runner performs each step and sends the outcome:

    ==========  ===================================================================
    `Fetch`     `Fetched`; after a failure of the network one with status 0
    `Listen`    the redirect URI, with a port that is open now
    `Ask`       the URL to which the browser was redirected
    `Load`      the stored `Record`, or None
    `Locked`    the result of other steps, which no other flow for this record runs meanwhile
    `Save`      None; the record is stored. Only among the steps of `Locked`
    `Call`      the result of the user's function
    ==========  ===================================================================
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from genmcp.core.auth.record import Record
from genmcp.errors import GenmcpError

T = TypeVar("T")
Headers: TypeAlias = Sequence[tuple[str, str]]


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Step: send an HTTP request, without following redirects.

    Args:
        url: the URL, which has passed the checks of its text.
        method: `GET` or `POST`.
        headers: the headers.
        body: the body of a POST.
        public_only: whether the runner must refuse a host that has a private address:
            `is_private_address`.
    """

    url: str
    method: str = "GET"
    headers: Headers = ()
    body: bytes | None = None
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


class Ask(msgspec.Struct, frozen=True):
    """Step: open *url* in a browser, and wait for the redirect to *redirect_uri*.

    Args:
        url: the authorization URL.
        redirect_uri: the redirect URI.
    """

    url: str
    redirect_uri: str

    def __repr__(self) -> str:
        return f"Ask(redirect_uri={self.redirect_uri!r})"


class Load(msgspec.Struct, frozen=True):
    """Step: read the stored record."""


class Save(msgspec.Struct, frozen=True):
    """Step: store *record* in place of any other. None: remove it."""

    record: Record | None


class Locked(msgspec.Struct, frozen=True):
    """Step: perform *steps* under the lock of the record, which all processes respect.

    They are not cancelled, and must end within 30 seconds: in a renewal, the authorization server
    may have replaced the refresh token already, and without the new one the user would have to log
    in again.
    """

    steps: Generator["Step", Any, Any]


class Call(msgspec.Struct, frozen=True):
    """Step: call a function of the user, `async` or not, such as one that returns an ID token."""

    function: Callable[[], object]


Step: TypeAlias = Fetch | Listen | Ask | Load | Locked | Save | Call
Steps: TypeAlias = Generator[Step, Any, T]

Grant: TypeAlias = Callable[[Record, Sequence[str]], Steps[Mapping[str, str]]]
"""Return the grant of a client without a user, for its record and the scopes to ask for: the
parameters of a token request without `resource` and `scope`."""


class FlowEvent(msgspec.Struct, frozen=True):
    """An event of a flow, for the log and for `genmcp auth`. It has no secret.

    Args:
        topic: the part of the flow: `challenge`, `resource metadata`, `server metadata`,
            `registration`, `scopes`, `authorization`, `token`.
        text: the request or choice, and its outcome.
        url: the URL of the request, if there was one.
        ok: whether it is as it should be.
    """

    topic: str
    text: str
    url: str = ""
    ok: bool = True


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
        self, message: str, failure: Failure = Failure.OTHER, *, advice: str = "", error: str = ""
    ) -> None:
        super().__init__(f"{message} ({advice})" if advice else message)
        self.failure = failure
        self.error = error


class Prover(Protocol):
    """Makes keys that tokens are bound to, and proofs (RFC 9449): `genmcp.client.auth.dpop`.

    It keeps no key: each is in the record of its tokens, or of the flow that is to obtain them.
    """

    def new_key(self) -> str:
        """Return a new private key, as a JWK in JSON."""

    def thumbprint(self, key: str) -> str:
        """Return the thumbprint of a private key (RFC 7638)."""

    def prove(self, request: Fetch, key: str) -> Fetch:
        """Return a request to the token endpoint with a proof by a private key."""

    def challenged(self, request: Fetch, response: Fetched) -> bool:
        """Return whether *response* demands another proof for the same request."""


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
        public_only: whether URLs that a server names must not have a private address. Those of the
            authorization server *issuer* may.
        grant: the grant of a client without a user; None: a user logs in.
        prover: makes the keys that tokens are bound to; None: they are bound to none.
        on_event: is called with each event.
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
    public_only: bool = False
    grant: Grant | None = None
    prover: Prover | None = None
    on_event: Callable[[FlowEvent], None] = lambda event: None

    def __repr__(self) -> str:
        url = self.url.partition("?")[0]  # the query may have the key of a user
        return f"FlowOptions(url={url!r}, client_id={self.client_id!r})"

    def report(self, topic: str, text: str, url: str = "", *, ok: bool = True) -> None:
        """Pass an event to `on_event`."""
        self.on_event(FlowEvent(topic, text, url, ok))
