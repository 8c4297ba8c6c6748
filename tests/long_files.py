"""Choose some tests of each file that takes long: a plugin that ``python -m tests`` loads.

A file that takes k times ``LONGEST`` runs every k-th of its tests. The number of commits chooses the offset, so k commits in turn
run all of them. ``make soak``, and pytest called without this plugin, run whole files.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeVar

import pytest

from tests.durations import ROOT, recorded_durations
from tests.sampling import offset

Test = TypeVar("Test")

LONGEST: Final = 1.0
"""The seconds that a file may take."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the next commits will run."""
    durations = recorded_durations()
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path.relative_to(ROOT).as_posix()].append(item)
    chosen = {item for file, tests in files.items() for item in choose(tests, durations.get(file, 0), offset(), file)}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def choose(tests: Sequence[Test], seconds: float, commits: int, file: str) -> Sequence[Test]:
    """Return those of the ``tests`` of a file of ``seconds`` that run at this number of ``commits``.

    After each round the tests change places: a test that itself tries every k-th point of an enumeration has tried all of them
    after k rounds.
    """
    every = max(1, min(math.ceil(seconds / LONGEST), len(tests)))
    return tests[(commits + commits // every + zlib.crc32(file.encode())) % every :: every]
