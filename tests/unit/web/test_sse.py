"""A stream says all it has, then that it is done; or that it broke, and then not."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from spass.core.errors import RateLimited, UpstreamError
from spass.core.event_task import EventTask
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.web.sse import DONE, KEEP_ALIVE, render_events, stream_response

Chunk = dict[str, Json]
REQUEST = RequestId("req_1")


async def two() -> AsyncIterator[Chunk]:
    yield {"text": "grüß"}
    yield {"text": "line\nbreak"}


async def bytes_of(chunks: AsyncIterator[Chunk], keep_alive: float = 15) -> list[bytes]:
    return [part async for part in render_events(EventTask(chunks), REQUEST, keep_alive=keep_alive)]


@pytest.mark.anyio
async def test_each_chunk_is_one_event_and_the_last_line_says_done() -> None:
    *said, last = await bytes_of(two())
    assert b"".join(said) == 'data: {"text":"grüß"}\n\ndata: {"text":"line\\nbreak"}\n\n'.encode()
    assert last == DONE


@pytest.mark.anyio
async def test_an_event_is_one_line_to_whoever_splits_lines_as_unicode_does() -> None:
    everything = "".join(map(chr, [*range(0x3000), 0xFEFF, 0x1F600]))

    async def says_everything() -> AsyncIterator[Chunk]:
        yield {"text": everything}

    event, last = await bytes_of(says_everything())
    (line,) = event.decode().removesuffix("\n\n").splitlines()
    assert json.loads(line.removeprefix("data: ")) == {"text": everything}
    assert last == DONE


@pytest.mark.anyio
async def test_work_that_breaks_ends_the_stream_with_its_error_and_without_done() -> None:
    async def breaks() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise UpstreamError("The model side broke off.")

    *_, last = await bytes_of(breaks())
    assert json.loads(last.removeprefix(b"data: ")) == {
        "error": {
            "code": "upstream_error",
            "message": "The model side broke off.",
            "type": "api_error",
            "param": None,
            "details": {},
        },
        "request_id": "req_1",
    }


@pytest.mark.anyio
async def test_an_unforeseen_exception_ends_the_stream_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    async def breaks() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        raise KeyError("secret")

    parts = await bytes_of(breaks())
    assert b"internal_error" in parts[-1]
    out = capsys.readouterr().out
    assert "KeyError" in out
    assert "secret" not in out + str(parts)


@pytest.mark.anyio
async def test_silence_is_filled_with_comments() -> None:
    async def slow() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        await asyncio.sleep(0.2)
        yield {"text": "b"}

    parts = await bytes_of(slow(), keep_alive=0.05)
    assert parts.count(KEEP_ALIVE) >= 2
    assert [part for part in parts if part != KEEP_ALIVE] == [b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n', DONE]


@pytest.mark.anyio
async def test_what_is_refused_before_the_first_chunk_is_no_stream() -> None:
    async def refuses() -> AsyncIterator[Chunk]:
        for refusal in [RateLimited("Later.")]:
            raise refusal
        yield {}

    with pytest.raises(RateLimited):
        await stream_response(refuses(), REQUEST)


@pytest.mark.anyio
async def test_a_reader_that_goes_away_stops_nothing() -> None:
    ended = asyncio.Event()

    async def work() -> AsyncIterator[Chunk]:
        yield {"text": "a"}
        await asyncio.sleep(0.05)
        ended.set()

    reader = render_events(EventTask(work()), REQUEST)
    await anext(reader)
    await reader.aclose()  # type: ignore[attr-defined]  # an async generator
    await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.anyio
async def test_a_stream_that_a_stopping_server_cancels_ends_with_an_error() -> None:
    async def says_one_word() -> AsyncIterator[Chunk]:
        yield {"text": "one"}
        await asyncio.Event().wait()

    said: list[bytes] = []
    begun = asyncio.Event()

    async def read() -> None:
        async for part in render_events(EventTask(says_one_word()), REQUEST):
            said.append(part)
            begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert len(said) == 2
    assert json.loads(said[1].removeprefix(b"data: "))["error"]["code"] == "internal_error"
