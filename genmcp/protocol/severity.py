"""How severe a log message is: the levels of RFC 5424, as 2026-07-28, "Logging" names them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

__all__ = ["SEVERITY", "LoggingLevel"]

LoggingLevel = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]

#: The place of each level in the order of severity: the greater, the worse.
SEVERITY: Final[Mapping[LoggingLevel, int]] = MappingProxyType(
    {level: place for place, level in enumerate(get_args(LoggingLevel))}
)
