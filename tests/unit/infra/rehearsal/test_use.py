"""The steps that use a deployed gateway say what they have not seen."""

from datetime import UTC, datetime, timedelta

import pytest

from infra.rehearsal.processes import RehearsalFailed
from infra.rehearsal.use import count_through

CHANGE = datetime(2026, 11, 24, 12, tzinfo=UTC)


def stream(first: float, last: float) -> tuple[datetime, datetime]:
    """Return the times of a stream's first and last event, in seconds from the change."""
    return CHANGE + timedelta(seconds=first), CHANGE + timedelta(seconds=last)


def test_a_stream_goes_through_a_change_if_it_begins_before_and_ends_after_it() -> None:
    assert count_through([stream(-20, -1), stream(-5, 25), stream(-1, 29), stream(1, 31)], CHANGE) == 2


@pytest.mark.parametrize("streams", [[], [stream(-30, -1)], [stream(1, 31)], [stream(-30, -1), stream(1, 31)]])
def test_an_upgrade_that_no_stream_goes_through_fails(streams: list[tuple[datetime, datetime]]) -> None:
    with pytest.raises(RehearsalFailed, match=f"None of {len(streams)} streams"):
        count_through(streams, CHANGE)
