"""Limits of backends, which all workers share. A request without room fails over, waits or fails. Time is virtual."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from spass.core.errors import (
    InvalidRequest,
    RateLimited,
    SpassError,
    StorageUnavailable,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
)
from spass.core.messages import TokenUsage
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendRateLimited,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingRequest
from spass.store.writes import Item, Update
from tests.unit.models.limited_routers import Model, RouterFleet
from tests.unit.store.memory_table import MemoryTable
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time
BUSY = BackendUnavailable("busy", status=503)


async def test_a_backend_without_limits_makes_no_table_call() -> None:
    harness = RouterFleet({}, {}, strategy="least-loaded")
    for _ in range(3):
        await harness.call(10**9)
    await harness.routers[0].embed(EmbeddingRequest("m", ("text",)), harness.context(1000, 10))
    assert harness.table.calls == 0


async def test_a_limited_backend_makes_two_table_calls() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 2})
    await harness.call(10)
    for _ in range(5):
        before = harness.table.calls
        await harness.call(10)
        assert harness.table.calls == before + 2


async def test_parallel_calls_of_many_workers_stay_within_the_tokens_a_minute() -> None:
    harness = RouterFleet({"rate_limit_tpm": 2500}, workers=8)
    harness.models["a"].usage = TokenUsage(20, 20)
    harness.models["a"].seconds = 3.0
    calls = [harness.call(50, seconds=2000, worker=number % 8) for number in range(200)]
    assert set(await asyncio.gather(*calls)) == {"a"}
    start_times = sorted(harness.models["a"].began)
    assert max(sum(first <= one < first + 60 for one in start_times) for first in start_times) * 40 <= 2500
    assert start_times[-1] - start_times[0] < 200 * 40 / 2500 * 65, "the calls did not use the whole limit"


async def test_tokens_a_minute_limit_calls_longer_than_a_minute() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000}, workers=2)
    harness.models["a"].usage, harness.models["a"].seconds = TokenUsage(20, 33_000), 90.0
    for worker in (0, 1, 0):
        await harness.call(50, worker=worker)
    start_times = harness.models["a"].began
    assert all(later - earlier >= 90 + 60 for earlier, later in itertools.pairwise(start_times))


async def test_parallel_calls_of_many_workers_stay_within_the_concurrency() -> None:
    harness = RouterFleet({"max_concurrent": 7}, workers=8)
    harness.models["a"].seconds = 1.0
    await asyncio.gather(*[harness.call(seconds=900, worker=number % 8) for number in range(200)])
    assert (harness.models["a"].most_active, harness.active_calls()) == (7, 0)


async def test_a_full_backend_fails_over_without_a_pause() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {})
    harness.models["a"].usage = TokenUsage(30, 30)
    start = harness.now
    assert [await harness.call(60) for _ in range(3)] == ["a", "b", "b"]
    assert harness.now == start


async def test_waiting_for_room_does_not_count_as_a_retry() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {"rate_limit_tpm": 100}, retries=0)
    start = harness.now
    await harness.call(100)
    await asyncio.sleep(20)
    await harness.call(100)
    chat = harness.chat(100)
    async with aclosing(chat):
        assert "".join([delta.content async for delta in chat]) == "Hello"
    assert (chat.routing.backend, chat.routing.attempts) == ("a", 1)
    assert start + 65 <= harness.now < start + 66


async def test_room_that_is_released_early_is_used_early() -> None:
    harness = RouterFleet({"max_concurrent": 1})
    harness.models["a"].seconds = 4.0
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(harness.call()) for _ in range(2))
    assert (first.result(), second.result()) == ("a", "a")
    first_start, second_start = harness.models["a"].began
    assert first_start + 4.0 <= second_start <= first_start + 6.1


async def call_error(harness: RouterFleet, tokens: int, seconds: float) -> SpassError:
    """Make a call that must fail, and return its error."""
    with pytest.raises(SpassError) as raised:
        await harness.call(tokens, seconds=seconds)
    return raised.value


async def test_room_after_the_deadline_fails_immediately_with_retry_after() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {"rate_limit_tpm": 100})
    start = harness.now
    await harness.call(100)
    await asyncio.sleep(10)
    await harness.call(100)
    failure = await call_error(harness, 100, 30)
    assert isinstance(failure, RateLimited)
    assert failure.retry_after == pytest.approx(55)
    assert harness.now == start + 10
    await asyncio.sleep(failure.retry_after or 0)
    await harness.call(100)


async def test_waiting_for_room_fails_before_the_deadline() -> None:
    harness = RouterFleet({"max_concurrent": 1})
    harness.models["a"].seconds = 50.0
    async with asyncio.TaskGroup() as group:
        group.create_task(harness.call())
        await asyncio.sleep(1)
        start = harness.now
        failure = await call_error(harness, 0, 10)
        assert isinstance(failure, RateLimited)
        assert start + 7 < harness.now <= start + 10


async def test_a_request_waits_for_room_if_another_backend_fails() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {})
    await harness.call(100)
    harness.models["b"].failures = [BUSY]
    assert await harness.call(100) == "b"
    assert harness.attempts == {"a": 1, "b": 2}


async def test_our_limit_and_the_providers_limit_are_both_rate_limited() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {}, retries=0)
    await harness.call(100)
    harness.models["b"].failures = [BackendRateLimited("slow", retry_after=200.0)] * 9
    failure = await call_error(harness, 100, 30)
    assert isinstance(failure, RateLimited)
    assert failure.retry_after == pytest.approx(65)


@pytest.mark.parametrize(
    ("failure", "expected_tokens"),
    [
        (BUSY, 0),
        (BackendRateLimited("slow", status=429), 0),
        (BackendAuthError("key", status=401), 0),
        (BackendBadRequest("no", status=400), 0),
        (BackendUnavailable("gone"), 100),
        (BackendTimeout("late"), 100),
        (BackendTimeout("late", status=504), 100),
    ],
)
@pytest.mark.parametrize("sent", [False, True])
async def test_a_failed_attempt_releases_its_tokens_unless_billable(
    failure: AttemptFailed, expected_tokens: int, sent: bool
) -> None:
    expected_tokens = expected_tokens if sent else 0
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 1}, retries=0)
    harness.models["a"].sent = sent
    harness.models["a"].failures = [failure]
    assert isinstance(await call_error(harness, 100, 30), UpstreamError | UpstreamRejected | RateLimited)
    assert (harness.used(), harness.active_calls()) == (expected_tokens, 0)


@pytest.mark.parametrize(("usage", "expected_tokens"), [(TokenUsage(3, 4), 7), (TokenUsage(300, 400), 700), (None, 50 + 2)])
async def test_a_call_is_settled_with_its_usage(usage: TokenUsage | None, expected_tokens: int) -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000})
    harness.models["a"].usage = usage
    await harness.call(100)
    assert harness.used() == expected_tokens


@pytest.mark.parametrize(("usage", "expected_tokens"), [(TokenUsage(3), 3), (TokenUsage(), 50)])
async def test_an_embedding_is_settled_with_its_usage(usage: TokenUsage, expected_tokens: int) -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000})
    harness.models["a"].usage = usage
    await harness.routers[0].embed(EmbeddingRequest("m", ("text",)), harness.context(100, 10))
    assert (harness.used(), harness.active_calls()) == (expected_tokens, 0)


async def test_closing_a_stream_settles_its_reservation() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 1})
    chat = harness.chat(100)
    async with aclosing(chat):
        await anext(chat)
        assert (harness.used(), harness.active_calls()) == (100, 1)
    assert (harness.used(), harness.active_calls()) == (51, 0)


async def test_a_cancelled_call_settles_its_reservation() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 1})
    harness.models["a"].seconds = 100.0
    task = asyncio.create_task(harness.call(100))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (harness.used(), harness.active_calls()) == (51, 0)


async def test_a_call_cancelled_before_its_answer_settles_its_reservation() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 1})

    async def wait_before_answer(_: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        context.attempt.sent = True
        await asyncio.sleep(100)
        yield ChatDelta("Well.")

    harness.models["a"].script = wait_before_answer
    task = asyncio.create_task(harness.call(100))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (harness.used(), harness.active_calls()) == (100, 0)


async def test_a_long_answer_renews_its_reservation() -> None:
    harness = RouterFleet({"max_concurrent": 1}, workers=2)
    harness.models["a"].seconds = 200.0
    async with asyncio.TaskGroup() as group:
        group.create_task(harness.call())
        for _ in range(12):
            await asyncio.sleep(15)
            with pytest.raises(RateLimited):
                await harness.call(seconds=1, worker=1)
    harness.models["a"].seconds = 0.0
    assert await harness.call(seconds=1, worker=1) == "a"


async def test_an_unreadable_limit_fails_over_to_a_backend_without_limits() -> None:
    harness = RouterFleet({"rate_limit_tpm": 100}, {}, {"max_concurrent": 1}, strategy="failover")

    async def fail_to_write(write: Update) -> Item | None:
        raise StorageUnavailable("not now")

    harness.table.write = fail_to_write  # type: ignore[method-assign]
    assert await harness.call(10) == "b"
    single = RouterFleet({"rate_limit_tpm": 100})
    single.table.write = fail_to_write  # type: ignore[method-assign]
    assert isinstance(await call_error(single, 10, 30), StorageUnavailable)


class UnableModel(Model):
    """A provider that does not support the request."""

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        raise BackendUnsupported("It has no pictures.", param="messages")


async def test_an_unsupported_request_takes_nothing_of_the_limit() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000, "max_concurrent": 2})
    harness.models["a"] = UnableModel()
    chat = harness.chat(100)
    with pytest.raises(InvalidRequest) as refusal:
        await anext(chat)
    assert refusal.value.param == "messages"
    assert (harness.table.calls, chat.routing.attempts, chat.routing.backend) == (0, 0, None)


class SlowTable(MemoryTable):
    """A table whose writes fail after a minute."""

    async def write(self, write: Update) -> Item | None:
        await asyncio.sleep(60)
        raise StorageUnavailable("not now")


async def test_no_reservation_outlasts_its_request() -> None:
    harness = RouterFleet({"rate_limit_tpm": 1000})
    harness.table = SlowTable()
    start = harness.now
    with pytest.raises(UpstreamTimeout):
        await harness.call(10, seconds=20)
    assert harness.now - start <= 20.1
