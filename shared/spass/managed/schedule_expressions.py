"""Check schedules in the language of EventBridge Scheduler, which refuses other ones only after the table was written.

Source: https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html. What that page leaves open (ranges that wrap
around, ``*`` in a list, lower case) is refused, because the service may refuse it.
"""

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from spass.core.errors import InvalidRequest
from spass.managed.records import Schedule

_RATE: Final = re.compile(r"rate\(([0-9]{1,9}) +(minute|hour|day)s?\)")
_CRON: Final = re.compile(r"cron\((\S+(?: +\S+)*)\)")
_AT: Final = re.compile(r"at\(([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})\)")
_MINUTES: Final = {"minute": 1, "hour": 60, "day": 24 * 60}
_MAX_RATE: Final = 9_999 * _MINUTES["day"]
_NOT_A_ZONE: Final = "Factory"  # the database's entry for a machine whose time zone was never set

_FORMS: Final = "Use rate(5 minutes), cron(0 9 ? * MON-FRI *) or at(2030-01-31T09:00:00)."
_LAST_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_schedule(schedule: Schedule, now: float) -> None:
    """Check a schedule before it is stored. ``now`` is in seconds since the epoch.

    Raises:
        InvalidRequest: the expression or the time zone is not valid, or the schedule would never run the agent.
    """
    zone = _zone(schedule.timezone)
    expression = schedule.expression
    if rate := _RATE.fullmatch(expression):
        _check_rate(int(rate[1]), rate[2])
    elif cron := _CRON.fullmatch(expression):
        _check_cron(cron[1].split(), datetime.fromtimestamp(now, zone).year)
    elif at := _AT.fullmatch(expression):
        if _moment(at[1], zone) <= now:
            raise _invalid(f'"{expression}" in {schedule.timezone} has passed. Use a time in the future.')
    else:
        raise _invalid(f"Schedule {_quote(expression)} is not valid. {_FORMS}")


def has_passed(schedule: Schedule, now: float) -> bool:
    """Return True if a valid schedule names one moment, and that is over."""
    at = _AT.fullmatch(schedule.expression)
    return at is not None and _moment(at[1], ZoneInfo(schedule.timezone)) <= now


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a cron expression: its name and the values that it may have. ``names`` are other texts for the first ones."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    steps: bool = True
    example: str = field(kw_only=True)

    def values(self, text: str) -> set[int]:
        """Return the values of a list of values, ranges and steps.

        Raises:
            InvalidRequest: the text is not such a list.
        """
        if text == "*":
            return set(range(self.first, self.last + 1))
        return {value for part in text.split(",") for value in self._part(part)}

    def value(self, text: str) -> int:
        """Return the number of one value. Raise ``InvalidRequest`` if the field cannot have it."""
        number = self.first + self.names.index(text) if text in self.names else _number(text)
        if number is None or not self.first <= number <= self.last:
            raise self.invalid(text)
        return number

    def invalid(self, text: str) -> InvalidRequest:
        names = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        values = f"{self.first}-{self.last}{names}"
        return _invalid(
            f"{_quote(text)} is not valid as {self.name} of a cron schedule. Use {values}, or for example {self.example}."
        )

    def _part(self, part: str) -> range:
        start, slash, step = part.partition("/")
        every = _number(step) if slash else 1
        if every is None or not 1 <= every <= self.last or (slash and not self.steps):
            raise self.invalid(part)
        if start == "*" and slash:
            return range(self.first, self.last + 1, every)
        first, dash, last = start.partition("-")
        low = self.value(first)
        high = self.value(last) if dash else self.last if slash else low
        if low > high:
            raise self.invalid(part)
        return range(low, high + 1, every)


_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MINUTE: Final = _Field("the minutes", 0, 59, example="0, 0,30, 10-20 or 0/15")
_HOUR: Final = _Field("the hours", 0, 23, example="9, 8-17 or 0/6")
_DAY_OF_MONTH: Final = _Field("the day of the month", 1, 31, example="1,15, 1-7, 1/2, L, 15W, * or ?")
_MONTH: Final = _Field("the month", 1, 12, _MONTHS, example="1, JAN,JUL, 4-9, 1/3 or *")
_DAY_OF_WEEK: Final = _Field("the day of the week", 1, 7, _WEEKDAYS, steps=False, example="MON-FRI, 2#1, 6L, * or ?")
_YEAR: Final = _Field("the year", 1970, 2199, example="2030, 2030-2035, 2030/2 or *")


def _check_rate(value: int, unit: str) -> None:
    if not 1 <= value * _MINUTES[unit] <= _MAX_RATE:
        raise _invalid(f"rate({value} {unit}s) is not valid. Use 1 minute to 9999 days.")


def _check_cron(fields: list[str], this_year: int) -> None:
    if len(fields) != 6:
        raise _invalid(
            f"A cron schedule has 6 fields (minutes, hours, day of month, month, day of week, year), as in"
            f" cron(0 9 * * ? *); this one has {len(fields)}."
        )
    minutes, hours, day, month, weekday, year = fields
    _MINUTE.values(minutes)
    _HOUR.values(hours)
    months = _MONTH.values(month)
    if (day == "?") == (weekday == "?"):
        raise _invalid(
            "Exactly one of the day of the month and the day of the week of a cron schedule must be ?, as in cron(0 9 * * ? *)."
        )
    if weekday == "?":
        if _first_day(day) > max(_LAST_DAYS[number - 1] for number in months):
            raise _invalid("This cron schedule names a day that its months do not have.")
    else:
        _check_weekday(weekday)
    if max(_YEAR.values(year)) < this_year:
        raise _invalid("The years of this cron schedule have passed.")


def _first_day(text: str) -> int:
    """Return the first day of the month that the field names, or a day that every month has."""
    if text in ("L", "LW"):
        return 1
    if text.endswith("W"):
        return _DAY_OF_MONTH.value(text.removesuffix("W"))
    return min(_DAY_OF_MONTH.values(text))


def _check_weekday(text: str) -> None:
    day, sign, instance = text.partition("#")
    if sign:
        _DAY_OF_WEEK.value(day)
        if instance not in ("1", "2", "3", "4", "5"):
            raise _DAY_OF_WEEK.invalid(text)
    elif text.endswith("L"):
        if text != "L":
            _DAY_OF_WEEK.value(text.removesuffix("L"))
    else:
        _DAY_OF_WEEK.values(text)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _moment(text: str, zone: ZoneInfo) -> float:
    try:
        local = datetime.fromisoformat(text)
        moment = local.replace(tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(f"at({text}) is not a date and time.") from None
    if moment.astimezone(zone).replace(tzinfo=None) != local:
        raise _invalid(f"at({text}) does not exist in {zone.key}: the clocks are put forward over it. Use another time.")
    return moment.timestamp()


@cache
def _zone_names() -> frozenset[str]:
    """Return the names of the IANA database. The folders of a machine's own database hold other files too."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split()) - {_NOT_A_ZONE}


def _zone(name: str) -> ZoneInfo:
    if name not in _zone_names():
        raise InvalidRequest(
            f"There is no time zone {_quote(name)}. Use an IANA name such as Europe/Berlin, America/New_York or UTC.",
            param="schedule.timezone",
        )
    return ZoneInfo(name)


def _quote(text: str) -> str:
    """Return a text of the caller for a message, without control characters."""
    return json.dumps(text[:64])


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="schedule.expression")
