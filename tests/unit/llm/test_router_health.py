"""A backend that fails is left alone for a while and probed by one request. Time here is virtual."""

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from spass.core.errors import SpassError, UpstreamRejected
from spass.llm.errors import (
    BackendAuthError,
    BackendBadRequest,
    BackendError,
    BackendForbidden,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from tests.unit.llm.limited_routers import RouterFleet, spread
from tests.unit.virtual_time import BACKEND

pytestmark = pytest.mark.anyio
BUSY = BackendUnavailable("busy", status=503)
FAILURES = [BUSY, BackendTimeout("late"), BackendRateLimited("slow"), BackendAuthError("key")]


@pytest.fixture
def anyio_backend() -> tuple[str, Mapping[str, object]]:
    return BACKEND


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failed_backend_is_not_asked_at_once_while_another_serves_the_model(failure: BackendError) -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [failure]
    assert [await harness.say() for _ in range(5)] == ["b"] * 5
    assert harness.tries == {"a": 1, "b": 5}
    await asyncio.sleep(1)
    assert await harness.say() == "a"


async def test_each_further_failure_doubles_the_peace_up_to_the_longest_delay() -> None:
    harness = RouterFleet({}, {}, retry_max_delay=8.0)
    harness.models["a"].failures = [BUSY] * 99
    for _ in range(600):
        assert await harness.say() == "b"
        await asyncio.sleep(0.1)
    began = harness.models["a"].began
    pauses = [round(after - before) for before, after in itertools.pairwise(began)]
    assert pauses[:6] == [1, 2, 4, 8, 8, 8]


async def test_a_backend_that_asks_for_time_is_given_it() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=30.0)]
    assert await harness.say() == "b"
    await asyncio.sleep(29.5)
    assert await harness.say() == "b"
    await asyncio.sleep(0.6)
    assert await harness.say() == "a"


async def test_one_request_alone_probes_a_backend_that_was_down() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BUSY]
    assert await harness.say() == "b"
    await asyncio.sleep(2)
    harness.models["a"].seconds = 5.0
    harness.models["a"].failures = [BUSY]
    answered = await asyncio.gather(*[harness.say() for _ in range(20)])
    assert set(answered) == {"b"}
    assert harness.tries["a"] == 2


async def test_after_a_probe_that_succeeded_everybody_comes_back() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BUSY]
    assert await harness.say() == "b"
    await asyncio.sleep(2)
    assert await harness.say() == "a"
    assert spread(await asyncio.gather(*[harness.say() for _ in range(10)])) == {"a": 10}


async def test_a_probe_whose_caller_leaves_is_taken_up_by_the_next() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BUSY]
    assert await harness.say() == "b"
    await asyncio.sleep(2)
    probing = asyncio.create_task(anext(harness.chat()))
    await asyncio.sleep(0)
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert await harness.say() == "a"


async def test_when_all_are_down_they_are_tried_all_the_same() -> None:
    harness = RouterFleet({}, {}, retries=1)
    for model in harness.models.values():
        model.failures = [BackendRateLimited("slow", retry_after=100.0)]
    with pytest.raises(SpassError):
        await harness.say()
    assert await harness.say() == "a"


async def test_a_backend_that_is_down_is_tried_when_the_others_have_no_room_in_time() -> None:
    harness = RouterFleet({}, {"rate_limit_tpm": 100})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=600.0)]
    assert await harness.say(100) == "b"
    assert await harness.say(100, seconds=10) == "a"


async def test_a_request_waits_for_room_rather_than_for_a_backend_that_is_down_for_longer() -> None:
    harness = RouterFleet({}, {"max_concurrent": 1})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=600.0)] * 9
    harness.models["b"].seconds = 5.0
    assert await harness.say() == "b"
    assert await asyncio.gather(*[harness.say() for _ in range(3)]) == ["b"] * 3
    assert harness.tries["a"] == 1


@pytest.mark.parametrize("failure", [BackendBadRequest("no"), BackendUnsupported("no pictures", param="messages")])
async def test_a_backend_that_refuses_a_request_is_not_down(failure: BackendError) -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [failure]
    if isinstance(failure, BackendBadRequest):
        with pytest.raises(UpstreamRejected):
            await harness.say()
    else:
        assert await harness.say() == "b"
    assert await harness.say() == "a"


async def test_a_stream_that_breaks_after_its_first_token_cools_its_backend_down_too() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].breaks = BUSY
    chat = harness.chat()
    with pytest.raises(SpassError):
        async with aclosing(chat):
            assert [delta.content async for delta in chat] == []
    harness.models["a"].breaks = None
    assert await harness.say() == "b"
    await asyncio.sleep(1)
    assert await harness.say() == "a"


@pytest.mark.parametrize("failure", [BackendForbidden("no"), BackendRequestTooLarge("too large")])
async def test_a_refused_request_moves_on_and_its_backend_stays_for_others(
    failure: BackendError,
) -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [failure]
    assert await harness.say() == "b"
    assert await harness.say() == "a"
    assert harness.tries == {"a": 2, "b": 1}


async def test_a_request_that_is_too_large_for_every_backend_is_refused_and_not_retried() -> None:
    harness = RouterFleet({}, {})
    for model in harness.models.values():
        model.failures = [BackendRequestTooLarge("Limit 1, Requested 2")] * 9
    with pytest.raises(UpstreamRejected, match="Limit 1, Requested 2"):
        await harness.say()
    assert harness.tries == {"a": 1, "b": 1}


async def test_a_rate_limit_that_a_large_request_meets_leaves_the_backend_to_smaller_ones() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BackendRateLimited("slow", retry_after=600.0)]
    assert await harness.say(1000) == "b"
    assert [await harness.say(tokens) for tokens in (999, 1, 1000, 2000, 10)] == ["a", "a", "b", "b", "a"]


async def test_a_rate_limit_that_a_small_request_meets_is_one_for_all_that_are_larger() -> None:
    harness = RouterFleet({}, {})
    harness.models["a"].failures = [BackendRateLimited("slow"), BackendRateLimited("slow", retry_after=600.0)]
    assert [await harness.say(tokens) for tokens in (1000, 10, 10, 1000)] == ["b"] * 4
    assert harness.tries["a"] == 2
    assert await harness.say(9) == "a"


async def test_large_requests_refused_repeatedly_do_not_block_smaller_ones() -> None:
    harness = RouterFleet({}, {})
    slow = BackendRateLimited("slow", retry_after=600.0)
    harness.models["a"].failures = [BackendRateLimited("slow"), slow]
    assert await harness.say(10) == "b"
    await asyncio.sleep(1)
    assert await harness.say(1000) == "b"
    assert await harness.say(10) == "a"
