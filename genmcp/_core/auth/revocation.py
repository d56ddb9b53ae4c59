"""Logout: the tokens are revoked (RFC 7009), and the record is removed."""

from urllib.parse import urlencode

import msgspec

from genmcp._core.auth.fetching import check_url, is_public_only, unavailable
from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import (
    Fetch,
    Fetched,
    FlowFailed,
    FlowOptions,
    Load,
    Lock,
    Steps,
    Swap,
    Unlock,
)
from genmcp._core.auth.token_request import authenticated, error_in


class LoggedOut(msgspec.Struct, frozen=True):
    """The outcome of a logout. In any case no record is stored any more.

    Args:
        record: the record that was removed, None if there was none.
        problems: why a token may still be valid: a sentence for each.
    """

    record: Record | None = None
    problems: tuple[str, ...] = ()


def log_out(options: FlowOptions) -> Steps[LoggedOut]:
    """Revoke the tokens of the stored record, and remove it, also if they cannot be revoked.

    Under the lock, so that no process renews the tokens between the two.
    """
    yield Lock()
    record: Record | None = yield Load()
    if record is None:
        yield Swap(None, None)
        outcome = LoggedOut()
    else:
        problems = yield from _revoke(options, record)
        removed = record
        # A login of another process needs no lock. What it stored is removed, but not revoked.
        while not (yield Swap(removed, None)):
            removed = yield Load()
        outcome = LoggedOut(record, tuple(problems))
    yield Unlock()
    return outcome


def _revoke(options: FlowOptions, record: Record) -> Steps[list[str]]:
    """Revoke the refresh token, and then the access token, which may be independent of it."""
    tokens = {"refresh_token": record.refresh_token, "access_token": record.access_token}
    held = {hint: token for hint, token in tokens.items() if token}
    if record.revocation_endpoint is None:
        if not held:
            return []
        text = "the authorization server has no revocation endpoint: the tokens remain valid until"
        return [f"{text} they expire"]
    problems = []
    for hint, token in held.items():
        try:
            problem = yield from _revoke_one(options, record, hint, token)
        except FlowFailed as failed:
            problem = str(failed)
        if problem:
            problems.append(f"the {hint.replace('_', ' ')} was not revoked: {problem}")
    return problems


def _revoke_one(options: FlowOptions, record: Record, hint: str, token: str) -> Steps[str]:
    """Return why *token* was not revoked, "" if it was."""
    endpoint = check_url(options, record.revocation_endpoint or "", "revocation_endpoint")
    headers, form = authenticated(options, record, {"token": token, "token_type_hint": hint})
    response: Fetched = yield Fetch(
        url=endpoint,
        method="POST",
        headers=headers,
        body=urlencode(form).encode(),
        limit=options.max_document,
        public_only=is_public_only(options, endpoint),
    )
    if failed := unavailable("the revocation endpoint", response):
        return str(failed)
    # RFC 7009, 2.2: 200 also for a token that the server does not know.
    held = (record.refresh_token, record.access_token, record.client.secret, options.client_secret)
    secrets = [each for each in held if each]
    return "" if response.status == 200 else error_in(response, secrets)[1]
