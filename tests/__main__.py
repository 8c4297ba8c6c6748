"""Run the product's tests on all cores: ``python -m tests [--at-once N] [--record] [pytest's options]``.

Each part is a pytest of its own, and no file is collected twice. There are twice as many parts as run at once, of similar
recorded duration: whichever ends first makes room for the next, so no core is idle for long at the end. Of files that take long,
a run tries some tests (``tests.long_files``).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests import long_files
from tests.durations import DURATIONS, ROOT, SHORTEST, record, recorded_durations
from tests.sampling import SOAK

TOGETHER: Final = {"tests/e2e/": 4, "tests/page/": 1}
"""Folders, and in how many parts their files run: they share a gateway and a browser, which are expensive to start."""

_LONGEST_PLANNED: Final = 3 * long_files.LONGEST
"""The seconds that a long file needs at most: some of its tests, and the gateway or browser that they need."""
SHOWN: Final = 12
"""Lines of a failure that are printed again at the end."""


def main() -> int:
    """Run all parts and return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests", description="Run the product's tests in parallel parts.", allow_abbrev=False
    )
    parser.add_argument(
        "--at-once", type=int, default=2 * (os.cpu_count() or 1), help="parts that run at once (default: two per core)"
    )
    parser.add_argument(
        "--record", action="store_true", help=f"run whole files, and write their seconds to {DURATIONS.relative_to(ROOT)}"
    )
    options, pytest_options = parser.parse_known_args()
    if any((ROOT / option.partition("::")[0]).exists() for option in pytest_options):
        parser.error("this command runs all files: for some of them, call pytest itself")
    files = files_with_tests()
    with tempfile.TemporaryDirectory() as folder:
        parts = divide(files, recorded_durations(), 2 * options.at_once)
        reports = [Path(folder, f"{number}.xml") for number in range(len(parts))]
        plugins = [] if options.record or SOAK else ["-p", long_files.__name__]
        commands = [
            [*plugins, *pytest_options, f"--junitxml={report}", "--override-ini=junit_family=xunit1", *part]
            for part, report in zip(parts, reports, strict=True)
        ]
        with ThreadPoolExecutor(options.at_once) as pool:
            codes = list(pool.map(run, range(1, len(commands) + 1), commands))
        if options.record:
            record(reports)
        for failure in failures(reports):
            print(f"\n{failure}", flush=True)
    return int(any(codes))


def files_with_tests() -> list[str]:
    """Return the files with tests in the folders that pyproject.toml names, as paths relative to the repository."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return sorted(
        path.relative_to(ROOT).as_posix() for folder in options["testpaths"] for path in (ROOT / folder).rglob("test_*.py")
    )


def divide(files: list[str], durations: Mapping[str, float], parts: int) -> list[list[str]]:
    """Divide ``files`` into at most ``parts`` lists of similar duration, the longest first: each file, from the longest on, joins
    the shortest list. The files of a folder in ``TOGETHER`` count as few."""
    seconds = {file: min(durations.get(file, SHORTEST / 2), _LONGEST_PLANNED) for file in files}
    groups = [[file] for file in files if not file.startswith(tuple(TOGETHER))]
    for folder, number in TOGETHER.items():
        groups += _share([[file] for file in files if file.startswith(folder)], seconds, number)
    return [sorted(part) for part in _share(groups, seconds, parts)]


def _share(groups: list[list[str]], seconds: Mapping[str, float], parts: int) -> list[list[str]]:
    shares: list[list[str]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    spent = {group[0]: sum(map(seconds.__getitem__, group)) for group in groups}
    for group in sorted(groups, key=lambda group: (-spent[group[0]], group)):
        shortest = totals.index(min(totals))
        shares[shortest] += group
        totals[shortest] += spent[group[0]]
    return [share for _, share in sorted(zip(totals, shares, strict=True), reverse=True) if share]


def run(number: int, arguments: list[str]) -> int:
    """Run pytest with ``arguments`` in a process of its own, print its lines behind ``number``, and return its exit code."""
    command = [sys.executable, "-m", "pytest", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{number}] {line}", end="", flush=True)
    return process.returncode


def failures(reports: list[Path]) -> list[str]:
    """Return the name and the last lines of each failed test. Where they were printed first is far above the end of the run."""
    found = []
    for report in reports:
        if not report.exists():
            found.append("A part ended without a report: its last lines, above, say why.")
            continue
        for case in ET.parse(report).iter("testcase"):
            for failure in (*case.iter("failure"), *case.iter("error")):
                lines = (failure.text or failure.get("message") or "").splitlines()[-SHOWN:]
                found.append("\n".join([f"FAILED {case.attrib['file']}::{case.attrib['name']}", *lines]))
    return found


if __name__ == "__main__":
    sys.exit(main())
