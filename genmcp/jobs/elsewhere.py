"""Steps for which this process lacks the code, and another may have it: during a rolling deploy."""

import logging
from secrets import token_hex

import msgspec

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Ended
from genmcp.errors import InternalError, Raised

__all__ = ["Elsewhere", "pause_after"]

logger = logging.getLogger("genmcp")

_FIRST = 0.5
_LONGEST = 30.0


class Elsewhere(Exception):
    """A step that this process cannot take. Its text names what is unknown here, for the log.

    Args:
        told: the text for the client, where no process takes the step in time.
    """

    def __init__(self, unknown: str, told: str) -> None:
        super().__init__(unknown)
        self.told = told

    def outcome(self, seconds: float) -> bytes:
        """Return the outcome of a job that no process has taken for so many *seconds*, packed."""
        reference = self._log(seconds)
        return pack(Failed(Raised(reference, "UnknownJob", self.told)))

    def ended(self, seconds: float) -> Ended:
        """Return how a task ends that no process has continued for so many *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.told} (reference {reference})", reference=reference)
        shown = {"code": error.code, "message": error.message, "data": error.data}
        return Ended(error=msgspec.json.encode(shown))

    def _log(self, seconds: float) -> str:
        reference = token_hex(6)
        logger.error(
            "%s [%s]: no process has taken it for %g seconds (JobOptions.unknown_timeout)",
            self,
            reference,
            seconds,
        )
        return reference


def pause_after(passed: float) -> float:
    """Return after how many seconds a step is delivered again that was passed on for *passed*.

    Each pause is as long as all before it, up to half a minute: a process of the other release is
    found soon where there are any, and a backlog that nobody can work on costs little.
    """
    return min(max(_FIRST, passed), _LONGEST)
