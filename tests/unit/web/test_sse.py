"""Server-sent events: a stream ends with ``[DONE]``, or with an error event and without ``[DONE]``."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import pytest
from starlette.types import Message

from spass.core.errors import RateLimited, SpassError, UpstreamError
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.core.tasks import EventTask
from spass.journal.frames import DONE, Frame, json_frame
from spass.web.errors import envelope
from spass.web.sse import KEEP_ALIVE, OPENAI, EventStreamResponse, StreamStyle, encode_frame, encode_stream, stream_response
from spass.web.streams import EVENT_STYLE

pytestmark = pytest.mark.anyio

Chunk = dict[str, Json]
REQUEST = RequestId("req_1")


async def two() -> AsyncIterator[Chunk]:
    yield {"text": "grüß"}
    yield {"text": "line\nbreak"}


async def frames_of(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Frame]:
    """Yield the frames of ``chunks``, as those of a chat completion."""
    async for chunk in chunks:
        yield json_frame(chunk)
    yield DONE


def encoded(frames: AsyncIterator[Frame], style: StreamStyle = OPENAI, keep_alive: float = 15) -> AsyncGenerator[bytes, None]:
    def report(error: SpassError) -> Mapping[str, Json]:
        return envelope(error, REQUEST).error.to_dict()

    return encode_stream(EventTask(frames), lambda _, frame: encode_frame(frame), report, REQUEST, style, keep_alive=keep_alive)


async def read_stream(chunks: AsyncIterator[Chunk], keep_alive: float = 15) -> list[bytes]:
    return [part async for part in encoded(frames_of(chunks), keep_alive=keep_alive)]


async def test_each_chunk_is_one_event_and_the_stream_ends_with_done() -> None:
    sent = b"".join(await read_stream(two()))
    assert sent == 'data: {"text":"grüß"}\n\ndata: {"text":"line\\nbreak"}\n\ndata: [DONE]\n\n'.encode()


async def test_an_event_is_one_line_for_readers_that_split_at_unicode_line_ends() -> None:
    everything = "".join(map(chr, [*range(0x3000), 0xFEFF, 0x1F600]))

    async def yield_every_character() -> AsyncIterator[Chunk]:
        yield {"text": everything}

    sent = b"".join(await read_stream(yield_every_character()))
    line, _, last, _ = sent.decode().splitlines()
    assert json.loads(line.removeprefix("data: ")) == {"text": everything}
    assert last == "data: [DONE]"


async def test_a_failure_ends_the_stream_with_an_error_event() -> None:
    async def fail() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise UpstreamError("The model stopped.")

    *_, last = await read_stream(fail())
    assert json.loads(last.removeprefix(b"data: ")) == {
        "error": {
            "code": "upstream_error",
            "message": "The model stopped.",
            "type": "api_error",
            "param": None,
            "details": {},
        },
        "request_id": "req_1",
    }


async def test_the_text_of_an_unexpected_exception_is_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise KeyError("secret")

    parts = await read_stream(fail())
    assert b"internal_error" in parts[-1]
    out = capsys.readouterr().out
    assert "KeyError" in out
    assert "secret" not in out + str(parts)


async def test_comments_are_sent_while_no_chunk_arrives() -> None:
    async def slow() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        await asyncio.sleep(0.2)
        yield {"text": "b"}

    parts = await read_stream(slow(), keep_alive=0.05)
    assert parts.count(KEEP_ALIVE) >= 2
    sent = b"".join(part for part in parts if part != KEEP_ALIVE)
    assert sent == b'data: {"text":"a"}\n\ndata: {"text":"b"}\n\ndata: [DONE]\n\n'


async def test_a_failure_before_the_first_chunk_is_raised() -> None:
    async def refuse() -> AsyncIterator[Chunk]:
        for refusal in [RateLimited("Later.")]:
            raise refusal
        yield {}

    with pytest.raises(RateLimited):
        await stream_response(frames_of(refuse()), REQUEST)


async def test_the_work_continues_after_its_reader_has_left() -> None:
    ended = asyncio.Event()

    async def work() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        await asyncio.sleep(0.05)
        ended.set()

    reader = encoded(frames_of(work()))
    await anext(reader)
    await reader.aclose()
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_stream_that_the_server_cancels_ends_with_an_error_event() -> None:
    async def yield_one_word() -> AsyncIterator[Chunk]:
        yield {"text": "one"}
        await asyncio.Event().wait()

    parts: list[bytes] = []
    first_part = asyncio.Event()

    async def read() -> None:
        async for part in encoded(frames_of(yield_one_word())):
            parts.append(part)
            first_part.set()

    reading = asyncio.create_task(read())
    await first_part.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert len(parts) == 2
    assert json.loads(parts[1].removeprefix(b"data: "))["error"]["code"] == "internal_error"


async def test_a_bug_while_a_stream_is_followed_ends_it_with_an_error_event() -> None:
    async def fail() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise KeyError("frames")

    style = StreamStyle(lambda error, _: [Frame(str(error["code"]))])
    followed = encode_stream(
        EventTask(fail()), lambda index, _: b"%d" % index, lambda error: {"code": error.code}, REQUEST, style
    )
    assert [part async for part in followed] == [b"0", b"data: internal_error\n\n"]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_stream_waits_for_its_work_unless_the_server_stops(stops: bool) -> None:
    has_begun, has_waited, has_released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never() -> AsyncIterator[bytes]:
        has_begun.set()
        yield b"a"
        await asyncio.Event().wait()

    async def end() -> None:
        has_waited.set()

    async def stop() -> None:
        has_released.set()

    async def receive() -> Message:
        await has_begun.wait()
        if stops:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    answering = asyncio.ensure_future(EventStreamResponse(never(), end, stop=stop)({"type": "http"}, receive, send))
    await has_begun.wait()
    if stops:
        answering.cancel()
    await answering
    assert has_waited.is_set() is not stops
    assert has_released.is_set() is stops


async def test_a_client_that_leaves_while_it_reads_nothing_ends_its_stream() -> None:
    is_full, has_ended = asyncio.Event(), asyncio.Event()

    async def many() -> AsyncIterator[bytes]:
        while True:
            yield b"a"

    async def end() -> None:
        has_ended.set()

    async def receive() -> Message:
        await is_full.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_full.set()
            await asyncio.Event().wait()

    await EventStreamResponse(many(), end)({"type": "http"}, receive, send)
    task = asyncio.current_task()
    assert task is not None
    assert has_ended.is_set()
    assert task.cancelling() == 0


async def test_the_stream_of_a_run_has_two_events_for_a_failure() -> None:
    async def fail() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise UpstreamError("The model stopped.")

    failed = [part async for part in encoded(frames_of(fail()), EVENT_STYLE)]
    assert b"[DONE]" not in b"".join(failed)
    _, status, error = [json.loads(line.removeprefix("data: ")) for line in b"".join(failed).decode().split("\n\n") if line]
    assert status == {"type": "status_update", "status": "error", "detail": "The model stopped."}
    assert (error["type"], error["error"]["code"], error["request_id"]) == ("error", "upstream_error", "req_1")
