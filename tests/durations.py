"""The seconds that each file with tests took in the run that wrote ``durations.txt``."""

from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parent.parent
DURATIONS: Final = ROOT / "tests/durations.txt"
SHORTEST: Final = 0.5
"""Files that take less, in seconds, are not recorded."""


def recorded_durations() -> dict[str, float]:
    """Return the recorded seconds of files."""
    rows = (line.split(" ", 1) for line in DURATIONS.read_text().splitlines())
    return {file: float(seconds) for seconds, file in rows}


def record(reports: list[Path]) -> None:
    """Write the seconds of the files that took at least ``SHORTEST``, the longest first, from the JUnit ``reports``."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            seconds[case.attrib["file"]] += float(case.attrib["time"])
    rows = sorted(seconds.items(), key=itemgetter(1), reverse=True)
    DURATIONS.write_text("".join(f"{spent:.1f} {file}\n" for file, spent in rows if spent >= SHORTEST))
