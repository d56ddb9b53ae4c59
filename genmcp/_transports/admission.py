"""The admission of a request by its head: origin, host, identity and copied assigns."""

import inspect
import logging
from collections.abc import Callable, Iterable

from genmcp._mux.mux import Mux
from genmcp._transports.request import IN_PROCESS, HttpRequest, Scope
from genmcp.core.access import Access
from genmcp.errors import ConfigurationError
from genmcp.tasks.values import store_types
from genmcp.wire.http import HeaderPolicy, Security, cors_headers, is_loopback

logger = logging.getLogger("genmcp")

Principal = Callable[[Scope], str | Access | None]
"""Returns the identity or access that a request was authenticated as, from its ASGI scope."""


def authenticated(scope: Scope) -> Access | None:
    """Return the identity of `scope["user"]`, if it is authenticated, and its scopes.

    This is Starlette's convention; the scopes are those of `scope["auth"]`. A user that is an
    `Access` itself is returned.

    Raises:
        ConfigurationError: the user has no identity.
    """
    user = scope.get("user")
    if user is None or isinstance(user, Access):
        return user
    try:
        if not user.is_authenticated:
            return None
        identity = user.identity
    except (AttributeError, NotImplementedError):
        identity = None
    if not isinstance(identity, str) or not identity:
        raise ConfigurationError(
            f"scope['user'] is a {type(user).__name__} without an identity: give it the "
            f"properties `is_authenticated` and `identity` (a text that is not empty), or pass "
            f"principal= to Endpoint"
        )
    return Access(subject=identity, scopes=frozenset(getattr(scope.get("auth"), "scopes", ())))


def in_process_access(scope: Scope) -> Access | None:
    """Return the access that a client in the same process states, in place of a token.

    It is `scope["user"]` of a request without a network, such as one of `genmcp.testing.connect`.
    """
    user = scope.get("user")
    local = IN_PROCESS in scope.get("extensions", ())
    return user if local and isinstance(user, Access) else None


class Admission:
    """Admits requests by their heads. Owned by an endpoint.

    Args:
        mux: the mux of the endpoint.
        security: the allowed origins and host names.
        principal: returns the authenticated identity of a request; None if the endpoint itself
            authenticates its clients.
        copied: keys of the request's state that are copied.
        kept: those of them that are stored with a call.
        resource: the URL of the endpoint, if it is known.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        mux: Mux,
        security: Security | None,
        principal: Principal | None,
        copied: Iterable[str],
        kept: Iterable[str],
        resource: str | None,
    ) -> None:
        for option, keys in (("copy_assigns", copied), ("keep_assigns", kept)):
            if isinstance(keys, str):
                raise ConfigurationError(f"{option} takes a list of keys, not the string {keys!r}")
        if principal is not None:
            check_function("principal", principal)
        self._copied = tuple(copied)
        self._kept = tuple(kept)
        if unknown := [key for key in self._kept if key not in self._copied]:
            raise ConfigurationError(f"keep_assigns: {unknown[0]!r} is not among copy_assigns")
        self._server_name = mux.server.info.name
        self._header_policy = HeaderPolicy(security or Security(), resource)
        self._principal = _nobody if principal is None else principal
        # Whether any client may call, since the host application has set up no authentication.
        self._open = (security is None or security.allowed_hosts is None) and (
            principal is authenticated
        )

    def admit(self, http: HttpRequest, scope: Scope) -> None:
        """Check the headers of the request, and set its access and copied assigns.

        Raises:
            HttpRejected: its headers are not accepted.
            ConfigurationError: the host application returned an identity that is not one.
        """
        peer = scope.get("client")
        http.table = self._header_policy.check(scope["headers"], peer[0] if peer else None)
        origin = http.table.get(b"origin")
        if origin is not None:
            http.headers = cors_headers(origin.strip())
        if scope["method"] == "OPTIONS":
            return  # a preflight comes without credentials
        if self._principal is not authenticated or "user" in scope:
            access = _access_of(self._principal(scope))
            if access is not None:
                http.authenticate(access)
        if self._open and http.principal is None and peer and peer[0] != "127.0.0.1":
            self._warn_of(peer[0])
        if self._copied:
            state = scope.get("state", {})
            http.copied = {key: state[key] for key in self._copied if key in state}
            http.keep = self._kept
            for key in self._kept:
                store_types(f"keep_assigns: {key}", http.copied.get(key))

    def _warn_of(self, peer: str) -> None:
        """Warn once that an endpoint without authentication is reached from another machine."""
        if is_loopback(peer):
            return
        self._open = False
        logger.warning(
            "%s is reached from %s without authentication: give allowed_hosts (Security), let "
            "clients log in with auth=, authenticate in the host application, or pass principal=",
            self._server_name,
            peer,
        )


def _nobody(scope: Scope) -> None:
    """Ignore the user that the host application has authenticated."""


def check_function(option: str, function: object) -> None:
    """Check that *function* is one that can be called without waiting.

    Raises:
        ConfigurationError: it is not; the message names *option*.
    """
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"{option} takes a plain function, not {function!r}")


def _access_of(found: object) -> Access | None:
    """Return the value that a function of the host application has *found*, as an access.

    Raises:
        ConfigurationError: it identifies no client.
    """
    if found is None:
        return None
    if isinstance(found, str) and found:
        return Access(subject=found)
    if isinstance(found, Access) and (found.subject or found.client_id):
        return found
    raise ConfigurationError(
        f"principal= of Endpoint returned {found!r}: it must return the identity of the client (a "
        f"text that is not empty, or an Access with a subject or client_id), or None for an "
        f"anonymous client"
    )
