"""Search returns what brute force in float64 returns: ids, scores, order and ties.

Of 100,000 cases, a run tries those of each 200th index or so. ``SPASS_SEED=7`` repeats the cases of index 7.
"""

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.sampling import sampled
from tests.unit.rag.search.exact_cases import CASES_OF_INDEX, check_indices

pytestmark = pytest.mark.anyio
INDICES: Final = range(100_000 // CASES_OF_INDEX)


async def test_search_is_exact(record_property: Callable[[str, object], None]) -> None:
    seed = os.environ.get("SPASS_SEED")
    numbers = sampled(INDICES, 199) if seed is None else [int(seed)]  # 199 has no factor in common with the count of families
    record_property("searches", await check_indices(numbers))
