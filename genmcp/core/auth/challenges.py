"""The header `WWW-Authenticate`: its challenges, read and written.

RFC 9110, 11.6.1, for the syntax; RFC 6750, 3, and RFC 9728, 5.1, for the parameters of `Bearer`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A quoted value, or one without quotes. The latter should be a token, but servers are known to send
# URLs without quotes.
_PARAM: Final = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME: Final = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|$)")
_TOKEN68: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_ESCAPED: Final = re.compile(r"\\(.)")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_SEPARATORS: Final = re.compile(r"[ \t,]+")

_MAX_CHALLENGES: Final = 16  # a response with more is broken, or an attempt to waste time


class Challenge(msgspec.Struct, frozen=True):
    """A challenge: its scheme, such as `Bearer`, and its parameters by lower-case names."""

    scheme: str
    params: Mapping[str, str] = {}

    def encode(self) -> str:
        """Return the value of a header. Values are quoted; text that is not ASCII becomes "?"."""
        params = ", ".join(f'{name}="{_quoted(value)}"' for name, value in self.params.items())
        return f"{self.scheme} {params}" if params else self.scheme


def bearer_challenge(
    error: str,
    description: str,
    scopes: Iterable[str],
    scheme: str = "Bearer",
    /,
    **further: str | None,
) -> str:
    """Return the header of a refusal (RFC 6750, 3; RFC 9449, 7.1, for the scheme `DPoP`).

    Args:
        error: the error code; empty for a request without credentials, whose challenge has neither
            code nor *description* (3.1).
        description: the error in words.
        scopes: the scopes that the operation needs.
        scheme: the scheme, `Bearer` or `DPoP`; both have the same parameters.
        further: more parameters, such as `resource_metadata` (RFC 9728, 5.1). None leaves one out.
    """
    params = {
        "error": error,
        "error_description": error and description,
        "scope": " ".join(dict.fromkeys(scopes)),
        **further,
    }
    return Challenge(scheme, {name: value for name, value in params.items() if value}).encode()


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """Return the challenges of all headers `WWW-Authenticate` of a response, in order.

    What does not follow the syntax is skipped. Of a parameter that is repeated, the first counts.
    """
    challenges: list[Challenge] = []
    for value in values:
        params: dict[str, str] | None = None  # those of the present challenge
        at = 0
        while at < len(value) and len(challenges) <= _MAX_CHALLENGES:
            if found := _SEPARATORS.match(value, at):
                at = found.end()
            elif params is not None and (found := _PARAM.match(value, at)):
                name, quoted, bare = found.groups()
                text = bare if quoted is None else _ESCAPED.sub(r"\1", quoted)
                params.setdefault(name.lower(), text)
                at = found.end()
            elif found := _SCHEME.match(value, at):
                params = {}
                challenges.append(Challenge(found[1], params))
                at = found.end()
                # `Negotiate oWc...`: a value without a name, which no scheme used here has.
                if (token := _TOKEN68.match(value, at)) and not _PARAM.match(value, at):
                    at = token.end()
            else:
                comma = value.find(",", at)
                at = len(value) if comma < 0 else comma
    return challenges[:_MAX_CHALLENGES]


def find_challenge(challenges: Iterable[Challenge], scheme: str) -> Challenge | None:
    """Return the first challenge with *scheme* in any case, or None."""
    return next((each for each in challenges if each.scheme.lower() == scheme.lower()), None)


def scopes_of(text: str | None) -> list[str]:
    """Return the scopes in a value of `scope`, without duplicates (RFC 6749, 3.3)."""
    return list(dict.fromkeys((text or "").split()))


def _quoted(value: str) -> str:
    return _UNPRINTABLE.sub("?", value).replace("\\", "\\\\").replace('"', '\\"')
