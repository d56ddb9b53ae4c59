"""The client at an authorization server: which client id it uses, and how it registers.

2026-07-28, authorization, "Client Registration": an id of the options, a client id metadata
document, or dynamic registration, in this order.
"""

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from genmcp.core.auth.discovery import DiscoveredServer
from genmcp.core.auth.fetching import check_url, decode_object, post, shown, unavailable
from genmcp.core.auth.metadata import ServerMetadata, is_loopback_url
from genmcp.core.auth.record import Record, RegisteredClient
from genmcp.core.auth.steps import Failure, Fetched, FlowFailed, FlowOptions, Steps
from genmcp.core.auth.token_request import error_in

METHODS: Final = ("client_secret_basic", "client_secret_post")
"""The ways in which a client sends its secret, the preferred one first."""

_VALUE: Final = re.compile(r"[\x20-\x7e]{1,2048}")  # RFC 6749, appendix A.1 and A.2
_DEFAULT: Final = ("client_secret_basic",)  # RFC 8414, 2: without a list in the metadata
_ADVICE: Final = "client_id= with the id that its operator gives you"


class _Registered(msgspec.Struct, frozen=True):
    """The response to a registration (RFC 7591, 3.2.1). Unknown members are ignored."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float = 0
    token_endpoint_auth_method: str | None = None


def own_client(options: FlowOptions, server: ServerMetadata) -> RegisteredClient | None:
    """Return the client of the options as *server* knows it, None if the server needs another.

    A URL is the id of a client id metadata document, for servers that support these. Its client is
    public, unless it has a key.
    """
    if options.client_id is None:
        return None
    document = is_document_url(options.client_id)
    if document and not server.client_id_metadata_document_supported:
        return None
    listed = server.token_endpoint_auth_methods_supported or _DEFAULT
    if options.sign is not None:
        method = "private_key_jwt"
    elif document or options.client_secret is None:
        method = "none"
    else:
        usual = next((each for each in METHODS if each in listed), METHODS[0])
        method = options.method or usual
    return RegisteredClient(id=options.client_id, method=method)


def is_document_url(client_id: str) -> bool:
    """Return whether *client_id* is the URL of a client id metadata document."""
    scheme, _, rest = client_id.partition("://")
    return scheme == "https" and rest.partition("/")[2] != ""


def choose_client(
    options: FlowOptions, found: DiscoveredServer, stored: Record | None
) -> RegisteredClient | None:
    """Return the client to use at the authorization server; None if it has to be registered.

    A client with a grant is never registered. None: its grant is all that identifies it.

    Args:
        options: the options of the client.
        found: the authorization server.
        stored: the record of an earlier login.

    Raises:
        FlowFailed: no client id can be obtained.
    """
    if options.grant is not None and options.client_id is None:
        return None
    own = own_client(options, found.server)
    if own is not None and not _is_replaceable(options, found, own):
        portable = is_document_url(own.id)
        known = stored is not None and stored.client.id == own.id
        if stored and known and not portable and stored.issuer != found.issuer:
            # 2026-07-28, "Authorization Server Binding": an error, rather than an attempt with the
            # credentials of another server.
            raise FlowFailed(
                f"the client id belongs to the authorization server {shown(stored.issuer)}, and "
                f"the server names {shown(found.issuer)} now",
                Failure.ISSUER,
                advice="issuer=, with a client_id of that one",
            )
        how = "client id metadata document" if portable else "client id of the options"
        options.report("registration", f"{how}, {own.method}")
        return own
    if (
        stored is not None
        and stored.client.dynamic
        and stored.issuer == found.issuer
        and not stored.client.expired(options.now())
    ):
        options.report("registration", "registered by an earlier login")
        return stored.client
    if found.server.registration_endpoint is None or options.grant is not None:
        raise FlowFailed(
            f"the authorization server {shown(found.issuer)} registers no clients, and supports no "
            "client id metadata document of yours",
            Failure.REGISTRATION,
            advice=_ADVICE,
        )
    endpoint = check_url(options, found.server.registration_endpoint, "registration_endpoint")
    options.report("registration", "dynamic registration", endpoint)
    return None


def _is_replaceable(options: FlowOptions, found: DiscoveredServer, own: RegisteredClient) -> bool:
    """Return whether *own* is a document whose redirect URI needs a path for each issuer.

    The document lists the same for all of them, so that registering is better: `issuer_segment`.
    """
    server = found.server
    shared = options.issuer is None and not server.authorization_response_iss_parameter_supported
    can_register = server.registration_endpoint is not None and not options.fixed_redirect
    return options.grant is None and is_document_url(own.id) and shared and can_register


def issuer_segment(
    options: FlowOptions, found: DiscoveredServer, client: RegisteredClient | None
) -> str:
    """Return the part of the redirect URI's path that is for this issuer, "" if there is none.

    RFC 9700, 4.4.2: where the redirect has no `iss`, its path distinguishes issuers. Otherwise the
    code of another authorization server, to which this one has sent the user, would be given to
    this one. A redirect URI that was registered in advance stays as it is, for a single issuer.

    Args:
        options: the options of the client.
        found: the authorization server.
        client: the client there, None if it will be registered.

    Raises:
        FlowFailed: the redirect URI was registered in advance, and may be that of many issuers.
    """
    if found.server.authorization_response_iss_parameter_supported:
        return ""
    if not options.fixed_redirect and (client is None or client.dynamic):
        return f"/{sha256(found.issuer.encode()).hexdigest()[:32]}"
    if options.issuer is None:
        raise FlowFailed(
            f"the authorization server {shown(found.issuer)} does not promise iss in the redirect "
            "(RFC 9207), and neither does a registered redirect URI identify it",
            Failure.ISSUER,
            advice=f"issuer={shown(found.issuer)}, if you know that it is the right one",
        )
    return ""


def register(
    options: FlowOptions, found: DiscoveredServer, redirect_uri: str
) -> Steps[RegisteredClient]:
    """Register the client (RFC 7591).

    Raises:
        FlowFailed: the server rejects it, or returns a client that cannot be used.
    """
    listed = found.server.token_endpoint_auth_methods_supported or _DEFAULT
    body = json.dumps(_metadata(options, found, redirect_uri, listed)).encode()
    response: Fetched = yield post(
        options,
        found.server.registration_endpoint or "",
        "registration_endpoint",
        [("Content-Type", "application/json")],
        body,
    )
    if failed := unavailable("the registration endpoint", response):
        raise failed
    if response.status not in (200, 201):
        code, text = error_in(response)
        raise FlowFailed(
            f"the authorization server {shown(found.issuer)} rejected the registration: {text}",
            Failure.REGISTRATION,
            advice=_ADVICE,
            error=code,
        )
    try:
        made = msgspec.convert(decode_object(response.body), _Registered)
        return _usable_client(made, redirect_uri, listed)  # it may differ from the request
    except (ValueError, msgspec.ValidationError) as error:  # its text has no value
        raise FlowFailed(
            f"the registered client cannot be used: {error}", Failure.REGISTRATION
        ) from None


def _metadata(
    options: FlowOptions, found: DiscoveredServer, redirect_uri: str, listed: Sequence[str]
) -> dict[str, Any]:
    grants = found.server.grant_types_supported
    refresh = grants is None or "refresh_token" in grants
    # 2026-07-28, "Application Type and Redirect URI Constraints": without it the type is `web`,
    # which allows no redirect URI on loopback.
    native = is_loopback_url(redirect_uri) or urlsplit(redirect_uri).scheme not in ("http", "https")
    # A program on a user's machine cannot keep a secret, so it asks for none where it can.
    methods = ("none", *METHODS)
    return {
        "client_name": options.client_name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", *(["refresh_token"] if refresh else [])],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((each for each in methods if each in listed), "none"),
        "application_type": "native" if native else "web",
    }


def _usable_client(made: _Registered, redirect_uri: str, listed: Sequence[str]) -> RegisteredClient:
    """Return the client that a server has registered.

    Raises:
        ValueError: it cannot be used.
    """
    method, secret = made.token_endpoint_auth_method, made.client_secret
    if method is None:
        # A server may issue a secret to a client that wants none, and then expects it.
        method = next((each for each in METHODS if secret and each in listed), "none")
    if not _VALUE.fullmatch(made.client_id):
        raise ValueError("it has no valid client_id")
    if secret and not _VALUE.fullmatch(secret):
        raise ValueError("it has no valid client_secret")
    if method not in ("none", *METHODS):
        raise ValueError(f"it demands the authentication method {shown(method)}")
    if method != "none" and not secret:
        raise ValueError("it has no client_secret")
    return RegisteredClient(
        id=made.client_id,
        secret=secret if method != "none" else None,
        secret_expires=made.client_secret_expires_at or None,
        method=method,
        redirect_uri=redirect_uri,
        dynamic=True,
    )
