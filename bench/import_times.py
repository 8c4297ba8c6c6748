"""The milliseconds that each package takes in a start, from the report of ``python -X importtime``."""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final

STANDARD_LIBRARY: Final = "standard library"
OWN: Final = "own code"
BEGIN: Final = "the start begins"
"""A line that the started program writes to standard error: imports before it are those of the interpreter."""
_IMPORT: Final = re.compile(r"^import time: +(\d+) \| +\d+ \| +(\w+)", re.MULTILINE)


def read_import_times(report: str) -> Mapping[str, float]:
    """Return the milliseconds of each package, without those of the modules that it imports, the longest first.

    What a module does beside its imports counts for its package, also the work of a function's start.
    """
    found: Counter[str] = Counter()
    for microseconds, package in _IMPORT.findall(report.partition(BEGIN)[2]):
        found[_group(package)] += int(microseconds)
    return {package: microseconds / 1000 for package, microseconds in found.most_common()}


def _group(package: str) -> str:
    if package in ("functions", "spass"):
        return OWN
    return STANDARD_LIBRARY if package in sys.stdlib_module_names or package.startswith("_sysconfigdata") else package
