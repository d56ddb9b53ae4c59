"""The access tokens that an endpoint accepts: the option `auth=` of `Endpoint`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from genmcp._transports.admission import check_function
from genmcp._transports.request import HttpRequest
from genmcp.core.access import Access, check_text, checked_scopes
from genmcp.core.auth.metadata import ResourceMetadata, check_public_url
from genmcp.errors import ConfigurationError


class Verifier(Protocol):
    """Verifies access tokens: `Jwt`, `Introspection`, or an object of yours.

    A verifier may have more members. `cache`: the seconds that the result of `verify` may be used
    for further requests with the same token, until it expires; without it, each request is
    verified. `bind(resource, issuers)`: returns the verifier for the options of a `Bearer`.
    `proofs`: a `ProofChecker`; without it, tokens that are bound to a key are refused.
    """

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not valid here; the client gets HTTP 401.
            AuthorizationUnavailable: the token cannot be verified now; the client gets HTTP 503.
        """


class ProofChecker(Protocol):
    """Checks that a client has the key of its token: `genmcp.auth.extensions.dpop`.

    Attributes:
        algorithms: the accepted algorithms of proofs.
        required: whether tokens that are not bound to a key are refused.
    """

    algorithms: Sequence[str]
    required: bool

    async def check(self, http: HttpRequest, access: Access, token: str, resource: str) -> None:
        """Check the proof of a request with the scheme `DPoP`.

        Raises:
            InvalidToken: there is no valid proof. `code` is that of the challenge.
            AuthorizationUnavailable: the proof cannot be checked now.
        """

    def nonce(self, http: HttpRequest) -> str:
        """Return a new nonce, for a response whose challenge has the code `use_dpop_nonce`."""


class Bearer(msgspec.Struct, frozen=True):
    """The access tokens that an endpoint accepts (RFC 6750), and where clients get them (RFC 9728).

        endpoint = Endpoint(
            suite,
            auth=Bearer("https://mcp.example.com/mcp", issuers=["https://login.example.com"]),
        )

    Args:
        resource: the URL of the endpoint, exactly as clients use it; the tokens must be for it.
            HTTPS, or HTTP on a loopback address; without query and fragment.
        issuers: the authorization servers, exactly as in their metadata and tokens. Clients use
            the first one that they can. Empty, the default, only with a verifier of your own, such
            as for keys that are issued by hand: clients then learn that there is no login.
        scopes: the scopes that every request needs. They are also the `scopes_supported` of the
            metadata: clients that ask for no others get these.
        verify: verifies the tokens. Default: `Jwt()`, signed tokens with the published keys of the
            issuers.
        implies: scopes that include others, such as `{"parts:admin": ["parts:write"]}`. They apply
            transitively, and `access.scopes` contains the included ones as well.
        principal: returns the identity of a token, a text that is not empty, in place of its issuer
            and subject. It becomes the only identity: `access.subject`, without an issuer.
        optional: whether requests without a token are accepted, as anonymous ones; default False.
            A token that is not valid is refused in any case.
        about: further members of the metadata, such as `resource_name` and
            `resource_documentation`; `scopes_supported` to announce others than *scopes*.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    resource: str
    issuers: Sequence[str] = ()
    scopes: Sequence[str] = ()
    verify: Verifier | None = None
    implies: Mapping[str, Collection[str]] = {}
    principal: Callable[[Access], str] | None = None
    optional: bool = False
    about: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_public_url("resource", self.resource)
        if "?" in self.resource:
            raise ConfigurationError(f"resource: {self.resource!r} must have no query")
        # A verifier with `bind` verifies tokens of the issuers.
        needs_issuers = self.verify is None or hasattr(self.verify, "bind")
        if isinstance(self.issuers, str) or (needs_issuers and not self.issuers):
            raise ConfigurationError(
                f"issuers takes a list of URLs, of one at least, not {self.issuers!r}"
            )
        for issuer in self.issuers:
            check_public_url("issuers", issuer)
            if "?" in issuer:
                raise ConfigurationError(f"issuers: {issuer!r} must have no query (RFC 8414, 2)")
        checked_scopes("scopes", self.scopes)
        checked_scopes("about", self.about.get("scopes_supported", ()))
        for scopes in (self.implies.keys(), *self.implies.values()):
            checked_scopes("implies", scopes)
        if self.verify is not None and (
            isinstance(self.verify, type) or not callable(getattr(self.verify, "verify", None))
        ):
            raise ConfigurationError(
                f"verify takes an object with the method `async verify(token)`, not {self.verify!r}"
            )
        if self.principal is not None:
            check_function("principal", self.principal)
        _ = self.metadata

    @property
    def metadata(self) -> bytes:
        """The protected resource metadata (RFC 9728, 2): a JSON object."""
        proofs: ProofChecker | None = getattr(self.verify, "proofs", None)
        document = ResourceMetadata(
            resource=self.resource,
            authorization_servers=self.issuers,
            scopes_supported=self.scopes or None,
            bearer_methods_supported=["header"],
            dpop_signing_alg_values_supported=proofs.algorithms if proofs else None,
            dpop_bound_access_tokens_required=True if proofs and proofs.required else None,
        )
        members: dict[str, Any] = msgspec.to_builtins(document)
        if fixed := (members.keys() & self.about.keys()) - {"scopes_supported"}:
            raise ConfigurationError(f"about: {min(fixed)!r} follows from the other options")
        try:
            return msgspec.json.encode(members | {**self.about})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"about: its values must be JSON ({error})") from None

    def complete(self, access: Access) -> Access:
        """Return *access* with the scopes that its own include, and the identity of `principal`.

        Raises:
            InvalidToken: the identity or a scope is not text.
            ConfigurationError: the verifier returned no access, or one without an identity; or
                `principal` returned no identity.
        """
        if not isinstance(access, Access) or isinstance(access.scopes, str):
            # Without the value, which may be the token.
            raise ConfigurationError(
                "verify= of Bearer must return an Access whose scopes are a set of texts"
            )
        scopes = set(access.scopes)
        waiting = list(scopes) if self.implies else []
        while waiting:
            more = set(self.implies.get(waiting.pop(), ())) - scopes
            scopes |= more
            waiting += more
        access = replace(access, scopes=frozenset(scopes))
        check_text(access)
        if self.principal is None:
            if not access.subject and not access.client_id:
                # All such tokens would share one identity, with its sessions and tasks.
                raise ConfigurationError(
                    "verify= of Bearer returned an Access without subject and client_id: give it "
                    "one of them, or pass principal= to Bearer"
                )
            return access
        identity = self.principal(access)
        if not isinstance(identity, str) or not identity:
            raise ConfigurationError(
                f"principal= of Bearer returned {identity!r}: it must return the identity of the "
                f"client, a text that is not empty"
            )
        access = replace(access, issuer="", subject=identity)
        check_text(access)
        return access


def bound_verifier(verify: Verifier | None, resource: str, issuers: Sequence[str]) -> Verifier:
    """Return *verify*, by default `Jwt()`, for tokens of *issuers* for *resource*.

    Raises:
        ConfigurationError: its options do not fit them.
    """
    if verify is None:
        from genmcp.auth.jwt import Jwt  # needs an extra

        verify = Jwt()
    bind = getattr(verify, "bind", None)
    bound: Verifier = verify if bind is None else bind(resource, issuers)
    return bound
