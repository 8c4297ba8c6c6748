"""One tenant's view of the table and the bucket, on an emulated AWS."""

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import pytest

from spass.aws import bucket
from spass.aws.clients import Aws
from spass.core.errors import StorageUnavailable
from spass.core.ids import IndexId, SessionId, TenantId
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.table import TTL, ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Delete, Equals, Put, Update, Value
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio
SESSION = SessionId("ses_1")


async def test_an_item_is_read_as_it_was_written(store: TenantStore) -> None:
    key = keys.session_head(store.tenant, SESSION)
    attributes: dict[str, Value] = {"a": 1, "b": [True, None, b"x", {"c": "d"}], "e": [], "f": "", "n": -(10**30)}
    await store.table.write(Put(key, attributes, ITEM_ABSENT))
    assert await store.table.get(key) == attributes | {"pk": key.pk, "sk": key.sk}
    with pytest.raises(ConditionFailed) as failure:
        await store.table.write(Put(key, {"a": 2}, ITEM_ABSENT))
    assert failure.value.item is not None
    assert failure.value.item["a"] == 1
    updated = await store.table.write(Update(key, add={"a": 1}))
    assert updated is not None
    assert updated["a"] == 2
    deleted = await store.table.write(Delete(key))
    assert deleted is not None
    assert deleted["a"] == 2
    assert await store.table.get(key) is None


async def test_an_expired_item_is_invisible(store: TenantStore) -> None:
    key = keys.session_turn(store.tenant, SESSION, 1)
    await store.table.write(Put(key, {TTL: int(time.time()) - 1}))
    assert await store.table.get(key) is None
    assert await store.table.query(key.pk) == []


async def test_a_query_returns_the_items_of_all_pages(store: TenantStore) -> None:
    partition = keys.session_partition(store.tenant, SESSION)
    for n in range(1, 8):
        await store.table.write(Put(keys.session_turn(store.tenant, SESSION, n), {"n": n, "text": "x" * 300_000}))
    await store.table.write(Put(keys.session_head(store.tenant, SESSION), {}))
    turns = await store.table.query(partition, prefix=keys.TURN_PREFIX)
    assert [turn["n"] for turn in turns] == list(range(1, 8))
    newest = await store.table.query(partition, prefix=keys.TURN_PREFIX, limit=2, newest_first=True)
    assert [turn["n"] for turn in newest] == [7, 6]
    after = await store.table.query(partition, prefix=keys.TURN_PREFIX, after=str(turns[4]["sk"]))
    assert [turn["n"] for turn in after] == [6, 7]


async def test_a_transaction_is_atomic(store: TenantStore) -> None:
    one, other = (keys.rag_manifest(store.tenant, IndexId(name)) for name in ("one", "other"))
    await store.table.write(Put(one, {"version": 3}))
    with pytest.raises(TransactionFailed) as failure:
        await store.table.transact([Put(other, {}), Put(one, {"version": 5}, Equals("version", 4))], token="a")
    assert failure.value.failures.keys() == {1}
    assert (failure.value.failures[1] or {})["version"] == 3
    assert await store.table.get(other) is None


async def test_objects_are_read_completely_and_by_range(store: TenantStore) -> None:
    await store.objects.put("a/b", b"hello world")
    assert await store.objects.get("a/b") == b"hello world"
    assert await store.objects.get("a/b", start=6) == b"world"
    assert await store.objects.get("a/b", start=0, end=5) == b"hello"
    assert await store.objects.get("a/b", start=4, end=4) == b""
    assert await store.objects.get("a/b", start=6, end=99) == b"world"
    with pytest.raises(ObjectMissing):
        await store.objects.get("a/b", start=11, end=12)
    await store.objects.put("a/c", b"", transient=True)
    assert await store.objects.get("a/c") == b""
    with pytest.raises(ObjectMissing):
        await store.objects.get("a/d")
    await store.objects.delete(["a/b", "a/d"])
    with pytest.raises(ObjectMissing):
        await store.objects.get("a/b")


async def test_list_keys_returns_exactly_the_keys_under_the_prefix(
    store: TenantStore, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_LIST_PAGE", 2)
    expected = [f"a/{n}" for n in range(5)]
    for key in (*expected, "ab", "b/a/1"):
        await store.objects.put(key, b"x")
    await aws.for_tenant(TenantId(f"{store.tenant}-2")).objects.put("a/9", b"x")
    assert await store.objects.list_keys("a/") == expected
    assert await store.objects.list_keys("c/") == []


@pytest.mark.parametrize("fault", list(Fault))
async def test_every_fault_has_its_documented_effect(store: TenantStore, fault: Fault) -> None:
    key = keys.session_head(store.tenant, SESSION)
    crashes = fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
    with inject(FaultPlan(fault, times=2)) as plan:
        with nullcontext() if fault is Fault.REPEATED else pytest.raises(Crash if crashes else StorageUnavailable):
            await store.table.write(Put(key, {}))
        if crashes:
            with pytest.raises(Crash):
                await store.table.get(key)
    assert len(plan.calls) == (1 if crashes or fault is Fault.REPEATED else 2)
    took_effect = fault in (Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.REPEATED)
    assert (await store.table.get(key) is not None) == took_effect


async def test_a_cancelled_caller_waits_until_its_write_has_ended(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that cancels a write gets the error only after the write has succeeded or failed."""
    key = keys.session_head(store.tenant, SESSION)
    write = store.table._client.write

    def write_slowly(**parameters: Any) -> Any:
        time.sleep(0.2)
        return write(**parameters)

    monkeypatch.setattr(store.table._client, "write", write_slowly)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.table.write(Put(key, {})), 0.05)
        assert await store.table.get(key) is not None
        await store.table.write(Delete(key))
