"""Choose the seeds of a race. ``SPASS_SEED=7 pytest …`` runs one schedule only; a failure names the seed that repeats it."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.sampling import SOAK

Record = Callable[[str, object], None]


def seeded(by_day: int, *, in_soak: int) -> pytest.MarkDecorator:
    """Parametrize a test by ``seeds``: a normal run tries the first ``by_day`` ones, the soak all, in as many at a time."""
    if given := os.environ.get("SPASS_SEED"):
        ranges = [range(int(given), int(given) + 1)]
    else:
        ranges = [range(start, start + by_day) for start in range(0, in_soak if SOAK else by_day, by_day)]
    return pytest.mark.parametrize("seeds", ranges, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")


def run_seeds(seeds: Sequence[int], race: Callable[[int], Mapping[str, int]], record_property: Record) -> Counter[str]:
    """Run one race per seed. Return and record the sums of what they count."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            counts.update(race(seed))
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
    record_property("schedules", len(seeds))
    for name, count in counts.items():
        record_property(name, count)
    return counts
