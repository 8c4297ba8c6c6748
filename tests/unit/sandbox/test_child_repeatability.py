"""Clocks, random numbers and sets give the same values in every run of a turn."""

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import pytest

from tests.child_harness import STARTED, CellOf, Report, Turn, run_cell
from tests.interpreters import INTERPRETERS

VALUES: Sequence[str] = [
    "{str(number) for number in range(50)}",
    "hash('text')",
    "import random; [random.random(), random.randrange(10**9), random.gauss(0, 1)]",
    "import random; [random.Random().random(), random.SystemRandom().random()]",
    "import random; random.seed(); random.random()",
    "import secrets; [secrets.token_hex(), secrets.randbelow(10**9)]",
    "import uuid; [uuid.uuid1(), uuid.uuid4()]",
    "import os; [os.urandom(8), os.getrandom(8)]",
    "import tempfile; tempfile.gettempprefix() + next(tempfile._get_candidate_names())",
    "import time; [time.time(), time.time_ns(), time.monotonic(), time.monotonic_ns()]",
    "import time; [time.perf_counter(), time.perf_counter_ns()]",
    "import time; [time.process_time(), time.process_time_ns(), time.thread_time(), time.thread_time_ns()]",
    "import time; [time.clock_gettime(number) for number in range(4)] + [time.clock_gettime_ns(0)]",
    "import time; [time.localtime(), time.gmtime(), time.ctime(), time.asctime(), time.strftime('%c')]",
    "import datetime; [datetime.datetime.now(), datetime.datetime.now(datetime.UTC), datetime.date.today()]",
    "import email.utils; [email.utils.formatdate(), email.utils.make_msgid(domain='x')[:12]]",
]


@pytest.mark.parametrize("code", VALUES)
@pytest.mark.parametrize("interpreter", INTERPRETERS.values(), ids=INTERPRETERS.keys())
def test_a_value_is_the_same_in_every_run(interpreter: str, code: str) -> None:
    cells = [CellOf(code), CellOf(code)]
    first, second = Turn(cells, interpreter=interpreter).run_live()
    assert first.error is None
    assert first.output
    assert Turn(cells, interpreter=interpreter).run_live() == [first, second]


@pytest.mark.parametrize("code", ["import random; random.random()", "import os; os.urandom(8)", "import uuid; uuid.uuid4()"])
def test_random_numbers_differ_between_draws_and_between_turns(code: str) -> None:
    draws = {report.output for report in Turn([CellOf(code), CellOf(code)]).run_live()}
    other = Turn([CellOf(code)], started=STARTED + 1).run_live()[0].output
    assert len({*draws, other}) == 3


def test_a_seed_of_the_code_gives_what_it_gives_everywhere() -> None:
    code = "import random; random.seed(7); [random.Random('x').random(), random.random()]"
    assert run_cell(code) == Report(f"{[Random('x').random(), Random(7).random()]}\n")


def test_the_clock_follows_cells_replies_and_sleep_and_runs_forward() -> None:
    cells = [
        CellOf("import time\ntimes = [time.time()]\nllm_query('x')\ntimes.append(time.time())"),
        CellOf("times.append(time.time())\ntime.sleep(100)\ntimes.append(time.time())"),
        CellOf("[round(value - times[0], 3) for value in [*times, time.time()]]"),
    ]
    assert Turn(cells).run_live()[2] == Report("[0.0, 0.5, 10.0, 110.0, 110.0]\n")


def test_every_clock_advances_with_each_reading() -> None:
    code = (
        "import time\nnames = ['time', 'monotonic', 'perf_counter', 'process_time', 'thread_time']\n"
        "all(getattr(time, name)() < getattr(time, name)() for name in names)"
    )
    assert run_cell(code) == Report("True\n")


def test_the_clock_begins_at_the_time_of_the_cell_in_utc() -> None:
    expected = datetime.fromtimestamp(STARTED, UTC)
    code = "import datetime, time; print(datetime.datetime.now().replace(microsecond=0), time.tzname, time.localtime().tm_hour)"
    assert run_cell(code) == Report(f"{expected:%Y-%m-%d %H:%M:%S} ('UTC', 'UTC') {expected.hour}\n")


def test_times_that_code_passes_are_converted_as_everywhere() -> None:
    code = "import time; [time.strftime('%Y', time.gmtime(0)), time.ctime(0), time.asctime((2000, 1, 2, 3, 4, 5, 6, 2, 0))]"
    assert run_cell(code) == Report("['1970', 'Thu Jan  1 00:00:00 1970', 'Sun Jan  2 03:04:05 2000']\n")


def test_datetimes_of_the_pure_module_are_complete() -> None:
    code = (
        "import datetime, zoneinfo, pickle\n"
        "moment = datetime.datetime(2024, 2, 29, 12, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin'))\n"
        "[repr(datetime.timedelta(1)), moment.isoformat(), pickle.loads(pickle.dumps(moment)) == moment]"
    )
    assert run_cell(code) == Report("['datetime.timedelta(days=1)', '2024-02-29T12:00:00+01:00', True]\n")


def test_a_child_without_the_hash_seed_runs_nothing() -> None:
    turn = Turn([CellOf("print(1)")], environment={})
    with turn.start(turn.cells) as child:
        assert child.receive() is None
        assert child.wait() == 4


def test_code_has_no_environment() -> None:
    assert run_cell("import os; dict(os.environ), os.getenv('PYTHONHASHSEED')") == Report("({}, None)\n")
