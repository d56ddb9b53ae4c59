"""Masking of secrets in URLs, commands and headers, for errors, log records and `repr`.

Errors and logs reach more readers than a configuration: a model, a ticket, a log service.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

__all__ = ["MASK", "masked_command", "masked_url", "masked_values", "shown"]

MASK: Final = "***"


def masked_url(url: str) -> str:
    """Return *url* with its user information and query masked, and without its fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    _user, at, host = parts.netloc.rpartition("@")
    path = parts.path
    if not parts.netloc and "@" in path:  # not a URL, but a mistyped one may hold a password
        path = f"{MASK}@{path.rpartition('@')[2]}"
    query = MASK if parts.query else ""
    return urlunsplit((parts.scheme, f"{MASK}@{host}" if at else host, path, query, ""))


def masked_command(command: str, args: Iterable[str]) -> str:
    """Return *command* with its arguments masked: they may be tokens or passwords."""
    return f"{command} {MASK}" if [*args] else command


def masked_values(values: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """Return *values*, headers or environment variables, with the names kept and values masked."""
    return None if values is None else dict.fromkeys(values, MASK)


def shown(name: str, values: Mapping[str, Any]) -> str:
    """Return a `repr` of the class *name* with those of *values* that are not None or empty."""
    given = (f"{key}={value!r}" for key, value in values.items() if value not in (None, (), {}))
    return f"{name}({', '.join(given)})"
