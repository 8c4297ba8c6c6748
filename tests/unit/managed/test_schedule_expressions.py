"""Schedules are accepted exactly if EventBridge Scheduler documents them, and if they will ever run the agent."""

from datetime import UTC, datetime

import pytest

from spass.core.errors import InvalidRequest
from spass.managed.records import Schedule
from spass.managed.schedule_expressions import check_schedule, has_passed

NOW = datetime(2026, 11, 23, 9, 0, tzinfo=UTC).timestamp()


def cron(minutes: str = "0", hours: str = "9", day: str = "*", month: str = "*", weekday: str = "?", year: str = "*") -> str:
    return f"cron({minutes} {hours} {day} {month} {weekday} {year})"


RATES = [
    "rate(1 minute)",
    "rate(1 minutes)",  # the console of EventBridge Scheduler writes the plural
    "rate(5 minutes)",
    "rate(5 minute)",
    "rate(90 minutes)",
    "rate(1 hour)",
    "rate(1 hours)",
    "rate(24 hours)",
    "rate(1 day)",
    "rate(7 days)",
    "rate(9999 days)",
    "rate(525600 minutes)",
]
TIMES = [
    "at(2026-11-23T09:00:01)",
    "at(2026-11-23T10:00:00)",
    "at(2027-01-31T23:59:59)",
    "at(2028-02-29T00:00:00)",
    "at(2199-12-31T23:59:00)",
]
DOCUMENTED = [
    # The examples of the user guide of EventBridge and of EventBridge Scheduler.
    "cron(0 10 * * ? *)",
    "cron(15 12 * * ? *)",
    "cron(0 18 ? * MON-FRI *)",
    "cron(0 8 1 * ? *)",
    "cron(0/15 * * * ? *)",
    "cron(0/10 * ? * MON-FRI *)",
    "cron(0/5 8-17 ? * MON-FRI *)",
    "cron(0/30 20-23 * * ? *)",
    "cron(0/30 0-2 ? * MON-FRI *)",
    "cron(15 10 ? * 6L 2026-2027)",
    "cron(0 0 ? * 3#2 *)",
    "cron(5,35 14 * * ? *)",
]
MINUTES = "0 00 5 05 59 * 0,30 0,15,30,45 10-20 0-59 */5 0/5 30/10 10-40/10 0,10-20,40/5"
HOURS = "0 9 09 23 * 8-17 0,12 */2 0/6 8-18/2 9,13-17 23/1"
DAYS = "1 15 31 * 1,15 1-7 1/2 */3 L LW 1W 15W 31W 28-31 1,10-20/5"
MONTHS = "1 12 01 * JAN DEC JAN,JUL 1,4,7,10 4-9 APR-SEP 1/3 */2 JAN-3 NOV,12"
WEEKDAYS = "1 7 SUN SAT * MON-FRI 2-6 MON,WED,FRI 1,7 SUN,3-5 L 1L 6L FRIL 2#1 3#5 MON#3"
YEARS = "2026 2199 * 2026,2028 2026-2030 2020-2026 2026/2 1970-2199 */4 2000/50"

VALID = [
    *RATES,
    *TIMES,
    *DOCUMENTED,
    *(cron(minutes=one) for one in MINUTES.split()),
    *(cron(hours=one) for one in HOURS.split()),
    *(cron(day=one) for one in DAYS.split()),
    *(cron(month=one) for one in MONTHS.split()),
    *(cron(day="?", weekday=one) for one in WEEKDAYS.split()),
    *(cron(year=one) for one in YEARS.split()),
    "cron(0  9  *  *  ?  *)",
    cron(day="29", month="FEB"),
    cron(day="30", month="2,4"),
    cron(day="31", month="1,2"),
]

NOT_A_SCHEDULE = [
    "",
    " ",
    "daily",
    "@daily",
    "@every 5m",
    "5 minutes",
    "0 9 * * *",
    "0 9 * * ? *",
    "cron",
    "cron()",
    "cron( )",
    "cron(0 9 * * ? *",
    "cron 0 9 * * ? *",
    " cron(0 9 * * ? *)",
    "cron(0 9 * * ? *) ",
    "cron( 0 9 * * ? *)",
    "cron(0 9 * * ? * )",
    "cron(0\t9\t*\t*\t?\t*)",
    "cron(0 9 * * ? *)\n",
    "CRON(0 9 * * ? *)",
    "Cron(0 9 * * ? *)",
    "cron(0 9 * * ? *);rate(1 minute)",
    "rate",
    "rate()",
    "rate(minute)",
    "rate(minutes 5)",
    "rate(5)",
    "rate(5minutes)",
    "rate( 5 minutes)",
    "rate(5 minutes )",
    "rate(5 Minutes)",
    "RATE(5 minutes)",
    "rate(5 seconds)",
    "rate(1 second)",
    "rate(1 week)",
    "rate(1 weeks)",
    "rate(1 month)",
    "rate(1 year)",
    "rate(-5 minutes)",
    "rate(+5 minutes)",
    "rate(1.5 hours)",
    "rate(1e3 minutes)",
    "rate(five minutes)",
    "rate(٥ minutes)",
    "rate(5 minutes 1 hour)",
    "rate(5 minutes)rate(5 minutes)",
    "at",
    "at()",
    "at(now)",
    "at(tomorrow)",
    "at(2030-01-31)",
    "at(2030-01-31T09:00)",
    "at(2030-01-31 09:00:00)",
    "at(2030-01-31T09:00:00Z)",
    "at(2030-01-31T09:00:00+01:00)",
    "at(2030-01-31T09:00:00.5)",
    "at(2030-1-31T09:00:00)",
    "at(30-01-31T09:00:00)",
    "at(20300131T090000)",
    "at( 2030-01-31T09:00:00)",
    "AT(2030-01-31T09:00:00)",
]
WRONG_RATES = ["rate(0 minutes)", "rate(00 minutes)", "rate(0 days)", "rate(10000 days)", "rate(999999999 days)"]
WRONG_TIMES = [
    "at(2026-11-23T09:00:00)",
    "at(2026-11-23T08:59:59)",
    "at(2020-01-01T00:00:00)",
    "at(1970-01-01T00:00:00)",
    "at(0001-01-01T00:00:00)",
    "at(0000-01-01T00:00:00)",
    "at(2030-02-29T00:00:00)",
    "at(2030-13-01T00:00:00)",
    "at(2030-00-01T00:00:00)",
    "at(2030-01-32T00:00:00)",
    "at(2030-01-01T24:00:00)",
    "at(2030-01-01T00:60:00)",
    "at(2030-01-01T00:00:60)",
]
WRONG_COUNTS = [
    "cron(*)",
    "cron(0 9)",
    "cron(0 9 * * ?)",
    "cron(0 9 * * *)",
    "cron(*/5 * * * *)",
    "cron(0 0 9 * * ? *)",
    "cron(0 9 * * ? * *)",
]
BOTH_DAYS = [
    cron(day="*", weekday="*"),
    cron(day="?", weekday="?"),
    cron(day="1", weekday="MON"),
    cron(day="*", weekday="MON"),
    cron(day="1", weekday="*"),
    cron(day="L", weekday="6L"),
]
WRONG_MINUTES = """
    60 -1 ? L W 1W # a JAN 1, ,1 , 1,,2 5- -5 20-10 1-2-3 / /5 5/ */0 0/0 */60 0/-5 1/2/3 *,5 5,* ** *-5 0.5 1e1 ٥ 0;30 10..20
"""
WRONG_HOURS = "24 -1 ? L 22-2 8-24 */0 */24 0/24 9am 9:00 MON 1,25 9-"
WRONG_DAYS = "0 32 -1 0W 32W W WL W1 1WL L-3 L1 1L 1,L L,1 1W,15W 1-5W 1#2 MON 20-10 */0 */32 1,? ?,1 ?? LWL"
WRONG_MONTHS = "0 13 ? L Jan jan JANUARY FOO MON DEC-JAN 12-1 NOV-FEB */0 */13 JAN/0 1,13 1W"
WRONG_WEEKDAYS = """
    0 8 Mon mon MONDAY JAN FRI-MON 7-1 SAT-SUN */2 2/2 MON/2 2-6/2 1W LW 0L 8L LL 2#0 2#6 8#1 0#1 #1 2# 2#L 2#1,3#1 2#1#1 6L,2
    2,? ?#1 L#1 *#1 MON-FRI#1
"""
WRONG_YEARS = "0 26 1969 2200 ? L 2025 1970-2025 2020,2024 2030-2026 */0 2026/ 2026- 20260 2026W"
NEVER = [cron(day="30", month="FEB"), cron(day="31", month="2,4"), cron(day="31", month="SEP"), cron(day="31W", month="JUN")]

INVALID = [
    *NOT_A_SCHEDULE,
    *WRONG_RATES,
    *WRONG_TIMES,
    *WRONG_COUNTS,
    *BOTH_DAYS,
    *(cron(minutes=one) for one in WRONG_MINUTES.split()),
    *(cron(hours=one) for one in WRONG_HOURS.split()),
    *(cron(day=one) for one in WRONG_DAYS.split()),
    *(cron(month=one) for one in WRONG_MONTHS.split()),
    *(cron(day="?", weekday=one) for one in WRONG_WEEKDAYS.split()),
    *(cron(year=one) for one in WRONG_YEARS.split()),
    *NEVER,
]

ZONES = [
    "UTC",
    "Etc/UTC",
    "GMT",
    "Europe/Berlin",
    "America/New_York",
    "America/Argentina/Ushuaia",
    "Asia/Kolkata",
    "Etc/GMT+12",
    "Zulu",
]
WRONG_ZONES = [
    "",
    " ",
    "utc",
    "Utc",
    "europe/berlin",
    "Europe",
    "Europe/",
    "Europe/Berlin ",
    "Berlin",
    "CEST",
    "UTC+1",
    "+01:00",
    "Factory",
]
WRONG_ZONES += [
    "../UTC",
    "/etc/passwd",
    "/usr/share/zoneinfo/UTC",
    "posix/UTC",
    "right/UTC",
    "posixrules",
    "localtime",
    "zone.tab",
    "tzdata.zi",
]
WRONG_ZONES += ["__init__.py", "Europe/__init__.py", "Mars/Olympus", "Europe\\Berlin", "Europe/Berlin\x00", "x" * 50]


def refusal(expression: str, zone: str = "UTC") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check_schedule(Schedule(expression, zone), NOW)
    return refused.value


def test_the_corpus_has_hundreds_of_different_expressions() -> None:
    assert len(set(VALID)) > 90
    assert len(set(INVALID)) > 220
    assert not set(VALID) & set(INVALID)


@pytest.mark.parametrize("expression", dict.fromkeys(VALID))
def test_a_valid_expression_is_accepted(expression: str) -> None:
    check_schedule(Schedule(expression), NOW)


@pytest.mark.parametrize("expression", dict.fromkeys(INVALID))
def test_an_invalid_expression_is_refused_with_its_parameter(expression: str) -> None:
    refused = refusal(expression)
    assert refused.param == "schedule.expression"
    assert refused.message.isprintable()


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_zone_of_the_database_is_accepted(zone: str) -> None:
    check_schedule(Schedule("cron(0 9 * * ? *)", zone), NOW)


@pytest.mark.parametrize("zone", WRONG_ZONES)
def test_another_time_zone_is_refused_with_its_parameter(zone: str) -> None:
    refused = refusal("cron(0 9 * * ? *)", zone)
    assert refused.param == "schedule.timezone"
    assert "Europe/Berlin" in refused.message


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("cron(0 9 * * ?)", ["6 fields", "cron(0 9 * * ? *)", "has 5"]),
        ("cron(0 9 * * * *)", ["Exactly one", "must be ?", "cron(0 9 * * ? *)"]),
        ("cron(0 25 * * ? *)", ['"25"', "hours", "0-23"]),
        ("cron(0 9 ? * MONDAY *)", ['"MONDAY"', "1-7 or SUN-SAT", "MON-FRI"]),
        ("cron(0 9 * Jan ? *)", ['"Jan"', "1-12 or JAN-DEC"]),
        ("rate(0 minutes)", ["rate(0 minutes)", "1 minute"]),
        ("at(2026-11-23T08:00:00)", ["has passed", "future"]),
        ("every day", ['"every day"', "rate(5 minutes)", "cron(", "at("]),
    ],
)
def test_a_refusal_names_the_mistake_and_a_remedy(expression: str, words: list[str]) -> None:
    message = refusal(expression).message
    assert [word for word in words if word not in message] == []


def test_one_moment_is_read_in_its_time_zone() -> None:
    """It is 9:00 UTC, 10:00 in Berlin and 4:00 in New York."""
    assert "passed" in refusal("at(2026-11-23T10:00:00)", "Europe/Berlin").message
    check_schedule(Schedule("at(2026-11-23T10:00:01)", "Europe/Berlin"), NOW)
    check_schedule(Schedule("at(2026-11-23T04:00:01)", "America/New_York"), NOW)
    assert "passed" in refusal("at(2026-11-23T04:00:00)", "America/New_York").message


def test_a_time_that_the_clocks_skip_is_refused() -> None:
    """The scheduler never fires at it."""
    assert "does not exist in Europe/Berlin" in refusal("at(2027-03-28T02:30:00)", "Europe/Berlin").message
    for zone in ("Europe/London", "UTC"):
        check_schedule(Schedule("at(2027-03-28T02:30:00)", zone), NOW)


def test_a_time_that_the_clocks_show_twice_is_accepted() -> None:
    check_schedule(Schedule("at(2027-10-31T02:30:00)", "Europe/Berlin"), NOW)


def test_the_year_counts_in_the_schedules_time_zone() -> None:
    eve = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    check_schedule(Schedule(cron(year="2026")), eve)
    with pytest.raises(InvalidRequest, match="passed"):
        check_schedule(Schedule(cron(year="2026"), "Europe/Berlin"), eve)


def test_only_one_moment_can_have_passed() -> None:
    moment = Schedule("at(2026-11-23T10:00:00)", "Europe/Berlin")
    assert has_passed(moment, NOW)
    assert not has_passed(moment, NOW - 1)
    assert not has_passed(Schedule("rate(1 minute)"), NOW)
