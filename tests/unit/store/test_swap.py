"""Test that a transaction with a marker takes effect once, and that its writer learns the outcome."""

from collections.abc import Sequence

import pytest

from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.store.keys import used_confirm_token
from spass.store.swap import commit
from spass.store.table import TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Equals, Put, Update, Write
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio
KEY = used_confirm_token(TenantId("demo"), "counter")


@pytest.fixture
def store() -> TenantStore:
    return MemoryAws().for_tenant(TenantId("demo"))


def next_version(version: int) -> Update:
    """Return the write of the version after ``version``, on condition that ``version`` is current."""
    return Update(KEY, set={"version": version + 1}, when=Equals("version", version))


async def version_of(store: TenantStore) -> object:
    item = await store.table.get(KEY)
    return item["version"] if item else None


@pytest.mark.parametrize("later_writes", [0, 1, 100])
async def test_a_lost_reply_counts_as_success_after_any_number_of_later_writes(
    store: TenantStore, monkeypatch: pytest.MonkeyPatch, later_writes: int
) -> None:
    await store.table.write(Put(KEY, {"version": 0}))
    transact = TenantTable.transact

    async def lose_reply(table: TenantTable, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.setattr(TenantTable, "transact", transact)
        await transact(table, writes, token=token)
        for version in range(1, 1 + later_writes):
            assert await commit(store, [next_version(version)]) == {}
        raise StorageUnavailable("lost")

    monkeypatch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)  # as if ten minutes had passed
    monkeypatch.setattr(TenantTable, "transact", lose_reply)
    assert await commit(store, [next_version(0)]) == {}
    assert await version_of(store) == 1 + later_writes


async def test_a_repeated_transaction_counts_as_success_without_token_support(
    store: TenantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.table.write(Put(KEY, {"version": 0}))
    transact = TenantTable.transact

    async def transact_twice(table: TenantTable, writes: Sequence[Write], *, token: str) -> None:
        await transact(table, writes, token=token)
        await transact(table, writes, token="another-token")

    monkeypatch.setattr(TenantTable, "transact", transact_twice)
    assert await commit(store, [next_version(0)]) == {}
    assert await version_of(store) == 1


async def test_failed_conditions_are_returned_and_nothing_is_written(store: TenantStore) -> None:
    await store.table.write(Put(KEY, {"version": 7}))
    other = used_confirm_token(TenantId("demo"), "other")
    failures = await commit(store, [Put(other, {}, ITEM_ABSENT), next_version(0)])
    assert {position: item and item["version"] for position, item in failures.items()} == {1: 7}
    assert await store.table.get(other) is None


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("at", range(3))
async def test_the_writes_take_effect_at_most_once_under_every_fault(store: TenantStore, fault: Fault, at: int) -> None:
    await store.table.write(Put(KEY, {"version": 0}))
    answer = None
    try:
        with inject(FaultPlan(fault, at=at)):
            answer = await commit(store, [next_version(0)])
    except (Crash, StorageUnavailable):
        assert await version_of(store) in (0, 1)
    else:
        assert answer == {}
        assert await version_of(store) == 1


async def test_a_table_that_never_answers_is_storage_unavailable(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str] = []

    async def throttle(table: TenantTable, writes: Sequence[Write], *, token: str) -> None:
        tokens.append(token)
        raise StorageUnavailable("throttled")

    monkeypatch.setattr(TenantTable, "transact", throttle)
    with pytest.raises(StorageUnavailable):
        await commit(store, [next_version(0)])
    assert len(tokens) == 2
    assert len(set(tokens)) == 1, "the transaction must be sent again with its token"
