"""When jobs run periodically: the public `Schedule`."""

from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from genmcp._options import check_bounds
from genmcp.core.waiting import Job
from genmcp.errors import ConfigurationError


class Schedule(msgspec.Struct, frozen=True):
    """A job that runs periodically: `JobOptions(schedules=[Schedule(clean.job(), every=3600)])`.

    Each occurrence runs once in all processes that share the store. No client sees it.

    Args:
        job: the job, with its arguments.
        every: the seconds between two occurrences, which are at multiples of this since 1970.
        cron: a cron expression in place of *every*, as the library cronsim reads it: five fields as
            in crontab(5), or six with seconds as the first.
        time_zone: the IANA name of the time zone of *cron*. Default "UTC". A time that a change to
            summer time skips is skipped; one that occurs twice counts when it occurs first.
        name: identifies the schedule in the deployment. Default: the name of the job.

    Raises:
        ConfigurationError: an option is wrong.
    """

    job: Job
    every: Annotated[float, msgspec.Meta(ge=0.1)] | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.job, Job):
            raise ConfigurationError(
                f"Schedule takes a job, made by a function with @job: clean.job(), not {self.job!r}"
            )
        if (self.every is None) == (self.cron is None):
            raise ConfigurationError(f"Schedule {self.id}: give either every= or cron=")
        check_bounds(self, f"Schedule {self.id}: ")
        if self.cron is not None:
            self._check_cron(self.cron)

    @property
    def id(self) -> str:
        """The name, by default that of the job."""
        return self.name or self.job.name

    def after(self, moment: float) -> float:
        """Return the first occurrence after *moment*, both in Unix time."""
        if self.every is not None:
            # In milliseconds, as in the ids of occurrences: equal in every process.
            period = round(self.every * 1000)
            return (round(moment * 1000) // period + 1) * period / 1000
        zone = ZoneInfo(self.time_zone)
        # The library gets local times without their zone: with it, it would move a time that does
        # not exist to the end of the gap.
        local = datetime.fromtimestamp(moment, zone).replace(tzinfo=None)
        for each in CronSim(self.cron or "", local):
            found = each.replace(tzinfo=zone)
            exists = found.astimezone(UTC).astimezone(zone) == found
            if exists and found.timestamp() > moment:
                return found.timestamp()
        raise AssertionError("an expression with one time has more")

    def _check_cron(self, expression: str) -> None:
        try:
            ZoneInfo(self.time_zone)
        except (LookupError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"Schedule {self.id}: there is no time zone {self.time_zone!r} here: give an IANA "
                f"name; a system without time zones needs `pip install tzdata`"
            ) from error
        try:
            next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ConfigurationError(f"Schedule {self.id}: cron {expression!r}: {error}") from error
        except StopIteration:
            raise ConfigurationError(
                f"Schedule {self.id}: cron {expression!r}: there is no such day in 50 years"
            ) from None
