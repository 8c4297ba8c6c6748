"""Follow and stop turns that are streams, on any worker."""

import time
from collections.abc import AsyncGenerator
from typing import Literal

from spass.calls.scope import Scope
from spass.core.ids import AgentName
from spass.core.tasks import EventTask
from spass.journal.follower import FollowedStream, Follower, StreamRestarted, follow
from spass.journal.frames import EventId, Frame
from spass.journal.head import request_stop, stream_digest
from spass.tenancy.response_model import ResponseModel


class StopAnswer(ResponseModel):
    """The result of a stop. `cancelling`: the turn ends soon, and the `finish_reason` of its `done` says how it ended.
    `failed`: nothing was recorded."""

    status: Literal["cancelling", "done", "failed"]


async def follow_stream(scope: Scope, agent: AgentName, message_id: str, after: EventId | None) -> FollowedStream | None:
    """Return a stream of the user and the agent, running or finished, from its start or behind the event ``after``.

    Return None if the stream has ended with that event.

    Raises:
        StreamNotFound: there is no such stream, or no longer.
    """
    digest = stream_digest(scope.caller.require_user(), agent, message_id)
    follower = await follow(scope.store, digest, after)
    return None if follower.is_over else EventTask(_read(scope, digest, follower, after))


async def _read(
    scope: Scope, digest: str, follower: Follower, after: EventId | None
) -> AsyncGenerator[tuple[EventId, Frame], None]:
    """Yield the frames of ``follower``. If its attempt was refused before it began, follow the one that comes instead."""
    while True:
        try:
            async for item in follower.frames(scope.streaming.deadline.remaining()):
                yield item
        except StreamRestarted:
            follower = await follow(scope.store, digest, after)
        else:
            return


async def stop_turn(scope: Scope, agent: AgentName, message_id: str) -> StopAnswer:
    """Ask the turn that runs as the stream ``message_id`` to stop.

    Raises:
        StreamNotFound: the user has no such stream with the agent, or no longer.
        StorageUnavailable: the outcome is unknown; repeat the request.
    """
    digest = stream_digest(scope.caller.require_user(), agent, message_id)
    return StopAnswer(status=(await request_stop(scope.store, digest, time.time())).value)
