"""When jobs run periodically: the public `Schedule`, and cron expressions."""

from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from genmcp._core.waiting import Job
from genmcp.errors import ConfigurationError

_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 7),
)
_SHORTEST: Final = 0.1  # seconds between two occurrences
_SEARCHED_DAYS: Final = 366 * 9  # 29 February is absent for eight years around 2100


class Schedule(msgspec.Struct, frozen=True):
    """A job that runs periodically: `JobOptions(schedules=[Schedule(clean.job(), every=3600)])`.

    Each occurrence runs once in all processes that share the store. No client sees it.

    Args:
        job: the job, with its arguments.
        every: the seconds between two occurrences, which are at multiples of this since 1970.
        cron: a cron expression in place of *every*: five fields of numbers (`CronTimes`).
        time_zone: the IANA name of the time zone of *cron*. Default "UTC".
        name: identifies the schedule in the deployment. Default: the name of the job.

    Raises:
        ConfigurationError: an option is wrong.
    """

    job: Job
    every: float | None = None
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
        if self.every is not None and not self.every >= _SHORTEST:
            raise ConfigurationError(
                f"Schedule {self.id}: every must be at least {_SHORTEST} seconds, "
                f"not {self.every!r}"
            )
        if self.cron is not None:
            self._times()

    @property
    def id(self) -> str:
        """The name, by default that of the job."""
        return self.name or self.job.name

    @property
    def times(self) -> str:
        """A text that is equal in two processes if their occurrences are at the same times."""
        if self.every is not None:
            return f"every {self.every:g} seconds"
        return f"cron {self.cron} in {self.time_zone}"

    def after(self, moment: float) -> float:
        """Return the first occurrence after *moment*, both in Unix time."""
        if self.every is not None:
            # In milliseconds, as in the ids of occurrences: equal in every process.
            period = round(self.every * 1000)
            return (round(moment * 1000) // period + 1) * period / 1000
        return self._times().after(moment)

    def _times(self) -> "CronTimes":
        try:
            zone = ZoneInfo(self.time_zone)
        except (LookupError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"Schedule {self.id}: there is no time zone {self.time_zone!r} here: give an IANA "
                f"name; a system without time zones needs `pip install tzdata`"
            ) from error
        return CronTimes(self.cron or "", zone)


class CronTimes:
    """The times that a cron expression stands for.

    The fields are minute, hour, day of the month, month, and day of the week (0 or 7: Sunday). Each
    is `*`, or a list of numbers and ranges, each with an optional step: `*/15`, `8-18/2`, `1,15`.
    If both days are restricted, either of them is sufficient, as in crontab(5).

    Args:
        expression: the five fields, separated by spaces.
        zone: the time zone. A time that a change to summer time skips is skipped; one that occurs
            twice counts when it occurs first.

    Raises:
        ConfigurationError: the expression is invalid, or no time matches it.
    """

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        fields = expression.split()
        if len(fields) != len(_FIELDS):
            names = ", ".join(name for name, _, _ in _FIELDS)
            raise ConfigurationError(f"cron {expression!r} must have five fields: {names}")
        parsed = [
            _numbers(expression, field, *limits)
            for field, limits in zip(fields, _FIELDS, strict=True)
        ]
        self._minutes, self._hours = sorted(parsed[0]), sorted(parsed[1])
        self._days, self._months = parsed[2], parsed[3]
        self._weekdays = {each % 7 for each in parsed[4]}
        self._any_day, self._any_weekday = fields[2].startswith("*"), fields[4].startswith("*")
        self._zone = zone
        days = (date(2024, 1, 1) + timedelta(number) for number in range(_SEARCHED_DAYS))
        if not any(map(self._matches, days)):
            raise ConfigurationError(f"cron {expression!r}: there is no such day")

    def after(self, moment: float) -> float:
        """Return the first of the times that is later than *moment*, both in Unix time."""
        day = datetime.fromtimestamp(moment, self._zone).date()
        for number in range(_SEARCHED_DAYS):
            for found in self._times(day + timedelta(number)):
                if found > moment:
                    return found
        raise AssertionError("a valid expression has a time in nine years")

    def _times(self, day: date) -> Iterator[float]:
        if not self._matches(day):
            return
        for hour in self._hours:
            for minute in self._minutes:
                local = datetime.combine(day, time(hour, minute), self._zone)
                # Converted there and back: a time that does not exist becomes another one.
                instant = local.astimezone(UTC)
                if instant.astimezone(self._zone).time() == local.time():
                    yield instant.timestamp()

    def _matches(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        if self._any_day or self._any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


def _numbers(expression: str, field: str, name: str, first: int, last: int) -> Collection[int]:
    """Return the numbers that a *field* of *expression* stands for.

    Raises:
        ConfigurationError: the field is invalid.
    """
    found: set[int] = set()
    for part in field.split(","):
        range_, slash, step = part.partition("/")
        start, dash, end = range_.partition("-")
        try:
            low = first if range_ == "*" else int(start)
            high = int(end) if dash else last if range_ == "*" or slash else low
            numbers = range(low, high + 1, int(step) if slash else 1)
        except ValueError:
            numbers = range(0)
        if not numbers or numbers[0] < first or high > last:
            raise ConfigurationError(
                f"cron {expression!r}: {part!r} is not a {name} from {first} to {last}, a range of "
                f"these, or *, each with an optional step such as */5"
            )
        found.update(numbers)
    return found
