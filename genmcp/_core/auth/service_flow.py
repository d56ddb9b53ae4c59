"""The flow of a client without a person: a service, a workload, or an employee who is signed in.

    ==================  ===============================================================
    `usable_service`    the record for the next request, with a new token ahead of its expiry
    `rejected_service`  the record for another attempt after a response with 401 or 403
    ==================  ===============================================================

Both request tokens with a grant: a generator that returns the parameters of a token request. There
is no refresh token: the grant is used again. An error of the token endpoint ends the attempt; no
other grant is tried.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from genmcp._core.auth.authorization_request import select_scopes
from genmcp._core.auth.challenges import scopes_of
from genmcp._core.auth.discovery import discover, find_server
from genmcp._core.auth.fetching import shown
from genmcp._core.auth.flow import (
    RejectedAttempt,
    fits,
    is_newer,
    lives,
    observe_challenge,
)
from genmcp._core.auth.grants import (
    ID_JAG,
    bearer_request,
    credentials_request,
    exchange_request,
)
from genmcp._core.auth.record import Record, RegisteredClient
from genmcp._core.auth.registration import choose_client, own_client
from genmcp._core.auth.steps import (
    Call,
    Failure,
    FlowFailed,
    FlowFinding,
    FlowOptions,
    Load,
    Steps,
    Swap,
)
from genmcp._core.auth.token_request import (
    new_record,
    request_token,
    store,
    with_tokens,
)

_MAX_ATTEMPTS: Final = 3  # after which a request that is rejected fails

Supply: TypeAlias = Callable[[], object]
"""A function of the user, `async` or not, that returns an assertion."""


class GrantTarget(msgspec.Struct, frozen=True):
    """What a token is requested for.

    Args:
        issuer: the authorization server.
        resource: the MCP server, None to leave the parameter out.
        scopes: the scopes to ask for.
    """

    issuer: str
    resource: str | None
    scopes: Sequence[str]


Grant: TypeAlias = Callable[[GrantTarget], Steps[Mapping[str, str]]]
"""Returns the parameters of a token request."""


def by_credentials(target: GrantTarget) -> Steps[Mapping[str, str]]:
    """Grant of a service: its authentication is all that is needed (RFC 6749, 4.4)."""
    yield from ()
    return credentials_request(target.resource, target.scopes)


def by_assertion(assertion: Supply) -> Grant:
    """Return the grant of a workload, with an assertion of its platform (RFC 7523, 2.1)."""

    def grant(target: GrantTarget) -> Steps[Mapping[str, str]]:
        text = yield from _supplied(assertion, "assertion")
        return bearer_request(text, target.resource, target.scopes)

    return grant


def by_exchange(
    idp: FlowOptions, token_endpoint: str | None, subject: Supply, subject_type: str
) -> Grant:
    """Return the grant of an employee who is signed in at the identity provider of a company.

    Enterprise-Managed Authorization, 4 and 5: the identity provider exchanges the assertion of the
    sign-in for another one, an ID-JAG, which the authorization server takes as a grant.

    Args:
        idp: the options of the client at the identity provider, whose issuer is their `url`.
        token_endpoint: its token endpoint; None: that of its metadata.
        subject: returns the ID token or SAML assertion.
        subject_type: its type, as in `exchange_request`.
    """

    def grant(target: GrantTarget) -> Steps[Mapping[str, str]]:
        text = yield from _supplied(subject, "id_token")
        params = exchange_request(
            text,
            subject_type,
            audience=target.issuer,
            resource=target.resource,
            scopes=target.scopes,
        )
        try:
            record = yield from _at_provider(idp, token_endpoint)
            response = yield from request_token(idp, record, params, token_types=("n_a",))
            if response.issued_token_type != ID_JAG:
                kind = shown(response.issued_token_type)
                raise FlowFailed(f"it issued a token of the type {kind}, not an ID-JAG")
        except FlowFailed as failed:
            message = f"the identity provider {shown(idp.url)} gave no ID-JAG: {failed}"
            raise FlowFailed(message, failed.failure, error=failed.error) from None
        return bearer_request(response.access_token, target.resource, target.scopes)

    return grant


def usable_service(
    options: FlowOptions, grant: Grant, held: Record | None = None
) -> Steps[Record | None]:
    """Return the record for the next request; None if there is no token yet.

    Args:
        options: the options of the client.
        grant: the grant.
        held: the record of the request before, None for the first one.

    Raises:
        FlowFailed: The token has expired, and the request for another one failed.
    """
    if held is not None and lives(options, held):
        return held
    stored: Record | None = yield Load()
    if stored is None or stored.access_token is None or not fits(options, stored):
        return None
    if lives(options, stored):
        return stored
    try:
        return (yield from _requested(options, grant, stored, stored.requested))
    except FlowFailed as failed:
        options.observe(FlowFinding("token", str(failed), stored.token_endpoint, ok=False))
        if stored.expires is None or stored.expires > options.now():
            return stored
        if failed.failure is not Failure.UNAVAILABLE:
            # The server may have another authorization server by now, which the next request finds.
            yield Swap(stored, stored.without_tokens())
        raise


def rejected_service(
    options: FlowOptions, grant: Grant, rejection: RejectedAttempt
) -> Steps[Record | None]:
    """Return the record to repeat a rejected request with; None if it fails as it is.

    401: the token that another process has stored meanwhile, else a new one. 403 with
    `insufficient_scope`: a token with more scopes.

    Raises:
        FlowFailed: There is no token.
    """
    used, challenge = rejection.used, rejection.challenge
    if rejection.attempt > _MAX_ATTEMPTS:
        return None
    stored: Record | None = yield Load()
    if stored is not None and not fits(options, stored):
        stored = None
    asked: Sequence[str] = stored.requested if stored else ()
    if rejection.status == 403:
        if challenge is None or challenge.params.get("error") != "insufficient_scope":
            return None
        needed = scopes_of(challenge.params.get("scope"))
        if stored and is_newer(options, stored, used) and set(needed) <= set(stored.scopes):
            return stored  # another process has asked for them
        known = (*used.requested, *used.scopes) if used else ()
        if set(needed) <= set(known):
            return None
        asked = (*known, *needed)
    elif rejection.status != 401:
        return None
    elif stored and is_newer(options, stored, used):
        return stored
    elif used is not None and rejection.attempt > 1:
        return None  # the token is new
    observe_challenge(options, rejection, challenge)
    found = yield from discover(options, challenge, code=False)
    # A server that has moved to another authorization server gets no credentials of the first one.
    client = RegisteredClient(id="")
    if options.client_id is not None:
        chosen = choose_client(options, found, stored)
        if chosen is None:
            raise FlowFailed(
                f"the authorization server {shown(found.issuer)} does not know the client",
                Failure.REGISTRATION,
                advice="client_id= with the id that its operator gives you",
            )
        client = chosen
    scopes = select_scopes(options, challenge, found.scopes, asked)
    return (yield from _requested(options, grant, new_record(found, client), scopes))


def _requested(
    options: FlowOptions, grant: Grant, record: Record, scopes: Sequence[str]
) -> Steps[Record]:
    """Request a token for the client of *record*, and store it."""
    params = yield from grant(GrantTarget(record.issuer, record.resource, scopes))
    if options.prover is not None:
        options.prover.use(record.dpop_key)
    record = msgspec.structs.replace(record, requested=tuple(scopes), scopes=())
    response = yield from request_token(options, record, params)
    # A refresh token would be one more secret, and saves nothing (RFC 6749, 4.4.3).
    response = msgspec.structs.replace(response, refresh_token=None)
    return (yield from store(options, with_tokens(options, record, response)))


def _at_provider(idp: FlowOptions, token_endpoint: str | None) -> Steps[Record]:
    """Return a record for requests to the identity provider."""
    if token_endpoint is not None:
        method = "client_secret_basic" if idp.client_secret is not None else "none"
        method = method if idp.sign is None else "private_key_jwt"
        client = RegisteredClient(id=idp.client_id or "", method=method)
        return Record(issuer=idp.url, token_endpoint=token_endpoint, client=client)
    server = yield from find_server(idp, None, code=False)
    known = own_client(idp, server) or RegisteredClient(id="")
    return Record(issuer=idp.url, token_endpoint=server.token_endpoint or "", client=known)


def _supplied(supply: Supply, option: str) -> Steps[str]:
    text: object = yield Call(supply)
    if not isinstance(text, str) or not text.strip():
        raise FlowFailed(f"the function {option} must return a text, not {type(text).__name__}")
    return text.strip()
