"""Server-sent events: a stream of chunks, in OpenAI's format or in another.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html; ``[DONE]`` at the end is OpenAI's.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from spass.core.errors import GATEWAY_STOPPED, InternalError, SpassError, StorageUnavailable, internal_error
from spass.core.event_task import EventList, EventTask
from spass.core.ids import RequestId
from spass.core.json import dump_line
from spass.core.messages import Json
from spass.redaction.log import failure_line, write_line
from spass.redaction.text import redact
from spass.web.disconnect import wait_for_disconnect
from spass.web.errors import Error, envelope

KEEP_ALIVE_SECONDS: Final = 15.0
KEEP_ALIVE: Final = b": keep-alive\n\n"
MEDIA_TYPE: Final = "text/event-stream"
STREAM_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE: Final = b"data: [DONE]\n\n"

Chunk = dict[str, Json]
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """A format of streams. ``failure`` returns the chunks that report an error. The bytes ``end`` follow the last chunk of a
    stream that did not fail."""

    failure: Callable[[Error], Sequence[Chunk]]
    end: bytes = b""


OPENAI: Final = StreamFormat(lambda error: (error.to_dict(),), DONE)


async def stream_response(
    chunks: AsyncIterator[Chunk],
    request_id: RequestId,
    *,
    headers: Mapping[str, str] | None = None,
    redact: Callable[[str], str] = redact,
    client: Receive | None = None,
    stream_format: StreamFormat = OPENAI,
) -> StreamingResponse:
    """Return a response that sends each chunk as an event in ``stream_format``.

    A separate task reads the chunks to their end. If ``client``, the ASGI receive function, is given, the task is cancelled when
    the client disconnects. Wait for the first chunk, so that a failure before it gets its own HTTP status.

    Raises:
        SpassError: the work failed before its first chunk.
        ClientDisconnect: the client disconnected before the first chunk.
    """
    running = EventTask(chunks)
    if client is None:
        await running.wait_for_event(0)
    else:
        await _wait_for_first_chunk(running, client)
    if not running.events:
        await running.result()
    events = render_events(running, request_id, redact=redact, stream_format=stream_format)

    async def end() -> None:
        if client is not None:
            running.cancel()

    return EventStreamResponse(events, end, headers)


async def yield_chunks(chunks: Iterable[Chunk]) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a recorded answer."""
    for chunk in chunks:
        yield chunk


async def _wait_for_first_chunk(work: EventTask[Chunk], client: Receive) -> None:
    """Wait until the work has a chunk or has ended. Cancel it if the client disconnects first.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    first = asyncio.ensure_future(work.wait_for_event(0))
    disconnect = asyncio.ensure_future(wait_for_disconnect(client))
    try:
        await asyncio.wait({first, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            raise ClientDisconnect
    except BaseException:
        work.cancel()
        raise
    finally:
        first.cancel()
        disconnect.cancel()


class EventStreamResponse(StreamingResponse):
    """A stream of events. ``end`` is called after it, also if the client has left before. If the server stops, ``stop`` is called
    instead. It must return soon."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        end: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
        *,
        stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(events, media_type=MEDIA_TYPE, headers={**STREAM_HEADERS, **(headers or {})})
        self._end = end
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stopped = False
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            is_stopped = True  # the server stops, and cancels the work too; ``encode_events`` has sent the error event
        finally:
            if not is_stopped:
                await self._end()
            elif self._stop is not None:
                await self._stop()


def render_events(
    running: EventTask[Chunk],
    request_id: RequestId,
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    redact: Callable[[str], str] = redact,
    stream_format: StreamFormat = OPENAI,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream of chunks, as ``encode_events`` does. One that did not fail has the format's ``end``."""

    def report(error: SpassError) -> bytes:
        return b"".join(map(_encode_event, stream_format.failure(envelope(error, request_id, redact))))

    return encode_events(
        running, lambda _, chunk: _encode_event(chunk), report, request_id, keep_alive=keep_alive, end=stream_format.end
    )


async def encode_events(
    events: EventList[E],
    encode: Callable[[int, E], bytes],
    report: Callable[[SpassError], bytes],
    request_id: RequestId,
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    comment: bytes = KEEP_ALIVE,
    start: bytes = b"",
    end: bytes = b"",
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream: ``start``, the events, ``end``. ``encode`` gets the index of an event and the event.

    Send ``comment`` after every ``keep_alive`` seconds without an event. If the list ends with an error, or the server stops, end
    with the bytes that ``report`` returns.
    """
    position = 0
    try:
        if start:
            yield start
        while True:
            while not await events.wait_for_event(position, keep_alive):
                yield comment
            batch = events.events[position:]
            if not batch:
                break
            yield b"".join(map(encode, count(position), batch))
            position += len(batch)
        await events.result()
    except SpassError as error:
        if isinstance(error, InternalError | StorageUnavailable):
            write_line(failure_line(error, request_id))
        yield report(error)
    except asyncio.CancelledError:  # the server stops, or the client has disconnected
        yield report(GATEWAY_STOPPED)
    except Exception as error:  # noqa: BLE001 (the edge: the status was sent, so the stream itself must report the failure)
        write_line(failure_line(error, request_id))
        yield report(internal_error(error))
    else:
        if end:
            yield end


def _encode_event(value: Chunk) -> bytes:
    return b"data: " + dump_line(value).encode() + b"\n\n"
