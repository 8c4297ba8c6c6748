"""The order of backends: by priority, in turn, or by load. Time is virtual."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from spass.core.errors import StorageUnavailable
from spass.models.errors import BackendUnavailable
from spass.models.provider_registry import PROVIDERS, ProviderEntry, make_provider
from spass.store.keys import Key
from spass.store.writes import Item
from tests.unit.models.limited_routers import RouterFleet, count_by_backend
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time
BUSY = BackendUnavailable("busy", status=503)


async def test_failover_uses_the_lowest_priority_number_that_answers() -> None:
    harness = RouterFleet({"priority": 2}, {"priority": 1}, {"priority": 3})
    assert [await harness.call() for _ in range(3)] == ["b"] * 3
    harness.models["b"].failures = [BUSY]
    assert await harness.call() == "a"


async def test_round_robin_divides_requests_equally() -> None:
    harness = RouterFleet({}, {}, {}, strategy="round-robin")
    assert count_by_backend([await harness.call() for _ in range(30)]) == {"a": 10, "b": 10, "c": 10}


async def test_round_robin_divides_the_requests_of_a_failing_backend() -> None:
    harness = RouterFleet({}, {}, {}, strategy="round-robin", retry_base_delay=0)
    harness.models["b"].failures = [BUSY] * 99
    counts = count_by_backend([await harness.call() for _ in range(31)])
    assert abs(counts["a"] - counts["c"]) <= 1
    assert harness.attempts["b"] == 1


async def test_round_robin_takes_turns_for_each_model() -> None:
    harness = RouterFleet({}, {}, {"supported_models": ("other",)}, {"supported_models": ("other",)}, strategy="round-robin")
    backends = []
    for _ in range(10):
        backends.append(await harness.call())
        backends.append(await harness.call(model="other"))
    assert count_by_backend(backends) == {"a": 5, "b": 5, "c": 5, "d": 5}


async def test_round_robin_starts_at_a_random_backend() -> None:
    harness = RouterFleet({}, {}, {}, strategy="round-robin", workers=60)
    assert {await harness.call(worker=number) for number in range(60)} == {"a", "b", "c"}


async def test_least_loaded_uses_the_backend_with_the_lowest_load() -> None:
    harness = RouterFleet({"max_concurrent": 10}, {"max_concurrent": 5}, strategy="least-loaded")
    async with AsyncExitStack() as stack:
        for _ in range(9):
            chat = await stack.enter_async_context(aclosing(harness.chat()))
            await anext(chat)
        assert (harness.active_calls("a"), harness.active_calls("b")) == (6, 3)


async def test_least_loaded_counts_the_calls_of_other_workers() -> None:
    harness = RouterFleet({"max_concurrent": 10}, {"max_concurrent": 10}, strategy="least-loaded", workers=12)
    async with AsyncExitStack() as stack:
        for number in range(12):
            chat = await stack.enter_async_context(aclosing(harness.chat(worker=number)))
            await anext(chat)
            await asyncio.sleep(1.1)
        assert (harness.active_calls("a"), harness.active_calls("b")) == (6, 6)


async def test_least_loaded_without_limits_counts_the_calls_of_this_worker() -> None:
    harness = RouterFleet({}, {}, {}, strategy="least-loaded")
    async with AsyncExitStack() as stack:
        chats = [await stack.enter_async_context(aclosing(harness.chat())) for _ in range(9)]
        for chat in chats:
            await anext(chat)
        assert count_by_backend([chat.routing.backend for chat in chats]) == {"a": 3, "b": 3, "c": 3}
    assert harness.table.calls == 0


async def test_least_loaded_reads_all_shards_concurrently() -> None:
    harness = RouterFleet({"max_concurrent": 100}, {"max_concurrent": 100}, {"max_concurrent": 100}, strategy="least-loaded")
    get = harness.table.get

    async def get_slowly(key: Key, *, consistent: bool = True) -> Item | None:
        await asyncio.sleep(0.5)
        return await get(key, consistent=consistent)

    harness.table.get = get_slowly  # type: ignore[method-assign]
    start = asyncio.get_running_loop().time()
    await harness.call()
    assert asyncio.get_running_loop().time() - start < 0.6


async def test_least_loaded_works_while_the_table_does_not_answer() -> None:
    harness = RouterFleet({"max_concurrent": 10}, {}, strategy="least-loaded")

    async def fail(key: Key, *, consistent: bool = True) -> Item | None:
        raise StorageUnavailable("not now")

    harness.table.get = fail  # type: ignore[method-assign]
    assert await harness.call() in ("a", "b")


async def test_a_new_provider_is_one_file_and_one_line_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "echo", ProviderEntry("tests.unit.models.echo_provider:Echo"))
    harness = RouterFleet({"provider": "echo"}, provider_of=make_provider)
    chat = harness.chat()
    assert ([delta.content async for delta in chat], chat.routing.backend) == (["Hi"], "a")
