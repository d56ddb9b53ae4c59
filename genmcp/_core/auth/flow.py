"""The flow of a client: login, renewal, and the answers to 401 and 403, without any I/O.

    ============  =====================================================================
    `usable`      the record for the next request, renewed ahead of its expiry
    `rejected`    the record for another attempt after a response with 401 or 403
    `authorize`   a login: discovery, registration, consent, token
    `renew`       a new access token for the refresh token, under the lock of the record
    `explain`     discovery and the choices for a login, without a login
    ============  =====================================================================

Each is a generator of `genmcp._core.auth.steps`, and returns a `Record`, or None where there is
no token to send. They raise `FlowFailed`. Grants without a person call `discover`, `obtain` and
`store` instead.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from genmcp._core.auth.authorization_request import (
    OFFLINE,
    authorization_request,
    code_of,
    code_params,
    scope_parameter,
    select_scopes,
)
from genmcp._core.auth.challenges import Challenge, find_challenge, parse_challenges, scopes_of
from genmcp._core.auth.discovery import DiscoveredServer, discover
from genmcp._core.auth.fetching import shown
from genmcp._core.auth.metadata import ServerMetadata
from genmcp._core.auth.record import SHARE, Record, RegisteredClient
from genmcp._core.auth.registration import (
    choose_client,
    is_document_url,
    issuer_segment,
    register,
)
from genmcp._core.auth.steps import (
    Ask,
    Failure,
    FlowFailed,
    FlowFinding,
    FlowOptions,
    Headers,
    Listen,
    Load,
    Lock,
    Steps,
    Swap,
    Unlock,
)
from genmcp._core.auth.token_request import (
    clean,
    new_record,
    obtain,
    request_token,
    store,
    with_tokens,
)

_MAX_ATTEMPTS: Final = 3  # that may be answered with 401: a renewal, a login, and one to spare
_MAX_STEP_UPS: Final = 2  # for one request


class RejectedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A response with 401 or 403.

    Args:
        status: the HTTP status.
        headers: the headers.
        used: the record of the token that the request had, None if it had no token.
        attempt: how often this request was rejected so far, 1 for the first time.
        interactive: whether a login may begin.
    """

    status: int
    headers: Headers = ()
    used: Record | None = None
    attempt: int = 1
    interactive: bool = True

    @property
    def challenge(self) -> Challenge | None:
        """Return the challenge for the scheme of the token, else one of OAuth; None without."""
        values = [value for name, value in self.headers if name.lower() == "www-authenticate"]
        found = parse_challenges(values)
        schemes = (self.used.token_type if self.used else "Bearer", "Bearer", "DPoP")
        return next((each for scheme in schemes if (each := find_challenge(found, scheme))), None)


def usable(options: FlowOptions, held: Record | None = None) -> Steps[Record | None]:
    """Return the record for the next request; None if a token needs a login first.

    Args:
        options: the options of the client.
        held: the record of the request before, None for the first one.

    Raises:
        FlowFailed: The token has expired, and its renewal failed for the present.
    """
    if held is not None and lives(options, held):
        return held
    record: Record | None = yield Load()
    if record is None or record.access_token is None or not fits(options, record):
        return None
    if not record.due(options.now()):
        return record
    expired = record.expires is not None and record.expires <= options.now()
    if record.refresh_token is None:
        return None if expired else record
    try:
        renewed = yield from renew(options, record)
    except FlowFailed as failed:
        if failed.failure is not Failure.UNAVAILABLE or record.expires is None or expired:
            raise
        # The next attempt comes after half of the time that is left, and not with each request,
        # which would wait for it. This copy is not stored.
        left = record.expires - options.now()
        return msgspec.structs.replace(record, lifetime=left / (2 * SHARE))
    return renewed or (None if expired else record)


def rejected(options: FlowOptions, rejection: RejectedAttempt) -> Steps[Record | None]:
    """Return the record to repeat a rejected request with; None if it fails as it is.

    401: the token that another process has stored meanwhile; else a renewal, unless the server has
    moved to another authorization server; else a login. 403 with `insufficient_scope`: a login with
    more scopes, since a renewal cannot widen them (RFC 6749, 6).

    Raises:
        FlowFailed: The login failed.
    """
    used, challenge = rejection.used, rejection.challenge
    if rejection.attempt > (_MAX_STEP_UPS if rejection.status == 403 else _MAX_ATTEMPTS):
        return None
    stored: Record | None = yield Load()
    if stored is not None and not fits(options, stored):
        stored = None
    if rejection.status == 403:
        return (yield from _step_up(options, rejection, challenge, stored))
    if rejection.status != 401:
        return None
    observe_challenge(options, rejection, challenge)
    if challenge is not None and challenge.params.get("error") == "use_dpop_nonce":
        # RFC 9449, 9: the same token, with the nonce of the response.
        return used if rejection.attempt == 1 else None
    if stored is not None and is_newer(options, stored, used):
        return stored
    if used is not None and used.renewals == 0 and rejection.attempt > 1:
        return None  # the token of a login is rejected: another login would end in the same
    found = yield from discover(options, challenge)
    if stored is not None and stored.issuer == found.issuer and rejection.attempt == 1:
        renewed = yield from renew(options, stored)
        if renewed is not None:
            return renewed
        stored = yield Load()  # without the tokens that were refused
    if not rejection.interactive:
        return None
    return (yield from _login(options, found, challenge, stored))


def authorize(options: FlowOptions, rejection: RejectedAttempt | None = None) -> Steps[Record]:
    """Log in: find the authorization server, register, ask the user, and store the tokens.

    Args:
        options: the options of the client.
        rejection: the response that demanded it; None without one.

    Raises:
        FlowFailed: No token was obtained.
    """
    challenge = rejection.challenge if rejection else None
    found = yield from discover(options, challenge)
    stored: Record | None = yield Load()
    kept = stored if stored is not None and fits(options, stored) else None
    keep = kept is not None and lives(options, kept)
    return (yield from _login(options, found, challenge, kept, keep=keep))


def renew(options: FlowOptions, failed: Record) -> Steps[Record | None]:
    """Renew the access token; None if that is not possible, and a login is needed.

    One process at a time renews a record, since a refresh token may be valid once. The record is
    read again under the lock: another process may have renewed it.

    Args:
        options: the options of the client.
        failed: the record of the token that has expired or was rejected.

    Raises:
        FlowFailed: The authorization server cannot be reached, or has another problem. The refresh
            token may still be valid, and is kept.
    """
    yield Lock()
    record = yield from _renewed_under_lock(options, failed)
    yield Unlock()
    return record


def _renewed_under_lock(options: FlowOptions, failed: Record) -> Steps[Record | None]:
    stored: Record | None = yield Load()
    if stored is None or not fits(options, stored):
        return None
    if is_newer(options, stored, failed):
        return stored
    if stored.refresh_token is None or stored.client.expired(options.now()):
        return None
    if options.prover is not None:
        options.prover.use(stored.dpop_key)
    params = {"grant_type": "refresh_token", "refresh_token": stored.refresh_token}
    if stored.resource is not None:
        params["resource"] = stored.resource
    try:
        response = yield from request_token(options, stored, params)
    except FlowFailed as error:
        options.observe(FlowFinding("token", str(error), stored.token_endpoint, ok=False))
        if error.failure is Failure.UNAVAILABLE:
            raise
        return (yield from _refused(stored, error.error))
    record = with_tokens(options, stored, response)
    record = msgspec.structs.replace(record, renewals=stored.renewals + 1)
    if (yield Swap(stored, record)):
        return record
    # A login has replaced the record meanwhile, and is newer; or a logout has removed it.
    newer: Record | None = yield Load()
    return newer if newer is not None and newer.access_token else None


def _refused(stored: Record, error: str) -> Steps[Record | None]:
    """Remove the tokens, or the client, that were refused; a record stored since remains."""
    if error == "invalid_grant":
        kept: Record | None = stored.without_tokens()
    elif error in ("invalid_client", "unauthorized_client") and stored.client.dynamic:
        kept = None
    else:
        return None
    if (yield Swap(stored, kept)):
        return None
    newer: Record | None = yield Load()
    return newer if newer is not None and newer.access_token else None


def _step_up(
    options: FlowOptions,
    rejection: RejectedAttempt,
    challenge: Challenge | None,
    stored: Record | None,
) -> Steps[Record | None]:
    """Log in for the scopes of the challenge, beside those requested or granted before.

    2026-07-28, authorization, "Step-Up Authorization Flow".
    """
    if challenge is None or challenge.params.get("error") != "insufficient_scope":
        return None
    used = rejection.used
    needed = scopes_of(challenge.params.get("scope"))
    if stored is not None and is_newer(options, stored, used) and {*needed} <= {*stored.scopes}:
        return stored  # another process has asked for them
    asked = (*used.requested, *used.scopes) if used else ()
    observe_challenge(options, rejection, challenge)
    if {*needed} <= {*asked} or not rejection.interactive:
        return None
    found = yield from discover(options, challenge)
    widen = (*asked, *needed)
    return (yield from _login(options, found, challenge, stored, widen=widen, keep=True))


def _login(
    options: FlowOptions,
    found: DiscoveredServer,
    challenge: Challenge | None,
    stored: Record | None,
    *,
    widen: Sequence[str] = (),
    keep: bool = False,
) -> Steps[Record]:
    """Register if need be, ask the user, and store the tokens.

    Args:
        options: the options of the client.
        found: the authorization server.
        challenge: the challenge of the server.
        stored: the present record.
        widen: the scopes of a step-up.
        keep: whether the tokens of *stored* can still be used if the user does not log in.
    """
    client = choose_client(options, found, stored)
    if stored is not None and stored.issuer != found.issuer:
        stored = None  # of another authorization server, whose scopes are not those of this one
    earlier = (*(stored.requested if stored else ()), *widen)
    scopes = select_scopes(options, challenge, found.scopes, earlier)
    preferred = stored.client.redirect_uri if stored else None
    redirect_uri: str = yield Listen(preferred, issuer_segment(options, found, client))
    if client is not None and client.dynamic and client.redirect_uri != redirect_uri:
        # RFC 8252, 7.3, allows another port on loopback; many authorization servers do not.
        client = None
    if client is not None:
        # A server that has forgotten the client shows an error, which only the user sees. If no
        # answer comes, the next login registers again.
        forget = Swap(stored, None) if client.dynamic and not keep else None
        try:
            return (yield from _consented(options, found, client, redirect_uri, scopes, forget))
        except FlowFailed as failed:
            if failed.failure is not Failure.REGISTRATION or not client.dynamic:
                raise
            options.observe(FlowFinding("registration", str(failed), ok=False))
    client = yield from _new_client(options, found, redirect_uri)
    return (yield from _consented(options, found, client, redirect_uri, scopes))


def _new_client(
    options: FlowOptions, found: DiscoveredServer, redirect_uri: str
) -> Steps[RegisteredClient]:
    """Register, and keep the client also if the user does not consent; but not in place of tokens.

    `Swap` fails if there is a record, which the tokens of this login will replace.
    """
    client = yield from register(options, found, redirect_uri)
    yield Swap(None, new_record(found, client))
    return client


def _consented(
    options: FlowOptions,
    found: DiscoveredServer,
    client: RegisteredClient,
    redirect_uri: str,
    scopes: tuple[str, ...],
    forget: Swap | None = None,
) -> Steps[Record]:
    """Ask the user, redeem the code, and store the tokens. *forget*: a step if no answer comes."""
    asked = scope_parameter(options, found, scopes)
    request = authorization_request(options, found, client, redirect_uri, asked)
    endpoint = found.server.authorization_endpoint
    options.observe(FlowFinding("authorization", "the user is asked", endpoint or ""))
    redirected: str = yield Ask(request.url, redirect_uri, forget)
    code = code_of(request, redirected)
    params = code_params(request, code, found.resource)
    record = yield from obtain(options, found, client, params, requested=scopes)
    return (yield from store(options, record))


def lives(options: FlowOptions, record: Record) -> bool:
    """Return whether the token of *record* can be used, and need not be renewed yet."""
    return record.access_token is not None and not record.due(options.now())


def is_newer(options: FlowOptions, stored: Record, used: Record | None) -> bool:
    """Return whether *stored* has another token than *used*, and one that can be used."""
    # Not by the generation, which begins anew after a logout.
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


def observe_challenge(
    options: FlowOptions, rejection: RejectedAttempt, challenge: Challenge | None
) -> None:
    """Report the challenge of *rejection* to `options.observe`."""
    text = f"HTTP {rejection.status} without a challenge of OAuth"
    if challenge is not None:
        # A server may repeat the token, such as in error_description.
        token = (rejection.used.access_token if rejection.used else None) or ""
        named = ((name, clean(text, [token])) for name, text in challenge.params.items())
        shown_params = ", ".join(f"{name}={shown(text)}" for name, text in named)
        text = f"HTTP {rejection.status}: {challenge.scheme} {shown_params}"
    options.observe(FlowFinding("challenge", text.rstrip(), options.url, ok=challenge is not None))


def explain(
    options: FlowOptions, rejection: RejectedAttempt | None = None
) -> Steps[DiscoveredServer]:
    """Report to `options.observe` the findings and choices of a login, without one.

    Raises:
        FlowFailed: A login would fail.
    """
    challenge = rejection.challenge if rejection else None
    if rejection is not None:
        observe_challenge(options, rejection, challenge)
    found = yield from discover(options, challenge)
    issuer_segment(options, found, choose_client(options, found, None))
    scopes = scope_parameter(options, found, select_scopes(options, challenge, found.scopes))
    server = found.server
    iss = server.authorization_response_iss_parameter_supported
    listed = ", ".join(server.token_endpoint_auth_methods_supported or ("client_secret_basic",))
    for topic, text in (
        ("authorization", f"resource={found.resource or 'left out'}"),
        ("authorization", f"iss {'is promised' if iss else 'is not promised'} in the redirect"),
        ("authorization", f"refresh tokens: {_refresh_text(server, scopes)}"),
        ("token", f"client authentication: {listed}"),
    ):
        options.observe(FlowFinding(topic, clean(text)))
    return found


def _refresh_text(server: ServerMetadata, scopes: Sequence[str]) -> str:
    if OFFLINE in scopes:
        return "asked for with offline_access"
    grants = server.grant_types_supported
    if grants is not None and "refresh_token" not in grants:
        return "not supported; each expiry of the access token needs a login"
    return "at the discretion of the authorization server"
