"""The claims of an access token, checked: RFC 7519, RFC 9068, and RFC 7662 for introspection.

All but the checks of claims run before the signature was verified, on input of an attacker.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec

from genmcp.core.access import Access, InvalidToken
from genmcp.core.auth.challenges import scopes_of
from genmcp.core.auth.strict_json import strict_object

# RFC 9068, 2.1, and RFC 7519, 5.1. All others are tokens for another purpose, such as a DPoP proof
# or an identity assertion, which may come from the same issuer (RFC 8725, 3.11).
_TYPES: Final = {"at+jwt", "jwt"}

# The end of the year 9999. A later time is one in milliseconds, or an attempt to overflow.
_MAX_TIME: Final = 253_402_300_799

_LEEWAY: Final = 30.0  # seconds by which the clocks of issuer and server may differ
_SHOWN: Final = 200  # characters of a found value in the log


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The demands on the claims of a token.

    Args:
        issuers: the accepted values of `iss`, compared as strings.
        audiences: the values of `aud` of which the token must have one. None accepts every token
            of the issuers, also those for other servers.
        clients: the accepted clients; default any.
        introspected: whether the claims are the response of the introspection endpoint of the first
            issuer, which may leave out `iss` and `exp`.
    """

    issuers: Collection[str]
    audiences: Collection[str] | None
    clients: Collection[str] = ()
    introspected: bool = False


def parse_object(text: bytes, part: str = "payload") -> dict[str, Any]:
    """Return the JSON object that is a *part* of a token.

    Raises:
        InvalidToken: it is not one, or not unambiguous.
    """
    try:
        return strict_object(text)
    except ValueError:
        raise InvalidToken(f"the {part} of the token is not a JSON object") from None


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
    issuer = claims.get("iss", next(iter(rules.issuers)) if rules.introspected else None)
    if not isinstance(issuer, str) or issuer not in rules.issuers:
        _refuse("iss", issuer, " or ".join(rules.issuers))
    if rules.audiences is not None:
        _check_audience(claims.get("aud"), rules.audiences)
    expires = _time(claims, "exp", required=not rules.introspected)
    if expires is not None and now >= expires + _LEEWAY:
        raise InvalidToken("the token has expired", f"exp is {expires:.0f}, now is {now:.0f}")
    for name in ("nbf", "iat"):
        if (time := _time(claims, name)) is not None and time > now + _LEEWAY:
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
