"""Test when and how the writer flushes."""

import asyncio

import pytest

from spass.journal.frames import Frame
from spass.journal.head import StreamState, read_head
from tests.unit.journal.conftest import DIGEST, Stream, numbered, step, token

pytestmark = pytest.mark.anyio


async def test_a_finished_stream_replays_all_frames_with_their_ids(stream: Stream) -> None:
    await stream.create_session()
    writer = stream.writer(await stream.claim())
    running = asyncio.create_task(writer.run())
    frames = [step("planning"), *map(token, "Hello world")]
    for frame in frames:
        stream.frames.append(frame)
        await asyncio.sleep(0.3)
    last = [step("complete"), Frame('{"type":"done"}', event="done")]
    await stream.finish(writer, last)
    await running
    assert await stream.read() == numbered([*frames, *last])
    head = await read_head(stream.store, DIGEST)
    assert head is not None
    assert head.state is StreamState.DONE
