"""URLs, commands and headers as errors, warnings and `repr` show them: without secrets.

Errors and logs travel further than a configuration: to a model, a ticket, a log service.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

__all__ = ["MASK", "masked_command", "masked_url", "masked_values", "shown"]

MASK: Final = "***"


def masked_url(url: str) -> str:
    """Return *url* without its user information and its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    _user, at, host = parts.netloc.rpartition("@")
    path = parts.path
    if not parts.netloc and "@" in path:  # no URL, but what somebody took for one
        path = f"{MASK}@{path.rpartition('@')[2]}"
    query = MASK if parts.query else ""
    return urlunsplit((parts.scheme, f"{MASK}@{host}" if at else host, path, query, ""))


def masked_command(command: str, args: Iterable[str]) -> str:
    """Return *command* without its arguments, which may be tokens and passwords."""
    return f"{command} {MASK}" if [*args] else command


def masked_values(values: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """Return *values*, headers or variables, with their names alone."""
    return None if values is None else dict.fromkeys(values, MASK)


def shown(name: str, values: Mapping[str, Any]) -> str:
    """Return the `repr` of a *name* with those of *values* that are not None or empty."""
    given = (f"{key}={value!r}" for key, value in values.items() if value not in (None, (), {}))
    return f"{name}({', '.join(given)})"
