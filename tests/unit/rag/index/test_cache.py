"""The cache stays within its budget, evicts what is used less, and reads each object once."""

import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import TenantId
from spass.rag.index.cache import ObjectCache, ObjectName, memory_budget

pytestmark = pytest.mark.anyio

SIZE = 10_000


def name(index: str, number: int = 0) -> ObjectName:
    return ObjectName(TenantId("demo"), f"{index}/{number}")


class Bucket:
    """Counts reads. The first ``failures`` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.reads = 0
        self.failures = failures

    async def read(self) -> bytes:
        self.reads += 1
        await asyncio.sleep(0.001)
        if self.reads <= self.failures:
            raise OSError
        return bytes(SIZE)


async def scan(cache: ObjectCache, index: str, objects: int) -> int:
    """Load all objects of an index, as a query does, and return the number of reads."""
    bucket = Bucket()
    for number in range(objects):
        await cache.load(name(index, number), bucket.read)
    return bucket.reads


async def test_an_index_larger_than_the_budget_is_cached_in_part() -> None:
    cache = ObjectCache(budget=60 * (SIZE + 1000))
    await scan(cache, "a", 100)
    reads = [await scan(cache, "a", 100) for _ in range(40)]
    assert sum(reads) / len(reads) < 50, "60 of 100 objects fit, and nearly all of these stay cached"


async def test_an_index_that_is_no_longer_queried_is_evicted() -> None:
    cache = ObjectCache(budget=60 * (SIZE + 1000))
    for _ in range(100):
        await scan(cache, "a", 50)
    reads = [await scan(cache, "b", 50) for _ in range(30)]
    assert reads[0] == 50
    assert reads[-1] == 0


async def test_an_index_that_fits_is_read_once() -> None:
    cache = ObjectCache(budget=60 * (SIZE + 1000))
    assert [await scan(cache, "a", 50) for _ in range(3)] == [50, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=200), st.integers(0, 20))
def test_the_cache_never_exceeds_its_budget(puts: list[tuple[int, int]], kilobytes: int) -> None:
    cache = ObjectCache(budget=kilobytes * 1000)
    for number, size in puts:
        if cache.get(name("a", number)) is None:
            cache.put(name("a", number), bytes(size * 300))
        assert 0 <= cache.used_bytes <= cache.budget


async def test_concurrent_loads_of_an_object_share_one_read() -> None:
    for budget in (0, 2**20):
        cache, bucket = ObjectCache(budget), Bucket()
        bodies = await asyncio.gather(*(cache.load(name("a"), bucket.read) for _ in range(8)))
        assert bodies == [bytes(SIZE)] * 8
        assert bucket.reads == 1


async def test_after_a_failed_read_the_next_caller_reads() -> None:
    cache, bucket = ObjectCache(2**20), Bucket(failures=1)
    results = await asyncio.gather(*(cache.load(name("a"), bucket.read) for _ in range(4)), return_exceptions=True)
    assert isinstance(results[0], OSError)
    assert results[1:] == [bytes(SIZE)] * 3
    assert bucket.reads == 2


async def test_after_a_cancelled_read_the_next_caller_reads() -> None:
    cache, bucket = ObjectCache(2**20), Bucket()
    first = asyncio.ensure_future(cache.load(name("a"), bucket.read))
    second = asyncio.ensure_future(cache.load(name("a"), bucket.read))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == bytes(SIZE)
    assert first.cancelled()


def test_an_unfinished_read_of_another_event_loop_is_not_awaited() -> None:
    cache = ObjectCache(2**20)

    async def begin_read() -> None:
        task = asyncio.ensure_future(cache.load(name("a"), asyncio.Event().wait))  # type: ignore[arg-type]  # never ends
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(task.cancel)

    asyncio.run(begin_read())
    assert asyncio.run(asyncio.wait_for(cache.load(name("a"), Bucket().read), 1)) == bytes(SIZE)


def test_the_names_of_objects_that_are_not_cached_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name is used again before the counts are halved, as if queries of many kinds were repeated."""
    monkeypatch.setattr("spass.rag.index.cache._MAX_NAMES", 1000)
    cache = ObjectCache(budget=0)
    tracemalloc.start()
    try:
        for number in range(30_000):
            for _ in range(4):
                cache.get(name("a", number))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize(("megabytes", "budget"), [("128", 32), ("512", 192), ("1024", 448), ("3008", 1440)])
def test_the_budget_depends_on_the_memory_of_the_function(monkeypatch: pytest.MonkeyPatch, megabytes: str, budget: int) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", megabytes)
    assert memory_budget() == budget * 2**20


def test_outside_of_lambda_the_budget_is_256_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", raising=False)
    assert memory_budget() == 256 * 2**20
