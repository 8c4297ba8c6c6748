"""Follow and stop the runs of managed agents, on any worker."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final, Literal

from spass.calls.scope import Scope
from spass.core.errors import StorageUnavailable, StreamNotFound, TurnLost
from spass.core.ids import ManagedAgentId, RunId
from spass.core.tasks import EventTask
from spass.journal.follower import FIRST_POLL_SECONDS, FIRST_POLLS, POLL_SECONDS, FollowedStream, StreamRestarted, follow
from spass.journal.frames import EventId, Frame
from spass.journal.head import StopState, read_head, request_stop, stream_digest
from spass.managed.records import ManagedAgent, Run, read_agent, run_not_found
from spass.managed.runs import fail_lost, is_lost, read_run, settle_lost, skip_queued
from spass.store.tenant_store import TenantStore
from spass.tenancy.response_model import ResponseModel

_POLLS_PER_CHECK: Final = 10
"""Polls between two checks whether the worker of a run without a stream has died."""
_STOP_POLLS: Final = 15
_STOP_POLL_SECONDS: Final = 0.2


class RunStopAnswer(ResponseModel):
    """The result of a stop. `cancelling`: the run ends soon. Otherwise it was over, with this status."""

    status: Literal["cancelling", "succeeded", "failed", "skipped"]


async def follow_run(scope: Scope, agent_id: ManagedAgentId, run_id: RunId, after: EventId | None) -> FollowedStream | None:
    """Return the stream of a run: queued, running or finished, from its start or behind the event ``after``. Return None if the
    stream has ended with that event.

    Raises:
        AgentNotFound, RunNotFound: the owner has no such agent, or the agent no such run.
        StreamNotFound: the run ended without a stream, or the stream is not kept any more.
    """
    store, agent = scope.store, await read_agent(scope.store, scope.caller.owner, agent_id)
    run = await read_run(store, agent_id, run_id)
    head = await read_head(store, _digest(agent, run_id))
    if head is not None and run.status.is_final:
        follower = await follow(store, head.digest, after, time.time, head)
        if follower.is_over:
            return None
    elif head is None and run.status.is_final:
        raise _no_stream(run)
    return EventTask(_read_frames(scope, agent, run_id, after))


async def _read_frames(
    scope: Scope, agent: ManagedAgent, run_id: RunId, after: EventId | None
) -> AsyncGenerator[tuple[EventId, Frame], None]:
    """Yield the frames of a run with their ids. While the run is queued, or waits for another attempt, wait for its stream.
    Errors are those of ``Follower.frames``."""
    store, deadline, polls, has_delivered = scope.store, scope.streaming.deadline, 0, False
    while deadline.remaining():
        run = await read_run(store, agent.id, run_id)
        head = await read_head(store, _digest(agent, run_id))
        try:
            if head is not None:
                follower = await follow(store, head.digest, after, time.time, head)
                async for item in follower.frames(deadline.remaining()):
                    has_delivered = True
                    yield item
                return
        except StreamRestarted:
            pass
        except StreamNotFound:
            if run.status.is_final or has_delivered:
                raise
        except TurnLost:
            await _settle_lost(store, agent, run_id)
            raise
        if head is None and run.status.is_final:
            raise _no_stream(run)
        polls += 1
        if polls % _POLLS_PER_CHECK == 0:
            await _settle_lost(store, agent, run_id)
        await asyncio.sleep(FIRST_POLL_SECONDS if polls <= FIRST_POLLS else POLL_SECONDS)


async def _settle_lost(store: TenantStore, agent: ManagedAgent, run_id: RunId) -> None:
    """End the run if its worker died and nothing will begin it again."""
    agent = await read_agent(store, agent.owner, agent.id)
    if agent.active_run == run_id:
        await settle_lost(store, agent, time.time())


async def stop_run(scope: Scope, agent_id: ManagedAgentId, run_id: RunId) -> RunStopAnswer:
    """Stop a run. One that is queued is skipped. One that runs is recorded as far as it gets.

    Raises:
        AgentNotFound, RunNotFound: the owner has no such agent, or the agent no such run.
        StorageUnavailable: the outcome is unknown, or the run is about to begin; repeat the request.
    """
    store = scope.store
    agent = await read_agent(store, scope.caller.owner, agent_id)
    run = await read_run(store, agent_id, run_id)
    for _ in range(_STOP_POLLS):
        ended = await skip_queued(store, run, time.time())
        if ended is None:
            raise run_not_found()
        if not ended.status.is_final:
            if await _request_stop(store, agent, run_id):
                return RunStopAnswer(status="cancelling")
            if await is_lost(store, agent, ended, time.time()):
                ended = await fail_lost(store, ended, time.time()) or ended
        if ended.status.is_final:
            return RunStopAnswer.model_validate({"status": ended.status.value})
        await asyncio.sleep(_STOP_POLL_SECONDS)
        run = await read_run(store, agent_id, run_id)
    raise StorageUnavailable("The run is beginning or ending; try again.", retry_after=1)


async def _request_stop(store: TenantStore, agent: ManagedAgent, run: RunId) -> bool:
    """Ask the attempt that executes ``run`` to stop. Return False if there is none."""
    try:
        return await request_stop(store, _digest(agent, run), time.time()) is StopState.CANCELLING
    except StreamNotFound:
        return False


def _digest(agent: ManagedAgent, run: RunId) -> str:
    return stream_digest(agent.owner, agent.stream_agent, run)


def _no_stream(run: Run) -> StreamNotFound:
    """Return the error for a run that has ended and has no stream."""
    error = f" ({run.error['code']}: {run.error['message']})" if run.error is not None else ""
    return StreamNotFound(
        f"This run is {run.status.value}{error} and has no stream. Streams are kept for 24 hours.",
        details={"status": run.status.value},
    )
