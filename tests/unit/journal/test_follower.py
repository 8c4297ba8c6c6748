"""Test what a follower reads, when it polls, and how it notices that a stream is lost, replaced or deleted."""

import asyncio

import pytest

from spass.core.errors import StorageUnavailable, StreamNotFound, TurnLost
from spass.core.ids import SessionId
from spass.journal.follower import StreamRestarted
from spass.journal.frames import Chunk, EventId, Frame
from spass.journal.head import KEEP_SECONDS, StreamClaim
from spass.journal.writer import JournalWriter
from spass.store import keys
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Delete, Put, Update
from tests.unit.journal.conftest import DIGEST, SESSION, SUCCESSOR, Stream, numbered, read_all, step, token, virtual_now

pytestmark = pytest.mark.anyio
FRAMES = [step("planning"), *map(token, "abc"), step("complete")]


async def started(stream: Stream, owner: str = "turn_1") -> tuple[StreamClaim, JournalWriter]:
    await stream.create_session()
    claimed = await stream.claim(owner)
    return claimed, stream.writer(claimed)


async def finished(stream: Stream) -> None:
    _, writer = await started(stream)
    await stream.finish(writer, FRAMES)


async def lost(stream: Stream, written: list[Frame]) -> StreamClaim:
    """Write frames in an attempt whose worker dies, and wait until its lease has expired."""
    claimed, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    for frame in written:
        stream.frames.append(frame)
    await asyncio.sleep(2)
    running.cancel()
    stream.skew += LEASE_SECONDS
    return claimed


async def test_a_follower_is_at_most_two_seconds_behind(stream: Stream) -> None:
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    appended: list[float] = []
    follower = await stream.follow()

    async def write() -> None:
        for _ in range(300):
            appended.append(virtual_now())
            stream.frames.append(token("a"))
            await asyncio.sleep(0.1)
        await stream.finish(writer)

    writing = asyncio.create_task(write())
    behind = [virtual_now() - appended[event.n - 1] async for event, _ in follower.frames(60)]
    await asyncio.gather(writing, running)
    assert len(behind) == 300
    assert max(behind) < 2.1
    assert follower.is_over


async def test_a_follower_polls_fast_at_first_and_then_every_second(stream: Stream) -> None:
    await started(stream)
    follower = await stream.follow()
    before = len(stream.plan.calls)
    assert await read_all(follower, seconds=3) == []
    assert stream.plan.operations(before) == ["Query", "GetItem"] * 10
    before = len(stream.plan.calls)
    assert await read_all(follower, seconds=23) == []
    assert stream.plan.operations(before) == ["Query", "GetItem"] * 30


async def test_polls_with_frames_read_no_head(stream: Stream) -> None:
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    stream.frames.append(step("planning"))
    await asyncio.sleep(0.1)
    follower = await stream.follow()
    before = len(stream.plan.calls)
    following = asyncio.create_task(read_all(follower))
    for _ in range(30):
        stream.frames.append(step("executing"))
        await asyncio.sleep(0.1)
    assert "Query" in stream.plan.operations(before)
    assert "GetItem" not in stream.plan.operations(before)
    await stream.finish(writer)
    await running
    assert len(await following) == 31


async def test_a_finished_stream_is_read_without_waiting(stream: Stream) -> None:
    await finished(stream)
    before = virtual_now()
    assert await stream.read() == numbered(FRAMES)
    assert virtual_now() - before < 0.1


async def test_a_long_stream_is_read_in_pages(stream: Stream) -> None:
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    frames = [step(str(number)) for number in range(100)]
    for frame in frames:
        stream.frames.append(frame)
        await asyncio.sleep(0.01)
    await stream.finish(writer)
    await running
    assert len(stream.stored()) == 101
    before = len(stream.plan.calls), virtual_now()
    assert await stream.read() == numbered(frames)
    assert stream.plan.operations(before[0]).count("Query") == 4
    assert virtual_now() - before[1] < 0.1
    assert await stream.read(EventId(1, 70)) == numbered(frames)[70:]


@pytest.mark.parametrize("n", range(1, len(FRAMES)))
async def test_a_follower_continues_after_any_event(stream: Stream, n: int) -> None:
    await finished(stream)
    assert await stream.read(EventId(1, n)) == numbered(FRAMES)[n:]


@pytest.mark.parametrize("n", [len(FRAMES), len(FRAMES) + 1, 999_999_999])
async def test_a_finished_stream_is_over_after_its_last_event(stream: Stream, n: int) -> None:
    await finished(stream)
    follower = await stream.follow(EventId(1, n))
    assert follower.is_over
    assert await read_all(follower) == []
    assert not (await stream.follow(EventId(1, len(FRAMES) - 1))).is_over
    assert not (await stream.follow()).is_over


async def test_a_follower_beyond_the_last_event_of_a_running_stream_waits_for_more(stream: Stream) -> None:
    _, writer = await started(stream)
    follower = await stream.follow(EventId(1, 2))
    assert not follower.is_over
    following = asyncio.create_task(read_all(follower))
    await asyncio.sleep(5)
    await stream.finish(writer, FRAMES)
    assert await following == numbered(FRAMES)[2:]


async def test_an_event_of_another_attempt_starts_the_newest_one_from_its_start(stream: Stream) -> None:
    await lost(stream, [step("planning"), step("executing")])
    _, writer = await started(stream, "turn_2")
    stream.frames.events.clear()
    await stream.finish(writer, FRAMES)
    for after in (None, EventId(1, 1), EventId(1, 2), EventId(3, 4)):
        assert await stream.read(after) == numbered(FRAMES, attempt=2)
    assert await stream.read(EventId(2, 3)) == numbered(FRAMES, attempt=2)[3:]


async def test_an_unknown_or_expired_stream_is_not_found(stream: Stream) -> None:
    with pytest.raises(StreamNotFound):
        await stream.follow()
    await finished(stream)
    await asyncio.sleep(KEEP_SECONDS - 1)
    assert len(await stream.read()) == len(FRAMES)
    await asyncio.sleep(1)
    with pytest.raises(StreamNotFound):
        await stream.follow()


async def test_a_lost_turn_is_reported_after_its_frames(stream: Stream) -> None:
    written = [step("planning"), token("a")]
    await lost(stream, written)
    seen: list[tuple[EventId, Frame]] = []
    with pytest.raises(TurnLost):
        async for frame in (await stream.follow()).frames(60):
            seen.append(frame)
    assert seen == numbered(written)
    with pytest.raises(TurnLost):
        await stream.read(EventId(1, 2))


async def test_a_turn_lost_before_its_first_frame_is_reported(stream: Stream) -> None:
    await lost(stream, [])
    with pytest.raises(TurnLost):
        await stream.read()


async def test_a_dead_worker_is_noticed_within_90_seconds(stream: Stream) -> None:
    claimed, _ = await started(stream)
    follower = await stream.follow()
    following = asyncio.create_task(read_all(follower))
    await asyncio.sleep(19)
    await claimed.renew(stream.now())
    died = virtual_now()
    with pytest.raises(TurnLost):
        await following
    assert LEASE_SECONDS - 1 <= virtual_now() - died < 90


async def test_frames_written_just_before_a_loss_are_delivered(stream: Stream) -> None:
    """They are written between the follower's query and its reading of the head."""
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    frames = (await stream.follow()).frames(60)
    gate = stream.plan.gates["GetItem"] = asyncio.Event()
    following = asyncio.create_task(anext(frames))
    await asyncio.sleep(1)
    stream.frames.append(step("planning"))
    await asyncio.sleep(1)
    stream.skew += LEASE_SECONDS
    gate.set()
    assert await following == (EventId(1, 1), step("planning"))
    running.cancel()


async def test_a_worker_that_renews_its_expired_lease_is_still_followed(stream: Stream) -> None:
    claimed, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    follower = await stream.follow()
    gate = stream.plan.gates["GetItem"] = asyncio.Event()
    following = asyncio.create_task(read_all(follower))
    await asyncio.sleep(1)
    stream.frames.append(step("planning"))
    await asyncio.sleep(1)
    stream.skew += LEASE_SECONDS
    gate.set()
    await asyncio.sleep(0.1)
    await claimed.renew(stream.now())
    await asyncio.sleep(5)
    await stream.finish(writer, FRAMES)
    await running
    assert await following == numbered([step("planning"), *FRAMES])


async def test_frames_written_just_before_a_move_are_delivered(stream: Stream) -> None:
    """They are written between the follower's query and its reading of the head."""
    await stream.create_session(SUCCESSOR)
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    follower = await stream.follow()
    gate = stream.plan.gates["GetItem"] = asyncio.Event()
    following = asyncio.create_task(read_all(follower, seconds=1.7))
    await asyncio.sleep(1)
    stream.frames.append(step("planning"))
    await asyncio.sleep(0.5)
    writer.continue_in(SUCCESSOR)
    stream.frames.append(step("planning again"))
    await asyncio.sleep(0.1)
    gate.set()
    assert await following == numbered([step("planning"), step("planning again")])
    assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [1])
    await stream.finish(writer)
    await running


async def test_an_undone_claim_restarts_its_followers(stream: Stream) -> None:
    claimed, _ = await started(stream)
    following = asyncio.create_task(read_all(await stream.follow()))
    await asyncio.sleep(1)
    await claimed.undo()
    with pytest.raises(StreamRestarted):
        await following
    with pytest.raises(StreamNotFound):
        await stream.follow()


async def test_an_abandoned_claim_restarts_its_followers(stream: Stream) -> None:
    claimed, _ = await started(stream)
    following = asyncio.create_task(read_all(await stream.follow()))
    await asyncio.sleep(1)
    await claimed.abandon()
    with pytest.raises(StreamRestarted):
        await following
    with pytest.raises(StreamNotFound):
        await stream.follow()


async def test_an_undone_second_claim_restarts_its_followers(stream: Stream) -> None:
    await lost(stream, [step("planning")])
    second = await stream.claim("turn_2")
    following = asyncio.create_task(read_all(await stream.follow()))
    await asyncio.sleep(1)
    await second.undo()
    with pytest.raises(StreamRestarted):
        await following
    with pytest.raises(TurnLost):
        await stream.read()


async def test_a_replaced_attempt_is_lost_for_those_who_have_read_some_of_it(stream: Stream) -> None:
    await lost(stream, [step("planning")])
    frames = (await stream.follow()).frames(60)
    assert await anext(frames) == (EventId(1, 1), step("planning"))
    await stream.claim("turn_2")
    with pytest.raises(TurnLost):
        await anext(frames)


async def delete_session(stream: Stream, session: SessionId, *, removed: bool) -> None:
    """Delete a session as ``sessions`` does: hide it, remove its chunks, and at last remove its head."""
    key = keys.session_head(stream.store.tenant, session)
    await stream.store.table.write(Update(key, set={"deleted_at": "now"}))
    if removed:
        for item in await stream.store.table.query(key.pk, prefix=keys.STREAM_PREFIX):
            await stream.store.table.write(Delete(keys.Key(key.pk, str(item["sk"]))))
        await stream.store.table.write(Delete(key))


@pytest.mark.parametrize("session", [SESSION, SUCCESSOR])
@pytest.mark.parametrize("removed", [False, True])
async def test_a_stream_whose_session_was_deleted_is_not_found(stream: Stream, session: SessionId, removed: bool) -> None:
    await stream.create_session(SUCCESSOR)
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    stream.frames.append(step("planning"))
    await asyncio.sleep(0.1)
    writer.continue_in(SUCCESSOR)
    await stream.finish(writer, FRAMES)
    await running
    await delete_session(stream, session, removed=removed)
    for after in (None, EventId(1, 1), EventId(1, len(FRAMES)), EventId(1, len(FRAMES) + 1)):
        with pytest.raises(StreamNotFound):
            await stream.follow(after)


async def test_a_stream_whose_only_session_was_removed_is_not_found(stream: Stream) -> None:
    await finished(stream)
    await delete_session(stream, SESSION, removed=True)
    with pytest.raises(StreamNotFound):
        await stream.follow()


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_lost_stream_without_chunks_is_found_unless_its_session_was_deleted(stream: Stream, deleted: bool) -> None:
    await lost(stream, [])
    if deleted:
        await stream.store.table.write(Update(keys.session_head(stream.store.tenant, SESSION), set={"deleted_at": "2026"}))
    with pytest.raises(StreamNotFound if deleted else TurnLost):
        await stream.read()


@pytest.mark.parametrize("size", [1, 3, 9, 40])
async def test_chunks_of_a_deleted_stream_with_the_same_name_are_not_read(stream: Stream, size: int) -> None:
    """The name is used anew in the session in which the deleted stream went on."""
    await stream.create_session(SUCCESSOR)
    await started(stream)
    head = keys.stream_head(stream.store.tenant, DIGEST)
    for first in range(2, 45):
        key = keys.stream_chunk(stream.store.tenant, SESSION, DIGEST, 1, first)
        await stream.store.table.write(Put(key, {**Chunk(first, [step("old")]).attributes(2**31), "owner": "turn_1"}))
    await stream.store.table.write(Delete(head))
    _, writer = await started(stream, "turn_2")
    running, reading = asyncio.create_task(writer.run()), asyncio.create_task(stream.read())
    new = [token(str(number)) for number in range(4 * size)]
    for start in range(0, len(new), size):
        for frame in new[start : start + size]:
            stream.frames.append(frame)
        await asyncio.sleep(1.5)
    await stream.finish(writer, [step("done")])
    await running
    assert await reading == await stream.read() == numbered([*new, step("done")])


async def test_no_frame_follows_a_missing_chunk(stream: Stream) -> None:
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    for frame in FRAMES:
        stream.frames.append(frame)
        await asyncio.sleep(1.1)
    await stream.finish(writer)
    await running
    await stream.store.table.write(Delete(keys.stream_chunk(stream.store.tenant, SESSION, DIGEST, 1, 3)))
    seen: list[tuple[EventId, Frame]] = []
    with pytest.raises(StreamNotFound):
        async for event in (await stream.follow()).frames(60):
            seen.append(event)
    assert seen == numbered(FRAMES)[:2]


async def test_a_finished_stream_that_moved_is_read_without_waiting(stream: Stream) -> None:
    await stream.create_session(SUCCESSOR)
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    stream.frames.append(step("planning"))
    await asyncio.sleep(0.1)
    writer.continue_in(SUCCESSOR)
    await stream.finish(writer, FRAMES)
    await running
    before = virtual_now()
    assert await stream.read() == numbered([step("planning"), *FRAMES])
    assert virtual_now() - before < 0.1


async def test_a_stream_that_is_deleted_while_it_is_read_ends_as_not_found(stream: Stream) -> None:
    _, writer = await started(stream)
    running = asyncio.create_task(writer.run())
    for number in range(100):
        stream.frames.append(step(str(number)))
        await asyncio.sleep(0.01)
    await stream.finish(writer)
    await running
    frames = (await stream.follow()).frames(60)
    assert await anext(frames) == (EventId(1, 1), step("0"))
    await delete_session(stream, SESSION, removed=True)
    seen = 1
    with pytest.raises(StreamNotFound):
        async for event, _ in frames:
            seen += 1
            assert event.n == seen
    assert seen < 100


async def test_a_stream_without_chunks_needs_no_session(stream: Stream) -> None:
    claimed = await stream.claim()
    follower = await stream.follow()
    assert not follower.is_over
    await stream.create_session()
    await stream.finish(stream.writer(claimed), FRAMES)
    assert await read_all(follower) == numbered(FRAMES)


async def test_a_follower_goes_on_after_failed_polls_and_gives_up_after_many(stream: Stream) -> None:
    _, writer = await started(stream)
    follower = await stream.follow()
    stream.plan.fail_next(8)
    following = asyncio.create_task(read_all(follower))
    await asyncio.sleep(5)
    await stream.finish(writer, FRAMES)
    assert await following == numbered(FRAMES)
    second = await stream.follow(EventId(1, 1))
    await asyncio.sleep(0)
    assert await read_all(second) == numbered(FRAMES)[1:]


async def test_a_follower_of_an_unreachable_table_gives_up(stream: Stream) -> None:
    await started(stream)
    follower = await stream.follow()
    stream.plan.fail_next(1000)
    with pytest.raises(StorageUnavailable):
        await read_all(follower)
    with pytest.raises(StorageUnavailable):
        await stream.follow()


async def test_a_follower_ends_after_its_seconds(stream: Stream) -> None:
    claimed, _ = await started(stream)
    before = virtual_now()
    assert await read_all(await stream.follow(), seconds=7) == []
    assert 7 <= virtual_now() - before < 7.1
    assert not claimed.head.stop
