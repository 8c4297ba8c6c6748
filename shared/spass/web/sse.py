"""Server-sent events: frames as bytes, in OpenAI's format or in another. Work for which no client waits any more is ended.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html; ``[DONE]`` at the end is OpenAI's.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from spass.core.errors import GATEWAY_STOPPED, InternalError, SpassError, StorageUnavailable, internal_error
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.core.tasks import EventList, EventTask
from spass.core.wait_limit import WaitLimit
from spass.journal.frames import EventId, Frame, json_frame
from spass.redaction.log import failure_line, write_line
from spass.redaction.text import redact
from spass.web.errors import envelope

if TYPE_CHECKING:
    from spass.calls.scope import Scope as CallScope
    from spass.web.exchange import Exchange

KEEP_ALIVE_SECONDS: Final = 15.0
KEEP_ALIVE: Final = b": keep-alive\n\n"
MEDIA_TYPE: Final = "text/event-stream"
_SEND_FAILS: Final = "2.4"
"""The version of ASGI from which sending to a client that has left raises OSError. The server must be asked before."""
STREAM_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

E = TypeVar("E")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """The bytes of a stream besides its frames: the ``start``, the ``comment`` in silence, and the frames of a ``failure`` that
    is not among them. ``failure`` gets the error of the envelope of all errors."""

    failure: Callable[[Mapping[str, Json], RequestId], Sequence[Frame]]
    start: bytes = b""
    comment: bytes = KEEP_ALIVE


OPENAI: Final = StreamStyle(lambda error, request_id: (json_frame({"error": error, "request_id": request_id}),))
"""The style of chat completions. Their last frame is ``DONE``."""


async def stream_response(
    frames: AsyncIterator[Frame],
    request_id: RequestId,
    *,
    headers: Mapping[str, str] | None = None,
    redact: Callable[[str], str] = redact,
    client: Receive | None = None,
    style: StreamStyle = OPENAI,
) -> StreamingResponse:
    """Return a response that sends each frame as an event.

    A separate task reads the frames to their end, and the response ends after it, also if the client has left. If ``client``, the
    ASGI receive function, is given, the task is cancelled when the client disconnects. Wait for the first frame, so that a
    failure before it gets its own HTTP status. Raise SpassError if the work failed before its first frame, and ClientDisconnect
    if the client disconnected before the first frame.
    """
    running = EventTask(frames)
    if client is None:
        await running.wait_for_event(0)
    else:
        await wait_for_first(running, running.cancel, client)
    if not running.events:
        await running.result()

    def report(error: SpassError) -> Mapping[str, Json]:
        return envelope(error, request_id, redact).error.to_dict()

    async def end() -> None:
        if client is not None:
            running.cancel()
        await running.wait_for_end()

    encoded = encode_stream(running, lambda _, frame: encode_frame(frame), report, request_id, style)
    return EventStreamResponse(encoded, end, headers)


async def yield_frames(frames: Iterable[Frame]) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a recorded answer."""
    for frame in frames:
        yield frame


async def wait_for_first(events: EventList[E], cancel: Callable[[], None], client: Receive) -> None:
    """Wait until the list has an event or has ended. Call ``cancel`` if the client disconnects first. Raise ClientDisconnect if
    the client disconnected."""
    first = asyncio.ensure_future(events.wait_for_event(0))
    disconnect = asyncio.ensure_future(wait_for_disconnect(client))
    try:
        await asyncio.wait({first, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            raise ClientDisconnect
    except BaseException:
        cancel()
        raise
    finally:
        first.cancel()
        disconnect.cancel()


class EventStreamResponse(StreamingResponse):
    """A stream of events. ``end`` is called after it, also if the client has left before. If the server stops, ``stop`` is called
    instead. It must return soon.
    """

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
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (only a callback of the event loop runs outside of a task)
        earlier_cancellations = task.cancelling()
        has_left = has_ended = False

        def leave(_: asyncio.Future[None]) -> None:
            nonlocal has_left
            if not has_ended:
                has_left = task.cancel()

        disconnect: asyncio.Task[None] | None = None
        if scope.get("asgi", {}).get("spec_version", "2.0") < _SEND_FAILS:
            disconnect = asyncio.create_task(wait_for_disconnect(receive))
            disconnect.add_done_callback(leave)
        try:
            with suppress(asyncio.CancelledError):  # ``encode_stream`` sends the error event for it
                await self.stream_response(send)
        except OSError:
            raise ClientDisconnect from None
        finally:
            has_ended = True
            if disconnect is not None:
                disconnect.cancel()
            if has_left:
                task.uncancel()
            if task.cancelling() == earlier_cancellations:
                await self._end()
            elif self._stop is not None:  # the server stops, and cancels the work too
                await self._stop()


async def encode_stream(
    events: EventList[E],
    encode: Callable[[int, E], bytes],
    report: Callable[[SpassError], Mapping[str, Json]],
    request_id: RequestId,
    style: StreamStyle,
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream. ``encode`` gets the index of an event and the event.

    Send the comment of ``style`` after every ``keep_alive`` seconds without an event. If the list ends with an error, or the
    server stops, end with that failure, which ``report`` returns as clients see it.
    """

    def fail(error: SpassError) -> bytes:
        return b"".join(map(encode_frame, style.failure(report(error), request_id)))

    position, silence = 0, WaitLimit()
    try:
        if style.start:
            yield style.start
        while True:
            try:
                await silence.wait(events.wait_for_event(position), keep_alive)
            except TimeoutError:
                yield style.comment
                continue
            batch = events.events[position:]
            if not batch:
                break
            yield b"".join(map(encode, count(position), batch))
            position += len(batch)
        await events.result()
    except SpassError as error:
        if isinstance(error, InternalError | StorageUnavailable):
            write_line(failure_line(error, request_id))
        yield fail(error)
    except asyncio.CancelledError:  # the server stops, or the client has disconnected
        yield fail(GATEWAY_STOPPED)
    except Exception as error:  # noqa: BLE001 (the edge: the status was sent, so the stream itself must report the failure)
        write_line(failure_line(error, request_id))
        yield fail(internal_error(error))
    finally:
        silence.close()


def encode_frame(frame: Frame, event_id: EventId | None = None) -> bytes:
    """Return the bytes of one event."""
    id_line = f"id: {event_id}\n" if event_id is not None else ""
    name_line = f"event: {frame.event}\n" if frame.event is not None else ""
    return f"{id_line}{name_line}data: {frame.data}\n\n".encode()


async def run_for_client(exchange: "Exchange", client: Receive, work: Callable[["CallScope"], Awaitable[T]]) -> T:
    """Run ``work``. End it if the client disconnects while its first model call waits for capacity: nothing was called yet, and
    nothing is to be paid. Work with an Idempotency-Key goes on, so that its answer is stored for the client's retry.

    ``client`` is the ASGI receive function. A function in AWS is not told of a disconnect. Raise ClientDisconnect if the client
    disconnected, and the work was ended.
    """
    if exchange.idempotency is not None:
        return await work(exchange.scope)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 (only a callback of the event loop runs outside of a task)
    waiting = _Waiting(client, task)
    try:
        return await work(replace(exchange.scope, sleep=waiting.sleep))
    except asyncio.CancelledError:
        if waiting.client_left and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise


class _Waiting:
    """The waiting of one request, which runs in ``task``. Nothing watches the client at other times, so a request that never
    waits costs nothing more."""

    def __init__(self, client: Receive, task: "asyncio.Task[Any]") -> None:
        self._client = client
        self._task = task
        self.client_left = False

    async def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``. If the client disconnects, cancel the request: the sleeper may be one of several tasks of it."""
        disconnect = asyncio.ensure_future(wait_for_disconnect(self._client))
        try:
            await asyncio.wait({disconnect}, timeout=seconds)
            if disconnect.done():
                if not self.client_left:
                    self.client_left = True
                    self._task.cancel()
                await asyncio.Event().wait()  # until the cancellation arrives
        finally:
            disconnect.cancel()


async def wait_for_disconnect(client: Receive) -> None:
    """Wait until the ASGI receive function ``client`` says that the client has disconnected."""
    while True:
        message = await client()
        if message["type"] == "http.disconnect":
            return
