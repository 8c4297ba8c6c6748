"""The bench of cold starts divides the time of a start among the packages."""

import subprocess
import sys

from bench.import_times import BEGIN, OWN, STANDARD_LIBRARY, read_import_times

REPORT = f"""\
import time: self [us] | cumulative | imported package
import time:      9000 |       9000 | certifi
{BEGIN}
import time:       250 |        250 |     email
import time:      1000 |       1250 |   fastapi.routing
import time:      2000 |       3250 | fastapi
import time:       500 |        500 |   spass.web.app
import time:       700 |       4450 | functions.meta.health
a warning
"""


def test_a_package_has_the_time_of_its_modules_without_their_imports() -> None:
    assert [*read_import_times(REPORT).items()] == [("fastapi", 3.0), (OWN, 1.2), (STANDARD_LIBRARY, 0.25)]


def test_the_report_of_this_interpreter_is_read() -> None:
    program = f"import sys; print({BEGIN!r}, file=sys.stderr); import csv"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True, check=True)
    assert read_import_times(done.stderr).keys() == {STANDARD_LIBRARY}
