"""Any number of calls under way leaves the item of their limit within what DynamoDB takes."""

import pytest

from bench.limits import MOST_UNITS, UNDER_WAY, units_per_second
from tests.unit.store.memory_table import MemoryTable

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("under_way", UNDER_WAY)
async def test_calls_under_way_leave_their_item_within_its_write_units(under_way: int) -> None:
    assert 0 < await units_per_second(MemoryTable(), under_way, seconds=3) < MOST_UNITS
