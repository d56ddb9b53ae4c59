"""The claims of an access token, checked: RFC 7519, RFC 9068, and RFC 7662 for introspection.

All but the checks of claims run before the signature was verified, on input of an attacker.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec

from genmcp._core.access import Access, InvalidToken
from genmcp._core.auth.challenges import scopes_of

# RFC 9068, 2.1, and RFC 7519, 5.1. All others are tokens for another purpose, such as a DPoP proof
# or an identity assertion, which may come from the same issuer (RFC 8725, 3.11).
_TYPES: Final = {"at+jwt", "jwt"}

# The end of the year 9999. A later time is one in milliseconds, or an attempt to overflow.
_MAX_TIME: Final = 253_402_300_799

_SHOWN: Final = 200  # characters of a found value in the log


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The demands on the claims of a token.

    Args:
        issuers: the accepted values of `iss`, compared as strings.
        audiences: the values of `aud` of which the token must have one. None accepts every token
            of the issuers, also those for other servers.
        clients: the accepted clients; default any.
        leeway: seconds by which clocks may differ, default 30.
        default_issuer: the issuer of a token that does not name it, for introspection.
        requires_expiry: whether a token without `exp` is refused, default True.
    """

    issuers: Collection[str]
    audiences: Collection[str] | None
    clients: Collection[str] = ()
    leeway: float = 30
    default_issuer: str | None = None
    requires_expiry: bool = True


def parse_object(text: bytes, what: str = "payload") -> dict[str, Any]:
    """Return a JSON object of a token: strict, since two readers must never differ.

    RFC 8725, 2.4: a parser that keeps the first of two members, and one that keeps the last, see
    different tokens. Duplicates, at any depth, `NaN` and infinities are refused.

    Raises:
        InvalidToken: it is not a JSON object in UTF-8.
    """
    try:
        found = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidToken(f"the {what} of the token is not a JSON object")
    return found


def check_type(header: Mapping[str, Any]) -> None:
    """Check that a header is that of an access token, by its `typ`. A token may have none.

    Raises:
        InvalidToken: it is that of another token.
    """
    kind = header.get("typ", "jwt")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES:
        _refuse("typ", kind, "at+jwt or JWT")


def check_header(header: Mapping[str, Any]) -> None:
    """Check the protected header of any signed token, before a key is looked for.

    Raises:
        InvalidToken: a member is malformed, or must be understood and is not.
    """
    # RFC 7515, 4.1.11: each name in it must be understood; there is none that is.
    if "crit" in header:
        _refuse("crit", header["crit"], "no critical extension")
    if header.get("b64", True) is not True:
        _refuse("b64", header["b64"], "an encoded payload")
    if not isinstance(header.get("alg"), str):
        _refuse("alg", header.get("alg"), "the name of an algorithm")
    if not isinstance(header.get("kid", ""), str):
        _refuse("kid", header["kid"], "a string")


def check_claims(claims: Mapping[str, Any], rules: Rules, now: float) -> Access:
    """Return the content of a token whose signature was verified, at the Unix time *now*.

    Raises:
        InvalidToken: a claim is missing, malformed, or not as *rules* demand. The error names the
            claim, and its detail has the found value of `iss`, `aud` or a time.
    """
    issuer = claims.get("iss", rules.default_issuer)
    if not isinstance(issuer, str) or issuer not in rules.issuers:
        _refuse("iss", issuer, " or ".join(rules.issuers))
    if rules.audiences is not None:
        _check_audience(claims.get("aud"), rules.audiences)
    expires = _time(claims, "exp", required=rules.requires_expiry)
    if expires is not None and now >= expires + rules.leeway:
        raise InvalidToken("the token has expired", f"exp is {expires:.0f}, now is {now:.0f}")
    for name in ("nbf", "iat"):
        if (time := _time(claims, name)) is not None and time > now + rules.leeway:
            detail = f"{name} is {time:.0f}, now is {now:.0f}"
            raise InvalidToken(f"the token is not valid yet ({name})", detail)
    _check_confirmation(claims)
    subject = _text(claims, "sub")
    # RFC 9068 has `client_id`, OpenID Connect `azp`, Okta `cid`.
    client = _text(claims, "client_id") or _text(claims, "azp") or _text(claims, "cid")
    if rules.clients and client not in rules.clients:
        _refuse("client_id", client, " or ".join(rules.clients))
    if subject is None and client is None:
        raise InvalidToken("the token names neither a subject nor a client", "no sub, no client_id")
    return Access(
        issuer=issuer,
        subject=subject,
        client_id=client,
        scopes=_scopes(claims),
        expires=expires,
        claims=MappingProxyType(dict(claims)),  # one value for all requests with the token
    )


def check_introspection(response: Mapping[str, Any], rules: Rules, now: float) -> Access:
    """Return the content of a token as the introspection endpoint describes it (RFC 7662, 2.2).

    Raises:
        InvalidToken: it is not active, or as for `check_claims`.
    """
    if response.get("active") is not True:
        raise InvalidToken("the token is not active", "active is not true")
    return check_claims(response, rules, now)


def _check_audience(found: object, audiences: Collection[str]) -> None:
    values = [found] if isinstance(found, str) else found
    if (
        not isinstance(values, list)
        or not all(isinstance(value, str) for value in values)
        or not any(value in audiences for value in values)
    ):
        _refuse("aud", found, " or ".join(audiences))


def _check_confirmation(claims: Mapping[str, Any]) -> None:
    """Refuse a token that is bound to a key by a method without a check here (RFC 7800)."""
    bound = claims.get("cnf")
    if bound is not None and not (isinstance(bound, dict) and set(bound) == {"jkt"}):
        raise InvalidToken("the token is bound to a key by an unsupported method (cnf)")


def _time(claims: Mapping[str, Any], name: str, *, required: bool = False) -> float | None:
    value = claims.get(name)
    if value is None:
        if required:
            _refuse(name, None, "a time")
        return None
    # A boolean is an int in Python, and no NumericDate (RFC 7519, 2).
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, value, "a number")
    if not 0 <= value <= _MAX_TIME:  # infinity neither, and comparing has no limit of digits
        _refuse(name, value, "seconds since 1970")
    return float(value)


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidToken(f"the claim {name} is not a string")
    return value or None


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes of `scope` (RFC 8693, 4.2) or `scp`; both occur as text and as a list."""
    name = "scope" if claims.get("scope") is not None else "scp"
    value = claims.get(name)
    if value is None:
        return frozenset()
    if isinstance(value, str):
        return frozenset(scopes_of(value))
    if not isinstance(value, list) or not all(isinstance(scope, str) for scope in value):
        raise InvalidToken(f"the claim {name} is neither text nor a list of texts")
    return frozenset(value) - {""}


def _refuse(name: str, found: object, expected: str) -> NoReturn:
    if found is None:  # absent, or null
        raise InvalidToken(f"the token has no {name}", f"expected: {expected}")
    shown = repr(found)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    raise InvalidToken(f"wrong {name}", f"found: {shown}; expected: {expected}")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is repeated")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
