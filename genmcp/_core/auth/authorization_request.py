"""The authorization request: its scopes and its URL, and the check of the redirect."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from genmcp._core.auth.challenges import Challenge, scopes_of
from genmcp._core.auth.discovery import DiscoveredServer
from genmcp._core.auth.fetching import shown
from genmcp._core.auth.record import RegisteredClient
from genmcp._core.auth.steps import Failure, FlowFailed, FlowOptions
from genmcp._core.auth.token_request import advice_for, clean, failure_of, valid_scopes

OFFLINE: Final = "offline_access"

_CODE: Final = re.compile(r"[\x20-\x7e]{1,8192}")  # RFC 6749, appendix A.11


class AuthorizationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization request that waits for its redirect.

    `issuer` is kept with the verifier, as 2026-07-28, "Authorization Response Validation", demands.
    """

    url: str
    redirect_uri: str
    state: str
    verifier: str
    issuer: str
    issuer_expected: bool

    def __repr__(self) -> str:
        return f"AuthorizationRequest(issuer={self.issuer!r})"


def select_scopes(
    options: FlowOptions,
    challenge: Challenge | None,
    listed: Iterable[str] | None,
    earlier: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the scopes to request, without `offline_access`.

    The first of these that exist: the scopes of the options, those of the challenge, those that the
    server lists (2026-07-28, authorization, "Scope Selection Strategy").

    Args:
        options: the options of the client.
        challenge: the challenge of the response.
        listed: `scopes_supported` of the protected resource metadata.
        earlier: scopes that were requested before, which a new token must not lose.
    """
    challenged = scopes_of(challenge.params.get("scope")) if challenge else []
    if options.scopes is not None:
        chosen, source = scopes_of(" ".join(options.scopes)), "the options"
    elif challenged:
        chosen, source = challenged, "the challenge"
    else:
        chosen, source = list(listed or ()), "the server's metadata"
    # A server should not name offline_access, which is between the client and the authorization
    # server (2026-07-28, "Refresh Tokens").
    scopes = valid_scopes(each for each in (*chosen, *earlier) if each != OFFLINE)
    text = f"{' '.join(scopes)} (of {source})" if scopes else "none: the server names none"
    options.report("scopes", text)
    return scopes


def scope_parameter(
    options: FlowOptions, found: DiscoveredServer, scopes: tuple[str, ...]
) -> tuple[str, ...]:
    """Return *scopes* with `offline_access`, if the authorization server lists it.

    Without other scopes it is left out: it would replace those that the server grants by default.
    """
    supported = OFFLINE in (found.server.scopes_supported or ())
    if scopes and (supported or OFFLINE in (options.scopes or ())):
        return (*scopes, OFFLINE)
    return scopes


def authorization_request(
    options: FlowOptions,
    found: DiscoveredServer,
    client: RegisteredClient,
    redirect_uri: str,
    scopes: tuple[str, ...],
) -> AuthorizationRequest:
    """Return the request to open in a browser (RFC 6749, 4.1.1; RFC 7636; RFC 8707)."""
    verifier, state = options.random(), options.random()
    digest = sha256(verifier.encode()).digest()
    params = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": found.resource or "",
        "scope": " ".join(scopes),
        # OpenID Connect Core 1.0, 11: `offline_access` is ignored otherwise.
        "prompt": "consent" if OFFLINE in scopes else "",
        "dpop_jkt": options.prover.thumbprint if options.prover else "",  # RFC 9449, 10
    }
    query = urlencode({name: value for name, value in params.items() if value})
    endpoint = found.server.authorization_endpoint or ""
    separator = "&" if "?" in endpoint else "?"
    return AuthorizationRequest(
        url=f"{endpoint}{separator}{query}",
        redirect_uri=redirect_uri,
        state=state,
        verifier=verifier,
        issuer=found.issuer,
        issuer_expected=found.server.authorization_response_iss_parameter_supported,
    )


def code_of(request: AuthorizationRequest, redirected: str) -> str:
    """Return the authorization code of the redirect to the URL *redirected*.

    First `state` is checked, then `iss` (RFC 9207, 2.4) or without one the path, and only then
    anything else is read: until then it may be the response of another authorization server.

    Raises:
        FlowFailed: The redirect is not that of *request*, or an error.
    """
    params = _params(redirected)
    state = params.get("state", "")
    if not compare_digest(state.encode("utf-8", "replace"), request.state.encode()):
        raise FlowFailed("the redirect has another state than the request: it is not used")
    if mismatch := _issuer_mismatch(request, redirected, params.get("iss")):
        raise FlowFailed(f"the redirect {mismatch}: it is not used", Failure.ISSUER)
    if "error" in params:
        code = clean(params["error"], [request.state])
        described = clean(params.get("error_description", ""), [request.state])
        text = ": ".join(filter(None, (code, described)))
        raise FlowFailed(
            f"the authorization server {shown(request.issuer)} denied the request: {text}",
            failure_of(code, Failure.DENIED),
            advice=advice_for(text),
            error=code,
        )
    if not _CODE.fullmatch(params.get("code", "")):
        raise FlowFailed("the redirect has no valid authorization code")
    return params["code"]


def _issuer_mismatch(request: AuthorizationRequest, redirected: str, issuer: str | None) -> str:
    """Return why a redirect with *issuer* as `iss` is not that of *request*, "" if it is."""
    expected = shown(request.issuer)
    if issuer is not None:
        of = f"is of the authorization server {shown(issuer)}, not of {expected}"
        return "" if issuer == request.issuer else of
    if request.issuer_expected:
        return f"has no iss, which {expected} promises in its metadata (RFC 9207)"
    if _last_segment(redirected) != _last_segment(request.redirect_uri):
        # RFC 9700, 4.4.2. The rest of the path may differ: a proxy in front of a website strips it.
        return f"is to another path than that for {expected}"
    return ""


def _last_segment(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


def _params(redirected: str) -> dict[str, str]:
    """Return the parameters of the query, each of which may occur once (RFC 6749, 3.1)."""
    try:
        pairs = parse_qsl(urlsplit(redirected).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise FlowFailed("the redirect is no URL, or has too many parameters") from None
    params = dict(pairs)
    if len(params) != len(pairs):
        raise FlowFailed("the redirect has a parameter twice: it is not used")
    return params
