"""Requests to a token endpoint: the authentication of the client, and its tokens."""

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from genmcp.core.auth.challenges import scopes_of
from genmcp.core.auth.fetching import decode_object, post, unavailable
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import Failure, Fetched, FlowFailed, FlowOptions, Headers, Steps

# RFC 6750, 2.1, allows fewer characters, but tokens with others exist. A space or a control
# character could begin another header.
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
_CODE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e ]{1,100}")  # RFC 6749, 5.2
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749, 3.3
_MAX_SCOPES: Final = 200
_TEXT: Final = 300  # characters of an error_description
_SECRETS: Final = (
    *("assertion", "client_assertion", "client_secret", "code", "code_verifier"),
    *("refresh_token", "subject_token", "token"),
)
_SECRET: Final = 6  # characters; a shorter value says nothing, and may be part of any word
_MAX_LIFE: Final = 10 * 365 * 86400.0  # seconds; a longer life is as good as none
_ASSERTION_LIFETIME: Final = 300  # seconds

_FAILURES: Final = {
    "access_denied": Failure.DENIED,
    "invalid_client": Failure.REGISTRATION,
    "unauthorized_client": Failure.REGISTRATION,
    "server_error": Failure.UNAVAILABLE,
    "temporarily_unavailable": Failure.UNAVAILABLE,
}
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


def request_token(
    options: FlowOptions, record: Record, params: Mapping[str, str]
) -> Steps[TokenResponse]:
    """Send a token request of the client of *record* to its token endpoint.

    Args:
        options: the options of the client.
        record: the client, the token endpoint, and the key that the tokens are to be bound to.
        params: the parameters of the grant. Those that are empty are left out.

    Raises:
        FlowFailed: `error` is that of the response (RFC 6749, 5.2).
    """
    for _ in range(2):
        headers, form = authenticated(options, record, params)
        body = urlencode(form).encode()
        request = post(options, record.token_endpoint, "token_endpoint", headers, body)
        if options.prover is not None and record.dpop_key is not None:
            request = options.prover.prove(request, record.dpop_key)
        response: Fetched = yield request
        if options.prover is None or not options.prover.challenged(request, response):
            break
    if failed := unavailable("the token endpoint", response):
        raise failed
    secrets = secrets_in(options, record, form)
    try:
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
    except (ValueError, msgspec.ValidationError) as error:
        raise FlowFailed(f"the response of the token endpoint is not valid: {error}") from None
    return token


def with_tokens(options: FlowOptions, record: Record, response: TokenResponse) -> Record:
    """Return *record* with the tokens of *response*.

    Raises:
        FlowFailed: a client cannot use a token of this type.
    """
    kind = response.token_type.lower()
    if kind not in (("bearer", "dpop") if options.prover else ("bearer",)):
        raise FlowFailed(f"the token_type is {response.token_type[:50]!a}, not Bearer")
    if options.prover is not None and kind != "dpop":
        text = "not bound to a key: the authorization server does not support DPoP"
        options.report("token", text, record.token_endpoint, ok=False)
    lifetime = _lifetime(response.expires_in)
    scopes = valid_scopes(scopes_of(response.scope)) or record.scopes or record.requested
    refresh_token = response.refresh_token or record.refresh_token
    expires = "an unknown time" if lifetime is None else f"{lifetime:g} s"
    refreshed = "with" if refresh_token else "without"
    options.report(
        "token",
        f"{response.token_type} token, expires in {expires}, {refreshed} a refresh token, scopes "
        f"{' '.join(scopes) or 'unknown'}",
        record.token_endpoint,
    )
    return msgspec.structs.replace(
        record,
        access_token=response.access_token,
        token_type="DPoP" if kind == "dpop" else "Bearer",
        expires=None if lifetime is None else options.now() + lifetime,
        lifetime=lifetime,
        refresh_token=refresh_token,
        scopes=scopes,
        dpop_key=record.dpop_key if kind == "dpop" else None,
    )


def authenticated(
    options: FlowOptions, record: Record, params: Mapping[str, str]
) -> tuple[Headers, dict[str, str]]:
    """Return headers and form of a request, with the authentication of the client."""
    client, form = record.client, {name: value for name, value in params.items() if value}
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
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
            # Without `client_id`: the subject of the assertion is the client.
            form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form["client_assertion"] = options.sign(_assertion(options, client.id, record.issuer))
        case "none":
            if client.id:  # a grant such as that of a workload may be all that identifies it
                form["client_id"] = client.id
        case _:
            raise FlowFailed(
                f"the client cannot authenticate by {client.method}", Failure.REGISTRATION
            )
    return headers, form


def secrets_in(options: FlowOptions, record: Record, form: Mapping[str, str]) -> list[str]:
    """Return the secrets of a request, which a server may repeat in its response."""
    found = [form.get(name, "") for name in _SECRETS]
    return [*found, options.client_secret or "", record.client.secret or ""]


def error_in(response: Fetched, secrets: Collection[str] = ()) -> tuple[str, str]:
    """Return the error code of a response, and a text for people, both without *secrets*."""
    try:
        members = decode_object(response.body)
    except ValueError:
        members = {}
    code, described = members.get("error"), members.get("error_description")
    code = clean(code, secrets) if isinstance(code, str) and _CODE.fullmatch(code) else ""
    text = clean(described, secrets) if isinstance(described, str) else ""
    return code, ": ".join(filter(None, (code, text))) or f"HTTP {response.status}"


def valid_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return those of *scopes* that RFC 6749, 3.3, allows, without duplicates; 200 at most."""
    return tuple(dict.fromkeys(each for each in scopes if _SCOPE.fullmatch(each)))[:_MAX_SCOPES]


def clean(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text of a server as a message shows it: short, printable, without *secrets*.

    A server may repeat parts of the request in its error.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET:
            text = text.replace(secret, "***")
    return " ".join(re.sub(r"[^\x20-\x7e]", "?", text)[:_TEXT].split())


def failure_of(code: str, default: Failure = Failure.OTHER) -> Failure:
    """Return the failure that an error code of RFC 6749, 4.1.2.1 and 5.2, means."""
    return _FAILURES.get(code, default)


def advice_for(text: str) -> str:
    """Return the option that helps against an error, "" if none is known to."""
    if any(each in text for each in _NO_RESOURCE):
        return "resource=None, if the authorization server knows no resources"
    return "scopes=" if "invalid_scope" in text else ""


def _assertion(options: FlowOptions, client_id: str, issuer: str) -> dict[str, Any]:
    """Return the claims with which a client authenticates (`private_key_jwt`, RFC 7523, 3).

    The audience is the issuer, and nothing else: an assertion for a URL that only the metadata
    names could be made for one server and used at another (draft-ietf-oauth-rfc7523bis, 4).
    """
    issued = int(options.now())
    return {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": options.random(),
        "iat": issued,
        "exp": issued + _ASSERTION_LIFETIME,
    }


def _lifetime(expires_in: float | str | None) -> float | None:
    """Return the seconds until a token expires. Some servers send the number as text."""
    try:
        seconds = float(expires_in) if expires_in is not None else None
    except ValueError:
        return None
    # Also of NaN, and of 0, with which some servers mean that it is unknown: such a token is used
    # until it is rejected. As one that has expired already it would cause one login after another.
    return seconds if seconds is not None and 0 < seconds < _MAX_LIFE else None
