"""Search returns what brute force in float64 returns: ids, scores, order and ties.

``SPASS_SEED=7`` repeats the cases of index 7. With ``SPASS_SOAK`` set, 100,000 cases run.
"""

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.sampling import SOAK
from tests.unit.rag.search.exact_cases import CASES_OF_INDEX, check_indices

pytestmark = pytest.mark.anyio
CASES_OF_EVERY_DAY: Final = 2000
CASES: Final = 100_000 if SOAK else CASES_OF_EVERY_DAY


def indices(cases: int) -> range:
    """Return the numbers of the indices in which ``cases`` searches run."""
    return range(cases // CASES_OF_INDEX)


async def test_search_is_exact(record_property: Callable[[str, object], None]) -> None:
    seed = os.environ.get("SPASS_SEED")
    numbers = indices(CASES) if seed is None else range(int(seed), int(seed) + 1)
    record_property("searches", await check_indices(numbers))
