"""Answer with the stream of a managed agent's run.

OpenAI's SDKs read it. For them a blank line ends an event even if no data came before it, so each blank line follows data.
"""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.render.managed_frames import failed_run_frames
from spass.core.errors import NoBackendAvailable, SpassError, UpstreamUnreachable
from spass.core.ids import ManagedAgentId, RunId
from spass.core.tasks import EventTask
from spass.managed.following import follow_run
from spass.web.errors import error_response
from spass.web.exchange import Exchange
from spass.web.idempotency import REPLAYED_HEADER
from spass.web.sse import KEEP_ALIVE_SECONDS, StreamStyle
from spass.web.streams import answer_followed, answer_following, answer_live, read_last_event_id, report_failure

STREAM_OF_RUN: Final = {"content": {"text/event-stream": {}}, "description": "With `stream`: the stream of the run."}
"""The streamed answer to a message as OpenAPI describes it."""
_NO_RETRY: Final = {"x-should-retry": "false"}
"""OpenAI's SDKs repeat a request after every 5xx. Here that would put the message into the mailbox a second time."""
_STYLE: Final = StreamStyle(failed_run_frames, b"retry: 1000\n", b": keep-alive\n")


async def stream_message(exchange: Exchange, agent: ManagedAgentId, content: str) -> Response:
    """Put a message into the mailbox and answer with the stream of its run, or with that of an earlier request with its key.

    A run that fails before its first chunk, and before the first comment is due, is answered with its error, not with a stream.
    Raise RateLimited if the tenant has too many turns in progress, and the errors of ``ManagedRuns.stream``.
    """
    runs, report = exchange.services.managed_runs, partial(report_failure, exchange)
    await exchange.take_place("turns")
    stream = await runs.stream(exchange.scope, agent, content, report, exchange.idempotency)
    if isinstance(stream, EventTask):
        return await answer_followed(exchange, stream, {REPLAYED_HEADER: "true"}, _STYLE)
    log = stream.log
    assert log is not None  # noqa: S101 (a streamed run has a log)
    await log.wait_for_event(0, KEEP_ALIVE_SECONDS)
    if stream.error is not None and log.has_only_failed:
        await stream.wait()
        return error_response(
            _error_for_sender(stream.error, agent), exchange.request_id, _NO_RETRY, redact=exchange.services.redact
        )
    return answer_live(exchange, stream, _STYLE)


def _error_for_sender(error: SpassError, agent: ManagedAgentId) -> SpassError:
    """Return the error of a run that failed before its first chunk. No connection, or only open circuits, count as no backend."""
    if not isinstance(error, UpstreamUnreachable):
        return error
    return NoBackendAvailable(
        "No backend of the agent's model takes requests. The message is in the mailbox: do not send it again, but "
        f"POST /v1/managed-agents/{agent}/run when one does."
    )


async def follow_run_stream(request: Request, exchange: Exchange, agent: ManagedAgentId, run: RunId) -> Response:
    """Return the stream of a run, from its start or behind the event ``Last-Event-ID``. Return 204 if it has ended with that
    event.

    Raises:
        InvalidRequest: ``Last-Event-ID`` is malformed.
        AgentNotFound, RunNotFound, StreamNotFound: there is no such agent, run or stream.
        RateLimited: too many clients of the tenant follow streams.
    """
    find = partial(follow_run, exchange.scope, agent, run, read_last_event_id(request))
    return await answer_following(request, exchange, find, _STYLE)
