"""Choose which points of a long enumeration a run tries.

An enumeration of faults, cuts, stops or payloads has thousands of points. A run tries every k-th of them, from an offset that the
number of commits chooses, so that k commits in turn try all. ``SPASS_SOAK=1`` tries all in one run. pytest prints the offset, and
``SPASS_OFFSET`` repeats it.
"""

import os
import subprocess
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

SOAK: Final = bool(os.environ.get("SPASS_SOAK"))

Point = TypeVar("Point")


@cache
def offset() -> int:
    """Return ``SPASS_OFFSET``, or else the number of commits (0 outside a git checkout)."""
    if given := os.environ.get("SPASS_OFFSET"):
        return int(given)
    command = ["git", "rev-list", "--count", "HEAD"]
    counted = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(counted.stdout) if counted.returncode == 0 else 0


def sampled(points: Sequence[Point], every: int, case: str = "") -> Sequence[Point]:
    """Return each ``every``-th of ``points``, at least one if there are any; with ``SPASS_SOAK`` return all of them.

    Tests that share the points give different names of a ``case``, so that each of them tries others.
    """
    if SOAK or not points:
        return points
    step = min(every, len(points))
    return points[(offset() + zlib.crc32(case.encode())) % step :: step]
