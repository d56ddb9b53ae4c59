"""The flow of a client: login, renewal, and the answers to 401 and 403, without any I/O.

    ============  =====================================================================
    `usable`      the record for the next request, renewed ahead of its expiry
    `rejected`    the record for another attempt after a response with 401 or 403
    `authorize`   a login: discovery, registration, consent, token
    `renew`       a new access token, under the lock of the record
    `log_out`     the tokens are revoked, and the record is removed
    ============  =====================================================================

Each is a generator of `genmcp.core.auth.steps`, and returns a `Record`, or None where there is
no token to send. They raise `FlowFailed`.

A client without a user has a grant (`FlowOptions.grant`), with which it requests each token: it
takes the place of the refresh token and of the user, who is never asked. There is no second attempt
with another grant.

A record is stored only under its lock, so that no process replaces the tokens of another unseen.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from genmcp.core.auth.challenges import Challenge, find_challenge, parse_challenges, scopes_of
from genmcp.core.auth.discovery import DiscoveredServer, discover
from genmcp.core.auth.fetching import post, shown, unavailable
from genmcp.core.auth.record import SHARE, Record, RegisteredClient
from genmcp.core.auth.registration import choose_client, is_document_url, issuer_segment, register
from genmcp.core.auth.steps import (
    Ask,
    Failure,
    Fetched,
    FlowFailed,
    FlowOptions,
    Headers,
    Listen,
    Load,
    Locked,
    Save,
    Steps,
)
from genmcp.core.auth.token_request import (
    advice_for,
    authenticated,
    clean,
    error_in,
    failure_of,
    request_token,
    secrets_in,
    valid_scopes,
    with_tokens,
)

# Of the rejections of one request, for any reason: how these bounds and others combine is in
# `client/transports/authorized.py`.
_MAX_ATTEMPTS: Final = 3  # a 401 up to this one gets a token: a renewal, a login, and one to spare
_MAX_STEP_UPS: Final = 2  # a 403 up to this one leads to a login with more scopes
_OFFLINE: Final = "offline_access"
_CODE: Final = re.compile(r"[\x20-\x7e]{1,8192}")  # RFC 6749, appendix A.11


class RejectedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A response with 401 or 403.

    Args:
        status: the HTTP status.
        headers: the headers.
        used: the record of the token that the request had, None if it had no token.
        attempt: how often this request was rejected so far, 1 for the first time.
        may_log_in: whether a login may begin, which asks the user unless there is a grant.
    """

    status: int
    headers: Headers = ()
    used: Record | None = None
    attempt: int = 1
    may_log_in: bool = True

    @property
    def challenge(self) -> Challenge | None:
        """Return the challenge for the scheme of the token, else one of OAuth; None without."""
        values = [value for name, value in self.headers if name.lower() == "www-authenticate"]
        found = parse_challenges(values)
        schemes = (self.used.token_type if self.used else "Bearer", "Bearer", "DPoP")
        return next((each for scheme in schemes if (each := find_challenge(found, scheme))), None)


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


class LoggedOut(msgspec.Struct, frozen=True):
    """The outcome of a logout. In any case no record is stored any more.

    Args:
        record: the record that was removed, None if there was none.
        problems: why a token may still be valid: a sentence for each.
    """

    record: Record | None = None
    problems: Sequence[str] = ()


# Before a request


def usable(options: FlowOptions, held: Record | None = None) -> Steps[Record | None]:
    """Return the record for the next request; None if a token needs a login first.

    Args:
        options: the options of the client.
        held: the record of the request before, None for the first one.

    Raises:
        FlowFailed: the token has expired, and its renewal failed for the present.
    """
    if held is not None and lives(options, held):
        return held
    record = yield from _stored(options)
    if record is None or record.access_token is None or not record.due(options.now()):
        return record if record is not None and record.access_token else None
    expired = record.expires is not None and record.expires <= options.now()
    try:
        renewed = yield from renew(options, record)
    except FlowFailed:
        if expired or record.expires is None:
            raise
        # The next attempt comes after half of the time that is left, and not with each request,
        # which would wait for it. This copy is not stored.
        left = record.expires - options.now()
        return msgspec.structs.replace(record, lifetime=left / (2 * SHARE))
    return renewed or (None if expired else record)


def renew(options: FlowOptions, failed: Record) -> Steps[Record | None]:
    """Renew the access token; None if that is not possible, and a login is needed.

    One process at a time renews a record, since a refresh token may be valid once. The record is
    read again under the lock: another process may have renewed it.

    Args:
        options: the options of the client.
        failed: the record of the token that has expired or was rejected.

    Raises:
        FlowFailed: the authorization server cannot be reached, or has another problem. The refresh
            token may still be valid, and is kept.
    """
    granted: Mapping[str, str] | None = None
    if options.grant is not None:
        # Before the lock, whose steps are not cancelled: the user's function may take any time.
        try:
            granted = yield from options.grant(failed, failed.requested)
        except FlowFailed as problem:
            options.report("token", str(problem), ok=False)
            raise
    record: Record | None = yield Locked(_renewed(options, failed, granted))
    return record


def _renewed(
    options: FlowOptions, failed: Record, granted: Mapping[str, str] | None
) -> Steps[Record | None]:
    """Return the record with new tokens; None if the grant or the refresh token is refused."""
    stored = yield from _stored(options)
    if stored is None or is_newer(options, stored, failed):
        return stored
    if stored.client.expired(options.now()):
        return None
    if options.grant is None and stored.refresh_token is None:
        return None
    try:
        record = yield from _granted(options, stored, granted)
    except FlowFailed as problem:
        options.report("token", str(problem), stored.token_endpoint, ok=False)
        if problem.failure is Failure.UNAVAILABLE:
            raise
        if options.grant is not None:
            # The next request without a token finds the token endpoint anew, if it has moved.
            yield Save(stored.without_tokens())
            raise
        if problem.error in ("invalid_client", "unauthorized_client") and stored.client.dynamic:
            yield Save(None)
        elif problem.error == "invalid_grant":
            yield Save(stored.without_tokens())
        return None
    record = msgspec.structs.replace(record, renewals=stored.renewals + 1)
    yield Save(record)
    return record


def _granted(
    options: FlowOptions, record: Record, granted: Mapping[str, str] | None
) -> Steps[Record]:
    """Return *record* with the tokens for *granted*, a grant, or for its refresh token."""
    if granted is None:
        # Without `scope`, which means the same scopes (RFC 6749, 6).
        params = {"grant_type": "refresh_token", "refresh_token": record.refresh_token or ""}
    else:
        params = {**granted, "scope": " ".join(record.requested)}
    params["resource"] = record.resource or ""
    record = _with_key(options, record)
    response = yield from request_token(options, record, params)
    if granted is not None:
        # A refresh token would be one more secret, and saves nothing (RFC 6749, 4.4.3).
        response = msgspec.structs.replace(response, refresh_token=None)
    return with_tokens(options, record, response)


# After a response with 401 or 403


def rejected(options: FlowOptions, rejection: RejectedAttempt) -> Steps[Record | None]:
    """Return the record to repeat a rejected request with; None if it fails as it is.

    401: the token that another process has stored meanwhile; else a renewal, unless the server has
    moved to another authorization server; else a login. 403: a login with more scopes.

    Raises:
        FlowFailed: the login failed.
    """
    if rejection.status == 403:
        return (yield from _step_up(options, rejection))
    if rejection.status != 401 or rejection.attempt > _MAX_ATTEMPTS:
        return None
    used, challenge = rejection.used, rejection.challenge
    report_challenge(options, rejection)
    stored = yield from _stored(options)
    if stored is not None and is_newer(options, stored, used):
        return stored
    if used is not None and used.renewals == 0 and rejection.attempt > 1:
        return None  # the token of a login is rejected: another login would end in the same
    found = yield from discover(options, challenge)
    renewable = options.grant is None and rejection.attempt == 1
    if renewable and stored is not None and stored.issuer == found.issuer:
        renewed = yield from renew(options, stored)
        if renewed is not None:
            return renewed
        stored = yield from _stored(options)  # without the tokens that were refused
    if not rejection.may_log_in:
        return None
    return (yield from _login(options, found, challenge, stored))


def _step_up(options: FlowOptions, rejection: RejectedAttempt) -> Steps[Record | None]:
    """Log in for the scopes of the challenge, beside those requested or granted before.

    A renewal cannot widen them (RFC 6749, 6). 2026-07-28, authorization, "Step-Up Authorization
    Flow".
    """
    used, challenge = rejection.used, rejection.challenge
    if challenge is None or challenge.params.get("error") != "insufficient_scope":
        return None
    if rejection.attempt > _MAX_STEP_UPS:
        return None
    report_challenge(options, rejection)
    needed = scopes_of(challenge.params.get("scope"))
    stored = yield from _stored(options)
    if stored is not None and is_newer(options, stored, used) and {*needed} <= {*stored.scopes}:
        return stored  # another process has asked for them
    asked = (*used.requested, *used.scopes) if used else ()
    if {*needed} <= {*asked} or not rejection.may_log_in:
        return None
    found = yield from discover(options, challenge)
    widen = (*asked, *needed)
    return (yield from _login(options, found, challenge, stored, widen=widen))


def report_challenge(options: FlowOptions, rejection: RejectedAttempt) -> None:
    """Report the challenge of *rejection*."""
    challenge = rejection.challenge
    text = f"HTTP {rejection.status} without a challenge of OAuth"
    if challenge is not None:
        # A server may repeat the token, such as in error_description.
        token = (rejection.used.access_token if rejection.used else None) or ""
        named = ((name, clean(text, [token])) for name, text in challenge.params.items())
        params = ", ".join(f"{name}={shown(text)}" for name, text in named)
        text = f"HTTP {rejection.status}: {challenge.scheme} {params}".rstrip()
    options.report("challenge", text, options.url, ok=challenge is not None)


# Login


def authorize(options: FlowOptions, rejection: RejectedAttempt | None = None) -> Steps[Record]:
    """Log in: find the authorization server, register, ask the user, and store the tokens.

    Args:
        options: the options of the client.
        rejection: the response that demanded it; None without one.

    Raises:
        FlowFailed: no token was obtained.
    """
    challenge = rejection.challenge if rejection else None
    if rejection is not None:
        report_challenge(options, rejection)
    found = yield from discover(options, challenge)
    stored = yield from _stored(options)
    return (yield from _login(options, found, challenge, stored))


def _login(
    options: FlowOptions,
    found: DiscoveredServer,
    challenge: Challenge | None,
    stored: Record | None,
    *,
    widen: Sequence[str] = (),
) -> Steps[Record]:
    """Obtain tokens by the grant of the options, or else by the user, and store them.

    Args:
        options: the options of the client.
        found: the authorization server.
        challenge: the challenge of the server.
        stored: the present record.
        widen: the scopes of a step-up.
    """
    same = stored is not None and stored.issuer == found.issuer
    # The scopes of another authorization server are not those of this one.
    earlier = (*(stored.requested if stored and same else ()), *widen)
    scopes = select_scopes(options, challenge, found.scopes, earlier)
    client = choose_client(options, found, stored)
    if options.grant is not None:
        record = _new_record(found, client or RegisteredClient(id=""), scopes)
        granted = yield from options.grant(record, scopes)
        record = yield from _granted(options, record, granted)
        yield Locked(_save(record))
        return record
    preferred = stored.client.redirect_uri if stored and same else None
    redirect_uri: str = yield Listen(preferred, issuer_segment(options, found, client))
    if client is not None and client.dynamic and client.redirect_uri != redirect_uri:
        # RFC 8252, 7.3, allows another port on loopback; many authorization servers do not.
        client = None
    if client is not None:
        try:
            record = _new_record(found, client, scopes)
            return (yield from _consented(options, found, record, redirect_uri))
        except FlowFailed as failed:
            if failed.failure is not Failure.REGISTRATION or not client.dynamic:
                raise
            options.report("registration", str(failed), ok=False)
    client = yield from register(options, found, redirect_uri)
    record = _new_record(found, client, scopes)
    # The client is kept also if the user does not consent; but not in place of tokens.
    yield Locked(_save(record, replace=False))
    return (yield from _consented(options, found, record, redirect_uri))


def _consented(
    options: FlowOptions,
    found: DiscoveredServer,
    record: Record,
    redirect_uri: str,
) -> Steps[Record]:
    """Ask the user, redeem the code, and store the tokens."""
    record = _with_key(options, record)
    scopes = scope_parameter(options, found, record.requested)
    request = authorization_request(options, found, record, redirect_uri, scopes)
    options.report("authorization", "the user is asked", found.server.authorization_endpoint or "")
    redirected: str = yield Ask(request.url, redirect_uri)
    params = {
        "grant_type": "authorization_code",
        "code": code_of(request, redirected),
        "redirect_uri": redirect_uri,
        "code_verifier": request.verifier,
        "resource": found.resource or "",
    }
    response = yield from request_token(options, record, params)
    record = with_tokens(options, record, response)
    yield Locked(_save(record))
    return record


# The authorization request, and the check of its redirect


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
    scopes = valid_scopes(each for each in (*chosen, *earlier) if each != _OFFLINE)
    text = f"{' '.join(scopes)} (of {source})" if scopes else "none: the server names none"
    options.report("scopes", text)
    return scopes


def scope_parameter(
    options: FlowOptions, found: DiscoveredServer, scopes: tuple[str, ...]
) -> tuple[str, ...]:
    """Return *scopes* with `offline_access`, if the authorization server lists it.

    Without other scopes it is left out: it would replace those that the server grants by default.
    """
    supported = _OFFLINE in (found.server.scopes_supported or ())
    if scopes and (supported or _OFFLINE in (options.scopes or ())):
        return (*scopes, _OFFLINE)
    return scopes


def authorization_request(
    options: FlowOptions,
    found: DiscoveredServer,
    record: Record,
    redirect_uri: str,
    scopes: tuple[str, ...],
) -> AuthorizationRequest:
    """Return the request to open in a browser (RFC 6749, 4.1.1; RFC 7636; RFC 8707).

    Args:
        options: the options of the client.
        found: the authorization server.
        record: the client, and the key that the code and the tokens are to be bound to.
        redirect_uri: the redirect URI.
        scopes: the scopes to request.
    """
    verifier, state = options.random(), options.random()
    digest = sha256(verifier.encode()).digest()
    params = {
        "response_type": "code",
        "client_id": record.client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": found.resource or "",
        "scope": " ".join(scopes),
        # OpenID Connect Core 1.0, 11: `offline_access` is ignored otherwise.
        "prompt": "consent" if _OFFLINE in scopes else "",
    }
    if options.prover is not None and record.dpop_key is not None:
        params["dpop_jkt"] = options.prover.thumbprint(record.dpop_key)  # RFC 9449, 10
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
        FlowFailed: the redirect is not that of *request*, or an error.
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


# Logout


def log_out(options: FlowOptions) -> Steps[LoggedOut]:
    """Revoke the tokens of the stored record, and remove it, also if they cannot be revoked.

    Under the lock, so that no process renews the tokens between the two.
    """
    outcome: LoggedOut = yield Locked(_logged_out(options))
    return outcome


def _logged_out(options: FlowOptions) -> Steps[LoggedOut]:
    record: Record | None = yield Load()
    if record is None:
        return LoggedOut()
    problems = yield from _revoke(options, record)
    yield Save(None)
    return LoggedOut(record, problems)


def _revoke(options: FlowOptions, record: Record) -> Steps[list[str]]:
    """Revoke the refresh token, and then the access token, which may be independent of it."""
    tokens = {"refresh_token": record.refresh_token, "access_token": record.access_token}
    held = {hint: token for hint, token in tokens.items() if token}
    endpoint = record.revocation_endpoint
    if endpoint is None:
        text = "the authorization server has no revocation endpoint: the tokens remain valid until"
        return [f"{text} they expire"] if held else []
    problems = []
    for hint, token in held.items():
        try:
            params = {"token": token, "token_type_hint": hint}
            headers, form = authenticated(options, record, params)
            body = urlencode(form).encode()
            response: Fetched = yield post(options, endpoint, "revocation_endpoint", headers, body)
            if failed := unavailable("the revocation endpoint", response):
                raise failed
            # RFC 7009, 2.2: 200 also for a token that the server does not know.
            if response.status != 200:
                secrets = [*secrets_in(options, record, form), *held.values()]
                raise FlowFailed(error_in(response, secrets)[1])
        except FlowFailed as failed:
            problems.append(f"the {hint.replace('_', ' ')} was not revoked: {failed}")
    return problems


# Records


def lives(options: FlowOptions, record: Record) -> bool:
    """Return whether the token of *record* can be used, and need not be renewed yet."""
    return record.access_token is not None and not record.due(options.now())


def is_newer(options: FlowOptions, stored: Record, used: Record | None) -> bool:
    """Return whether *stored* has another token than *used*, and one that can be used."""
    other = used is None or stored.access_token != used.access_token
    return other and lives(options, stored)


def fits(options: FlowOptions, record: Record) -> bool:
    """Return whether *record* is one of a client with these options."""
    client = record.client
    if options.client_id is None:
        same = client.dynamic or not client.id
    else:
        same = client.id == options.client_id or (
            client.dynamic and is_document_url(options.client_id)
        )
    issuer = options.issuer is None or options.issuer == record.issuer
    return same and issuer and options.resource in ("", record.resource)


def _stored(options: FlowOptions) -> Steps[Record | None]:
    """Return the stored record, None if it is one of a client with other options."""
    record: Record | None = yield Load()
    return record if record is not None and fits(options, record) else None


def _new_record(
    found: DiscoveredServer, client: RegisteredClient, scopes: tuple[str, ...]
) -> Record:
    """Return a record of *client* without tokens."""
    return Record(
        issuer=found.issuer,
        token_endpoint=found.server.token_endpoint or "",
        resource=found.resource,
        client=client,
        requested=scopes,
        revocation_endpoint=found.server.revocation_endpoint,
    )


def _with_key(options: FlowOptions, record: Record) -> Record:
    """Return *record* with the key of its next tokens: its own one, or else a new one.

    The key belongs to the record, not to the connection: while the user is asked for minutes,
    another flow may renew the tokens of before, which are bound to another key.
    """
    if options.prover is None or record.dpop_key is not None:
        return record
    return msgspec.structs.replace(record, dpop_key=options.prover.new_key())


def _save(record: Record, *, replace: bool = True) -> Steps[None]:
    """Store *record*, in place of any other: it is newer, since it was just granted."""
    if replace or (yield Load()) is None:
        yield Save(record)
