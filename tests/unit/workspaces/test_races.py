"""Writers race, crash and lose replies: a version is whole or absent, and no acknowledged write is lost."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest

from spass.core.errors import ApprovalDecided, SpassError, StorageUnavailable, WorkspaceConflict
from spass.core.ids import WorkspaceId
from spass.core.time import Deadline
from spass.store.keys import Key, used_confirm_token
from spass.store.writes import ITEM_ABSENT, Put, Write
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.workspaces.change import Author, Change, Committed
from spass.workspaces.head import read_live_head
from tests.unit.rag.conftest import RacingWriters
from tests.unit.workspaces.harness import WorkspaceHarness, writes

pytestmark = pytest.mark.anyio

WRITERS = 8


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0.001)


@pytest.fixture
def harness() -> WorkspaceHarness:
    return WorkspaceHarness()


@dataclass(frozen=True, slots=True)
class Decision:
    """Puts an item that must not exist yet, as the end of an approval does."""

    harness: WorkspaceHarness
    name: str = "once"

    @property
    def key(self) -> Key:
        return used_confirm_token(self.harness.store.tenant, self.name)

    async def writes(self, answer: object, /) -> Sequence[Write]:
        return [Put(self.key, {"answer": "x"}, ITEM_ABSENT)]

    def refusal(self) -> SpassError:
        return ApprovalDecided("decided")

    async def exists(self) -> bool:
        return await self.harness.store.table.get(self.key) is not None


async def commit_with(harness: WorkspaceHarness, files: Mapping[str, bytes | None], decision: Decision) -> Committed:
    """Commit ``files`` as another process, together with the decision."""
    deadline = Deadline.after(30)
    return await harness.cold().open(harness.store, harness.workspace).commit(writes(files), Author(), deadline, decision)


async def test_of_eight_writers_that_expect_the_same_file_one_wins(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"old", "b": b"b"})
    expected = {"a": hashlib.sha256(b"old").hexdigest()}
    attempts = (harness.write({"a": b"%d" % n}, expected) for n in range(WRITERS))
    results = await asyncio.gather(*attempts, return_exceptions=True)
    (winner,) = (n for n, result in enumerate(results) if isinstance(result, Committed))
    assert sum(isinstance(result, WorkspaceConflict) for result in results) == WRITERS - 1
    assert await harness.contents() == {"a": b"%d" % winner, "b": b"b"}
    assert (await read_live_head(harness.store, harness.workspace)).version == 2


async def test_eight_writers_of_eight_paths_all_win(harness: WorkspaceHarness) -> None:
    results = await asyncio.gather(*(harness.write({f"d/{n}": b"%d" % n}, {f"d/{n}": None}) for n in range(WRITERS)))
    assert sorted(result.current for result in results) == list(range(1, WRITERS + 1))
    assert await harness.contents() == {f"d/{n}": b"%d" % n for n in range(WRITERS)}
    for result in results:
        (file,) = result.files
        assert (await harness.contents(result.version))[file.path] == file.path[-1].encode()


async def test_a_writer_that_loses_a_race_puts_its_bodies_once(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1"})
    plan = RacingWriters(*(partial(harness.write, {f"b{n}": b"x"}) for n in range(3)))
    with inject(plan):
        committed = await harness.write({"c": b"mine"})
    assert (committed.version, plan.count("PutObject"), plan.count("TransactWriteItems")) == (5, 1 + 4, 4)
    assert (await harness.contents())["c"] == b"mine"


async def test_a_write_that_loses_to_a_deletion_begins_a_new_generation(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1"})
    with inject(RacingWriters(harness.delete)):
        assert (await harness.write({"b": b"2"})).version == 2
    assert await harness.contents() == {"b": b"2"}
    with inject(RacingWriters(harness.delete)), pytest.raises(WorkspaceConflict):
        await harness.write({"b": b"3"}, {"b": hashlib.sha256(b"2").hexdigest()})
    with inject(RacingWriters(lambda: harness.write({"c": b"4"}))):
        assert (await harness.write({"d": b"5"})).version == 4, "both create the workspace"
    assert await harness.contents() == {"c": b"4", "d": b"5"}


async def test_a_writer_that_always_loses_gives_up_at_its_deadline(harness: WorkspaceHarness) -> None:
    plan = RacingWriters(*(partial(harness.write, {"a": b"%d" % n}) for n in range(99)))
    with inject(plan), pytest.raises(StorageUnavailable):
        await harness.workspaces.open(harness.store, harness.workspace).commit(
            writes({"b": b"x"}), Author(), Deadline.after(0.02)
        )
    assert plan.count("TransactWriteItems") < 99
    assert set(await harness.contents()) == {"a"}


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("files", [{"b": b"2", "a": None}, {"a": b"1"}], ids=["change", "no change"])
async def test_a_commit_and_its_decision_take_effect_both_or_not_at_all(
    harness: WorkspaceHarness, fault: Fault, times: int, files: Mapping[str, bytes | None]
) -> None:
    changes = files != {"a": b"1"}
    for point in range(10):
        harness.workspace = WorkspaceId(f"{fault}-{point}")
        await harness.write({"a": b"1"})
        decision = Decision(harness, f"{fault}-{point}")
        answered, plan = False, FaultPlan(fault, at=point, times=times)
        with suppress(Crash, StorageUnavailable), inject(plan):
            await commit_with(harness, files, decision)
            answered = True
        version = (await read_live_head(harness.store, harness.workspace)).version
        decided = await decision.exists()
        assert version == 1 + (decided and changes), f"{fault} at {point}"
        assert decided or not answered
        assert await harness.contents() == ({"b": b"2"} if decided and changes else {"a": b"1"})
        if not decided:
            assert (await commit_with(harness, files, decision)).current == 1 + changes
        with pytest.raises(ApprovalDecided):
            await commit_with(harness, {"c": b"3"}, decision)
        assert "c" not in await harness.contents()
        if answered and len(plan.calls) <= point:
            break
    assert point > (4 if changes else 1)


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("exists", [False, True], ids=["first write", "later write"])
async def test_a_repeated_write_makes_one_version_with_a_fault_at_any_call(
    harness: WorkspaceHarness, fault: Fault, times: int, *, exists: bool
) -> None:
    for point in range(10):
        harness.workspace = WorkspaceId(f"{fault}-{point}")
        if exists:
            await harness.write({"a": b"1"})
        plan = FaultPlan(fault, at=point, times=times)
        with suppress(Crash, StorageUnavailable), inject(plan):
            await harness.write({"b": b"2"})
        harness.workspaces = harness.cold()
        if len(plan.calls) <= point:
            break
        assert (await harness.write({"b": b"2"})).current == 1 + exists, f"{fault} at {point}"
        assert await harness.contents() == ({"a": b"1"} if exists else {}) | {"b": b"2"}
    assert point > 3


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_deletion_with_a_fault_at_any_call_is_whole_or_absent(
    harness: WorkspaceHarness, fault: Fault, times: int
) -> None:
    for point in range(4):
        harness.workspace = WorkspaceId(f"{fault}-{point}")
        await harness.write({"a": b"1"})
        plan = FaultPlan(fault, at=point, times=times)
        with suppress(Crash, StorageUnavailable), inject(plan):
            assert await harness.delete() is True
        await harness.delete()
        assert (await harness.workspaces.open(harness.store, harness.workspace).newest()).generation == ""
        assert (await harness.write({"a": b"1"})).version == 2
        if len(plan.calls) <= point:
            break
    assert point > 1


async def test_an_edit_from_a_stale_tree_changes_nothing_else(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "b": b"2"})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    edit = Change.of({at.tree.paths[0]: b"edited"}).plan(at).pin()
    await harness.write({"b": b"3", "c": b"4"})
    assert (await harness.commit(edit)).version == 3
    assert await harness.contents() == {"a": b"edited", "b": b"3", "c": b"4"}
