"""TaskRunner for which only other processes may have the code, as during a rolling deploy."""

import logging
from secrets import token_hex

import msgspec

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Finished
from genmcp.errors import InternalError, Raised

__all__ = ["Elsewhere", "pause_after"]

logger = logging.getLogger("genmcp")

_FIRST = 0.5
_LONGEST = 30.0


class Elsewhere(Exception):
    """A step that this process cannot take. The text names what is unknown, for the log.

    Args:
        unknown: what is unknown in this process.
        told: the text for the client, if no process takes the step in time.
    """

    def __init__(self, unknown: str, told: str) -> None:
        super().__init__(unknown)
        self.told = told

    def outcome(self, seconds: float) -> bytes:
        """Return the packed outcome of a job that no process has taken for *seconds*."""
        reference = self._log(seconds)
        return pack(Failed(Raised(reference, "UnknownJob", self.told)))

    def ended(self, seconds: float) -> Finished:
        """Return the end of a task that no process has continued for *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.told} (reference {reference})", reference=reference)
        shown = {"code": error.code, "message": error.message, "data": error.data}
        return Finished(error=msgspec.json.encode(shown), raised=True)

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
    """Return the seconds before the next delivery of a step that was *passed* on for so long.

    Each pause equals the sum of those before it, up to 30 seconds: a process of the other release
    is found soon if there is one, and a backlog that no process can work on costs little.
    """
    return min(max(_FIRST, passed), _LONGEST)
