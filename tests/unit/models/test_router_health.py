"""The circuit breaker: a failing backend has a cooldown, and then one request probes it. Time is virtual."""

import asyncio
import itertools
from contextlib import aclosing

import pytest

from spass.core.errors import SpassError, UpstreamRejected
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendForbidden,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from tests.unit.models.limited_routers import RouterFleet, count_by_backend
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time
BUSY = BackendUnavailable("busy", status=503)
FAILURES = [BUSY, BackendTimeout("late"), BackendRateLimited("slow"), BackendAuthError("key")]


def failing_fleet(*failures: AttemptFailed) -> RouterFleet:
    """Return two backends. The first fails with ``failures`` before it answers."""
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [*failures]
    return harness


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failed_backend_is_skipped_during_its_cooldown(failure: AttemptFailed) -> None:
    harness = failing_fleet(failure)
    assert [await harness.call() for _ in range(5)] == ["b"] * 5
    assert harness.attempts == {"a": 1, "b": 5}
    await asyncio.sleep(1)
    assert await harness.call() == "a"


async def test_each_failure_doubles_the_cooldown_up_to_the_maximum() -> None:
    harness = RouterFleet({}, {}, retry_max_delay=8.0)
    harness.models["a"].failures = [BUSY] * 99
    for _ in range(600):
        assert await harness.call() == "b"
        await asyncio.sleep(0.1)
    start_times = harness.models["a"].began
    pauses = [round(after - before) for before, after in itertools.pairwise(start_times)]
    assert pauses[:6] == [1, 2, 4, 8, 8, 8]


async def test_retry_after_extends_the_cooldown() -> None:
    harness = failing_fleet(BackendRateLimited("slow", retry_after=30.0))
    assert await harness.call() == "b"
    await asyncio.sleep(29.5)
    assert await harness.call() == "b"
    await asyncio.sleep(0.6)
    assert await harness.call() == "a"


async def test_only_one_request_probes_a_backend() -> None:
    harness = failing_fleet(BUSY)
    assert await harness.call() == "b"
    await asyncio.sleep(2)
    harness.models["a"].seconds = 5.0
    harness.models["a"].failures = [BUSY]
    backends = await asyncio.gather(*[harness.call() for _ in range(20)])
    assert set(backends) == {"b"}
    assert harness.attempts["a"] == 2


async def test_a_successful_probe_closes_the_circuit() -> None:
    harness = failing_fleet(BUSY)
    assert await harness.call() == "b"
    await asyncio.sleep(2)
    assert await harness.call() == "a"
    assert count_by_backend(await asyncio.gather(*[harness.call() for _ in range(10)])) == {"a": 10}


async def test_the_request_after_a_cancelled_probe_probes() -> None:
    harness = failing_fleet(BUSY)
    assert await harness.call() == "b"
    await asyncio.sleep(2)
    probe = asyncio.create_task(anext(harness.chat()))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert await harness.call() == "a"


async def test_backends_are_attempted_if_all_circuits_are_open() -> None:
    harness = RouterFleet({}, {}, retries=1)
    for model in harness.models.values():
        model.failures = [BackendRateLimited("slow", retry_after=100.0)]
    with pytest.raises(SpassError):
        await harness.call()
    assert await harness.call() == "a"


async def test_an_open_circuit_is_attempted_if_the_others_are_full() -> None:
    harness = RouterFleet({}, {"rate_limit_tpm": 100})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=600.0)]
    assert await harness.call(100) == "b"
    assert await harness.call(100, seconds=10) == "a"


async def test_a_request_prefers_room_to_a_longer_cooldown() -> None:
    harness = RouterFleet({}, {"max_concurrent": 1})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=600.0)] * 9
    harness.models["b"].seconds = 5.0
    assert await harness.call() == "b"
    assert await asyncio.gather(*[harness.call() for _ in range(3)]) == ["b"] * 3
    assert harness.attempts["a"] == 1


@pytest.mark.parametrize("failure", [BackendBadRequest("no"), BackendUnsupported("no pictures", param="messages")])
async def test_a_bad_request_does_not_open_the_circuit(failure: AttemptFailed) -> None:
    harness = failing_fleet(failure)
    if isinstance(failure, BackendBadRequest):
        with pytest.raises(UpstreamRejected):
            await harness.call()
    else:
        assert await harness.call() == "b"
    assert await harness.call() == "a"


async def test_a_stream_that_breaks_opens_the_circuit() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].breaks = BUSY
    chat = harness.chat()
    with pytest.raises(SpassError):
        async with aclosing(chat):
            assert [delta.content async for delta in chat] == []
    harness.models["a"].breaks = None
    assert await harness.call() == "b"
    await asyncio.sleep(1)
    assert await harness.call() == "a"


@pytest.mark.parametrize("failure", [BackendForbidden("no"), BackendRequestTooLarge("too large")])
async def test_a_forbidden_request_fails_over_and_opens_no_circuit(
    failure: AttemptFailed,
) -> None:
    harness = failing_fleet(failure)
    assert await harness.call() == "b"
    assert await harness.call() == "a"
    assert harness.attempts == {"a": 2, "b": 1}


async def test_a_request_too_large_for_all_backends_is_not_retried() -> None:
    harness = RouterFleet({}, {})
    for model in harness.models.values():
        model.failures = [BackendRequestTooLarge("Limit 1, Requested 2")] * 9
    with pytest.raises(UpstreamRejected, match="Limit 1, Requested 2"):
        await harness.call()
    assert harness.attempts == {"a": 1, "b": 1}


async def test_a_rate_limit_does_not_stop_smaller_requests() -> None:
    harness = failing_fleet(BackendRateLimited("slow", retry_after=600.0))
    assert await harness.call(1000) == "b"
    assert [await harness.call(tokens) for tokens in (999, 1, 1000, 2000, 10)] == ["a", "a", "b", "b", "a"]


async def test_a_rate_limit_stops_larger_requests() -> None:
    harness = failing_fleet(BackendRateLimited("slow"), BackendRateLimited("slow", retry_after=600.0))
    assert [await harness.call(tokens) for tokens in (1000, 10, 10, 1000)] == ["b"] * 4
    assert harness.attempts["a"] == 2
    assert await harness.call(9) == "a"


async def test_large_requests_refused_repeatedly_do_not_block_smaller_ones() -> None:
    harness = RouterFleet({}, {})
    slow = BackendRateLimited("slow", retry_after=600.0)
    harness.models["a"].failures = [BackendRateLimited("slow"), slow]
    assert await harness.call(10) == "b"
    await asyncio.sleep(1)
    assert await harness.call(1000) == "b"
    assert await harness.call(10) == "a"
