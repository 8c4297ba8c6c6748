"""Answer with a stream that can be followed: of a turn that runs in this process, or one that is read from the journal."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spass.agents.render.frames import failure_frames
from spass.core.errors import GATEWAY_STOPPED, InternalError, InvalidRequest, SpassError, StorageUnavailable
from spass.core.ids import AgentName
from spass.core.messages import Json
from spass.core.tasks import EventList
from spass.journal.follower import FollowedStream
from spass.journal.frames import EventId, Frame
from spass.redaction.log import failure_line, write_line
from spass.runs.following import follow_stream
from spass.web.errors import envelope
from spass.web.exchange import IS_HEAD, Exchange
from spass.web.public_routing import header_parameter
from spass.web.sse import MEDIA_TYPE, STREAM_HEADERS, EventStreamResponse, StreamStyle, encode_frame, encode_stream

if TYPE_CHECKING:
    from spass.runs.run import Run  # not needed to follow a stream

E = TypeVar("E")


class EventStream(Response):
    """The answer of a route that always streams, as OpenAPI describes it."""

    media_type = MEDIA_TYPE


_HEADER: Final = "Last-Event-ID"
LAST_EVENT_ID: Final = header_parameter(
    _HEADER, "The id of the last event that the client has read.", "^[1-9][0-9]{0,8}-[1-9][0-9]{0,8}$"
)


EVENT_STYLE: Final = StreamStyle(failure_frames)
"""The style of streams of events."""
RESUMABLE_STYLE: Final = replace(EVENT_STYLE, start=b"retry: 1000\n\n")
"""The same for a stream that can be resumed: an ``EventSource`` connects again after a second."""


def read_last_event_id(request: Request) -> EventId | None:
    """Return the id after which the stream continues, or None for its start. Raise InvalidRequest if the header is malformed."""
    values = request.headers.getlist(_HEADER)
    if not values:
        return None
    try:
        (value,) = values
        return EventId.parse(value)
    except ValueError:
        message = f"Send {_HEADER} once, as the id of the last event: <attempt>-<number>, for example 1-17."
        raise InvalidRequest(message, param=_HEADER) from None


def _render_error(exchange: Exchange, error: SpassError) -> Mapping[str, Json]:
    """Return ``error`` as the envelope of all errors has it, without secrets. The request's log line names it, unless the client
    may have left."""
    if error is not GATEWAY_STOPPED:
        exchange.fail(error)
    return envelope(error, exchange.request_id, exchange.services.redact).error.to_dict()


def report_failure(exchange: Exchange, error: SpassError) -> Mapping[str, Json]:
    """Log the gateway's own errors. Return ``error`` as clients see it."""
    if isinstance(error, InternalError | StorageUnavailable) and error is not GATEWAY_STOPPED:
        write_line(failure_line(error, exchange.request_id))
    return _render_error(exchange, error)


def answer_live(exchange: Exchange, run: "Run", style: StreamStyle, *, ends_with_client: bool = False) -> Response:
    """Return the stream of a run in this process. The response ends with the run, also if the client has left, unless the run
    ``ends_with_client``."""
    log = run.log
    assert log is not None  # noqa: S101 (a streamed run has a log)

    async def end() -> None:
        if ends_with_client:
            run.cancel()
        else:
            await run.wait()

    return EventStreamResponse(_encode(exchange, log, lambda index, frame: encode_frame(frame, log.event_id(index)), style), end)


async def answer_followed(
    exchange: Exchange, stream: FollowedStream, headers: Mapping[str, str] | None = None, style: StreamStyle = RESUMABLE_STYLE
) -> Response:
    """Return a stream that is read from the journal. Until its end it takes one of the places that the tenant's followers have.
    Raise RateLimited if all places are taken."""
    try:
        await exchange.take_place("followers")
    except BaseException:
        stream.cancel()
        raise
    return _answer(exchange, stream, headers, style)


def _answer(exchange: Exchange, stream: FollowedStream, headers: Mapping[str, str] | None, style: StreamStyle) -> Response:
    async def stop_reading() -> None:
        stream.cancel()

    return EventStreamResponse(_encode(exchange, stream, _encode_numbered, style), stop_reading, headers, stop=stop_reading)


async def follow(request: Request, exchange: Exchange, agent: AgentName, message_id: str) -> Response:
    """Return the stream ``message_id``, running or finished, from its start or behind the event ``Last-Event-ID``. Return 204 if
    the stream has ended with that event: a browser's ``EventSource`` then stops to connect again. Raise InvalidRequest if
    ``Last-Event-ID`` is malformed, RateLimited as ``answer_following`` does, and StreamNotFound if the user has no such stream
    with the agent, or no longer."""
    return await answer_following(
        request, exchange, partial(follow_stream, exchange.scope, agent, message_id, read_last_event_id(request))
    )


async def answer_following(
    request: Request,
    exchange: Exchange,
    find: Callable[[], Awaitable[FollowedStream | None]],
    style: StreamStyle = RESUMABLE_STYLE,
) -> Response:
    """Return the rest of the stream that ``find`` returns. None means that the client has read it to its end. Until its end it
    takes one of the places that the tenant's followers have. Raise RateLimited if all places are taken: nothing is read then."""
    is_head = request.scope.get(IS_HEAD)
    if not is_head:
        await exchange.take_place("followers")
    stream = await find()
    if stream is None:
        return Response(status_code=204)
    if is_head:  # do not read a stream that may last for minutes
        stream.cancel()
        return StreamingResponse((), media_type=MEDIA_TYPE, headers=STREAM_HEADERS)  # without a Content-Length, as GET
    return _answer(exchange, stream, None, style)


def _encode(
    exchange: Exchange, events: EventList[E], encode: Callable[[int, E], bytes], style: StreamStyle
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the stream. The events of a failure that is not in the journal have no ids."""
    return encode_stream(events, encode, partial(_render_error, exchange), exchange.request_id, style)


def _encode_numbered(_: int, item: tuple[EventId, Frame]) -> bytes:
    event_id, frame = item
    return encode_frame(frame, event_id)
