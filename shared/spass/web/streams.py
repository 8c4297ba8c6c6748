"""Answer with a stream that can be followed: of a turn that runs in this process, or one that is read from the journal."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spass.agents.following import FollowedStream, follow_stream
from spass.agents.render.frames import failure_frames
from spass.core.errors import GATEWAY_STOPPED, InternalError, InvalidRequest, SpassError, StorageUnavailable
from spass.core.event_task import EventList, EventTask
from spass.core.ids import AgentName, RequestId
from spass.core.messages import Json
from spass.core.outcome import TurnOutcome
from spass.journal.frames import EventId, Frame
from spass.redaction.log import failure_line, write_line
from spass.web.edge import IS_HEAD
from spass.web.errors import envelope
from spass.web.exchange import Exchange
from spass.web.idempotency import REPLAYED_HEADER
from spass.web.operators import operator_of, refuse_sessions
from spass.web.outcomes import replay_outcome
from spass.web.sse import KEEP_ALIVE, MEDIA_TYPE, STREAM_HEADERS, EventStreamResponse, encode_events

if TYPE_CHECKING:
    # Not needed to follow a stream.
    from spass.agents.live_stream import LiveStream
    from spass.agents.spec import AgentSpec
    from spass.agents.streams import StreamedMessage

E = TypeVar("E")


class EventStream(Response):
    """The answer of a route that always streams, as OpenAPI describes it."""

    media_type = MEDIA_TYPE


_HEADER: Final = "Last-Event-ID"
LAST_EVENT_ID: Final = {
    "name": _HEADER,
    "in": "header",
    "required": False,
    "description": "The id of the last event that the client has read.",
    "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,8}-[1-9][0-9]{0,8}$"},
}
"""The header as OpenAPI describes it."""


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """The bytes of a stream besides its frames: the ``start``, the ``comment`` in silence, and the frames of a ``failure`` that
    is not in the journal. ``retry`` is the number of milliseconds after which an ``EventSource`` connects again."""

    failure: Callable[[Mapping[str, Json], RequestId], Sequence[Frame]] = failure_frames
    start: bytes = b"retry: 1000\n\n"
    comment: bytes = KEEP_ALIVE


EVENT_STYLE: Final = StreamStyle()
"""The style of streams of events."""


def read_last_event_id(request: Request) -> EventId | None:
    """Return the id after which the stream continues, or None for its start.

    Raises:
        InvalidRequest: the header is malformed.
    """
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
        exchange.error = error.code
    return envelope(error, exchange.request_id, exchange.services.redact).error.to_dict()


def report_failure(exchange: Exchange, error: SpassError) -> Mapping[str, Json]:
    """Log the gateway's own errors. Return ``error`` as clients see it."""
    if isinstance(error, InternalError | StorageUnavailable) and error is not GATEWAY_STOPPED:
        write_line(failure_line(error, exchange.request_id))
    return _render_error(exchange, error)


async def run_chat(exchange: Exchange, name: AgentName, model: str | None, message: "StreamedMessage") -> Response:
    """Run one turn of a chat with the agent ``name`` as a stream, as ``run_stream`` does. ``model`` replaces the agent's.

    Raises:
        AgentNotFound, ModelNotFound, ModelNotAllowed: the agent or the model cannot be used.
        SpassError: the turn is refused.
    """
    services, agent = exchange.services, exchange.services.agents.get(name)
    if model is not None:
        agent = replace(agent, model=services.calls.chat_model(exchange.scope, model).name)
    services.engine.check(exchange.scope, agent)
    if (operator := operator_of(exchange, agent)) is not None:
        if message.session is not None:
            refuse_sessions(agent)
        message = replace(message, operator=operator)
    return await run_stream(exchange, agent, message)


async def run_stream(exchange: Exchange, agent: "AgentSpec", message: "StreamedMessage") -> Response:
    """Run the turn of ``message`` as a stream, or follow or replay the stream of an earlier request.

    Raises:
        SpassError: the turn is refused. It leaves neither a new session nor a stream.
    """
    stream = await exchange.services.streams.open(exchange.scope.streaming, agent, message, partial(report_failure, exchange))
    if isinstance(stream, TurnOutcome):
        return await replay_outcome(exchange, stream)
    if isinstance(stream, EventTask):
        return await answer_followed(exchange, stream, {REPLAYED_HEADER: "true"} if message.idempotency is not None else None)
    return answer_live(exchange, stream)


def answer_live(exchange: Exchange, stream: "LiveStream", style: StreamStyle = EVENT_STYLE) -> Response:
    """Return the stream of a turn that runs in this process. The response ends with the turn, also if the client has left."""

    def encode(index: int, frame: Frame) -> bytes:
        return _encode_frame(stream.event_id(index), frame)

    return EventStreamResponse(_encode(exchange, stream.frames, encode, style), stream.wait)


async def answer_followed(
    exchange: Exchange, stream: FollowedStream, headers: Mapping[str, str] | None = None, style: StreamStyle = EVENT_STYLE
) -> Response:
    """Return a stream that is read from the journal. Until its end it takes one of the places that the tenant's followers have.

    Raises:
        RateLimited: all places are taken.
    """
    place = AsyncExitStack()
    try:
        await place.enter_async_context(exchange.services.followers.place(exchange.scope.store))
    except BaseException:
        stream.cancel()
        raise

    async def stop_reading() -> None:
        stream.cancel()
        await place.aclose()

    events = _encode(exchange, stream, lambda _, item: _encode_frame(*item), style)
    return EventStreamResponse(events, stop_reading, headers, stop=stop_reading)


async def follow(request: Request, exchange: Exchange, agent: AgentName, message_id: str) -> Response:
    """Return the stream ``message_id``, running or finished, from its start or behind the event ``Last-Event-ID``. Return 204
    if the stream has ended with that event: a browser's ``EventSource`` then stops to connect again.

    Raises:
        InvalidRequest: ``Last-Event-ID`` is malformed.
        StreamNotFound: the user has no such stream with the agent, or no longer.
    """
    stream = await follow_stream(exchange.scope, agent, message_id, read_last_event_id(request))
    return await answer_following(request, exchange, stream)


async def answer_following(
    request: Request, exchange: Exchange, stream: FollowedStream | None, style: StreamStyle = EVENT_STYLE
) -> Response:
    """Return the rest of a stream, as ``answer_followed`` does. None means that the client has read it to its end."""
    if stream is None:
        return Response(status_code=204)
    if request.scope.get(IS_HEAD):  # do not read a stream that may last for minutes
        stream.cancel()
        return StreamingResponse((), media_type=MEDIA_TYPE, headers=STREAM_HEADERS)  # without a Content-Length, as GET
    return await answer_followed(exchange, stream, style=style)


def _encode(
    exchange: Exchange, events: EventList[E], encode: Callable[[int, E], bytes], style: StreamStyle
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the stream. The events of a failure that is not in the journal have no ids."""

    def report(error: SpassError) -> bytes:
        frames = style.failure(_render_error(exchange, error), exchange.request_id)
        return b"".join(_encode_frame(None, frame) for frame in frames)

    return encode_events(events, encode, report, exchange.request_id, comment=style.comment, start=style.start)


def _encode_frame(event_id: EventId | None, frame: Frame) -> bytes:
    id_line = f"id: {event_id}\n" if event_id is not None else ""
    name_line = f"event: {frame.event}\n" if frame.event is not None else ""
    return f"{id_line}{name_line}data: {frame.data}\n\n".encode()
