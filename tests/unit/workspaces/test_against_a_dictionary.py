"""Compare a workspace with a dictionary of versions, while writers race, crash and stand still, and sweeps run."""

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

from tests.sampling import SOAK
from tests.simulated.racing_workspaces import WorkspaceWorld, race
from tests.simulated.schedule import CallFault, Schedule, run_schedule

T = TypeVar("T")

SEEDS: Final = range(400) if SOAK else range(10)
WRITERS: Final = 6
STEPS: Final = 120
EVENTS: Final = {
    *("write", "edit", "replace", "restore", "deleted", "read", "read version", "archive"),
    *("write: conflict", "edit: conflict", "write: unchanged", "restore: unchanged"),
    *("generations swept", "orphans swept", "sweep failed", "crashed", "unavailable"),
}


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode and decode in the event loop, because the schedule does not wait for threads."""

    async def run_sync(work: Callable[..., T], *arguments: object) -> T:
        return work(*arguments)

    monkeypatch.setattr("anyio.to_thread.run_sync", run_sync)


def test_every_version_is_what_its_writer_was_told() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            if seed % 2:  # as if a repeated transaction came after the ten minutes in which DynamoDB knows its token
                patch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)
            run_seed(seed, counts)
    assert counts.keys() >= EVENTS
    assert set(CallFault) <= counts.keys()


def run_seed(seed: int, counts: Counter[str]) -> None:
    schedule = Schedule(seed)
    world = WorkspaceWorld(schedule)
    try:
        run_schedule(schedule, lambda: race(world, writers=WRITERS, steps=STEPS))
    except BaseException as error:
        error.add_note(f"with seed {seed}")
        raise
    counts.update(world.counts)
    counts.update(schedule.fault_counts)
