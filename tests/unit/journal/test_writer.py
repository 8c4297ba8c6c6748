"""Test when and how the writer flushes, and how a stream ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spass.core.errors import StorageUnavailable
from spass.journal.frames import MAX_CHUNK_BYTES, Frame
from spass.journal.head import StreamClaim, StreamState, read_head
from spass.journal.writer import FLUSH_CHARACTERS, FLUSH_SECONDS, JournalWriter
from spass.store import keys
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.table import TransactionFailed
from spass.store.writes import Delete, Put
from spass.testing.faults import Fault
from tests.unit.journal.conftest import DIGEST, SESSION, SUCCESSOR, Stream, numbered, step, token, virtual_now

pytestmark = pytest.mark.anyio
LAST = [step("complete"), Frame('{"type":"done"}', event="done")]
ERROR = [step("error"), Frame('{"type":"error"}')]


@asynccontextmanager
async def running_writer(stream: Stream) -> AsyncIterator[tuple[JournalWriter, StreamClaim]]:
    """Run a writer for a claimed stream, and check that it ends when the stream does."""
    await stream.create_session()
    claimed = await stream.claim()
    writer = stream.writer(claimed)
    running = asyncio.create_task(writer.run())
    yield writer, claimed
    stream.frames.end()
    async with asyncio.timeout(FLUSH_SECONDS + 0.01):
        await running


async def state_of(stream: Stream) -> StreamState:
    head = await read_head(stream.store, DIGEST)
    assert head is not None
    return head.state


async def test_a_finished_stream_replays_all_frames_with_their_ids(stream: Stream) -> None:
    frames = [step("planning"), *map(token, "Hello world")]
    async with running_writer(stream) as (writer, _):
        for frame in frames:
            stream.frames.append(frame)
            await asyncio.sleep(0.3)
        await stream.finish(writer, LAST)
    assert await stream.read() == numbered([*frames, *LAST])
    assert await state_of(stream) is StreamState.DONE
    assert {item["ttl"] for item in stream.aws.table.items() if "frames" in item} == {(await stream.follow()).head.ttl}


async def test_tokens_are_flushed_once_a_second(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        await asyncio.sleep(5)
        stream.frames.append(token("a"))
        await asyncio.sleep(0.9)
        stream.frames.append(token("b"))
        assert stream.stored() == []
        await asyncio.sleep(0.15)
        assert stream.stored() == [2]
        for _ in range(100):
            stream.frames.append(token("c"))
            await asyncio.sleep(0.1)
        assert 10 <= len(stream.stored()) <= 11
        await stream.finish(writer)


async def test_a_frame_that_is_not_a_token_is_flushed_at_once_with_all_before_it(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        for frame in (step("planning"), token("a"), token("b"), step("executing")):
            stream.frames.append(frame)
            await asyncio.sleep(0.01)
        assert stream.stored() == [1, 3]
        await stream.finish(writer)


async def test_many_characters_are_flushed_at_once(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        for _ in range(8):
            stream.frames.append(token("x" * 1023))
            await asyncio.sleep(0.01)
        assert stream.stored() == []
        stream.frames.append(token("x" * 8))
        await asyncio.sleep(0.01)
        assert stream.stored() == [9]
        await stream.finish(writer)


async def test_large_frames_are_written_as_several_items(stream: Stream) -> None:
    frames = [step("x" * (MAX_CHUNK_BYTES // 2 - 100)) for _ in range(5)]
    async with running_writer(stream) as (writer, _):
        for frame in frames:
            stream.frames.append(frame)
        await asyncio.sleep(0.1)
        assert stream.stored() == [2, 2, 1]
        await stream.finish(writer, frames)
    assert stream.stored() == [2, 2, 1, 2, 2, 1]
    assert [chunk.is_last for chunk in stream.chunks()] == [False] * 5 + [True]
    assert await stream.read() == numbered([*frames, *frames])


async def test_a_failed_flush_is_tried_again_after_a_second(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        before = len(stream.plan.calls)
        stream.plan.fail_next(4)
        stream.frames.append(step("planning"))
        stream.frames.append(step("executing"))
        await asyncio.sleep(1.9)
        assert stream.plan.operations(before) == ["PutItem"] * 4
        await asyncio.sleep(0.2)
        assert stream.plan.operations(before) == ["PutItem"] * 5
        assert stream.stored() == [2]
        await stream.finish(writer)


async def test_a_chunk_with_an_unknown_outcome_is_written_again_unchanged(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        before = len(stream.plan.calls)
        stream.plan.fail_next(2, Fault.LOST_REPLY)
        for text in "ab":
            stream.frames.append(token(text))
        await asyncio.sleep(1.1)
        for text in "cd":
            stream.frames.append(token(text))
        await asyncio.sleep(1.1)
        (lost, retry, again, following) = [call.parameters["write"] for call in stream.plan.calls[before:]]
        assert lost == retry == again != following
        assert stream.stored() == [2, 2]
        await stream.finish(writer)


async def test_nothing_is_written_after_the_lease_has_expired(stream: Stream) -> None:
    async with running_writer(stream) as (writer, claimed):
        stream.skew += LEASE_SECONDS
        stream.frames.append(step("planning"))
        before = len(stream.plan.calls)
        await asyncio.sleep(10)
        now = virtual_now()
        with pytest.raises(LeaseLost):
            await writer.final_writes(LAST)
        assert not await writer.fail(ERROR)
        assert virtual_now() == now
        assert stream.plan.operations(before) == []
        await claimed.renew(stream.now())
        assert await writer.fail(ERROR)
    assert await stream.read() == numbered([step("planning"), *ERROR])


async def test_an_attempt_whose_lease_has_expired_cannot_end(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.skew += LEASE_SECONDS
        with pytest.raises(LeaseLost):
            await writer.final_writes(LAST)
        assert not await writer.fail(ERROR)
    assert stream.stored() == []


async def test_a_writer_ends_with_its_list_if_its_lease_has_expired(stream: Stream) -> None:
    await stream.create_session()
    running = asyncio.create_task(stream.writer(await stream.claim()).run())
    stream.skew += LEASE_SECONDS
    stream.frames.append(step("planning"))
    await asyncio.sleep(5)
    assert not running.done()
    stream.frames.end()
    async with asyncio.timeout(1.1):
        await running
    assert stream.stored() == []


async def test_the_last_chunk_contains_what_waits(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        before = len(stream.plan.calls)
        stream.frames.append(token("a"))
        await stream.finish(writer, LAST)
        assert stream.plan.operations(before) == ["TransactWriteItems"]
    assert stream.stored() == [3]
    assert await stream.read() == numbered([token("a"), *LAST])


async def test_many_waiting_characters_are_flushed_before_the_last_chunk(stream: Stream) -> None:
    frames = [step("x" * FLUSH_CHARACTERS), token("a")]
    async with running_writer(stream) as (writer, _):
        for frame in frames:
            stream.frames.append(frame)
        await stream.finish(writer, LAST)
    assert stream.stored() == [2, 2]
    assert await stream.read() == numbered([*frames, *LAST])


async def test_a_chunk_with_an_unknown_outcome_is_settled_before_the_last_chunk(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.plan.fail_next(2, Fault.LOST_REPLY)
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.5)
        stream.frames.append(token("a"))
        await stream.finish(writer, LAST)
    assert stream.stored() == [1, 1, 2]
    assert await stream.read() == numbered([step("planning"), token("a"), *LAST])


async def test_final_writes_wait_for_a_flush_that_is_under_way(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.plan.latency = 0.5
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.1)
        stream.frames.append(token("a"))
        await stream.finish(writer, LAST)
    assert stream.stored() == [1, 3]
    assert await stream.read() == numbered([step("planning"), token("a"), *LAST])


async def test_no_final_writes_if_a_chunk_with_an_unknown_outcome_cannot_be_settled(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.plan.fail_next(1000)
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.5)
        with pytest.raises(StorageUnavailable):
            await writer.final_writes(LAST)
        assert not await writer.fail(ERROR)
        stream.plan.faults = {}
        assert await writer.fail(ERROR)
    assert await stream.read() == numbered([step("planning"), *ERROR])


async def test_a_lost_attempt_can_neither_finish_nor_fail(stream: Stream) -> None:
    async with running_writer(stream) as (writer, claimed):
        stream.skew += LEASE_SECONDS
        await stream.claim("turn_2")
        stream.skew -= LEASE_SECONDS  # the clock of the first worker is late
        writes = await writer.final_writes(LAST)
        with pytest.raises(TransactionFailed):
            await stream.store.table.transact(writes, token="commit")
        assert not await writer.fail(ERROR)
        assert claimed.head.attempt == 1
    assert await state_of(stream) is StreamState.RUNNING
    assert stream.stored() == []


async def test_a_turn_whose_commit_failed_ends_with_the_error_instead(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.frames.append(step("planning"))
        await writer.final_writes(LAST)
        assert await writer.fail(ERROR)
        for frame in ERROR:
            stream.frames.append(frame)
    assert await stream.read() == numbered([step("planning"), *ERROR])
    assert await state_of(stream) is StreamState.FAILED


async def test_a_turn_that_was_committed_cannot_fail(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        stream.frames.append(token("a"))
        writes = await writer.final_writes(LAST)
        await stream.store.table.transact(writes, token="commit")
        large = [step("x" * (MAX_CHUNK_BYTES - 100)), *ERROR]
        assert await writer.fail(large) is StreamState.DONE
    assert await stream.read() == numbered([token("a"), *LAST])


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_failure_is_written_despite_faults(stream: Stream, fault: Fault, times: int) -> None:
    async with running_writer(stream) as (writer, _):
        stream.frames.append(step("planning"))
        await asyncio.sleep(1)
        stream.plan.fail_next(times, fault)
        assert await writer.fail(ERROR)
    assert await stream.read() == numbered([step("planning"), *ERROR])


async def test_frames_that_follow_the_final_writes_at_once_are_not_flushed(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        await asyncio.sleep(1)
        before = len(stream.plan.calls)
        await writer.final_writes(LAST)
        for frame in LAST:
            stream.frames.append(frame)
        await asyncio.sleep(5)
        assert stream.plan.operations(before) == []


async def test_the_frames_of_a_failure_are_written_once(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        assert await writer.fail(ERROR)
        for frame in ERROR:
            stream.frames.append(frame)
        await asyncio.sleep(1.1)
    assert stream.stored() == [2]


async def test_an_empty_turn_has_a_last_chunk(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        await stream.finish(writer)
    assert stream.stored() == [0]
    assert (await stream.follow()).is_over


async def test_after_a_move_all_further_chunks_are_in_the_partition_of_the_successor(stream: Stream) -> None:
    await stream.create_session(SUCCESSOR)
    async with running_writer(stream) as (writer, claimed):
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.1)
        stream.frames.append(token("a"))
        writer.continue_in(SUCCESSOR)
        stream.frames.append(step("planning again"))
        await asyncio.sleep(0.1)
        assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [2])
        assert (claimed.head.session, claimed.head.successor) == (SESSION, SUCCESSOR)
        await stream.finish(writer, LAST)
    assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [2, 2])
    assert await stream.read() == numbered([step("planning"), token("a"), step("planning again"), *LAST])


async def test_nothing_is_written_to_the_successor_before_the_move_is_stored(stream: Stream) -> None:
    await stream.create_session(SUCCESSOR)
    async with running_writer(stream) as (writer, _):
        stream.plan.fail_next(2, Fault.LOST_REPLY)
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.5)  # the outcome of this chunk is unknown: it must be written again in the first session
        writer.continue_in(SUCCESSOR)
        stream.frames.append(step("executing"))
        stream.plan.faults = {len(stream.plan.calls) + call: Fault.THROTTLE for call in (1, 2)}
        await asyncio.sleep(1.0)
        assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [])
        assert stream.plan.operations()[-3:] == ["PutItem", "UpdateItem", "UpdateItem"]
        await asyncio.sleep(1.1)
        assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [1])
        await stream.finish(writer)
    assert await stream.read() == numbered([step("planning"), step("executing")])


async def test_the_last_chunk_follows_a_move_with_no_frame_in_between(stream: Stream) -> None:
    await stream.create_session(SUCCESSOR)
    async with running_writer(stream) as (writer, _):
        stream.frames.append(step("planning"))
        await asyncio.sleep(0.1)
        writer.continue_in(SUCCESSOR)
        await stream.finish(writer, LAST)
    assert (stream.stored(SESSION), stream.stored(SUCCESSOR)) == ([1], [2])
    assert await stream.read() == numbered([step("planning"), *LAST])


async def test_a_deleted_stream_cannot_be_finished(stream: Stream) -> None:
    async with running_writer(stream) as (writer, _):
        writes = await writer.final_writes(LAST)
        await stream.store.table.write(Delete(keys.stream_head(stream.store.tenant, DIGEST)))
        with pytest.raises(TransactionFailed):
            await stream.store.table.transact(writes, token="commit")
        assert not await writer.fail(ERROR)
    assert [write.key for write in writes if isinstance(write, Put)] == [
        keys.stream_chunk(stream.store.tenant, SESSION, DIGEST, 1, 1)
    ]
    assert stream.stored() == []


async def test_a_writer_whose_list_ends_writes_the_rest(stream: Stream) -> None:
    async with running_writer(stream):
        stream.plan.fail_next(2)
        stream.frames.append(token("a"))
        stream.frames.append(token("b"))
        stream.frames.end()
        await asyncio.sleep(1.1)
        assert stream.stored() == [2]


async def test_a_cancelled_writer_leaves_its_frames_to_the_last_flush(stream: Stream) -> None:
    await stream.create_session()
    writer = stream.writer(await stream.claim())
    running = asyncio.create_task(writer.run())
    stream.frames.append(step("planning"))
    await asyncio.sleep(0.001)  # the first write is under way
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stream.finish(writer, LAST)
    assert await stream.read() == numbered([step("planning"), *LAST])
