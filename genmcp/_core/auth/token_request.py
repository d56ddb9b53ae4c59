"""Requests to a token endpoint: the authentication of the client, and its tokens."""

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from genmcp._core.auth.challenges import scopes_of
from genmcp._core.auth.discovery import DiscoveredServer
from genmcp._core.auth.fetching import check_url, decode_object, is_public_only, unavailable
from genmcp._core.auth.grants import assertion_claims, authentication_params
from genmcp._core.auth.record import Record, RegisteredClient
from genmcp._core.auth.steps import (
    Failure,
    Fetch,
    Fetched,
    FlowFailed,
    FlowFinding,
    FlowOptions,
    Load,
    Steps,
    Swap,
)

# RFC 6750, 2.1, allows fewer characters, but tokens with others exist. A space or a control
# character could begin another header.
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
_CODE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e ]{1,100}")  # RFC 6749, 5.2
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749, 3.3
_MAX_SCOPES: Final = 200
_TEXT: Final = 300  # characters of an error_description
_SECRETS: Final = (
    "assertion",
    "client_assertion",
    "code",
    "code_verifier",
    "refresh_token",
    "subject_token",
)
_SECRET: Final = 6  # characters; a shorter value says nothing, and may be part of any word
_MAX_LIFE: Final = 10 * 365 * 86400.0  # seconds; a longer life is as good as none
_ATTEMPTS: Final = 5  # to store a record that other processes change, too

_CLIENT_ERRORS: Final = {"invalid_client", "unauthorized_client"}
_NO_RESOURCE: Final = ("invalid_target", "AADSTS9010010")


class TokenResponse(msgspec.Struct, frozen=True):
    """The response of a token endpoint (RFC 6749, 5.1). Unknown members are ignored."""

    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None
    issued_token_type: str | None = None

    def __repr__(self) -> str:
        return f"TokenResponse({self.token_type!r}, scope={self.scope!r})"


def obtain(
    options: FlowOptions,
    found: DiscoveredServer,
    client: RegisteredClient,
    params: Mapping[str, str],
    *,
    requested: Sequence[str] = (),
) -> Steps[Record]:
    """Request a token with any grant, and return the record of it; `store` keeps it.

    Args:
        options: the options of the client.
        found: the authorization server.
        client: the client, and how it authenticates.
        params: the grant, with `resource` and `scope` as it takes them.
        requested: the requested scopes.

    Raises:
        FlowFailed: No token was issued, or the client cannot use it.
    """
    record = msgspec.structs.replace(new_record(found, client), requested=tuple(requested))
    response = yield from request_token(options, record, params)
    return with_tokens(options, record, response)


def new_record(found: DiscoveredServer, client: RegisteredClient) -> Record:
    """Return a record of *client* without tokens."""
    return Record(
        issuer=found.issuer,
        token_endpoint=found.server.token_endpoint or "",
        resource=found.resource,
        client=client,
        revocation_endpoint=found.server.revocation_endpoint,
    )


def request_token(
    options: FlowOptions,
    record: Record,
    params: Mapping[str, str],
    *,
    token_types: Sequence[str] | None = None,
) -> Steps[TokenResponse]:
    """Send a token request of the client of *record* to its token endpoint.

    Args:
        options: the options of the client.
        record: the client, and the token endpoint.
        params: the parameters of the grant.
        token_types: the accepted values of `token_type` in lower case. Default: `bearer`, and
            `dpop` if there is a prover.

    Raises:
        FlowFailed: `error` is that of the response (RFC 6749, 5.2).
    """
    endpoint = check_url(options, record.token_endpoint, "token_endpoint")
    repeated = False
    while True:
        headers, form = authenticated(options, record, params)
        if options.prover is not None:
            headers = [*headers, ("DPoP", options.prover.proof("POST", endpoint))]
        response: Fetched = yield Fetch(
            url=endpoint,
            method="POST",
            headers=headers,
            body=urlencode(form).encode(),
            limit=options.max_document,
            public_only=is_public_only(options, endpoint),
        )
        if failed := unavailable("the token endpoint", response):
            raise failed
        if options.prover is None:
            break
        options.prover.answered(endpoint, response.headers)
        # RFC 9449, 8: once more, with the nonce of the response.
        if repeated or error_in(response)[0] != "use_dpop_nonce":
            break
        repeated = True
    secrets = [*(form.get(name, "") for name in _SECRETS), options.client_secret or ""]
    secrets.append(record.client.secret or "")
    secrets += [value for name, value in headers if name == "DPoP"]
    shown_secrets = [each for each in secrets if len(each) >= _SECRET]
    default = ("bearer", "dpop") if options.prover else ("bearer",)
    return _read(options, response, shown_secrets, token_types or default)


def with_tokens(options: FlowOptions, record: Record, response: TokenResponse) -> Record:
    """Return the next generation of *record*, with the tokens of *response*."""
    now = options.now()
    lifetime = _lifetime(response.expires_in)
    scopes = valid_scopes(scopes_of(response.scope)) or record.scopes or record.requested
    bound = response.token_type.lower() == "dpop"
    if options.prover is not None and not bound:
        text = "not bound to a key: the authorization server does not support DPoP"
        options.observe(FlowFinding("token", text, record.token_endpoint, ok=False))
    options.observe(
        FlowFinding(
            "token",
            f"{response.token_type} token, expires in "
            f"{'an unknown time' if lifetime is None else f'{lifetime:g} s'}, "
            f"{'with' if response.refresh_token or record.refresh_token else 'without'} a refresh "
            f"token, scopes {' '.join(scopes) or 'unknown'}",
            record.token_endpoint,
        )
    )
    return msgspec.structs.replace(
        record,
        generation=record.generation + 1,
        access_token=response.access_token,
        token_type="DPoP" if bound else "Bearer",
        expires=None if lifetime is None else now + lifetime,
        lifetime=lifetime,
        refresh_token=response.refresh_token or record.refresh_token,
        scopes=scopes,
        dpop_key=options.prover.key if bound and options.prover else None,
    )


def store(options: FlowOptions, record: Record) -> Steps[Record]:
    """Store *record* in place of any other: it is newer, since the user has just consented.

    Raises:
        FlowFailed: Other processes changed the stored record each time.
    """
    for _ in range(_ATTEMPTS):
        old: Record | None = yield Load()
        new = msgspec.structs.replace(record, generation=old.generation + 1 if old else 1)
        if (yield Swap(old, new)):
            return new
    raise FlowFailed("the tokens could not be stored: other processes keep changing them")


def error_in(response: Fetched, secrets: Collection[str] = ()) -> tuple[str, str]:
    """Return the error code of a response, and a text for people, both without *secrets*."""
    try:
        members = decode_object(response.body)
    except ValueError:
        members = {}
    code = members.get("error")
    code = code if isinstance(code, str) and _CODE.fullmatch(code) else ""
    described = members.get("error_description")
    text = clean(described, secrets) if isinstance(described, str) else ""
    code = clean(code, secrets)
    named = ": ".join(part for part in (code, text) if part)
    return code, named or f"HTTP {response.status}"


def valid_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return those of *scopes* that RFC 6749, 3.3, allows, without duplicates; 200 at most."""
    return tuple(dict.fromkeys(each for each in scopes if _SCOPE.fullmatch(each)))[:_MAX_SCOPES]


def clean(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text of a server as a message shows it: short, printable, without *secrets*.

    A server may repeat parts of the request in its error.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(re.sub(r"[^\x20-\x7e]", "?", text)[:_TEXT].split())


def failure_of(code: str) -> Failure:
    """Return the failure that an error code of RFC 6749, 4.1.2.1 and 5.2, means."""
    if code == "access_denied":
        return Failure.DENIED
    if code in _CLIENT_ERRORS:
        return Failure.REGISTRATION
    if code in ("server_error", "temporarily_unavailable"):
        return Failure.UNAVAILABLE
    return Failure.OTHER


def advice_for(text: str) -> str:
    """Return the option that helps against an error, "" if none is known to."""
    if any(each in text for each in _NO_RESOURCE):
        return "resource=None, if the authorization server knows no resources"
    return "scopes=" if "invalid_scope" in text else ""


def authenticated(
    options: FlowOptions, record: Record, params: Mapping[str, str]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return headers and form of a request, with the authentication of the client."""
    client = record.client
    form = dict(params)
    headers = [
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Accept", "application/json"),
    ]
    secret = (client.secret if client.dynamic else options.client_secret) or ""
    match client.method:
        case "client_secret_basic":
            # RFC 6749, 2.3.1: both are form-encoded first.
            pair = f"{quote_plus(client.id)}:{quote_plus(secret)}"
            headers.append(("Authorization", f"Basic {b64encode(pair.encode()).decode()}"))
            # Not needed (RFC 6749, 3.2.1), but authorization servers made with the official SDK
            # (2.3.0), FastMCP's among them, find the client by it.
            form["client_id"] = client.id
        case "client_secret_post":
            form |= {"client_id": client.id, "client_secret": secret}
        case "private_key_jwt" if options.sign is not None:
            claims = assertion_claims(
                client.id, record.issuer, id=options.random(), now=options.now()
            )
            form |= authentication_params(options.sign(claims))
        case "none":
            if client.id:  # a grant such as that of a workload may be all that identifies it
                form["client_id"] = client.id
        case _:
            raise FlowFailed(
                f"the client cannot authenticate by {client.method}", Failure.REGISTRATION
            )
    return headers, form


def _read(
    options: FlowOptions, response: Fetched, secrets: Collection[str], token_types: Sequence[str]
) -> TokenResponse:
    try:
        if len(response.body) > options.max_document:
            raise ValueError(f"it has more than {options.max_document} bytes")
        members: dict[str, Any] = decode_object(response.body) if response.status == 200 else {}
        if "access_token" not in members:  # also 200 with `error`, of which some servers make use
            code, text = error_in(response, secrets)
            raise FlowFailed(
                f"the authorization server gave no token: {text}",
                failure_of(code),
                advice=advice_for(text),
                error=code,
            )
        token = msgspec.convert(members, TokenResponse)
        for value in (token.access_token, token.refresh_token):
            if value is not None and not _TOKEN.fullmatch(value):
                raise ValueError("a token is empty, too long, or not of ASCII characters")
        if token.token_type.lower() not in token_types:
            expected = token_types[0].title()
            raise ValueError(f"the token_type is {token.token_type[:50]!a}, not {expected}")
    except (ValueError, msgspec.ValidationError) as error:
        raise FlowFailed(f"the response of the token endpoint is not valid: {error}") from None
    return token


def _lifetime(expires_in: float | str | None) -> float | None:
    """Return the seconds until a token expires. Some servers send the number as text."""
    try:
        seconds = float(expires_in) if expires_in is not None else None
    except ValueError:
        return None
    # Also of NaN, and of 0, with which some servers mean that it is unknown: such a token is used
    # until it is rejected. As one that has expired already it would cause one login after another.
    return seconds if seconds is not None and 0 < seconds < _MAX_LIFE else None
