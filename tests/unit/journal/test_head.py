"""Test who may run a stream: claims, leases, stops."""

import asyncio
from dataclasses import replace

import pytest

from spass.core.errors import IdempotencyKeyReused, StorageUnavailable, StreamNotFound
from spass.core.ids import AgentName, SessionId, UserId
from spass.journal.head import (
    KEEP_SECONDS,
    StopState,
    StreamClaim,
    StreamHead,
    StreamState,
    read_head,
    request_stop,
    stream_digest,
)
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.table import ConditionFailed, Reply
from spass.store.writes import Delete, Item, Put, Update
from spass.testing.faults import Fault
from tests.unit.journal.conftest import DIGEST, SESSION, SUCCESSOR, Stream, step

pytestmark = pytest.mark.anyio


async def head_of(stream: Stream) -> StreamHead:
    head = await read_head(stream.store, DIGEST)
    assert head is not None
    return head


def test_users_agents_and_message_ids_have_their_own_digests() -> None:
    names = [("a", "b", "c"), ("a", "b", "d"), ("a", "bc", ""), ("ab", "", "c"), ("a", 'b","c', "")]
    assert len({stream_digest(UserId(user), AgentName(agent), message) for user, agent, message in names}) == len(names)


async def test_the_first_claim_is_one_write(stream: Stream) -> None:
    claimed = await stream.claim()
    assert [call.operation for call in stream.plan.calls] == ["PutItem"]
    head = await head_of(stream)
    assert head == claimed.head
    assert (head.attempt, head.session, head.owner, head.state) == (1, SESSION, "turn_1", StreamState.RUNNING)
    assert (head.expires_at, head.ttl) == (int(stream.now()) + LEASE_SECONDS, int(stream.now()) + KEEP_SECONDS)
    assert claimed.previous_owner is None


async def test_one_of_eight_concurrent_requests_runs_and_the_others_follow(stream: Stream) -> None:
    results = await asyncio.gather(*(stream.claim_or_head(f"turn_{number}") for number in range(8)))
    (winner,) = [result for result in results if isinstance(result, StreamClaim)]
    assert all(result == winner.head for result in results if isinstance(result, StreamHead))


async def test_one_of_eight_concurrent_requests_replaces_a_lost_attempt(stream: Stream) -> None:
    await stream.claim("turn_lost")
    stream.skew += LEASE_SECONDS
    results = await asyncio.gather(*(stream.claim_or_head(f"turn_{number}") for number in range(8)))
    (winner,) = [result for result in results if isinstance(result, StreamClaim)]
    assert (winner.head.attempt, winner.previous_owner) == (2, "turn_lost")
    assert all(result == winner.head for result in results if isinstance(result, StreamHead))


async def test_a_running_stream_can_be_claimed_when_its_lease_has_expired(stream: Stream) -> None:
    first = await stream.claim()
    await first.move_to(SUCCESSOR)
    stream.skew += LEASE_SECONDS - 1
    assert isinstance(await stream.claim_or_head("turn_2"), StreamHead)
    await first.renew(stream.now())
    stream.skew += LEASE_SECONDS - 1
    assert isinstance(await stream.claim_or_head("turn_2"), StreamHead)
    stream.skew += 1
    second = await stream.claim("turn_2")
    assert second.head == replace(
        first.head,
        attempt=2,
        owner="turn_2",
        session=SUCCESSOR,
        successor=None,
        expires_at=int(stream.now()) + LEASE_SECONDS,
        ttl=int(stream.now()) + KEEP_SECONDS,
    )
    assert second.head == await head_of(stream)


async def between_two_puts(stream: Stream) -> "asyncio.Task[StreamClaim | StreamHead]":
    """Return a claim that has read that the first attempt is lost, and has not written the second one yet."""
    stream.skew += LEASE_SECONDS
    claiming = asyncio.create_task(stream.claim_or_head("turn_2"))
    await asyncio.sleep(1.5 * stream.plan.latency)
    stream.plan.latency = 0.0
    return claiming


async def test_an_owner_that_renews_during_a_second_claim_keeps_the_stream(stream: Stream) -> None:
    first = await stream.claim()
    claiming = await between_two_puts(stream)
    await first.renew(stream.now())
    assert await claiming == first.head == await head_of(stream)


async def test_an_owner_that_finishes_during_a_second_claim_keeps_the_stream(stream: Stream) -> None:
    first = await stream.claim()
    claiming = await between_two_puts(stream)
    await stream.store.table.write(first.ending(StreamState.DONE))
    assert await claiming == replace(first.head, state=StreamState.DONE) == await head_of(stream)


async def test_a_stream_that_is_deleted_during_a_second_claim_starts_anew(stream: Stream) -> None:
    first = await stream.claim()
    claiming = await between_two_puts(stream)
    await first.undo()
    claimed = await claiming
    assert isinstance(claimed, StreamClaim)
    assert (claimed.head.attempt, claimed.previous_owner) == (1, None)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED])
async def test_a_claim_whose_reply_was_lost_is_the_own_one(stream: Stream, fault: Fault) -> None:
    stream.plan.fail_next(1, fault)
    assert (await stream.claim()).head.attempt == 1
    stream.skew += LEASE_SECONDS
    stream.plan.faults = {len(stream.plan.calls) + 1: fault}
    assert ((await stream.claim("turn_2")).head.attempt, (await head_of(stream)).owner) == (2, "turn_2")


async def test_a_failed_stream_can_be_claimed_at_once_and_a_finished_one_cannot(stream: Stream) -> None:
    first = await stream.claim()
    assert await stream.writer(first).fail([step("error")])
    second = await stream.claim("turn_2")
    assert (second.head.attempt, second.head.session, second.previous_owner) == (2, SESSION, "turn_1")
    await stream.finish(stream.writer(second))
    stream.skew += LEASE_SECONDS
    head = await stream.claim_or_head("turn_3")
    assert isinstance(head, StreamHead)
    assert (head.state, head.attempt, head.owner) == (StreamState.DONE, 2, "turn_2")


@pytest.mark.parametrize("state", ["running", "lost", "failed", "done"])
async def test_another_body_is_refused_for_24_hours(stream: Stream, state: str) -> None:
    claimed = await stream.claim()
    if state == "failed":
        await stream.writer(claimed).fail([])
    if state == "done":
        await stream.finish(stream.writer(claimed))
    if state == "lost":
        stream.skew += LEASE_SECONDS
    with pytest.raises(IdempotencyKeyReused):
        await stream.claim_or_head("turn_2", "another body")
    stream.skew += KEEP_SECONDS
    assert isinstance(fresh := await stream.claim_or_head("turn_2", "another body"), StreamClaim)
    assert (fresh.head.attempt, fresh.previous_owner) == (1, None)


async def test_a_lost_owner_can_change_nothing(stream: Stream) -> None:
    lost = await stream.claim()
    stream.skew += LEASE_SECONDS
    second = await stream.claim("turn_2")
    with pytest.raises(LeaseLost):
        await lost.renew(stream.now())
    with pytest.raises(LeaseLost):
        await lost.use_session(SUCCESSOR)
    with pytest.raises(LeaseLost):
        await lost.move_to(SUCCESSOR)
    await lost.undo()
    assert await head_of(stream) == second.head


async def test_a_renewal_after_the_end_of_the_attempt_has_no_effect(stream: Stream) -> None:
    claimed = await stream.claim()
    await stream.finish(stream.writer(claimed))
    head = await head_of(stream)
    await claimed.renew(stream.now() + 20)
    assert await head_of(stream) == head


async def test_a_renewal_and_a_move_at_one_time_both_hold(stream: Stream) -> None:
    claimed = await stream.claim()
    await claimed.use_session(SessionId("ses_c"))
    stream.skew += 20
    await asyncio.gather(claimed.renew(stream.now()), claimed.move_to(SUCCESSOR))
    assert claimed.head == await head_of(stream)
    assert (claimed.head.session, claimed.head.successor) == ("ses_c", SUCCESSOR)


async def test_a_late_duplicate_of_a_session_does_not_replace_a_later_one(stream: Stream) -> None:
    """The client of AWS repeats a call whose reply is lost. The first of the two may arrive after later calls."""
    sent, write_now = list[Put | Update | Delete](), stream.aws.table.write

    def record(*, write: Put | Update | Delete) -> Reply[Item | None]:
        sent.append(write)
        return write_now(write=write)

    claimed = await stream.claim()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream.aws.table, "write", record)
        for session in ("ses_c", "ses_d", SESSION):
            await claimed.use_session(SessionId(session))
    *earlier, last = sent
    for late in earlier:
        with pytest.raises(ConditionFailed):
            write_now(write=late)
    write_now(write=last)
    assert (await head_of(stream)).session == SESSION
    assert claimed.head == await head_of(stream)


async def test_an_undone_first_claim_leaves_nothing(stream: Stream) -> None:
    await (await stream.claim()).undo()
    assert list(stream.aws.table.items()) == []


@pytest.mark.parametrize("state", ["failed", "lost"])
async def test_an_undone_claim_restores_the_attempt_before_it(stream: Stream, state: str) -> None:
    first = await stream.claim()
    await first.move_to(SUCCESSOR)
    if state == "failed":
        await stream.writer(first).fail([])
    stream.skew += LEASE_SECONDS
    before = list(stream.aws.table.items())
    await (await stream.claim("turn_2")).undo()
    assert list(stream.aws.table.items()) == before


async def test_an_undo_after_the_end_of_the_attempt_has_no_effect(stream: Stream) -> None:
    claimed = await stream.claim()
    await stream.finish(stream.writer(claimed))
    await claimed.undo()
    assert (await head_of(stream)).state is StreamState.DONE


async def test_an_abandoned_attempt_is_replaced_at_once_in_the_same_session(stream: Stream) -> None:
    claimed = await stream.claim()
    await claimed.use_session(SessionId("ses_c"))
    await claimed.abandon()
    assert (await head_of(stream)).state is StreamState.FAILED
    second = await stream.claim("turn_2")
    assert (second.head.attempt, second.head.session, second.previous_owner) == (2, "ses_c", "turn_1")
    await claimed.abandon()
    assert await head_of(stream) == second.head


async def test_a_stop_reaches_the_owner_and_no_later_attempt(stream: Stream) -> None:
    claimed = await stream.claim()
    assert not await claimed.is_stop_requested()
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.CANCELLING
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.CANCELLING
    assert await claimed.is_stop_requested()
    stream.skew += LEASE_SECONDS
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.FAILED
    second = await stream.claim("turn_2")
    assert not await second.is_stop_requested()
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.CANCELLING
    assert await second.is_stop_requested()
    assert not await claimed.is_stop_requested()


async def test_a_stop_of_an_ended_stream_returns_its_state(stream: Stream) -> None:
    first = await stream.claim()
    await stream.writer(first).fail([])
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.FAILED
    await stream.finish(stream.writer(await stream.claim("turn_2")))
    assert await request_stop(stream.store, DIGEST, stream.now()) is StopState.DONE


async def test_a_stop_of_an_unknown_or_expired_stream_is_refused(stream: Stream) -> None:
    with pytest.raises(StreamNotFound):
        await request_stop(stream.store, DIGEST, stream.now())
    assert await read_head(stream.store, DIGEST) is None
    await stream.claim()
    stream.skew += KEEP_SECONDS
    with pytest.raises(StreamNotFound):
        await request_stop(stream.store, DIGEST, stream.now())


async def test_an_owner_that_cannot_read_its_head_is_not_stopped(stream: Stream) -> None:
    claimed = await stream.claim()
    await request_stop(stream.store, DIGEST, stream.now())
    stream.plan.fail_next(2)
    assert not await claimed.is_stop_requested()
    assert await claimed.is_stop_requested()


async def test_a_claim_with_an_unknown_outcome_is_undone(stream: Stream) -> None:
    stream.plan.faults = {0: Fault.LOST_REPLY, 1: Fault.THROTTLE}
    with pytest.raises(StorageUnavailable):
        await stream.claim()
    assert list(stream.aws.table.items()) == []
